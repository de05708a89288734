package v1

import "time"

// A BranchRequest asks for an app that begins with the files of another.
type BranchRequest struct {
	Name     string `json:"name,omitempty" maxLength:"63" doc:"1 to 63 letters, digits and dashes, unique per owner; absent means one made up" example:"shop-blue"`
	Revision int64  `json:"revision,omitempty" minimum:"1" doc:"whose files it has; absent means the last one" example:"2"`
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

// Types of updates of an app that are about publications.
const (
	AppPublished   = "published"
	AppUnpublished = "unpublished"
)
