package client

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const sandboxes = "/v1/sandboxes"

// page is the number of objects in one request.
const page = "1000"

// CreateSandbox creates a sandbox and returns when it is running. A broken connection
// creates no second sandbox.
func (c *Client) CreateSandbox(ctx context.Context, q v1.SandboxRequest) (v1.Sandbox, error) {
	return create[v1.Sandbox](ctx, c, sandboxes, q)
}

// A SandboxFilter selects sandboxes. Zero fields select all sandboxes that are not
// stopped.
type SandboxFilter struct {
	States   []string          // any of these (v1.SandboxRunning …)
	Metadata map[string]string // all of these
	Template string            // name or digest
	Since    time.Time         // created at that time or later
	Owned    bool              // only sandboxes that owners created
	Oldest   bool              // oldest first; default is newest first
}

// FindSandboxes yields the sandboxes that f selects.
func (c *Client) FindSandboxes(ctx context.Context, f SandboxFilter) iter.Seq2[v1.Sandbox, error] {
	query := set("limit", page, "state", strings.Join(f.States, ","), "template", f.Template, "since", moment(f.Since, time.RFC3339Nano), "owned", yes(f.Owned), "oldest", yes(f.Oldest))
	for k, v := range f.Metadata {
		query.Add("metadata", k+"="+v)
	}
	return pages[v1.Sandbox](ctx, c, sandboxes, query)
}

// moment returns t as a parameter; empty for the zero time.
func moment(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(layout)
}

// yes returns b as a parameter; empty for false.
func yes(b bool) string {
	if b {
		return "true"
	}
	return ""
}

// Sandboxes returns all sandboxes that are not stopped, newest first.
func (c *Client) Sandboxes(ctx context.Context) ([]v1.Sandbox, error) {
	var all []v1.Sandbox
	for x, err := range c.FindSandboxes(ctx, SandboxFilter{}) {
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// Sandbox returns the record of one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (v1.Sandbox, error) {
	return get[v1.Sandbox](ctx, c, sandboxes+segment(id), nil)
}

// UpdateSandbox changes the fields of q that are not nil.
func (c *Client) UpdateSandbox(ctx context.Context, id string, q v1.SandboxUpdate) (v1.Sandbox, error) {
	return send[v1.Sandbox](ctx, c, http.MethodPatch, sandboxes+segment(id), q)
}

// StopSandbox destroys a sandbox and returns when it is gone. Stopping it
// twice is no error.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return c.remove(ctx, sandboxes+segment(id))
}

// PauseSandbox freezes a sandbox in memory.
func (c *Client) PauseSandbox(ctx context.Context, id string) (v1.Sandbox, error) {
	return send[v1.Sandbox](ctx, c, http.MethodPost, sandboxes+segment(id)+"/pause", nil)
}

// HibernateSandbox writes a sandbox to disk: with its memory, or without it if diskOnly
// is set.
func (c *Client) HibernateSandbox(ctx context.Context, id string, diskOnly bool) (v1.Sandbox, error) {
	return once[v1.Sandbox](ctx, c, sandboxes+segment(id)+"/hibernate", v1.HibernateRequest{DiskOnly: diskOnly})
}

// ResumeSandbox wakes a paused or hibernated sandbox.
func (c *Client) ResumeSandbox(ctx context.Context, id string, q v1.ResumeRequest) (v1.Sandbox, error) {
	return send[v1.Sandbox](ctx, c, http.MethodPost, sandboxes+segment(id)+"/resume", q)
}

// ExtendSandbox moves a sandbox's deadline to timeout from now, unless the deadline is
// later.
func (c *Client) ExtendSandbox(ctx context.Context, id string, timeout time.Duration) (v1.Sandbox, error) {
	return send[v1.Sandbox](ctx, c, http.MethodPost, sandboxes+segment(id)+"/extend", v1.ExtendRequest{Timeout: v1.Duration(timeout)})
}

// ForkSandbox starts copies of a sandbox, which keeps running. Each copy has its own
// result. A broken connection starts no further copies.
func (c *Client) ForkSandbox(ctx context.Context, id string, q v1.ForkRequest) ([]v1.Fork, error) {
	all, err := create[v1.List[v1.Fork]](ctx, c, sandboxes+segment(id)+"/fork", q)
	return all.Items, err
}

// SandboxMetrics returns the resource usage of a sandbox, oldest first. Zero times mean
// the oldest kept sample, and now.
func (c *Client) SandboxMetrics(ctx context.Context, id string, from, to time.Time) ([]v1.Sample, error) {
	return list[v1.Sample](ctx, c, sandboxes+segment(id)+"/metrics", set("from", moment(from, time.RFC3339), "to", moment(to, time.RFC3339)))
}

// Ports returns the ports on which programs in a sandbox listen.
func (c *Client) Ports(ctx context.Context, id string) ([]v1.Port, error) {
	return list[v1.Port](ctx, c, sandboxes+segment(id)+"/ports", nil)
}

// Port returns whether a program in a sandbox listens on a port, and the port's
// address.
func (c *Client) Port(ctx context.Context, id string, port int) (v1.Port, error) {
	return get[v1.Port](ctx, c, sandboxes+segment(id)+"/ports/"+strconv.Itoa(port), nil)
}

// LinkPort returns a link to a private port; ttl 0 means an hour.
func (c *Client) LinkPort(ctx context.Context, id string, port int, ttl time.Duration) (v1.Link, error) {
	return send[v1.Link](ctx, c, http.MethodPost, sandboxes+segment(id)+"/ports/"+strconv.Itoa(port)+"/link", v1.LinkRequest{TTL: v1.Duration(ttl)})
}
