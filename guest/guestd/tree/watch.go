package tree

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// maxWatched bounds the directories of one watch.
const maxWatched = 8192

// A Watch reports changes below a directory. It is for one goroutine.
type Watch struct {
	f         *os.File // the inotify instance
	recursive bool
	dirs      map[int32]string // by watch descriptor
	buf       []byte
	queue     []wire.FileChange
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB

// NewWatch watches a directory; changes from now on are reported. Close it.
func NewWatch(dir string, recursive bool) (*Watch, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, classify(err, "watch", dir)
	}
	if !fi.IsDir() {
		return nil, engi.Errorf(engi.Invalid, "path %s not a directory", dir)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, classify(err, "watch", dir)
	}
	w := &Watch{f: os.NewFile(uintptr(fd), "inotify"), recursive: recursive, dirs: map[int32]string{}, buf: make([]byte, 16<<10)}
	if err := w.add(dir, false); err != nil {
		w.f.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() error { return w.f.Close() }

// add watches a directory and, if recursive, those below. With fresh it also
// reports what is in them: they were made after the watch began.
func (w *Watch) add(dir string, fresh bool) error {
	if len(w.dirs) >= maxWatched {
		return engi.Errorf(engi.Exhausted, "watch %s: more than %d directories", dir, maxWatched)
	}
	c, err := w.f.SyscallConn()
	if err != nil {
		return classify(err, "watch", dir)
	}
	var wd int
	var werr error
	if err := c.Control(func(fd uintptr) {
		wd, werr = unix.InotifyAddWatch(int(fd), dir, watchMask|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	}); err != nil {
		return classify(err, "watch", dir)
	}
	if werr == unix.ENOTDIR || werr == unix.ELOOP || werr == unix.EINVAL {
		// The top directory may be behind a link; others are not followed.
		if len(w.dirs) > 0 {
			return nil
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return classify(err, "watch", dir)
		}
		if err := c.Control(func(fd uintptr) { wd, werr = unix.InotifyAddWatch(int(fd), real, watchMask|unix.IN_ONLYDIR) }); err != nil {
			return classify(err, "watch", dir)
		}
	}
	if werr != nil {
		return classify(werr, "watch", dir)
	}
	w.dirs[int32(wd)] = dir
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone meanwhile
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if fresh {
			w.queue = append(w.queue, wire.FileChange{Path: p, Op: engi.FileCreated})
		}
		if e.IsDir() {
			if err := w.add(p, fresh); err != nil && engi.KindOf(err) == engi.Exhausted {
				return err
			}
		}
	}
	return nil
}

// Next returns the next change. It reports Expired when ctx ends and
// Exhausted when changes came faster than they were read.
func (w *Watch) Next(ctx context.Context) (wire.FileChange, error) {
	stop := context.AfterFunc(ctx, func() { w.f.Close() })
	defer stop()
	for len(w.queue) == 0 {
		n, err := w.f.Read(w.buf)
		if ctx.Err() != nil {
			return wire.FileChange{}, engi.Errorf(engi.Expired, "watch: %v", context.Cause(ctx))
		}
		if err != nil {
			return wire.FileChange{}, classify(err, "watch", "")
		}
		if err := w.parse(w.buf[:n]); err != nil {
			return wire.FileChange{}, err
		}
	}
	ch := w.queue[0]
	w.queue = w.queue[1:]
	return ch, nil
}

func (w *Watch) parse(b []byte) error {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			break
		}
		name := strings.TrimRight(string(b[:size]), "\x00")
		b = b[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			return engi.Errorf(engi.Exhausted, "watch: changes came faster than they were read").WithRemedy("list the directory again")
		}
		dir, known := w.dirs[wd]
		if !known {
			continue
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.dirs, wd)
			continue
		}
		if name == "" || filepath.Base(name) != name || name == ".." || strings.HasPrefix(name, tempPrefix) {
			continue // of the directory itself, which its parent reports; or no name; or ours
		}
		p := filepath.Join(dir, name)
		for bit, op := range ops {
			if mask&bit != 0 {
				w.queue = append(w.queue, wire.FileChange{Path: p, Op: op})
			}
		}
		if w.recursive && mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			if err := w.add(p, true); err != nil && engi.KindOf(err) == engi.Exhausted {
				return err
			}
		}
	}
	return nil
}

var ops = map[uint32]engi.FileOp{
	unix.IN_CREATE:     engi.FileCreated,
	unix.IN_MOVED_TO:   engi.FileCreated,
	unix.IN_MODIFY:     engi.FileWritten,
	unix.IN_DELETE:     engi.FileRemoved,
	unix.IN_MOVED_FROM: engi.FileRenamed,
	unix.IN_ATTRIB:     engi.FileMode,
}
