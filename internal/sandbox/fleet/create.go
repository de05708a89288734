package fleet

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/undo"
)

// createTimeout is the maximum time for the creation of a sandbox, even if the caller's context allows more.
const createTimeout = 2 * time.Minute

// A creation describes a sandbox to be created: its record without an ID, and the source
// of its file system.
type creation struct {
	rec       SandboxRecord
	template  engi.Template
	key       pool.Key      // key of the pool whose instances fit
	image     string        // directory with a saved memory and disk to start from; empty for none
	imageSize engi.Size     // size of the machine from which image was saved
	disk      string        // directory with a saved disk to start from; empty for none
	timeout   time.Duration // time to the first deadline; 0 means the timeout of the lifetime
	booking   *booking
	release   func() // releases the snapshot
}

// fromPool reports whether an instance of the pool fits.
func (c *creation) fromPool() bool {
	return c.image == "" && c.disk == "" && len(c.rec.Volumes) == 0
}

// prepare checks spec and fills in its defaults. The caller releases the
// result.
func (s *sandboxes) prepare(ctx context.Context, spec engi.SandboxSpec) (_ *creation, err error) {
	var u undo.Stack
	defer u.Run()
	if err := spec.Faults(s.bounds).Err(); err != nil {
		return nil, err
	}
	if err := s.checkNetwork(ctx, spec.Owner, spec.Network); err != nil {
		return nil, err
	}
	if len(spec.Volumes) > 0 && s.opt.Volumes == nil {
		return nil, errNoVolumes
	}
	c := &creation{rec: SandboxRecord{
		Sandbox: engi.Sandbox{
			Owner:    spec.Owner,
			State:    engi.Starting,
			Lifetime: s.completeLifetime(spec.Lifetime),
			Snapshot: spec.Snapshot,
			Metadata: spec.Metadata,
			Env:      spec.Env,
			Volumes:  spec.Volumes,
			Network:  spec.Network,
			Ports:    spec.Ports,
			CPUQuota: spec.CPUQuota,
			Notes:    spec.Notes,
		},
		Made:        true,
		Idempotency: spec.Idempotency,
	}}
	if spec.Idempotency != "" {
		c.rec.Fingerprint = cmp.Or(spec.Fingerprint, idempotency.Fingerprint(spec))
	}
	name := cmp.Or(spec.Template, s.opt.Template)
	if spec.Snapshot != "" {
		snap, dir, release, err := s.useSnapshot(ctx, spec.Owner.Reach(), string(spec.Snapshot))
		if err != nil {
			return nil, err
		}
		u.Add(release)
		name = snap.Digest
		c.rec.Template = snap.Template
		c.rec.Env = merge(snap.Env, spec.Env)
		c.rec.Tier = snap.Tier
		if snap.Disk {
			c.disk = dir
		} else {
			c.image, c.imageSize = dir, snap.Size
		}
		if c.image != "" && len(spec.Volumes) > 0 {
			return nil, engi.Errorf(engi.Unsupported, "a sandbox that begins with the memory of another cannot have volumes").
				WithRemedy("make a snapshot of the disk only")
		}
		if spec.Onto != "" {
			if !snap.Disk {
				return nil, engi.Errorf(engi.Unsupported, "the memory of a sandbox belongs to its own template").WithRemedy("make a snapshot of the disk only")
			}
			name, c.rec.Template = spec.Onto, spec.Onto
		}
		spec.Size = spec.Size.Or(snap.Size)
		if c.image != "" && fixed(spec.Size) != fixed(snap.Size) {
			return nil, engi.Errorf(engi.Invalid, "a sandbox that begins with the memory of another has its disk, inodes, processes and open files too").
				WithRemedy("ask for other processors or memory only, or make a snapshot of the disk only")
		}
	} else {
		c.rec.Template = name
		if c.rec.Tier, err = s.chooseTier(spec.MinTier); err != nil {
			return nil, err
		}
	}
	c.template, err = s.catalog.get(ctx, name)
	if err == nil && (spec.Snapshot == "" || spec.Onto != "") && !c.template.VisibleTo(spec.Owner.Reach()) {
		err = engi.ErrNoTemplate
	}
	if err == nil && c.template.Partial {
		// A sandbox created from the first part of a template would lack the rest for its whole life.
		err = s.incomplete(c.template)
	}
	if err != nil {
		return nil, err
	}
	c.rec.Digest = c.template.Digest
	c.rec.Ports.Private = c.rec.Ports.Private || c.template.Private
	c.rec.Size = spec.Size.Or(s.size(c.template))
	if err := c.rec.Size.Faults(s.bounds.Limits.Size).Err(); err != nil { // the size of the template may exceed the limits
		return nil, err
	}
	c.key = pool.Key{Tier: c.rec.Tier, Template: c.rec.Template}
	if fixed(c.rec.Size) != fixed(s.size(c.template)) {
		c.key.Size = fixed(c.rec.Size)
	}
	c.rec.Fixed = c.key.Size
	release := u
	u.Keep()
	c.release = release.Run
	return c, nil
}

