// Package kernel is the code interpreter of a sandbox: contexts, each a
// long-lived interpreter (a kernel) that runs pieces of code one after the
// other and remembers what they defined, served in the dialect of E2B's code
// interpreter.
//
// Kernels are programs of ours, embedded here, that run inside a template's
// own python3, deno, node or bash. They get code through a named pipe and
// answer through another, both unlinked once they are open, so that nothing of
// it is in anybody's argv or standard streams.
//
// It is not for programs that run once; those are runs and processes of
// package guestd.
package kernel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
)

// A Sandbox is where kernels live.
type Sandbox interface {
	// Account returns who programs run as now.
	Account() Account
	// LookPath finds a program; NotFound.
	LookPath(name string) (string, error)
	// Start starts a program as the sandbox's user, with its limits. stdin is
	// nil for none. The caller closes the read ends of what it prints.
	Start(p Program) (*child.Child, [2]*os.File, error)
	// Signal sends a signal to a program, with group also to what it started
	// in its process group.
	Signal(c *child.Child, sig syscall.Signal, group bool)
	// Kill kills a program and what is left of its session.
	Kill(c *child.Child)
	// Resolve makes a path of a request one that can be opened.
	Resolve(path, home string) string
	// Inside is the inverse of Resolve.
	Inside(path string) string
	// Private names a fresh directory that programs do not look into.
	Private() string
}

// An Account is who programs run as.
type Account struct {
	UID, GID int               // negative means the server's own
	Home     string            // resolved
	Env      map[string]string // complete; not to be changed
}

// A Program is a kernel to start.
type Program struct {
	Args  []string // its absolute path first
	Env   map[string]string
	Dir   string // resolved
	Stdin *os.File
}

const (
	// maxContexts bounds what a client may start; each is a process or more.
	maxContexts = 64
	// startup bounds how long a kernel may take until it takes code.
	startup = 60 * time.Second
	// yields is how long an interrupted kernel has to end what it does. One
	// that does takes milliseconds, unless the machine is very busy; one that
	// does not costs the next execution this much and a start.
	yields = 1500 * time.Millisecond
)

// Kernels are the contexts of a sandbox. They are safe for concurrent use.
type Kernels struct {
	box Sandbox

	mu       sync.Mutex
	sessions []*session          // in the order they were made
	defaults map[string]*session // by language
	alive    map[*process]bool
	closed   bool
	work     sync.WaitGroup
}

// New returns the contexts every sandbox has; no kernel is started until one
// is needed.
func New(box Sandbox) *Kernels {
	return &Kernels{box: box, defaults: map[string]*session{}, alive: map[*process]bool{}}
}

// session is a context: a language, a directory, and at most one kernel.
type session struct {
	id, language, dir string        // dir as programs see it
	turn              chan struct{} // holds a token while somebody uses the kernel
	gone              chan struct{} // closed when the context is removed

	mu    sync.Mutex
	proc  *process // nil, or the last one started
	count int      // executions of proc
}

// languages maps every name of a language to its own.
var languages = map[string]string{
	"": "python", "python": "python", "python3": "python", "py": "python",
	"javascript": "javascript", "js": "javascript",
	"typescript": "typescript", "ts": "typescript", "deno": "typescript",
	"bash": "bash", "sh": "bash",
}

func language(name string) (string, error) {
	if l := languages[strings.ToLower(name)]; l != "" {
		return l, nil
	}
	return "", engi.Errorf(engi.Invalid, "there is no kernel for language %.40q", name).WithRemedy("use python, javascript, typescript or bash")
}

// byDefault are the contexts a client finds before it has made any.
var byDefault = []string{"python", "javascript"}

// list returns all contexts.
func (k *Kernels) list() []*session {
	for _, l := range byDefault {
		k.byLanguage(l)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.sessions)
}

// byLanguage returns the default context of a language, and makes it if it is
// not there.
func (k *Kernels) byLanguage(l string) (*session, error) {
	dir := k.defaultDir()
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.defaults[l]; s != nil {
		return s, nil
	}
	s, err := k.addLocked(l, dir)
	if err == nil {
		k.defaults[l] = s
	}
	return s, err
}

