package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxPath   = 4096
	maxListed = 100_000 // maximum number of entries of one listing
	maxDepth  = 256     // maximum number of levels of a listing
	maxLinks  = 8       // maximum number of links followed at the end of a path
)

// files accesses the content of a volume. Hostile programs in a sandbox may change the content at
// the same time, so every operation is relative to an open directory, and only
// regular files are read.
type files struct {
	manager *Manager
	state   *state
	record  Record
	root    *os.Root
	tmp     *os.File // directory for files being written
	once    sync.Once
}

// Files implements [engi.Volumes].
func (m *Manager) Files(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.VolumeFiles, err error) {
	defer engi.Annotate(&err, "open volume %.140s", idOrName)
	r, err := m.o.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return nil, err
	}
	s := m.lock(r.ID)
	defer s.mu.Unlock()
	if s.removed {
		return nil, unknown()
	}
	f, err := m.open(ctx, s, r)
	if err != nil {
		return nil, err
	}
	if err := m.o.Store.Touch(ctx, r.ID, m.withUsage(r).Used, m.now().UTC()); err != nil {
		s.users--
		f.root.Close()
		f.tmp.Close()
		return nil, err
	}
	return f, nil
}

// open mounts a volume and opens its files for one more user. The caller holds the lock of
// its state.
func (m *Manager) open(ctx context.Context, s *state, r Record) (_ *files, err error) {
	if err := m.mount(ctx, s, r); err != nil {
		return nil, err
	}
	f := &files{manager: m, state: s, record: r}
	if f.root, err = os.OpenRoot(m.dataDir(r.ID)); err != nil {
		return nil, fault("open", "/", err)
	}
	if f.tmp, err = os.OpenFile(filepath.Join(m.mountPoint(r.ID), "tmp"), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
		f.root.Close()
		return nil, fault("open", "tmp", err)
	}
	s.users++
	return f, nil
}

// fill copies the initial content into a new volume.
func (m *Manager) fill(ctx context.Context, r Record, content fs.FS) error {
	s := m.lock(r.ID)
	f, err := m.open(ctx, s, r)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = f.copyFrom(ctx, content)
	f.root.Close()
	f.tmp.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	m.unmountIdle(ctx, s, r) // if this fails, cleanUp unmounts the volume
	return err
}

// Close implements io.Closer. It may be repeated.
func (f *files) Close() error {
	f.once.Do(func() {
		f.root.Close()
		f.tmp.Close()
		f.release(true)
	})
	return nil
}

// release removes a user from the count and unmounts the volume after the last user, if no sandbox
// holds the volume.
func (f *files) release(note bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	f.state.mu.Lock()
	defer f.state.mu.Unlock()
	f.state.users--
	if f.state.removed {
		return
	}
	now, err := f.manager.o.Store.Find(ctx, engi.Everyone, string(f.record.ID))
	if err != nil {
		return // cleanUp unmounts the volume
	}
	if note {
		f.manager.recordUse(ctx, f.state, now)
	}
	if now.Holder == "" {
		f.manager.unmountIdle(ctx, f.state, now)
	}
}

// relPath returns the relative form of a path in the volume.
func relPath(p string) (string, error) {
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) || len(p) > maxPath {
		return "", engi.Errorf(engi.Invalid, "%.100q is not an absolute path of at most %d bytes", p, maxPath)
	}
	if rel := path.Clean(p)[1:]; rel != "" {
		return rel, nil
	}
	return ".", nil
}

// Open implements [engi.VolumeFiles].
func (f *files) Open(ctx context.Context, name string) (_ io.ReadCloser, err error) {
	rel, err := relPath(name)
	if err != nil {
		return nil, err
	}
	// Check the type first, since opening a device may have effects, and do not
	// block, since opening a pipe might never return.
	if st, err := f.root.Stat(rel); err != nil {
		return nil, fault("open", name, err)
	} else if !st.Mode().IsRegular() {
		return nil, engi.Errorf(engi.Conflict, "open %s: not a regular file", name)
	}
	in, err := f.root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fault("open", name, err)
	}
	if st, err := in.Stat(); err != nil || !st.Mode().IsRegular() {
		in.Close()
		return nil, engi.Errorf(engi.Conflict, "open %s: not a regular file", name)
	}
	f.state.mu.Lock()
	f.state.users++
	f.state.mu.Unlock()
	return &reader{File: in, f: f}, nil
}

// A reader is a file that keeps its volume mounted until it is closed.
type reader struct {
	*os.File
	f    *files
	once sync.Once
}

