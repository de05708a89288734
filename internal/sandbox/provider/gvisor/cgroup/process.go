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

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/sandbox/priority"
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
		return priority.Start(cmd)
	}
	// In version 1 a child starts in the group of the thread that forks it. Moving
	// the own thread is the only move that needs no lock on all processes of the
	// host. The thread moves back, since it must not be frozen with the group.
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := g.enter()
		if err == nil {
			err = priority.Start(cmd)
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
		// The format of a line is number:controller,controller:path.
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(names, ","), controller) {
			if dir := filepath.Join(top, path); exists(filepath.Join(dir, "tasks")) {
				return dir
			}
		}
	}
	return top // in a container the path may be a path of the host
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Processes returns the PIDs of the processes in the group, without this process.
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

// kill kills all processes of the group.
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
}

// WatchMemory returns a file that becomes readable each time a group of version 1
// reaches its memory limit. The caller closes it. For version 2 it returns nil:
// with version 2 the kernel kills all processes of the group together.
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
