package client

import (
	"context"
	"crypto/rand"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const sessions = "/v1/sessions"

// CreateSession makes a session. A broken connection makes no second one.
func (c *Client) CreateSession(ctx context.Context, q v1.SessionRequest) (v1.Session, error) {
	return get[v1.Session](ctx, c, &call{
		method: http.MethodPost, path: sessions, body: encode(q),
		header: http.Header{"Idempotency-Key": {rand.Text()}},
	})
}

// Sessions returns the sessions that are not over, newest first.
func (c *Client) Sessions(ctx context.Context) ([]v1.Session, error) {
	list, err := get[v1.List[v1.Session]](ctx, c, &call{method: http.MethodGet, path: sessions})
	return list.Items, err
}

// Session returns one session by ID or name.
func (c *Client) Session(ctx context.Context, idOrName string) (v1.Session, error) {
	return get[v1.Session](ctx, c, &call{method: http.MethodGet, path: sessions + segment(idOrName)})
}

// TerminateSession ends a session, with its sandbox and its volume.
func (c *Client) TerminateSession(ctx context.Context, idOrName string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: sessions + segment(idOrName)})
}

// ReleaseSession lets a session's sandbox go; its volume stays.
func (c *Client) ReleaseSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return get[v1.Session](ctx, c, &call{method: http.MethodPost, path: sessions + segment(idOrName) + "/release"})
}

// RunCode runs code in a session and returns its answer. Code that fails is an
// answer. What may have run is not sent again.
func (c *Client) RunCode(ctx context.Context, session string, q v1.CodeRequest) (v1.CodeResult, error) {
	return get[v1.CodeResult](ctx, c, &call{method: http.MethodPost, path: sessions + segment(session) + "/run_code", body: encode(q), once: true})
}

// StreamCode runs code in a session and yields what it prints while it runs,
// then an event with its result. Leaving ends the run.
func (c *Client) StreamCode(ctx context.Context, session string, q v1.CodeRequest) iter.Seq2[v1.CodeEvent, error] {
	return func(yield func(v1.CodeEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.do(ctx, &call{
			method: http.MethodPost, path: sessions + segment(session) + "/run_code", body: encode(q), once: true,
			header: http.Header{"Accept": {"application/x-ndjson"}},
		})
		if err != nil {
			yield(v1.CodeEvent{}, err)
			return
		}
		defer resp.Body.Close()
		for e, err := range lines[v1.CodeEvent](resp.Body, cancel) {
			switch {
			case err != nil:
				yield(v1.CodeEvent{}, c.unreachable(ctx, err))
				return
			case e.Type == v1.EventHeartbeat:
				continue
			case e.Type == v1.EventError && e.Error != nil:
				yield(v1.CodeEvent{}, &Error{*e.Error})
				return
			}
			if !yield(e, nil) || e.Type == v1.EventResult {
				return
			}
		}
		yield(v1.CodeEvent{}, failure(v1.Unavailable, "the session is there still: run it again if that does no harm", "the answer broke off before the result"))
	}
}

// Dependencies returns what code in sessions may import, and how far its
// installation is.
func (c *Client) Dependencies(ctx context.Context) (v1.Dependencies, error) {
	return get[v1.Dependencies](ctx, c, &call{method: http.MethodGet, path: "/v1/dependencies"})
}