func (r *reader) Close() (err error) {
	r.once.Do(func() {
		err = r.File.Close()
		r.f.release(false)
	})
	return err
}

// Write implements [engi.VolumeFiles]. It follows a link at the end of the path if
// the link leads to a regular file in the volume; otherwise it replaces the link.
func (f *files) Write(ctx context.Context, name string, r io.Reader, a engi.FileAttr) (_ engi.FileInfo, err error) {
	rel, err := relPath(name)
	if err != nil {
		return engi.FileInfo{}, err
	}
	if rel, err = f.resolveLinks(rel); err != nil {
		return engi.FileInfo{}, err
	}
	if rel == "." {
		return engi.FileInfo{}, engi.Errorf(engi.Conflict, "write %s: it is a directory", name)
	}
	if err := checkAttr(name, a); err != nil {
		return engi.FileInfo{}, err
	}
	uid, gid, mode := defaultUID, defaultGID, fs.FileMode(0o644)
	if st, err := f.root.Lstat(rel); err == nil {
		switch sys, ok := st.Sys().(*syscall.Stat_t); {
		case st.IsDir():
			return engi.FileInfo{}, engi.Errorf(engi.Conflict, "write %s: it is a directory", name)
		case ok && st.Mode().IsRegular():
			uid, gid, mode = int(sys.Uid), int(sys.Gid), st.Mode().Perm()
		}
	}
	if a.UID != nil {
		uid = *a.UID
	}
	if a.GID != nil {
		gid = *a.GID
	}
	if a.Mode != nil {
		mode = *a.Mode
	}
	if err := f.makeParents(path.Dir(rel)); err != nil {
		return engi.FileInfo{}, f.volumeFull(err)
	}

	temp := rand.Text()
	fd, err := unix.Openat(int(f.tmp.Fd()), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return engi.FileInfo{}, f.volumeFull(fault("write", name, err))
	}
	out := os.NewFile(uintptr(fd), name)
	src := &source{ctx: ctx, r: r}
	if !f.record.Image {
		src.budget = f.budget
	}
	placed := false
	defer func() {
		out.Close()
		if !placed {
			f.refund(src.spent)
			_ = unix.Unlinkat(int(f.tmp.Fd()), temp, 0) // if this fails, the next process removes the file
		}
	}()
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, src, make([]byte, 256<<10)); err != nil {
		if src.err != nil {
			return engi.FileInfo{}, f.volumeFull(src.err)
		}
		return engi.FileInfo{}, f.volumeFull(fault("write", name, err))
	}
	if privileged {
		if err := out.Chown(uid, gid); err != nil {
			return engi.FileInfo{}, fault("change owner of", name, err)
		}
	}
	if err := out.Chmod(mode); err != nil {
		return engi.FileInfo{}, fault("change mode of", name, err)
	}
	if err := out.Sync(); err != nil {
		return engi.FileInfo{}, f.volumeFull(fault("write", name, err))
	}
	dir, err := f.openDir(path.Dir(rel))
	if err != nil {
		return engi.FileInfo{}, err
	}
	defer dir.Close()
	if err := unix.Renameat(int(f.tmp.Fd()), temp, int(dir.Fd()), path.Base(rel)); err != nil {
		return engi.FileInfo{}, f.volumeFull(fault("write", name, err))
	}
	placed = true
	return statAt(int(dir.Fd()), path.Base(rel), "/"+rel)
}

// resolveLinks follows links at the end of a path as far as they lead to regular
// files in the volume.
func (f *files) resolveLinks(rel string) (string, error) {
	at := rel
	for range maxLinks {
		st, err := f.root.Lstat(at)
		if err != nil || st.Mode()&fs.ModeSymlink == 0 {
			if err == nil && st.Mode().IsRegular() {
				return at, nil
			}
			return rel, nil
		}
		link, err := f.root.Readlink(at)
		if err != nil || path.IsAbs(link) {
			return rel, nil
		}
		if at = path.Join(path.Dir(at), link); !filepath.IsLocal(at) {
			return rel, nil
		}
	}
	return rel, nil
}

// budget reserves n bytes of the capacity of a plain directory.
func (f *files) budget(n int) error {
	f.state.mu.Lock()
	defer f.state.mu.Unlock()
	if f.state.used+int64(n) > f.record.Capacity {
		return unix.ENOSPC
	}
	f.state.used += int64(n)
	return nil
}

func (f *files) refund(n int64) {
	f.state.mu.Lock()
	defer f.state.mu.Unlock()
	f.state.used -= n
}

