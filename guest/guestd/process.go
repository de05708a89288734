package guestd

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/wire"
)

const (
	// grace is how long output may still come after a program's own end from
	// others that hold its streams.
	grace = 100 * time.Millisecond
	// killing bounds how long the guest tries to kill what multiplies.
	killing = 5 * time.Second
	// remembered is how many ended processes and runs can still be found.
	remembered = 64
	// rememberedFor is how long an ended process can be found at least while
	// others end.
	rememberedFor = 30 * time.Second
)

// proc is a process with its streams. Its log is closed and its exit set when
// ended is closed.
type proc struct {
	id, tag string
	args    []string
	dir     string
	env     map[string]string // of the request, for listings
	started time.Time
	child   *child.Child
	log     *child.Log
	output  []stream     // our ends of them; immutable
	read    atomic.Int64 // bytes that pumps have put into the log
	pumps   atomic.Int32
	drained chan struct{} // closed when all pumps are done
	stop    chan struct{} // closed to let pumps go that wait for readers
	ended   chan struct{}

	inputMu sync.Mutex
	input   *os.File // write end of standard input, or the terminal; nil when closed
	tty     bool

	exit    engi.Exit // immutable after ended
	endedAt time.Time
}

// procs remembers processes; guarded by Server.mu.
type procs struct {
	byID map[string]*proc
	last int
}

// streams are the two ends of a process's standard streams.
type streams struct {
	theirs [3]int
	input  *os.File
	output []stream
	tty    bool
}

type stream struct {
	name engi.Stream
	file *os.File
}

// pipes makes standard streams. Without input the process reads /dev/null.
func pipes(input bool) (*streams, error) {
	st := &streams{theirs: [3]int{-1, -1, -1}}
	pair := func(i, mine int) (*os.File, error) {
		var fd [2]int
		if err := syscall.Pipe2(fd[:], syscall.O_CLOEXEC); err != nil {
			return nil, engi.Errorf(engi.Exhausted, "make pipe: %v", err)
		}
		st.theirs[i] = fd[1-mine]
		if err := syscall.SetNonblock(fd[mine], true); err != nil {
			syscall.Close(fd[mine])
			return nil, engi.Errorf(engi.Internal, "make pipe: %v", err)
		}
		return os.NewFile(uintptr(fd[mine]), "stream"), nil
	}
	var err error
	if input {
		st.input, err = pair(0, 1)
	} else {
		st.theirs[0], err = syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
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

// terminal makes a pseudo-terminal and takes it for all three streams.
func terminal(size wire.Size, u *child.User) (*streams, error) {
	master, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, engi.Errorf(engi.Unsupported, "open a terminal: %v", err)
	}
	st := &streams{theirs: [3]int{-1, -1, -1}, tty: true}
	st.input = os.NewFile(uintptr(master), "terminal")
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	}
	name := "/dev/pts/" + itoa(n)
	if err == nil && u != nil {
		// The terminal belongs to who uses it, as a login would make it. Where
		// the file system does not allow that, programs still work.
		unix.Chown(name, u.UID, u.GID)
	}
	if err == nil {
		st.theirs[0], err = syscall.Open(name, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	}
	for i := 1; i < 3 && err == nil; i++ {
		st.theirs[i], err = unix.FcntlInt(uintptr(st.theirs[0]), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		st.close()
		return nil, engi.Errorf(engi.Internal, "open a terminal: %v", err)
	}
	st.output = []stream{{engi.Terminal, st.input}}
	return st, nil
}

// handed closes the process's ends once it has them.
func (st *streams) handed() {
	for i, fd := range st.theirs {
		if fd >= 0 {
			syscall.Close(fd)
			st.theirs[i] = -1
		}
	}
}

// close undoes pipes or terminal.
func (st *streams) close() {
	st.handed()
	if st.input != nil {
		st.input.Close()
	}
	for _, o := range st.output {
		if !st.tty {
			o.file.Close()
		}
	}
}

// adopt makes a proc of a started child; its pumps run from now on.
func (s *Server) adopt(p *proc, st *streams) {
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

var pieces = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump moves a stream into the log until its last writer is gone. After the
// log was closed it goes on reading, so that a process in the background does
// not die of a broken pipe.
func pump(p *proc, o stream) {
	if !p.tty {
		defer o.file.Close()
	}
	buf := pieces.Get().(*[32 << 10]byte)
	defer pieces.Put(buf)
	for {
		n, err := o.file.Read(buf[:])
		if n > 0 {
			p.log.Append(o.name, buf[:n], p.stop)
			p.read.Add(int64(n))
		}
		if err != nil {
			return // end of file, or EIO from a terminal nobody holds any more
		}
	}
}

// behind is how often settle grants its limit again to pumps that have not
// read what was there in time: on a busy machine they may not have had a turn.
const behind = 50

// settle waits until the pumps are done, at most for limit, or until they have
// read what was there by then.
func (p *proc) settle(limit time.Duration) bool {
	select {
	case <-p.drained:
		return true
	default:
	}
	due := int64(-1)
	for range behind {
		t := time.NewTimer(limit)
		select {
		case <-p.drained:
			t.Stop()
			return true
		case <-t.C:
		}
		if due < 0 {
			due = p.read.Load() + p.unread()
		}
		if p.read.Load() >= due {
			return false
		}
	}
	return false
}

// unread is how many bytes of output no pump has read yet.
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

// finish sets the exit and tells everybody.
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
	if p.input == nil {
		return engi.Errorf(engi.Conflict, "stdin not enabled or closed")
	}
	if err := p.input.SetWriteDeadline(time.Time{}); err != nil {
		return engi.Errorf(engi.Conflict, "stdin not enabled or closed")
	}
	input := p.input
	stop := context.AfterFunc(ctx, func() { input.SetWriteDeadline(time.Now()) })
	defer stop()
	if _, err := input.Write(data); err != nil {
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "write to process %d: %v", p.child.PID, ctx.Err())
		}
		return engi.Errorf(engi.Conflict, "write to process %d: it does not read any more", p.child.PID)
	}
	return nil
}

