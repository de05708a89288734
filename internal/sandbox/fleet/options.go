package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// Options configures a Manager. Providers, Templates, Store and Dir
// are required; every other field has a default.
type Options struct {
	Providers []provider.Provider // the first is used unless a request demands stronger isolation
	Templates Templates
	Store     Store
	Dir       string // private directory for outputs, artifacts, queued programs and images

	Log     *slog.Logger          // nil discards
	Metrics prometheus.Registerer // nil registers none

	Pools        []PoolConfig
	Template     string         // template of specs without one; empty means "base"
	Defaults     engi.Limits    // limits that neither a spec nor its template sets; see DefaultLimits
	Max          engi.Limits    // maximum limits of a spec; zero fields mean MaxLimits
	OnEmpty      engi.EmptyPool // behavior of empty pools without a setting; empty means boot_sync
	ClaimTimeout time.Duration  // claim timeout of pools without one; 0 means 30 s
	MaxWait      time.Duration  // maximum expected wait under overload of executions without a claim timeout, beyond which they are refused; 0 means none
	MaxTimeout   time.Duration  // maximum claim timeout of a spec; 0 means 10 min
	MaxSandboxes int            // maximum number of machines at the same time, warm and used; 0 means 256
	MaxQueue     int            // maximum number of executions waiting for a sandbox; 0 means 1024
	MaxCode      int64          // maximum bytes of one source file; 0 means 8 MiB
	MaxInput     int64          // maximum bytes of a program's files, stdin, arguments and environment together; 0 means 32 MiB
	Boots        int            // maximum number of concurrent boots; 0 means one per processor, at least 2
	Builds       *BuildRunner   // runner of template builds, whose sandboxes are not orphans; nil if there is none

	Demand     int           // warm sandboxes kept per kind that executions recently needed without a configured pool; 0 means none
	Spare      int           // bare sandboxes kept per template from which sandboxes were recently created; 0 means none
	DemandIdle time.Duration // time that "recently" means for Demand and Spare; 0 means 5 min

	KeepCount int           // maximum number of ended executions kept; 0 means 10000
	KeepAge   time.Duration // maximum age of ended executions; 0 means 7 days

	Lifetime  Lifetime                    // lifetime of sandboxes without one
	Quota     func(engi.Owner) engi.Quota // quota of an owner; nil means no quotas
	Refused   func(engi.Owner, string)    // called with the name of each quota that refuses a request; nil for none; must return quickly
	Snapshots SnapshotStore               // nil disables snapshots
	Volumes   VolumeStore                 // nil disables volumes
	Egress    Egress                      // nil disables networks

	Ephemeral bool // destroy every sandbox when Run ends
}

// A Lifetime limits the time that a sandbox runs without interruption.
type Lifetime struct {
	Timeout time.Duration // timeout of specs without one; 0 means 5 min
	Max     time.Duration // maximum time, extensions included; 0 means 24 h
}

// A SnapshotStore keeps snapshots, see package internal/sandbox/disk/snapshot.
type SnapshotStore interface {
	// Create stores a snapshot. It calls fill to write the files to an empty
	// directory. After an error nothing is stored.
	Create(ctx context.Context, s engi.Snapshot, fill func(dir string) error) (engi.Snapshot, error)
	// Use returns a snapshot and the directory of its files, which exists until release is called.
	Use(ctx context.Context, viewer engi.Viewer, idOrName string) (s engi.Snapshot, dir string, release func(), err error)
	// Digests returns the digests of the templates that snapshots need.
	Digests(ctx context.Context) ([]string, error)
}

// A VolumeStore keeps volumes, see package internal/sandbox/disk/volume.
type VolumeStore interface {
	// Mount gives a volume to holder and returns the directory of its files.
	// It may be repeated, and returns Conflict if another sandbox holds the
	// volume.
	Mount(ctx context.Context, viewer engi.Viewer, idOrName string, holder engi.SandboxID) (v engi.Volume, source string, err error)
	// Unmount releases all volumes of holder. It may be repeated.
	Unmount(ctx context.Context, holder engi.SandboxID) error
	// Holders returns the sandboxes that hold volumes.
	Holders(ctx context.Context) ([]engi.SandboxID, error)
}

// A PoolConfig configures the warm sandboxes of one template.
type PoolConfig struct {
	Template     string         // empty means the default
	Language     engi.Language  // language whose interpreter is started in advance; empty means bare
	Target       int            // warm sandboxes to keep
	Max          int            // maximum number of sandboxes, used ones included; 0 means no limit of its own
	OnEmpty      engi.EmptyPool // empty means the node's
	ClaimTimeout time.Duration  // claim timeout if OnEmpty is wait; 0 means the node's
}

// Templates finds root file systems, see package disk.
type Templates interface {
	// Use returns a built template by name or digest, and prevents
	// its removal until release is called. Errors are those of
	// engi.Templates.Get.
	Use(ctx context.Context, nameOrDigest string) (t engi.Template, release func(), err error)
	// Changed returns a channel that is closed the next time a name
	// refers to another build, or to none.
	Changed() <-chan struct{}
}

