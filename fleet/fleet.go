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
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest/wire"
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
	Boots        int            // sandboxes that boot at the same time; 0 means one per processor, 2 at least
	Workshop     *BuildRunner   // whose sandboxes are not orphans; nil if there is none

	Demand     int           // warm members kept for what was asked for without a pool; 0 means none
	Spare      int           // bare members kept of what sandboxes were created from lately; 0 means none
	DemandIdle time.Duration // after which they go again; 0 means 5 min

	KeepCount int           // ended executions kept; 0 means 10000
	KeepAge   time.Duration // how long they are kept; 0 means 7 days

	Lifetime  Lifetime                    // of sandboxes that do not say
	Quota     func(engi.Owner) engi.Quota // nil means no quotas
	Snapshots SnapshotStore               // nil means there are none
	Volumes   VolumeStore                 // nil means there are none
	Wall      Wall                        // nil means there is no network

	Ephemeral bool // destroy every sandbox when Run ends, for nodes that live in one process
}

// A Lifetime bounds how long sandboxes stay awake.
type Lifetime struct {
	Timeout time.Duration // of specs without one; 0 means 5 min
	Max     time.Duration // however often extended; 0 means 24 h
}

// A SnapshotStore keeps snapshots; it is what this room needs of package
// disk/snapshot.
type SnapshotStore interface {
	// Create keeps a snapshot whose files fill writes into a fresh
	// directory, or nothing.
	Create(ctx context.Context, s engi.Snapshot, fill func(dir string) error) (engi.Snapshot, error)
	// Use returns a snapshot and its files, which stay until release.
	Use(ctx context.Context, owner engi.Owner, idOrName string) (s engi.Snapshot, dir string, release func(), err error)
	// Digests names the templates that snapshots need.
	Digests(ctx context.Context) ([]string, error)
}

// A VolumeStore keeps volumes; it is what this room needs of package
// disk/volume.
type VolumeStore interface {
	// Mount makes holder the one that has a volume and returns where its
	// files are. It may be repeated; Conflict if another has it.
	Mount(ctx context.Context, owner engi.Owner, idOrName string, holder engi.SandboxID) (v engi.Volume, source string, err error)
	// Unmount takes all volumes from holder; it may be repeated.
	Unmount(ctx context.Context, holder engi.SandboxID) error
	// Holders names those that have volumes.
	Holders(ctx context.Context) ([]engi.SandboxID, error)
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
	// Use returns a built template by name or digest, and keeps it from
	// being removed until release is called. Errors are those of
	// engi.Templates.Get.
	Use(ctx context.Context, nameOrDigest string) (t engi.Template, release func(), err error)
	// Changed returns a channel that is closed when next a name comes to
	// mean another build, or none.
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
//
// Locks: mu before a run's or a box's mu, those before a member's; stock has its own
// and calls nothing. None is held over I/O.
type Manager struct {
	opt     Options
	log     *slog.Logger
	files   files
	stock   *pool.Pools[*instance]
	catalog *catalog
	metrics *metrics
	pools   map[pool.Key]PoolConfig // configured ones; immutable after Open

	life context.Context // of Run; set before serving is
	work sync.WaitGroup  // every goroutine

	queuedBytes atomic.Int64  // of the programs of executions that wait
	time        chan struct{} // tells the timekeeper that an end may have come nearer

	mu       sync.Mutex
	serving  bool
	members  map[engi.SandboxID]*instance // alive
	expected map[engi.SandboxID]bool      // may have traces: members and those that boot
	runs     map[engi.ExecutionID]*run    // not ended
	boxes    map[engi.SandboxID]*sandbox  // not stopped
	bookings map[*booking]bool
	creating map[[2]string]chan struct{} // owners and keys of sandboxes being made

	pinning sync.Mutex        // held over I/O; before mu
	pinned  map[string]func() // digests of templates that snapshots need; guarded by pinning
}

// Pace of the background work; see stock.Options.
const (
	quiet    = 150 * time.Millisecond
	patience = 1500 * time.Millisecond
	// reconcileEvery is how often wanted and found are compared.
	reconcileEvery = 30 * time.Second
	// retemplateEvery is how often templates are looked up unasked.
	retemplateEvery = 10 * time.Second
	// maxDemandPools bounds the pools that keep members on demand.
	maxDemandPools = 16
	// maxQueuedBytes bounds the programs kept for executions that wait.
	maxQueuedBytes = 1 << 30
)

// Open checks o and returns a Manager that does nothing before Run. It
// reports Invalid for options that make no sense.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		opt:      o,
		log:      o.Log,
		catalog:  &catalog{src: o.Templates},
		pools:    map[pool.Key]PoolConfig{},
		members:  map[engi.SandboxID]*instance{},
		expected: map[engi.SandboxID]bool{},
		runs:     map[engi.ExecutionID]*run{},
		time:     make(chan struct{}, 1),
		boxes:    map[engi.SandboxID]*sandbox{},
		bookings: map[*booking]bool{},
		creating: map[[2]string]chan struct{}{},
		pinned:   map[string]func(){},
	}
	if m.files, err = openFiles(o.Dir); err != nil {
		return nil, err
	}
	m.stock = pool.New[*instance](pool.Options{
		Max:        o.MaxSandboxes,
		MaxQueue:   o.MaxQueue,
		Boots:      o.Boots,
		Downs:      o.Boots,
		Quiet:      quiet,
		Patience:   patience,
		DemandIdle: o.DemandIdle,
	})
	if m.metrics, err = newMetrics(o.Metrics, m); err != nil {
		return nil, err
	}
	for _, p := range o.Pools {
		key := pool.Key{Tier: o.Providers[0].Tier(), Template: p.Template, Language: p.Language}
		if _, twice := m.pools[key]; twice {
			return nil, engi.Errorf(engi.Invalid, "pool %s is configured twice", key)
		}
		m.pools[key] = p
	}
	return m, nil
}

