package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/provider"
)

func validText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// createTime bounds the making of a sandbox, whatever its caller's patience.
const createTime = 2 * time.Minute

// A design is a sandbox that is to be made: its record without an ID, and what
// it is made from.
type design struct {
	rec      SandboxRecord
	template engi.Template
	key      pool.Key
	image    string    // directory to restore from; empty for none
	was      engi.Size // of what image is of
	disk     string    // directory of a saved disk to begin with; empty for none
	booking  *booking
	timeout  time.Duration // to the first deadline; 0 means that of the record's lifetime
	release  func()        // lets go of template and snapshot
}

// plain reports whether any member of the pool will do.
func (d *design) plain() bool { return d.image == "" && d.disk == "" && len(d.rec.Volumes) == 0 }

// design checks spec and fills in what it leaves open.
func (m *Manager) design(ctx context.Context, spec engi.SandboxSpec) (_ *design, err error) {
	var u undo
	defer u.run()
	if spec.Template != "" && spec.Snapshot != "" {
		return nil, engi.Errorf(engi.Invalid, "a sandbox begins from a template or from a snapshot, not both")
	}
	for _, check := range []func() error{
		func() error { return checkMetadata(spec.Metadata) },
		func() error { return checkNotes(spec.Notes) },
		func() error { return m.checkNetwork(spec.Network) },
		func() error { return checkPorts(spec.Ports) },
		func() error { return checkVolumes(spec.Volumes) },
		func() error { _, err := checkStrings(nil, spec.Env); return err },
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if len(spec.Idempotency) > maxKey {
		return nil, engi.Errorf(engi.Invalid, "idempotency key has %d bytes, %d at most", len(spec.Idempotency), maxKey)
	}
	if len(spec.Volumes) > 0 && m.opt.Volumes == nil {
		return nil, engi.Errorf(engi.Unsupported, "this node has no volumes")
	}
	life, err := m.checkLifetime(spec.Lifetime)
	if err != nil {
		return nil, err
	}
	d := &design{rec: SandboxRecord{
		Sandbox: engi.Sandbox{
			Owner:    spec.Owner,
			State:    engi.Starting,
			Lifetime: life,
			Snapshot: spec.Snapshot,
			Metadata: spec.Metadata,
			Env:      spec.Env,
			Volumes:  spec.Volumes,
			Network:  spec.Network,
			Ports:    spec.Ports,
			Notes:    spec.Notes,
		},
		Made:        true,
		Idempotency: spec.Idempotency,
	}}
	if spec.Idempotency != "" {
		d.rec.Fingerprint = specPrint(spec)
	}
	name := cmp.Or(spec.Template, m.opt.Template)
	if spec.Snapshot != "" {
		snap, dir, release, err := m.useSnapshot(ctx, spec.Owner, string(spec.Snapshot))
		if err != nil {
			return nil, err
		}
		u.add(release)
		name = snap.Digest
		d.rec.Template = snap.Template
		d.rec.Env = merge(snap.Env, spec.Env)
		d.rec.Tier, d.was = snap.Tier, snap.Size
		if d.image = dir; snap.Disk {
			d.image, d.disk = "", dir
		}
		if d.image != "" && len(spec.Volumes) > 0 {
			return nil, engi.Errorf(engi.Unsupported, "a sandbox that begins with the memory of another cannot have volumes").
				WithRemedy("make a snapshot of the disk only")
		}
		spec.Size = spec.Size.Or(snap.Size)
		if d.image != "" && fixed(spec.Size) != fixed(snap.Size) {
			return nil, engi.Errorf(engi.Invalid, "a sandbox that begins with the memory of another has its disk, inodes, processes and open files too").
				WithRemedy("ask for other processors or memory only, or make a snapshot of the disk only")
		}
	} else {
		d.rec.Template = name
		if d.rec.Tier, err = m.chooseTier(spec.MinTier); err != nil {
			return nil, err
		}
	}
	if d.template, err = m.catalog.get(ctx, name); err == nil && d.template.Partial {
		// It would lack the rest for as long as it lives.
		err = m.incomplete(d.template)
	}
	if err != nil {
		return nil, err
	}
	d.rec.Digest = d.template.Digest
	if d.rec.Size, err = m.checkSize(spec.Size, m.size(d.template)); err != nil {
		return nil, err
	}
	d.key = pool.Key{Tier: d.rec.Tier, Template: d.rec.Template}
	if fixed(d.rec.Size) != fixed(m.size(d.template)) {
		d.key.Size = fixed(d.rec.Size)
	}
	d.rec.Fixed = d.key.Size
	release := u
	u.keep()
	d.release = func() { release.run() }
	return d, nil
}

func (m *Manager) useSnapshot(ctx context.Context, owner engi.Owner, id string) (engi.Snapshot, string, func(), error) {
	if m.opt.Snapshots == nil {
		return engi.Snapshot{}, "", nil, errNoSnapshots
	}
	return m.opt.Snapshots.Use(ctx, owner, id)
}

var errNoSnapshots = engi.Errorf(engi.Unsupported, "this node has no snapshots")

// specPrint tells requests apart: equal specs have equal ones.
func specPrint(spec engi.SandboxSpec) string {
	h := sha256.New()
	// Encoding to a hash cannot fail unless Network.Detail is no JSON value;
	// then the store refuses the record.
	_ = json.NewEncoder(h).Encode(spec)
	return hex.EncodeToString(h.Sum(nil))
}

// create makes a sandbox, or leaves nothing behind.
func (m *Manager) create(ctx context.Context, spec engi.SandboxSpec) (_ engi.Sandbox, err error) {
	began := time.Now()
	m.mu.Lock()
	serving := m.serving
	m.mu.Unlock()
	if !serving {
		return engi.Sandbox{}, errNotServing
	}
	d, err := m.design(ctx, spec)
	if err != nil {
		return engi.Sandbox{}, err
	}
	defer d.release()
	if spec.Idempotency != "" {
		over, err := m.alone(ctx, spec.Owner, spec.Idempotency)
		if err != nil {
			return engi.Sandbox{}, err
		}
		defer over()
		older, err := m.opt.Store.RepeatedSandbox(ctx, spec.Owner, spec.Idempotency)
		switch {
		case err == nil && older.Fingerprint != d.rec.Fingerprint:
			return engi.Sandbox{}, engi.Errorf(engi.Conflict, "idempotency key was used before for another request, sandbox %s", older.ID).
				WithRemedy("use a fresh key for each request, and the same key only to repeat one")
		case err == nil:
			return sandboxes{m}.Get(ctx, spec.Owner, older.ID)
		case engi.KindOf(err) != engi.NotFound:
			return engi.Sandbox{}, err
		}
	}
	if d.booking, err = m.book(ctx, spec.Owner, d.rec.Size); err != nil {
		return engi.Sandbox{}, err
	}
	defer m.unbook(d.booking)
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	if d.plain() {
		x, err := m.createWarm(ctx, d)
		if err != nil || x != nil {
			return m.created(x, "warm", began, err)
		}
	}
	x, err := m.createCold(ctx, d, engi.NewSandboxID())
	how := "cold"
	if spec.Snapshot != "" {
		how = "snapshot"
	}
	return m.created(x, how, began, err)
}

// created gives a new box away.
func (m *Manager) created(x *sandbox, how string, began time.Time, err error) (engi.Sandbox, error) {
	if err != nil {
		return engi.Sandbox{}, err
	}
	m.metrics.created.WithLabelValues(how).Observe(time.Since(began).Seconds())
	x.leave()
	m.stirTime()
	return x.record().Sandbox, nil
}

// alone waits until nobody else creates a sandbox with the same key.
func (m *Manager) alone(ctx context.Context, owner engi.Owner, key string) (over func(), err error) {
	type ownKey = [2]string
	k := ownKey{string(owner), key}
	for {
		m.mu.Lock()
		busy := m.creating[k]
		if busy == nil {
			mine := make(chan struct{})
			m.creating[k] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.creating, k)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, engi.Errorf(engi.Expired, "create sandbox: %v", context.Cause(ctx))
		}
	}
}

