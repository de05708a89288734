package engi

import (
	"context"
	"slices"
	"time"
)

// A Template is a root file system with the settings for running programs in
// it. It is a value, immutable once built; a rebuild has another digest.
type Template struct {
	Name      string
	Digest    string // digest of the definition and all its inputs
	Root      string // absolute directory on this node; read only
	Env       map[string]string
	User      string // user that programs run as; empty means root
	UID, GID  int    // IDs of User, resolved in Root
	Home      string // home directory of User
	WorkDir   string // absolute path of the working directory of programs
	Shell     string // absolute path of the shell
	Ports     []int  // ports of the template's services
	Private   bool   // previews need the owner's key or a link, whatever a sandbox was created with
	Size      Size   // default limits of sandboxes
	Languages map[Language]Interpreter
	Built     time.Time
	Bytes     int64    // bytes of Root on disk
	Mounts    []Mount  // mounted in sandboxes on top of Root, in this order; only the template host has any
	Owner     Owner    // owner who built it from steps and alone may use it; empty means the node, and everybody may
	Owners    []Owner  // owners of all names of the build, if it was found by its digest
	Start     string   // shell command that sandboxes start with; empty if none
	Ready     string   // shell command that exits with 0 once Start is ready; empty if none
	Kernels   []string // languages for which the code interpreter starts a default context at boot
	Partial   bool     // only the first part of the template exists; the rest is being built
}

// VisibleTo reports whether a viewer may see and use the template. Everybody may use a template
// of the node. A build that was found by its digest can be used by every owner that has a name for it.
func (t Template) VisibleTo(viewer Viewer) bool {
	if t.Name != "" {
		return t.Owner == "" || viewer.Sees(t.Owner)
	}
	return slices.Contains(t.Owners, "") || slices.ContainsFunc(t.Owners, viewer.Sees) || viewer == Everyone
}

// ErrNoTemplate is the error for a template that does not exist or that the caller may
// not see.
var ErrNoTemplate = Errorf(NotFound, "there is no such template").WithRemedy("'engi template list' shows all; 'engi template build FILE.yaml' builds one")

// A Mount is a file or directory of the node that is mounted read-only in sandboxes.
type Mount struct {
	Source string // absolute path on the node
	Target string // absolute path in the sandbox; exists in Root
}

// An Interpreter runs one language in a template.
type Interpreter struct {
	Path string // absolute path of the program
	Warm bool   // warm pools can start the interpreter before the code is known
}

// Templates builds and finds templates. It is safe for concurrent use.
type Templates interface {
	// Get returns a built template by name or digest. It reports NotFound
	// for an unknown name and Unavailable, with the command that builds it,
	// for a definition that has not been built.
	Get(ctx context.Context, name string) (Template, error)
	// List returns built templates and definitions that have not been built (with an
	// empty Digest).
	List(ctx context.Context) ([]Template, error)
	// Build builds a template from its YAML definition, or the built-in template
	// of that name if definition is nil. It does nothing if nothing has changed.
	// An error in the definition is Invalid and carries the end of the log.
	Build(ctx context.Context, name string, definition []byte, progress func(Progress)) (Template, error)
	// Remove deletes a template. It reports Conflict while sandboxes use it.
	Remove(ctx context.Context, name string) error
	// Prune deletes builds that no name refers to, and returns the number of freed bytes.
	Prune(ctx context.Context) (int64, error)
}

// A BuildSpec asks to build a template from steps. Definitions in YAML
// express the same with 'steps'.
type BuildSpec struct {
	Name         string        // name of the template, by the rules of definitions
	Owner        Owner         // owner who may rebuild it; empty means the node, whose network and settings the steps have
	FromImage    string        // reference of an image, or an alias of the node for a template
	Login        RegistryLogin // credentials for FromImage; zero means the node's if Owner is empty, otherwise none
	FromTemplate string        // name or digest; excludes FromImage; both empty means base
	Steps        []BuildStep
	Start        string // command that sandboxes of the template start with; the build does not run it
	Ready        string // command that exits with 0 once Start is ready; the build does not run it
	Size         Size   // default limits of sandboxes; zero fields mean those of the base
	Force        bool   // repeat all steps, without using the cache
}

// A RegistryLogin holds the credentials for an image registry.
type RegistryLogin struct{ User, Password string }

// A BuildStep is one step of a build. Results are cached by content: a changed
// step is run again, and so are those after it. The user and directory that a
// step sets apply to the steps after it, and the last ones to sandboxes.
type BuildStep struct {
	Type    StepType
	Args    []string // see StepType
	Archive string   // for StepCopy: path of a tar file on this node, plain or compressed, which is read during the build
	Force   bool     // run this step and all later steps again
}

// A StepType is the kind of a [BuildStep].
type StepType string

const (
	StepRun     StepType = "run"     // COMMAND [USER]: run with the template's shell
	StepCopy    StepType = "copy"    // SOURCE DEST [USER [MODE]]: SOURCE is a path or pattern in Archive, MODE octal
	StepEnv     StepType = "env"     // KEY VALUE KEY VALUE …
	StepWorkdir StepType = "workdir" // PATH: created if it is missing
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
	Target   int      // number of warm sandboxes to keep
	Max      int      // maximum number of sandboxes, including those in use
	Ready    int
	Booting  int
	Used     int
	Waiting  int // number of claims in the queue
}

// Pools reports on the warm pools of a node. It is safe for concurrent use.
type Pools interface {
	// Pools returns the pools, ordered by template and language.
	Pools(ctx context.Context) []PoolStatus
	// Warm returns nil once every pool has had its first sandbox, and before that
	// Unavailable with the names of the pools that have not.
	Warm(ctx context.Context) error
}
