package client

import (
	"context"
	"crypto/rand"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/engi-dev/engi/api/v1"
)

const apps = "/v1/apps"

// CreateApp creates an app and returns when its page is served, or when its server has
// failed to start: then its state is failed. A broken connection creates no second app.
func (c *Client) CreateApp(ctx context.Context, q v1.AppRequest) (v1.App, error) {
	return create[v1.App](ctx, c, apps, q)
}

// Apps returns all apps, newest first.
func (c *Client) Apps(ctx context.Context) ([]v1.App, error) { return all[v1.App](ctx, c, apps, nil) }

// App returns one app by ID or name.
func (c *Client) App(ctx context.Context, name string) (v1.App, error) {
	return get[v1.App](ctx, c, apps+segment(name), nil)
}

// RemoveApp deletes an app and its history.
func (c *Client) RemoveApp(ctx context.Context, name string) error {
	return c.remove(ctx, apps+segment(name))
}

// OpenApp returns an app when its server answers, in a new sandbox if necessary.
func (c *Client) OpenApp(ctx context.Context, name string) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/open", nil)
}

// StopApp destroys the sandbox of an app. Files and history stay.
func (c *Client) StopApp(ctx context.Context, name string) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/stop", nil)
}

// ApplyToApp starts to apply the output of a model, and returns the seq of the start
// at once: [Client.WatchApp] shows the rest. With the key of an
// earlier apply, it returns that apply and starts nothing. Without a key, a broken connection
// still starts no second apply.
func (c *Client) ApplyToApp(ctx context.Context, name string, q v1.ApplyRequest, key string) (int64, error) {
	return c.changeApp(ctx, name, "/apply", q, key)
}

// EditApp starts an edit of an app by a model, and returns the seq of the start at once:
// [Client.WatchApp] shows the rest, up to an update of type edited. Keys work as in
// [Client.ApplyToApp].
func (c *Client) EditApp(ctx context.Context, name string, q v1.EditRequest, key string) (int64, error) {
	return c.changeApp(ctx, name, "/edit", q, key)
}

func (c *Client) changeApp(ctx context.Context, name, how string, q any, key string) (int64, error) {
	if key == "" {
		key = rand.Text()
	}
	x, err := ask[v1.Applying](ctx, c, &call{method: http.MethodPost, path: apps + segment(name) + how, body: q, header: http.Header{keyHeader: {key}}})
	return x.Seq, err
}

// CancelApply cancels the running apply or edit of an app. A cancelled apply changes
// nothing.
func (c *Client) CancelApply(ctx context.Context, name string) error {
	return c.act(ctx, &call{method: http.MethodPost, path: apps + segment(name) + "/cancel"})
}

// WatchApp yields the updates of an app after a seq; below 0, its current state
// and then its updates. It resumes a broken stream where it left off, also after
// a restart of the server. It ends with ctx or an error, and when the app is deleted.
func (c *Client) WatchApp(ctx context.Context, name string, after int64) iter.Seq2[v1.AppUpdate, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: apps + segment(name) + "/stream", query: set("after", offset(max(-1, after))), header: ndjson()}
	}
	read := func(e v1.AppUpdate) (string, *v1.Problem) {
		if e.Seq > 0 {
			return "", nil // the update does not belong to the stream
		}
		return e.Type, e.Error
	}
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.AppUpdate]{read: read}, func(e *v1.AppUpdate) (wanted, last bool) {
		after = max(after, e.Seq)
		return true, e.State == v1.AppRemoved
	})
}

// RollbackApp restores the files of an app from an earlier revision, where 0 means the one
// before the last, and returns the new revision when its server answers.
func (c *Client) RollbackApp(ctx context.Context, name string, revision int64) (v1.AppRevision, error) {
	return once[v1.AppRevision](ctx, c, apps+segment(name)+"/rollback", v1.RollbackRequest{Revision: revision})
}