// createWarm makes a sandbox of a member that waits in the pool; nil if there
// is none. The box is returned with its turn taken.
func (m *Manager) createWarm(ctx context.Context, d *design) (*sandbox, error) {
	if d.key.Size == (engi.Size{}) && (m.stock.Keeps(d.key) || m.stock.DemandPools() < maxDemandPools) {
		m.stock.Ensure(d.key, pool.Config{Demand: true, Target: m.opt.Spare}, d.template.Digest, time.Now())
	}
	for range 3 { // members may have died a moment ago
		b, ok := m.take(d.key)
		if !ok {
			return nil, nil
		}
		x, err := m.occupy(ctx, d, b)
		if err == nil {
			return x, nil
		}
		if engi.KindOf(err) != engi.Unavailable || ctx.Err() != nil {
			return nil, err
		}
		m.log.Warn("warm sandbox is of no use", "sandbox", b.rec.ID, "error", err)
	}
	return nil, nil
}

// occupy makes a member the machine of a new box. The member's record becomes
// the box's before its owner's environment goes in: no crash can bring that
// back to the pool.
func (m *Manager) occupy(ctx context.Context, d *design, b *instance) (_ *sandbox, err error) {
	var u undo
	defer u.run()
	u.add(func() { m.dismiss(b) })
	t := d.template
	if have := b.record().Digest; have != t.Digest {
		if t, err = m.catalog.get(ctx, have); err != nil {
			return nil, err
		}
	}
	_, unpin, err := m.opt.Templates.Use(ctx, t.Digest)
	if err != nil {
		return nil, err
	}
	u.add(unpin)
	now := time.Now().UTC()
	rec, err := b.move(engi.Running, nil)
	if err != nil {
		return nil, err
	}
	was := rec.Size
	made := d.rec
	made.ID, made.Digest, made.Pool, made.Token = rec.ID, rec.Digest, rec.Pool, rec.Token
	made.Fixed, made.State, made.Created, made.Active = rec.Fixed, engi.Running, now, now
	wake(&made, now, 0)
	x := newBox(made, unpin)
	x.booking = d.booking
	x.turn <- struct{}{}
	u.add(x.abort)
	x.embody(b)
	m.know(x)
	u.add(func() { m.unknow(x) })
	if err := m.opt.Store.PutSandbox(ctx, made); err != nil {
		return nil, err
	}
	u.add(func() { m.unrecord(x.id) })
	if made.Size.VCPUs != was.VCPUs || made.Size.Memory != was.Memory {
		switch err := provider.Resize(ctx, b.machine, made.Size); {
		case engi.KindOf(err) == engi.Unsupported && err != nil:
			if _, err := m.edit(ctx, x, func(r *SandboxRecord) error { r.Size = was; return nil }); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		}
	}
	wiring, err := m.openWall(ctx, made.ID, made.Owner, made.Network)
	if err != nil {
		return nil, err
	}
	if err := b.guest.Setup(ctx, setupOf(t, x.record(), wiring)); err != nil {
		return nil, err
	}
	u.keep()
	return x, nil
}

