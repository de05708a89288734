package script

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/wire"
)

const (
	startTime = 10 * time.Second
	// grace is how much longer than its program a helper may take. The
	// interpreter ends programs itself, but for loops inside its own
	// functions: those end here.
	grace = 100 * time.Millisecond
)

// A helper is one process of engi-js. It runs one program at a time.
type helper struct {
	owner  engi.Owner // whom it has served
	served int        // programs
	idle   time.Time

	cmd   *exec.Cmd
	in    *os.File // to it
	out   *os.File // from it
	r     *bufio.Reader
	frame int           // bytes of one frame from it
	dead  chan struct{} // closed when it is gone
	once  sync.Once
	write sync.Mutex
}

// start starts a helper and returns once it has locked itself in.
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
	said := &tail{}
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdinR, stdoutW, said
	cmd.Dir = "/"
	cmd.Env = []string{"ENGI_JS_ROOT=" + root, "GOMAXPROCS=1", "GODEBUG=madvdontneed=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if os.Geteuid() != 0 {
		cmd.Env = append(cmd.Env, "ENGI_JS_ALONE=1")
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Start()
	stdinR.Close()
	stdoutW.Close()
	if err != nil {
		stdinW.Close()
		stdoutR.Close()
		return nil, engi.Errorf(engi.Unavailable, "%v", err).
			WithRemedy("the kernel must allow namespaces: run as root, or allow user namespaces")
	}
	h := &helper{cmd: cmd, in: stdinW, out: stdoutR, r: bufio.NewReader(stdoutR), frame: frame, dead: make(chan struct{})}
	go func() {
		// Wait ends when the process has, and its standard error is read.
		_ = cmd.Wait() // how it ended does not matter: it is over
		close(h.dead)
	}()
	stop := context.AfterFunc(ctx, h.signal)
	defer stop()
	_, err = h.receive(time.Now().Add(startTime)) // it is locked in
	switch {
	case err == nil:
		return h, nil
	case ctx.Err() != nil:
		h.kill()
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	case h.isDead():
		h.kill()
		return nil, engi.Errorf(engi.Unavailable, "it ended at once: %s", said).WithRemedy("run engi doctor")
	default:
		h.kill()
		return nil, engi.Errorf(engi.Unavailable, "it does not come up: %s", said).WithRemedy("run engi doctor")
	}
}

// receive returns the next frame, until then at most. After an error the
// helper is of no more use: it is gone, late, or talks nonsense, which a sound
// one never does.
func (h *helper) receive(until time.Time) (f wire.From, err error) {
	if err := h.out.SetReadDeadline(until); err != nil {
		return f, engi.Errorf(engi.Unavailable, "%v", err)
	}
	err = wire.Read(h.r, &f, h.frame)
	return f, err
}

func (h *helper) signal() {
	h.once.Do(func() {
		h.in.Close()
		_ = h.cmd.Process.Kill() // an error means it is gone
	})
}

// kill ends the process and waits until it is gone. Nobody reads from it.
func (h *helper) kill() {
	h.signal()
	<-h.dead
	h.out.Close()
}

func (h *helper) send(to wire.To) error {
	h.write.Lock()
	defer h.write.Unlock()
	return wire.Write(h.in, to, wire.MaxFrame)
}

// errGone says that a helper was gone before it could see the program.
var errGone = engi.Errorf(engi.Unavailable, "the interpreter is gone").WithRetry(engi.Retry{AfterMillis: 100})

func (h *helper) isDead() bool {
	select {
	case <-h.dead:
		return true
	default:
		return false
	}
}

// run runs one program. When healthy is false the helper is of no more use.
// The error says that ctx ended, or is errGone.
func (h *helper) run(ctx context.Context, run wire.Run, answer func(context.Context, wire.Call) wire.Answer) (done wire.Done, healthy bool, err error) {
	h.served++
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
			healthy = false // it was ended a moment after its last word
		}
	}()

	// The interpreter ends programs itself and says so. When it does not,
	// something is wrong with it, or it is in a loop of its own.
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
		return wire.Done{}, false, errGone
	}
	if err := h.send(wire.To{Run: &run}); err != nil {
		if engi.KindOf(err) == engi.Invalid {
			return wire.Done{}, true, err
		}
		if time.Until(until) <= 0 || ctx.Err() != nil {
			return lost("")
		}
		return wire.Done{}, false, errGone
	}
	var open atomic.Int64 // calls that are not answered
	for all := 0; ; {
		f, err := h.receive(until)
		switch {
		case err != nil:
			return lost("the interpreter died under the program")
		case f.Done != nil && f.Done.Run == run.ID && sound(f.Done):
			return *f.Done, true, nil
		case f.Call != nil && f.Call.Run == run.ID:
			// The engine keeps to these bounds; one that does not was taken
			// over.
			if all++; all > run.Limits.AllCalls || open.Add(1) > int64(run.Limits.Calls) {
				return lost("the interpreter calls api functions too often")
			}
			c := *f.Call
			calls.Go(func() {
				a := answer(calling, c)
				open.Add(-1)
				if calling.Err() == nil {
					_ = h.send(wire.To{Answer: &a}) // a helper that is gone needs no answer
				}
			})
		default:
			return lost("the interpreter talks nonsense")
		}
	}
}

// sound reports whether the last word on a run is one that the engine could
// say, and takes nothing else from it.
func sound(d *wire.Done) bool {
	if d.Duration < 0 || len(d.Warnings) > 1000 {
		return false
	}
	if d.Error == nil {
		return true
	}
	d.Value = nil
	return slices.Contains(kinds, d.Error.Kind) && d.Error.Line >= 0 && d.Error.Column >= 0
}

var kinds = []engi.ScriptErrorKind{engi.ScriptSyntax, engi.ScriptThrown, engi.ScriptTimeout, engi.ScriptMemory, engi.ScriptStalled}

// A tail keeps the beginning of what is written to it, for people.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), 4096-len(t.text))]...)
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
