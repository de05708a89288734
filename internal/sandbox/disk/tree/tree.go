// Package tree writes to a directory that is the root file system of a sandbox.
// Paths are resolved as by a process with this root: absolute links and links
// upwards stay in the directory, so neither an archive nor a program that ran
// there can make this process access files outside.
//
// It serves to build templates (see package disk) and needs openat2 (Linux 5.6).
// Even if other programs change the directory at the same time, it never leaves the
// directory, but results may be inconsistent.
package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Tree is an open root file system. It is safe for concurrent use on different
// paths.
type Tree struct {
	dir  string
	root *os.File
}

// Open opens dir as a root. The caller closes it.
func Open(dir string) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("open", dir, err)
	}
	return &Tree{dir: dir, root: os.NewFile(uintptr(fd), dir)}, nil
}

// Close closes the directory.
func (t *Tree) Close() error { return t.root.Close() }

// Dir returns the directory on the node.
func (t *Tree) Dir() string { return t.dir }

// An Owner is the owner of a file. Unless the process is root, owners are ignored,
// and files belong to the current user.
type Owner struct{ UID, GID int }

var privileged = os.Geteuid() == 0 && hasOtherUsers()

// hasOtherUsers reports whether files can belong to other users. In a user namespace of
// an unprivileged user, there are no other users.
func hasOtherUsers() bool {
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true
	}
	var inside, outside, size int64
	if _, err := fmt.Sscan(string(m), &inside, &outside, &size); err != nil {
		return true
	}
	return size > 1
}

// Stat returns the status of the file that a path leads to. It reports NotFound.
func (t *Tree) Stat(name string) (unix.Stat_t, error) { return t.stat("stat", name, 0) }

// Lstat is Stat without following a final link.
func (t *Tree) Lstat(name string) (unix.Stat_t, error) { return t.stat("lstat", name, unix.O_NOFOLLOW) }

func (t *Tree) stat(act, name string, flags int) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := t.open(name, unix.O_PATH|flags)
	if err != nil {
		return st, wrap(act, name, err)
	}
	defer unix.Close(fd)
	err = unix.Fstat(fd, &st)
	return st, wrap(act, name, err)
}

// OpenFile opens the regular file that name leads to, for reading.
func (t *Tree) OpenFile(name string) (*os.File, error) {
	// Open without blocking, since opening a pipe might never return.
	fd, err := t.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, wrap("open", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, engi.Errorf(engi.Invalid, "open %s: not a regular file", name)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ReadFile reads a regular file. It reports Invalid for more than limit bytes.
func (t *Tree) ReadFile(name string, limit int64) ([]byte, error) {
	f, err := t.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, wrap("read", name, err)
	}
	if int64(len(data)) > limit {
		return nil, engi.Errorf(engi.Invalid, "read %s: more than %d bytes", name, limit)
	}
	return data, nil
}

// ReadDir returns the names in a directory, unsorted. It reports NotFound.
func (t *Tree) ReadDir(name string) ([]string, error) {
	fd, err := t.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, wrap("list", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, wrap("list", name, err)
	}
	return names, nil
}

// Readlink returns the target of a symbolic link, unresolved.
func (t *Tree) Readlink(name string) (string, error) {
	fd, err := t.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", wrap("read link", name, err)
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", wrap("read link", name, err)
	}
	return string(buf[:n]), nil
}

// MkdirAll creates a directory and its parents. It leaves existing directories unchanged. New
// parents have mode 0755 and belong to root.
func (t *Tree) MkdirAll(name string, mode fs.FileMode, o Owner) error {
	parts := split(name)
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		if st, err := t.Stat(at); err == nil {
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return engi.Errorf(engi.Invalid, "make directory %s: %s is not a directory", name, at)
			}
			continue
		}
		m, own := fs.FileMode(0o755), Owner{}
		if i == len(parts)-1 {
			m, own = mode, o
		}
		if err := t.mkdir(at, m, own); err != nil {
			return wrap("make directory", at, err)
		}
	}
	return nil
}

func (t *Tree) mkdir(name string, mode fs.FileMode, o Owner) error {
	dir, base, err := t.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, base, 0o700); err != nil {
		return err
	}
	if err := chown(dir, base, o); err != nil {
		return err
	}
	return unix.Fchmodat(dir, base, unixMode(mode), 0)
}

// WriteFile replaces name, whatever it was, by a new regular file. It creates
// parents.
func (t *Tree) WriteFile(name string, data []byte, mode fs.FileMode, o Owner) error {
	_, err := t.Create(name, strings.NewReader(string(data)), File{Mode: mode, Owner: o})
	return err
}

