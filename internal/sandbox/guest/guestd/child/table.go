// Package child starts processes, waits for them and keeps their output. It is
// the only part of the guest that forks.
//
// The [Table] of PID 1 reaps every process of the sandbox; any other table reaps
// only the processes that it started. A [Log] is the bounded output of a process, which
// can be read from any offset still kept.
package child

import (
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Table holds the processes that it started. It is safe for concurrent use.
type Table struct {
	init    bool
	started chan struct{} // holds a token when there may be children that Reap has not seen

	mu       sync.Mutex // held during a fork, so that no child is reaped before it is in children
	children map[int]*Child
	closed   bool
}

// NewTable returns an empty table. If init is set, it is the table of PID 1, and Reap must
// run.
func NewTable(init bool) *Table {
	return &Table{init: init, started: make(chan struct{}, 1), children: make(map[int]*Child)}
}

// A Child is a process that a table started.
type Child struct {
	PID    int
	done   chan struct{}
	status syscall.WaitStatus // valid once done is closed
}

// Done returns a channel that is closed when the process itself has ended. Others of its session may
// still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit returns the exit code or signal of the process. It is valid once Done is closed.
func (c *Child) Exit() engi.Exit {
	if c.status.Signaled() {
		return engi.Exit{Code: -1, Signal: SignalName(c.status.Signal()), Cause: engi.CauseExited}
	}
	return engi.Exit{Code: c.status.ExitStatus(), Cause: engi.CauseExited}
}

// Start starts a process in a session of its own. It reports NotFound or Denied
// for a program that cannot be executed, Invalid for a Spec that can never work,
// and Exhausted if the kernel lacks resources.
func (t *Table) Start(s Spec) (*Child, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, engi.Errorf(engi.Unavailable, "the guest is closing")
	}
	pid, err := fork(&s)
	if err != nil {
		return nil, err
	}
	c := &Child{PID: pid, done: make(chan struct{})}
	t.children[pid] = c
	if t.init {
		select {
		case t.started <- struct{}{}:
		default:
		}
	} else {
		go t.wait(c)
	}
	return c, nil
}

// wait reaps one child. It serves tables outside PID 1, which must not reap the
// other children of their program.
func (t *Table) wait(c *Child) {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.PID, &ws, 0, nil)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			ws = syscall.WaitStatus(syscall.SIGKILL) // the child was reaped elsewhere: its status is lost
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(c.PID, ws)
}

func (t *Table) endLocked(pid int, ws syscall.WaitStatus) {
	if c := t.children[pid]; c != nil {
		delete(t.children, pid)
		c.status = ws
		close(c.done)
	}
}

// Reap reaps processes for ever. It blocks in the kernel, which is faster than a
// handler of SIGCHLD.
func (t *Table) Reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == nil:
			t.mu.Lock() // waits for a fork in progress, so the child is known
			t.endLocked(pid, ws)
			t.mu.Unlock()
		case err == syscall.ECHILD:
			<-t.started
		}
	}
}

// reap reaps the processes that have ended by now.
func (t *Table) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		t.mu.Lock()
		t.endLocked(pid, ws)
		t.mu.Unlock()
	}
}

// Signal sends a signal to the process itself. It reports NotFound if the process has
// ended.
func (t *Table) Signal(c *Child, sig syscall.Signal) error { return t.signal(c, c.PID, sig) }

// SignalGroup sends a signal to the process group that the process leads. It
// reports NotFound if the process has ended.
func (t *Table) SignalGroup(c *Child, sig syscall.Signal) error { return t.signal(c, -c.PID, sig) }

func (t *Table) signal(c *Child, to int, sig syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.children[c.PID] != c { // the PID may have been reused
		return engi.Errorf(engi.NotFound, "process %d has ended", c.PID)
	}
	err := syscall.Kill(to, sig)
	if err == syscall.ESRCH { // the child was reaped, and will be removed from the table next
		return engi.Errorf(engi.NotFound, "process %d has ended", c.PID)
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "signal %d: %v", to, err)
	}
	return nil
}

// KillSession kills the processes that remain in the session of c.
func (t *Table) KillSession(c *Child) {
	t.mu.Lock()
	if t.children[c.PID] == c {
		syscall.Kill(c.PID, syscall.SIGKILL)
		syscall.Kill(-c.PID, syscall.SIGKILL)
	}
	t.mu.Unlock()
	for _, p := range processes() {
		if p.session == c.PID {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// Close refuses further starts, kills the children and waits for their end.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	var all []*Child
	for _, c := range t.children {
		all = append(all, c)
	}
	t.mu.Unlock()
	for _, c := range all {
		t.KillSession(c)
	}
	for _, c := range all {
		<-c.done
	}
}

// SignalName returns the name of sig without the prefix SIG.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); len(name) > 3 {
		return name[3:]
	}
	return strconv.Itoa(int(sig))
}

// ParseSignal is the inverse of SignalName. It reports Invalid for other names.
func ParseSignal(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, engi.Errorf(engi.Invalid, "%.40q is not a signal", name).WithRemedy("use a name without SIG: TERM, KILL, INT …")
}
