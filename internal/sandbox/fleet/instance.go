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
	// workDir is the working directory of programs if the template sets none.
	workDir = "/workspace"
	// hostname is the same in every sandbox, so that programs learn nothing from it.
	hostname = "sandbox"
)

// An instance is one booted machine with a connection to its guest. It waits in a
// pool, then belongs to one run or to one sandbox, and is destroyed afterwards.
type instance struct {
	key      pool.Key
	machine  provider.Machine
	unpin    func() // releases the template; owned by pools
	bootTime time.Duration
	bootCPU  time.Duration // processor time of the boot; 0 if unknown
	gone     chan struct{} // closed when the instance is destroyed completely
	discard  sync.Once

	// guest is nil while the instance of a sandbox has no connection. It
	// changes only for instances of sandboxes, with mu held; runs may read it without mu.
	guest *guest.Client

	mu           sync.Mutex
	rec          SandboxRecord // guarded by mu; for an instance of a sandbox, the sandbox's own record is authoritative
	run          *run          // the user of the instance, nil if none; guarded by mu
	sandbox      *sandbox      // the user of the instance, nil if none; guarded by mu
	networkStale bool          // the guest has not received its current network setup; guarded by mu
}

// keyOf returns the key of the pool to which a recorded instance belongs.
func keyOf(rec SandboxRecord) pool.Key {
	return pool.Key{Tier: rec.Tier, Template: rec.Template, Language: rec.Language, Size: rec.Fixed}
}

// newInstance returns an instance without a pinned template.
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

// user returns the sandbox that uses the instance, or nil.
func (i *instance) user() *sandbox {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sandbox
}

// client returns the connection to the guest, or nil while there is none.
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

// lossTime is the time that a dying machine may seem alive after its guest is gone.
const lossTime = 500 * time.Millisecond

// lossCause returns the cause of the loss of the guest: the machine's cause of death, empty if
// the machine is alive.
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

// record returns the current record.
func (i *instance) record() SandboxRecord {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rec
}

// setState changes the state in the record, and calls edit on the record if edit is not nil. It
// returns Conflict if the new state cannot follow the present one.
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

// recordOfUse returns the record to store for an instance that was assigned to a run,
// before its program starts. It is nil if the execution's record, which names the instance, contains
// everything. So claims stay fast; the instance's own record is written at the end of the
// run. A network is recorded at once, because no other record has it.
func recordOfUse(s SandboxRecord) *SandboxRecord {
	if opens(s.Network) {
		return &s
	}
	return nil
}

// usedBy completes the record of an instance from the record of the running execution that
// names it; see recordOfUse.
func (s SandboxRecord) usedBy(rec Record) SandboxRecord {
	if s.State == engi.Ready {
		s.State, s.Owner, s.Execution = engi.Running, rec.Owner, rec.ID
	}
	return s
}

// unassign undoes assign if no program has run.
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

// boot makes a ready instance for a pool, or cleans up after a failure. It runs with low processor
// priority until background ends, which happens when a caller waits for the instance.
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

// newToken returns a secret that gives access to one guest.
func newToken() string { return rand.Text() + rand.Text() }

// prepareGuest makes a freshly booted guest ready for a program: the guest
// knows its user, runs the interpreter, and has answered once, so that
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

// mountsOf returns the mounts of t besides its root, for providers.
func mountsOf(t engi.Template) (all []provider.Mount) {
	for _, m := range t.Mounts {
		all = append(all, provider.Mount{Source: m.Source, Target: m.Target})
	}
	return all
}

// add registers a live instance and waits in a goroutine for its end.
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

// discard destroys an instance that its sandbox no longer uses, and waits until
// it is gone completely. It may be repeated.
func (p *pools) discard(inst *instance) {
	inst.discard.Do(func() {
		p.destroy(inst)
		p.sched.RemoveUsed(inst.key)
	})
}

// destroy ends an instance and forgets it. Remains that it cannot remove now are left
// to the reconciler.
func (p *pools) destroy(inst *instance) {
	rec := inst.record()
	owned := inst.user() != nil // the sandbox outlives the instance, and keeps the record
	if !owned {
		if to, err := inst.setState(engi.Stopping, nil); err == nil { // else it was already stopping
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

// recordEnd ends the record of an instance that was used, and deletes the record of
// an unused one.
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
