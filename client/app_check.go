package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

// CheckApp looks for what is wrong with an app, also in a browser.
func (c *Client) CheckApp(ctx context.Context, name string) (v1.AppCheck, error) {
	return send[v1.AppCheck](ctx, c, http.MethodPost, apps+segment(name)+"/check", nil)
}

// ScreenshotApp returns what a page of an app looks like, as a PNG.
func (c *Client) ScreenshotApp(ctx context.Context, name string, q v1.ScreenshotRequest) ([]byte, error) {
	resp, err := c.do(ctx, &call{method: http.MethodPost, path: apps + segment(name) + "/screenshot", body: encode(q), header: http.Header{"Accept": {"image/png"}}})
	if err != nil {
		return nil, err
	}
	image, err := readAll(resp)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return image, nil
}