// unrecord takes back the record of a sandbox whose making failed.
func (m *Manager) unrecord(id engi.SandboxID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 10*time.Second)
	defer cancel()
	if err := m.opt.Store.ForgetSandbox(ctx, id); err != nil {
		m.log.Error("forget sandbox that was not made", "sandbox", id, "error", err)
	}
}

// setupOf says who programs in a sandbox run as, with what.
func setupOf(t engi.Template, rec SandboxRecord, wiring *wire.NetworkSetup) wire.Setup {
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
		Wiring:    wiring,
	}
}

// createCold makes a sandbox in a machine of its own. The box is returned
// with its turn taken.
func (m *Manager) createCold(ctx context.Context, d *design, id engi.SandboxID) (_ *sandbox, err error) {
	defer engi.Annotate(&err, "create sandbox %s", id)
	var u undo
	defer u.run()
	_, unpin, err := m.opt.Templates.Use(ctx, d.rec.Digest)
	if err != nil {
		return nil, err
	}
	u.add(unpin)
	rec := d.rec
	rec.ID = id
	rec.Created = time.Now().UTC()
	rec.Active = rec.Created
	rec.Token = newToken()
	want := rec.Size
	if d.image != "" {
		rec.Size = d.was
	}
	x := newBox(rec, unpin)
	x.booking = d.booking
	x.turn <- struct{}{}
	u.add(x.abort)
	m.know(x)
	u.add(func() { m.unknow(x) })
	if len(rec.Volumes) > 0 {
		u.add(func() { m.unmount(id) })
	}
	b, err := m.power(ctx, x, rec, d.template, d.image, d.disk)
	if err != nil {
		return nil, err
	}
	u.add(func() { m.disembody(x) })
	if rec.Size != want {
		switch err := provider.Resize(ctx, b.machine, want); {
		case err == nil:
			rec.Size = want
		case engi.KindOf(err) != engi.Unsupported:
			return nil, err
		}
	}
	_, err = m.step(ctx, x, engi.Running, func(r *SandboxRecord) {
		r.Size = rec.Size
		wake(r, time.Now().UTC(), d.timeout)
	})
	if err != nil {
		return nil, err
	}
	u.keep()
	m.metrics.boots.Observe(b.born.Seconds())
	return x, nil
}

