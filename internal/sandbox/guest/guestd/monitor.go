package guestd

import (
	"time"

	"golang.org/x/sys/unix"
)

// monitor polls whether a run reaches the limits that the kernel enforces without
// notice. It is owned by the run's goroutine.
type monitor struct {
	paths []string // one path on each file system that may fill up
	limit int      // maximum number of processes and threads; 0 means that they are not watched
	count func() int
	timer *time.Timer
	every time.Duration

	processes    bool // the process limit was reached at a check
	processesNow bool // the process limit was reached at the last check
	disk         bool
}

const (
	minCheckInterval = 20 * time.Millisecond
	maxCheckInterval = 200 * time.Millisecond
)

func (s *Server) newMonitor(r *run) *monitor {
	cfg := s.settings()
	m := &monitor{paths: []string{cfg.WorkDir}, every: minCheckInterval, timer: time.NewTimer(minCheckInterval)}
	if !s.o.InProcess {
		m.paths = append(m.paths, "/tmp") // a file system of its own
	}
	if !s.o.InProcess && cfg.Processes > 0 {
		m.limit, m.count = cfg.Processes, s.table.Count
	}
	return m
}

func (m *monitor) stop()                  { m.timer.Stop() }
func (m *monitor) tick() <-chan time.Time { return m.timer.C }

func (m *monitor) check() {
	m.every = min(2*m.every, maxCheckInterval)
	m.timer.Reset(m.every)
	if m.limit > 0 {
		// The kernel counts a fork in progress that is not in /proc yet, so
		// nearly reaching the limit counts as reaching it.
		m.processesNow = m.busy() && m.count() >= m.limit-max(1, m.limit/32)
		m.processes = m.processes || m.processesNow
	}
	for _, path := range m.paths {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil {
			full := st.Blocks > 0 && int64(st.Bavail)*st.Bsize < 64<<10
			m.disk = m.disk || full || st.Files > 0 && st.Ffree == 0
		}
	}
}

// busy is a cheap check before the exact count: the kernel's number of tasks.
func (m *monitor) busy() bool {
	var si unix.Sysinfo_t
	return unix.Sysinfo(&si) != nil || int(si.Procs) >= m.limit/2
}
