package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/provider"
)

const (
	bootTimeout = 30 * time.Second
	// workDir is where programs go when a template does not say.
	workDir = "/workspace"
	// hostname is that of every sandbox: programs learn nothing from it.
	hostname = "sandbox"
)

// A member is one live sandbox: its record, its machine and the way in.
type instance struct {
	key     pool.Key
	machine provider.Machine
	guest   *guest.Client
	unpin   func()        // lets go of the template
	born    time.Duration // how long its boot took
	gone    chan struct{} // closed when nothing is left of it
	once    sync.Once     // of dismiss

	mu      sync.Mutex
	rec     SandboxRecord // guarded by mu; of a box's machine, that of the box counts
	run     *run          // that uses it; guarded by mu
	box     *sandbox      // that lives in it; guarded by mu
	unwired bool          // the guest has not been told of its network; guarded by mu
}

// tenant returns the box that lives in the member, nil if none does.
func (b *instance) tenant() *sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.box
}

// way returns the way in, nil while there is none. Only that of a box's
// machine ever changes; others read guest.
func (b *instance) way() *guest.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.guest
}

func (b *instance) setWay(g *guest.Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guest = g
}

// closeGuest closes the way in, if there is one.
func (b *instance) closeGuest() {
	if g := b.way(); g != nil {
		g.Close()
	}
}

// record returns the record as it is now.
func (b *instance) record() SandboxRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec
}

// move changes the state, and more of the record if edit is not nil. It
// reports Conflict if the state cannot follow the present one.
func (b *instance) move(to engi.State, edit func(*SandboxRecord)) (SandboxRecord, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state, err := b.rec.State.To(to)
	if err != nil {
		return b.rec, err
	}
	b.rec.State = state
	if edit != nil {
		edit(&b.rec)
	}
	return b.rec, nil
}

// An undo remembers how to take back what a half-built thing has done. It
// belongs to one goroutine.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

// keep declares success: nothing will be taken back.
func (u *undo) keep() { *u = nil }

// run takes everything back, newest first. Defer it at once.
func (u *undo) run() {
	for len(*u) > 0 {
		last := len(*u) - 1
		f := (*u)[last]
		*u = (*u)[:last]
		f()
	}
}

// boot makes a ready member for a pool, or leaves nothing behind.
func (m *Manager) boot(ctx context.Context, key pool.Key) (_ *instance, err error) {
	began := time.Now()
	patient := ctx
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	var u undo
	defer u.run()

	t, unpin, err := m.opt.Templates.Use(ctx, key.Template)
	if err != nil {
		return nil, err
	}
	u.add(unpin)
	id := engi.NewSandboxID()
	defer engi.Annotate(&err, "boot %s", id)
	m.expect(id)
	u.add(func() { m.unexpect(id) })

	size := key.Size.Or(m.size(t))
	rec := SandboxRecord{
		Sandbox: engi.Sandbox{
			ID:       id,
			Template: key.Template,
			Digest:   t.Digest,
			Pool:     key.String(),
			Tier:     key.Tier,
			Size:     size,
			State:    engi.Starting,
			Created:  time.Now().UTC(),
		},
		Token:    rand.Text() + rand.Text(),
		Language: key.Language,
		Fixed:    key.Size,
	}
	netns, err := m.attach(ctx, id)
	if err != nil {
		return nil, err
	}
	u.add(func() { m.detach(id) })
	machine, err := m.providerOf(key.Tier).Start(ctx, provider.Spec{
		ID:       id,
		Netns:    netns,
		Root:     t.Root,
		Size:     size,
		Hostname: hostname,
		Token:    rec.Token,
		Mounts:   mountsOf(t),
	})
	if err != nil {
		return nil, err
	}
	u.add(func() {
		if err := machine.Close(); err != nil {
			m.log.Error("destroy half-booted sandbox", "sandbox", id, "error", err)
		}
	})
	g, err := m.enter(ctx, machine, rec.Token)
	if err != nil {
		return nil, err
	}
	u.add(func() { g.Close() })
	if err := furnish(ctx, g, t, size, key.Language); err != nil {
		return nil, err
	}
	if err := launchServices(patient, g, t, key.Language == ""); err != nil {
		return nil, err
	}
	b := &instance{key: key, machine: machine, guest: g, unpin: unpin, gone: make(chan struct{}), rec: rec}
	ready, err := b.move(engi.Ready, nil)
	if err != nil {
		return nil, err
	}
	if err := m.opt.Store.PutSandbox(patient, ready); err != nil {
		return nil, err
	}
	b.born = time.Since(began)
	m.admit(b)
	u.keep()
	return b, nil
}

