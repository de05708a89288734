// Package cgroup starts host processes in control groups, limits them, and measures
// their usage. It supports version 1 (a hierarchy per controller), version 2 (one
// hierarchy), and hosts that mount both and use version 1.
//
// It writes the kernel's files directly: changing a limit takes microseconds, and
// processes are created in their group. The groups that programs see in a sandbox
// belong to the sandbox's own kernel.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Version is a version of control groups.
type Version int

const (
	None Version = iota
	V1
	V2
)

// String returns "none", "v1" or "v2".
func (v Version) String() string { return [...]string{"none", "v1", "v2"}[v] }

// DefaultRoot is where control groups are usually mounted.
const DefaultRoot = "/sys/fs/cgroup"

// controllers lists the controllers that limits need. cpuacct of version 1 is optional.
var controllers = []string{"memory", "cpu", "pids"}

// Detect returns the version that has the controllers below root, and the controllers that
// are missing there.
func Detect(root string) (v Version, missing []string) {
	if raw, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		have := strings.Fields(string(raw))
		for _, c := range controllers {
			if !slices.Contains(have, c) {
				missing = append(missing, c)
			}
		}
		if len(missing) == len(controllers) {
			return None, missing
		}
		return V2, missing
	}
	for _, c := range controllers {
		if fi, err := os.Stat(filepath.Join(root, c)); err != nil || !fi.IsDir() {
			missing = append(missing, c)
		}
	}
	if len(missing) == len(controllers) {
		return None, missing
	}
	return V1, missing
}

// A Tree is a parent of groups. It is created with the first group and removed
// with the last. It is safe for concurrent use.
type Tree struct {
	root, name string
	version    Version
	dirs       map[string]string // parent directory by controller; "" in version 2
	parents    []string          // the same directories without duplicates
	ownDirs    []string          // in version 1, the directories of this process, in the same order
}

// Open returns the tree called name below root. It creates nothing.
func Open(root, name string, v Version) *Tree {
	t := &Tree{root: root, name: name, version: v, dirs: map[string]string{}}
	if v == V2 {
		t.dirs[""] = filepath.Join(root, name)
		t.parents = []string{t.dirs[""]}
		return t
	}
	for _, c := range append([]string{"cpuacct"}, controllers...) {
		// Controllers may share a hierarchy through symbolic links.
		dir, err := filepath.EvalSymlinks(filepath.Join(root, c))
		if err != nil {
			continue
		}
		dir = filepath.Join(dir, name)
		t.dirs[c] = dir
		if !slices.Contains(t.parents, dir) {
			t.parents = append(t.parents, dir)
			t.ownDirs = append(t.ownDirs, ownDir(root, c))
		}
	}
	return t
}

// Version returns the tree's version.
func (t *Tree) Version() Version { return t.version }

