// Package child starts processes, waits for them and keeps what they print.
// It is the only part of the guest that forks.
//
// A [Table] of PID 1 reaps whatever dies in the sandbox; that of an in-process
// twin reaps only what it started. A [Log] is the bounded output of a process
// that readers may come back to.
package child

import (
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
)

// A Table knows the processes it started. It is safe for concurrent use.
type Table struct {
	init bool
	born chan struct{} // has one token when there may be children Reap does not know of

	mu       sync.Mutex // held over a fork, so that no child can be reaped before it is known
	children map[int]*Child
	closed   bool
}

// NewTable returns an empty table. With init it is PID 1's, and Reap must run.
func NewTable(init bool) *Table {
	return &Table{init: init, born: make(chan struct{}, 1), children: make(map[int]*Child)}
}

// A Child is a process the table started.
type Child struct {
	PID    int
	done   chan struct{}
	status syscall.WaitStatus // immutable after done
}

// Done is closed when the process itself has ended; others of its session may
// live on.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit is meaningful after Done.
func (c *Child) Exit() engi.Exit {
	if c.status.Signaled() {
		return engi.Exit{Code: -1, Signal: SignalName(c.status.Signal()), Cause: engi.CauseExited}
	}
	return engi.Exit{Code: c.status.ExitStatus(), Cause: engi.CauseExited}
}

// Start starts a process in a session of its own. It reports NotFound and
// Denied for programs that cannot be executed, Invalid for what can never
// start, and Exhausted when the kernel has no room.
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
		case t.born <- struct{}{}:
		default:
		}
	} else {
		go t.wait(c)
	}
	return c, nil
}

// wait is how a twin reaps: it must not take the children of the process it
// lives in.
func (t *Table) wait(c *Child) {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.PID, &ws, 0, nil)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			ws = syscall.WaitStatus(syscall.SIGKILL) // somebody else reaped it: how it ended is lost
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

// Reap collects the dead for ever. It blocks in the kernel, which is told of a
// death sooner than a signal handler.
func (t *Table) Reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == nil:
			t.mu.Lock() // a fork that is not finished holds it, so the child is known
			t.endLocked(pid, ws)
			t.mu.Unlock()
		case err == syscall.ECHILD:
			<-t.born
		}
	}
}

// reap collects who is dead now.
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

// Signal sends a signal to the process itself. It reports NotFound if it has
// ended.
func (t *Table) Signal(c *Child, sig syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.children[c.PID] != c { // its number may be another's by now
		return engi.Errorf(engi.NotFound, "process %d has ended", c.PID)
	}
	if err := syscall.Kill(c.PID, sig); err != nil {
		return engi.Errorf(engi.Internal, "signal %d: %v", c.PID, err)
	}
	return nil
}

// SignalGroup sends a signal to the process group that the process leads. It
// reports NotFound if the process has ended.
func (t *Table) SignalGroup(c *Child, sig syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.children[c.PID] != c {
		return engi.Errorf(engi.NotFound, "process %d has ended", c.PID)
	}
	if err := syscall.Kill(-c.PID, sig); err != nil {
		return engi.Errorf(engi.Internal, "signal group %d: %v", c.PID, err)
	}
	return nil
}

// KillSession kills what is left of the session of c, as far as its members
// have not left it.
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

// Close refuses further starts, kills what was started and waits until it is
// gone.
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

// SignalName returns the name of sig without SIG.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); len(name) > 3 {
		return name[3:]
	}
	return strconv.Itoa(int(sig))
}

// ParseSignal is the inverse of SignalName; it reports Invalid.
func ParseSignal(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, engi.Errorf(engi.Invalid, "%.40q is not a signal", name).WithRemedy("name it without SIG: TERM, KILL, INT …")
}
