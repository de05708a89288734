package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// CheckApp checks an app for faults, also in a browser.
func (c *Client) CheckApp(ctx context.Context, name string) (v1.AppCheck, error) {
	return send[v1.AppCheck](ctx, c, http.MethodPost, apps+segment(name)+"/check", nil)
}

// ScreenshotApp returns a screenshot of a page of an app, as a PNG.
func (c *Client) ScreenshotApp(ctx context.Context, name string, q v1.ScreenshotRequest) ([]byte, error) {
	resp, err := c.do(ctx, &call{method: http.MethodPost, path: apps + segment(name) + "/screenshot", body: q, header: http.Header{"Accept": {"image/png"}}})
	if err != nil {
		return nil, err
	}
	image, err := readAll(resp)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return image, nil
}
