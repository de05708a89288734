package main

// starting makes a sandbox start with less work. What it gains is in
// docs/performance.md.
var starting = []change{
	// Upstream drops each capability from the bounding set of each thread, and each
	// drop interrupts all threads: half of what applying capabilities is for is
	// also had from two bits for each thread. Without capabilities of its own, a
	// thread can only gain some when it executes a file, as root or because the
	// file has them. Locked NOROOT forbids the first, NO_NEW_PRIVS the second.
	{
		file: "runsc/cmd/sandboxsetup/caps_unsafe.go",
		old: `		for c := capability.Cap(0); c <= r.lastCap; c++ {
			if r.bounding&(uint64(1)<<uint(c)) != 0 {
				continue
			}
			if err := allThreadsPrctl(unix.PR_CAPBSET_DROP, uintptr(c), 0); err != nil {
				return fmt.Errorf("dropping bounding capability %v on all threads: %w", c, err)
			}
		}
	}
`,
		new: `		if err := allThreadsPrctl(unix.PR_SET_SECUREBITS, noRoot|noRootLocked, 0); err != nil {
			return fmt.Errorf("setting the secure bits of all threads: %w", err)
		}
	}
	if err := allThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("setting no_new_privs on all threads: %w", err)
	}
`,
	},
	{
		file: "runsc/cmd/sandboxsetup/caps_unsafe.go",
		old:  `// capHeader mirrors`,
		new: `// Bits of linux/securebits.h.
const (
	noRoot       = 1 << 0
	noRootLocked = 1 << 1
)

// capHeader mirrors`,
	},
	// No session traces system calls, so nobody looks the points up of which there
	// are two for each possible number of one.
	{
		file: "pkg/sentry/seccheck/metadata.go",
		old: `		genericInit()
		archInit()
`,
		new: `		genericInit()
`,
	},
	// What unmounts /proc later, with the capabilities that the sandbox no longer
	// has then, is a program of its own upstream: another start of this one. A
	// copy of the process can wait for that as well.
	{
		file: "runsc/cmd/sentry/sentrycmd/boot.go",
		old: `			cmd, w := sandboxsetup.ExecProcUmounter()
			if b.willReexec() {
				defer cmd.Wait()
				defer w.Close()
			} else {
				// Keep ` + "`w`" + ` alive until UmountProcFile uses it.
				b.procMountSyncFile = w
			}
`,
		new: `			var w *os.File
			if b.willReexec() {
				var cmd interface{ Wait() error }
				cmd, w = sandboxsetup.ExecProcUmounter()
				defer cmd.Wait()
				defer w.Close()
			} else {
				if w, err = sandboxsetup.ForkProcUmounter(); err != nil {
					util.Fatalf("starting the umounter of /proc: %v", err)
				}
				b.procMountSyncFile = w // it must stay open until UmountProcFile
			}
`,
	},
	{
		file: "runsc/cmd/sandboxsetup/umounter_unsafe.go",
		new: `package sandboxsetup

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

var procPath = [...]byte{'/', 'p', 'r', 'o', 'c', 0}

// ForkProcUmounter is like ExecProcUmounter, but nothing is executed.
func ForkProcUmounter() (*os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	pid, errno := forkProcUmounter(uintptr(p[0]), uintptr(p[1]))
	unix.Close(p[0])
	w := os.NewFile(uintptr(p[1]), "procfs umount sync FD")
	if errno != 0 {
		w.Close()
		return nil, errno
	}
	_ = pid // UmountProcFile waits for any
	return w, nil
}

// forkProcUmounter returns in the parent only. The child has one thread of
// many, so it takes no lock, allocates nothing and needs no more stack.
//
//go:norace
//go:noinline
func forkProcUmounter(r, w uintptr) (pid uintptr, errno unix.Errno) {
	var b byte
	beforeFork()
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return pid, errno
	}
	afterForkInChild()
	unix.RawSyscall(unix.SYS_CLOSE, w, 0, 0) // so that the end of the parent is seen
	n, _, errno := unix.RawSyscall(unix.SYS_READ, r, uintptr(unsafe.Pointer(&b)), 1)
	if errno == 0 && n == 1 {
		_, _, errno = unix.RawSyscall(unix.SYS_UMOUNT2, uintptr(unsafe.Pointer(&procPath[0])), unix.MNT_DETACH, 0)
	} else if errno == 0 {
		errno = unix.EPIPE
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
}
`,
	},
	// Sentry and programs wait for each other awake, which makes system calls
	// faster as long as there are processors to spare, and they measure whether
	// that helps. A short program is over before that tells much, and by then has
	// used a third more of the processors; so only what works for longer does that,
	// and after a pause what did before.
	{
		file: "pkg/sentry/platform/systrap/metrics.go",
		old: `	fastPathContextLimit = uint32(maxSysmsgThreads * 2)

	for {
`,
		new: `	fastPathContextLimit = uint32(maxSysmsgThreads * 2)

	time.Sleep(fastPathDelay)
	began := time.Now().Add(-fastPathDelay)
	for {
`,
	},
	{
		file: "pkg/sentry/platform/systrap/metrics.go",
		old: `			fastpath.park()
		}
`,
		new: `			long := time.Since(began) > 2*fastPathDelay // it had a fast path for a while
			fastpath.park()
			began = time.Now()
			if !long {
				time.Sleep(fastPathDelay)
			}
		}
`,
	},
	{
		file: "pkg/sentry/platform/systrap/metrics.go",
		old: `	recordingPeriod                = 400 * time.Microsecond
`,
		new: `	recordingPeriod                = 400 * time.Microsecond
	fastPathDelay                  = 50 * time.Millisecond
`,
	},
}
