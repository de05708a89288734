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
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, errGone
	}
	// The second field is a name in parentheses, which may contain anything.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const start = 22 - 3 // fields are numbered from 1, and the first two have been removed
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[start], 10, 64)
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
// command lines.
func (p *Provider) scan() (map[engi.SandboxID][]procRef, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[engi.SandboxID][]procRef{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		start, err := startTime(pid)
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		if id, ok := p.owner(raw); ok {
			found[id] = append(found[id], procRef{PID: pid, Start: start})
		}
	}
	return found, nil
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
	// A killed process may have just forked another process, which has no
	// command line yet: stop after two scans in a row without a process.
	clean := 0
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		found, err := p.scan()
		if err != nil {
			return err
		}
		for _, ref := range found[id] {
			if proc, err := openProcess(ref); err == nil {
				proc.kill()
				proc.close()
			}
		}
		if clean++; len(found[id]) > 0 {
			clean = 0
		}
		if clean == 2 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes do not exit", len(found[id]))
		}
		time.Sleep(wait)
	}
}
