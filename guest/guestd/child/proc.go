package child

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a line of the process table.
type process struct {
	pid, parent, session int
	zombie               bool
	ticks                int64 // processor time
}

// processes lists what runs, threads not counted. It is empty where there is
// no /proc.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read is what can be killed
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := stat(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

func stat(pid int) (p process, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	return parseStat(pid, b)
}

// parseStat reads a line of /proc/PID/stat. The name in the middle is the
// program's choice and may contain anything, parentheses too.
func parseStat(pid int, b []byte) (p process, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return p, false
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 4 {
		return p, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	if err1 != nil || err2 != nil {
		return p, false
	}
	p = process{pid: pid, parent: parent, session: session, zombie: fields[0] == "Z"}
	if len(fields) > 12 {
		user, _ := strconv.ParseInt(fields[11], 10, 64) // a kernel that does not say counts nothing
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		p.ticks = user + system
	}
	return p, true
}

// Count returns how many processes and threads there are besides the server's.
func (t *Table) Count() int {
	n, self := 0, os.Getpid()
	for _, p := range processes() {
		if p.pid == self || p.zombie {
			continue
		}
		tasks, err := os.Open("/proc/" + strconv.Itoa(p.pid) + "/task")
		if err != nil {
			continue
		}
		names, _ := tasks.Readdirnames(-1)
		tasks.Close()
		n += max(1, len(names))
	}
	return n
}

// CPU returns the processor time of all live processes but the server.
func (t *Table) CPU() time.Duration {
	var ticks int64
	for _, p := range processes() {
		if p.pid != os.Getpid() {
			ticks += p.ticks
		}
	}
	return time.Duration(ticks) * time.Second / 100
}

// A Herd is a child and everything that descends from it.
type ProcessTree struct {
	Child  *Child
	Marker string              // NAME=value in the environment of every member; may be empty
	Spare  func() map[int]bool // sessions that are somebody else's; nil means none
}

// Alone reports whether nothing but PID 1 and spared sessions is alive.
func (t *Table) Alone(h ProcessTree) bool {
	if t.init && len(h.spared()) == 0 {
		return syscall.Kill(-1, 0) == syscall.ESRCH
	}
	return len(t.members(h)) == 0
}

func (h ProcessTree) spared() map[int]bool {
	if h.Spare == nil {
		return nil
	}
	return h.Spare()
}

// Kill kills every member of the herd until none is left, however fast they
// multiply, and reports whether it managed to within limit.
//
// PID 1 with nobody to spare kills all there is: the kernel signals every
// process in one step, which no fork bomb outruns. Else the members are found
// by session, by descent and by the marker in their environment, and stopped
// before they are killed so that they cannot make new ones meanwhile.
func (t *Table) Kill(h ProcessTree, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		gone := false
		if t.init && len(h.spared()) == 0 {
			gone = syscall.Kill(-1, syscall.SIGKILL) == syscall.ESRCH
		} else {
			found := t.members(h)
			for _, pid := range found {
				syscall.Kill(pid, syscall.SIGSTOP)
			}
			if len(found) > 0 {
				found = t.members(h)
			}
			for _, pid := range found {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			gone = len(found) == 0
		}
		if t.init {
			t.reap()
		}
		if gone {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(wait)
	}
}

// members lists the live processes of h.
func (t *Table) members(h ProcessTree) []int {
	all, self, spared := processes(), os.Getpid(), h.spared()
	in := map[int]bool{}
	if h.Child != nil {
		in[h.Child.PID] = true
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.pid] || p.pid == self || spared[p.session] {
				continue
			}
			if h.Child != nil && p.session == h.Child.PID || in[p.parent] || p.parent == 1 && h.marked(p.pid) {
				in[p.pid], grown = true, true
			}
		}
	}
	var live []int
	for _, p := range all {
		if in[p.pid] && !p.zombie && p.pid != self && p.pid != 1 && !spared[p.session] {
			live = append(live, p.pid)
		}
	}
	return live
}

func (h ProcessTree) marked(pid int) bool {
	if h.Marker == "" {
		return false
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if string(v) == h.Marker {
			return true
		}
	}
	return false
}
