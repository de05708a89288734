package gvisor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/provider/gvisor/cgroup"
)

// watchMemory ends the machine when its memory is full, on hosts where the
// kernel does not end it as a whole.
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
		m.killFull() // half of it was killed while nobody watched
	}
	if event == nil {
		return
	}
	m.watched.Go(func() {
		defer event.Close()
		go func() { <-m.done; event.SetDeadline(time.Unix(1, 0)) }()
		// The kernel is about to kill one process of it, which may be any;
		// what would be left is no sandbox. The removal of the group is
		// an event too, after the end.
		if _, err := event.Read(make([]byte, 8)); err == nil {
			m.killFull()
		}
	})
}

func (m *machine) killFull() {
	m.mu.Lock()
	m.full = m.full || !m.closing
	m.mu.Unlock()
	m.kill()
}

// Memory grows at most so fast, in bytes per second; the watch looks often
// enough to notice.
const growth = 2 << 30

// pollMemory watches a machine without a control group.
func (m *machine) pollMemory() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-timer.C:
		}
		t, err := m.tally()
		if err != nil {
			timer.Reset(time.Second)
			continue
		}
		m.mu.Lock()
		room := m.size.Memory - t.memory
		m.mu.Unlock()
		if room < 0 {
			m.killFull()
			return
		}
		wait := time.Duration(float64(room) / growth * float64(time.Second))
		timer.Reset(min(max(wait, 20*time.Millisecond), time.Second))
	}
}

// A tally is what the processes of a machine use, read from /proc.
type tally struct {
	memory int64 // bytes
	cpu    time.Duration
}

// tally adds up the machine's processes. What programs inside use is shared
// between the sandbox's kernel and the processes that run them: it counts
// once.
func (m *machine) tally() (tally, error) {
	var t tally
	var shared int64
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
		t.cpu += processorTime(pid)
	}
	t.memory += shared
	return t, nil
}

// descendants returns all processes below pid.
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

// processorTime returns what a process and its dead children have used.
func processorTime(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	const utime, end, hertz = 14 - 3, 18 - 3, 100
	var ticks int64
	for i := utime; i < end && i < len(fields); i++ {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / hertz
}
