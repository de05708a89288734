package engi

import (
	"context"
	"time"
)

// A Template is a root file system with the facts needed to run programs in
// it. It is a value, immutable once built; a rebuild gives another digest.
type Template struct {
	Name      string
	Digest    string // of the definition and everything it read
	Root      string // absolute directory on this node; read only
	Env       map[string]string
	User      string // who programs run as; empty means root
	UID, GID  int    // of User, resolved in Root
	Home      string // of User
	WorkDir   string // absolute; programs start there
	Shell     string // absolute
	Ports     []int  // that its services listen on
	Size      Size   // defaults for sandboxes of this template
	Languages map[Language]Interpreter
	Built     time.Time
	Bytes     int64   // of Root on disk
	Mounts    []Mount // what sandboxes see beside Root, in this order; only host has any
}

// A Mount shows a file or directory of the node inside sandboxes, read only.
type Mount struct {
	Source string // absolute on the node
	Target string // absolute inside; exists in Root
}

// An Interpreter runs one language in a template.
type Interpreter struct {
	Path string // absolute path of the program
	Warm bool   // a warm pool may start it before the code is known
}

// A BuildEvent reports the progress of a template build.
type BuildEvent struct {
	Step  int    // 1-based
	Steps int    // total; 0 if unknown
	Name  string // what the step does, for people
	Log   string // a line of its output; empty for a step's start
	Done  int64  // bytes or items of the step done
	Total int64  // 0 if unknown
}

// Templates builds and finds templates. It is safe for concurrent use.
type Templates interface {
	// Get returns a built template by name or digest. It reports NotFound
	// for an unknown name and Unavailable, with the command to run, for a
	// definition that is not built yet.
	Get(ctx context.Context, name string) (Template, error)
	// List returns built templates and definitions not built yet (with an
	// empty Digest).
	List(ctx context.Context) ([]Template, error)
	// Build builds a template from its YAML definition, or by the name of a
	// built-in one if definition is nil. It does nothing if nothing changed.
	// An error of the definition is Invalid and carries the log's tail.
	Build(ctx context.Context, name string, definition []byte, progress func(BuildEvent)) (Template, error)
	// Remove deletes a template; Conflict while sandboxes use it.
	Remove(ctx context.Context, name string) error
	// Prune deletes builds no name refers to, and returns the bytes freed.
	Prune(ctx context.Context) (int64, error)
}

// PoolStatus describes a warm pool.
type PoolStatus struct {
	Template string
	Digest   string
	Language Language // empty for bare sandboxes
	Target   int      // warm members wanted
	Max      int      // sandboxes at most, used ones included
	Ready    int
	Booting  int
	Used     int
	Waiting  int // claims in the queue
}

// Pools reports on the warm pools of a node. It is safe for concurrent use.
type Pools interface {
	// Pools returns the pools in template and language order.
	Pools(ctx context.Context) []PoolStatus
	// Warm returns nil once every pool had its first member, else
	// Unavailable naming those that have not.
	Warm(ctx context.Context) error
}
