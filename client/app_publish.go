package client

import (
	"context"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// BranchApp makes an app that begins with the files of a revision of another one, and
// returns as [Client.CreateApp] does.
func (c *Client) BranchApp(ctx context.Context, name string, q v1.BranchRequest) (v1.App, error) {
	return create[v1.App](ctx, c, apps+segment(name)+"/branch", q)
}

// PublishApp builds the last revision of an app and returns once what came of it is
// served, at Published.URL.
func (c *Client) PublishApp(ctx context.Context, name string, q v1.PublishRequest) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/publish", q)
}

// UnpublishApp ends that.
func (c *Client) UnpublishApp(ctx context.Context, name string) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/unpublish", nil)
}

// LinkApp returns a link to the page of an app, which opens it also if it is private; ttl
// 0 means an hour.
func (c *Client) LinkApp(ctx context.Context, name string, ttl time.Duration) (v1.AppLink, error) {
	return send[v1.AppLink](ctx, c, http.MethodPost, apps+segment(name)+"/link", v1.LinkRequest{TTL: v1.Duration(ttl)})
}

// LinkPublication returns a link to what an app has published as private; ttl 0 means an hour.
func (c *Client) LinkPublication(ctx context.Context, name string, ttl time.Duration) (v1.Link, error) {
	return send[v1.Link](ctx, c, http.MethodPost, apps+segment(name)+"/publish/link", v1.LinkRequest{TTL: v1.Duration(ttl)})
}
