package rest

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// NewResource returns a resource of routes that another package builds with
// [Foreign]. The tag groups them with routes of other resources of that tag.
// missing is the reason why the node cannot serve them; nil if it can.
func NewResource(tag string, missing error, routes ...Route) Resource {
	return Resource{tag: tag, missing: missing, routes: routes}
}

// Foreign returns a route in the format of another server. h reads the body and writes
// the answer, which the description declares as an object. P holds
// the route's parameters, in fields with the tags that [params] reads.
func Foreign[P any](r Route, h func(*Exchange, *P) error) Route {
	r.Answers = []answer{jsonOf[map[string]any](http.StatusOK, nil)}
	return raw(r, func(c *call, p *P, _ none) error { return h(&Exchange{c}, p) })
}

// An Exchange is a request to a [Foreign] route from an authenticated caller, and its
// answer. It belongs to the goroutine that serves it.
type Exchange struct{ c *call }

// Context returns the context of the request.
func (x *Exchange) Context() context.Context { return x.c.Context }

// Owner returns the owner whose objects the route uses; see [Objects].
func (x *Exchange) Owner() engi.Owner { return x.c.owner() }

// Viewer returns the viewer of the objects that the route looks up; see [Objects].
func (x *Exchange) Viewer() engi.Viewer { return x.c.viewer() }

// IdempotencyKey returns the request's Idempotency-Key; empty if it has none, or
// the route ignores it.
func (x *Exchange) IdempotencyKey() string { return x.c.key }

// ReadBody returns the body. Its bytes count against the owner's share until the caller
// calls free; on an error the caller has nothing to free.
func (x *Exchange) ReadBody() (body []byte, free func(), err error) {
	body, err = x.c.readBody()
	return body, func() { x.c.free(body) }, err
}

// Reply answers with v as JSON.
func (x *Exchange) Reply(v any) error { return x.c.reply(http.StatusOK, v) }

// Writer returns the writer for an answer that [Exchange.Reply] does not write.
func (x *Exchange) Writer() http.ResponseWriter { return x.c }

// Heartbeat returns the silence after which a stream sends a heartbeat.
func (x *Exchange) Heartbeat() time.Duration { return x.c.s.beat }

// Waiting returns a context that ends when the caller leaves, when its key becomes
// invalid, and when the server shuts down. The caller of Waiting cancels it.
func (x *Exchange) Waiting() (context.Context, context.CancelFunc) { return x.c.waiting() }

// Left reports whether the caller has left.
func (x *Exchange) Left() bool { return x.c.gone() }

// Problem returns the problem that the caller sees for an error after its answer has started;
// false if the caller has left. It logs the details that the caller does not see.
func (x *Exchange) Problem(err error) (v1.Problem, bool) { return x.c.tell(err) }

// Report logs an error that the caller does not see, if it is this node's fault.
func (x *Exchange) Report(err error) { x.c.logInternal(err) }

// Log returns the server's log.
func (x *Exchange) Log() *slog.Logger { return x.c.s.log }

// StartRun starts a run whose tools are restricted to the scopes of the caller's key. It returns the same
// run for the same Idempotency-Key, which is the one of spec, or else the one of the request.
func (x *Exchange) StartRun(agents engi.Agents, spec engi.RunSpec) (engi.Run, error) {
	return startRun(x.c, agents, spec)
}

// WaitRun waits for the end of a run and passes each update before it to see. The run goes
// on if the caller leaves. WaitRun returns the error of a failed run.
func (x *Exchange) WaitRun(agents engi.Agents, run engi.Run, see func(engi.RunUpdate)) (engi.Run, error) {
	return waitRun(x.c, agents, run, see)
}
