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
	Holder   SandboxID // sandbox that has it mounted; empty if none
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
	TTL      time.Duration // without access, after which it is removed; 0 means never
	Content  fs.FS         // what it begins with: directories, regular files and links, with the owners that their Sys has; nil means nothing
}

// Volumes manages volumes. All methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Volumes interface {
	// Create creates a volume, with all of its content or not at all; Conflict
	// if the owner has one of that name, Exhausted when the owner's quota, the
	// disk or the volume is full.
	Create(ctx context.Context, spec VolumeSpec) (Volume, error)
	// Get returns a volume by ID or name.
	Get(ctx context.Context, owner Owner, idOrName string) (Volume, error)
	// List returns volumes by name.
	List(ctx context.Context, owner Owner, p Paging) ([]Volume, error)
	// Remove deletes a volume and its content; Conflict while a sandbox has
	// it mounted.
	Remove(ctx context.Context, owner Owner, idOrName string) error
	// Files opens the content for access from the host, whether or not a
	// sandbox has it mounted. Paths are absolute in the volume. The caller
	// closes it.
	Files(ctx context.Context, owner Owner, idOrName string) (VolumeFiles, error)
}

// VolumeFiles is the content of a volume. Links that lead out of it are not
// followed. Errors are those of [Guest]'s files. It is safe for concurrent use.
type VolumeFiles interface {
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	Write(ctx context.Context, path string, r io.Reader, a FileAttr) (FileInfo, error) // creates parents; atomic
	Stat(ctx context.Context, path string) (FileInfo, error)                           // does not follow a final link
	List(ctx context.Context, dir string, depth int) ([]FileInfo, error)
	MakeDir(ctx context.Context, path string, a FileAttr) (FileInfo, error) // creates parents; Conflict if it exists
	Change(ctx context.Context, path string, a FileAttr) (FileInfo, error)
	Remove(ctx context.Context, path string) error // and all below it; NotFound
	io.Closer
}

// A FileAttr says which attributes to change: those that are not nil.
type FileAttr struct {
	Mode     *fs.FileMode // permission bits
	UID, GID *int
}

// VolumeUnpacker is implemented by [VolumeFiles] that can be filled at once.
type VolumeUnpacker interface {
	// Unpack extracts a tar stream of directories, regular files and symbolic
	// links, with their owners, permissions and times, in place of what is
	// there. When it returns, all of it is on disk.
	Unpack(ctx context.Context, r io.Reader) error
}
