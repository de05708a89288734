package guestd

import (
	"time"

	"golang.org/x/sys/unix"
)

// monitor watches whether a run reaches limits that the kernel enforces
// without telling us. It belongs to the run's goroutine.
type monitor struct {
	paths []string // of the file systems that may fill
	limit int      // processes and threads; 0 means not watched
	count func() int
	timer *time.Timer
	every time.Duration

	processes    bool // the limit was reached at some moment
	processesNow bool // and at the last look
	disk         bool
}

const (
	firstLook = 20 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

func (s *Server) newMonitor(r *run) *monitor {
	a := s.account()
	m := &monitor{paths: []string{a.WorkDir}, every: firstLook, timer: time.NewTimer(firstLook)}
	if !s.o.Twin {
		m.paths = append(m.paths, "/tmp") // one of its own, as large
	}
	if !s.o.Twin && a.Processes > 0 {
		m.limit, m.count = a.Processes, s.table.Count
	}
	return m
}

func (m *monitor) stop()                  { m.timer.Stop() }
func (m *monitor) tick() <-chan time.Time { return m.timer.C }

func (m *monitor) look() {
	m.every = min(2*m.every, lastLook)
	m.timer.Reset(m.every)
	if m.limit > 0 {
		// A fork in flight counts already for the kernel and not yet for us,
		// so almost reached is reached.
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

// busy is a cheap first question before the exact count: the number of tasks
// the kernel has.
func (m *monitor) busy() bool {
	var si unix.Sysinfo_t
	return unix.Sysinfo(&si) != nil || int(si.Procs) >= m.limit/2
}
