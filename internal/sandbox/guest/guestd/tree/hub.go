package tree

import (
	"encoding/binary"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of the queues of watches that are read slowly.
const (
	maxQueued    = 16 << 10  // maximum number of queued events of one watch, like the kernel's default
	maxAllQueued = 256 << 10 // maximum number of queued events of all watches together
	maxDrain     = 64        // maximum number of reads before a directory is added
)

// A hub is the only inotify instance of this program, since instances are
// limited (by default 128 per user) while one can have many directories. It
// delivers each event to the watches of its directory. It is created for the
// first watch and closed with the last.
type hub struct {
	f    *os.File
	done chan struct{} // closed when run has returned

	mu      sync.Mutex
	buf     []byte
	watches map[*Watch]bool
	dirs    map[int32]map[*Watch]bool // watches of each directory, by watch descriptor
	queued  int                       // number of events in all queues
}

// An event is an inotify event. Its watch knows the path of the directory.
type event struct {
	wd   int32
	mask uint32
	name string
}

var sharedHub struct {
	mu sync.Mutex
	*hub
}

// join adds a watch to the hub. It creates the hub if needed.
func join(w *Watch) error {
	sharedHub.mu.Lock()
	defer sharedHub.mu.Unlock()
	if sharedHub.hub == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return addInotifyRemedy(Classify(err, "watch", w.top))
		}
		h := newHub(os.NewFile(uintptr(fd), "inotify"))
		go h.run()
		sharedHub.hub = h
	}
	w.hub = sharedHub.hub
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.hub.watches[w] = true
	return nil
}

func newHub(f *os.File) *hub {
	return &hub{f: f, done: make(chan struct{}), buf: make([]byte, 64<<10), watches: map[*Watch]bool{}, dirs: map[int32]map[*Watch]bool{}}
}

// leave removes a watch and its directories from the hub.
func (h *hub) leave(w *Watch) {
	sharedHub.mu.Lock()
	h.mu.Lock()
	if !h.watches[w] {
		h.mu.Unlock()
		sharedHub.mu.Unlock()
		return
	}
	delete(h.watches, w)
	for wd := range w.dirs {
		h.drop(w, wd)
	}
	h.queued -= len(w.events)
	w.events = nil
	last := len(h.watches) == 0
	h.mu.Unlock()
	if last && sharedHub.hub == h {
		sharedHub.hub = nil
	}
	sharedHub.mu.Unlock()
	if last {
		h.f.Close()
		<-h.done
	}
}

// addInotifyRemedy adds advice to an error about exhausted limits of the kernel.
func addInotifyRemedy(err error) error {
	if e, ok := err.(*engi.Error); ok && e.Kind == engi.Exhausted {
		return e.WithRemedy("end other watches, or raise fs.inotify.max_user_instances, fs.inotify.max_user_watches and the limit of open files")
	}
	return err
}

// watch subscribes w to the events of a directory.
func (h *hub) watch(w *Watch, dir string, flags uint32) (int32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var wd int
	var werr error
	err = c.Control(func(fd uintptr) {
		// Deliver earlier events to the earlier watches first.
		for range maxDrain {
			if !h.read(fd) {
				break
			}
		}
		wd, werr = unix.InotifyAddWatch(int(fd), dir, watchMask|unix.IN_ONLYDIR|flags)
	})
	if err == nil {
		err = werr
	}
	if err != nil {
		return 0, err
	}
	of := h.dirs[int32(wd)]
	if of == nil {
		of = map[*Watch]bool{}
		h.dirs[int32(wd)] = of
	}
	of[w] = true
	return int32(wd), nil
}

// forget unsubscribes w from the events of a directory.
func (h *hub) forget(w *Watch, wd int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(w, wd)
}

func (h *hub) drop(w *Watch, wd int32) {
	of := h.dirs[wd]
	if !of[w] {
		return
	}
	if delete(of, w); len(of) > 0 {
		return
	}
	delete(h.dirs, wd)
	if c, err := h.f.SyscallConn(); err == nil {
		// This fails if the directory, and with it its watch, is gone.
		_ = c.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
	}
}

// run delivers events until the last watch has left.
func (h *hub) run() {
	defer close(h.done)
	c, err := h.f.SyscallConn()
	for err == nil {
		err = c.Read(func(fd uintptr) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.read(fd)
		})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches { // empty if the last watch has left
		w.fail(Classify(err, "watch", w.top))
	}
}

// read delivers the events of one read. It returns false if there were none.
func (h *hub) read(fd uintptr) bool {
	n, err := unix.Read(int(fd), h.buf)
	if err == unix.EINTR {
		return true
	}
	if err != nil || n <= 0 {
		return false
	}
	h.parse(h.buf[:n])
	return true
}

func (h *hub) parse(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		e := event{wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:])}
		size := binary.NativeEndian.Uint32(b[12:])
		b = b[unix.SizeofInotifyEvent:]
		if uint64(size) > uint64(len(b)) {
			return
		}
		e.name = strings.TrimRight(string(b[:size]), "\x00")
		b = b[size:]
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			for w := range h.watches {
				w.fail(errOverflow())
			}
			continue
		}
		// Skip events of the directory itself, which its parent reports, and of
		// temporary files.
		if e.mask&unix.IN_IGNORED == 0 && (e.name == "" || strings.Contains(e.name, "/") || e.name == "." || e.name == ".." || strings.HasPrefix(e.name, tempPrefix)) {
			continue
		}
		for w := range h.dirs[e.wd] {
			h.deliver(w, e)
		}
		if e.mask&unix.IN_IGNORED != 0 {
			delete(h.dirs, e.wd)
		}
	}
}

// deliver queues an event for a watch, or fails the watch if its queue is full.
func (h *hub) deliver(w *Watch, e event) {
	if w.err != nil {
		return
	}
	if n := len(w.events); n >= maxQueued || h.queued >= maxAllQueued && n >= maxAllQueued/len(h.watches) {
		w.fail(errOverflow())
		return
	}
	h.queued++
	w.events = append(w.events, e)
	w.wake()
}

// take returns the queued events of w. If there are none, it returns the error
// that ended the watch, if any.
func (h *hub) take(w *Watch) ([]event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(w.events) == 0 {
		return nil, w.err
	}
	events := w.events
	w.events = nil
	h.queued -= len(events)
	return events, nil
}

// end drops the queued events of w and fails it.
func (h *hub) end(w *Watch, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queued -= len(w.events)
	w.events = nil
	w.fail(err)
}

func errOverflow() error {
	return engi.Errorf(engi.Exhausted, "watch: changes came faster than they were read").WithRemedy("list the directory again")
}
