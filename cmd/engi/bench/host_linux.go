package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Host describes the machine and the time of a measurement.
type Host struct {
	CPU       string    `json:"cpu"`
	CPUs      int       `json:"cpus"`
	MemoryMiB int64     `json:"memory_mib"`
	Kernel    string    `json:"kernel"`
	KVM       bool      `json:"kvm"` // /dev/kvm can be opened, which does not prove that it works
	Root      bool      `json:"root"`
	Load      string    `json:"load"` // load average of the last minute, at the end
	Engi      string    `json:"engi"`
	Go        string    `json:"go"`
	Time      time.Time `json:"time"`
}

// monotonic returns the time of the clock that perf can use for its samples.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// SpansTo returns a Span that appends a line with both times, in nanoseconds,
// to a file, and a function that closes the file and reports what failed.
func SpansTo(file string) (Span, func() error, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, nil, engi.Errorf(engi.Invalid, "%v", err)
	}
	var mu sync.Mutex
	w := bufio.NewWriter(f)
	span := func() func() {
		began := monotonic()
		return func() {
			ended := monotonic()
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(w, "%d %d\n", began, ended) // w keeps the error
		}
	}
	done := func() error {
		if err := errors.Join(w.Flush(), f.Close()); err != nil {
			return engi.Errorf(engi.Unavailable, "write %s: %v", file, err)
		}
		return nil
	}
	return span, done, nil
}

// Stamp describes this machine now.
func Stamp(version string) Host {
	h := Host{CPUs: runtime.NumCPU(), Root: os.Geteuid() == 0, Engi: version, Go: runtime.Version(), Time: time.Now().UTC().Truncate(time.Second)}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				h.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryMiB = int64(info.Totalram) * int64(info.Unit) >> 20
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		h.KVM = true
		f.Close()
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		h.Load, _, _ = strings.Cut(string(load), " ")
	}
	return h
}

// Shares returns the memory of all processes of machines below
// dir: those that name it on their command line and all their descendants.
// A page that k processes share counts 1/k for each.
func Shares(dir string) (bytes int64, processes int, err error) {
	parents, ours := map[int]int{}, map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, 0, engi.Errorf(engi.Unavailable, "%v", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil && strings.Contains(string(line), dir) {
			ours[pid] = true
		}
		parents[pid] = parentOf(pid)
	}
	for pid := range parents {
		for up := pid; up > 1; up = parents[up] {
			if ours[up] {
				share, err := shareOf(pid)
				if errors.Is(err, fs.ErrNotExist) {
					break // the process has just ended
				}
				if err != nil {
					return 0, 0, err
				}
				bytes += share
				processes++
				break
			}
		}
	}
	return bytes, processes, nil
}

func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may contain anything, including parentheses.
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(" "))
	if fields := strings.Fields(string(rest)); ok && len(fields) > 1 {
		n, _ := strconv.Atoi(fields[1])
		return n
	}
	return 0
}

func shareOf(pid int) (int64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return 0, fs.ErrNotExist
		}
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, nil
}
