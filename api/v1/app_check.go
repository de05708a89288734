package v1

// An AppCheck is the list of an app's current faults.
type AppCheck struct {
	Revision int64      `json:"revision" example:"3"`
	Problems []AppFault `json:"problems" doc:"Problems; empty if the app has none"`
	Warning  string     `json:"warning,omitempty" doc:"Reason why a check was skipped"`
}

// A ScreenshotRequest takes a screenshot of a page of an app.
type ScreenshotRequest struct {
	Path   string `json:"path,omitempty" maxLength:"512" doc:"Path of the page; absent means /" example:"/cart"`
	Width  int    `json:"width,omitempty" minimum:"1" maximum:"2560" doc:"Width in pixels; absent means 1280" example:"390"`
	Height int    `json:"height,omitempty" minimum:"1" maximum:"2560" doc:"Height in pixels; absent means 800" example:"844"`
}