// A File holds the attributes of a file for Create.
type File struct {
	Mode     fs.FileMode // permissions, set-ID and sticky bits
	Owner    Owner
	Modified time.Time // zero means now
	caps     string    // value of the security.capability attribute
}

// Create replaces name, whatever it was, by a regular file with the content of r, and
// returns its size. It creates parents, and deletes a directory with its content.
func (t *Tree) Create(name string, r io.Reader, f File) (n int64, err error) {
	dir, base, err := t.replace(name)
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, wrap("create", name, err)
	}
	out := os.NewFile(uintptr(fd), name)
	defer func() {
		if e := out.Close(); e != nil && err == nil {
			err = wrap("write", name, e)
		}
	}()
	if n, err = io.Copy(out, r); err != nil {
		return n, wrap("write", name, err)
	}
	if privileged {
		if err := unix.Fchown(fd, f.Owner.UID, f.Owner.GID); err != nil {
			return n, wrap("change owner of", name, err)
		}
		if f.caps != "" {
			// If attributes are not supported, only programs like ping are affected.
			if err := unix.Fsetxattr(fd, "security.capability", []byte(f.caps), 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
				return n, wrap("set capabilities of", name, err)
			}
		}
	}
	// Set the mode after the owner, since a change of the owner clears set-ID bits.
	if err := unix.Fchmod(fd, unixMode(f.Mode)); err != nil {
		return n, wrap("change mode of", name, err)
	}
	if !f.Modified.IsZero() {
		ts := []unix.Timespec{timespec(f.Modified), timespec(f.Modified)}
		if err := unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return n, wrap("set time of", name, err)
		}
	}
	return n, nil
}

