package intercept

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/request"
)

const (
	maxHeld        = 128 << 20 // bytes; maximum size of all held bodies together
	maxHeldByOwner = 48 << 20
)

// heldBytes counts the bytes of held bodies.
type heldBytes struct {
	mu     sync.Mutex
	all    int64                // guarded by mu
	owners map[engi.Owner]int64 // guarded by mu
}

// add reports whether n more bytes, which may be negative, are within the bounds.
func (h *heldBytes) add(owner engi.Owner, n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > 0 && (h.all+n > maxHeld || h.owners[owner]+n > maxHeldByOwner) {
		return false
	}
	if h.owners == nil {
		h.owners = map[engi.Owner]int64{}
	}
	h.all += n
	if h.owners[owner] += n; h.owners[owner] == 0 {
		delete(h.owners, owner)
	}
	return true
}

// judge judges a request by the request rules of the policy, if there are any for
// the host. It returns the reason of a refusal, and the status of the response.
func (x *exchange) judge(w http.ResponseWriter, r *http.Request) (int, error) {
	p, t := x.sandbox.policy, x.target
	if x.judged = p.Judges(t.Host); !x.judged {
		return 0, nil
	}
	head, err := request.Read(r)
	if err != nil {
		return statusOf(err), err
	}
	j := &request.Judging{Request: head, Body: func(limit int64) ([]byte, error) {
		if err := request.CheckJSON(r.Header); err != nil {
			return nil, err
		}
		return x.hold(w, r, limit)
	}}
	if x.verdict, err = p.Request(t.Host, t.Port, t.TLS, j); err != nil {
		return statusOf(err), err
	}
	x.rules = slices.DeleteFunc(x.rules, func(r rule) bool { return r.grant.Secret != "" && x.verdict.Withheld[r.number] })
	switch rule := x.verdict.Rule; {
	case x.verdict.Action == engi.RequestAllow:
		return 0, nil
	case x.verdict.Action.Asks():
		err = x.ask(w, r)
	case rule != nil:
		err = x.denied("request rule %q forbids it%s", rule.String(), because(rule.Reason))
	default:
		err = x.denied("no request rule allows %s %s at %s%s", head.Method, printable(head.Path, 100), t.Host, because(j.Missed()))
	}
	return statusOf(err), err
}

func because(reason string) string {
	if reason != "" {
		return ": " + reason
	}
	return ""
}

// denied returns an error with the requests that are allowed instead.
func (x *exchange) denied(format string, args ...any) error {
	err := engi.Errorf(engi.Denied, format, args...)
	if allowed := x.sandbox.policy.RequestsTo(x.target.Host, x.target.Port, x.target.TLS); allowed != "" {
		return err.WithRemedy("what may pass: %s", allowed)
	}
	return err.WithRemedy("the network policy allows no traffic to %s on this port and protocol", x.target.Host)
}

