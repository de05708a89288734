package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// watchMemory ends the machine when its memory is full, on hosts where the kernel
// does not kill all of its processes together.
func (m *machine) watchMemory() {
	if m.group == nil {
		m.watched.Go(m.pollMemory)
		return
	}
	event, err := m.group.WatchMemory()
	if err != nil {
		m.p.log.Warn("memory is not watched", "sandbox", m.id, "error", err)
		return
	}
	if m.group.MemoryKills() > 0 && m.p.groups.Version() == cgroup.V1 {
		m.killForMemory() // the kernel killed a part of the machine while it had no owner
	}
	if event == nil {
		return
	}
	m.watched.Go(func() {
		defer event.Close()
		go func() { <-m.done; event.SetDeadline(time.Unix(1, 0)) }()
		// The kernel is about to kill one of the processes, and the sandbox is
		// broken without this process. The removal of the group, after the end, is an
		// event too.
		if _, err := event.Read(make([]byte, 8)); err == nil {
			m.killForMemory()
		}
	})
}

func (m *machine) killForMemory() {
	m.mu.Lock()
	m.outOfMemory = m.outOfMemory || !m.closing
	m.mu.Unlock()
	m.kill()
}

// maxGrowth is the maximum growth of memory, in bytes per second. It determines the
// polling interval.
const maxGrowth = 2 << 30

// maxPoll is the maximum polling interval. Processor time of processes with a shorter life
// may not be counted.
const maxPoll = 250 * time.Millisecond

// pollMemory ends a machine without a control group when its memory is full.
func (m *machine) pollMemory() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-timer.C:
		}
		t, err := m.hostUsage()
		if err != nil {
			timer.Reset(maxPoll)
			continue
		}
		m.mu.Lock()
		free := m.size.Memory - t.memory
		m.mu.Unlock()
		if free < 0 {
			m.killForMemory()
			return
		}
		wait := time.Duration(float64(free) / maxGrowth * float64(time.Second))
		timer.Reset(min(max(wait, 20*time.Millisecond), maxPoll))
	}
}

// hostUsage is the resource usage of a machine's processes on the host.
type hostUsage struct {
	memory int64 // bytes
	cpu    time.Duration
}

// hostUsage adds up the use of the machine's processes from /proc. The memory of
// programs is shared between the sandbox's kernel and the processes that run
// them, and is counted once.
func (m *machine) hostUsage() (hostUsage, error) {
	var t hostUsage
	var shared int64
	used := map[procRef]time.Duration{}
	pids := append(descendants(m.sandbox.ref.PID, nil), m.sandbox.ref.PID)
	if m.gofer != nil {
		pids = append(pids, m.gofer.ref.PID)
	}
	for _, pid := range pids {
		status, err := readStatus(pid)
		if err != nil {
			if pid == m.sandbox.ref.PID {
				return t, err
			}
			continue
		}
		t.memory += kibibytes(status["RssAnon"])
		shared = max(shared, kibibytes(status["RssShmem"]))
		if ref, cpu, ok := processorTime(pid); ok {
			used[ref] = cpu
		}
	}
	t.memory += shared
	t.cpu = m.cpuTotal.update(used)
	return t, nil
}

// A cpuTotal adds up the processor time of processes, including those that have
// ended. It is safe for concurrent use.
type cpuTotal struct {
	mu    sync.Mutex
	last  map[procRef]time.Duration // processor times of the processes at the last update
	ended time.Duration             // sum of the processor times of ended processes
}

// update takes the times of the current processes, and returns the sum over current and ended processes.
func (l *cpuTotal) update(used map[procRef]time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ref, cpu := range l.last {
		if now, there := used[ref]; !there {
			l.ended += cpu
		} else if now < cpu {
			used[ref] = cpu // a concurrent update has a later value
		}
	}
	l.last = used
	sum := l.ended
	for _, cpu := range used {
		sum += cpu
	}
	return sum
}

// descendants appends the descendants of pid to found.
func descendants(pid int, found []int) []int {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return found
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(raw)) {
			if child, err := strconv.Atoi(s); err == nil {
				found = descendants(child, append(found, child))
			}
		}
	}
	return found
}

func readStatus(pid int) (map[string]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	status := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, val, _ := strings.Cut(lines.Text(), ":")
		status[key] = strings.TrimSpace(val)
	}
	return status, lines.Err()
}

func kibibytes(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	return n << 10
}

// processorTime returns a process and the processor time that it has used.
func processorTime(pid int) (procRef, time.Duration, bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procRef{}, 0, false
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	// Fields are numbered from 1, and the first two have been removed.
	const utime, stime, start, hertz = 14 - 3, 15 - 3, 22 - 3, 100
	if len(fields) <= start {
		return procRef{}, 0, false
	}
	user, err1 := strconv.ParseInt(fields[utime], 10, 64)
	system, err2 := strconv.ParseInt(fields[stime], 10, 64)
	began, err3 := strconv.ParseUint(fields[start], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return procRef{}, 0, false
	}
	return procRef{PID: pid, Start: began}, time.Duration(user+system) * time.Second / hertz, true
}
