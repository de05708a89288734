// Package link creates the network links of sandboxes. A link is a network
// namespace that has only a loopback device and a tap device with the sandbox's
// addresses. The host's end of the tap is an endpoint for a TCP/IP stack in
// this process.
//
// A namespace exists as long as a process has it open: this process until the
// sandbox runs, and afterwards the sandbox itself. So a link outlives this
// process exactly if its sandbox does, and there is nothing to clean up: there
// are no mounts, no named namespaces and nothing in the host's own network.
//
// Package egress decides which traffic may cross a link.
package link

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

// Options configures a Pool. The zero value is useful if there are no links of an earlier process.
type Options struct {
	// Spare is the number of links prepared in advance; 0 means none.
	Spare int
	// Locate returns a path of the network namespace of a sandbox that an
	// earlier process started. It reports NotFound if the sandbox does not run or has no link. Nil
	// means that there are no such sandboxes.
	Locate func(ctx context.Context, id engi.SandboxID) (string, error)
	Log    *slog.Logger // nil discards
}

// A Pool creates links, some of them in advance. It is safe for concurrent use.
type Pool struct {
	opt  Options
	log  *slog.Logger
	work sync.WaitGroup
	wake chan struct{} // receives a value when a spare link was taken
	stop chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool
	spares []*namespace
	links  map[engi.SandboxID]*Link
}

var _ egress.Links = (*Pool)(nil)

// Open returns a Pool, which creates spare links in the background. It reports
// Unsupported, with a remedy, if this host does not permit it to create links. The
// caller closes it.
func Open(ctx context.Context, o Options) (*Pool, error) {
	p := &Pool{opt: o, log: o.Log, wake: make(chan struct{}, 1), stop: make(chan struct{}), links: map[engi.SandboxID]*Link{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	first, err := newNamespace()
	if err != nil {
		return nil, explain(err)
	}
	if o.Spare <= 0 {
		first.close()
		return p, nil
	}
	p.spares = append(p.spares, first)
	p.work.Go(p.prepare)
	return p, nil
}

// prepare creates spare links until the pool is closed.
func (p *Pool) prepare() {
	for {
		p.mu.Lock()
		short := p.opt.Spare - len(p.spares)
		p.mu.Unlock()
		for ; short > 0 && !p.stopping(); short-- {
			n, err := newNamespace()
			if err != nil {
				p.log.Warn("prepare a link; the next sandbox creates its own", "error", err)
				break
			}
			p.mu.Lock()
			p.spares = append(p.spares, n)
			p.mu.Unlock()
		}
		select {
		case <-p.wake:
		case <-p.stop:
			return
		}
	}
}

func (p *Pool) stopping() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// Take gives its own link to a sandbox that is about to start. It reports
// Conflict if the sandbox already has one.
func (p *Pool) Take(_ context.Context, id engi.SandboxID) (_ egress.Link, err error) {
	defer engi.Annotate(&err, "link %s", id)
	n := p.takeSpare()
	if n == nil {
		if n, err = newNamespace(); err != nil {
			return nil, explain(err)
		}
	}
	return p.add(id, n)
}

// takeSpare returns a prepared namespace, or nil if there is none.
func (p *Pool) takeSpare() *namespace {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.spares) - 1
	if last < 0 {
		return nil
	}
	n := p.spares[last]
	p.spares = p.spares[:last]
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return n
}

// Find returns the link of a sandbox, which may have been started by an earlier
// process.
func (p *Pool) Find(ctx context.Context, id engi.SandboxID) (_ egress.Link, err error) {
	defer engi.Annotate(&err, "find the link of %s", id)
	p.mu.Lock()
	l := p.links[id]
	p.mu.Unlock()
	if l != nil {
		return l, nil
	}
	if p.opt.Locate == nil {
		return nil, engi.Errorf(engi.NotFound, "it has none")
	}
	path, err := p.opt.Locate(ctx, id)
	if err != nil {
		return nil, err
	}
	n, err := openNamespace(path)
	if err != nil {
		return nil, engi.Errorf(engi.NotFound, "%v", err)
	}
	return p.add(id, n)
}

// add makes n the link of a sandbox, or closes it.
func (p *Pool) add(id engi.SandboxID, n *namespace) (egress.Link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		n.close()
		return nil, engi.Errorf(engi.Unavailable, "no more links are created: the node is stopping")
	case p.links[id] != nil:
		n.close()
		return nil, engi.Errorf(engi.Conflict, "it has a link")
	}
	l := &Link{pool: p, id: id, ns: n}
	p.links[id] = l
	return l, nil
}

// Retain closes the links of all sandboxes except these.
func (p *Pool) Retain(ctx context.Context, ids []engi.SandboxID) error {
	p.mu.Lock()
	var gone []*Link
	for id, l := range p.links {
		if !slices.Contains(ids, id) {
			gone = append(gone, l)
		}
	}
	p.mu.Unlock()
	for _, l := range gone {
		l.Close()
	}
	return nil
}

// Close stops creating links and closes the host's ends. The links of running sandboxes
// stay.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.stop)
	p.mu.Unlock()
	p.work.Wait()
	p.mu.Lock()
	spares := p.spares
	p.spares = nil
	p.mu.Unlock()
	for _, n := range spares {
		n.close()
	}
	return p.Retain(context.Background(), nil)
}

func (p *Pool) remove(l *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[l.id] == l {
		delete(p.links, l.id)
	}
}

// A Link is the link of one sandbox. It is safe for concurrent use.
type Link struct {
	pool *Pool
	id   engi.SandboxID
	ns   *namespace
}

// ID returns the sandbox's ID.
func (l *Link) ID() engi.SandboxID { return l.id }

// Netns returns a path of the namespace, for programs that this process starts
// while the link is open.
func (l *Link) Netns() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.ns.ns.Fd())
}

// Endpoint opens the host's end. While the end is not open, packets from the sandbox are
// dropped. Endpoint reports Conflict if the end is already open.
func (l *Link) Endpoint() (stack.LinkEndpoint, error) {
	e, err := l.ns.open()
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "open the link of %s: %w", l.id, err)
	}
	return e, nil
}

// Close releases the link, which disappears with its sandbox. It may be repeated.
func (l *Link) Close() error {
	l.pool.remove(l)
	l.ns.close()
	return nil
}
