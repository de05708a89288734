package child

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Spec describes a process to start. It inherits nothing from this program's
// environment.
type Spec struct {
	Path   string   // absolute path of the program
	Args   []string // arguments, beginning with the program's name
	Env    []string
	Dir    string
	User   *User  // nil means this program's user
	Limits Limits // zero fields mean this program's limits
	Files  [3]int // descriptors for the child's 0, 1 and 2; each must be above 2

	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// ChdirFirst enters Dir before the change to User, because that user may not be allowed to enter it.
	ChdirFirst bool
}

// A User holds the IDs that a process runs with.
type User struct {
	UID, GID int
	Groups   []int
}

// Limits apply to a child and its descendants.
type Limits struct {
	Processes int // maximum number of processes and threads of the user
	OpenFiles int
	Cgroup    int // descriptor of the cgroup.procs of a cgroup to join; 0 means none
}

// Package syscall cannot set limits between fork and exec. Limits set from
// outside take effect after the program's first instructions. So the steps between fork
// and exec are implemented here. They follow the rules of package syscall: after
// beforeFork, the child calls nothing that could allocate or grow the stack.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:noescape
func vfork(flags uintptr) (pid, errno uintptr)

// Steps of a child, by which it reports the failed one.
const (
	stepFork = iota
	stepSession
	stepCgroup
	stepLimit
	stepUser
	stepDir
	stepFile
	stepTerminal
	stepExec
)

var stepNames = [...]string{"fork", "make a session", "join the cgroup", "set limits", "change the user",
	"enter the working directory", "connect standard streams", "take the terminal", "execute"}

// execParams holds the data that the child needs, in the form that system calls take.
type execParams struct {
	path, dir  *byte
	argv, envv **byte
	groups     *uint32
	ngroups    uintptr
	uid, gid   uintptr
	setUser    bool
	cgroup     uintptr
	zero       [1]byte
	limits     [2]struct {
		which uintptr
		set   bool
		rlim  [2]uint64
	}
	files      [3]uintptr
	terminal   bool
	chdirFirst bool
	unblocked  uint64 // the empty signal mask

	// The fields below are written by the child, which shares the parent's memory.
	step  uintptr
	errno syscall.Errno
}

func fork(s *Spec) (pid int, err error) {
	p, err := newExecParams(s)
	if err != nil {
		return 0, err
	}
	got, errno := forkExec(p)
	runtime.KeepAlive(p)
	if errno == 0 && p.errno == 0 {
		return int(got), nil
	}
	if errno != 0 {
		return 0, classify(s, stepFork, syscall.Errno(errno))
	}
	// The child has exited: reap it.
	for {
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(int(got), &ws, 0, nil); err != syscall.EINTR {
			break
		}
	}
	return 0, classify(s, int(p.step), p.errno)
}

func classify(s *Spec, step int, errno syscall.Errno) error {
	name := stepNames[step]
	switch {
	case step == stepDir:
		return engi.Errorf(engi.Invalid, "cwd '%s' does not exist", s.Dir).WithRemedy("name a directory that the user may enter (%s)", errno)
	case step == stepExec && (errno == syscall.ENOENT || errno == syscall.ENOTDIR):
		return engi.Errorf(engi.NotFound, "%s %s: %s", name, s.Path, errno)
	case step == stepExec && errno == syscall.EACCES:
		return engi.Errorf(engi.Denied, "%s %s: %s", name, s.Path, errno)
	case step == stepExec && (errno == syscall.E2BIG || errno == syscall.ENOEXEC):
		return engi.Errorf(engi.Invalid, "%s %s: %s", name, s.Path, errno)
	case errno == syscall.EAGAIN || errno == syscall.ENOMEM:
		return engi.Errorf(engi.Exhausted, "%s %s: %s", name, s.Path, errno)
	}
	return engi.Errorf(engi.Internal, "%s %s: %s", name, s.Path, errno)
}

