package engi

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// A Volume is a directory with a capacity that outlives sandboxes. One sandbox
// at a time has it mounted. It is a value.
type Volume struct {
	ID       VolumeID
	Owner    Owner
	Name     string    // unique per owner
	Capacity int64     // bytes
	Used     int64     // bytes
	Holder   SandboxID // sandbox that has mounted the volume; empty if none
	Created  time.Time
	Accessed time.Time
	Expires  time.Time // TTL after Accessed; zero means never
}

// A VolumeSpec asks for a volume.
type VolumeSpec struct {
	ID       VolumeID // empty means a fresh one
	Owner    Owner
	Name     string        // letters, digits, dots, dashes and underscores, 128 at most
	Capacity int64         // bytes; 0 means the node's default
	TTL      time.Duration // time without use after which the volume is deleted; 0 means never
	Content  fs.FS         // initial content: directories, regular files and links, with the owners of their Sys; nil means empty
}

// Volumes manages volumes. Methods find only objects that viewer sees and report NotFound for all
// others. It is safe for concurrent use.
type Volumes interface {
	// Create creates a volume, with all of its content or not at all. It reports Conflict
	// if the owner has a volume of that name, and Exhausted when the owner's quota, the
	// disk or the volume is full.
	Create(ctx context.Context, spec VolumeSpec) (Volume, error)
	// Get returns a volume by ID or name.
	Get(ctx context.Context, viewer Viewer, idOrName string) (Volume, error)
	// List returns volumes, ordered by name.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Volume, error)
	// Remove deletes a volume and its content. It reports Conflict while a sandbox has
	// it mounted.
	Remove(ctx context.Context, viewer Viewer, idOrName string) error
	// Files opens the content for access from the host, whether or not a
	// sandbox has mounted it. Paths are absolute in the volume. The caller
	// closes it.
	Files(ctx context.Context, viewer Viewer, idOrName string) (VolumeFiles, error)
}

// VolumeFiles gives access to the content of a volume. Links that lead out of it are not
// followed. Errors are those of files of a [Guest]. It is safe for concurrent use.
type VolumeFiles interface {
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	Write(ctx context.Context, path string, r io.Reader, a FileAttr) (FileInfo, error) // creates parents; atomic
	Stat(ctx context.Context, path string) (FileInfo, error)                           // does not follow a final link
	List(ctx context.Context, dir string, depth int) ([]FileInfo, error)
	MakeDir(ctx context.Context, path string, a FileAttr) (FileInfo, error) // creates parents; Conflict if it exists
	Change(ctx context.Context, path string, a FileAttr) (FileInfo, error)
	Remove(ctx context.Context, path string) error // also deletes everything below path; reports NotFound
	io.Closer
}

// A FileAttr holds the attributes to change; nil fields stay unchanged.
type FileAttr struct {
	Mode     *fs.FileMode // permission bits
	UID, GID *int
}

// VolumeUnpacker is implemented by [VolumeFiles] that can be filled at once.
type VolumeUnpacker interface {
	// Unpack extracts a tar stream of directories, regular files and symbolic
	// links, with their owners, permissions and times, and replaces the current
	// content. When it returns, the content is on disk.
	Unpack(ctx context.Context, r io.Reader) error
}