// SnapshotApp takes a snapshot of an app, including its databases, and returns the app's
// last revision, to which the snapshot belongs.
func (c *Client) SnapshotApp(ctx context.Context, name string) (v1.AppRevision, error) {
	return send[v1.AppRevision](ctx, c, http.MethodPost, apps+segment(name)+"/snapshot", nil)
}

// RestoreApp restores an app from the snapshot of a revision, where 0 means
// the last one with a snapshot. It returns like [Client.RollbackApp].
func (c *Client) RestoreApp(ctx context.Context, name string, revision int64) (v1.AppRevision, error) {
	return once[v1.AppRevision](ctx, c, apps+segment(name)+"/rollback", v1.RollbackRequest{Revision: revision, Snapshot: true})
}

// AppRevisions returns the history of an app, newest first.
func (c *Client) AppRevisions(ctx context.Context, name string) ([]v1.AppRevision, error) {
	return all[v1.AppRevision](ctx, c, apps+segment(name)+"/revisions", nil)
}

// AppDiff returns the unified diff between two revisions of an app; from 0 means the
// parent of to, and to 0 the last revision.
func (c *Client) AppDiff(ctx context.Context, name string, from, to int64) (string, error) {
	return c.text(ctx, apps+segment(name)+"/diff", "from", offset(from), "to", offset(to))
}

// text returns the body of an answer as text.
func (c *Client) text(ctx context.Context, path string, pairs ...string) (string, error) {
	body, err := c.open(ctx, path, pairs...)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return "", c.unreachable(ctx, err)
	}
	return string(text), nil
}

// open returns the body of an answer that is not JSON. The caller closes it.
func (c *Client) open(ctx context.Context, path string, pairs ...string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &call{method: http.MethodGet, path: path, query: set(pairs...), header: http.Header{"Accept": {"*/*"}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// An AppFileFilter selects files of an app. Zero fields select all files of the last
// revision.
type AppFileFilter struct {
	Revision   int64
	Path       string   // a directory, or a pattern with * and ?
	Extensions []string // any of these
	MaxSize    int64
	Content    bool // include the contents, as far as an answer has room
}

// AppFiles returns files of an app, ordered by path.
func (c *Client) AppFiles(ctx context.Context, name string, f AppFileFilter) (v1.AppFiles, error) {
	return get[v1.AppFiles](ctx, c, apps+segment(name)+"/files/list", set("revision", offset(f.Revision), "path", f.Path,
		"extensions", strings.Join(f.Extensions, ","), "max_size", offset(f.MaxSize), "content", yes(f.Content)))
}

// AppFile downloads a file of an app; revision 0 means the last one. The caller closes it.
func (c *Client) AppFile(ctx context.Context, name, path string, revision int64) (io.ReadCloser, error) {
	return c.open(ctx, apps+segment(name)+"/files", "path", path, "revision", offset(revision))
}

// AppManifest returns the parts of an app: imports and exports of its files, components,
// routes, style sheets and packages; revision 0 means the last one.
func (c *Client) AppManifest(ctx context.Context, name string, revision int64) (v1.AppManifest, error) {
	return get[v1.AppManifest](ctx, c, apps+segment(name)+"/manifest", set("revision", offset(revision)))
}

// AppZip downloads the files of an app as an archive; revision 0 means the last one. The
// caller closes it.
func (c *Client) AppZip(ctx context.Context, name string, revision int64) (io.ReadCloser, error) {
	return c.open(ctx, apps+segment(name)+"/zip", "revision", offset(revision))
}

// AppLogs returns the end of the output of an app's server; 0 bytes mean
// 64 KiB.
func (c *Client) AppLogs(ctx context.Context, name string, bytes int) (v1.AppLogs, error) {
	return get[v1.AppLogs](ctx, c, apps+segment(name)+"/logs", set("max", number(bytes)))
}

// AppStatus checks the health of an app, including its server.
func (c *Client) AppStatus(ctx context.Context, name string) (v1.AppStatus, error) {
	return get[v1.AppStatus](ctx, c, apps+segment(name)+"/status", nil)
}
