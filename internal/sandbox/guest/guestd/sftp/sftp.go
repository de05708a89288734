// Package sftp serves files over version 3 of the SSH file transfer protocol, with
// OpenSSH's extensions, for sftp, scp and editors. It runs as a process of
// its own, as the user whose files it serves, so the kernel checks its permissions. It
// is not a boundary.
//
// Requests are served one at a time, in the order in which they arrive. Clients send
// many before they wait for an answer.
package sftp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names of extensions.
const (
	extRename   = "posix-rename@openssh.com"
	extHardlink = "hardlink@openssh.com"
	extStatvfs  = "statvfs@openssh.com"
	extFstatvfs = "fstatvfs@openssh.com"
	extFsync    = "fsync@openssh.com"
	extLsetstat = "lsetstat@openssh.com"
	extLimits   = "limits@openssh.com"
	extExpand   = "expand-path@openssh.com"
)

var extensions = [][2]string{
	{extRename, "1"}, {extStatvfs, "2"}, {extFstatvfs, "2"}, {extHardlink, "1"}, {extFsync, "1"}, {extLsetstat, "1"}, {extLimits, "1"}, {extExpand, "1"},
}

const (
	maxHandles = 256 // maximum number of handles open at once
	maxEntries = 100 // maximum number of entries of a directory in one answer
)

// A server serves one client.
type server struct {
	Options
	out     *bufio.Writer
	data    []byte // buffer for the data of read requests
	handles map[string]*handle
	last    int
}

// A handle is an open file or directory.
type handle struct {
	*os.File
	dir string // path of a directory; empty for a file
}

// Options holds the expectations of a client.
type Options struct {
	Home string // directory that ~ stands for

	// LinkFirst is set for a client that creates symbolic links as in the draft, with the
	// link first. Most clients send the target first, like OpenSSH.
	LinkFirst bool
}

// Serve serves a client until it closes in.
func Serve(in io.Reader, out io.Writer, o Options) error {
	s := &server{Options: o, out: bufio.NewWriterSize(out, 64<<10), handles: map[string]*handle{}}
	defer func() {
		for _, h := range s.handles {
			h.Close()
		}
	}()
	r := bufio.NewReaderSize(in, 64<<10)
	buf := make([]byte, maxPacket)
	for {
		b, err := readPacket(r, buf)
		if err != nil {
			s.out.Flush()
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("read a packet: %w", err)
		}
		q, err := parse(b)
		if err != nil {
			return err // the packet boundary is lost: the bytes that follow cannot be trusted
		}
		if _, err := s.out.Write(s.answer(q)); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if r.Buffered() < 4 {
			if err := s.out.Flush(); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
		}
	}
}

// errUnsupported is the error for unsupported requests.
var errUnsupported = errors.New("operation unsupported")

// answer serves a request and returns its answer.
func (s *server) answer(q request) []byte {
	p, err := s.serve(q)
	if err != nil {
		code, text := status(err)
		p = newReply(kindStatus, q.id).uint32(code).string(text).string("")
	}
	return p.sealed()
}

// status translates an error into a code and a text.
func status(err error) (uint32, string) {
	switch {
	case err == io.EOF:
		return 1, "End of file"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return 2, "No such file or directory"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return 3, "Permission denied"
	case err == errUnsupported:
		return 8, "Operation unsupported"
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return 4, errno.Error()
	}
	return 4, err.Error()
}

func ok(id uint32, err error) (reply, error) {
	return newReply(kindStatus, id).uint32(0).string("Success").string(""), err
}

