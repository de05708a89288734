package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/undo"
)

const (
	bootTimeout = 30 * time.Second
	// workDir is where programs run if the template does not say.
	workDir = "/workspace"
	// hostname is that of every sandbox: programs learn nothing from it.
	hostname = "sandbox"
)

// An instance is one booted machine with a way into its guest. It waits in a
// pool, then belongs to one run or to one sandbox, and is destroyed.
type instance struct {
	key      pool.Key
	machine  provider.Machine
	unpin    func() // releases the template; belongs to pools
	bootTime time.Duration
	bootCPU  time.Duration // processor time of the boot; 0 if unknown
	gone     chan struct{} // closed when nothing is left of it
	discard  sync.Once

	// guest is nil while the instance of a sandbox has no connection. It
	// changes only then, and with mu held; runs may read it without.
	guest *guest.Client

	mu           sync.Mutex
	rec          SandboxRecord // guarded by mu; a sandbox has a record of its own, which counts
	run          *run          // that uses the instance; guarded by mu
	sandbox      *sandbox      // that uses the instance; guarded by mu
	networkStale bool          // the guest has not been told of its network; guarded by mu
}

// keyOf returns the key of the pool that a recorded instance belongs to.
func keyOf(rec SandboxRecord) pool.Key {
	return pool.Key{Tier: rec.Tier, Template: rec.Template, Language: rec.Language, Size: rec.Fixed}
}

// newInstance returns an instance that has no template pinned.
func newInstance(rec SandboxRecord, machine provider.Machine, g *guest.Client) *instance {
	return &instance{
		key:     keyOf(rec),
		machine: machine,
		unpin:   func() {},
		gone:    make(chan struct{}),
		guest:   g,
		rec:     rec,
	}
}

// user returns the sandbox that uses the instance, nil if none does.
func (i *instance) user() *sandbox {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sandbox
}

// client returns the connection to the guest, nil while there is none.
func (i *instance) client() *guest.Client {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.guest
}

func (i *instance) setClient(g *guest.Client) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.guest = g
	if g != nil && i.sandbox != nil {
		g.OnLoss(i.lossCause)
	}
}

// lossTime is how long a machine that dies may seem to live after its guest.
const lossTime = 500 * time.Millisecond

// lossCause returns why the guest is gone: of what the machine has died, empty if
// it has not.
func (i *instance) lossCause() engi.Cause {
	select {
	case <-i.machine.Done():
		return i.machine.End()
	case <-time.After(lossTime):
		return ""
	}
}

// closeClient closes the connection to the guest, if there is one.
func (i *instance) closeClient() {
	if g := i.client(); g != nil {
		g.Close()
	}
}

// record returns the record as it is now.
func (i *instance) record() SandboxRecord {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rec
}

// setState changes the state in the record, and more if edit is not nil. It
// reports Conflict if the state cannot follow the present one.
func (i *instance) setState(to engi.State, edit func(*SandboxRecord)) (SandboxRecord, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	state, err := i.rec.State.To(to)
	if err != nil {
		return i.rec, err
	}
	i.rec.State = state
	if edit != nil {
		edit(&i.rec)
	}
	return i.rec, nil
}

// assign gives a ready instance to a run.
func (i *instance) assign(r *run, rec Record) (SandboxRecord, error) {
	return i.setState(engi.Running, func(s *SandboxRecord) {
		s.Owner = rec.Owner
		s.Execution = rec.ID
		s.Network = r.network
		i.run = r
	})
}

// recordOfUse returns what to record of an instance that was assigned to a run
// before its program starts: nothing if the execution's record, which names it, says
// all. That keeps claims fast; the instance's own record follows with the end of the
// run. A network, which is nowhere else, is recorded.
func recordOfUse(s SandboxRecord) *SandboxRecord {
	if opens(s.Network) {
		return &s
	}
	return nil
}

