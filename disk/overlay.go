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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/tree"
)

// overlayWorks reports whether builds can begin on top of others without a copy
// of them, which the kernel's overlay file system makes possible: what a build
// changes goes to a directory of its own, and the rest of the template shares
// its files, as further names, with what it was made from. No file that several
// templates share is ever written, since builds only see them through overlays.
func (t *Templates) overlayWorks() bool {
	t.probe.Do(func() {
		if !privileged {
			return
		}
		dir, lock, err := t.shelf.temp()
		if err != nil {
			return
		}
		defer lock.Close()
		defer func() {
			if err := removeTree(dir); err != nil {
				t.o.Log.Error("remove the probe for overlays", "err", err)
			}
		}()
		lower := filepath.Join(dir, "lower")
		if err := os.Mkdir(lower, 0o755); err != nil {
			return
		}
		if err := overlay(dir, []string{lower}); err != nil {
			t.o.Log.Debug("templates are copied to build on them", "err", err)
			return
		}
		t.overlays = true
	})
	return t.overlays
}

// overlay mounts dir/root over the directories below, topmost first. What is
// changed there goes to dir/tree.
func overlay(dir string, below []string) error {
	for _, name := range []string{"root", "tree", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fileError(err)
		}
	}
	// The upper directory's own mode and owner are those of the whole.
	var st unix.Stat_t
	if err := unix.Stat(below[0], &st); err != nil {
		return fileError(err)
	}
	upper := filepath.Join(dir, "tree")
	if err := errors.Join(os.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777)); err != nil {
		return fileError(err)
	}
	// Options fit into one page, whatever the directory is called: so they name
	// descriptors.
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
	for _, path := range append([]string{upper, filepath.Join(dir, "work")}, below...) {
		p, err := open(path)
		if err != nil {
			return err
		}
		at = append(at, p)
	}
	options := "upperdir=" + at[0] + ",workdir=" + at[1] + ",lowerdir=" + strings.Join(at[2:], ":") + ",redirect_dir=off,metacopy=off,index=off,xino=off"
	if err := unix.Mount("engi", filepath.Join(dir, "root"), "overlay", 0, options); err != nil {
		return engi.Errorf(engi.Internal, "mount an overlay of %d directories: %v", len(below), err)
	}
	return nil
}

// busyTime is how long an overlay that has just been written may be in use:
// a process that is being started holds copies of everything that is open
// here until its own program runs.
const busyTime = 5 * time.Second

// lay takes the overlay in dir apart: what it changed stays in dir/tree.
func lay(dir string) error {
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Unmount(filepath.Join(dir, "root"), unix.UMOUNT_NOFOLLOW)
		if err == nil {
			break
		}
		if err != unix.EBUSY || time.Since(began) > busyTime {
			return engi.Errorf(engi.Internal, "unmount an overlay: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "root")); err != nil {
		return fileError(err)
	}
	return removeTree(filepath.Join(dir, "work"))
}

// flatten turns the overlay in dir, over the directories below, into an
// ordinary directory dir/root. Files that it did not change get one name more.
func flatten(ctx context.Context, dir string, below []string) (err error) {
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
	for _, path := range append([]string{filepath.Join(dir, "tree")}, below...) {
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
	if err := lay(dir); err != nil {
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

// flattenDir fills the directory to with what is in merged, which it closes.
// layers are the same directory in those of the overlay's parts that have it,
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
		return engi.Errorf(engi.Internal, "no part of the overlay has %s", name)
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
			break // something else is there, which hides what is below it
		}
		parts = append(parts, fd)
	}
	next, err := openDir(merged, name)
	if err != nil {
		return err
	}
	return flattenDir(ctx, next, below, parts)
}

// copyFile copies a regular file that has as many names as it can have.
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

// A stack is a build that begins on top of others: in an overlay, or, where
// that does not work, in a copy.
type stack struct {
	dir   string
	lock  *os.File
	tree  *tree.Tree
	below []string // nil if it is a copy
}

// stackOn makes one over the directories below, topmost first; only one can be
// copied.
func (t *Templates) stackOn(ctx context.Context, below []string) (_ *stack, err error) {
	s := &stack{}
	if s.dir, s.lock, err = t.shelf.temp(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.drop(s)
		}
	}()
	if t.overlayWorks() {
		if err := overlay(s.dir, below); err != nil {
			return nil, err
		}
		s.below = below
	} else if err := os.Mkdir(filepath.Join(s.dir, "root"), 0o755); err != nil {
		return nil, fileError(err)
	}
	if s.tree, err = tree.Open(filepath.Join(s.dir, "root")); err != nil {
		return nil, err
	}
	if s.below != nil {
		return s, nil
	}
	from, err := tree.Open(below[0])
	if err != nil {
		return nil, err
	}
	defer from.Close()
	return s, tree.Copy(ctx, s.tree, from, nil)
}

// settle makes dir/root an ordinary directory.
func (s *stack) settle(ctx context.Context) error {
	if err := s.tree.Close(); err != nil {
		return fileError(err)
	}
	s.tree = nil
	if s.below == nil {
		return nil
	}
	return flatten(ctx, s.dir, s.below)
}

// drop lets go of a stack, and deletes it unless it was published.
func (t *Templates) drop(s *stack) {
	if s.tree != nil {
		s.tree.Close()
	}
	if exists(s.dir) {
		if err := removeTree(s.dir); err != nil {
			t.o.Log.Error("remove unfinished template build", "dir", s.dir, "err", err)
		}
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
