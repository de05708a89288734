package guestd

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

const (
	// outputGrace is the time for which output is read after a program's end while other
	// processes hold its streams.
	outputGrace = 100 * time.Millisecond
	// killTimeout bounds the attempt to kill processes that keep forking.
	killTimeout = 5 * time.Second
	// maxEnded is the maximum number of ended processes that are kept, and of ended runs.
	maxEnded = 64
	// minEndedAge is the minimum time for which an ended process is kept, even if
	// there are more than maxEnded.
	minEndedAge = 30 * time.Second
)

// proc is a process with its streams. Once ended is closed, its log is closed
// and exit and endedAt are set.
type proc struct {
	id, tag string
	args    []string
	dir     string
	env     map[string]string // environment in the request, for listings
	started time.Time
	child   *child.Child
	log     *child.Log
	output  []stream     // the guest's ends of the output streams; immutable
	read    atomic.Int64 // number of bytes that pumps have moved into the log
	moving  atomic.Int32 // number of pumps that may hold bytes that are neither in the pipe nor in the log
	pumps   atomic.Int32
	drained chan struct{} // closed when all pumps are done
	stop    chan struct{} // closed to release pumps that wait for readers
	ended   chan struct{}

	inputMu  sync.Mutex
	input    *os.File // write end of standard input, or the terminal; nil once closed
	tty      bool
	taken    map[string]*taken // by the writer's name
	settling *time.Timer       // of the next look at the terminal's size; nil if it was never changed

	exit    engi.Exit
	endedAt time.Time
}

// procs holds the processes by ID; guarded by Server.mu.
type procs struct {
	byID map[string]*proc
	last int
}

// streams holds both ends of a process's standard streams.
type streams struct {
	childFDs [3]int
	input    *os.File
	output   []stream
	tty      bool
}

type stream struct {
	name engi.Stream
	file *os.File
}

// pipes creates standard streams. If input is false, the process reads /dev/null.
func pipes(input bool) (*streams, error) {
	st := &streams{childFDs: [3]int{-1, -1, -1}}
	pair := func(i, mine int) (*os.File, error) {
		var fd [2]int
		if err := syscall.Pipe2(fd[:], syscall.O_CLOEXEC); err != nil {
			return nil, engi.Errorf(engi.Exhausted, "create pipe: %v", err)
		}
		st.childFDs[i] = fd[1-mine]
		if err := syscall.SetNonblock(fd[mine], true); err != nil {
			syscall.Close(fd[mine])
			return nil, engi.Errorf(engi.Internal, "create pipe: %v", err)
		}
		return os.NewFile(uintptr(fd[mine]), "stream"), nil
	}
	var err error
	if input {
		st.input, err = pair(0, 1)
	} else {
		st.childFDs[0], err = syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			err = engi.Errorf(engi.Internal, "open /dev/null: %v", err)
		}
	}
	for i, name := range []engi.Stream{engi.Stdout, engi.Stderr} {
		if err == nil {
			var f *os.File
			if f, err = pair(i+1, 0); err == nil {
				st.output = append(st.output, stream{name, f})
			}
		}
	}
	if err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// terminal creates a pseudo-terminal and uses it for all three streams.
func terminal(size wire.Size, u *child.User) (*streams, error) {
	master, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, engi.Errorf(engi.Unsupported, "open a terminal: %v", err)
	}
	st := &streams{childFDs: [3]int{-1, -1, -1}, tty: true}
	st.input = os.NewFile(uintptr(master), "terminal")
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	if err == nil && u != nil {
		// Give the terminal to its user, as a login does. Programs also work if
		// the file system does not allow it.
		unix.Chown(name, u.UID, u.GID)
	}
	if err == nil {
		st.childFDs[0], err = syscall.Open(name, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	}
	for i := 1; i < 3 && err == nil; i++ {
		st.childFDs[i], err = unix.FcntlInt(uintptr(st.childFDs[0]), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		st.close()
		return nil, engi.Errorf(engi.Internal, "open a terminal: %v", err)
	}
	st.output = []stream{{engi.Terminal, st.input}}
	return st, nil
}

// closeChildEnds closes the process's ends. The process must have its copies by then.
func (st *streams) closeChildEnds() {
	for i, fd := range st.childFDs {
		if fd >= 0 {
			syscall.Close(fd)
			st.childFDs[i] = -1
		}
	}
}

// close closes both ends of all streams.
func (st *streams) close() {
	st.closeChildEnds()
	if st.input != nil {
		st.input.Close()
	}
	for _, o := range st.output {
		if !st.tty {
			o.file.Close()
		}
	}
}

// startPumps connects p to its streams and starts reading its output.
func (s *Server) startPumps(p *proc, st *streams) {
	p.stop, p.ended, p.drained = make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.input, p.tty, p.output = st.input, st.tty, st.output
	p.pumps.Store(int32(len(st.output)))
	for _, o := range st.output {
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			pump(p, o)
			if p.pumps.Add(-1) == 0 {
				close(p.drained)
			}
		}()
	}
}

var pumpBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump copies a stream to the log until its last writer has closed it. It keeps
// reading after the log is closed, so that background processes do not die of a
// broken pipe.
func pump(p *proc, o stream) {
	if !p.tty {
		defer o.file.Close()
	}
	buf := pumpBuffers.Get().(*[32 << 10]byte)
	defer pumpBuffers.Put(buf)
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		n := 0
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			p.moving.Add(1)
			for {
				if n, failed = unix.Read(int(fd), buf[:]); failed != unix.EINTR {
					break
				}
			}
			if failed == unix.EAGAIN {
				p.moving.Add(-1)
			}
			return failed != unix.EAGAIN
		})
		if err != nil {
			return // the file is closed
		}
		if n > 0 {
			p.log.Append(o.name, buf[:n], p.stop)
			p.read.Add(int64(n))
		}
		p.moving.Add(-1)
		if n <= 0 {
			return // end of file, or EIO from a terminal that no process has open
		}
	}
}

// maxExtensions is the number of times that waitDrained extends its limit for pumps that have
// not read the available output in time: on a busy host they may not have run yet.
const maxExtensions = 50

// waitDrained waits until the pumps are done or limit has passed. After the limit
// it waits until they have read the output written by then. It reports whether the pumps are done.
func (p *proc) waitDrained(limit time.Duration) bool {
	select {
	case <-p.drained:
		return true
	default:
	}
	due := int64(-1)
	for range maxExtensions {
		t := time.NewTimer(limit)
		select {
		case <-p.drained:
			t.Stop()
			return true
		case <-t.C:
		}
		if due < 0 {
			due = p.written()
		}
		if due >= 0 && p.read.Load() >= due {
			return false
		}
	}
	return false
}

// written returns the number of bytes written so far. It is negative if the number
// cannot be known because a pump is moving bytes.
func (p *proc) written() int64 {
	read := p.read.Load()
	n := read + p.unread()
	if p.moving.Load() > 0 || p.read.Load() != read {
		return -1
	}
	return n
}

// unread returns the number of bytes of output in the pipes.
func (p *proc) unread() (total int64) {
	for _, o := range p.output {
		raw, err := o.file.SyscallConn()
		if err != nil {
			continue
		}
		n := 0
		if raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) == nil {
			total += int64(max(n, 0))
		}
	}
	return total
}

// finish records the exit of p and announces its end.
func (p *proc) finish(exit engi.Exit) {
	p.closeInput()
	p.log.Close()
	p.exit, p.endedAt = exit, time.Now()
	close(p.stop)
	close(p.ended)
}

func (p *proc) closeInput() {
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	if p.input != nil {
		p.input.Close()
		p.input = nil
	}
}

func (p *proc) write(ctx context.Context, data []byte) error {
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	_, err := p.writeLocked(ctx, data)
	return err
}

