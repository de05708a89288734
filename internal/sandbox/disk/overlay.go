package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// overlayWorks reports whether builds can start from others without a copy, through the
// kernel's overlay file system: changes go to a separate directory, and the other
// files of the template are hard links to those of its base. Files that templates
// share are never written, since builds see them only through overlays.
func (t *Templates) overlayWorks() bool {
	t.overlayProbe.Do(func() {
		if !privileged {
			return
		}
		dir, lock, err := t.dir.newBuildDir()
		if err != nil {
			return
		}
		defer lock.Close()
		defer func() {
			if err := removeTree(dir); err != nil {
				t.o.Log.Error("remove the overlay probe", "error", err)
			}
		}()
		lower := filepath.Join(dir, "lower")
		if err := os.Mkdir(lower, 0o755); err != nil {
			return
		}
		if err := mountOverlay(dir, []string{lower}); err != nil {
			t.o.Log.Debug("overlays do not work, so builds copy their base", "error", err)
			return
		}
		t.overlays = true
	})
	return t.overlays
}

// mountOverlay mounts dir/root as an overlay over the directories in lower, topmost first. Changes
// go to dir/tree.
func mountOverlay(dir string, lower []string) error {
	for _, name := range []string{"root", "tree", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fileError(err)
		}
	}
	// The root of the overlay has the mode and owner of the upper directory.
	var st unix.Stat_t
	if err := unix.Stat(lower[0], &st); err != nil {
		return fileError(err)
	}
	upper := filepath.Join(dir, "tree")
	if err := errors.Join(os.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777)); err != nil {
		return fileError(err)
	}
	// Options must fit into a page whatever the length of the paths, so they use
	// file descriptors.
	open := func(path string) (string, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fileError(err)
		}
		return fmt.Sprintf("/proc/self/fd/%d", fd), nil
	}
	var at []string
	defer func() {
		for _, p := range at {
			var fd int
			if _, err := fmt.Sscanf(p, "/proc/self/fd/%d", &fd); err == nil {
				unix.Close(fd)
			}
		}
	}()
	for _, path := range append([]string{upper, filepath.Join(dir, "work")}, lower...) {
		p, err := open(path)
		if err != nil {
			return err
		}
		at = append(at, p)
	}
	options := "upperdir=" + at[0] + ",workdir=" + at[1] + ",lowerdir=" + strings.Join(at[2:], ":") + ",redirect_dir=off,metacopy=off,index=off,xino=off"
	if err := unix.Mount("engi", filepath.Join(dir, "root"), "overlay", 0, options); err != nil {
		return engi.Errorf(engi.Internal, "mount an overlay of %d directories: %v", len(lower), err)
	}
	return nil
}

// busyTimeout is the time for which an overlay may be busy after a build: child processes of
// this process inherit all open files until they exec.
const busyTimeout = 5 * time.Second

// unmountOverlay unmounts the overlay in dir. Changes stay in dir/tree.
func unmountOverlay(dir string) error {
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Unmount(filepath.Join(dir, "root"), unix.UMOUNT_NOFOLLOW)
		if err == nil {
			break
		}
		if err != unix.EBUSY || time.Since(began) > busyTimeout {
			return engi.Errorf(engi.Internal, "unmount an overlay: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "root")); err != nil {
		return fileError(err)
	}
	return removeTree(filepath.Join(dir, "work"))
}

// flattenOverlay turns the overlay in dir, over the directories in lower, into an
// ordinary directory dir/root. Unchanged files become hard links.
func flattenOverlay(ctx context.Context, dir string, lower []string) (err error) {
	flat := filepath.Join(dir, "flat")
	if err := os.Mkdir(flat, 0o755); err != nil {
		return fileError(err)
	}
	merged, err := openDir(unix.AT_FDCWD, filepath.Join(dir, "root"))
	if err != nil {
		return err
	}
	var layers []int
	defer func() {
		for _, fd := range layers {
			unix.Close(fd)
		}
	}()
	for _, path := range append([]string{filepath.Join(dir, "tree")}, lower...) {
		fd, err := openDir(unix.AT_FDCWD, path)
		if err != nil {
			unix.Close(merged)
			return err
		}
		layers = append(layers, fd)
	}
	to, err := openDir(unix.AT_FDCWD, flat)
	if err != nil {
		unix.Close(merged)
		return err
	}
	err = flattenDir(ctx, merged, to, layers)
	unix.Close(to)
	if err != nil {
		return err
	}
	if err := unmountOverlay(dir); err != nil {
		return err
	}
	if err := removeTree(filepath.Join(dir, "tree")); err != nil {
		return err
	}
	if err := os.Rename(flat, filepath.Join(dir, "root")); err != nil {
		return fileError(err)
	}
	return nil
}

func openDir(at int, path string) (int, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fileError(err)
	}
	return fd, nil
}

