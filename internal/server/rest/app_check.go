package rest

import (
	"net/http"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const pngType = "image/png"

// inspecting returns the routes that open apps in a browser.
func (a *apps) inspecting(one string) []Route {
	change := writes(engi.ScopeSandboxes) // these routes may create a sandbox
	return []Route{
		fetch(Route{
			Pattern: "POST " + one + "/check", ID: "check-app", Summary: "Check an app for problems", Access: change,
			Text: "Sends a request to the app's server, compiles its files, runs the script check of its package.json, and opens its pages in a browser in its sandbox. " +
				"While a change of the app is running, the answer is a conflict.",
		}, a.check),
		raw(Route{
			Pattern: "POST " + one + "/screenshot", ID: "screenshot-app", Summary: "Take a screenshot of an app", Access: change, Optional: true,
			Text:    "Opens the page in a browser in the app's sandbox, and takes the screenshot once the page has loaded. The body is optional. While a change of the app is running, the answer is a conflict.",
			Answers: []answer{bytesOf(http.StatusOK, pngType, nil)},
		}, a.screenshot),
	}
}

func (a *apps) check(c *call, in *anApp) (v1.AppCheck, error) {
	x, err := a.Check(c, c.viewer(), in.ID)
	out := v1.AppCheck{Revision: x.Revision, Problems: make([]v1.AppFault, len(x.Problems)), Warning: x.Warning}
	for i, p := range x.Problems {
		out.Problems[i] = v1.AppFault(p)
	}
	return out, err
}

func (a *apps) screenshot(c *call, in *anApp, q v1.ScreenshotRequest) error {
	image, err := a.Screenshot(c, engi.ScreenshotSpec{Viewer: c.viewer(), App: in.ID, Path: q.Path, Width: q.Width, Height: q.Height})
	if err != nil {
		return err
	}
	h := c.Header()
	h.Set("Content-Type", pngType)
	h.Set("Content-Length", strconv.Itoa(len(image)))
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = httpio.DeadlineWriter{W: c}.Write(image) // an error means that the caller has left
	return nil
}
