package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	// See Quiet and Patience of pool.Options.
	quiet    = 150 * time.Millisecond
	patience = 1500 * time.Millisecond
	// refreshTemplatesEvery is the interval at which pools look for new builds of their
	// templates, in addition to notifications.
	refreshTemplatesEvery = 10 * time.Second
	// growEach is the number of ready instances that a pool may grow to per concurrent boot.
	growEach = 8
	// maxDemandPools is the maximum number of pools that keep instances on demand.
	maxDemandPools = 16
)

// pools owns the instances of a node: it boots them for warm pools, lends them
// to executions and sandboxes, and destroys them. It carries out the plans of its
// scheduler. It is safe for concurrent use.
type pools struct {
	*shared
	sched      *pool.Scheduler[*instance]
	configured map[pool.Key]PoolConfig // immutable
	weights    *weights

	// sandboxDied is called when an instance ends under its sandbox. Set
	// before Run.
	sandboxDied func(*sandbox, *instance)

	mu        sync.Mutex
	instances map[engi.SandboxID]*instance // live instances; guarded by mu
	wanted    map[uint64]func()            // functions to call when a caller waits for a boot, by ID of the boot; guarded by mu
	expected  map[engi.SandboxID]bool      // IDs of instances, booting ones included; guarded by mu
}

func newPools(all *shared) (*pools, error) {
	o := all.opt
	p := &pools{
		shared:     all,
		configured: map[pool.Key]PoolConfig{},
		weights:    newWeights(),
		instances:  map[engi.SandboxID]*instance{},
		expected:   map[engi.SandboxID]bool{},
		wanted:     map[uint64]func(){},
	}
	p.sched = pool.New[*instance](pool.Options{
		Max:        o.MaxSandboxes,
		MaxQueue:   o.MaxQueue,
		Boots:      o.Boots,
		Teardowns:  o.Boots,
		Grow:       min(growEach*o.Boots, o.MaxSandboxes/2),
		Yields:     p.weights.work.Load,
		MaxWait:    o.MaxWait,
		Quiet:      quiet,
		Patience:   patience,
		DemandIdle: o.DemandIdle,
	})
	for _, c := range o.Pools {
		key := pool.Key{Tier: o.Providers[0].Tier(), Template: c.Template, Language: c.Language}
		if _, ok := p.configured[key]; ok {
			return nil, engi.Errorf(engi.Invalid, "pool %s is configured twice", key)
		}
		p.configured[key] = c
	}
	return p, nil
}

// ensureConfigured creates the configured pools.
func (p *pools) ensureConfigured() {
	now := time.Now()
	for key, c := range p.configured {
		p.sched.Ensure(key, pool.Config{Target: c.Target, Max: c.Max}, "", now)
	}
}

// claim takes a ready instance: one with a running interpreter, or
// else a bare one of the same template.
func (p *pools) claim(key pool.Key) (*instance, bool) {
	now := time.Now()
	for {
		inst, ok := p.sched.Take(key, now)
		if !ok && key.Language != "" {
			bare := key
			bare.Language = ""
			inst, ok = p.sched.Take(bare, now)
		}
		if !ok {
			return nil, false
		}
		select {
		case <-inst.machine.Done(): // the machine has just died
			p.sched.Retire(inst.key, inst, now, true)
		default:
			return inst, true
		}
	}
}

// giveBack returns a claimed instance in which no program has run.
func (p *pools) giveBack(inst *instance) { p.sched.Return(inst.key, inst, inst.rec.Digest) }

// retire schedules the destruction of a used instance: soon with hurry, else when it
// disturbs no caller.
func (p *pools) retire(inst *instance, hurry bool) {
	p.sched.Retire(inst.key, inst, time.Now(), hurry)
}

// policy returns the behavior of a claim on key's pool if the pool is empty, and the
// configuration that the pool has or will get.
func (p *pools) policy(key pool.Key) (onEmpty engi.EmptyPool, timeout time.Duration, cfg pool.Config) {
	if c, ok := p.configured[key]; ok {
		return c.OnEmpty, c.ClaimTimeout, pool.Config{Target: c.Target, Max: c.Max}
	}
	cfg = pool.Config{Demand: true}
	if p.mayKeep(key) {
		cfg.Target = p.opt.Demand
	}
	return p.opt.OnEmpty, p.opt.ClaimTimeout, cfg
}

// mayKeep reports whether key's pool may keep instances on demand.
func (p *pools) mayKeep(key pool.Key) bool {
	return key.Size == engi.Size{} && (p.sched.Keeps(key) || p.sched.DemandPools() < maxDemandPools)
}

