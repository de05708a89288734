package engi

import (
	"context"
	"io"
	"time"
)

// A Publication is a build of an app that is served without a sandbox, at a URL of
// its own. The zero value means that the app is not published. It is a value.
type Publication struct {
	Revision int64 // number of the published revision
	At       time.Time
	Files    int
	Bytes    int64
	Private  bool // visitors need the owner's key or a signed link
}

// A PublishSpec asks to publish an app.
type PublishSpec struct {
	Viewer  Viewer
	App     string // ID or name
	Private bool   // as in Publication; apps of a template with private ports are always private
}

// A PublishedFile is a file of a publication or of a workspace's preview, as it is
// sent. If Content is an [io.Closer], the receiver closes it.
type PublishedFile struct {
	Path    string
	Size    int64  // size of Content, in bytes
	Digest  string // digest of Content, in hex
	Gzip    bool   // Content is compressed
	Fixed   bool   // the path changes with the content, so the file can be cached forever
	Content io.ReadSeeker
}

// An AppPublisher publishes builds of apps, which need no sandbox; see [Apps].
type AppPublisher interface {
	// Publish builds the last revision of an app in its sandbox, and serves the files that
	// the build wrote to dist in place of the earlier ones. It waits for the same changes as
	// an apply. It reports Conflict, and keeps the published
	// build, if the app has no build script, if the build fails, or if it creates no page.
	Publish(ctx context.Context, spec PublishSpec) (App, error)
	// Unpublish deletes the published build. It is no error if nothing is published.
	Unpublish(ctx context.Context, viewer Viewer, app string) error
	// Published returns a file by its path, compressed if gzip is set and a compressed form
	// exists. It also finds files of the previous build if they are Fixed:
	// pages that are still open need them. The content is valid until ctx ends.
	Published(ctx context.Context, viewer Viewer, app, path string, gzip bool) (PublishedFile, error)
}
