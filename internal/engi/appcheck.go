package engi

import "context"

// An AppCheck is what is wrong with an app now.
type AppCheck struct {
	Revision int64
	Problems []AppFault // none if it is well
	Warning  string     // why something was not looked at; may be empty
}

// A ScreenshotSpec asks for a picture of a page of an app.
type ScreenshotSpec struct {
	Owner  Owner
	App    string // ID or name
	Path   string // of the page; empty means /
	Width  int    // pixels, at most 2560; 0 means 1280
	Height int    // the same; 0 means 800
}

// An AppInspector looks at apps as a browser does, in their sandboxes; see [Apps]. What
// it shows comes from there. It reports Conflict while something changes the app.
type AppInspector interface {
	// Check looks for what is wrong with an app: its server answers, its files compile,
	// its check is content, and its pages show no errors in a browser.
	Check(ctx context.Context, owner Owner, app string) (AppCheck, error)
	// Screenshot returns a page as a PNG. It reports Unavailable if the template has no
	// browser, or if the page does not come up.
	Screenshot(ctx context.Context, spec ScreenshotSpec) ([]byte, error)
}
