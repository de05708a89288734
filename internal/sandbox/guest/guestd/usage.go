package guestd

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

func (s *Server) usage(w http.ResponseWriter, r *http.Request) error {
	return wire.WriteJSON(w, s.measure(readMemory()))
}

// measure returns the resources that the sandbox uses now. Its use of memory comes from m.
func (s *Server) measure(m memory) wire.Usage {
	u := wire.Usage{CPU: s.cpu(), Memory: m.total - m.available, MemoryCache: m.cached, Processes: s.table.Count()}
	var st unix.Statfs_t
	if unix.Statfs(s.path("/"), &st) == nil {
		u.DiskUsed, u.DiskTotal = int64(st.Blocks-st.Bfree)*st.Bsize, int64(st.Blocks)*st.Bsize
	}
	return u
}

// cpu returns the processor time of all processes of the sandbox, including ended ones.
func (s *Server) cpu() time.Duration {
	total := s.table.CPU()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var ru unix.Rusage
		if unix.Getrusage(who, &ru) == nil {
			total += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
		}
	}
	return total
}

// killedForMemory reports whether a process that has ended was killed because
// memory was short, or passes on the exit code of a child killed for this reason. Only engi's
// sandboxes report such kills.
func killedForMemory(pid int, exit engi.Exit) bool {
	direct := exit.Signal == "KILL"
	if !direct && exit.Code != 128+int(unix.SIGKILL) {
		return false
	}
	b, err := os.ReadFile("/proc/sentry-meminfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if list, ok := strings.CutPrefix(line, "Killed:"); ok {
			return slices.ContainsFunc(strings.Fields(strings.Trim(strings.TrimSpace(list), "[]")), func(victim string) bool {
				return direct && int(atoi(victim)) == pid || !direct && int(atoi(victim)) > pid
			})
		}
	}
	return false
}

// memory describes the kernel's memory, in bytes.
type memory struct{ total, available, cached int64 }

// readMemory reads /proc/meminfo. Values missing there are 0.
func readMemory() (m memory) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m
	}
	fields := map[string]*int64{"MemTotal:": &m.total, "MemAvailable:": &m.available, "Cached:": &m.cached}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && fields[f[0]] != nil {
			*fields[f[0]] = atoi(f[1]) << 10
		}
	}
	return m
}