// configFor returns the configuration of key's pool, or the one for a pool that
// is created for an instance in use.
func (p *pools) configFor(key pool.Key) pool.Config {
	if cfg, ok := p.sched.Config(key); ok {
		return cfg
	}
	return pool.Config{Demand: true}
}

// get returns owner's instance, unless it belongs to a sandbox.
func (p *pools) get(viewer engi.Viewer, id engi.SandboxID) *instance {
	p.mu.Lock()
	inst := p.instances[id]
	p.mu.Unlock()
	if inst == nil || inst.user() != nil || !viewer.Sees(inst.record().Owner) {
		return nil
	}
	return inst
}

// each calls f with the record of every instance that belongs to no sandbox.
// f must not call pools.
func (p *pools) each(f func(SandboxRecord)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, inst := range p.instances {
		if inst.user() == nil {
			f(inst.record())
		}
	}
}

// expect declares that a machine with this ID may exist from now on.
func (p *pools) expect(id engi.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected[id] = true
}

// unexpect declares that the machine is gone, or that the reconciler
// should remove its remains.
func (p *pools) unexpect(id engi.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.expected, id)
}

// expects reports whether a machine with this ID may exist.
func (p *pools) expects(id engi.SandboxID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected[id]
}

// runSchedule carries out the scheduler's plans until ctx ends.
func (p *pools) runSchedule(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		plan := p.sched.Plan(time.Now())
		for _, id := range plan.Wanted {
			p.hurryBoot(id)
		}
		for _, order := range plan.Boots {
			background := p.startInBackground(order)
			p.work.Go(func() { p.bootOrdered(order, background) })
		}
		for _, inst := range plan.Teardowns {
			p.work.Go(func() {
				p.destroy(inst)
				p.sched.TornDown(inst)
			})
		}
		if plan.Again > 0 {
			timer.Reset(plan.Again)
		} else {
			timer.Stop()
		}
		select {
		case <-p.sched.Wake():
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// startInBackground returns a context that ends when a caller waits for the boot.
func (p *pools) startInBackground(order pool.Boot) context.Context {
	background, end := context.WithCancel(context.Background())
	if order.Wanted {
		end()
		return background
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted[order.ID] = end
	return background
}

// hurryBoot ends the context of a boot. It has no effect if the boot has ended.
func (p *pools) hurryBoot(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if end := p.wanted[id]; end != nil {
		end()
	}
	delete(p.wanted, id)
}

// bootOrdered boots one instance and reports to the scheduler.
func (p *pools) bootOrdered(order pool.Boot, background context.Context) {
	defer p.hurryBoot(order.ID)
	inst, err := p.boot(p.life, order, background)
	if err != nil {
		if p.life.Err() == nil {
			p.metrics.failures.Inc()
			p.log.Warn("boot", "pool", order.Key.String(), "error", err)
		}
		p.sched.BootFailed(order, err, time.Now())
		return
	}
	p.metrics.boots.Observe(inst.bootTime.Seconds())
	if inst.rec.Digest != p.sched.Digest(order.Key) { // another process has rebuilt the template
		p.catalog.forget()
		p.refreshTemplates(p.life)
	}
	p.sched.Booted(order, inst, inst.rec.Digest, time.Now())
}

// followTemplates tells the scheduler when templates change, until ctx ends.
// Builds by other processes are noticed with some delay.
func (p *pools) followTemplates(ctx context.Context) {
	tick := time.NewTicker(refreshTemplatesEvery)
	defer tick.Stop()
	for {
		changed := p.opt.Templates.Changed()
		p.refreshTemplates(ctx)
		select {
		case <-changed:
		case <-tick.C:
			p.catalog.forget()
		case <-ctx.Done():
			return
		}
	}
}

// refreshTemplates looks up the current builds of all pools' templates.
func (p *pools) refreshTemplates(ctx context.Context) {
	languages := map[string][]engi.Language{} // languages of the pools, by template
	for _, st := range p.sched.Status() {
		languages[st.Template] = append(languages[st.Template], st.Language)
	}
	for name, wanted := range languages {
		t, err := p.catalog.get(ctx, name)
		switch {
		case err == nil:
			can := func(l engi.Language) bool { _, ok := t.Languages[l]; return ok }
			if changed := p.sched.SetTemplate(name, t.Digest, can); !changed {
				continue
			}
			for _, l := range wanted {
				if l != "" && !can(l) && !t.Partial {
					p.log.Warn("a pool stays empty: its template cannot run its language", "template", name, "language", l)
				}
			}
		case engi.Is(err, engi.NotFound):
			p.sched.SetTemplate(name, "", nil)
		case ctx.Err() == nil:
			p.log.Warn("look up template", "template", name, "error", err)
		}
	}
}

// warm returns Unavailable until every configured pool has had a ready
// instance.
func (p *pools) warm() error {
	if !p.serving.Load() {
		return errNotServing
	}
	cold := p.sched.Cold()
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

// disconnect closes the connections to all guests and releases templates. The
// machines keep running.
func (p *pools) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, inst := range p.instances {
		inst.closeClient()
		inst.unpin()
	}
}

// recoverReady puts a warm instance that an earlier node booted back into its
// pool. It returns false if the pool no longer exists or the instance is
// unusable. An instance of an older build of its template serves until enough new
// ones are ready.
func (p *pools) recoverReady(ctx context.Context, rec SandboxRecord) bool {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	key := keyOf(rec)
	cfg, ok := p.configured[key]
	if !ok {
		return false
	}
	t, unpin, err := p.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		return false
	}
	defer unpin() // adopt pins the template again
	if rec.Fixed.Or(p.size(t)) != rec.Size {
		return false // an instance booted today would have another size
	}
	if !p.linked(ctx, rec) {
		return false // the instance was booted before the node had a network
	}
	inst, err := p.adopt(ctx, rec)
	if err != nil {
		p.log.Info("warm sandbox did not survive", "sandbox", rec.ID, "error", err)
		return false
	}
	if _, err := inst.guest.Processes(ctx); err != nil {
		inst.guest.Close()
		inst.unpin()
		p.log.Info("warm sandbox does not answer", "sandbox", rec.ID, "error", err)
		return false
	}
	p.add(inst)
	p.sched.Adopt(key, pool.Config{Target: cfg.Target, Max: cfg.Max}, inst, rec.Digest, false, time.Now())
	return true
}

// adopt takes over the machine and the guest of an instance that an earlier node
// booted. The caller must add the instance.
func (p *pools) adopt(ctx context.Context, rec SandboxRecord) (_ *instance, err error) {
	machine, err := p.providerOf(rec.Tier).Adopt(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return nil, err
	}
	unpin := func() {}
	if _, release, err := p.opt.Templates.Use(ctx, rec.Digest); err == nil {
		unpin = release
	}
	inst := newInstance(rec, machine, g)
	inst.unpin = unpin
	return inst, nil
}

// linked reports whether a waiting machine has its network link.
func (p *pools) linked(ctx context.Context, rec SandboxRecord) bool {
	n, ok := p.providerOf(rec.Tier).(provider.Networked)
	if p.opt.Egress == nil || !ok {
		return true
	}
	_, err := n.Netns(ctx, rec.ID)
	return err == nil
}

// removeRecorded destroys the remains of a recorded instance that is no longer
// needed. It ends the record if the instance was used, and deletes it if not.
func (p *pools) removeRecorded(ctx context.Context, rec SandboxRecord) {
	if err := p.removeMachine(ctx, p.providerOf(rec.Tier), rec.ID); err != nil {
		p.log.Error("remove sandbox; trying again later", "sandbox", rec.ID, "error", err)
		return
	}
	var err error
	if rec.Execution == "" {
		err = p.opt.Store.ForgetSandbox(ctx, rec.ID)
	} else {
		rec.State, rec.Stopped, rec.Token = engi.Stopped, time.Now().UTC(), ""
		if rec.End == "" {
			rec.End = engi.CauseSandboxLost
		}
		err = p.opt.Store.PutSandbox(ctx, rec)
	}
	if err != nil {
		p.log.Error("record end of sandbox", "sandbox", rec.ID, "error", err)
		return
	}
	p.metrics.repaired.WithLabelValues("sandbox_removed").Inc()
}

// stop destroys an instance that belongs to no sandbox and waits until it is
// gone. A run that uses it is cancelled.
func (p *pools) stop(ctx context.Context, inst *instance) error {
	p.sched.Discard(inst.key, inst, time.Now())
	inst.mu.Lock()
	r := inst.run
	inst.mu.Unlock()
	if r != nil {
		r.stop(engi.CauseCancelled)
	}
	p.sched.Hurry(inst)
	select {
	case <-inst.gone:
		return nil
	case <-p.life.Done():
		return errStopping
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "stop sandbox %s: %v", inst.rec.ID, context.Cause(ctx)).
			WithRemedy("it is being destroyed: try again later")
	}
}