// volumeFull replaces an error about a full disk by one that names the volume.
func (f *files) volumeFull(err error) error {
	if !engi.Is(err, engi.Exhausted) {
		return err
	}
	return engi.Errorf(engi.Exhausted, "volume %s is full: its capacity is %d bytes", f.record.Name, f.record.Capacity).
		WithRemedy("delete files in it, or make a larger volume and copy what is in this one")
}

// A source reads until ctx ends or the budget, if any, is used up. It keeps
// errors other than io.EOF.
type source struct {
	ctx    context.Context
	r      io.Reader
	budget func(n int) error
	spent  int64 // bytes of the budget that are used
	err    error
}

func (s *source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		s.err = engi.Errorf(engi.Expired, "write: %v", context.Cause(s.ctx))
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if n > 0 && s.budget != nil {
		if e := s.budget(n); e != nil {
			s.err = fault("write", "content", e)
			return 0, s.err
		}
		s.spent += int64(n)
	}
	if err != nil && err != io.EOF {
		s.err = err
		if _, ok := errors.AsType[*engi.Error](err); !ok && s.ctx.Err() == nil {
			s.err = engi.Errorf(engi.Invalid, "reading the content failed: %v", err)
		}
	}
	return n, err
}

// makeParents creates a directory and its parents.
func (f *files) makeParents(rel string) error {
	if rel == "." {
		return nil
	}
	if st, err := f.root.Stat(rel); err == nil {
		if !st.IsDir() {
			return engi.Errorf(engi.Conflict, "/%s is not a directory", rel)
		}
		return nil
	}
	if err := f.makeParents(path.Dir(rel)); err != nil {
		return err
	}
	return f.mkdir(rel, 0o755, defaultUID, defaultGID, true)
}

func (f *files) mkdir(rel string, mode fs.FileMode, uid, gid int, existing bool) error {
	err := f.root.Mkdir(rel, 0o700)
	if errors.Is(err, fs.ErrExist) && existing {
		return nil // a program in the sandbox created the directory meanwhile
	}
	if err != nil {
		return fault("make directory", "/"+rel, err)
	}
	if privileged {
		if err := f.root.Lchown(rel, uid, gid); err != nil {
			return fault("change owner of", "/"+rel, err)
		}
	}
	if err := f.root.Chmod(rel, mode); err != nil {
		return fault("change mode of", "/"+rel, err)
	}
	return nil
}

func (f *files) openDir(rel string) (*os.File, error) {
	dir, err := f.root.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault("open", "/"+rel, err)
	}
	return dir, nil
}

// Stat implements [engi.VolumeFiles].
func (f *files) Stat(ctx context.Context, name string) (engi.FileInfo, error) {
	rel, err := relPath(name)
	if err != nil {
		return engi.FileInfo{}, err
	}
	if rel == "." {
		dir, err := f.openDir(".")
		if err != nil {
			return engi.FileInfo{}, err
		}
		defer dir.Close()
		return statAt(int(dir.Fd()), "", "/")
	}
	dir, err := f.openDir(path.Dir(rel))
	if err != nil {
		return engi.FileInfo{}, err
	}
	defer dir.Close()
	return statAt(int(dir.Fd()), path.Base(rel), "/"+rel)
}

// statAt returns the status of a file in an open directory, or of the directory itself.
func statAt(dir int, base, name string) (engi.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH); err != nil {
		return engi.FileInfo{}, fault("stat", name, err)
	}
	fi := engi.FileInfo{
		Path: name, Size: st.Size, Mode: modeOf(st.Mode), UID: int(st.Uid), GID: int(st.Gid),
		Owner: strconv.Itoa(int(st.Uid)), Group: strconv.Itoa(int(st.Gid)), Modified: time.Unix(st.Mtim.Sec, st.Mtim.Nsec).UTC(),
	}
	if fi.Mode&fs.ModeSymlink != 0 {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, buf)
		if err != nil {
			return engi.FileInfo{}, fault("read link", name, err)
		}
		fi.Target = string(buf[:n])
	}
	return fi, nil
}

func modeOf(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	}
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// List implements [engi.VolumeFiles].
func (f *files) List(ctx context.Context, name string, depth int) ([]engi.FileInfo, error) {
	rel, err := relPath(name)
	if err != nil {
		return nil, err
	}
	dir, err := f.openDir(rel)
	if err != nil {
		return nil, err
	}
	l := lister{ctx: ctx, most: f.manager.maxListed, all: []engi.FileInfo{}}
	if err := l.list(dir, path.Join("/", rel), min(max(depth, 1), maxDepth)); err != nil {
		return nil, err
	}
	return l.all, nil
}

