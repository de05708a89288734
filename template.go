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
	Bytes     int64    // of Root on disk
	Mounts    []Mount  // what sandboxes see beside Root, in this order; only host has any
	Owner     Owner    // who built it by steps; empty is the node
	Start     string   // shell command that sandboxes begin with; empty if none
	Ready     string   // shell command that ends with 0 once Start has come up; empty if none
	Kernels   []string // languages whose default contexts of the code interpreter start at boot
	Partial   bool     // only the first part of the template of this name; the rest is being built
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

// A BuildSpec asks for a template made by steps, as programs ask for one.
// Definitions in YAML say the same with 'steps'.
type BuildSpec struct {
	Name         string        // of the template; letters as in definitions
	Owner        Owner         // who may build the name anew; empty is the node
	FromImage    string        // reference of an image, or one of the node's aliases of templates
	Login        RegistryLogin // for FromImage; zero means that of the node
	FromTemplate string        // name or digest; excludes FromImage; both empty means base
	Steps        []BuildStep
	Start        string // command that sandboxes of the template begin with; kept, not run by the build
	Ready        string // command that ends with 0 once Start has come up; kept, not run by the build
	Size         Size   // defaults for sandboxes; zero fields mean those of what it is made from
	Force        bool   // repeat all steps, whatever was built before
}

// A RegistryLogin is a user of a registry of images.
type RegistryLogin struct{ User, Password string }

// A BuildStep is one step of a build. Steps are cached by content: a changed
// one repeats itself and what follows. Users and directories that a step sets
// hold for those that follow, and the last ones for sandboxes.
type BuildStep struct {
	Type    StepType
	Args    []string // see StepType
	Archive string   // for StepCopy: a tar of this node, plain or compressed; read during the build
	Force   bool     // repeat this step and what follows
}

// A StepType says what a [BuildStep] does with its arguments.
type StepType string

const (
	StepRun     StepType = "run"     // COMMAND [USER]: by the template's shell
	StepCopy    StepType = "copy"    // SOURCE DEST [USER [MODE]]: SOURCE is a path or pattern in Archive, MODE octal
	StepEnv     StepType = "env"     // KEY VALUE KEY VALUE …
	StepWorkdir StepType = "workdir" // PATH: made if missing
	StepUser    StepType = "user"    // NAME
)

// A TemplateBuilder builds templates from steps. What implements [Templates]
// may implement it. It is safe for concurrent use.
type TemplateBuilder interface {
	// BuildSteps builds spec; the name means the new template when it
	// returns. Step 1 of the progress prepares what it is made from, step
	// i+2 is spec.Steps[i], the last completes the template. It reports
	// Invalid for a bad spec and for a step that fails, Conflict for a name
	// of another owner, NotFound for a template to build on.
	BuildSteps(ctx context.Context, spec BuildSpec, progress func(BuildEvent)) (Template, error)
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
