package engi

import (
	"context"
	"io"
	"time"
)

// A Publication is a build of an app that is served without a sandbox, at an address of
// its own. The zero value is none. It is a value.
type Publication struct {
	Revision int64 // that was built
	At       time.Time
	Files    int
	Bytes    int64
	Private  bool // the owner's key or a signed link is needed to see it
}

// A PublishSpec asks to publish an app.
type PublishSpec struct {
	Owner   Owner
	App     string // ID or name
	Private bool   // as in Publication; that of a template with private ports is, whatever this says
}

// A PublishedFile is a file of a publication or of the preview of a workspace, as it is
// sent. If Content is an [io.Closer], who has it closes it.
type PublishedFile struct {
	Path    string
	Size    int64  // of Content
	Digest  string // of Content, in hexadecimal
	Gzip    bool   // Content is compressed
	Fixed   bool   // another content would have another path
	Content io.ReadSeeker
}

// An AppPublisher has builds of apps served that need no sandbox; see [Apps].
type AppPublisher interface {
	// Publish builds the last revision of an app in its sandbox, and has the files that
	// the build has left in dist served in place of those before. What an apply would
	// wait for, it waits for, too. It reports Conflict, and leaves what is published as
	// it is, if the app has no build, if the build fails, or if it leaves no page.
	Publish(ctx context.Context, spec PublishSpec) (App, error)
	// Unpublish ends that. It is no error if nothing is published.
	Unpublish(ctx context.Context, owner Owner, app string) error
	// Published returns a file by its path, compressed if there is such a form and gzip
	// is set. Files of the build before the last one are found, too, if they are Fixed:
	// pages that are still open need them. The content is valid for as long as ctx.
	Published(ctx context.Context, owner Owner, app, path string, gzip bool) (PublishedFile, error)
}