type lister struct {
	ctx  context.Context
	most int // maximum number of entries
	all  []engi.FileInfo
}

// list appends the entries of a directory, which it closes.
func (l *lister) list(dir *os.File, name string, depth int) error {
	defer dir.Close()
	var bases []string
	for {
		if err := l.ctx.Err(); err != nil {
			return engi.Errorf(engi.Expired, "list %s: %v", name, context.Cause(l.ctx))
		}
		some, err := dir.Readdirnames(1024)
		if bases = append(bases, some...); len(l.all)+len(bases) > l.most {
			return engi.Errorf(engi.Exhausted, "list %s: more than %d entries", name, l.most).WithRemedy("list smaller directories, or with a smaller depth")
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fault("list", name, err)
		}
	}
	slices.Sort(bases)
	for _, base := range bases {
		at := path.Join(name, base)
		fi, err := statAt(int(dir.Fd()), base, at)
		if engi.Is(err, engi.NotFound) {
			continue // the file was removed meanwhile
		}
		if err != nil {
			return err
		}
		l.all = append(l.all, fi)
		if !fi.Mode.IsDir() || depth == 1 {
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // the directory was removed, or is no longer a directory
		}
		if err := l.list(os.NewFile(uintptr(fd), at), at, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// MakeDir implements [engi.VolumeFiles].
func (f *files) MakeDir(ctx context.Context, name string, a engi.FileAttr) (engi.FileInfo, error) {
	rel, err := relPath(name)
	if err != nil {
		return engi.FileInfo{}, err
	}
	if rel == "." {
		return engi.FileInfo{}, engi.Errorf(engi.Conflict, "make directory /: it exists")
	}
	if err := checkAttr(name, a); err != nil {
		return engi.FileInfo{}, err
	}
	if err := f.makeParents(path.Dir(rel)); err != nil {
		return engi.FileInfo{}, f.volumeFull(err)
	}
	uid, gid, mode := defaultUID, defaultGID, fs.FileMode(0o755)
	if a.UID != nil {
		uid = *a.UID
	}
	if a.GID != nil {
		gid = *a.GID
	}
	if a.Mode != nil {
		mode = *a.Mode
	}
	if err := f.mkdir(rel, mode, uid, gid, false); err != nil {
		return engi.FileInfo{}, f.volumeFull(err)
	}
	return f.Stat(ctx, name)
}

// Change implements [engi.VolumeFiles].
func (f *files) Change(ctx context.Context, name string, a engi.FileAttr) (engi.FileInfo, error) {
	rel, err := relPath(name)
	if err != nil {
		return engi.FileInfo{}, err
	}
	if err := checkAttr(name, a); err != nil {
		return engi.FileInfo{}, err
	}
	if (a.UID != nil || a.GID != nil) && privileged {
		uid, gid := -1, -1
		if a.UID != nil {
			uid = *a.UID
		}
		if a.GID != nil {
			gid = *a.GID
		}
		if err := f.root.Chown(rel, uid, gid); err != nil {
			return engi.FileInfo{}, fault("change owner of", name, err)
		}
	}
	if a.Mode != nil {
		if err := f.root.Chmod(rel, *a.Mode); err != nil {
			return engi.FileInfo{}, fault("change mode of", name, err)
		}
	}
	return f.Stat(ctx, name)
}

func checkAttr(name string, a engi.FileAttr) error {
	if a.Mode != nil && *a.Mode&^fs.ModePerm != 0 {
		return engi.Errorf(engi.Invalid, "%s: mode %v has more than permission bits", name, *a.Mode)
	}
	for _, id := range []*int{a.UID, a.GID} {
		if id != nil && (*id < 0 || int64(*id) >= 1<<32-1) {
			return engi.Errorf(engi.Invalid, "%s: %d is not the number of a user or group", name, *id)
		}
	}
	return nil
}

// Remove implements [engi.VolumeFiles].
func (f *files) Remove(ctx context.Context, name string) error {
	rel, err := relPath(name)
	if err != nil {
		return err
	}
	if rel == "." {
		return engi.Errorf(engi.Denied, "remove /: the root of a volume cannot be removed").WithRemedy("remove its files, or the volume")
	}
	if _, err := f.root.Lstat(rel); err != nil {
		return fault("remove", name, err)
	}
	if err := f.root.RemoveAll(rel); err != nil {
		return fault("remove", name, err)
	}
	if !f.record.Image {
		used, err := treeBytes(f.manager.dataDir(f.record.ID))
		if err != nil {
			return err
		}
		f.state.mu.Lock()
		f.state.used = used
		f.state.mu.Unlock()
	}
	return nil
}
