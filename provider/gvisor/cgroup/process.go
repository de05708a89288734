package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts cmd in the group, from its first instruction on.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g.tree.version == V2 {
		dir, err := os.Open(filepath.Join(g.tree.dirs[""], g.name))
		if err != nil {
			return err
		}
		defer dir.Close()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &unix.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(dir.Fd())
		return cmd.Start()
	}
	// In version 1 a child starts in the group of the thread that forks it. Moving
	// the own thread is the only move that needs no lock over all processes of the
	// host. It moves back, since it must not be frozen with the group.
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := g.enter()
		if err == nil {
			err = cmd.Start()
		}
		if g.tree.leave() == nil {
			runtime.UnlockOSThread()
		} // otherwise the thread exits with this goroutine
		errc <- err
	}()
	return <-errc
}

// enter moves the calling thread into the group.
func (g *Group) enter() error {
	for _, dir := range g.dirs() {
		if err := write(filepath.Join(dir, "tasks"), "0"); err != nil {
			return fmt.Errorf("enter group: %w", err)
		}
	}
	return nil
}

// leave moves the calling thread back to the group of this process.
func (t *Tree) leave() error {
	var errs []error
	for _, dir := range t.ownDirs {
		errs = append(errs, write(filepath.Join(dir, "tasks"), "0"))
	}
	return errors.Join(errs...)
}

// ownDir returns the directory of this process's group in the hierarchy of a
// controller of version 1.
func ownDir(root, controller string) string {
	top := filepath.Join(root, controller)
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return top
	}
	for line := range strings.Lines(string(raw)) {
		// number:controller,controller:path
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(names, ","), controller) {
			if dir := filepath.Join(top, path); exists(filepath.Join(dir, "tasks")) {
				return dir
			}
		}
	}
	return top // in a container the path may be the host's
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Processes returns the PIDs of the processes in the group, without this one.
func (g *Group) Processes() ([]int, error) {
	var pids []int
	for _, dir := range g.dirs() {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				continue
			}
			return nil, err
		}
		for _, s := range strings.Fields(string(raw)) {
			// This process is listed while one of its threads is in Start.
			if pid, err := strconv.Atoi(s); err == nil && pid > 0 && pid != os.Getpid() && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// kill kills all processes of the group, frozen or not.
func (g *Group) kill() {
	if g.tree.version == V2 && g.set("", "cgroup.kill", "1") == nil {
		return
	}
	pids, err := g.Processes()
	if err != nil {
		return
	}
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
	}
	g.setOptional("freezer", "freezer.state", "THAWED")
}

// CanFreeze reports whether the host can freeze the group.
func (g *Group) CanFreeze() bool {
	_, ok := g.file("freezer", "")
	return ok
}

// Freeze stops all processes of the group, and returns when they have stopped.
func (g *Group) Freeze(deadline time.Time) error { return g.freeze(true, deadline) }

// Thaw lets the processes of the group continue.
func (g *Group) Thaw(deadline time.Time) error { return g.freeze(false, deadline) }

func (g *Group) freeze(on bool, deadline time.Time) error {
	name, val, want := "freezer.state", "THAWED", "THAWED"
	if on {
		val, want = "FROZEN", "FROZEN"
	}
	if g.tree.version == V2 {
		name, val = "cgroup.freeze", "0"
		if on {
			val = "1"
		}
	}
	if err := g.set("freezer", name, val); err != nil {
		return err
	}
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		frozen, err := g.Frozen()
		if err != nil || frozen == on {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("group %s is not %s yet", g.name, strings.ToLower(want))
		}
		time.Sleep(wait)
		if on && g.tree.version == V1 {
			// A fork in progress can keep a group of version 1 half frozen until
			// the state is set again.
			if err := g.set("freezer", name, val); err != nil {
				return err
			}
		}
	}
}

// Frozen reports whether all processes of the group have stopped.
func (g *Group) Frozen() (bool, error) {
	if g.tree.version == V2 {
		stat, err := g.readStat("", "cgroup.events")
		return stat["frozen"] == 1, err
	}
	file, ok := g.file("freezer", "freezer.state")
	if !ok {
		return false, nil
	}
	raw, err := os.ReadFile(file)
	return strings.TrimSpace(string(raw)) == "FROZEN", err
}

// WatchMemory returns a file that becomes readable each time a group of version 1
// reaches its memory limit. The caller closes it. For version 2 it returns nil:
// there the kernel kills all processes of the group together.
func (g *Group) WatchMemory() (*os.File, error) {
	dir, ok := g.tree.dirs["memory"]
	if g.tree.version != V1 || !ok {
		return nil, nil
	}
	dir = filepath.Join(dir, g.name)
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %v", err)
	}
	event := os.NewFile(uintptr(fd), "memory event")
	if err := write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		event.Close()
		return nil, err
	}
	return event, nil
}
