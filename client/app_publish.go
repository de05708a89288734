package client

import (
	"context"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

// BranchApp creates an app from the files of a revision of another app. It
// returns like [Client.CreateApp].
func (c *Client) BranchApp(ctx context.Context, name string, q v1.BranchRequest) (v1.App, error) {
	return create[v1.App](ctx, c, apps+segment(name)+"/branch", q)
}

// PublishApp builds the last revision of an app and returns when the build is
// served, at Published.URL.
func (c *Client) PublishApp(ctx context.Context, name string, q v1.PublishRequest) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/publish", q)
}

// UnpublishApp ends the publication of an app.
func (c *Client) UnpublishApp(ctx context.Context, name string) (v1.App, error) {
	return send[v1.App](ctx, c, http.MethodPost, apps+segment(name)+"/unpublish", nil)
}

// LinkApp returns a link to the page of an app, which also opens a private page; ttl
// 0 means an hour.
func (c *Client) LinkApp(ctx context.Context, name string, ttl time.Duration) (v1.AppLink, error) {
	return send[v1.AppLink](ctx, c, http.MethodPost, apps+segment(name)+"/link", v1.LinkRequest{TTL: v1.Duration(ttl)})
}

// LinkPublication returns a link to a private publication of an app; ttl 0 means an hour.
func (c *Client) LinkPublication(ctx context.Context, name string, ttl time.Duration) (v1.Link, error) {
	return send[v1.Link](ctx, c, http.MethodPost, apps+segment(name)+"/publish/link", v1.LinkRequest{TTL: v1.Duration(ttl)})
}