func (s *server) serve(q request) (reply, error) {
	switch q.kind {
	case kindInit:
		p := newReply(kindVersion, 3)
		for _, e := range extensions {
			p = p.string(e[0]).string(e[1])
		}
		return p, nil
	case kindOpen:
		return s.open(q)
	case kindClose:
		h, err := s.handle(q.name)
		if err != nil {
			return nil, err
		}
		delete(s.handles, q.name)
		return ok(q.id, h.Close())
	case kindRead:
		return s.read(q)
	case kindWrite:
		h, err := s.handle(q.name)
		if err != nil {
			return nil, err
		}
		return ok(q.id, writeAt(h, q.data, int64(q.offset)))
	case kindStat, kindLstat:
		var st unix.Stat_t
		look := unix.Stat
		if q.kind == kindLstat {
			look = unix.Lstat
		}
		if err := retry(func() error { return look(path(q.name), &st) }); err != nil {
			return nil, err
		}
		return newReply(kindAttrs, q.id).attrs(attrsOf(&st)), nil
	case kindFstat:
		h, err := s.handle(q.name)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := retry(func() error { return unix.Fstat(int(h.Fd()), &st) }); err != nil {
			return nil, err
		}
		return newReply(kindAttrs, q.id).attrs(attrsOf(&st)), nil
	case kindSetstat:
		return ok(q.id, set(path(q.name), q.attrs, true))
	case kindFsetstat:
		h, err := s.handle(q.name)
		if err != nil {
			return nil, err
		}
		return ok(q.id, setOpen(h, q.attrs))
	case kindOpendir:
		fd, err := open(path(q.name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		return s.keep(q.id, fd, path(q.name))
	case kindReaddir:
		return s.list(q)
	case kindRemove:
		return ok(q.id, unix.Unlink(path(q.name)))
	case kindMkdir:
		mode := uint32(0o777)
		if q.attrs.flags&attrMode != 0 {
			mode = q.attrs.mode & 0o7777
		}
		return ok(q.id, unix.Mkdir(path(q.name), mode))
	case kindRmdir:
		return ok(q.id, unix.Rmdir(path(q.name)))
	case kindRealpath:
		return named(q.id, realPath(path(q.name))), nil
	case kindRename:
		// A rename of version 3 does not replace a file.
		if _, err := os.Lstat(path(q.other)); err == nil {
			return nil, unix.EEXIST
		}
		return ok(q.id, unix.Rename(path(q.name), path(q.other)))
	case kindReadlink:
		target, err := os.Readlink(path(q.name))
		return named(q.id, target), err
	case kindSymlink:
		if s.LinkFirst {
			return ok(q.id, unix.Symlink(q.other, path(q.name)))
		}
		return ok(q.id, unix.Symlink(q.name, path(q.other)))
	case kindExtended:
		return s.extended(q)
	}
	return nil, errUnsupported
}

func (s *server) extended(q request) (reply, error) {
	p := newReply(kindExtendedReply, q.id)
	switch q.ext {
	case extRename:
		return ok(q.id, unix.Rename(path(q.name), path(q.other)))
	case extHardlink:
		return ok(q.id, unix.Link(path(q.name), path(q.other)))
	case extLsetstat:
		return ok(q.id, set(path(q.name), q.attrs, false))
	case extLimits:
		return p.uint64(maxPacket).uint64(maxData).uint64(maxData).uint64(maxHandles), nil
	case extExpand:
		name := path(q.name)
		if name == "~" || strings.HasPrefix(name, "~/") {
			name = filepath.Join(s.Home, name[1:])
		} else if strings.HasPrefix(name, "~") {
			return nil, errUnsupported
		}
		return named(q.id, realPath(name)), nil
	case extFsync:
		h, err := s.handle(q.name)
		if err != nil {
			return nil, err
		}
		return ok(q.id, h.Sync())
	case extStatvfs, extFstatvfs:
		var st unix.Statfs_t
		look := func() error { return unix.Statfs(path(q.name), &st) }
		if q.ext == extFstatvfs {
			h, err := s.handle(q.name)
			if err != nil {
				return nil, err
			}
			look = func() error { return unix.Fstatfs(int(h.Fd()), &st) }
		}
		if err := retry(look); err != nil {
			return nil, err
		}
		const readOnly, noSUID = 1, 2 // flags of the protocol; the kernel uses the same values
		return p.uint64(uint64(st.Bsize)).uint64(uint64(st.Frsize)).uint64(st.Blocks).uint64(st.Bfree).uint64(st.Bavail).
			uint64(st.Files).uint64(st.Ffree).uint64(st.Ffree).uint64(0).uint64(uint64(st.Flags) & (readOnly | noSUID)).uint64(uint64(st.Namelen)), nil
	}
	return nil, errUnsupported
}

// path returns the path for the name in a request: an empty name is the start directory.
func path(name string) string {
	if name == "" {
		return "."
	}
	return name
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// open opens a file. It does not wait for the other end of a pipe.
func open(name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
		return err
	})
	return fd, err
}

func (s *server) open(q request) (reply, error) {
	var flags int
	switch q.flags & (openRead | openWrite) {
	case openRead | openWrite:
		flags = unix.O_RDWR
	case openWrite:
		flags = unix.O_WRONLY
	}
	for ours, theirs := range map[uint32]int{openAppend: unix.O_APPEND, openCreate: unix.O_CREAT, openTrunc: unix.O_TRUNC, openExcl: unix.O_EXCL} {
		if q.flags&ours != 0 {
			flags |= theirs
		}
	}
	mode := uint32(0o666)
	if q.attrs.flags&attrMode != 0 {
		mode = q.attrs.mode & 0o7777
	}
	fd, err := open(path(q.name), flags, mode)
	if err != nil {
		return nil, err
	}
	return s.keep(q.id, fd, "")
}

// keep takes over fd and answers with a handle.
func (s *server) keep(id uint32, fd int, dir string) (reply, error) {
	f := os.NewFile(uintptr(fd), dir)
	if len(s.handles) >= maxHandles {
		f.Close()
		return nil, unix.EMFILE
	}
	s.last++
	name := strconv.Itoa(s.last)
	s.handles[name] = &handle{f, dir}
	return newReply(kindHandle, id).string(name), nil
}

func (s *server) handle(name string) (*handle, error) {
	if h := s.handles[name]; h != nil {
		return h, nil
	}
	return nil, unix.EBADF
}

func (s *server) read(q request) (reply, error) {
	h, err := s.handle(q.name)
	if err != nil {
		return nil, err
	}
	n := int(min(q.length, maxData))
	const head = 4 + 1 + 4 + 4 // length, kind, id and length of the data
	if cap(s.data) < head+n {
		s.data = make([]byte, head+n)
	}
	buf := s.data[head : head+n]
	err = retry(func() (err error) {
		n, err = unix.Pread(int(h.Fd()), buf, int64(q.offset))
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case n == 0 && len(buf) > 0:
		return nil, io.EOF
	}
	p := append(reply(s.data[:4]), kindData).uint32(q.id).uint32(uint32(n)) // in place: the data follows
	return p[:head+n], nil
}

func writeAt(h *handle, data []byte, at int64) error {
	for len(data) > 0 {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Pwrite(int(h.Fd()), data, at)
			return err
		})
		if err != nil {
			return err
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

// list returns the answer with the next entries of a directory.
func (s *server) list(q request) (reply, error) {
	h, err := s.handle(q.name)
	if err != nil {
		return nil, err
	}
	if h.dir == "" {
		return nil, unix.ENOTDIR
	}
	names, err := h.Readdirnames(maxEntries)
	if err != nil {
		return nil, err // io.EOF at the end
	}
	p, n := newReply(kindName, q.id).uint32(0), uint32(0)
	for _, name := range names {
		var st unix.Stat_t
		if retry(func() error { return unix.Lstat(filepath.Join(h.dir, name), &st) }) != nil {
			continue // the entry is gone
		}
		p = p.string(name).string(long(name, &st)).attrs(attrsOf(&st))
		n++
	}
	p[:9].uint32(n) // replaces the count 0
	return p, nil
}

// named returns an answer with a path and no attributes.
func named(id uint32, name string) reply {
	return newReply(kindName, id).uint32(1).string(name).string(name).uint32(0)
}

// realPath returns an absolute path without links, as far as it exists.
func realPath(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(dir, filepath.Base(abs))
	}
	return abs
}

func attrsOf(st *unix.Stat_t) attrs {
	return attrs{size: uint64(st.Size), uid: st.Uid, gid: st.Gid, mode: st.Mode, atime: uint32(st.Atim.Sec), mtime: uint32(st.Mtim.Sec)}
}

// long returns a line in the format of ls -l, which clients show.
func long(name string, st *unix.Stat_t) string {
	mode := []byte("?rwxrwxrwx")
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		mode[0] = '-'
	case unix.S_IFDIR:
		mode[0] = 'd'
	case unix.S_IFLNK:
		mode[0] = 'l'
	case unix.S_IFIFO:
		mode[0] = 'p'
	case unix.S_IFSOCK:
		mode[0] = 's'
	case unix.S_IFCHR:
		mode[0] = 'c'
	case unix.S_IFBLK:
		mode[0] = 'b'
	}
	for i := range 9 {
		if st.Mode&(1<<(8-i)) == 0 {
			mode[1+i] = '-'
		}
	}
	for _, special := range []struct {
		bit uint32
		at  int
		is  byte
	}{{unix.S_ISUID, 3, 's'}, {unix.S_ISGID, 6, 's'}, {unix.S_ISVTX, 9, 't'}} {
		if st.Mode&special.bit != 0 {
			if c := special.is; mode[special.at] == 'x' {
				mode[special.at] = c
			} else {
				mode[special.at] = c - 'a' + 'A'
			}
		}
	}
	at := time.Unix(st.Mtim.Unix())
	form := "Jan _2 15:04"
	if d := time.Since(at); d < 0 || d > 182*24*time.Hour {
		form = "Jan _2  2006"
	}
	return fmt.Sprintf("%s %4d %-8d %-8d %8d %s %s", mode, st.Nlink, st.Uid, st.Gid, st.Size, at.Format(form), name)
}

// set changes attributes of a file, in OpenSSH's order. follow sets whether links
// are followed.
func set(name string, a attrs, follow bool) error {
	flag := 0
	if !follow {
		flag = unix.AT_SYMLINK_NOFOLLOW
	}
	if a.flags&attrSize != 0 {
		if !follow {
			return unix.EINVAL
		}
		if err := unix.Truncate(name, int64(a.size)); err != nil {
			return err
		}
	}
	if a.flags&attrMode != 0 {
		if err := unix.Fchmodat(unix.AT_FDCWD, name, a.mode&0o7777, flag); err != nil {
			return err
		}
	}
	if a.flags&attrTimes != 0 {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, name, times(a), flag); err != nil {
			return err
		}
	}
	if a.flags&attrOwner != 0 {
		return unix.Fchownat(unix.AT_FDCWD, name, int(a.uid), int(a.gid), flag)
	}
	return nil
}

func setOpen(h *handle, a attrs) error {
	fd := int(h.Fd())
	if a.flags&attrSize != 0 {
		if err := unix.Ftruncate(fd, int64(a.size)); err != nil {
			return err
		}
	}
	if a.flags&attrMode != 0 {
		if err := unix.Fchmod(fd, a.mode&0o7777); err != nil {
			return err
		}
	}
	if a.flags&attrTimes != 0 {
		if err := unix.Futimes(fd, []unix.Timeval{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}}); err != nil {
			return err
		}
	}
	if a.flags&attrOwner != 0 {
		return unix.Fchown(fd, int(a.uid), int(a.gid))
	}
	return nil
}

func times(a attrs) []unix.Timespec {
	return []unix.Timespec{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}}
}