var (
	errNoSnapshots = engi.Errorf(engi.Unsupported, "this node has no snapshots")
	errNoVolumes   = engi.Errorf(engi.Unsupported, "this node has no volumes")
)

func (s *sandboxes) useSnapshot(ctx context.Context, viewer engi.Viewer, id string) (engi.Snapshot, string, func(), error) {
	if s.opt.Snapshots == nil {
		return engi.Snapshot{}, "", nil, errNoSnapshots
	}
	return s.opt.Snapshots.Use(ctx, viewer, id)
}

// Create implements engi.Sandboxes.
func (s *sandboxes) Create(ctx context.Context, spec engi.SandboxSpec) (_ engi.Sandbox, err error) {
	began := time.Now()
	if !s.serving.Load() {
		return engi.Sandbox{}, errNotServing
	}
	c, err := s.prepare(ctx, spec)
	if err != nil {
		return engi.Sandbox{}, err
	}
	defer c.release()
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency, Fingerprint: c.rec.Fingerprint}
	r, repeated, err := idempotency.Once(ctx, s.keys, request, s.opt.Store.SandboxByIdempotencyKey, func() (SandboxRecord, error) { return s.create(ctx, c, spec, began) })
	if err != nil {
		return engi.Sandbox{}, err
	}
	if repeated {
		return s.Get(ctx, spec.Owner.Viewer(), r.ID)
	}
	return r.Sandbox, nil
}

// create books and creates a sandbox.
func (s *sandboxes) create(ctx context.Context, c *creation, spec engi.SandboxSpec, began time.Time) (_ SandboxRecord, err error) {
	if c.booking, err = s.book(ctx, &booking{owner: spec.Owner, size: c.rec.Size}); err != nil {
		return SandboxRecord{}, err
	}
	defer s.unbook(c.booking)
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if c.fromPool() {
		sb, err := s.createFromPool(ctx, c)
		if err != nil || sb != nil {
			return s.created(sb, "warm", began, err)
		}
	}
	sb, err := s.createFresh(ctx, c, cmp.Or(spec.ID, engi.NewSandboxID()))
	how := "cold"
	if spec.Snapshot != "" {
		how = "snapshot"
	}
	return s.created(sb, how, began, err)
}

// created unlocks a new sandbox and counts it in the metrics, unless its creation failed with
// err.
func (s *sandboxes) created(sb *sandbox, how string, began time.Time, err error) (SandboxRecord, error) {
	if err != nil {
		return SandboxRecord{}, err
	}
	s.metrics.created.WithLabelValues(how).Observe(time.Since(began).Seconds())
	sb.unlock()
	s.deadlineChanged()
	return sb.record(), nil
}

// createFromPool creates a sandbox on a warm instance. It returns a locked sandbox,
// or nil if there is no warm instance.
func (s *sandboxes) createFromPool(ctx context.Context, c *creation) (*sandbox, error) {
	if s.pools.mayKeep(c.key) {
		s.pools.sched.Ensure(c.key, pool.Config{Demand: true, Target: s.opt.Spare}, c.template.Digest, time.Now())
	}
	for range 3 { // a claimed instance may have just died
		inst, ok := s.pools.claim(c.key)
		if !ok {
			return nil, nil
		}
		sb, err := s.createOn(ctx, c, inst)
		if err == nil {
			return sb, nil
		}
		if !engi.Is(err, engi.Unavailable) || ctx.Err() != nil {
			return nil, err
		}
		s.log.Warn("warm sandbox is of no use", "sandbox", inst.rec.ID, "error", err)
	}
	return nil, nil
}