// DefaultLimits returns the limits of an execution if neither the request, nor
// its template, nor the node's configuration sets them.
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

// MaxLimits returns the maximum limits of an execution, unless the node's
// configuration sets others.
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
		Output:        engi.MaxOutput,
		ArtifactBytes: 1 << 30,
		ArtifactCount: 10_000,
	}
}

// complete fills in defaults and returns Invalid for invalid options.
func complete(o Options) (Options, error) {
	if len(o.Providers) == 0 || o.Templates == nil || o.Store == nil || !filepath.IsAbs(o.Dir) {
		return o, engi.Errorf(engi.Invalid, "a fleet needs providers, templates, a store and an absolute directory")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Template = cmp.Or(o.Template, "base")
	o.Defaults = o.Defaults.Or(DefaultLimits())
	o.Max = o.Max.Or(MaxLimits())
	o.OnEmpty = cmp.Or(o.OnEmpty, engi.PoolBootSync)
	o.ClaimTimeout = cmp.Or(o.ClaimTimeout, 30*time.Second)
	o.MaxTimeout = cmp.Or(o.MaxTimeout, 10*time.Minute)
	o.MaxSandboxes = cmp.Or(o.MaxSandboxes, 256)
	o.MaxQueue = cmp.Or(o.MaxQueue, 1024)
	o.MaxCode = cmp.Or(o.MaxCode, engi.DefaultFile)
	o.MaxInput = cmp.Or(o.MaxInput, engi.DefaultInput)
	o.Boots = cmp.Or(o.Boots, max(2, runtime.GOMAXPROCS(0)))
	o.DemandIdle = cmp.Or(o.DemandIdle, 5*time.Minute)
	o.KeepCount = cmp.Or(o.KeepCount, 10_000)
	o.KeepAge = cmp.Or(o.KeepAge, 7*24*time.Hour)
	o.Lifetime.Timeout = cmp.Or(o.Lifetime.Timeout, 5*time.Minute)
	o.Lifetime.Max = cmp.Or(o.Lifetime.Max, 24*time.Hour)
	if o.Lifetime.Timeout < 0 || o.Lifetime.Max < o.Lifetime.Timeout {
		return o, engi.Errorf(engi.Invalid, "sandboxes live %v, and at most %v", o.Lifetime.Timeout, o.Lifetime.Max).
			WithRemedy("let the maximum be at least the default")
	}

	if err := o.Defaults.Size.Validate(); err != nil {
		return o, err
	}
	if !o.Defaults.Size.Fits(o.Max.Size) || o.Defaults.Timeout > o.Max.Timeout || o.Defaults.Output > o.Max.Output ||
		o.Defaults.ArtifactBytes > o.Max.ArtifactBytes || o.Defaults.ArtifactCount > o.Max.ArtifactCount {
		return o, engi.Errorf(engi.Invalid, "a default limit is above its maximum").WithRemedy("raise the maximum or lower the default")
	}
	if o.Max.Output > wire.MaxOutput || o.Max.ArtifactCount > wire.MaxArtifactCount || o.MaxInput > wire.MaxStdin {
		return o, engi.Errorf(engi.Invalid, "a maximum is above what the guest's protocol carries: output %d, artifacts %d, input %d",
			wire.MaxOutput, wire.MaxArtifactCount, wire.MaxStdin)
	}
	if min(o.MaxSandboxes, o.MaxQueue, o.Boots, o.Demand+1, o.Spare+1, o.KeepCount) < 1 ||
		min(o.ClaimTimeout, o.MaxWait, o.MaxTimeout, o.DemandIdle, o.KeepAge) < 0 || min(o.MaxCode, o.MaxInput) < 1 {
		return o, engi.Errorf(engi.Invalid, "a negative count, time or size in the fleet's options")
	}
	targets := 0
	pools := slices.Clone(o.Pools)
	for i := range pools {
		p := &pools[i]
		p.Template = cmp.Or(p.Template, o.Template)
		p.OnEmpty = cmp.Or(p.OnEmpty, o.OnEmpty)
		p.ClaimTimeout = cmp.Or(p.ClaimTimeout, o.ClaimTimeout)
		if p.Target < 0 || p.Max < 0 || p.Max > 0 && p.Target > p.Max || p.ClaimTimeout < 0 {
			return o, engi.Errorf(engi.Invalid, "pool %s/%s: target %d, max %d, claim timeout %v", p.Template, p.Language, p.Target, p.Max, p.ClaimTimeout)
		}
		if p.Language != "" && !slices.Contains(engi.Languages(), p.Language) {
			return o, engi.Errorf(engi.Invalid, "language %.40q of a pool is not supported", p.Language).WithRemedy("use one of %v", engi.Languages())
		}
		targets += p.Target
	}
	o.Pools = pools
	if targets > o.MaxSandboxes {
		return o, engi.Errorf(engi.Invalid, "the pools want %d warm sandboxes; the limit of all pools is %d", targets, o.MaxSandboxes).
			WithRemedy("raise the maximum of sandboxes or lower the pools' targets")
	}
	return o, nil
}
