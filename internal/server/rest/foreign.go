package rest

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// NewResource returns a resource of routes that another package makes with
// [Foreign]. The tag groups them with those of other resources of that tag.
// missing is why the node cannot serve them; nil if it can.
func NewResource(tag string, missing error, routes ...Route) Resource {
	return Resource{tag: tag, missing: missing, routes: routes}
}

// Foreign is a route in the format of another server, whose body h reads and whose
// answer h writes. The description says of the answer that it is an object. P has
// the route's parameters, in fields with tags as [params] reads them.
func Foreign[P any](r Route, h func(*Exchange, *P) error) Route {
	r.Answers = []answer{jsonOf[map[string]any](http.StatusOK, nil)}
	return raw(r, func(c *call, p *P, _ none) error { return h(&Exchange{c}, p) })
}

// An Exchange is a request to a [Foreign] route, from an admitted caller, and its
// answer. It belongs to the goroutine that serves it.
type Exchange struct{ c *call }

// Context returns the context of the request.
func (x *Exchange) Context() context.Context { return x.c.Context }

// Owner returns whose objects the route is about; see [Objects].
func (x *Exchange) Owner() engi.Owner { return x.c.owner() }

// IdempotencyKey returns the request's Idempotency-Key; empty if it has none, or
// the route takes none.
func (x *Exchange) IdempotencyKey() string { return x.c.key }

// ReadBody returns the body. Its bytes count as held by the owner until the caller
// calls free; on an error nothing is held.
func (x *Exchange) ReadBody() (body []byte, free func(), err error) {
	body, err = x.c.readBody()
	return body, func() { x.c.free(body) }, err
}

// Reply answers with v in JSON.
func (x *Exchange) Reply(v any) error { return x.c.reply(http.StatusOK, v) }

// Writer returns the writer of an answer that [Exchange.Reply] does not write.
func (x *Exchange) Writer() http.ResponseWriter { return x.c }

// Heartbeat returns the silence after which a stream says that it is alive.
func (x *Exchange) Heartbeat() time.Duration { return x.c.s.beat }

// Waiting returns a context that ends when the caller leaves, when its key is no
// longer valid, and when the server leaves. The caller of Waiting cancels it.
func (x *Exchange) Waiting() (context.Context, context.CancelFunc) { return x.c.waiting() }

// Left reports whether the caller has left.
func (x *Exchange) Left() bool { return x.c.gone() }

// Problem returns what the caller is told of an error after its answer has begun;
// false if the caller has left. It logs what the caller is not told.
func (x *Exchange) Problem(err error) (v1.Problem, bool) { return x.c.tell(err) }

// Report logs an error that the caller is not told, if it is this node's fault.
func (x *Exchange) Report(err error) { x.c.logInternal(err) }

// Log returns the server's log.
func (x *Exchange) Log() *slog.Logger { return x.c.s.log }

// StartRun begins a run whose tools do no more than the caller may. It is the same
// run for the same Idempotency-Key: that of spec, or else that of the request.
func (x *Exchange) StartRun(agents engi.Agents, spec engi.RunSpec) (engi.Run, error) {
	return startRun(x.c, agents, spec)
}

// WaitRun waits for the end of a run, which goes on if the caller leaves, and calls
// see with what happens before. The error of a run that has failed is the caller's.
func (x *Exchange) WaitRun(agents engi.Agents, run engi.Run, see func(engi.RunUpdate)) (engi.Run, error) {
	return waitRun(x.c, agents, run, see)
}