// createOn creates a sandbox on a claimed instance. The instance's record
// becomes the record of the sandbox before the owner's environment is sent to the guest, so that no
// crash can return the instance to its pool. The sandbox is returned
// locked.
func (s *sandboxes) createOn(ctx context.Context, c *creation, inst *instance) (_ *sandbox, err error) {
	var u undo.Stack
	defer u.Run()
	u.Add(func() { s.pools.discard(inst) })
	t := c.template
	if have := inst.record().Digest; have != t.Digest {
		if t, err = s.catalog.get(ctx, have); err != nil {
			return nil, err
		}
	}
	_, unpin, err := s.opt.Templates.Use(ctx, t.Digest)
	if err != nil {
		return nil, err
	}
	u.Add(unpin)
	old, err := inst.setState(engi.Running, nil)
	if err != nil {
		return nil, err
	}
	rec := c.rec
	rec.ID, rec.Digest, rec.Pool, rec.Token = old.ID, old.Digest, old.Pool, old.Token
	rec.Fixed, rec.State = old.Fixed, engi.Running
	startClock(&rec, 0)
	rec.Created, rec.Active = rec.Started, rec.Started
	sb := newSandbox(rec, unpin)
	sb.booking = c.booking
	u.Add(sb.abandon)
	sb.setInstance(inst)
	s.pools.weigh(inst, ordinaryWeight)
	s.insert(sb)
	u.Add(func() { s.remove(sb) })
	if err := s.store(ctx, c.booking, func() error { return s.opt.Store.PutSandbox(ctx, rec) }); err != nil {
		return nil, err
	}
	u.Add(func() {
		s.setStored(c.booking, false)
		s.forgetRecord(sb.id)
	})
	if rec.Size.VCPUs != old.Size.VCPUs || rec.Size.Memory != old.Size.Memory {
		switch err := provider.Resize(ctx, inst.machine, rec.Size); {
		case engi.Is(err, engi.Unsupported):
			if _, err := s.edit(ctx, sb, func(r *SandboxRecord) error { r.Size = old.Size; return nil }); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		}
	}
	network, err := s.openNetwork(ctx, rec.ID, rec.Owner, rec.Network)
	if err != nil {
		return nil, err
	}
	if err := inst.guest.Setup(ctx, setupOf(t, sb.record(), network)); err != nil {
		return nil, err
	}
	u.Keep()
	return sb, nil
}

// forgetRecord deletes the record of a sandbox whose creation failed.
func (s *sandboxes) forgetRecord(id engi.SandboxID) {
	ctx, cancel := s.cleanup()
	defer cancel()
	if err := s.opt.Store.ForgetSandbox(ctx, id); err != nil {
		s.log.Error("delete the record of a sandbox that could not be created", "sandbox", id, "error", err)
	}
}

// setupOf returns the setup of a guest: environment, user, directories, limits and network.
func setupOf(t engi.Template, rec SandboxRecord, network *wire.NetworkSetup) wire.Setup {
	env := merge(t.Env, rec.Env)
	env["ENGI_SANDBOX_ID"] = string(rec.ID)
	return wire.Setup{
		Env:       env,
		User:      t.User,
		UID:       t.UID,
		GID:       t.GID,
		Home:      t.Home,
		WorkDir:   cmp.Or(t.WorkDir, workDir),
		Shell:     t.Shell,
		Processes: rec.Size.Processes,
		OpenFiles: rec.Size.OpenFiles,
		Kernels:   len(t.Kernels) > 0,
		Network:   network,
	}
}