// complete fills in defaults and reports Invalid.
func complete(o Options) (Options, error) {
	if len(o.Providers) == 0 || o.Templates == nil || o.Store == nil || !filepath.IsAbs(o.Dir) {
		return o, engi.Errorf(engi.Invalid, "a fleet needs providers, templates, a store and an absolute directory")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Template = cmp.Or(o.Template, "base")
	o.Defaults = orLimits(o.Defaults, DefaultLimits())
	o.Max = orLimits(o.Max, MaxLimits())
	o.OnEmpty = cmp.Or(o.OnEmpty, engi.PoolBootSync)
	o.ClaimTimeout = cmp.Or(o.ClaimTimeout, 30*time.Second)
	o.MaxTimeout = cmp.Or(o.MaxTimeout, 10*time.Minute)
	o.MaxSandboxes = cmp.Or(o.MaxSandboxes, 256)
	o.MaxQueue = cmp.Or(o.MaxQueue, 1024)
	o.MaxCode = cmp.Or(o.MaxCode, 8<<20)
	o.MaxInput = cmp.Or(o.MaxInput, 32<<20)
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
		min(o.ClaimTimeout, o.MaxTimeout, o.DemandIdle, o.KeepAge) < 0 || min(o.MaxCode, o.MaxInput) < 1 {
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
		if p.Language != "" {
			if err := knownLanguage(p.Language); err != nil {
				return o, err
			}
		}
		targets += p.Target
	}
	o.Pools = pools
	if targets > o.MaxSandboxes {
		return o, engi.Errorf(engi.Invalid, "pools want %d warm sandboxes, %d are allowed in all", targets, o.MaxSandboxes).
			WithRemedy("raise the maximum of sandboxes or lower the pools' targets")
	}
	return o, nil
}

// Executions returns the front desk of executions.
func (m *Manager) Executions() engi.Executions { return executions{m} }

// Sandboxes returns the front desk of sandboxes.
func (m *Manager) Sandboxes() engi.Sandboxes { return sandboxes{m} }

var _ engi.Pools = (*Manager)(nil)

// Run repairs what a crash left, calls ready, keeps the pools warm and
// watches over sandboxes until ctx ends. Then it lets go of them alive, for
// the next Manager to adopt, unless the Manager is ephemeral. When Run
// returns, no goroutine of the Manager is left. Call it once.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	life, die := context.WithCancelCause(context.WithoutCancel(ctx))
	defer die(errStopping)
	m.life = life
	now := time.Now()
	for key, p := range m.pools {
		m.stock.Ensure(key, pool.Config{Target: p.Target, Max: p.Max}, "", now)
	}
	m.retemplate(ctx)
	if err := m.recover(ctx); err != nil {
		die(errStopping)
		m.letGo()
		return err
	}
	if err := m.requeue(ctx); err != nil {
		m.log.Error("queue what waited before the restart", "error", err)
	}
	m.mu.Lock()
	m.serving = true
	m.mu.Unlock()
	keeping, stop := context.WithCancel(life)
	var keepers sync.WaitGroup
	keepers.Go(func() { m.keepStock(keeping) })
	keepers.Go(func() { m.keepTemplates(keeping) })
	keepers.Go(func() { m.keepTruth(keeping) })
	keepers.Go(func() { m.keepTime(keeping) })
	keepers.Go(func() { m.keepSamples(keeping) })
	ready()
	<-ctx.Done()

	m.mu.Lock()
	m.serving = false
	m.mu.Unlock()
	if m.opt.Ephemeral {
		m.dissolve()
	}
	stop()
	keepers.Wait()
	die(errStopping)
	m.letGo()
	return nil
}

var (
	errNotServing = engi.Errorf(engi.Unavailable, "the node does not take work now").WithRemedy("it starts or stops: try again in a moment")
	errStopping   = engi.Errorf(engi.Unavailable, "the node stops; what runs goes on").WithRemedy("ask again when the node is back")
)

