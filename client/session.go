package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const sessions = "/v1/sessions"

// CreateSession creates a session. A broken connection creates no second session.
func (c *Client) CreateSession(ctx context.Context, q v1.SessionRequest) (v1.Session, error) {
	return create[v1.Session](ctx, c, sessions, q)
}

// Sessions returns the sessions that are not terminated, newest first.
func (c *Client) Sessions(ctx context.Context) ([]v1.Session, error) {
	return all[v1.Session](ctx, c, sessions, nil)
}

// Session returns one session by ID or name.
func (c *Client) Session(ctx context.Context, idOrName string) (v1.Session, error) {
	return get[v1.Session](ctx, c, sessions+segment(idOrName), nil)
}

// TerminateSession ends a session, and deletes its sandbox and its volume.
func (c *Client) TerminateSession(ctx context.Context, idOrName string) error {
	return c.remove(ctx, sessions+segment(idOrName))
}

// ReleaseSession destroys a session's sandbox; its volume stays.
func (c *Client) ReleaseSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/release", nil)
}

// AttachSession resumes a session and records an attached client; an empty name
// means the default client.
func (c *Client) AttachSession(ctx context.Context, idOrName, client string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/attach", v1.AttachRequest{Client: client})
}

// DetachSession records that a client has left a session.
func (c *Client) DetachSession(ctx context.Context, idOrName, client string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/detach", v1.AttachRequest{Client: client})
}

// SuspendSession pauses a session's sandbox in memory.
func (c *Client) SuspendSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/suspend", nil)
}

// HibernateSession writes a session's sandbox to disk.
func (c *Client) HibernateSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/hibernate", nil)
}

// ResumeSession makes a session active again.
func (c *Client) ResumeSession(ctx context.Context, idOrName string) (v1.Session, error) {
	return send[v1.Session](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/resume", nil)
}

// SaveSession copies a session's files to the node's store for copies of workspaces.
func (c *Client) SaveSession(ctx context.Context, idOrName string) (v1.WorkspaceCopy, error) {
	return send[v1.WorkspaceCopy](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/save", nil)
}

// PushSession commits the changes in a session's repository and pushes them.
func (c *Client) PushSession(ctx context.Context, idOrName string, q v1.GitPush) (v1.GitPushed, error) {
	return send[v1.GitPushed](ctx, c, http.MethodPost, sessions+segment(idOrName)+"/git/push", q)
}

// RunCode runs code in a session and returns its result. Code that fails is a
// result, not an error. A request that may have arrived is not sent again.
func (c *Client) RunCode(ctx context.Context, session string, q v1.CodeRequest) (v1.CodeResult, error) {
	return once[v1.CodeResult](ctx, c, sessions+segment(session)+"/run_code", q)
}

// StreamCode runs code in a session and yields its output while it runs,
// then an event with its result. Leaving the loop ends the run.
func (c *Client) StreamCode(ctx context.Context, session string, q v1.CodeRequest) iter.Seq2[v1.CodeUpdate, error] {
	x := &call{method: http.MethodPost, path: sessions + segment(session) + "/run_code", body: q, once: true, header: ndjson()}
	return events(ctx, c, x, "the session is there still: run it again if that does no harm",
		func(e v1.CodeUpdate) (string, *v1.Problem) { return e.Type, e.Error }, func(e v1.CodeUpdate) bool { return e.Type == v1.EventResult })
}

// Dependencies returns the packages that code in sessions may import, and the state of
// their installation.
func (c *Client) Dependencies(ctx context.Context) (v1.Dependencies, error) {
	return get[v1.Dependencies](ctx, c, "/v1/dependencies", nil)
}
