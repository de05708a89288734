package script

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/priority"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

const (
	startTimeout = 10 * time.Second
	// grace is the time that a helper may take beyond the program's timeout. The
	// interpreter enforces the timeout, except in loops of its own functions;
	// in such a loop the helper is killed.
	grace = 100 * time.Millisecond
)

// A helper is a process of engi-js. It runs one program at a time.
type helper struct {
	owner     engi.Owner // the only owner that the helper serves; empty while fresh
	runs      int        // number of programs that the helper has run
	idleSince time.Time

	cmd      *exec.Cmd
	in       *os.File // standard input of the process
	out      *os.File // standard output of the process
	r        *bufio.Reader
	maxFrame int           // maximum size of a frame from the helper, in bytes
	dead     chan struct{} // closed when the process has exited
	killOnce sync.Once
	writeMu  sync.Mutex
}

// start starts a helper and returns once the helper has confined itself.
func start(ctx context.Context, path, root string, frame int) (_ *helper, err error) {
	defer engi.Annotate(&err, "start script helper")
	stdinR, stdinW, err := os.Pipe()
	if err != nil {
		return nil, engi.Errorf(engi.Exhausted, "%v", err)
	}
	stdoutR, stdoutW, err := os.Pipe()
	if err != nil {
		stdinR.Close()
		stdinW.Close()
		return nil, engi.Errorf(engi.Exhausted, "%v", err)
	}
	said := &limitedBuffer{}
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdinR, stdoutW, said
	cmd.Dir = "/"
	cmd.Env = []string{"ENGI_JS_ROOT=" + root, "GOMAXPROCS=1", "GODEBUG=madvdontneed=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if !canDropGroups() {
		cmd.Env = append(cmd.Env, "ENGI_JS_ALONE=1")
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err = priority.Start(cmd)
	stdinR.Close()
	stdoutW.Close()
	if err != nil {
		stdinW.Close()
		stdoutR.Close()
		return nil, engi.Errorf(engi.Unavailable, "%v", err).
			WithRemedy("the kernel must allow namespaces: run as root, or allow user namespaces")
	}
	h := &helper{cmd: cmd, in: stdinW, out: stdoutR, r: bufio.NewReader(stdoutR), maxFrame: frame, dead: make(chan struct{})}
	go func() {
		// Wait also waits for the end of standard error.
		_ = cmd.Wait() // the exit status does not matter
		close(h.dead)
	}()
	stop := context.AfterFunc(ctx, h.signal)
	defer stop()
	_, err = h.receive(time.Now().Add(startTimeout)) // the helper's first frame reports that it is confined
	switch {
	case err == nil:
		return h, nil
	case ctx.Err() != nil:
		h.kill()
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	case h.isDead():
		h.kill()
		return nil, engi.Errorf(engi.Unavailable, "it exited during its start: %s", said).WithRemedy("run 'engi doctor'")
	default:
		h.kill()
		return nil, engi.Errorf(engi.Unavailable, "it did not become ready: %s", said).WithRemedy("run 'engi doctor'")
	}
}

// canDropGroups reports whether a process may become another user without groups:
// root may, but not in the namespace that engi makes for other users.
func canDropGroups() bool {
	text, err := os.ReadFile("/proc/self/setgroups")
	return os.Geteuid() == 0 && (err != nil || !bytes.HasPrefix(text, []byte("deny")))
}

// receive returns the next frame. After an error the helper can no longer be used:
// it has exited, is late, or has violated the protocol.
func (h *helper) receive(until time.Time) (f wire.From, err error) {
	if err := h.out.SetReadDeadline(until); err != nil {
		return f, engi.Errorf(engi.Unavailable, "%v", err)
	}
	err = wire.Read(h.r, &f, h.maxFrame)
	return f, err
}

func (h *helper) signal() {
	h.killOnce.Do(func() {
		h.in.Close()
		_ = h.cmd.Process.Kill() // fails if the process has exited
	})
}

// kill kills the process and waits for its end. There must be no receive in
// progress.
func (h *helper) kill() {
	h.signal()
	<-h.dead
	h.out.Close()
}

func (h *helper) send(to wire.To) error {
	h.writeMu.Lock()
	defer h.writeMu.Unlock()
	return wire.Write(h.in, to, wire.MaxFrame)
}

// errHelperGone reports that a helper had exited before it received the program.
var errHelperGone = engi.Errorf(engi.Unavailable, "the interpreter has exited").WithRetry(engi.Retry{AfterMillis: 100})

func (h *helper) isDead() bool {
	select {
	case <-h.dead:
		return true
	default:
		return false
	}
}

// run runs a program. If healthy is false, the helper can no longer be used. The
// error is Expired if ctx has ended, errHelperGone, or Invalid for a program that is
// too large.
func (h *helper) run(ctx context.Context, run wire.Run, answer func(context.Context, wire.Call) wire.Answer) (done wire.Done, healthy bool, err error) {
	h.runs++
	timeout := time.Duration(run.Limits.Timeout)
	began := time.Now()
	until := began.Add(timeout + grace)
	calling, cancel := context.WithDeadline(ctx, began.Add(timeout))
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, h.signal)
	defer func() {
		if !stop() {
			healthy = false // the helper was killed just after the program had finished
		}
	}()

	// The interpreter ends programs at their timeout and reports the end. If it does not, it is
	// broken, or in a loop of one of its own functions.
	lost := func(text string) (wire.Done, bool, error) {
		h.kill()
		e := &wire.Error{Kind: engi.ScriptLost, Name: "Error", Message: text}
		switch {
		case ctx.Err() != nil:
			return wire.Done{}, false, engi.Errorf(engi.Expired, "run script: %v", context.Cause(ctx))
		case time.Until(until) <= 0:
			e = &wire.Error{Kind: engi.ScriptTimeout, Name: "TimeoutError", Message: "the program did not end in time"}
		}
		return wire.Done{Error: e, Duration: int64(time.Since(began))}, false, nil
	}
	if err := h.in.SetWriteDeadline(until); err != nil {
		return wire.Done{}, false, errHelperGone
	}
	if err := h.send(wire.To{Run: &run}); err != nil {
		if engi.Is(err, engi.Invalid) {
			return wire.Done{}, true, err
		}
		if time.Until(until) <= 0 || ctx.Err() != nil {
			return lost("")
		}
		return wire.Done{}, false, errHelperGone
	}
	var open atomic.Int64 // calls in progress
	for all := 0; ; {
		f, err := h.receive(until)
		switch {
		case err != nil:
			return lost("the interpreter exited while it ran the program")
		case f.Done != nil && f.Done.Run == run.ID && valid(f.Done):
			return *f.Done, true, nil
		case f.Call != nil && f.Call.Run == run.ID:
			// The engine enforces these limits. If they are exceeded, the program
			// has taken over the helper.
			if all++; all > run.Limits.AllCalls || open.Add(1) > int64(run.Limits.Calls) {
				return lost("the interpreter calls api functions too often")
			}
			c := *f.Call
			calls.Go(func() {
				a := answer(calling, c)
				open.Add(-1)
				if calling.Err() == nil {
					_ = h.send(wire.To{Answer: &a}) // fails if the helper has exited
				}
			})
		default:
			return lost("the interpreter violated the protocol")
		}
	}
}

// valid reports whether the engine could have sent d. It removes the value if there
// is an error.
func valid(d *wire.Done) bool {
	if d.Duration < 0 || len(d.Warnings) > 1000 {
		return false
	}
	if d.Error == nil {
		return true
	}
	d.Value = nil
	return slices.Contains(errorKinds, d.Error.Kind) && d.Error.Line >= 0 && d.Error.Column >= 0
}

var errorKinds = []engi.ScriptErrorKind{engi.ScriptSyntax, engi.ScriptThrown, engi.ScriptTimeout, engi.ScriptMemory, engi.ScriptStalled}

// A limitedBuffer keeps the first 4 KiB of the data written to it.
type limitedBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (t *limitedBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), 4096-len(t.text))]...)
	return len(b), nil
}

func (t *limitedBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
