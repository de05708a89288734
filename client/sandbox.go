package client

import (
	"context"
	"crypto/rand"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const sandboxes = "/v1/sandboxes"

// page is how many objects one request asks for.
const page = "1000"

// CreateSandbox makes a sandbox and returns when it runs. A broken connection
// makes no second one.
func (c *Client) CreateSandbox(ctx context.Context, q v1.SandboxRequest) (v1.Sandbox, error) {
	return get[v1.Sandbox](ctx, c, &call{
		method: http.MethodPost, path: sandboxes, body: encode(q),
		header: http.Header{"Idempotency-Key": {rand.Text()}},
	})
}

// A SandboxFilter selects sandboxes. Zero fields select all that are not
// stopped.
type SandboxFilter struct {
	States   []string          // any of (v1.SandboxRunning …)
	Metadata map[string]string // all of
	Template string            // name or digest
	Since    time.Time         // created then or later
	Owned    bool              // only those that were asked for
	Oldest   bool              // oldest first; else newest
}

// FindSandboxes yields the sandboxes that f selects.
func (c *Client) FindSandboxes(ctx context.Context, f SandboxFilter) iter.Seq2[v1.Sandbox, error] {
	query := url.Values{"limit": {page}}
	for _, s := range f.States {
		if query.Has("state") {
			s = query.Get("state") + "," + s
		}
		query.Set("state", s)
	}
	for k, v := range f.Metadata {
		query.Add("metadata", k+"="+v)
	}
	if f.Template != "" {
		query.Set("template", f.Template)
	}
	if !f.Since.IsZero() {
		query.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if f.Owned {
		query.Set("owned", "true")
	}
	if f.Oldest {
		query.Set("oldest", "true")
	}
	return func(yield func(v1.Sandbox, error) bool) {
		for {
			list, err := get[v1.List[v1.Sandbox]](ctx, c, &call{method: http.MethodGet, path: sandboxes, query: query})
			if err != nil {
				yield(v1.Sandbox{}, err)
				return
			}
			for _, x := range list.Items {
				if !yield(x, nil) {
					return
				}
			}
			if list.NextCursor == "" {
				return
			}
			query.Set("cursor", list.NextCursor)
		}
	}
}

// Sandboxes returns all that are not stopped, newest first.
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
	return get[v1.Sandbox](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(id)})
}

// UpdateSandbox changes what is not nil in q.
func (c *Client) UpdateSandbox(ctx context.Context, id string, q v1.SandboxUpdate) (v1.Sandbox, error) {
	return get[v1.Sandbox](ctx, c, &call{method: http.MethodPatch, path: sandboxes + segment(id), body: encode(q)})
}

// StopSandbox destroys a sandbox and returns when it is gone. Stopping it
// twice is no error.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: sandboxes + segment(id)})
}

// move changes the state of a sandbox. Those acts can be repeated: a sandbox
// that is there already stays there.
func move[T any](ctx context.Context, c *Client, id, act string, q any, once bool) (T, error) {
	x := &call{method: http.MethodPost, path: sandboxes + segment(id) + "/" + act, once: once}
	if q != nil {
		x.body = encode(q)
	}
	return get[T](ctx, c, x)
}

// PauseSandbox freezes a sandbox in memory.
func (c *Client) PauseSandbox(ctx context.Context, id string) (v1.Sandbox, error) {
	return move[v1.Sandbox](ctx, c, id, "pause", nil, false)
}

// HibernateSandbox writes a sandbox to disk: with its memory, or, diskOnly,
// without.
func (c *Client) HibernateSandbox(ctx context.Context, id string, diskOnly bool) (v1.Sandbox, error) {
	return move[v1.Sandbox](ctx, c, id, "hibernate", v1.HibernateRequest{DiskOnly: diskOnly}, true)
}

// ResumeSandbox wakes a sandbox that is frozen or on disk.
func (c *Client) ResumeSandbox(ctx context.Context, id string, q v1.ResumeRequest) (v1.Sandbox, error) {
	return move[v1.Sandbox](ctx, c, id, "resume", q, false)
}

// ExtendSandbox moves a sandbox's deadline to timeout from now, unless it is
// farther away.
func (c *Client) ExtendSandbox(ctx context.Context, id string, timeout time.Duration) (v1.Sandbox, error) {
	return move[v1.Sandbox](ctx, c, id, "extend", v1.ExtendRequest{Timeout: v1.Duration(timeout)}, false)
}

// SnapshotSandbox keeps a copy of a sandbox, which goes on.
func (c *Client) SnapshotSandbox(ctx context.Context, id string, q v1.SnapshotRequest) (v1.Snapshot, error) {
	return move[v1.Snapshot](ctx, c, id, "snapshot", q, true)
}

// ForkSandbox starts copies of a sandbox, which goes on. Each has its own
// outcome.
func (c *Client) ForkSandbox(ctx context.Context, id string, q v1.ForkRequest) ([]v1.Fork, error) {
	list, err := move[v1.List[v1.Fork]](ctx, c, id, "fork", q, true)
	return list.Items, err
}

