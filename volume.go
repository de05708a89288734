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
	Holder   SandboxID // that has it mounted; empty if none
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
	TTL      time.Duration // without access, after which it goes; 0 means never
}

// Volumes keeps volumes. All methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Volumes interface {
	// Create makes an empty volume; Conflict if the owner has one of that
	// name, Exhausted when the owner's quota or the disk is full.
	Create(ctx context.Context, spec VolumeSpec) (Volume, error)
	// Get returns a volume by ID or name.
	Get(ctx context.Context, owner Owner, idOrName string) (Volume, error)
	// List returns volumes by name.
	List(ctx context.Context, owner Owner) ([]Volume, error)
	// Remove deletes a volume with all that is in it; Conflict while a
	// sandbox has it.
	Remove(ctx context.Context, owner Owner, idOrName string) error
	// Files opens the content from outside, whether or not a sandbox has it.
	// Paths are absolute in the volume. The caller closes it.
	Files(ctx context.Context, owner Owner, idOrName string) (VolumeFiles, error)
}

// VolumeFiles is the content of a volume. No link leads out of it. Errors are
// those of [Guest]'s files. It is safe for concurrent use.
type VolumeFiles interface {
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	Write(ctx context.Context, path string, r io.Reader, a FileAttr) (FileInfo, error) // parents are made; whole or not at all
	Stat(ctx context.Context, path string) (FileInfo, error)                           // does not follow a final link
	List(ctx context.Context, dir string, depth int) ([]FileInfo, error)
	MakeDir(ctx context.Context, path string, a FileAttr) (FileInfo, error) // parents are made; Conflict if it exists
	Change(ctx context.Context, path string, a FileAttr) (FileInfo, error)
	Remove(ctx context.Context, path string) error // and all below it; NotFound
	io.Closer
}

// A FileAttr changes what it is not nil for.
type FileAttr struct {
	Mode     *fs.FileMode // permission bits
	UID, GID *int
}
