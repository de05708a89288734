// Package terminal manages terminals: programs with a screen in sessions and sandboxes,
// to which clients can attach. It knows the permissions and viewers of each terminal, its
// screen, and its links.
//
// The guest has the program, the numbers of its input, and the last part of its
// output with offsets. So a terminal without viewers
// costs nothing here, and survives this process and hibernation. The store has
// the list of terminals and links.
//
// The protocol of clients is in internal/server/guesthttp and docs/terminals.md.
package terminal

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// Limits.
const (
	MaxPerPlace   = 256 // maximum number of terminals of a session or sandbox
	MaxPerOwner   = 1024
	MaxViewers    = 64 // maximum number per terminal
	MaxLinks      = 32 // maximum number per terminal
	MaxCols       = 512
	MaxRows       = 256
	MaxScrollback = 16 << 20 // maximum bytes of output kept

	// LongestLink is the maximum time for which a link may be valid.
	LongestLink = 30 * 24 * time.Hour
)

// A Spec describes a new terminal. Zero fields mean the template's shell in its working
// directory, 80 by 24.
type Spec struct {
	Args       []string
	Dir        string
	Env        map[string]string
	User       string
	Size       engi.TerminalSize
	Scrollback int64 // bytes of output kept; 0 means the guest's default
}

// A Store keeps terminals and links durably. Look-ups return only the terminals that viewer sees.
type Store interface {
	// Put adds a terminal. It stores only the first of the terminal's arguments.
	Put(ctx context.Context, t engi.TerminalInfo) error
	// Find returns a terminal, or reports NotFound.
	Find(ctx context.Context, viewer engi.Viewer, id engi.TerminalID) (engi.TerminalInfo, error)
	// List returns terminals, newest first: those of a session, otherwise those of a
	// sandbox, otherwise all.
	List(ctx context.Context, viewer engi.Viewer, session engi.SessionID, sandbox engi.SandboxID) ([]engi.TerminalInfo, error)
	// Remove removes a terminal with its links; it returns no error if the terminal does not exist.
	Remove(ctx context.Context, id engi.TerminalID, reason string) error

	// PutLink adds a link. FindLink finds it by the hash of its secret.
	PutLink(ctx context.Context, l engi.TerminalLink, hash []byte) error
	// FindLink returns the link with a hash, or reports NotFound.
	FindLink(ctx context.Context, hash []byte) (engi.TerminalLink, error)
	// Links returns the links of a terminal, newest first.
	Links(ctx context.Context, id engi.TerminalID) ([]engi.TerminalLink, error)
	// RemoveLink removes a link, or reports NotFound.
	RemoveLink(ctx context.Context, terminal engi.TerminalID, id engi.TerminalLinkID) error
}

// Options configures a Manager. Log may be nil.
type Options struct {
	Places    place.Resolver
	Templates engi.Templates
	Store     Store
	Log       *slog.Logger
}

// A Manager manages terminals. Its methods only see the terminals of owner; an empty
// owner sees all terminals. It is safe for concurrent use.
type Manager struct {
	o Options

	creating sync.Mutex // held while limits are checked

	mu    sync.Mutex
	rooms map[engi.TerminalID]*hub // hubs of terminals with viewers; guarded by mu

	screens   *engi.KeyedSemaphore[engi.Owner] // limits the computation of screens to one per owner
	emulators chan struct{}                    // full while the maximum number of emulators is in use
}

// New returns a manager.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{o: o, rooms: map[engi.TerminalID]*hub{}, screens: engi.NewKeyedSemaphore[engi.Owner](1), emulators: make(chan struct{}, 2)}
}

// Create starts a terminal. Repeated calls with the same ID start only one.
func (m *Manager) Create(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID, s Spec) (_ engi.TerminalInfo, err error) {
	defer engi.Annotate(&err, "create a terminal in %.140s", p)
	if s.Size.Cols == 0 && s.Size.Rows == 0 {
		s.Size = engi.TerminalSize{Cols: 80, Rows: 24}
	}
	if err := CheckSize(s.Size); err != nil {
		return engi.TerminalInfo{}, err
	}
	if s.Scrollback < 0 || s.Scrollback > MaxScrollback {
		return engi.TerminalInfo{}, engi.Errorf(engi.Invalid, "a terminal cannot keep %d bytes", s.Scrollback).WithRemedy("choose at most %d", MaxScrollback)
	}
	l, err := m.o.Places.Find(ctx, viewer, p)
	if err != nil {
		return engi.TerminalInfo{}, err
	}
	g, release, err := m.o.Places.Enter(ctx, l.Owner.Viewer(), l.Place())
	if err != nil {
		return engi.TerminalInfo{}, err
	}
	defer release()
	if l, err = m.o.Places.Find(ctx, viewer, p); err != nil { // the session may have got its sandbox only now
		return engi.TerminalInfo{}, err
	}
	if l.Sandbox == "" {
		return engi.TerminalInfo{}, engi.Errorf(engi.Unavailable, "its sandbox has just stopped").WithRetry(engi.Retry{AfterMillis: 500})
	}
	t := engi.TerminalInfo{
		ID: id, Owner: l.Owner, Session: l.Session, Sandbox: l.Sandbox, Args: s.Args, Dir: s.Dir, Size: s.Size,
		Created: time.Now().UTC().Truncate(time.Millisecond), Running: true,
	}
	if err := m.shell(ctx, &t, s); err != nil {
		return engi.TerminalInfo{}, err
	}
	if err := m.add(ctx, t); err != nil {
		return engi.TerminalInfo{}, err
	}
	proc, err := g.Start(ctx, engi.Command{ID: string(id), Args: t.Args, Env: s.Env, Dir: t.Dir, User: s.User, Terminal: &s.Size, Output: s.Scrollback})
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if e := m.o.Store.Remove(late, id, "it could not be started"); e != nil {
			m.o.Log.ErrorContext(ctx, "remove a terminal that could not be started", "terminal", id, "error", e)
		}
		return engi.TerminalInfo{}, err
	}
	letGo(proc)
	return t, nil
}

