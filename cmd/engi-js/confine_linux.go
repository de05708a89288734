package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The host starts the process in new namespaces (network, PID, mount, IPC, UTS). The
// process drops everything else itself, before it reads a byte of a program.

const (
	nobody = 65534
	// maxAddressSpace is far above the limit of the interpreter, in case that is
	// taken over, in bytes.
	maxAddressSpace = 4 << 30
	// cpuSeconds bounds the processor time of a helper over its life.
	cpuSeconds = 600
)

func confine() error {
	debug.SetMemoryLimit(128 << 20)
	// A user namespace with one user has no other to change to. Its capabilities
	// are useless without the system calls that need them.
	empty, alone := os.Getenv("ENGI_JS_ROOT"), os.Getenv("ENGI_JS_ALONE") != ""
	if empty == "" {
		return fmt.Errorf("ENGI_JS_ROOT is not set")
	}
	os.Clearenv()
	if err := unix.Chroot(empty); err != nil {
		return fmt.Errorf("chroot: %v", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, l := range []struct {
		which int
		value uint64
	}{
		{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_FSIZE, 0}, {unix.RLIMIT_AS, maxAddressSpace}, {unix.RLIMIT_CPU, cpuSeconds}, {unix.RLIMIT_NOFILE, 16},
		{unix.RLIMIT_MEMLOCK, 0}, {unix.RLIMIT_MSGQUEUE, 0},
	} {
		if err := unix.Setrlimit(l.which, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("limit %d: %v", l.which, err)
		}
	}
	if !alone {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("setgroups: %v", err)
		}
		if err := syscall.Setgid(nobody); err != nil {
			return fmt.Errorf("setgid: %v", err)
		}
		if err := syscall.Setuid(nobody); err != nil {
			return fmt.Errorf("setuid: %v", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %v", err)
	}
	return filter()
}

// allowedSyscalls are those that the Go runtime and the interpreter need once they
// run: for open files, sleeping, memory, threads, the time, and to exit.
var allowedSyscalls = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_FCNTL,
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MREMAP, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN,
	unix.SYS_SIGALTSTACK, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_TGKILL,
	unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM, unix.SYS_RESTART_SYSCALL, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER,
}

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArg0   = 16
	offsetArg2   = 32
)

// filter installs a seccomp filter for all threads: memory cannot be made executable,
// clone can only create threads, and system calls that are not allowed kill the
// process.
func filter() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no filter for %s", runtime.GOARCH)
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		set   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		allow = unix.SECCOMP_RET_ALLOW
		kill  = unix.SECCOMP_RET_KILL_PROCESS
	)
	p := []unix.SockFilter{
		{Code: load, K: offsetArch},
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: kill},
		{Code: load, K: offsetNumber},
	}
	for _, nr := range allowedSyscalls {
		p = append(p, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: allow})
	}
	for _, nr := range []uint32{unix.SYS_MMAP, unix.SYS_MPROTECT} {
		p = append(p,
			unix.SockFilter{Code: equal, K: nr, Jf: 4},
			unix.SockFilter{Code: load, K: offsetArg2},
			unix.SockFilter{Code: set, K: unix.PROT_EXEC, Jt: 1},
			unix.SockFilter{Code: ret, K: allow},
			unix.SockFilter{Code: ret, K: kill},
		)
	}
	p = append(p,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		unix.SockFilter{Code: load, K: offsetArg0},
		unix.SockFilter{Code: set, K: unix.CLONE_THREAD, Jf: 1},
		unix.SockFilter{Code: ret, K: allow},
		unix.SockFilter{Code: ret, K: kill},
		// The flags of clone3 cannot be checked. Without it, clone is used.
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE3, Jf: 1},
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		// The TypeScript compiler checks for a terminal.
		unix.SockFilter{Code: equal, K: unix.SYS_IOCTL, Jf: 1},
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOTTY)},
		unix.SockFilter{Code: ret, K: kill},
	)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %v", err)
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %v", errno)
	}
	return nil
}
