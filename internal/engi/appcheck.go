package engi

import "context"

// An AppCheck is the result of checking an app.
type AppCheck struct {
	Revision int64
	Problems []AppFault // empty if the app has none
	Warning  string     // reason why a check was skipped; may be empty
}

// A ScreenshotSpec asks for a screenshot of a page of an app.
type ScreenshotSpec struct {
	Viewer Viewer
	App    string // ID or name
	Path   string // path of the page; empty means /
	Width  int    // pixels, at most 2560; 0 means 1280
	Height int    // pixels, at most 2560; 0 means 800
}

// An AppInspector checks apps with a browser in their sandboxes; see [Apps]. Its
// results come from the sandbox, so they are hostile input. It reports Conflict while a change of the app is running.
type AppInspector interface {
	// Check looks for problems of an app: the server answers, the files compile,
	// the app's own check passes, and the pages show no errors in a browser.
	Check(ctx context.Context, viewer Viewer, app string) (AppCheck, error)
	// Screenshot returns a PNG of a page. It reports Unavailable if the template has no
	// browser, or if the page does not load.
	Screenshot(ctx context.Context, spec ScreenshotSpec) ([]byte, error)
}