// Symlink replaces name by a symbolic link. The target may be any text; it is resolved only
// in the tree.
func (t *Tree) Symlink(target, name string, o Owner) error {
	dir, base, err := t.replace(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Symlinkat(target, dir, base); err != nil {
		return wrap("link", name, err)
	}
	return wrap("change owner of", name, chown(dir, base, o))
}

// Link replaces name by a hard link to the file old.
func (t *Tree) Link(old, name string) error {
	from, fromBase, err := t.parent(old)
	if err != nil {
		return wrap("link to", old, err)
	}
	defer unix.Close(from)
	var a, b unix.Stat_t
	if err := unix.Fstatat(from, fromBase, &a, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wrap("link to", old, err)
	}
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		return engi.Errorf(engi.Invalid, "link %s to %s: the target is a directory", name, old)
	}
	if to, base, err := t.parent(name); err == nil {
		err := unix.Fstatat(to, base, &b, unix.AT_SYMLINK_NOFOLLOW)
		unix.Close(to)
		if err == nil && a.Dev == b.Dev && a.Ino == b.Ino {
			return nil // both names are the same file, which must not be removed
		}
	}
	dir, base, err := t.replace(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return wrap("link", name, unix.Linkat(from, fromBase, dir, base, 0))
}

// Fifo replaces name by a named pipe.
func (t *Tree) Fifo(name string, mode fs.FileMode, o Owner) error {
	dir, base, err := t.replace(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkfifoat(dir, base, 0o600); err != nil {
		return wrap("make pipe", name, err)
	}
	if err := chown(dir, base, o); err != nil {
		return wrap("change owner of", name, err)
	}
	return wrap("change mode of", name, unix.Fchmodat(dir, base, unixMode(mode), 0))
}

// Chmod changes the mode of the file that name leads to.
func (t *Tree) Chmod(name string, mode fs.FileMode) error {
	fd, err := t.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return wrap("change mode of", name, err)
	}
	defer unix.Close(fd)
	return wrap("change mode of", name, unix.Fchmod(fd, unixMode(mode)))
}

// Chown changes the owner of name itself, without following a link.
func (t *Tree) Chown(name string, o Owner) error {
	dir, base, err := t.parent(name)
	if err != nil {
		return wrap("change owner of", name, err)
	}
	defer unix.Close(dir)
	return wrap("change owner of", name, chown(dir, base, o))
}

// Touch sets the modification time of name itself.
func (t *Tree) Touch(name string, at time.Time) error {
	dir, base, err := t.parent(name)
	if err != nil {
		return wrap("set time of", name, err)
	}
	defer unix.Close(dir)
	ts := []unix.Timespec{timespec(at), timespec(at)}
	return wrap("set time of", name, unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// RemoveAll deletes name and its content. A missing file is not an error.
func (t *Tree) RemoveAll(name string) error {
	dir, base, err := t.parent(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return wrap("remove", name, err)
	}
	defer unix.Close(dir)
	return wrap("remove", name, removeAll(dir, base, nil))
}

// removeAll deletes base in dir and its content, except files for which keep returns true
// and their parents. keep is called with paths relative to base.
func removeAll(dir int, base string, keep func(rel string) bool) error {
	err := unix.Unlinkat(dir, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := removeBelow(dir, base, "", keep); err != nil {
		return err
	}
	err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) || (keep != nil && errors.Is(err, unix.ENOTEMPTY)) {
		return nil
	}
	return err
}

// removeBelow deletes the content of the directory base in dir.
func removeBelow(dir int, base, rel string, keep func(rel string) bool) error {
	if !privileged {
		// The directory belongs to this process, but its mode forbids access.
		_ = unix.Fchmodat(dir, base, 0o700, 0)
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			below := path.Join(rel, name)
			if keep != nil && keep(below) {
				var st unix.Stat_t
				if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					return err
				}
				if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					if err := removeBelow(fd, name, below, keep); err != nil {
						return err
					}
				}
				continue
			}
			var inner func(string) bool
			if keep != nil {
				inner = func(r string) bool { return keep(path.Join(below, r)) }
			}
			if err := removeAll(fd, name, inner); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open opens name in the same way as a process with this root. flags may contain O_NOFOLLOW.
func (t *Tree) open(name string, flags int) (int, error) {
	clean := path.Clean("/" + name)[1:]
	if clean == "" {
		clean = "."
	}
	return t.openat2(clean, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

func (t *Tree) openat2(name string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	for {
		fd, err := unix.Openat2(int(t.root.Fd()), name, &how)
		// EAGAIN means that a rename raced with the path walk.
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

// parent opens the parent directory of name and returns the last part of name.
func (t *Tree) parent(name string) (int, string, error) {
	clean := path.Clean("/" + name)[1:]
	if clean == "" {
		return -1, "", unix.EBUSY // the root has no parent
	}
	dir, base := path.Split(clean)
	fd, err := t.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	return fd, base, err
}

// replace creates the parents of name, removes name, and returns its parent directory
// and last part, for the creation of a new file.
func (t *Tree) replace(name string) (int, string, error) {
	dir, base, err := t.parent(name)
	if errors.Is(err, unix.ENOENT) {
		if err := t.MkdirAll(path.Dir(path.Clean("/"+name)), 0o755, Owner{}); err != nil {
			return -1, "", err
		}
		dir, base, err = t.parent(name)
	}
	if err != nil {
		return -1, "", wrap("create", name, err)
	}
	if err := removeAll(dir, base, nil); err != nil {
		unix.Close(dir)
		return -1, "", wrap("replace", name, err)
	}
	return dir, base, nil
}

func chown(dir int, base string, o Owner) error {
	if !privileged {
		return nil
	}
	return unix.Fchownat(dir, base, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW)
}

func split(name string) []string {
	clean := strings.Trim(path.Clean("/"+name), "/")
	if clean == "" {
		return nil
	}
	return strings.Split(clean, "/")
}

func unixMode(m fs.FileMode) uint32 {
	u := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		u |= unix.S_ISUID
	}
	if m&fs.ModeSetgid != 0 {
		u |= unix.S_ISGID
	}
	if m&fs.ModeSticky != 0 {
		u |= unix.S_ISVTX
	}
	return u
}

// timespec converts a time, and clamps times that file systems cannot store.
func timespec(t time.Time) unix.Timespec {
	const last = 1 << 33 // year 2242
	sec := min(max(t.Unix(), 0), last)
	return unix.Timespec{Sec: sec, Nsec: int64(t.Nanosecond())}
}

// wrap classifies an error of the kernel. It returns errors that have a kind unchanged.
func wrap(act, name string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	kind := engi.Internal
	switch {
	case errors.Is(err, unix.ENOENT):
		kind = engi.NotFound
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "%s %s: the disk is full: %v", act, name, err).WithRemedy("free space for the data directory, 'engi template prune' helps")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		kind = engi.Denied
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EMLINK), errors.Is(err, unix.EBUSY):
		kind = engi.Invalid
	case errors.Is(err, unix.ENOSYS):
		return engi.Errorf(engi.Unsupported, "%s %s: this kernel has no openat2", act, name).WithRemedy("use Linux 5.6 or newer")
	}
	return engi.Errorf(kind, "%s %s: %v", act, name, err)
}
