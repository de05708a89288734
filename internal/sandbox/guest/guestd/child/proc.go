package child

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is an entry of /proc.
type process struct {
	pid, parent, session int
	zombie               bool
	ticks                int64 // processor time, in 1/100 s
}

// processes lists all processes. The list is empty on systems without /proc.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // after an error, use the names that were read
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

// parseStat parses /proc/PID/stat. The program chooses the name in the middle,
// which may contain anything, including parentheses.
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
		user, _ := strconv.ParseInt(fields[11], 10, 64) // 0 if the kernel does not report it
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		p.ticks = user + system
	}
	return p, true
}

// Count returns the number of processes and threads, except this program's.
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

// CPU returns the processor time of all live processes, except this program's.
func (t *Table) CPU() time.Duration {
	var ticks int64
	for _, p := range processes() {
		if p.pid != os.Getpid() {
			ticks += p.ticks
		}
	}
	return time.Duration(ticks) * time.Second / 100
}

// A ProcessTree is a child and its descendants.
type ProcessTree struct {
	Child   *Child
	Marker  string              // NAME=value in the environment of every process; may be empty
	Exclude func() map[int]bool // returns the sessions that do not belong to the tree; nil means none
}

// Gone reports whether no process of the tree is alive.
func (t *Table) Gone(tree ProcessTree) bool {
	if t.init && len(tree.excluded()) == 0 {
		return syscall.Kill(-1, 0) == syscall.ESRCH
	}
	return len(t.members(tree)) == 0
}

func (tree ProcessTree) excluded() map[int]bool {
	if tree.Exclude == nil {
		return nil
	}
	return tree.Exclude()
}

// Kill kills the processes of a tree until none is left, however fast they fork,
// and reports whether none was left within limit.
//
// PID 1 with no session to exclude kills everything: the kernel signals all
// processes in one step, which no fork bomb outruns. Otherwise the processes are
// found by session, by descent and by the marker in their environment, and
// stopped before they are killed, so that they cannot fork meanwhile.
func (t *Table) Kill(tree ProcessTree, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		gone := false
		if t.init && len(tree.excluded()) == 0 {
			gone = syscall.Kill(-1, syscall.SIGKILL) == syscall.ESRCH
		} else {
			found := t.members(tree)
			for _, pid := range found {
				syscall.Kill(pid, syscall.SIGSTOP)
			}
			if len(found) > 0 {
				found = t.members(tree)
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

// members lists the live processes of a tree.
func (t *Table) members(tree ProcessTree) []int {
	all, self, excluded := processes(), os.Getpid(), tree.excluded()
	in := map[int]bool{}
	if tree.Child != nil {
		in[tree.Child.PID] = true
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.pid] || p.pid == self || excluded[p.session] {
				continue
			}
			if tree.Child != nil && p.session == tree.Child.PID || in[p.parent] || p.parent == 1 && tree.marked(p.pid) {
				in[p.pid], grown = true, true
			}
		}
	}
	var live []int
	for _, p := range all {
		if in[p.pid] && !p.zombie && p.pid != self && p.pid != 1 && !excluded[p.session] {
			live = append(live, p.pid)
		}
	}
	return live
}

func (tree ProcessTree) marked(pid int) bool {
	if tree.Marker == "" {
		return false
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if string(v) == tree.Marker {
			return true
		}
	}
	return false
}
