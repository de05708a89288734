// Package tree works on the files of a sandbox: it writes inputs and collects
// artifacts without following links, replaces files atomically, and lists,
// watches, packs and unpacks directories. Programs may change files and names at
// the same time. This may cause errors or stale results, but never makes the package leave
// its directory.
//
// Callers check paths from messages with package wire.
package tree

import (
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// An Owner is the owner of new files. Negative IDs mean this program's own.
type Owner struct{ UID, GID int }

// KeepOwner leaves owners unchanged.
var KeepOwner = Owner{-1, -1}

// A Stamp identifies a state of a file: it changes whenever the file changes.
type Stamp struct {
	ino          uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stamp(st *unix.Stat_t) Stamp { return Stamp{st.Ino, st.Size, st.Mtim, st.Ctim} }

// Changed returns the time of the inode's last change, by the file system's
// clock, which may be coarser than the program's.
func (s Stamp) Changed() time.Time { return time.Unix(s.ctime.Unix()) }

// A Dir is an open directory. Paths are relative to it.
type Dir struct{ fd int }

// OpenDir opens the directory at an absolute path.
func OpenDir(path string) (*Dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, Classify(err, "open", path)
	}
	return &Dir{fd}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Create writes a regular file of size bytes from r at rel, and creates its
// parents. It refuses to follow links.
func (d *Dir) Create(rel string, perm uint32, o Owner, r io.Reader, size int64) (Stamp, error) {
	parent, name, err := d.parent(rel, o)
	if err != nil {
		return Stamp{}, err
	}
	if parent != d.fd {
		defer unix.Close(parent)
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fresh := true
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, flags|unix.O_EXCL, perm) })
	if err == unix.EEXIST {
		fresh = false
		fd, err = retry(func() (int, error) { return unix.Openat(parent, name, flags|unix.O_TRUNC, perm) })
	}
	if err != nil {
		return Stamp{}, Classify(err, "create", rel)
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	var st unix.Stat_t
	if !fresh {
		if err := unix.Fstat(fd, &st); err != nil {
			return Stamp{}, Classify(err, "create", rel)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return Stamp{}, engi.Errorf(engi.Conflict, "create %s: it exists and is not a file", rel)
		}
	}
	if n, err := io.CopyN(f, r, size); err != nil {
		if errno, ok := err.(*os.PathError); ok {
			return Stamp{}, Classify(errno.Err, "write", rel)
		}
		return Stamp{}, engi.Errorf(engi.Invalid, "write %s: got %d of %d bytes: %v", rel, n, size, err)
	}
	if !fresh && st.Mode&0o777 != perm || perm&0o022 != 0 { // the umask clears the bits 0o022
		if err := unix.Fchmod(fd, perm); err != nil {
			return Stamp{}, Classify(err, "set mode of", rel)
		}
	}
	if o.UID >= 0 && (fresh || int(st.Uid) != o.UID || int(st.Gid) != o.GID) {
		if err := unix.Fchown(fd, o.UID, o.GID); err != nil {
			return Stamp{}, Classify(err, "give away", rel)
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return Stamp{}, Classify(err, "create", rel)
	}
	return stamp(&st), nil
}

// parent opens the parent directory of rel, and creates missing directories. For a
// name without slashes it returns the descriptor of d, not to be closed.
func (d *Dir) parent(rel string, o Owner) (fd int, name string, err error) {
	fd = d.fd
	for {
		first, rest, more := strings.Cut(rel, "/")
		if !more {
			return fd, first, nil
		}
		next, err := openStep(fd, first, o)
		if fd != d.fd {
			unix.Close(fd)
		}
		if err != nil {
			return -1, "", err
		}
		fd, rel = next, rest
	}
}

func openStep(fd int, name string, o Owner) (int, error) {
	next, err := openDirAt(fd, name)
	if err == unix.ENOENT {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil && err != unix.EEXIST {
			return -1, Classify(err, "make directory", name)
		}
		if o.UID >= 0 {
			if err := unix.Fchownat(fd, name, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return -1, Classify(err, "give away", name)
			}
		}
		next, err = openDirAt(fd, name)
	}
	if err != nil {
		return -1, Classify(err, "enter", name)
	}
	return next, nil
}

// openDirAt opens a directory without following a link. It does not use
// O_DIRECTORY, with which gVisor follows a final link in spite of O_NOFOLLOW.
func openDirAt(fd int, name string) (int, error) {
	next, err := retry(func() (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(next, &st); err != nil {
		unix.Close(next)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(next)
		return -1, unix.ENOTDIR
	}
	return next, nil
}

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// Classify gives an error of package os or syscall its kind.
func Classify(err error, act, path string) error {
	if err == nil {
		return nil
	}
	if pe, ok := err.(*os.PathError); ok {
		err = pe.Err
	}
	if le, ok := err.(*os.LinkError); ok {
		err = le.Err
	}
	errno, ok := err.(syscall.Errno)
	if !ok {
		return engi.Errorf(engi.Internal, "%s %s: %v", act, path, err)
	}
	kind := engi.Internal
	switch errno {
	case unix.ENOENT:
		kind = engi.NotFound
	case unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY, unix.EXDEV:
		kind = engi.Conflict
	case unix.EACCES, unix.EPERM, unix.EROFS:
		kind = engi.Denied
	case unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.EFBIG, unix.ENOMEM:
		kind = engi.Exhausted
	case unix.ENOTSUP, unix.ENOSYS:
		kind = engi.Unsupported
	case unix.EINVAL, unix.ENAMETOOLONG, unix.ENXIO:
		kind = engi.Invalid
	case unix.ELOOP:
		return engi.Errorf(engi.Invalid, "%s %s: the path contains a symbolic link", act, path)
	}
	return engi.Errorf(kind, "%s %s: %v", act, path, errno).WithRemedy("%s", remedies[kind])
}

// remedies advise about errors of files. The remedies of package engi are about requests
// and keys.
var remedies = map[engi.Kind]string{
	engi.NotFound:    "check the path",
	engi.Conflict:    "look what is at the path",
	engi.Denied:      "choose a path that the user may use, or change the owner or mode of the file as root",
	engi.Exhausted:   "free what is full: remove files in the sandbox, or use one with larger limits",
	engi.Unsupported: "choose another path: its file system cannot do this",
	engi.Invalid:     "correct the path",
}

// MakeDirAll creates a directory and its parents, which belong to o.
func MakeDirAll(path string, o Owner) error {
	if fi, err := os.Stat(path); err == nil {
		if fi.IsDir() {
			return nil
		}
		return engi.Errorf(engi.Conflict, "make directory %s: a file has this name", path)
	}
	if i := strings.LastIndexByte(strings.TrimRight(path, "/"), '/'); i > 0 {
		if err := MakeDirAll(path[:i], o); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return Classify(err, "make directory", path)
	}
	if o.UID >= 0 {
		if err := os.Lchown(path, o.UID, o.GID); err != nil {
			return Classify(err, "give away", path)
		}
	}
	return nil
}

// OpenRegular opens a regular file for reading. It does not block on pipes.
func OpenRegular(path string) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, Classify(err, "open", path)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, Classify(err, "open", path)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, engi.Errorf(engi.Invalid, "path is a directory or special file: %s", path)
	}
	return os.NewFile(uintptr(fd), path), nil
}