// statusOf returns the status of a refusal.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	switch engi.KindOf(err) {
	case engi.Denied:
		return http.StatusForbidden
	case engi.Exhausted:
		return http.StatusRequestEntityTooLarge
	case engi.Invalid:
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// hold reads the body, so that the rules judge exactly the bytes that leave. It reports
// Exhausted if there are more bytes than limit.
func (x *exchange) hold(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	tooLong := func() error {
		return engi.Errorf(engi.Exhausted, "the body is judged, and is longer than %d bytes", limit).
			WithRemedy("send less at once, or raise max_body of the request rule")
	}
	if x.held {
		if int64(len(x.body)) > limit {
			return nil, tooLong()
		}
		return x.body, nil
	}
	if r.ContentLength > limit {
		return nil, tooLong()
	}
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(x.i.o.HeaderTimeout)) // all connections in this package support deadlines
	defer deadline.SetReadDeadline(time.Time{})
	most := limit + 1
	if r.ContentLength >= 0 {
		most = r.ContentLength + 1 // one byte more, to read the end of the body, too
	}
	var err error
	for err == nil {
		if room := cap(x.body); len(x.body) == room {
			more := min(max(int64(room), 4<<10), most-int64(room))
			if room >= 64<<10 && r.ContentLength > 0 {
				more = most - int64(room) // the first bytes arrived, so expect the rest
			}
			if more <= 0 {
				return nil, tooLong()
			}
			if !x.i.held.add(x.sandbox.owner, more) {
				return nil, engi.Errorf(engi.Unavailable, "too many bodies of requests are held to be judged").WithRemedy("try again when other requests have been answered")
			}
			x.body = append(make([]byte, 0, int64(room)+more), x.body...)
		}
		var n int
		n, err = r.Body.Read(x.body[len(x.body):cap(x.body)])
		x.body = x.body[:len(x.body)+n]
	}
	if err != io.EOF {
		return nil, engi.Errorf(engi.Invalid, "the body of the request ended before it was complete").WithRemedy("send the whole message, with the length in its header, without pauses")
	}
	if int64(len(x.body)) > limit {
		return nil, tooLong()
	}
	x.held = true
	r.Body, r.ContentLength, r.TransferEncoding = &heldBody{bytes.NewReader(x.body), x.letGo}, int64(len(x.body)), nil
	return x.body, nil
}

// letGo subtracts the held body from the count.
func (x *exchange) letGo() {
	x.releasing.Lock()
	defer x.releasing.Unlock()
	if n := int64(cap(x.body)); n > 0 {
		x.i.held.add(x.sandbox.owner, -n)
		x.body = nil
	}
}

// A heldBody is the held body of a request. It counts until it is closed.
type heldBody struct {
	*bytes.Reader
	done func()
}

func (b *heldBody) Close() error {
	b.done()
	return nil
}

// ask waits for the approver's decision. It returns the reason of a refusal.
func (x *exchange) ask(w http.ResponseWriter, r *http.Request) error {
	rule := x.verdict.Rule
	if x.i.o.Approver == nil {
		return engi.Errorf(engi.Denied, "request rule %q needs approvals, which are not available for this network", rule.String()).WithRemedy("change the policy so that it allows or denies the request")
	}
	// The approver sees the request that would leave, and a client that disconnects is
	// noticed only after its body was read.
	body, err := x.hold(w, r, rule.MaxBody)
	if err != nil {
		return err
	}
	q := engi.HeldRequest{
		Owner: x.sandbox.owner, Sandbox: x.sandbox.id, Host: x.target.Host, Port: x.target.Port, Method: r.Method, Path: r.URL.RequestURI(),
		Rule: rule.String(), Exact: rule.Action == engi.RequestAskExact, Body: body, // the body does not change during the wait
	}
	for _, r := range x.rules {
		for _, name := range r.secrets() {
			if !slices.Contains(q.Secrets, name) {
				q.Secrets = append(q.Secrets, name)
			}
		}
	}
	c := r.Context().Value(connKey{}).(*sandboxConn)
	ctx, cancel := context.WithCancel(r.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() { // a connection that waits for a decision is not idle
		for tick := time.NewTicker(c.idle / 2); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				c.timer.Reset(c.idle)
			}
		}
	})
	d, err := x.i.o.Approver.Ask(ctx, q)
	cancel()
	waiting.Wait()
	switch {
	case r.Context().Err() != nil:
		return engi.Errorf(engi.Unavailable, "the program left before anybody decided")
	case engi.Is(err, engi.Exhausted):
		return engi.Errorf(engi.Unavailable, "request rule %q needs an approval, but too many requests are waiting for one", rule.String()).WithRemedy("try again when some have been decided")
	case err != nil:
		return err
	case !d.Allowed:
		return x.denied("request rule %q asks, and the decision was no%s", rule.String(), because(d.Reason))
	case x.i.sandbox(x.sandbox.id) != x.sandbox:
		return engi.Errorf(engi.Denied, "the policy changed while the request waited for a decision").WithRemedy("send it again")
	}
	x.approved = true
	return nil
}