// SandboxMetrics returns what a sandbox used, oldest first. Zero times mean
// as far back as is remembered, and now.
func (c *Client) SandboxMetrics(ctx context.Context, id string, from, to time.Time) ([]v1.Sample, error) {
	query := url.Values{}
	if !from.IsZero() {
		query.Set("from", from.UTC().Format(time.RFC3339))
	}
	if !to.IsZero() {
		query.Set("to", to.UTC().Format(time.RFC3339))
	}
	list, err := get[v1.List[v1.Sample]](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(id) + "/metrics", query: query})
	return list.Items, err
}

// Ports returns the ports that something in a sandbox listens on.
func (c *Client) Ports(ctx context.Context, id string) ([]v1.Port, error) {
	list, err := get[v1.List[v1.Port]](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(id) + "/ports"})
	return list.Items, err
}

// Port says whether something in a sandbox listens on a port, and where it is
// reached.
func (c *Client) Port(ctx context.Context, id string, port int) (v1.Port, error) {
	return get[v1.Port](ctx, c, &call{method: http.MethodGet, path: sandboxes + segment(id) + "/ports/" + strconv.Itoa(port)})
}

// LinkPort returns a link to a private port; ttl 0 means an hour.
func (c *Client) LinkPort(ctx context.Context, id string, port int, ttl time.Duration) (v1.Link, error) {
	return get[v1.Link](ctx, c, &call{
		method: http.MethodPost, path: sandboxes + segment(id) + "/ports/" + strconv.Itoa(port) + "/link", body: encode(v1.LinkRequest{TTL: v1.Duration(ttl)}),
	})
}

// Snapshots returns the newest first; of one sandbox if that is not empty.
func (c *Client) Snapshots(ctx context.Context, sandbox string) ([]v1.Snapshot, error) {
	query := url.Values{}
	if sandbox != "" {
		query.Set("sandbox", sandbox)
	}
	list, err := get[v1.List[v1.Snapshot]](ctx, c, &call{method: http.MethodGet, path: "/v1/snapshots", query: query})
	return list.Items, err
}

// Snapshot returns one by ID or name.
func (c *Client) Snapshot(ctx context.Context, name string) (v1.Snapshot, error) {
	return get[v1.Snapshot](ctx, c, &call{method: http.MethodGet, path: "/v1/snapshots" + segment(name)})
}

// RemoveSnapshot lets a snapshot go.
func (c *Client) RemoveSnapshot(ctx context.Context, name string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/snapshots" + segment(name)})
}

// CreateVolume makes an empty volume.
func (c *Client) CreateVolume(ctx context.Context, q v1.VolumeRequest) (v1.Volume, error) {
	return get[v1.Volume](ctx, c, &call{method: http.MethodPost, path: "/v1/volumes", body: encode(q), once: true})
}

// Volumes returns all by name.
func (c *Client) Volumes(ctx context.Context) ([]v1.Volume, error) {
	list, err := get[v1.List[v1.Volume]](ctx, c, &call{method: http.MethodGet, path: "/v1/volumes"})
	return list.Items, err
}

// Volume returns one by ID or name.
func (c *Client) Volume(ctx context.Context, name string) (v1.Volume, error) {
	return get[v1.Volume](ctx, c, &call{method: http.MethodGet, path: "/v1/volumes" + segment(name)})
}

// RemoveVolume deletes a volume with all that is in it.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/volumes" + segment(name)})
}

// CreateSecret stores a secret.
func (c *Client) CreateSecret(ctx context.Context, q v1.SecretRequest) (v1.Secret, error) {
	return get[v1.Secret](ctx, c, &call{method: http.MethodPost, path: "/v1/secrets", body: encode(q), once: true})
}

// Secrets returns all by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]v1.Secret, error) {
	list, err := get[v1.List[v1.Secret]](ctx, c, &call{method: http.MethodGet, path: "/v1/secrets"})
	return list.Items, err
}

// Secret returns one by ID or name, without its value.
func (c *Client) Secret(ctx context.Context, name string) (v1.Secret, error) {
	return get[v1.Secret](ctx, c, &call{method: http.MethodGet, path: "/v1/secrets" + segment(name)})
}

// UpdateSecret replaces a secret's value.
func (c *Client) UpdateSecret(ctx context.Context, name string, q v1.SecretUpdate) (v1.Secret, error) {
	return get[v1.Secret](ctx, c, &call{method: http.MethodPut, path: "/v1/secrets" + segment(name), body: encode(q)})
}

// RemoveSecret deletes a secret.
func (c *Client) RemoveSecret(ctx context.Context, name string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/secrets" + segment(name)})
}

// Usage returns what the caller has, and what it may have.
func (c *Client) Usage(ctx context.Context) (v1.Usage, error) {
	return get[v1.Usage](ctx, c, &call{method: http.MethodGet, path: "/v1/usage"})
}
