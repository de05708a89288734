package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A procRef identifies a process until the host reboots. A PID alone may be
// reused.
type procRef struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the host's boot
}

// A process is a running process of a machine, not necessarily a child. It is safe
// for concurrent use.
type process struct {
	ref  procRef
	file *os.File // a pidfd, registered with the poller, so that waiting takes no thread
	raw  syscall.RawConn
}

var errGone = errors.New("the process is gone")

// openProcess returns the process that ref identifies, or errGone.
func openProcess(ref procRef) (*process, error) {
	fd, err := unix.PidfdOpen(ref.PID, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH || err == unix.EINVAL {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %v", err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	// From now on the PID cannot be reused. If it was reused earlier, the start time differs.
	start, err := startTime(ref.PID)
	if err != nil || start != ref.Start {
		file.Close()
		return nil, errGone
	}
	return &process{ref: ref, file: file, raw: raw}, nil
}

// wait waits until the process has ended or p is closed.
func (p *process) wait() {
	p.raw.Read(func(fd uintptr) bool { return ended(int(fd)) })
	p.raw.Control(func(fd uintptr) {
		// Reap the process: if this process is init, orphans are reparented to it.
		unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
	})
}

func ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}

// kill kills the process, if it is still running.
func (p *process) kill() {
	p.raw.Control(func(fd uintptr) {
		unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	})
}

func (p *process) close() { p.file.Close() }

// startTime returns the start time of a process, in ticks since the host's boot.
func startTime(pid int) (uint64, error) {
	s, err := statOf(pid)
	return s.start, err
}

// stat is what the kernel tells of a process in /proc/PID/stat (see proc(5)).
type stat struct {
	parent  int    // PID
	flags   uint64 // PF_* of the kernel
	threads int
	start   uint64 // ticks since the host's boot
}

func statOf(pid int) (s stat, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, errGone
	}
	// The second field is a name in parentheses, which may contain anything.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const parent, flags, threads, start = 4 - 3, 9 - 3, 20 - 3, 22 - 3 // fields are numbered from 1, and the first two have been removed
	if len(fields) <= start {
		return s, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	if s.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return s, err
	}
	if s.flags, err = strconv.ParseUint(fields[flags], 10, 64); err != nil {
		return s, err
	}
	if s.threads, err = strconv.Atoi(fields[threads]); err != nil {
		return s, err
	}
	s.start, err = strconv.ParseUint(fields[start], 10, 64)
	return s, err
}

// executing reports whether a process may be about to execute a program, so that its command line does not
// tell yet to whom it belongs: it has none while the kernel replaces its memory, and until then a
// child of a daemon, which has one thread only, has the daemon's. A process that started more than stopTimeout
// ago has no command line for another reason.
func (s stat) executing(pid int, cmdline []byte) bool {
	const exiting, kernelThread = 0x4, 0x200000 // PF_EXITING, PF_KTHREAD
	if s.flags&(exiting|kernelThread) != 0 || pid == os.Getpid() || age(s.start) > stopTimeout {
		return false
	}
	if len(cmdline) == 0 {
		return true
	}
	if s.threads > 1 {
		return false
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	other, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(own, other)
}

// age returns how long ago a process started.
func age(start uint64) time.Duration {
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture that engi runs on
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Duration(start)*tick
}

// hostBoot returns the ID of the host's boot.
func hostBoot() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// scan finds the processes of this provider's machines by the directory in their
// command lines. A process that is about to execute a program belongs to the machine of its nearest
// ancestor that belongs to one; the others, under the empty ID, may belong to any machine.
func (p *Provider) scan() (found, executing map[engi.SandboxID][]procRef, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	found, executing = map[engi.SandboxID][]procRef{}, map[engi.SandboxID][]procRef{}
	parents, owners := map[int]int{}, map[int]engi.SandboxID{}
	var unknown []procRef
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := statOf(pid)
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		parents[pid] = stat.parent
		if id, ok := p.owner(raw); ok {
			found[id] = append(found[id], procRef{PID: pid, Start: stat.start})
			owners[pid] = id
		} else if stat.executing(pid, raw) {
			unknown = append(unknown, procRef{PID: pid, Start: stat.start})
		}
	}
	for _, ref := range unknown {
		pid := ref.PID
		for range parents { // as a limit: PIDs may have been reused while /proc was being read
			if owners[pid] != "" || pid == 0 {
				break
			}
			pid = parents[pid]
		}
		executing[owners[pid]] = append(executing[owners[pid]], ref)
	}
	return found, executing, nil
}

// owner returns the machine to which a process with this command line belongs.
func (p *Provider) owner(cmdline []byte) (engi.SandboxID, bool) {
	prefix := []byte(rootFlag + filepath.Join(p.opt.Dir, "m") + "/")
	for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
		rest, ok := bytes.CutPrefix(arg, prefix)
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(string(rest), "/")
		id, err := engi.ParseSandboxID(name)
		return id, err == nil
	}
	return "", false
}

// killAll kills every process of a machine, including those without a record, and
// returns when no process is left.
func (p *Provider) killAll(id engi.SandboxID, deadline time.Time) error {
	// A killed process may have forked another one while /proc was being read: stop after two
	// scans in a row without a process.
	clean := 0
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		found, executing, err := p.scan()
		if err != nil {
			return err
		}
		for _, ref := range found[id] {
			if proc, err := openProcess(ref); err == nil {
				proc.kill()
				proc.close()
			}
		}
		if clean++; len(found[id])+len(executing[id])+len(executing[""]) > 0 {
			clean = 0
		}
		if clean == 2 {
			return nil
		}
		if time.Now().After(deadline) {
			if len(found[id]) == 0 {
				return nil // what executes nothing for so long belongs to no machine
			}
			return fmt.Errorf("%d processes do not exit", len(found[id]))
		}
		time.Sleep(wait)
	}
}