const undoTimeout = 10 * time.Second

// letGo tells a guest that the stream that started p is no longer read.
func letGo(p engi.Process) {
	if r, ok := p.(interface{ Release() }); ok {
		r.Release()
	}
}

// shell sets the shell of the template as the terminal's program.
func (m *Manager) shell(ctx context.Context, t *engi.TerminalInfo, s Spec) error {
	if len(t.Args) > 0 && (t.Dir != "" || s.User != "") {
		return nil
	}
	box, err := m.o.Places.Sandboxes.Get(ctx, engi.Everyone, t.Sandbox)
	if err != nil {
		return err
	}
	template, err := m.o.Templates.Get(ctx, cmp.Or(box.Digest, box.Template))
	if err != nil && !engi.Is(err, engi.NotFound, engi.Unavailable) {
		return err
	}
	if len(t.Args) == 0 {
		t.Args = []string{cmp.Or(template.Shell, "/bin/sh")}
	}
	if t.Dir == "" && s.User == "" {
		t.Dir = template.WorkDir
	}
	return nil
}

// add records a terminal, unless the place has too many.
func (m *Manager) add(ctx context.Context, t engi.TerminalInfo) error {
	m.creating.Lock()
	defer m.creating.Unlock()
	all, err := m.o.Store.List(ctx, t.Owner.Viewer(), "", "")
	if err != nil {
		return err
	}
	if len(all) >= MaxPerOwner {
		if all, err = m.prune(ctx, all); err != nil {
			return err
		}
	}
	here := 0
	for _, x := range all {
		if x.Sandbox == t.Sandbox {
			here++
		}
	}
	switch {
	case len(all) >= MaxPerOwner:
		return engi.Errorf(engi.Exhausted, "there are %d terminals already", len(all)).WithRemedy("end some: an owner may have %d", MaxPerOwner)
	case here >= MaxPerPlace:
		return engi.Errorf(engi.Exhausted, "there are %d terminals in its sandbox already", here).WithRemedy("end some: a sandbox may have %d", MaxPerPlace)
	}
	return m.o.Store.Put(ctx, t)
}

