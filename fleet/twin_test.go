package fleet_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd"
	"github.com/engi-dev/engi/provider"
)

type twinPkg struct{}

var memory twinPkg

func (twinPkg) NewHost(dir string) *twinHost {
	return &twinHost{dir: dir, all: map[engi.SandboxID]*twinMachine{}}
}
func (twinPkg) New(h *twinHost) *twinProvider { return &twinProvider{h} }

type twinHost struct {
	dir string
	mu  sync.Mutex
	all map[engi.SandboxID]*twinMachine
}

type twinProvider struct{ h *twinHost }

func (p *twinProvider) Tier() engi.Tier { return engi.TierMemory }

func (p *twinProvider) Start(ctx context.Context, spec provider.Spec) (provider.Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir := filepath.Join(p.h.dir, string(spec.ID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &twinMachine{h: p.h, id: spec.ID, dir: dir, ctx: ctx, cancel: cancel, done: make(chan struct{}),
		s: guestd.New(guestd.Options{Root: dir, Token: spec.Token, Twin: true})}
	p.h.mu.Lock()
	p.h.all[spec.ID] = m
	p.h.mu.Unlock()
	return m, nil
}

func (p *twinProvider) Adopt(ctx context.Context, id engi.SandboxID) (provider.Machine, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if m := p.h.all[id]; m != nil {
		return m, nil
	}
	return nil, engi.Errorf(engi.NotFound, "no machine %s", id)
}

func (p *twinProvider) Found(ctx context.Context) (ids []engi.SandboxID, err error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	for id := range p.h.all {
		ids = append(ids, id)
	}
	return ids, nil
}

func (p *twinProvider) Remove(ctx context.Context, id engi.SandboxID) error {
	p.h.mu.Lock()
	m := p.h.all[id]
	p.h.mu.Unlock()
	if m == nil {
		return nil
	}
	return m.finish(engi.CauseSandboxLost)
}

type twinMachine struct {
	h      *twinHost
	id     engi.SandboxID
	dir    string
	s      *guestd.Server
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	end    engi.Cause
	done   chan struct{}
	serves sync.WaitGroup
}

func (m *twinMachine) ID() engi.SandboxID { return m.id }
func (m *twinMachine) Guest(ctx context.Context) (net.Conn, error) {
	if m.ctx.Err() != nil {
		return nil, engi.Errorf(engi.Unavailable, "machine is gone")
	}
	a, b := net.Pipe()
	m.serves.Go(func() { m.s.Serve(m.ctx, b) })
	return a, nil
}
func (m *twinMachine) Done() <-chan struct{} { return m.done }
func (m *twinMachine) End() engi.Cause       { return m.end }
func (m *twinMachine) Close() error          { return m.finish(engi.CauseCancelled) }
func (m *twinMachine) finish(why engi.Cause) error {
	m.once.Do(func() {
		m.end = why
		m.cancel()
		m.s.Close()
		m.serves.Wait()
		os.RemoveAll(m.dir)
		m.h.mu.Lock()
		delete(m.h.all, m.id)
		m.h.mu.Unlock()
		close(m.done)
	})
	<-m.done
	return nil
}
func (m *twinMachine) Resize(ctx context.Context, s engi.Size) error { return nil }
