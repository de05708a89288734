package terminal

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// Special offsets at which a viewer may begin.
const (
	FromOldest int64 = -1 // all output that is kept
	FromScreen int64 = -2 // the current screen, followed by new output
)

// A hub holds the viewers of one terminal. It is guarded by Manager.mu.
type hub struct {
	viewers []*Attachment
	size    engi.TerminalSize // size that a viewer has set last; zero before
	changed chan struct{}     // closed and replaced at each change
}

// A Viewer describes a client that asks to be attached.
type Viewer struct {
	Client   string // name of the client's input; empty for a new name
	Name     string
	ReadOnly bool

	who  string            // identity that uses the client's name: an owner or a link
	link engi.TerminalLink // zero for the owner
}

// An Attachment is an attached viewer of a terminal. The caller must close it.
type Attachment struct {
	engi.TerminalViewer
	Terminal engi.TerminalInfo

	m       *Manager
	proc    engi.TerminalProcess
	release func()
	writer  string
	next    int64 // number of the next byte of this client's input; used by Type only
	cancel  context.CancelCauseFunc
}

// Attach lets a client watch a terminal, and type unless it is read-only. The
// returned context is cancelled when the client's permission ends.
func (m *Manager) Attach(ctx context.Context, viewer engi.Viewer, p place.Place, id engi.TerminalID, v Viewer) (_ context.Context, _ *Attachment, err error) {
	defer engi.Annotate(&err, "attach to %.40s", id)
	t, l, err := m.find(ctx, viewer, p, id)
	if err != nil {
		return nil, nil, err
	}
	if v.who == "" {
		v.who = "owner " + string(t.Owner)
	}
	if v.Name == "" {
		v.Name = string(t.Owner)
	}
	proc, release, err := m.open(engi.WithClient(ctx, "terminal", string(id)), t, l)
	if err != nil {
		return nil, nil, err
	}
	a := &Attachment{
		TerminalViewer: engi.TerminalViewer{
			ID: string(engi.NewRequestID())[4:], Name: v.Name, ReadOnly: v.ReadOnly, Link: v.link.ID, Since: time.Now().UTC().Truncate(time.Millisecond),
		},
		Terminal: t, m: m, proc: proc, release: release,
	}
	a.writer = writerName(v.who, v.Client)
	if v.Client == "" {
		a.writer = writerName(v.who, a.ID)
	}
	view, cancel := context.WithCancelCause(ctx)
	a.cancel = cancel
	if !v.link.Expires.IsZero() {
		var stop context.CancelFunc
		view, stop = context.WithDeadlineCause(view, v.link.Expires, errLink)
		context.AfterFunc(view, stop)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rooms[id]
	if r == nil {
		r = &hub{changed: make(chan struct{})}
		m.rooms[id] = r
	}
	if len(r.viewers) >= MaxViewers {
		cancel(nil)
		release()
		return nil, nil, engi.Errorf(engi.Exhausted, "%d clients look at terminal %s already", len(r.viewers), id).WithRemedy("close some")
	}
	r.viewers = append(r.viewers, a)
	r.notify()
	return view, a, nil
}

// writerName returns the guest's name for a client's input. Only a client with the same
// owner's key or link's secret can have the same name.
func writerName(who, client string) string {
	sum := sha256.Sum256([]byte(who + "\x00" + client))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:20]))
}

func (r *hub) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Close detaches the viewer.
func (a *Attachment) Close() {
	a.cancel(nil)
	a.release()
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	r := a.m.rooms[a.Terminal.ID]
	r.viewers = slices.DeleteFunc(r.viewers, func(x *Attachment) bool { return x == a })
	r.notify()
	if len(r.viewers) == 0 {
		delete(a.m.rooms, a.Terminal.ID)
	}
}

// Viewers returns the viewers, the size that one of them has set last, and a channel
// that is closed when either changes.
func (a *Attachment) Viewers() (viewers []engi.TerminalViewer, size engi.TerminalSize, changed <-chan struct{}) {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	r := a.m.rooms[a.Terminal.ID]
	return r.list(), r.size, r.changed
}

func (r *hub) list() []engi.TerminalViewer {
	all := make([]engi.TerminalViewer, len(r.viewers))
	for i, a := range r.viewers {
		all[i] = a.TerminalViewer
	}
	return all
}