// List returns the names of the existing groups.
func (t *Tree) List() ([]string, error) {
	var names []string
	for _, dir := range t.parents {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list groups: %v", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// A Group is a control group. It holds only the name of the group; its methods read and write the files.
type Group struct {
	tree *Tree
	name string
}

// Group returns the group called name, which may not exist.
func (t *Tree) Group(name string) *Group { return &Group{tree: t, name: name} }

func (g *Group) dirs() []string {
	dirs := make([]string, len(g.tree.parents))
	for i, parent := range g.tree.parents {
		dirs[i] = filepath.Join(parent, g.name)
	}
	return dirs
}

// file returns the path of a file of a controller, and whether the host has that
// controller.
func (g *Group) file(controller, name string) (string, bool) {
	if g.tree.version == V2 {
		return filepath.Join(g.tree.dirs[""], g.name, name), true
	}
	dir, ok := g.tree.dirs[controller]
	return filepath.Join(dir, g.name, name), ok
}

// Create creates the group if it does not exist.
func (g *Group) Create() error {
	for attempt := 0; ; attempt++ {
		err := g.create()
		// The parent may just have been removed with its last group.
		if err == nil || attempt == 10 || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

func (g *Group) create() error {
	t := g.tree
	for _, parent := range t.parents {
		if err := mkdir(parent); err != nil {
			return err
		}
		if t.version == V2 {
			if err := t.delegate(parent); err != nil {
				return err
			}
		}
		if err := mkdir(filepath.Join(parent, g.name)); err != nil {
			return err
		}
	}
	return nil
}

// delegate enables the controllers of version 2 for the groups of parent.
func (t *Tree) delegate(parent string) error {
	raw, err := os.ReadFile(filepath.Join(t.root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(raw))
	for _, dir := range []string{t.root, parent} {
		on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			return err
		}
		for _, c := range controllers {
			if !slices.Contains(have, c) || slices.Contains(strings.Fields(string(on)), c) {
				continue
			}
			if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
				return err
			}
		}
	}
	return nil
}

// Limits holds the limits on the joint usage of a group's processes. Zero fields do not
// change the limit; a negative VCPUs removes it.
type Limits struct {
	VCPUs  float64
	Memory int64 // bytes
	Tasks  int   // maximum number of threads on the host
	Weight int   // share of short processors in percent of a new group's; 1 means only idle time; more than 100 delays the host's other threads
}

const period = 100 * time.Millisecond // period of processor quotas

// ErrInUse reports that a group uses more memory than a new limit.
var ErrInUse = errors.New("more memory is in use")

// Limit sets limits. It returns ErrInUse if the group uses more than l.Memory.
func (g *Group) Limit(l Limits) error {
	if l.Memory > 0 {
		if err := g.limitMemory(l.Memory); err != nil {
			return err
		}
	}
	if l.VCPUs != 0 {
		if err := g.limitVCPUs(l.VCPUs); err != nil {
			return err
		}
	}
	if l.Tasks > 0 {
		if err := g.set("pids", "pids.max", strconv.Itoa(l.Tasks)); err != nil {
			return err
		}
	}
	if l.Weight > 0 {
		return g.limitWeight(l.Weight)
	}
	return nil
}

// limitWeight sets the weight. A new group has 1024 shares in version 1, a weight of
// 100 in version 2. A weight of 1 makes the group idle, since Linux 5.15: a thread of another group that
// wakes up runs at once, instead of at the end of the idle group's time slice.
func (g *Group) limitWeight(percent int) error {
	if percent == 1 {
		if err := g.set("cpu", "cpu.idle", "1"); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if err := g.setOptional("cpu", "cpu.idle", "0"); err != nil {
		return err // the weight of an idle group cannot be set
	}
	if g.tree.version == V2 {
		return g.set("cpu", "cpu.weight", strconv.Itoa(percent))
	}
	return g.set("cpu", "cpu.shares", strconv.Itoa(1024*percent/100))
}

func (g *Group) limitMemory(n int64) error {
	val := strconv.FormatInt(n, 10)
	if g.tree.version == V2 {
		// A limit below the memory in use would kill the group. Version 1 refuses
		// such a limit, so refuse it here too.
		if used, err := g.readInt("memory", "memory.current"); err == nil && used-g.reclaimable() > n {
			return ErrInUse
		}
		if err := g.set("memory", "memory.max", val); err != nil {
			return err
		}
		// No swap, and kill all processes together.
		if err := g.setOptional("memory", "memory.swap.max", "0"); err != nil {
			return err
		}
		return g.setOptional("memory", "memory.oom.group", "1")
	}
	// The limit of memory and swap must not be below the limit of memory, so the order
	// depends on the direction of the change.
	err := g.set("memory", "memory.limit_in_bytes", val)
	if err == nil || errors.Is(err, unix.EINVAL) {
		if err := g.setOptional("memory", "memory.memsw.limit_in_bytes", val); err != nil {
			return inUse(err)
		}
	}
	if errors.Is(err, unix.EINVAL) {
		err = g.set("memory", "memory.limit_in_bytes", val)
	}
	return inUse(err)
}

func inUse(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return ErrInUse
	}
	return err
}

func (g *Group) limitVCPUs(n float64) error {
	quota := int64(-1)
	if n > 0 {
		quota = max(int64(math.Round(n*float64(period.Microseconds()))), 1000)
	}
	if g.tree.version == V2 {
		val := "max"
		if quota > 0 {
			val = strconv.FormatInt(quota, 10)
		}
		return g.set("cpu", "cpu.max", fmt.Sprintf("%s %d", val, period.Microseconds()))
	}
	if err := g.set("cpu", "cpu.cfs_period_us", strconv.FormatInt(period.Microseconds(), 10)); err != nil {
		return err
	}
	return g.set("cpu", "cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
}

// Usage is the resource usage of a group.
type Usage struct {
	CPU    time.Duration
	Memory int64 // bytes, without memory that the kernel can reclaim at once
	Peak   int64 // maximum so far, in bytes; 0 if unknown
}

// Usage reads the counters.
func (g *Group) Usage() (Usage, error) {
	var u Usage
	if g.tree.version == V2 {
		stat, err := g.readStat("cpu", "cpu.stat")
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(stat["usage_usec"]) * time.Microsecond
		if u.Memory, err = g.readInt("memory", "memory.current"); err != nil {
			return u, err
		}
		u.Peak, _ = g.readInt("memory", "memory.peak") // since Linux 5.19
	} else {
		if _, ok := g.tree.dirs["cpuacct"]; ok {
			ns, err := g.readInt("cpuacct", "cpuacct.usage")
			if err != nil {
				return u, err
			}
			u.CPU = time.Duration(ns)
		}
		var err error
		if u.Memory, err = g.readInt("memory", "memory.usage_in_bytes"); err != nil {
			return u, err
		}
		u.Peak, _ = g.readInt("memory", "memory.max_usage_in_bytes")
	}
	u.Memory = max(u.Memory-g.reclaimable(), 0)
	return u, nil
}

// reclaimable returns the memory that the kernel can reclaim at once, in bytes.
func (g *Group) reclaimable() int64 {
	stat, err := g.readStat("memory", "memory.stat")
	if err != nil {
		return 0
	}
	if n, ok := stat["total_inactive_file"]; ok {
		return n
	}
	return stat["inactive_file"]
}

// MemoryKills returns the number of processes that were killed because the group
// had reached its memory limit.
func (g *Group) MemoryKills() int64 {
	name := "memory.oom_control"
	if g.tree.version == V2 {
		name = "memory.events"
	}
	stat, err := g.readStat("memory", name)
	if err != nil {
		return 0
	}
	return stat["oom_kill"]
}

// Remove kills the processes of the group and removes it, if it exists. It gives up
// at the deadline; a zero deadline means none.
func (g *Group) Remove(deadline time.Time) error {
	var last error
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		last = g.remove()
		if last == nil || (!deadline.IsZero() && time.Now().After(deadline)) {
			break
		}
		g.kill()
		time.Sleep(wait)
	}
	if last != nil {
		return fmt.Errorf("remove group %s: %v", g.name, last)
	}
	for _, parent := range g.tree.parents {
		unix.Rmdir(parent) // fails while the parent has other groups
	}
	return nil
}

func (g *Group) remove() error {
	var last error
	for _, dir := range g.dirs() {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			last = err
		}
	}
	return last
}

// Exists reports whether any directory of the group exists.
func (g *Group) Exists() bool {
	return slices.ContainsFunc(g.dirs(), exists)
}

func (g *Group) set(controller, name, val string) error {
	file, ok := g.file(controller, name)
	if !ok {
		return nil
	}
	return write(file, val)
}

// setOptional is like set, for files that not every kernel has.
func (g *Group) setOptional(controller, name, val string) error {
	if err := g.set(controller, name, val); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (g *Group) readInt(controller, name string) (int64, error) {
	file, ok := g.file(controller, name)
	if !ok {
		return 0, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// readStat reads a file whose lines have a name and a number each.
func (g *Group) readStat(controller, name string) (map[string]int64, error) {
	file, ok := g.file(controller, name)
	if !ok {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stat := map[string]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, val, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseInt(val, 10, 64); err == nil {
			stat[key] = n
		}
	}
	return stat, nil
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// write writes to a control file, which must exist.
func write(file, val string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(val)
	return errors.Join(err, f.Close())
}