// writeLocked writes data to standard input. It returns the number of bytes written, even with an error.
func (p *proc) writeLocked(ctx context.Context, data []byte) (int, error) {
	if p.input == nil {
		return 0, engi.Errorf(engi.Conflict, "stdin not enabled or closed")
	}
	input := p.input
	if err := input.SetWriteDeadline(time.Time{}); err != nil {
		return 0, engi.Errorf(engi.Conflict, "stdin not enabled or closed")
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		input.SetWriteDeadline(time.Now())
		close(late)
	})
	defer func() {
		if !stop() {
			<-late // the deadline must not cut off the next write
		}
	}()
	n, err := input.Write(data)
	if err != nil {
		if ctx.Err() != nil {
			return n, engi.Errorf(engi.Expired, "write to process %d: %v", p.child.PID, ctx.Err())
		}
		return n, engi.Errorf(engi.Conflict, "write to process %d: it has closed its input", p.child.PID)
	}
	return n, nil
}

// taken records the position of one writer: the amount of its input that the program has received.
type taken struct {
	next int64
	used int64 // number of the writer's last write among all writes to the process
}

// maxWriters is the maximum number of writers per process whose positions are kept.
const maxWriters = 256

// writeAt writes the part of data that the program has not received yet. The first byte of data
// is byte number at of the writer's input. writeAt returns the number of the next byte.
// A repeated request therefore writes nothing twice, wherever the first request was
// cut off. writeAt reports Conflict if at skips bytes.
func (p *proc) writeAt(ctx context.Context, writer string, at int64, data []byte) (int64, error) {
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	var last int64
	for _, t := range p.taken {
		last = max(last, t.used)
	}
	t := p.taken[writer]
	if t == nil {
		if p.taken == nil {
			p.taken = map[string]*taken{}
		}
		if len(p.taken) >= maxWriters {
			oldest := ""
			for name, t := range p.taken {
				if oldest == "" || t.used < p.taken[oldest].used {
					oldest = name
				}
			}
			delete(p.taken, oldest)
		}
		t = &taken{}
		p.taken[writer] = t
	}
	t.used = last + 1
	switch {
	case len(data) == 0:
		return t.next, nil
	case at < 0 || at > t.next:
		return t.next, engi.Errorf(engi.Conflict, "the next byte of this input is number %d, not %d", t.next, at).
			WithRemedy("go on at %d", t.next)
	case t.next-at >= int64(len(data)):
		return t.next, nil
	}
	n, err := p.writeLocked(ctx, data[t.next-at:])
	t.next += int64(n)
	return t.next, err
}

// spawn starts a command for the host.
func (s *Server) spawn(c wire.Command) (p *proc, err error) {
	if c.Builtin != "" {
		if s.o.InProcess {
			return nil, engi.Errorf(engi.Unsupported, "this guest has no %.20s, because it is not a separate program", c.Builtin)
		}
		c.Args = slices.Concat([]string{"/proc/self/exe", string(c.Builtin)}, c.Args)
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return nil, engi.Errorf(engi.Invalid, "the command is empty")
	}
	if err := wire.CheckEnv(c.Env); err != nil {
		return nil, err
	}
	cfg := s.settings()
	user, env, dir := cfg.user, maps.Clone(cfg.env), cfg.Home
	if c.User != "" && c.User != cfg.User && !s.o.InProcess {
		var home string
		if user, home, err = s.lookupUser(c.User); err != nil {
			return nil, err
		}
		env["HOME"], env["USER"], env["LOGNAME"] = home, c.User, c.User
		dir = s.path(home)
	}
	maps.Copy(env, c.Env)
	if c.Dir != "" {
		dir = s.resolve(c.Dir, dir)
	} else if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		dir = s.path("/") // like a login without a home directory
	}
	tty := c.Rows > 0 || c.Cols > 0
	if tty && env["TERM"] == "" {
		env["TERM"] = "xterm-256color"
	}
	path, err := lookPath(c.Args[0], dir, env["PATH"])
	if err != nil {
		return nil, err
	}
	var st *streams
	if tty {
		st, err = terminal(wire.Size{Cols: c.Cols, Rows: c.Rows}, user)
	} else {
		st, err = pipes(c.Input)
	}
	if err != nil {
		return nil, err
	}
	ch, err := s.table.Start(child.Spec{Path: path, Args: c.Args, Env: environ(env), Dir: dir, User: user,
		Limits: cfg.limits(user), Files: st.childFDs, Terminal: tty})
	if err != nil {
		st.close()
		return nil, err
	}
	st.closeChildEnds()
	keep := c.Output
	if keep <= 0 {
		keep = wire.DefaultOutput
	}
	p = &proc{id: c.ID, tag: c.Tag, args: c.Args, dir: s.inside(dir), env: c.Env, started: time.Now(), child: ch,
		log: child.NewLog(min(keep, wire.MaxOutput), 0)}
	if tty {
		p.log = child.NewTerminalLog(min(keep, wire.MaxOutput), wire.Size{Cols: c.Cols, Rows: c.Rows})
	}
	s.startPumps(p, st)
	s.addProc(p)
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.watch(p, c.Timeout)
	}()
	return p, nil
}