// spawn starts a command as the host asked.
func (s *Server) spawn(c wire.Command) (p *proc, err error) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return nil, engi.Errorf(engi.Invalid, "the command is empty")
	}
	if err := wire.CheckEnv(c.Env); err != nil {
		return nil, err
	}
	a := s.account()
	user, env, dir := a.user, maps.Clone(a.env), a.Home
	if c.User != "" && c.User != a.User && !s.o.Twin {
		var home string
		if user, home, err = s.lookUp(c.User); err != nil {
			return nil, err
		}
		env["HOME"], env["USER"], env["LOGNAME"] = home, c.User, c.User
		dir = s.path(home)
	}
	maps.Copy(env, c.Env)
	if c.Dir != "" {
		dir = s.resolve(c.Dir, dir)
	} else if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		dir = s.path("/") // as a login does for a user without a home
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
	ch, err := s.table.Start(child.Spec{Path: path, Args: c.Args, Env: list(env), Dir: dir, User: user,
		Limits: a.limits(user), Files: st.theirs, Terminal: tty})
	if err != nil {
		st.close()
		return nil, err
	}
	st.handed()
	keep := c.Output
	if keep <= 0 {
		keep = wire.DefaultOutput
	}
	p = &proc{id: c.ID, tag: c.Tag, args: c.Args, dir: s.inside(dir), env: c.Env, started: time.Now(), child: ch,
		log: child.NewLog(min(keep, wire.MaxOutput), 0)}
	s.adopt(p, st)
	s.remember(p)
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.watch(p, c.Timeout)
	}()
	return p, nil
}

// watch ends p: by itself or by its timeout.
func (s *Server) watch(p *proc, timeout time.Duration) {
	var late <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		late = t.C
	}
	cause := engi.CauseExited
	select {
	case <-p.child.Done():
	case <-late:
		cause = engi.CauseTimeout
		s.table.KillSession(p.child)
		<-p.child.Done()
	}
	p.settle(grace)
	exit := p.child.Exit()
	exit.Cause = cause
	p.finish(exit)
}

func (s *Server) remember(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.id == "" {
		s.procs.last++
		p.id = "p" + itoa(s.procs.last)
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
	if len(ended) <= remembered {
		return
	}
	sort.Slice(ended, func(i, j int) bool { return ended[i].endedAt.Before(ended[j].endedAt) })
	for i, q := range ended[:len(ended)-remembered] {
		if len(ended)-i > 16*remembered || time.Since(q.endedAt) > rememberedFor {
			delete(s.procs.byID, q.id)
		}
	}
}

// find returns a process by ID or tag. Of those with one tag the last that
// still runs wins, then the last.
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
		if p.tag == name && name != "" && (best == nil || better(p, best)) {
			best = p
		}
	}
	if best == nil {
		return nil, engi.Errorf(engi.NotFound, "there is no process %.80q", name)
	}
	return best, nil
}

func better(p, q *proc) bool {
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

// sessions returns those of everything that is not part of the run with id.
func (s *Server) sessions(id string) map[int]bool {
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
	for _, w := range s.waits {
		spared[w.child.PID] = true
	}
	for _, pid := range s.kernels.PIDs() {
		spared[pid] = true
	}
	return spared
}

// resolve makes a path of a request one this program can open: absolute as it
// is, else below home.
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

// lookPath finds a program the way a shell would.
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

func list(env map[string]string) []string {
	l := make([]string, 0, len(env))
	for k, v := range env {
		l = append(l, k+"="+v)
	}
	slices.Sort(l)
	return l
}
