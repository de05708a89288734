// Package kernel is the code interpreter of a sandbox, with the API of E2B's code interpreter. It
// has contexts, each with a kernel: a long-lived interpreter that runs pieces of
// code one after the other and keeps their definitions.
//
// Kernels are scripts, embedded here, that run in a template's own python3, deno,
// node, bash, Rscript or java. They receive code through a named pipe and send events through
// another, both unlinked once they are open, so that neither appears in arguments
// or standard streams.
//
// Programs that run only once are handled by package guestd, as runs and processes.
package kernel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
)

// A Sandbox holds the operations of package guestd that kernels need.
type Sandbox interface {
	// User returns the user that programs currently run as.
	User() User
	// LookPath finds a program. It reports NotFound.
	LookPath(name string) (string, error)
	// Start starts a program as the sandbox's user, with its limits, and returns
	// the read ends of standard output and error, for the caller to close.
	Start(p Program) (*child.Child, [2]*os.File, error)
	// Signal sends a signal to a program, or to its process group if group is set.
	Signal(c *child.Child, sig syscall.Signal, group bool)
	// Kill kills a program and the rest of its session.
	Kill(c *child.Child)
	// Resolve turns a path in a request into a path that can be opened.
	Resolve(path, home string) string
	// Inside is the inverse of Resolve.
	Inside(path string) string
	// Private returns a new path for a private directory of the guest.
	Private() string
}

// A User is the user that programs run as.
type User struct {
	UID, GID int               // negative means this program's own IDs
	Home     string            // resolved path
	Env      map[string]string // complete environment; read-only
}

// A Program is a kernel to start.
type Program struct {
	Args  []string // arguments, beginning with the absolute path of the program
	Env   map[string]string
	Dir   string   // resolved path
	Stdin *os.File // nil means /dev/null
}

const (
	// maxContexts bounds the number of contexts, each of which has at least one process.
	maxContexts = 64
	// startTimeout bounds the start of a kernel, until it accepts code.
	startTimeout = 60 * time.Second
	// interruptTimeout is the time in which an interrupted kernel must stop. Most take
	// milliseconds, unless the host is very busy. A kernel that takes longer is
	// killed, and the next execution has to start another.
	interruptTimeout = 1500 * time.Millisecond
)

// Kernels holds the contexts of a sandbox. It is safe for concurrent use.
type Kernels struct {
	sandbox Sandbox

	mu       sync.Mutex
	contexts []*codeContext          // in order of creation
	defaults map[string]*codeContext // by language
	live     map[*process]bool
	printing map[*output]bool // outputs that are still being read; guarded by mu
	begun    bool             // the initial contexts have been added
	closed   bool
	work     sync.WaitGroup
}

// New returns the contexts of a sandbox. It starts no kernel.
func New(sandbox Sandbox) *Kernels {
	return &Kernels{sandbox: sandbox, defaults: map[string]*codeContext{}, live: map[*process]bool{}, printing: map[*output]bool{}}
}

// codeContext is a context: a language, a directory, and at most one kernel.
type codeContext struct {
	id, language, dir string        // dir is the path that programs see
	lock              chan struct{} // holds a token while the kernel is in use
	removed           chan struct{} // closed when the context is removed

	mu    sync.Mutex
	proc  *process // the kernel started last; nil before the first start
	count int      // number of executions
}

// languages maps the names and aliases of languages to their names.
var languages = map[string]string{
	"": "python", "python": "python", "python3": "python", "py": "python",
	"javascript": "javascript", "js": "javascript",
	"typescript": "typescript", "ts": "typescript", "deno": "typescript",
	"bash": "bash", "sh": "bash",
	"r": "r", "java": "java",
}

func language(name string) (string, error) {
	if l := languages[strings.ToLower(name)]; l != "" {
		return l, nil
	}
	return "", engi.Errorf(engi.Invalid, "there is no kernel for language %.40q: use python, javascript, typescript, bash, r or java", name)
}

// initialContexts are the languages of the contexts that exist from the start.
var initialContexts = []string{"python", "javascript"}

// list returns all contexts, oldest first.
func (k *Kernels) list() []*codeContext {
	dir := k.defaultDir()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beginLocked(dir)
	return slices.Clone(k.contexts)
}

// beginLocked adds the initial contexts unless this was done before. Clients find a
// context that they created at the end of a listing.
func (k *Kernels) beginLocked(dir string) {
	if k.begun || k.closed {
		return
	}
	k.begun = true
	for _, l := range initialContexts {
		k.defaults[l], _ = k.addLocked(l, dir) // does not fail: these contexts are the first
	}
}

// defaultContext returns the default context of a language. It creates the context if
// needed.
func (k *Kernels) defaultContext(l string) (*codeContext, error) {
	dir := k.defaultDir()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beginLocked(dir)
	if s := k.defaults[l]; s != nil {
		return s, nil
	}
	s, err := k.addLocked(l, dir)
	if err == nil {
		k.defaults[l] = s
	}
	return s, err
}