// usedBy completes the record of an instance by that of the running execution that
// names it; see recordOfUse.
func (s SandboxRecord) usedBy(rec Record) SandboxRecord {
	if s.State == engi.Ready {
		s.State, s.Owner, s.Execution = engi.Running, rec.Owner, rec.ID
	}
	return s
}

// unassign takes back assign if nothing has run.
func (i *instance) unassign() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rec.State, i.rec.Owner, i.rec.Execution, i.rec.Network, i.run = engi.Ready, "", "", engi.NetworkPolicy{}, nil
}

func (i *instance) setNetworkStale(stale bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.networkStale = stale
}

func (i *instance) isNetworkStale() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.networkStale
}

// boot makes a ready instance for a pool, or leaves nothing behind. It leaves the
// processors to others until background ends, when somebody waits for it.
func (p *pools) boot(ctx context.Context, order pool.Boot, background context.Context) (_ *instance, err error) {
	began, key := time.Now(), order.Key
	weight := p.weights.ofBoot(order)
	patient := ctx
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	var u undo.Stack
	defer u.Run()

	t, unpin, err := p.opt.Templates.Use(ctx, key.Template)
	if err != nil {
		return nil, err
	}
	u.Add(unpin)
	id := engi.NewSandboxID()
	defer engi.Annotate(&err, "boot %s", id)
	p.expect(id)
	u.Add(func() { p.unexpect(id) })

	rec := SandboxRecord{
		Sandbox: engi.Sandbox{
			ID:       id,
			Template: key.Template,
			Digest:   t.Digest,
			Pool:     key.String(),
			Tier:     key.Tier,
			Size:     key.Size.Or(p.size(t)),
			State:    engi.Starting,
			Created:  time.Now().UTC(),
		},
		Token:    newToken(),
		Language: key.Language,
		Fixed:    key.Size,
	}
	netns, err := p.attach(ctx, id)
	if err != nil {
		return nil, err
	}
	u.Add(func() { p.detach(id) })
	machine, err := p.providerOf(key.Tier).Start(ctx, provider.Spec{
		ID:       id,
		Netns:    netns,
		Root:     t.Root,
		Size:     rec.Size,
		Hostname: hostname,
		Token:    rec.Token,
		Mounts:   mountsOf(t),
		Weight:   ordinaryWeight,
		Wanted:   background.Done(), WantedWeight: weight,
	})
	if err != nil {
		return nil, err
	}
	u.Add(func() {
		if err := machine.Close(); err != nil {
			p.log.Error("destroy half-booted sandbox", "sandbox", id, "error", err)
		}
	})
	defer context.AfterFunc(background, func() { p.weighMachine(machine, id, weight) })()
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return nil, err
	}
	u.Add(func() { g.Close() })
	if err := prepareGuest(ctx, g, t, rec.Size, key.Language); err != nil {
		return nil, err
	}
	if err := startServices(patient, g, t, key.Language == ""); err != nil {
		return nil, err
	}
	inst := newInstance(rec, machine, g)
	inst.unpin = unpin
	ready, err := inst.setState(engi.Ready, nil)
	if err != nil {
		return nil, err
	}
	if err := p.opt.Store.PutSandbox(patient, ready); err != nil {
		return nil, err
	}
	inst.bootTime, inst.bootCPU = time.Since(began), inst.processorTime()
	p.weigh(inst, freshWeight)
	p.add(inst)
	u.Keep()
	return inst, nil
}

// newToken returns a secret that opens one guest.
func newToken() string { return rand.Text() + rand.Text() }