func newExecParams(s *Spec) (*execParams, error) {
	p := &execParams{zero: [1]byte{'0'}, terminal: s.Terminal, chdirFirst: s.ChdirFirst, cgroup: uintptr(s.Limits.Cgroup)}
	var err error
	if p.path, err = syscall.BytePtrFromString(s.Path); err != nil {
		return nil, engi.Errorf(engi.Invalid, "program %.80q: %v", s.Path, err)
	}
	if p.dir, err = syscall.BytePtrFromString(s.Dir); err != nil {
		return nil, engi.Errorf(engi.Invalid, "directory %.80q: %v", s.Dir, err)
	}
	argv, err := syscall.SlicePtrFromStrings(s.Args)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "arguments: %v", err)
	}
	envv, err := syscall.SlicePtrFromStrings(s.Env)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "environment: %v", err)
	}
	p.argv, p.envv = &argv[0], &envv[0]
	if u := s.User; u != nil {
		p.setUser, p.uid, p.gid, p.ngroups = true, uintptr(u.UID), uintptr(u.GID), uintptr(len(u.Groups))
		groups := make([]uint32, len(u.Groups)+1)
		for i, g := range u.Groups {
			groups[i] = uint32(g)
		}
		p.groups = &groups[0]
	}
	if n := s.Limits.Processes; n > 0 {
		p.limits[0].which, p.limits[0].set, p.limits[0].rlim = unix.RLIMIT_NPROC, true, [2]uint64{uint64(n), uint64(n)}
	}
	if n := s.Limits.OpenFiles; n > 0 {
		p.limits[1].which, p.limits[1].set, p.limits[1].rlim = unix.RLIMIT_NOFILE, true, [2]uint64{uint64(n), uint64(n)}
	}
	for i, fd := range s.Files {
		if fd <= 2 {
			return nil, engi.Errorf(engi.Internal, "descriptor %d cannot become a standard stream", fd)
		}
		p.files[i] = uintptr(fd)
	}
	return p, nil
}

// forkExec returns only in the parent.
//
//go:noinline
//go:norace
//go:nocheckptr
func forkExec(p *execParams) (pid, errno uintptr) {
	pid, errno = vforkExec(p)
	afterFork()
	return pid, errno
}

// vforkExec must have a stack frame of its own. The parent leaves this frame at once, because
// the child has overwritten it.
//
//go:noinline
//go:norace
//go:nocheckptr
func vforkExec(p *execParams) (pid, errno uintptr) {
	var (
		e syscall.Errno
		i int
	)
	beforeFork() // from here on only assembly, and functions without a stack check
	pid, errno = vfork(syscall.CLONE_VFORK | syscall.CLONE_VM | uintptr(syscall.SIGCHLD))
	if pid != 0 || errno != 0 {
		return pid, errno
	}

	p.step = stepSession
	if _, _, e = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		goto failed
	}
	if p.cgroup != 0 {
		p.step = stepCgroup
		if _, _, e = syscall.RawSyscall(syscall.SYS_WRITE, p.cgroup, uintptr(unsafe.Pointer(&p.zero[0])), 1); e != 0 {
			goto failed
		}
	}
	p.step = stepLimit
	for i = 0; i < len(p.limits); i++ {
		if !p.limits[i].set {
			continue
		}
		if _, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, p.limits[i].which, uintptr(unsafe.Pointer(&p.limits[i].rlim[0])), 0, 0, 0); e != 0 {
			goto failed
		}
	}
	if p.chdirFirst {
		p.step = stepDir
		if _, _, e = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(p.dir)), 0, 0); e != 0 {
			goto failed
		}
	}
	if p.setUser {
		p.step = stepUser
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETGROUPS, p.ngroups, uintptr(unsafe.Pointer(p.groups)), 0); e != 0 {
			goto failed
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETRESGID, p.gid, p.gid, p.gid); e != 0 {
			goto failed
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETRESUID, p.uid, p.uid, p.uid); e != 0 {
			goto failed
		}
	}
	if !p.chdirFirst {
		p.step = stepDir
		if _, _, e = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(p.dir)), 0, 0); e != 0 {
			goto failed
		}
	}
	p.step = stepFile
	for i = 0; i < len(p.files); i++ {
		if _, _, e = syscall.RawSyscall(syscall.SYS_DUP3, p.files[i], uintptr(i), 0); e != 0 {
			goto failed
		}
	}
	if p.terminal {
		p.step = stepTerminal
		if _, _, e = syscall.RawSyscall(syscall.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			goto failed
		}
	}
	p.step = stepExec
	// All signals have been blocked since before the fork, and exec resets their
	// handlers, which saves sixty system calls here. A signal between these two
	// calls is handled as if the parent had received it, since its thread is
	// suspended in the meantime.
	if _, _, e = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&p.unblocked)), 0, unsafe.Sizeof(p.unblocked), 0, 0); e != 0 {
		goto failed
	}
	_, _, e = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(p.path)), uintptr(unsafe.Pointer(p.argv)), uintptr(unsafe.Pointer(p.envv)))
failed:
	p.errno = e
	for {
		syscall.RawSyscall(syscall.SYS_EXIT, 127, 0, 0)
	}
}
