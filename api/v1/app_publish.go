package v1

import "time"

// A BranchRequest asks for an app that begins with the files of another.
type BranchRequest struct {
	Name     string `json:"name,omitempty" maxLength:"63" doc:"1 to 63 letters, digits and dashes, unique per owner; absent means one made up" example:"shop-blue"`
	Revision int64  `json:"revision,omitempty" minimum:"1" doc:"whose files it has; absent means the last one, or with snapshot the last that has one" example:"2"`
	Snapshot bool   `json:"snapshot,omitempty" doc:"begin with the snapshot of that revision, databases and processes included"`
}

// A PublishRequest asks to publish an app.
type PublishRequest struct {
	Private bool `json:"private,omitempty" doc:"who looks needs the owner's key, or a signed link"`
}

// An AppPublication is a build of an app that is served without a sandbox.
type AppPublication struct {
	URL      string    `json:"url" format:"uri" doc:"empty if the server has no previews" example:"http://app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
	Revision int64     `json:"revision" doc:"that was built" example:"3"`
	At       time.Time `json:"at"`
	Files    int       `json:"files" example:"5"`
	Bytes    Bytes     `json:"bytes"`
	Private  bool      `json:"private" doc:"who looks needs the owner's key, or a signed link"`
}

// An AppLink gives whoever has it access to the page of an app until it expires, whatever
// sandbox the app has then.
type AppLink struct {
	URL       string    `json:"url" format:"uri"`
	ExpiresAt time.Time `json:"expires_at"`
	Private   bool      `json:"private" doc:"the page is shown to nobody without the owner's key or a link; one that is not private is at preview_url for everybody"`
}

// Types of updates of an app that are about publications.
const (
	AppPublished   = "published"
	AppUnpublished = "unpublished"
)