// prepareGuest makes a guest that has just booted ready for a program: it
// knows its user, has the interpreter running, and has answered once, so that
// no caller waits for its first page faults.
func prepareGuest(ctx context.Context, g *guest.Client, t engi.Template, size engi.Size, lang engi.Language) error {
	err := g.Setup(ctx, wire.Setup{
		Env:       t.Env,
		User:      t.User,
		UID:       t.UID,
		GID:       t.GID,
		Home:      t.Home,
		WorkDir:   cmp.Or(t.WorkDir, workDir),
		Shell:     t.Shell,
		Processes: size.Processes,
		OpenFiles: size.OpenFiles,
		Kernels:   len(t.Kernels) > 0 && lang == "",
	})
	if err != nil {
		return err
	}
	if interp := t.Languages[lang]; interp.Warm {
		if err := g.Prepare(ctx, wire.Prepare{Language: lang, Interpreter: interp.Path}); err != nil {
			return err
		}
	}
	_, err = g.Processes(ctx)
	return err
}

// mountsOf returns what t mounts beside its root, for providers.
func mountsOf(t engi.Template) (all []provider.Mount) {
	for _, m := range t.Mounts {
		all = append(all, provider.Mount{Source: m.Source, Target: m.Target})
	}
	return all
}

// add makes a live instance known and watches over it.
func (p *pools) add(inst *instance) {
	p.mu.Lock()
	p.instances[inst.rec.ID] = inst
	p.expected[inst.rec.ID] = true
	p.mu.Unlock()
	p.work.Go(func() {
		select {
		case <-inst.machine.Done():
			if sb := inst.user(); sb != nil {
				p.sandboxDied(sb, inst)
				return
			}
			if p.sched.Discard(inst.key, inst, time.Now()) {
				p.metrics.lost.Inc()
				p.log.Warn("warm sandbox died", "sandbox", inst.rec.ID, "pool", inst.key.String(), "cause", inst.machine.End())
			}
		case <-inst.gone:
		case <-p.life.Done():
		}
	})
}

// discard destroys an instance that its sandbox uses no more, and waits until
// nothing is left of it. It may be repeated.
func (p *pools) discard(inst *instance) {
	inst.discard.Do(func() {
		p.destroy(inst)
		p.sched.RemoveUsed(inst.key)
	})
}

// destroy ends an instance and forgets it. What it cannot remove now is left
// to the reconciler.
func (p *pools) destroy(inst *instance) {
	rec := inst.record()
	owned := inst.user() != nil // the sandbox outlives the instance, and keeps the record
	if !owned {
		if to, err := inst.setState(engi.Stopping, nil); err == nil { // else it was stopping before
			rec = to
		}
	}
	inst.closeClient()
	err := inst.machine.Close()
	if err != nil {
		p.log.Error("destroy sandbox", "sandbox", rec.ID, "error", err)
		ctx, cancel := p.cleanup()
		err = p.providerOf(inst.key.Tier).Remove(ctx, rec.ID)
		cancel()
		if err != nil {
			p.log.Error("remove sandbox; trying again later", "sandbox", rec.ID, "error", err)
		}
	}
	p.detach(rec.ID)
	inst.unpin()
	if err == nil && !owned {
		p.recordEnd(inst)
	}
	p.metrics.teardowns.Inc()
	p.mu.Lock()
	delete(p.instances, rec.ID)
	delete(p.expected, rec.ID)
	p.mu.Unlock()
	close(inst.gone)
}

// recordEnd ends the record of an instance that was used, and deletes that of
// one that was not.
func (p *pools) recordEnd(inst *instance) {
	ctx, cancel := p.cleanup()
	defer cancel()
	rec, err := inst.setState(engi.Stopped, func(r *SandboxRecord) {
		r.Stopped = time.Now().UTC()
		r.Token = ""
		if r.End == "" {
			r.End = inst.machine.End()
		}
	})
	if err == nil {
		if rec.Execution == "" {
			err = p.opt.Store.ForgetSandbox(ctx, rec.ID)
		} else {
			err = p.opt.Store.PutSandbox(ctx, rec)
		}
	}
	if err != nil {
		p.log.Error("record end of sandbox", "sandbox", rec.ID, "error", err)
	}
}
