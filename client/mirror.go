package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const mirror = "/v1/mirror"

// Mirror describes the mirror of package registries. It needs an admin key.
func (c *Client) Mirror(ctx context.Context) (v1.Mirror, error) {
	return get[v1.Mirror](ctx, c, mirror, nil)
}

// ClearMirror removes all packages from the mirror. It needs an admin key.
func (c *Client) ClearMirror(ctx context.Context) error { return c.remove(ctx, mirror) }

// WarmMirror makes the mirror fetch the packages in lock files, and yields an
// event for each package; the last one is of type result. Leaving the loop ends it. It
// needs an admin key.
func (c *Client) WarmMirror(ctx context.Context, files []v1.MirrorFile) iter.Seq2[v1.MirrorUpdate, error] {
	x := &call{method: http.MethodPost, path: mirror + "/warm", body: v1.MirrorWarmRequest{Files: files}, header: ndjson()}
	return events(ctx, c, x, "try again; what was fetched is kept",
		func(e v1.MirrorUpdate) (string, *v1.Problem) { return e.Type, e.Error }, func(e v1.MirrorUpdate) bool { return e.Type == v1.EventResult })
}
