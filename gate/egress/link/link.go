// Package link makes the links of sandboxes: each is a network namespace that
// holds nothing but a loopback and a tap device with a sandbox's addresses,
// and our end of the tap as an endpoint of a TCP/IP stack in this process.
//
// A namespace lives as long as somebody has it open: this process until the
// sandbox runs, from then on the sandbox itself. So a link outlives this
// process exactly if its sandbox does, and nobody has to clean up: there are
// no mounts, no named namespaces, nothing in the host's own network.
//
// It is not for what may cross a link; that is package egress.
package link

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress"
)

// Options say how links are made. All but Locate may be zero.
type Options struct {
	// Spare is how many links are prepared ahead; 0 means none.
	Spare int
	// Locate returns a path of the network namespace in which a sandbox runs
	// that this process did not start; NotFound if it does not run or has no
	// link. Nil: there are none.
	Locate func(ctx context.Context, id engi.SandboxID) (string, error)
	Log    *slog.Logger // nil discards
}

// A Pool makes links and prepares some ahead. It is safe for concurrent use.
type Pool struct {
	opt  Options
	log  *slog.Logger
	work sync.WaitGroup
	wake chan struct{} // a spare was taken
	stop chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool
	spares []*wire
	taken  map[engi.SandboxID]*Link
}

var _ egress.Links = (*Pool)(nil)

// Open returns a stock, whose spare links are made in the background, after a
// first one that shows that links can be made here: it reports Unsupported,
// with a remedy, if they cannot. The caller calls Close.
func Open(ctx context.Context, o Options) (*Pool, error) {
	s := &Pool{opt: o, log: o.Log, wake: make(chan struct{}, 1), stop: make(chan struct{}), taken: map[engi.SandboxID]*Link{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	first, err := newWire()
	if err != nil {
		return nil, refuse(err)
	}
	if o.Spare <= 0 {
		first.close()
		return s, nil
	}
	s.spares = append(s.spares, first)
	s.work.Go(s.prepare)
	return s, nil
}

// prepare makes spare links until the stock is closed.
func (s *Pool) prepare() {
	for {
		s.mu.Lock()
		short := s.opt.Spare - len(s.spares)
		s.mu.Unlock()
		for ; short > 0 && !s.stopping(); short-- {
			w, err := newWire()
			if err != nil {
				s.log.Warn("prepare a link; the next sandbox makes its own", "error", err)
				break
			}
			s.mu.Lock()
			s.spares = append(s.spares, w)
			s.mu.Unlock()
		}
		select {
		case <-s.wake:
		case <-s.stop:
			return
		}
	}
}

func (s *Pool) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Take gives a sandbox that is going to start a link of its own. It reports
// Conflict if it has one.
func (s *Pool) Take(ctx context.Context, id engi.SandboxID) (_ egress.Link, err error) {
	defer engi.Annotate(&err, "link %s", id)
	slot, err := s.reserve(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if n := len(s.spares); n > 0 {
		slot.wire, s.spares = s.spares[n-1], s.spares[:n-1]
	}
	s.mu.Unlock()
	if slot.wire != nil {
		select {
		case s.wake <- struct{}{}:
		default:
		}
		return slot, nil
	}
	if slot.wire, err = newWire(); err != nil {
		s.forget(slot)
		return nil, refuse(err)
	}
	return slot, nil
}

// Find returns the link of a sandbox: one that was taken, or that of a sandbox
// that runs since before this process.
func (s *Pool) Find(ctx context.Context, id engi.SandboxID) (_ egress.Link, err error) {
	defer engi.Annotate(&err, "find the link of %s", id)
	s.mu.Lock()
	slot := s.taken[id]
	s.mu.Unlock()
	if slot != nil && slot.wire != nil {
		return slot, nil
	}
	if s.opt.Locate == nil {
		return nil, engi.Errorf(engi.NotFound, "it has none")
	}
	path, err := s.opt.Locate(ctx, id)
	if err != nil {
		return nil, err
	}
	if slot, err = s.reserve(id); err != nil {
		return nil, err
	}
	if slot.wire, err = foundWire(path); err != nil {
		s.forget(slot)
		return nil, engi.Errorf(engi.NotFound, "%v", err)
	}
	return slot, nil
}

// Retain closes the links of all sandboxes except these.
func (s *Pool) Retain(ctx context.Context, ids []engi.SandboxID) error {
	s.mu.Lock()
	var gone []*Link
	for id, slot := range s.taken {
		if !slices.Contains(ids, id) {
			gone = append(gone, slot)
		}
	}
	s.mu.Unlock()
	for _, slot := range gone {
		slot.Close()
	}
	return nil
}

// Close ends the preparation. Links of sandboxes that run stay, with nobody at
// our end.
func (s *Pool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.work.Wait()
	s.mu.Lock()
	spares := s.spares
	s.spares = nil
	s.mu.Unlock()
	for _, w := range spares {
		w.close()
	}
	return s.Retain(context.Background(), nil)
}

// reserve makes a link without a wire, so that nobody else makes one.
func (s *Pool) reserve(id engi.SandboxID) (*Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, engi.Errorf(engi.Unavailable, "no links are made any more: the node stops")
	case s.taken[id] != nil:
		return nil, engi.Errorf(engi.Conflict, "it has a link")
	}
	slot := &Link{stock: s, id: id}
	s.taken[id] = slot
	return slot, nil
}

func (s *Pool) forget(slot *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[slot.id] == slot {
		delete(s.taken, slot.id)
	}
}

// A Link is the link of one sandbox. It is safe for concurrent use.
type Link struct {
	stock *Pool
	id    engi.SandboxID
	wire  *wire // nil while it is made
}

// ID names the sandbox.
func (l *Link) ID() engi.SandboxID { return l.id }

// Netns is a path of the namespace, for programs that this process starts
// while the link is open.
func (l *Link) Netns() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.wire.ns.Fd())
}

// Endpoint opens our end. Until then, and when it is closed, what the sandbox
// sends is dropped. It reports Conflict while it is open.
func (l *Link) Endpoint() (stack.LinkEndpoint, error) {
	e, err := l.wire.open()
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "open the link of %s: %w", l.id, err)
	}
	return e, nil
}

// Close lets go of the link, which ends with its sandbox. It may be repeated.
func (l *Link) Close() error {
	l.stock.forget(l)
	l.wire.close()
	return nil
}