// defaultDir is the directory of contexts: E2B's default if it exists, or else
// the user's home.
func (k *Kernels) defaultDir() string {
	const dir = "/home/user"
	home := k.sandbox.User().Home
	if fi, err := os.Stat(k.sandbox.Resolve(dir, home)); err == nil && fi.IsDir() {
		return dir
	}
	return k.sandbox.Inside(home)
}

func (k *Kernels) add(l, dir string) (*codeContext, error) {
	initial := k.defaultDir()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beginLocked(initial)
	return k.addLocked(l, dir)
}

func (k *Kernels) addLocked(l, dir string) (*codeContext, error) {
	if k.closed {
		return nil, engi.Errorf(engi.Unavailable, "the guest is closing")
	}
	if len(k.contexts) >= maxContexts {
		return nil, engi.Errorf(engi.Exhausted, "there are %d contexts already", maxContexts).WithRemedy("remove an unused one")
	}
	s := &codeContext{id: newID(), language: l, dir: dir, lock: make(chan struct{}, 1), removed: make(chan struct{})}
	k.contexts = append(k.contexts, s)
	return s, nil
}

// newID returns a random UUID, which clients expect.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func (k *Kernels) find(id string) (*codeContext, error) {
	for _, s := range k.list() {
		if s.id == id {
			return s, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "Context %.80s not found", id)
}

// remove deletes a context and kills its kernel.
func (k *Kernels) remove(id string) error {
	s, err := k.find(id)
	if err != nil {
		return err
	}
	k.mu.Lock()
	i := slices.Index(k.contexts, s)
	if i < 0 {
		k.mu.Unlock()
		return engi.Errorf(engi.NotFound, "Context %.80s not found", id)
	}
	k.contexts = slices.Delete(k.contexts, i, i+1)
	if k.defaults[s.language] == s {
		delete(k.defaults, s.language)
	}
	k.mu.Unlock()
	close(s.removed)
	k.killKernel(s)
	return nil
}

// killKernel kills the kernel of a context and the rest of its session.
func (k *Kernels) killKernel(s *codeContext) {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		k.sandbox.Kill(p.child)
		<-p.child.Done()
	}
}

// restart replaces the kernel of a context. It kills all programs of the old kernel.
func (k *Kernels) restart(ctx context.Context, id string) error {
	s, err := k.find(id)
	if err != nil {
		return err
	}
	k.killKernel(s)
	return k.warm(ctx, s)
}

// Prepare starts the kernels of the default contexts of languages, and returns
// once they are waiting for code.
func (k *Kernels) Prepare(ctx context.Context, names []string) error {
	var all []*codeContext
	for _, name := range names {
		l, err := language(name)
		if err != nil {
			return err
		}
		s, err := k.defaultContext(l)
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

// warm starts the kernel of a context if it is not running.
func (k *Kernels) warm(ctx context.Context, s *codeContext) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	_, err := k.running(ctx, s)
	return err
}

// acquire waits until the kernel is not in use, and reserves it for the caller.
func (s *codeContext) acquire(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-s.removed:
		return engi.Errorf(engi.NotFound, "Context %s not found", s.id)
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for the context: %v", context.Cause(ctx))
	}
}

func (s *codeContext) release() { <-s.lock }

// running returns the kernel of a context that the caller has acquired. It starts
// one if there is none, it has died, or it runs as another user.
func (k *Kernels) running(ctx context.Context, s *codeContext) (*process, error) {
	a := k.sandbox.User()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil && !p.dead() {
		if p.uid == a.UID && p.gid == a.GID {
			return p, nil
		}
		k.sandbox.Kill(p.child)
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
	case <-s.removed: // the context was removed meanwhile
		k.sandbox.Kill(p.child)
		return nil, engi.Errorf(engi.NotFound, "Context %s not found", s.id)
	default:
		return p, nil
	}
}

// PIDs returns the kernels' process IDs, which are also the IDs of their sessions.
func (k *Kernels) PIDs() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []int
	for p := range k.live {
		all = append(all, p.child.PID)
	}
	return all
}

// Close kills all kernels and waits until they are gone.
func (k *Kernels) Close() {
	k.mu.Lock()
	k.closed = true
	var all []*process
	for p := range k.live {
		all = append(all, p)
	}
	k.mu.Unlock()
	for _, p := range all {
		k.sandbox.Kill(p.child)
	}
	for _, p := range all {
		<-p.child.Done()
	}
	// Processes that a kernel started may print after its end.
	k.mu.Lock()
	outputs := slices.Collect(maps.Keys(k.printing))
	k.mu.Unlock()
	for _, o := range outputs {
		o.close()
	}
	k.work.Wait()
}
