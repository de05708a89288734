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

// maxPoll is also what a program may use of the processor, at most, without
// being counted.
const maxPoll = 250 * time.Millisecond

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
			timer.Reset(maxPoll)
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
		timer.Reset(min(max(wait, 20*time.Millisecond), maxPoll))
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
	t.cpu = m.ledger.enter(used)
	return t, nil
}

// A ledger adds up the processor time of processes that come and go: nothing
// else remembers what the gone ones have used. It is safe for concurrent use.
type ledger struct {
	mu   sync.Mutex
	last map[procRef]time.Duration // of those that were there
	past time.Duration             // of those that are gone
}

// enter takes what is used by those that are there, and returns what all have
// used.
func (l *ledger) enter(used map[procRef]time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ref, cpu := range l.last {
		if now, there := used[ref]; !there {
			l.past += cpu
		} else if now < cpu {
			used[ref] = cpu // looked at by two at once, the other later
		}
	}
	l.last = used
	sum := l.past
	for _, cpu := range used {
		sum += cpu
	}
	return sum
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

// processorTime names a process and returns what it has used.
func processorTime(pid int) (procRef, time.Duration, bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procRef{}, 0, false
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	// Fields are counted from 1, and two are cut off.
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
