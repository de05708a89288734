package child

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
)

// A Spec is all about a process to start. Nothing is taken from the server's
// own environment.
type Spec struct {
	Path   string   // absolute
	Args   []string // the program's name first
	Env    []string
	Dir    string
	User   *User  // nil keeps the server's
	Limits Limits // zero fields keep the server's
	Files  [3]int // descriptors for 0, 1 and 2; each above 2

	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// Placed enters Dir before it becomes User, who may not be allowed to.
	Placed bool
}

// A User is who a process runs as.
type User struct {
	UID, GID int
	Groups   []int
}

// Limits bound every process a child becomes or makes.
type Limits struct {
	Processes int // processes and threads of its user
	OpenFiles int
	Group     int // descriptor of a cgroup's cgroup.procs to join; 0 means none
}

// Go's own fork cannot set limits, and a limit set from outside comes after
// the program's first instructions. So the steps between fork and exec are
// here. They follow the rules of package syscall: once the runtime was told of
// the fork, the child calls nothing that could allocate or grow the stack.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:noescape
func vfork(flags uintptr) (pid, errno uintptr)

// The step at which a child failed.
const (
	stepFork = iota
	stepSession
	stepGroup
	stepLimit
	stepUser
	stepDir
	stepFile
	stepTerminal
	stepExec
)

var stepNames = [...]string{"fork", "make a session", "join the process group", "set limits", "become the user",
	"enter the working directory", "connect standard streams", "take the terminal", "execute"}

// plan is what the child needs, in the form the kernel takes it.
type plan struct {
	path, dir  *byte
	argv, envv **byte
	groups     *uint32
	ngroups    uintptr
	uid, gid   uintptr
	become     bool
	group      uintptr
	zero       [1]byte
	limits     [2]struct {
		which uintptr
		set   bool
		rlim  [2]uint64
	}
	files     [3]uintptr
	terminal  bool
	placed    bool
	unblocked uint64 // the empty signal mask

	// Written by the child in the parent's memory.
	step  uintptr
	errno syscall.Errno
}

func fork(s *Spec) (pid int, err error) {
	p, err := newPlan(s)
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
	// The child has left already; nobody else must find its body.
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
		return engi.Errorf(engi.Invalid, "cwd '%s' does not exist", s.Dir).WithRemedy("name a directory the user may enter (%s)", errno)
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

func newPlan(s *Spec) (*plan, error) {
	p := &plan{zero: [1]byte{'0'}, terminal: s.Terminal, placed: s.Placed, group: uintptr(s.Limits.Group)}
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
		p.become, p.uid, p.gid, p.ngroups = true, uintptr(u.UID), uintptr(u.GID), uintptr(len(u.Groups))
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

// forkExec returns in the parent only.
//
//go:noinline
//go:norace
//go:nocheckptr
func forkExec(p *plan) (pid, errno uintptr) {
	pid, errno = vforkExec(p)
	afterFork()
	return pid, errno
}

// vforkExec must be a frame of its own: the parent leaves it at once, since
// the child has written all over it.
//
//go:noinline
//go:norace
//go:nocheckptr
func vforkExec(p *plan) (pid, errno uintptr) {
	var (
		e syscall.Errno
		i int
	)
	beforeFork() // from here on only assembly and functions that need no stack check
	pid, errno = vfork(syscall.CLONE_VFORK | syscall.CLONE_VM | uintptr(syscall.SIGCHLD))
	if pid != 0 || errno != 0 {
		return pid, errno
	}

	p.step = stepSession
	if _, _, e = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		goto failed
	}
	if p.group != 0 {
		p.step = stepGroup
		if _, _, e = syscall.RawSyscall(syscall.SYS_WRITE, p.group, uintptr(unsafe.Pointer(&p.zero[0])), 1); e != 0 {
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
	if p.placed {
		p.step = stepDir
		if _, _, e = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(p.dir)), 0, 0); e != 0 {
			goto failed
		}
	}
	if p.become {
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
	if !p.placed {
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
	// All signals have been blocked since before the fork, and executing resets
	// their handlers, so there is no need to reset each of them here, which
	// would be sixty calls. A signal in the instant between these two calls is
	// handled as if the parent had got it, in whose place this thread runs.
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