// enter opens the guest of a machine.
func (m *Manager) enter(ctx context.Context, machine provider.Machine, token string) (*guest.Client, error) {
	return guest.Open(ctx, machine.Guest, token)
}

// furnish makes a booted guest ready for a program: it knows its user, has
// the interpreter waiting, and has answered once, so that nobody waits for
// its first page faults.
func furnish(ctx context.Context, g *guest.Client, t engi.Template, size engi.Size, lang engi.Language) error {
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

// expect says that a machine called id may exist from now on.
func (m *Manager) expect(id engi.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expected[id] = true
}

// unexpect says that nothing of id is left, or that what is left is for the
// reconciler.
func (m *Manager) unexpect(id engi.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.expected, id)
}

// admit makes a live member known and watches over it.
func (m *Manager) admit(b *instance) {
	m.mu.Lock()
	m.members[b.rec.ID] = b
	m.expected[b.rec.ID] = true
	m.mu.Unlock()
	m.work.Go(func() {
		select {
		case <-b.machine.Done():
			if x := b.tenant(); x != nil {
				m.bodyDied(x, b)
				return
			}
			if m.stock.Discard(b.key, b, time.Now()) {
				m.metrics.lost.Inc()
				m.log.Warn("warm sandbox died", "sandbox", b.rec.ID, "pool", b.key.String(), "cause", b.machine.End())
			}
		case <-b.gone:
		case <-m.life.Done():
		}
	})
}

// destroy ends a member and forgets it; what it cannot remove now it leaves
// to the reconciler.
func (m *Manager) destroy(b *instance) {
	// The record of a member nobody used ends with it; that of a used one
	// tells how it ended. A box may outlast its machine: it keeps its own.
	rec := b.record()
	if b.tenant() == nil {
		if to, err := b.move(engi.Stopping, nil); err == nil { // else it was stopping before
			rec = to
		}
	}
	b.closeGuest()
	err := b.machine.Close()
	if err != nil {
		m.log.Error("destroy sandbox", "sandbox", rec.ID, "error", err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 10*time.Second)
		err = m.providerOf(b.key.Tier).Remove(ctx, rec.ID)
		cancel()
		if err != nil {
			m.log.Error("remove sandbox; trying again later", "sandbox", rec.ID, "error", err)
		}
	}
	m.detach(rec.ID)
	b.unpin()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), 10*time.Second)
	defer cancel()
	if err == nil && b.tenant() == nil {
		m.forgetRecord(ctx, b)
	}
	m.metrics.teardowns.Inc()
	m.mu.Lock()
	delete(m.members, rec.ID)
	delete(m.expected, rec.ID)
	m.mu.Unlock()
	close(b.gone)
}

// forgetRecord writes the last of a member: its end if it was used, nothing
// otherwise.
func (m *Manager) forgetRecord(ctx context.Context, b *instance) {
	rec, err := b.move(engi.Stopped, func(r *SandboxRecord) {
		r.Stopped = time.Now().UTC()
		r.Token = ""
		if r.End == "" {
			r.End = b.machine.End()
		}
	})
	if err == nil {
		if rec.Execution == "" {
			err = m.opt.Store.ForgetSandbox(ctx, rec.ID)
		} else {
			err = m.opt.Store.PutSandbox(ctx, rec)
		}
	}
	if err != nil {
		m.log.Error("record end of sandbox", "sandbox", rec.ID, "error", err)
	}
}

// mountsOf returns what t shows beside its root, as providers take it.
func mountsOf(t engi.Template) (all []provider.Mount) {
	for _, m := range t.Mounts {
		all = append(all, provider.Mount{Source: m.Source, Target: m.Target})
	}
	return all
}