// prune removes terminals whose sandboxes no longer exist, and returns the others.
func (m *Manager) prune(ctx context.Context, all []engi.TerminalInfo) (kept []engi.TerminalInfo, _ error) {
	alive := map[engi.SandboxID]bool{}
	for _, t := range all {
		known, ok := alive[t.Sandbox]
		if !ok {
			s, err := m.o.Places.Sandboxes.Get(ctx, engi.Everyone, t.Sandbox)
			if err != nil && !engi.Is(err, engi.NotFound) {
				return nil, err
			}
			known = err == nil && !place.Found{State: s.State}.Ended()
			alive[t.Sandbox] = known
		}
		if known {
			kept = append(kept, t)
		} else if err := m.o.Store.Remove(ctx, t.ID, "its sandbox has ended"); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// CheckSize reports Invalid for a size that no terminal may have.
func CheckSize(s engi.TerminalSize) error {
	if s.Cols < 1 || s.Rows < 1 || s.Cols > MaxCols || s.Rows > MaxRows {
		return engi.Errorf(engi.Invalid, "a terminal cannot have %d columns and %d rows", s.Cols, s.Rows).
			WithRemedy("use at most %d columns and %d rows", MaxCols, MaxRows)
	}
	return nil
}

// List returns the terminals of a place, newest first. It does not resume sandboxes.
func (m *Manager) List(ctx context.Context, viewer engi.Viewer, p place.Place) (_ []engi.TerminalInfo, err error) {
	defer engi.Annotate(&err, "list terminals of %.140s", p)
	l, err := m.o.Places.Find(ctx, viewer, p)
	if err != nil {
		return nil, err
	}
	all, err := m.o.Store.List(ctx, l.Owner.Viewer(), l.Session, l.Sandbox)
	if err != nil {
		return nil, err
	}
	if all, err = m.prune(ctx, all); err != nil {
		return nil, err
	}
	return m.look(ctx, l, all)
}

// look adds the viewers, and whether the programs are running, if the sandbox is awake.
func (m *Manager) look(ctx context.Context, l place.Found, all []engi.TerminalInfo) ([]engi.TerminalInfo, error) {
	processes := map[string]engi.ProcessInfo{}
	awake := false
	if l.State == engi.Running && len(all) > 0 {
		g, release, err := m.o.Places.Sandboxes.Enter(ctx, l.Owner.Viewer(), l.Sandbox)
		if err != nil {
			return nil, err
		}
		defer release()
		list, err := g.Processes(ctx)
		if err != nil {
			return nil, err
		}
		for _, x := range list {
			processes[x.ID] = x
		}
		awake = true
	}
	for i := range all {
		t := &all[i]
		x, known := processes[string(t.ID)]
		if t.Running = !awake || known && !x.Ended; known {
			t.Args, t.Dir = x.Args, x.Dir
		}
		t.Viewers = m.viewers(t.ID)
	}
	return all, nil
}

// find returns a terminal of a place.
func (m *Manager) find(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID) (engi.TerminalInfo, place.Found, error) {
	l, err := m.o.Places.Find(ctx, viewer, p)
	if err != nil {
		return engi.TerminalInfo{}, l, err
	}
	t, err := m.o.Store.Find(ctx, l.Owner.Viewer(), id)
	if err != nil {
		return t, l, err
	}
	if p.Session != "" && t.Session != l.Session || p.Session == "" && t.Sandbox != l.Sandbox {
		return engi.TerminalInfo{}, l, errNone
	}
	if l.Session != "" && l.Sandbox == "" { // a session that has left the sandbox of its workspace, where its terminals are
		s, err := m.o.Places.Sandboxes.Get(ctx, engi.Everyone, t.Sandbox)
		if engi.Ignore(err, engi.NotFound) != nil {
			return engi.TerminalInfo{}, l, err
		}
		if err == nil {
			l.Sandbox, l.State = s.ID, s.State
		}
	}
	if t.Sandbox != l.Sandbox || l.Ended() {
		if err := m.o.Store.Remove(ctx, id, "its sandbox has ended"); err != nil {
			return engi.TerminalInfo{}, l, err
		}
		return engi.TerminalInfo{}, l, engi.Errorf(engi.NotFound, "terminal %s has ended with its sandbox", id).WithRemedy("create a new one")
	}
	return t, l, nil
}

var errNone = engi.Errorf(engi.NotFound, "there is no such terminal").WithRemedy("'engi terminal list' shows the terminals of a session or sandbox")

// Get returns a terminal.
func (m *Manager) Get(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID) (engi.TerminalInfo, error) {
	t, l, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return t, err
	}
	all, err := m.look(ctx, l, []engi.TerminalInfo{t})
	if err != nil {
		return t, err
	}
	return all[0], nil
}

// End ends a terminal's program, and removes the terminal.
func (m *Manager) End(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID) (err error) {
	defer engi.Annotate(&err, "end terminal %.40s", id)
	t, l, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return err
	}
	g, release, err := m.o.Places.Enter(ctx, l.Owner.Viewer(), l.Place())
	if err != nil {
		return err
	}
	defer release()
	proc, err := g.Attach(ctx, string(t.ID))
	if err == nil {
		// Programs in the background get HUP when their terminal is closed, which
		// happens after the shell has ended.
		if err = proc.Signal(ctx, "HUP"); err == nil {
			err = proc.Signal(ctx, "KILL")
		}
	}
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	return m.o.Store.Remove(ctx, id, "on request")
}

// open returns the process of a terminal; the caller must release it.
func (m *Manager) open(ctx context.Context, t engi.TerminalInfo, l place.Found) (engi.TerminalProcess, func(), error) {
	g, release, err := m.o.Places.Enter(ctx, l.Owner.Viewer(), l.Place())
	if err != nil {
		return nil, nil, err
	}
	found, err := g.Attach(ctx, string(t.ID))
	if err != nil {
		release()
		if engi.Is(err, engi.NotFound) {
			err = engi.Errorf(engi.NotFound, "the program of terminal %s has ended", t.ID).WithRemedy("create a new one")
		}
		return nil, nil, err
	}
	proc, ok := found.(engi.TerminalProcess)
	if !ok {
		release()
		return nil, nil, engi.Errorf(engi.Unsupported, "sandbox %s has no terminals", t.Sandbox)
	}
	return proc, release, nil
}

// Screen returns the current screen of a terminal.
func (m *Manager) Screen(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID) (_ Screen, err error) {
	defer engi.Annotate(&err, "screen of %.40s", id)
	t, l, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return Screen{}, err
	}
	proc, release, err := m.open(ctx, t, l)
	if err != nil {
		return Screen{}, err
	}
	defer release()
	e, err := m.emulate(ctx, t.Owner, proc)
	if err != nil {
		return Screen{}, err
	}
	defer e.close()
	return e.screen(), nil
}
