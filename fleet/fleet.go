// Package fleet runs this node's sandboxes. It joins provider, guest and disk
// into warm pools and executions, keeps their records, and after a crash puts
// back together what is wanted and what is found.
//
// It is not for isolation itself (package provider), for what happens inside
// a sandbox (package guest), for root file systems (package disk) or for
// surfaces (package api). Only node builds a Manager; everybody else sees it
// as engi.Executions, engi.Sandboxes and engi.Pools.
package fleet

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/provider"
)

// Options say what a Manager works with. Providers, Templates, Store and Dir
// must be set; every other zero value has a sensible meaning.
type Options struct {
	Providers []provider.Provider // the first is used unless a request demands more
	Templates Templates
	Store     Store
	Dir       string // private directory: outputs, artifacts and queued programs live below it

	Log     *slog.Logger          // nil discards
	Metrics prometheus.Registerer // nil keeps metrics to itself

	Pools        []PoolConfig
	Template     string         // default of a spec without one; empty means "base"
	Defaults     engi.Limits    // of a spec's and a template's zero fields; see DefaultLimits
	Max          engi.Limits    // what a spec may ask for; zero fields mean MaxLimits
	OnEmpty      engi.EmptyPool // of pools that do not say; empty means boot_sync
	ClaimTimeout time.Duration  // of pools that do not say; 0 means 30 s
	MaxTimeout   time.Duration  // longest claim timeout a spec may ask for; 0 means 10 min
	MaxSandboxes int            // alive at once, warm and used; 0 means 256
	MaxQueue     int            // executions waiting for a sandbox; 0 means 1024
	MaxCode      int64          // bytes of one source file; 0 means 8 MiB
	MaxInput     int64          // bytes of all files, stdin, argv and env together; 0 means 32 MiB
	Boots        int            // sandboxes that boot at the same time; 0 means one per processor

	Demand     int           // warm members kept for what was asked for without a pool; 0 means none
	DemandIdle time.Duration // after which they go again; 0 means 5 min

	KeepCount int           // ended executions kept; 0 means 10000
	KeepAge   time.Duration // how long they are kept; 0 means 7 days

	Ephemeral bool // destroy every sandbox when Run ends, for nodes that live in one process
}

// A PoolConfig asks for warm sandboxes of one template.
type PoolConfig struct {
	Template     string         // empty means the default
	Language     engi.Language  // whose interpreter waits inside; empty means bare
	Target       int            // warm members wanted
	Max          int            // members at most, used ones included; 0 means no limit of its own
	OnEmpty      engi.EmptyPool // empty means the node's
	ClaimTimeout time.Duration  // for wait; 0 means the node's
}

// Templates is what this room needs to know of templates.
type Templates interface {
	// Use returns a built template and what it mounts, and keeps it from
	// being removed until release is called. Errors are those of
	// engi.Templates.Get.
	Use(ctx context.Context, name string) (t engi.Template, mounts []provider.Mount, release func(), err error)
	// Changed returns a channel that is closed when any template changes.
	Changed() <-chan struct{}
}

// DefaultLimits are those of an execution when neither the request, nor its
// template, nor the node's configuration says otherwise.
func DefaultLimits() engi.Limits {
	return engi.Limits{
		Size: engi.Size{
			VCPUs:     1,
			Memory:    512 << 20,
			Disk:      512 << 20,
			Inodes:    100_000,
			Processes: 256,
			OpenFiles: 4096,
		},
		Timeout:       30 * time.Second,
		Output:        1 << 20,
		ArtifactBytes: 32 << 20,
		ArtifactCount: 100,
	}
}

// MaxLimits are the most an execution may ask for, unless configured.
func MaxLimits() engi.Limits {
	return engi.Limits{
		Size: engi.Size{
			VCPUs:     64,
			Memory:    64 << 30,
			Disk:      64 << 30,
			Inodes:    10_000_000,
			Processes: 32768,
			OpenFiles: 1 << 20,
		},
		Timeout:       24 * time.Hour,
		Output:        64 << 20,
		ArtifactBytes: 1 << 30,
		ArtifactCount: 10_000,
	}
}

// A Manager is the fleet of one node. It is safe for concurrent use.
type Manager struct {
	opt Options
}

// Open checks o and returns a Manager that does nothing before Run.
func Open(ctx context.Context, o Options) (*Manager, error) { return &Manager{opt: o}, nil }

// Executions returns the front desk of executions.
func (m *Manager) Executions() engi.Executions { return executions{m} }

// Sandboxes returns the front desk of sandboxes.
func (m *Manager) Sandboxes() engi.Sandboxes { return sandboxes{m} }

var _ engi.Pools = (*Manager)(nil)

// Run repairs what a crash left, calls ready, keeps the pools warm and
// watches over sandboxes until ctx ends. Then it lets go of them alive, for
// the next Manager to adopt, unless the Manager is ephemeral. When Run
// returns, no goroutine of the Manager is left.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

// Pools returns the pools in template and language order.
func (m *Manager) Pools(ctx context.Context) []engi.PoolStatus { return nil }

// Warm returns nil once every pool had its first member.
func (m *Manager) Warm(ctx context.Context) error { return errNotRunning }

var errNotRunning = engi.Errorf(engi.Unavailable, "the fleet does not run yet")