// watch waits for the end of p, and kills it at its timeout.
func (s *Server) watch(p *proc, timeout time.Duration) {
	var expired <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		expired = t.C
	}
	cause := engi.CauseExited
	select {
	case <-p.child.Done():
	case <-expired:
		cause = engi.CauseTimeout
		s.table.KillSession(p.child)
		<-p.child.Done()
	}
	p.waitDrained(outputGrace)
	exit := p.child.Exit()
	if exit.Cause = cause; cause == engi.CauseExited && killedForMemory(p.child.PID, exit) {
		exit.Cause = engi.CauseMemory
	}
	p.finish(exit)
}

func (s *Server) addProc(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.id == "" {
		s.procs.last++
		p.id = "p" + strconv.Itoa(s.procs.last)
	}
	s.procs.byID[p.id] = p
	var ended []*proc
	for _, q := range s.procs.byID {
		select {
		case <-q.ended:
			ended = append(ended, q)
		default:
		}
	}
	if len(ended) <= maxEnded {
		return
	}
	slices.SortFunc(ended, func(p, q *proc) int { return p.endedAt.Compare(q.endedAt) })
	for i, q := range ended[:len(ended)-maxEnded] {
		if len(ended)-i > 16*maxEnded || time.Since(q.endedAt) > minEndedAge {
			delete(s.procs.byID, q.id)
		}
	}
}

// find returns a process by ID or tag. Of several processes with the same tag it prefers
// running ones, then the latest.
func (s *Server) find(name string) (*proc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[name]; r != nil {
		return r.proc, nil
	}
	if p := s.procs.byID[name]; p != nil {
		return p, nil
	}
	var best *proc
	for _, p := range s.procs.byID {
		if p.tag == name && name != "" && (best == nil || preferred(p, best)) {
			best = p
		}
	}
	if best == nil {
		return nil, engi.Errorf(engi.NotFound, "process %.80q does not exist", name)
	}
	return best, nil
}

func preferred(p, q *proc) bool {
	if p.live() != q.live() {
		return p.live()
	}
	return p.started.After(q.started)
}

func (p *proc) live() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// otherSessions returns the sessions of all processes that do not belong to the
// run with this ID.
func (s *Server) otherSessions(id string) map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	spared := map[int]bool{}
	for _, r := range s.runs {
		if r.ID != id && r.proc != nil && r.proc.live() {
			spared[r.proc.child.PID] = true
		}
	}
	for _, p := range s.procs.byID {
		if p.live() {
			spared[p.child.PID] = true
		}
	}
	for _, w := range s.warm {
		spared[w.child.PID] = true
	}
	for _, pid := range s.kernels.PIDs() {
		spared[pid] = true
	}
	return spared
}

// resolve turns a path in a request, relative to home if it is relative, into
// a path that this program can open.
func (s *Server) resolve(path, home string) string {
	switch {
	case path == "~":
		return home
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(home, path[2:])
	case strings.HasPrefix(path, "/"):
		if s.o.Root != "" && (path == s.o.Root || strings.HasPrefix(path, s.o.Root+"/")) {
			return filepath.Clean(path)
		}
		return s.path(path)
	}
	return filepath.Join(home, path)
}

// lookPath finds a program in the same way as a shell.
func lookPath(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	for d := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(d) {
			continue
		}
		p := filepath.Join(d, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", engi.Errorf(engi.NotFound, "%q is not in PATH", name)
}

func environ(env map[string]string) []string {
	l := make([]string, 0, len(env))
	for k, v := range env {
		l = append(l, k+"="+v)
	}
	slices.Sort(l)
	return l
}
