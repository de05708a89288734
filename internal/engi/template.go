package engi

import (
	"context"
	"slices"
	"time"
)

// A Template is a root file system and what is needed to know to run programs in
// it. It is a value, immutable once built; a rebuild has another digest.
type Template struct {
	Name      string
	Digest    string // of the definition and all its inputs
	Root      string // absolute directory on this node; read only
	Env       map[string]string
	User      string // who programs run as; empty means root
	UID, GID  int    // of User, resolved in Root
	Home      string // of User
	WorkDir   string // absolute; programs start there
	Shell     string // absolute
	Ports     []int  // that its services listen on
	Private   bool   // previews of its sandboxes need the owner's key or link, whatever a sandbox was created with
	Size      Size   // defaults for sandboxes of this template
	Languages map[Language]Interpreter
	Built     time.Time
	Bytes     int64    // of Root on disk
	Mounts    []Mount  // shown in sandboxes on top of Root, in this order; only host has any
	Owner     Owner    // who built it from steps and alone may use it; empty is the node: everybody may
	Owners    []Owner  // of all names of the build, if it was found by its digest
	Start     string   // shell command that sandboxes start with; empty if none
	Ready     string   // shell command that exits with 0 once Start is ready; empty if none
	Kernels   []string // languages whose default contexts of the code interpreter start at boot
	Partial   bool     // only the first part of the template of this name; the rest is being built
}

// VisibleTo reports whether an owner may know and use the template. The empty
// owner may use all. A build that was found by its digest can be used by those
// who have a name for it.
func (t Template) VisibleTo(owner Owner) bool {
	if owner == "" || t.Name != "" {
		return owner == "" || t.Owner == "" || t.Owner == owner
	}
	return slices.Contains(t.Owners, owner) || slices.Contains(t.Owners, "")
}

// ErrNoTemplate is the error for a template that there is not, or not for who
// asks.
var ErrNoTemplate = Errorf(NotFound, "there is no such template").WithRemedy("'engi template list' shows all; 'engi template build FILE.yaml' builds one")

// A Mount is a file or directory of the node that sandboxes see, read only.
type Mount struct {
	Source string // absolute on the node
	Target string // absolute in the sandbox; exists in Root
}

// An Interpreter runs one language in a template.
type Interpreter struct {
	Path string // absolute path of the program
	Warm bool   // warm pools may start it before the code is known
}

// Templates builds and finds templates. It is safe for concurrent use.
type Templates interface {
	// Get returns a built template by name or digest. It reports NotFound
	// for an unknown name and Unavailable, with the command that builds it,
	// for a definition that is not built yet.
	Get(ctx context.Context, name string) (Template, error)
	// List returns built templates and definitions not built yet (with an
	// empty Digest).
	List(ctx context.Context) ([]Template, error)
	// Build builds a template from its YAML definition, or the built-in one
	// of that name if definition is nil. It does nothing if nothing changed.
	// An error in the definition is Invalid and carries the end of the log.
	Build(ctx context.Context, name string, definition []byte, progress func(Progress)) (Template, error)
	// Remove deletes a template; Conflict while sandboxes use it.
	Remove(ctx context.Context, name string) error
	// Prune deletes builds no name refers to, and returns the bytes freed.
	Prune(ctx context.Context) (int64, error)
}

// A BuildSpec asks for a template that is built from steps. Definitions in YAML
// say the same with 'steps'.
type BuildSpec struct {
	Name         string        // of the template, by the rules of definitions
	Owner        Owner         // who may rebuild it; empty is the node, whose network and settings the steps have
	FromImage    string        // reference of an image, or one of the node's aliases for templates
	Login        RegistryLogin // for FromImage; zero means the node's, and none for an owner
	FromTemplate string        // name or digest; excludes FromImage; both empty means base
	Steps        []BuildStep
	Start        string // command that sandboxes of the template start with; the build does not run it
	Ready        string // command that exits with 0 once Start is ready; the build does not run it
	Size         Size   // defaults for sandboxes; zero fields mean those of the base
	Force        bool   // repeat all steps, whatever was built before
}

// A RegistryLogin holds the credentials for an image registry.
type RegistryLogin struct{ User, Password string }

// A BuildStep is one step of a build. Results are cached by content: a changed
// step is run again, and so are those after it. The user and directory that a
// step sets apply to the steps after it, and the last ones to sandboxes.
type BuildStep struct {
	Type    StepType
	Args    []string // see StepType
	Archive string   // for StepCopy: path of a tar on this node, plain or compressed; read during the build
	Force   bool     // run this step and those after it again
}

// A StepType says what a [BuildStep] does with its arguments.
type StepType string

const (
	StepRun     StepType = "run"     // COMMAND [USER]: by the template's shell
	StepCopy    StepType = "copy"    // SOURCE DEST [USER [MODE]]: SOURCE is a path or pattern in Archive, MODE octal
	StepEnv     StepType = "env"     // KEY VALUE KEY VALUE …
	StepWorkdir StepType = "workdir" // PATH: created if missing
	StepUser    StepType = "user"    // NAME
)

// A TemplateBuilder builds templates from steps. Implementations of [Templates]
// may implement it. It is safe for concurrent use.
type TemplateBuilder interface {
	// BuildSteps builds spec; when it returns, the name refers to the new
	// template. Step 1 of the progress prepares the base, step i+2 is
	// spec.Steps[i], the last completes the template. It reports Invalid for
	// a bad spec and for a step that fails, Conflict for a name that another
	// owner has, NotFound for a missing base.
	BuildSteps(ctx context.Context, spec BuildSpec, progress func(Progress)) (Template, error)
}

// PoolStatus describes a warm pool.
type PoolStatus struct {
	Template string
	Digest   string
	Language Language // empty for bare sandboxes
	Target   int      // warm sandboxes wanted
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
	// Warm returns nil once every pool has had its first sandbox, else
	// Unavailable with the names of those that have not.
	Warm(ctx context.Context) error
}