// letGo waits for all goroutines and closes the ways into the guests; what
// runs inside goes on.
func (m *Manager) letGo() {
	m.work.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.members {
		b.closeGuest()
		b.unpin()
	}
	for _, x := range m.boxes {
		x.unpin()
	}
	for _, unpin := range m.pinned {
		unpin()
	}
}

// dissolve ends everything, for a node that leaves nothing behind.
func (m *Manager) dissolve() {
	m.stock.Empty(time.Now(), errStopping)
	m.mu.Lock()
	var all []*run
	for _, r := range m.runs {
		all = append(all, r)
	}
	m.mu.Unlock()
	for _, r := range all {
		r.stop(engi.CauseCancelled)
	}
	var boxes sync.WaitGroup
	for _, x := range m.allBoxes() {
		boxes.Go(func() { m.dissolveBox(x) })
	}
	boxes.Wait()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if alive, _ := m.stock.Counts(); alive == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			m.log.Error("not all sandboxes are gone; the next start removes them")
			return
		}
	}
}

// keepStock carries out the stock's plans until ctx ends.
func (m *Manager) keepStock(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		plan := m.stock.Plan(time.Now())
		for _, order := range plan.Boots {
			m.work.Go(func() { m.fulfil(order) })
		}
		for _, b := range plan.Downs {
			m.work.Go(func() {
				m.destroy(b)
				m.stock.Gone(b)
			})
		}
		if plan.Again > 0 {
			timer.Reset(plan.Again)
		} else {
			timer.Stop()
		}
		select {
		case <-m.stock.Wake():
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// fulfil boots one member and reports to the stock.
func (m *Manager) fulfil(order pool.Boot) {
	b, err := m.boot(m.life, order.Key)
	if err != nil {
		if m.life.Err() == nil {
			m.metrics.failures.Inc()
			m.log.Warn("boot", "pool", order.Key.String(), "error", err)
		}
		m.stock.Failed(order, err, time.Now())
		return
	}
	m.metrics.boots.Observe(b.born.Seconds())
	if b.rec.Digest != m.stock.Digest(order.Key) { // a build nobody told us of, by another process
		m.catalog.forget()
		m.retemplate(m.life)
	}
	m.stock.Booted(order, b, b.rec.Digest, time.Now())
}

// keepTemplates tells the stock when templates change, until ctx ends. What
// other processes build it notices now and then.
func (m *Manager) keepTemplates(ctx context.Context) {
	tick := time.NewTicker(retemplateEvery)
	defer tick.Stop()
	for {
		changed := m.opt.Templates.Changed()
		m.retemplate(ctx)
		select {
		case <-changed:
		case <-tick.C:
			m.catalog.forget()
		case <-ctx.Done():
			return
		}
	}
}

// retemplate looks up what the templates of all pools are now.
func (m *Manager) retemplate(ctx context.Context) {
	names := map[string][]engi.Language{}
	for _, p := range m.stock.Status() {
		names[p.Template] = append(names[p.Template], p.Language)
	}
	for name, languages := range names {
		t, err := m.catalog.get(ctx, name)
		switch {
		case err == nil:
			can := func(l engi.Language) bool { _, ok := t.Languages[l]; return ok }
			if changed := m.stock.Templated(name, t.Digest, can); !changed {
				continue
			}
			for _, l := range languages {
				if l != "" && !can(l) && !t.Partial {
					m.log.Warn("a pool is asked for that cannot be: it keeps nothing", "template", name, "language", l)
				}
			}
		case engi.KindOf(err) == engi.NotFound:
			m.stock.Templated(name, "", nil)
		case ctx.Err() == nil:
			m.log.Warn("look up template", "template", name, "error", err)
		}
	}
}

func (m *Manager) providerOf(t engi.Tier) provider.Provider {
	for _, p := range m.opt.Providers {
		if p.Tier() == t {
			return p
		}
	}
	return m.opt.Providers[0] // unreachable: keys are made from the tiers of providers
}

// Pools returns the pools in template and language order.
func (m *Manager) Pools(ctx context.Context) []engi.PoolStatus { return m.stock.Status() }

// Warm returns nil once every configured pool had its first member.
func (m *Manager) Warm(ctx context.Context) error {
	m.mu.Lock()
	serving := m.serving
	m.mu.Unlock()
	if !serving {
		return errNotServing
	}
	cold := m.stock.Cold()
	if len(cold) == 0 {
		return nil
	}
	var names []string
	var failure error
	for key, err := range cold {
		name := key.String()
		if err != nil {
			failure = err
			name += " (" + err.Error() + ")"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	err := engi.Errorf(engi.Unavailable, "pools without a warm sandbox yet: %s", strings.Join(names, "; "))
	if failure != nil {
		return err.WithRemedy("%s", engi.RemedyOf(failure))
	}
	return err.WithRemedy("wait a moment: they are booting")
}