func newToken() string { return rand.Text() + rand.Text() }

// unmount lets go of the volumes of a sandbox that was not made.
func (m *Manager) unmount(id engi.SandboxID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 10*time.Second)
	defer cancel()
	if err := m.opt.Volumes.Unmount(ctx, id); err != nil {
		m.log.Error("let go of volumes; trying again later", "sandbox", id, "error", err)
	}
}

// power boots or restores a machine for a box, which it embodies. Nobody has
// recorded that yet; it is in the books as a member in use.
func (m *Manager) power(ctx context.Context, x *sandbox, rec SandboxRecord, t engi.Template, image, disk string) (_ *instance, err error) {
	began := time.Now()
	var u undo
	defer u.run()
	if err := m.stock.Reserve(began); err != nil {
		return nil, err
	}
	u.add(m.stock.Unreserve)
	mounts, err := m.mounts(ctx, rec, t)
	if err != nil {
		return nil, err
	}
	netns, err := m.attach(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	u.add(func() { m.detach(rec.ID) })
	spec := provider.Spec{
		ID:       rec.ID,
		Netns:    netns,
		Root:     t.Root,
		Size:     rec.Size,
		Hostname: hostname,
		Token:    rec.Token,
		Mounts:   mounts,
		Disk:     disk,
	}
	var machine provider.Machine
	if image != "" {
		machine, err = provider.Restore(ctx, m.providerOf(rec.Tier), spec, image)
	} else {
		machine, err = m.providerOf(rec.Tier).Start(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	u.add(func() {
		if err := machine.Close(); err != nil {
			m.log.Error("destroy half-made sandbox", "sandbox", rec.ID, "error", err)
		}
	})
	g, err := guest.Open(ctx, machine.Guest, rec.Token)
	if err != nil {
		return nil, err
	}
	u.add(func() { g.Close() })
	wiring, err := m.openWall(ctx, rec.ID, rec.Owner, rec.Network)
	if err != nil {
		return nil, err
	}
	if err := g.Setup(ctx, setupOf(t, rec, wiring)); err != nil {
		return nil, err
	}
	if image == "" {
		if err := launchServices(ctx, g, t, false); err != nil {
			return nil, err
		}
	}
	u.keep()
	b := &instance{
		key:     pool.Key{Tier: rec.Tier, Template: rec.Template, Language: rec.Language, Size: rec.Fixed},
		machine: machine,
		guest:   g,
		unpin:   func() {}, // the box has the template
		born:    time.Since(began),
		gone:    make(chan struct{}),
		rec:     rec,
	}
	x.embody(b)
	m.stock.Enroll(b.key, m.poolFor(b.key), rec.Digest, time.Now())
	m.admit(b)
	return b, nil
}

// poolFor is how key's pool is or, if there is none, shall be for the sake of a
// member in use.
func (m *Manager) poolFor(key pool.Key) pool.Config {
	if cfg, ok := m.stock.Config(key); ok {
		return cfg
	}
	return pool.Config{Demand: true}
}

// mounts returns what a sandbox sees beside its root: what its template shows
// and its volumes, of which it becomes the holder.
func (m *Manager) mounts(ctx context.Context, rec SandboxRecord, t engi.Template) ([]provider.Mount, error) {
	all := mountsOf(t)
	for _, v := range rec.Volumes {
		if m.opt.Volumes == nil {
			return nil, engi.Errorf(engi.Unsupported, "this node has no volumes")
		}
		_, source, err := m.opt.Volumes.Mount(ctx, rec.Owner, v.Volume, rec.ID)
		if err != nil {
			return nil, err
		}
		all = append(all, provider.Mount{Source: source, Target: v.Path, Writable: true})
	}
	return all, nil
}
