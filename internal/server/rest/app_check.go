package rest

import (
	"net/http"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const pngType = "image/png"

// inspecting are the routes that look at apps in a browser.
func (a *apps) inspecting(one string) []Route {
	change := writes(engi.ScopeSandboxes) // they may make a sandbox
	return []Route{
		fetch(Route{
			Pattern: "POST " + one + "/check", ID: "check-app", Summary: "Look for what is wrong with an app", Access: change,
			Text: "Its server is asked, its files are compiled, the script check of its package.json runs, and its pages are opened in a browser in its sandbox. " +
				"While something changes the app, it is a conflict.",
		}, a.check),
		raw(Route{
			Pattern: "POST " + one + "/screenshot", ID: "screenshot-app", Summary: "See what a page of an app looks like", Access: change, Optional: true,
			Text:    "In a browser in its sandbox, once the page has come up. The body may be left out. While something changes the app, it is a conflict.",
			Answers: []answer{bytesOf(http.StatusOK, pngType, nil)},
		}, a.screenshot),
	}
}

func (a *apps) check(c *call, in *anApp) (v1.AppCheck, error) {
	x, err := a.Check(c, c.owner(), in.ID)
	out := v1.AppCheck{Revision: x.Revision, Problems: make([]v1.AppFault, len(x.Problems)), Warning: x.Warning}
	for i, p := range x.Problems {
		out.Problems[i] = v1.AppFault(p)
	}
	return out, err
}

func (a *apps) screenshot(c *call, in *anApp, q v1.ScreenshotRequest) error {
	image, err := a.Screenshot(c, engi.ScreenshotSpec{Owner: c.owner(), App: in.ID, Path: q.Path, Width: q.Width, Height: q.Height})
	if err != nil {
		return err
	}
	h := c.Header()
	h.Set("Content-Type", pngType)
	h.Set("Content-Length", strconv.Itoa(len(image)))
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = httpio.DeadlineWriter{W: c}.Write(image) // who does not wait for it has left
	return nil
}