// flattenDir fills the directory to with the content of merged, which it closes.
// layers holds the same directory in the layers of the overlay that have it,
// topmost first.
func flattenDir(ctx context.Context, merged, to int, layers []int) error {
	dir := os.NewFile(uintptr(merged), "merged")
	defer dir.Close()
	var self unix.Stat_t
	if err := unix.Fstat(merged, &self); err != nil {
		return fileError(err)
	}
	for {
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := flattenEntry(ctx, merged, to, layers, name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fileError(err)
		}
	}
	if err := unix.Fchown(to, int(self.Uid), int(self.Gid)); err != nil {
		return fileError(err)
	}
	if err := unix.Fchmod(to, self.Mode&0o7777); err != nil {
		return fileError(err)
	}
	return fileError(unix.UtimesNanoAt(to, "", []unix.Timespec{self.Atim, self.Mtim}, unix.AT_EMPTY_PATH))
}

func flattenEntry(ctx context.Context, merged, to int, layers []int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(merged, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fileError(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		for _, layer := range layers {
			var here unix.Stat_t
			err := unix.Fstatat(layer, name, &here, unix.AT_SYMLINK_NOFOLLOW)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return fileError(err)
			}
			err = unix.Linkat(layer, name, to, name, 0)
			if errors.Is(err, unix.EMLINK) {
				return copyFile(merged, to, name, st)
			}
			return fileError(err)
		}
		return engi.Errorf(engi.Internal, "no layer of the overlay has %s", name)
	}
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return fileError(err)
	}
	below, err := openDir(to, name)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	var parts []int
	defer func() {
		for _, fd := range parts {
			unix.Close(fd)
		}
	}()
	for _, layer := range layers {
		fd, err := unix.Openat(layer, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			break // an entry of another type hides lower directories
		}
		parts = append(parts, fd)
	}
	next, err := openDir(merged, name)
	if err != nil {
		return err
	}
	return flattenDir(ctx, next, below, parts)
}

// copyFile copies a regular file that has reached the limit of links.
func copyFile(from, to int, name string, st unix.Stat_t) error {
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileError(err)
	}
	in := os.NewFile(uintptr(fd), name)
	defer in.Close()
	if fd, err = unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err != nil {
		return fileError(err)
	}
	out := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(out, in)
	err = errors.Join(err, unix.Fchown(fd, int(st.Uid), int(st.Gid)), unix.Fchmod(fd, st.Mode&0o7777),
		unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH), out.Close())
	return fileError(err)
}

// A workspace is a temporary directory with the root of a build that starts from
// other directories: an overlay over them or, where overlays do not work, a copy.
type workspace struct {
	dir   string
	lock  *os.File
	tree  *tree.Tree
	lower []string // directories below the overlay; nil for a copy
}

// newWorkspace returns a workspace that starts from the directories in lower, topmost
// first. Without overlays there can be only one directory.
func (t *Templates) newWorkspace(ctx context.Context, lower []string) (_ *workspace, err error) {
	w := &workspace{}
	if w.dir, w.lock, err = t.dir.newBuildDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.discard(w)
		}
	}()
	if t.overlayWorks() {
		if err := mountOverlay(w.dir, lower); err != nil {
			return nil, err
		}
		w.lower = lower
	} else if err := os.Mkdir(filepath.Join(w.dir, "root"), 0o755); err != nil {
		return nil, fileError(err)
	}
	if w.tree, err = tree.Open(filepath.Join(w.dir, "root")); err != nil {
		return nil, err
	}
	if w.lower != nil {
		return w, nil
	}
	from, err := tree.Open(lower[0])
	if err != nil {
		return nil, err
	}
	defer from.Close()
	return w, tree.Copy(ctx, w.tree, from, nil)
}

// written returns the directory with the written files.
func (w *workspace) written() string {
	if w.lower != nil {
		return filepath.Join(w.dir, "tree")
	}
	return filepath.Join(w.dir, "root")
}

// flatten turns dir/root into an ordinary directory.
func (w *workspace) flatten(ctx context.Context) error {
	if err := w.tree.Close(); err != nil {
		return fileError(err)
	}
	w.tree = nil
	if w.lower == nil {
		return nil
	}
	return flattenOverlay(ctx, w.dir, w.lower)
}

// discard releases a workspace and deletes it unless it was published.
func (t *Templates) discard(w *workspace) {
	if w.tree != nil {
		w.tree.Close()
	}
	if exists(w.dir) {
		if err := removeTree(w.dir); err != nil {
			t.o.Log.Error("remove unfinished template build", "dir", w.dir, "error", err)
		}
	}
	if w.lock != nil {
		w.lock.Close()
	}
}
