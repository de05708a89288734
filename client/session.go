package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const sessions = "/v1/sessions"

// CreateSession makes a session. A broken connection makes no second one.
func (c *Client) CreateSession(ctx context.Context, q v1.SessionRequest) (v1.Session, error) {
	return create[v1.Session](ctx, c, sessions, q)
}

// Sessions returns the sessions that are not over, newest first.
func (c *Client) Sessions(ctx context.Context) ([]v1.Session, error) {
	return list[v1.Session](ctx, c, sessions, nil)
}

// Session returns one session by ID or name.
func (c *Client) Session(ctx context.Context, idOrName string) (v1.Session, error) {
	return get[v1.Session](ctx, c, sessions+segment(idOrName), nil)
}

// TerminateSession ends a session, with its sandbox and its volume.
func (c *Client) TerminateSession(ctx context.Context, idOrName string) error {
	return c.remove(ctx, sessions+segment(idOrName))
}

// ReleaseSession lets a session's sandbox go; its volume stays.
func (c *Client) ReleaseSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/release", nil)
}

// RunCode runs code in a session and returns its answer. Code that fails is an
// answer. What may have run is not sent again.
func (c *Client) RunCode(ctx context.Context, session string, q v1.CodeRequest) (v1.CodeResult, error) {
	return once[v1.CodeResult](ctx, c, sessions+segment(session)+"/run_code", q)
}

// StreamCode runs code in a session and yields what it prints while it runs,
// then an event with its result. Leaving ends the run.
func (c *Client) StreamCode(ctx context.Context, session string, q v1.CodeRequest) iter.Seq2[v1.CodeUpdate, error] {
	x := &call{method: http.MethodPost, path: sessions + segment(session) + "/run_code", body: encode(q), once: true, header: ndjson()}
	return events(ctx, c, x, "the session is there still: run it again if that does no harm",
		func(e v1.CodeUpdate) (string, *v1.Problem) { return e.Type, e.Error }, func(e v1.CodeUpdate) bool { return e.Type == v1.EventResult })
}

// Dependencies returns what code in sessions may import, and how far its
// installation is.
func (c *Client) Dependencies(ctx context.Context) (v1.Dependencies, error) {
	return get[v1.Dependencies](ctx, c, "/v1/dependencies", nil)
}
