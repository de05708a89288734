package tree

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// maxWatched bounds the directories of one watch.
const maxWatched = 8192

// A Watch reports changes below a directory. It is not safe for concurrent use.
type Watch struct {
	top       string
	recursive bool
	hub       *hub
	dirs      map[int32]string // path of each directory, by watch descriptor
	queue     []wire.FileChange

	// The fields below are guarded by hub.mu.
	events []event
	err    error
	ready  chan struct{} // has capacity 1
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB

// NewWatch begins to watch a directory. Close it.
func NewWatch(dir string, recursive bool) (*Watch, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, Classify(err, "watch", dir)
	}
	if !fi.IsDir() {
		return nil, engi.Errorf(engi.Invalid, "path %s not a directory", dir)
	}
	w := newWatch(dir, recursive)
	if err := join(w); err != nil {
		return nil, err
	}
	if err := w.add(dir, false); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func newWatch(dir string, recursive bool) *Watch {
	return &Watch{top: dir, recursive: recursive, dirs: map[int32]string{}, ready: make(chan struct{}, 1)}
}

// Close ends the watch. It may be called more than once, but not concurrently with Next.
func (w *Watch) Close() { w.hub.leave(w) }

// fail makes Next report err after the queued changes. hub.mu is held.
func (w *Watch) fail(err error) {
	if w.err == nil {
		w.err = err
		w.wake()
	}
}

func (w *Watch) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// add watches a directory and, if the watch is recursive, those below. With
// fresh set it also reports their content, because they appeared after the watch began.
func (w *Watch) add(dir string, fresh bool) error {
	if len(w.dirs) >= maxWatched {
		return engi.Errorf(engi.Exhausted, "watch %s: more than %d directories", dir, maxWatched).WithRemedy("watch a smaller directory, or not recursively")
	}
	wd, err := w.hub.watch(w, dir, unix.IN_DONT_FOLLOW)
	if err == unix.ENOTDIR || err == unix.ELOOP || err == unix.EINVAL {
		// The top directory may be a link; others are not followed.
		if len(w.dirs) > 0 {
			return nil
		}
		resolved, rerr := filepath.EvalSymlinks(dir)
		if rerr != nil {
			return Classify(rerr, "watch", dir)
		}
		wd, err = w.hub.watch(w, resolved, 0)
	}
	if err != nil {
		return addInotifyRemedy(Classify(err, "watch", dir))
	}
	w.dirs[wd] = dir
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // the directory is gone by now
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if fresh {
			if len(w.queue) >= maxQueued {
				return errOverflow()
			}
			w.queue = append(w.queue, wire.FileChange{Path: p, Op: engi.FileCreated})
		}
		if e.IsDir() {
			if err := w.add(p, fresh); engi.Is(err, engi.Exhausted) {
				return err
			}
		}
	}
	return nil
}

// Next waits for the next change. It reports Expired when ctx ends and Exhausted
// if changes came faster than they were read.
func (w *Watch) Next(ctx context.Context) (wire.FileChange, error) {
	for len(w.queue) == 0 {
		events, err := w.hub.take(w)
		if err != nil {
			return wire.FileChange{}, err
		}
		for _, e := range events {
			if err := w.handle(e); err != nil {
				w.hub.end(w, err) // the error is reported after earlier changes
				break
			}
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return wire.FileChange{}, engi.Errorf(engi.Expired, "watch: %v", context.Cause(ctx))
		}
	}
	ch := w.queue[0]
	w.queue = w.queue[1:]
	return ch, nil
}

// handle turns an event into changes.
func (w *Watch) handle(e event) error {
	dir, known := w.dirs[e.wd]
	if !known {
		return nil
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, e.wd)
		return nil
	}
	p := filepath.Join(dir, e.name)
	for bit, op := range ops {
		if e.mask&bit != 0 {
			w.queue = append(w.queue, wire.FileChange{Path: p, Op: op})
		}
	}
	if !w.recursive || e.mask&unix.IN_ISDIR == 0 {
		return nil
	}
	if e.mask&unix.IN_MOVED_FROM != 0 {
		w.unwatchTree(p)
	}
	if e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		if err := w.add(p, true); engi.Is(err, engi.Exhausted) {
			return err
		}
	}
	return nil
}

// unwatchTree stops watching a moved directory and all directories below it.
// If it was moved to a watched directory, it is added again there.
func (w *Watch) unwatchTree(dir string) {
	for wd, p := range w.dirs {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			delete(w.dirs, wd)
			w.hub.forget(w, wd)
		}
	}
}

var ops = map[uint32]engi.FileOp{
	unix.IN_CREATE:     engi.FileCreated,
	unix.IN_MOVED_TO:   engi.FileCreated,
	unix.IN_MODIFY:     engi.FileWritten,
	unix.IN_DELETE:     engi.FileRemoved,
	unix.IN_MOVED_FROM: engi.FileRenamed,
	unix.IN_ATTRIB:     engi.FileMode,
}