func (m *Manager) viewers(id engi.TerminalID) []engi.TerminalViewer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rooms[id]; r != nil {
		return r.list()
	}
	return nil
}

// Process returns the terminal's process, for reading its output.
func (a *Attachment) Process() engi.Process { return a.proc }

// History describes the output that is kept.
func (a *Attachment) History(ctx context.Context) (engi.TerminalHistory, error) {
	return a.proc.History(ctx)
}

// Type writes input whose first byte has the number `at` in this client's input, and returns
// the number of the next byte. It reports Denied for a read-only viewer, and Invalid if
// bytes are missing. It is not safe for concurrent use.
func (a *Attachment) Type(ctx context.Context, at int64, data []byte) (next int64, err error) {
	switch {
	case len(data) == 0:
	case a.ReadOnly:
		return a.next, errReadOnly
	case at < 0 || at > a.next:
		return a.next, engi.Errorf(engi.Invalid, "the next byte of this input is number %d, not %d", a.next, at).WithRemedy("go on at %d", a.next)
	}
	if next, err = a.proc.InputAt(ctx, a.writer, at, data); err == nil {
		a.next = next
	}
	return a.next, err
}

var errReadOnly = engi.Errorf(engi.Denied, "this viewer may not write").WithRemedy("ask the owner for a link that may write")

// Resize sets the size of the terminal for all viewers.
func (a *Attachment) Resize(ctx context.Context, size engi.TerminalSize) error {
	if a.ReadOnly {
		return errReadOnly
	}
	if err := CheckSize(size); err != nil {
		return err
	}
	if err := a.proc.Resize(ctx, size); err != nil {
		return err
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if r := a.m.rooms[a.Terminal.ID]; r.size != size {
		r.size = size
		r.notify()
	}
	return nil
}

// A Start is the beginning of a viewer's output.
type Start struct {
	From   int64  // offset of the first byte to read
	Screen []byte // screen at From, to be painted first; nil for none
	Missed int64  // offset of the first byte that is lost before From; -1 if none is lost
	End    int64  // offset of the end of the output so far
}

// Start returns the start for a viewer who wants the output from an offset. If that output
// is no longer kept, the start is the current screen.
func (a *Attachment) Start(ctx context.Context, offset int64) (Start, error) {
	h, err := a.proc.History(ctx)
	if err != nil {
		return Start{}, err
	}
	switch {
	case offset > h.End:
		return Start{}, engi.Errorf(engi.Invalid, "offset %d is beyond the %d bytes of output", offset, h.End).WithRemedy("begin with -1")
	case offset < FromScreen:
		return Start{}, engi.Errorf(engi.Invalid, "offset %d", offset).WithRemedy("use 0 or more, -1 for the whole stored output, or -2 for the screen")
	case offset >= h.Start, offset == FromOldest && h.Start == 0:
		return Start{From: max(offset, 0), Missed: -1, End: h.End}, nil
	}
	s := Start{Missed: max(offset, 0), From: h.End, End: h.End, Screen: []byte("\x1bc")}
	if offset == FromScreen {
		s.Missed = -1
	}
	e, err := a.m.emulate(ctx, a.Terminal.Owner, a.proc)
	switch {
	case err == nil:
		s.Screen, s.From, s.End = e.paint(), e.offset, e.offset
		e.close()
	case !engi.Is(err, engi.Exhausted):
		return Start{}, err
	default: // the output continues from here without a screen
		if h, err = a.proc.History(ctx); err != nil {
			return Start{}, err
		}
		s.From, s.End = h.End, h.End
	}
	if (h.Start > 0 || err != nil) && !a.ReadOnly && slices.ContainsFunc(h.Modes, isAlternate) {
		if err := a.repaint(ctx, h.Sizes[len(h.Sizes)-1].Size); err != nil {
			return Start{}, err
		}
	}
	return s, nil
}

func isAlternate(mode int) bool { return mode == 47 || mode == 1047 || mode == 1049 }

// repaint makes a program paint the whole screen, by changing the size. It is needed if the program
// began to paint before the output that is kept.
func (a *Attachment) repaint(ctx context.Context, size engi.TerminalSize) error {
	other := engi.TerminalSize{Cols: size.Cols, Rows: size.Rows + 1}
	if err := a.proc.Resize(ctx, other); err != nil {
		return err
	}
	return a.proc.Resize(ctx, size)
}