// defaultDir is where E2B's contexts start, if it is there.
func (k *Kernels) defaultDir() string {
	const dir = "/home/user"
	home := k.box.Account().Home
	if fi, err := os.Stat(k.box.Resolve(dir, home)); err == nil && fi.IsDir() {
		return dir
	}
	return k.box.Inside(home)
}

func (k *Kernels) add(l, dir string) (*session, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.addLocked(l, dir)
}

func (k *Kernels) addLocked(l, dir string) (*session, error) {
	if k.closed {
		return nil, engi.Errorf(engi.Unavailable, "the guest is closing")
	}
	if len(k.sessions) >= maxContexts {
		return nil, engi.Errorf(engi.Exhausted, "there are %d contexts already", maxContexts).WithRemedy("remove one that is not needed")
	}
	s := &session{id: newID(), language: l, dir: dir, turn: make(chan struct{}, 1), gone: make(chan struct{})}
	k.sessions = append(k.sessions, s)
	return s, nil
}

// newID returns a random UUID, which is what clients expect to see.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func (k *Kernels) find(id string) (*session, error) {
	for _, s := range k.list() {
		if s.id == id {
			return s, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "Context %.80s not found", id)
}

// remove ends a context and its kernel.
func (k *Kernels) remove(id string) error {
	s, err := k.find(id)
	if err != nil {
		return err
	}
	k.mu.Lock()
	i := slices.Index(k.sessions, s)
	if i < 0 {
		k.mu.Unlock()
		return engi.Errorf(engi.NotFound, "Context %.80s not found", id)
	}
	k.sessions = slices.Delete(k.sessions, i, i+1)
	if k.defaults[s.language] == s {
		delete(k.defaults, s.language)
	}
	k.mu.Unlock()
	close(s.gone)
	k.end(s)
	return nil
}

// end kills the kernel of a context and what it started.
func (k *Kernels) end(s *session) {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		k.box.Kill(p.child)
		<-p.child.Done()
	}
}

// restart gives a context a fresh kernel. What runs in the old one ends.
func (k *Kernels) restart(ctx context.Context, id string) error {
	s, err := k.find(id)
	if err != nil {
		return err
	}
	k.end(s)
	return k.warm(ctx, s)
}

// Prepare starts the kernels of the default contexts of languages and returns
// once they wait for code.
func (k *Kernels) Prepare(ctx context.Context, names []string) error {
	var all []*session
	for _, name := range names {
		l, err := language(name)
		if err != nil {
			return err
		}
		s, err := k.byLanguage(l)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = k.warm(ctx, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// warm starts the kernel of a context, if it has none.
func (k *Kernels) warm(ctx context.Context, s *session) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	_, err := k.running(ctx, s)
	return err
}

// enter waits until nobody else uses the kernel.
func (s *session) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.gone:
		return engi.Errorf(engi.NotFound, "Context %s not found", s.id)
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for the context: %v", context.Cause(ctx))
	}
}

func (s *session) leave() { <-s.turn }

// running returns the kernel of a context that the caller has entered; a
// fresh one if there is none, it has died, or is somebody else's.
func (k *Kernels) running(ctx context.Context, s *session) (*process, error) {
	a := k.box.Account()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil && !p.dead() {
		if p.uid == a.UID && p.gid == a.GID {
			return p, nil
		}
		k.box.Kill(p.child)
		<-p.child.Done()
	}
	p, err := k.start(ctx, s, a)
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "start the %s kernel: %w", s.language, err)
	}
	s.mu.Lock()
	s.proc, s.count = p, 0
	s.mu.Unlock()
	select {
	case <-s.gone: // it was removed meanwhile
		k.box.Kill(p.child)
		return nil, engi.Errorf(engi.NotFound, "Context %s not found", s.id)
	default:
		return p, nil
	}
}

// PIDs returns the kernels' process numbers, which are also their sessions'.
func (k *Kernels) PIDs() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []int
	for p := range k.alive {
		all = append(all, p.child.PID)
	}
	return all
}

// Close kills all kernels and waits until they are gone.
func (k *Kernels) Close() {
	k.mu.Lock()
	k.closed = true
	var all []*process
	for p := range k.alive {
		all = append(all, p)
	}
	k.mu.Unlock()
	for _, p := range all {
		k.box.Kill(p.child)
	}
	for _, p := range all {
		<-p.child.Done()
		p.out.close()
	}
	k.work.Wait()
}
