package v1

import "time"

// A BranchRequest creates an app from the files of another app.
type BranchRequest struct {
	Name     string `json:"name,omitempty" maxLength:"63" doc:"Name: 1 to 63 letters, digits and dashes, unique per owner; absent means a generated name" example:"shop-blue"`
	Revision int64  `json:"revision,omitempty" minimum:"1" doc:"Number of the revision to copy; absent means the last one, or, with snapshot, the last revision with a snapshot" example:"2"`
	Snapshot bool   `json:"snapshot,omitempty" doc:"Start from the snapshot of the revision, with databases and processes"`
}

// A PublishRequest publishes an app.
type PublishRequest struct {
	Private bool `json:"private,omitempty" doc:"Visitors need the owner's key or a signed link"`
}

// An AppPublication is a published build of an app, which is served without a sandbox.
type AppPublication struct {
	URL      string    `json:"url" format:"uri" doc:"URL of the published app; absent if the server has no previews" example:"http://app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
	Revision int64     `json:"revision" doc:"Number of the published revision" example:"3"`
	At       time.Time `json:"at"`
	Files    int       `json:"files" example:"5"`
	Bytes    Bytes     `json:"bytes"`
	Private  bool      `json:"private" doc:"Visitors need the owner's key or a signed link"`
}

// An AppLink gives its holder access to the page of an app until it expires, even if
// the app's sandbox changes.
type AppLink struct {
	URL       string    `json:"url" format:"uri"`
	ExpiresAt time.Time `json:"expires_at"`
	Private   bool      `json:"private" doc:"The page needs the owner's key or a link; a page that is not private is public at preview_url"`
}

// Types of updates about publications of an app.
const (
	AppPublished   = "published"
	AppUnpublished = "unpublished"
)