// merge returns the union of two environments; b wins.
func merge(a, b map[string]string) map[string]string {
	all := make(map[string]string, len(a)+len(b))
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// createFresh creates a sandbox on an instance that it boots. The sandbox is
// returned locked.
func (s *sandboxes) createFresh(ctx context.Context, c *creation, id engi.SandboxID) (_ *sandbox, err error) {
	defer engi.Annotate(&err, "create sandbox %s", id)
	var u undo.Stack
	defer u.Run()
	_, unpin, err := s.opt.Templates.Use(ctx, c.rec.Digest)
	if err != nil {
		return nil, err
	}
	u.Add(unpin)
	rec := c.rec
	rec.ID = id
	rec.Created = time.Now().UTC()
	rec.Active = rec.Created
	rec.Token = newToken()
	want := rec.Size
	if c.image != "" {
		rec.Size = c.imageSize
	}
	sb := newSandbox(rec, unpin)
	sb.booking = c.booking
	u.Add(sb.abandon)
	s.insert(sb)
	u.Add(func() { s.remove(sb) })
	if len(rec.Volumes) > 0 {
		u.Add(func() { s.unmount(id) })
	}
	inst, err := s.bootInstance(ctx, sb, rec, c.template, c.image, c.disk)
	if err != nil {
		return nil, err
	}
	u.Add(func() { s.destroyInstance(sb) })
	if rec.Size != want {
		switch err := provider.Resize(ctx, inst.machine, want); {
		case err == nil:
			rec.Size = want
		case !engi.Is(err, engi.Unsupported):
			return nil, err
		}
	}
	err = s.store(ctx, c.booking, func() error {
		_, err := s.setState(ctx, sb, engi.Running, func(r *SandboxRecord) {
			r.Size = rec.Size
			startClock(r, c.timeout)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	u.Keep()
	s.metrics.boots.Observe(inst.bootTime.Seconds())
	return sb, nil
}

// unmount releases the volumes of a sandbox whose creation failed.
func (s *sandboxes) unmount(id engi.SandboxID) {
	ctx, cancel := s.cleanup()
	defer cancel()
	if err := s.opt.Volumes.Unmount(ctx, id); err != nil {
		s.log.Error("release volumes; trying again later", "sandbox", id, "error", err)
	}
}

// bootInstance boots an instance for a sandbox, or restores one from image, and
// gives it to the sandbox. It does not touch the store.
func (s *sandboxes) bootInstance(ctx context.Context, sb *sandbox, rec SandboxRecord, t engi.Template, image, disk string) (_ *instance, err error) {
	began := time.Now()
	var u undo.Stack
	defer u.Run()
	if err := s.pools.sched.Reserve(began); err != nil {
		return nil, err
	}
	u.Add(s.pools.sched.Unreserve)
	mounts, err := s.mounts(ctx, rec, t)
	if err != nil {
		return nil, err
	}
	netns, err := s.attach(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	u.Add(func() { s.detach(rec.ID) })
	spec := provider.Spec{
		ID:       rec.ID,
		Netns:    netns,
		Root:     t.Root,
		Size:     rec.Size,
		Hostname: hostname,
		Token:    rec.Token,
		Mounts:   mounts,
		Disk:     disk,
		Weight:   freshWeight, // a caller is waiting
	}
	var machine provider.Machine
	if image != "" {
		machine, err = provider.Restore(ctx, s.providerOf(rec.Tier), spec, image)
	} else {
		machine, err = s.providerOf(rec.Tier).Start(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	u.Add(func() {
		if err := machine.Close(); err != nil {
			s.log.Error("destroy half-booted sandbox", "sandbox", rec.ID, "error", err)
		}
	})
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return nil, err
	}
	u.Add(func() { g.Close() })
	network, err := s.openNetwork(ctx, rec.ID, rec.Owner, rec.Network)
	if err != nil {
		return nil, err
	}
	if err := g.Setup(ctx, setupOf(t, rec, network)); err != nil {
		return nil, err
	}
	if image == "" {
		if err := startServices(ctx, g, t, false); err != nil {
			return nil, err
		}
	}
	u.Keep()
	inst := newInstance(rec, machine, g)
	inst.bootTime = time.Since(began)
	s.pools.weigh(inst, ordinaryWeight)
	sb.setInstance(inst)
	s.pools.sched.AddUsed(inst.key, s.pools.configFor(inst.key), rec.Digest, time.Now())
	s.pools.add(inst)
	return inst, nil
}

// mounts returns the mounts of a sandbox besides its root: those of its template,
// and its volumes. The sandbox becomes the holder of the volumes.
func (s *sandboxes) mounts(ctx context.Context, rec SandboxRecord, t engi.Template) ([]provider.Mount, error) {
	all := mountsOf(t)
	for _, v := range rec.Volumes {
		if s.opt.Volumes == nil {
			return nil, errNoVolumes
		}
		_, source, err := s.opt.Volumes.Mount(ctx, rec.Owner.Reach(), v.Volume, rec.ID)
		if err != nil {
			return nil, err
		}
		all = append(all, provider.Mount{Source: source, Target: v.Path, Writable: true})
	}
	return all, nil
}
