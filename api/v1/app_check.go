package v1

// An AppCheck is what is wrong with an app now.
type AppCheck struct {
	Revision int64      `json:"revision" example:"3"`
	Problems []AppFault `json:"problems" doc:"empty if it is well"`
	Warning  string     `json:"warning,omitempty" doc:"why something was not looked at"`
}

// A ScreenshotRequest asks for a picture of a page of an app.
type ScreenshotRequest struct {
	Path   string `json:"path,omitempty" maxLength:"512" doc:"of the page; absent means /" example:"/cart"`
	Width  int    `json:"width,omitempty" minimum:"1" maximum:"2560" doc:"pixels; absent means 1280" example:"390"`
	Height int    `json:"height,omitempty" minimum:"1" maximum:"2560" doc:"pixels; absent means 800" example:"844"`
}
