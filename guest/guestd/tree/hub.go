package tree

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
)

// Bounds of what waits for watches that read slowly.
const (
	maxWaiting    = 16 << 10  // of one watch, as the kernel has it
	maxAllWaiting = 256 << 10 // of all watches together
	maxDrain      = 64        // readings before a directory is added
)

// A hub is the one inotify instance of this program: instances are few (a user
// of the host has 128), directories of an instance are many. It hands every
// event to the watches of its directory. It begins with the first watch and
// ends with the last.
type hub struct {
	f    *os.File
	done chan struct{} // closed when the reader has left

	mu      sync.Mutex
	buf     []byte
	watches map[*Watch]bool
	dirs    map[int32]map[*Watch]bool // by watch descriptor
	waiting int                       // events in all queues
}

// An event is one of the kernel, for the watch that knows the directory.
type event struct {
	wd   int32
	mask uint32
	name string
}

var theHub struct {
	mu sync.Mutex
	*hub
}

// join adds a watch to the hub.
func join(w *Watch) error {
	theHub.mu.Lock()
	defer theHub.mu.Unlock()
	if theHub.hub == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return scarce(classify(err, "watch", w.top))
		}
		h := newHub(os.NewFile(uintptr(fd), "inotify"))
		go h.run()
		theHub.hub = h
	}
	w.hub = theHub.hub
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.hub.watches[w] = true
	return nil
}

func newHub(f *os.File) *hub {
	return &hub{f: f, done: make(chan struct{}), buf: make([]byte, 64<<10), watches: map[*Watch]bool{}, dirs: map[int32]map[*Watch]bool{}}
}

// leave takes a watch and its directories out of the hub.
func (h *hub) leave(w *Watch) {
	theHub.mu.Lock()
	h.mu.Lock()
	if !h.watches[w] {
		h.mu.Unlock()
		theHub.mu.Unlock()
		return
	}
	delete(h.watches, w)
	for wd := range w.dirs {
		h.drop(w, wd)
	}
	h.waiting -= len(w.events)
	w.events = nil
	last := len(h.watches) == 0
	h.mu.Unlock()
	if last && theHub.hub == h {
		theHub.hub = nil
	}
	theHub.mu.Unlock()
	if last {
		h.f.Close()
		<-h.done
	}
}

// scarce says what to do when the kernel has no more of what watches are made of.
func scarce(err error) error {
	if e, ok := err.(*engi.Error); ok && e.Kind == engi.Exhausted {
		return e.WithRemedy("end other watches, or raise fs.inotify.max_user_instances, fs.inotify.max_user_watches and the limit of open files")
	}
	return err
}

// watch asks for the events of a directory on behalf of w.
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
		// What happened before now is for those who watched before now.
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

// forget ends the events of a directory for w.
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
		// It may be gone with its directory already.
		_ = c.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
	}
}

// run hands out events until the last watch has left.
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
	for w := range h.watches { // none if this is the end that leave brings
		w.fail(classify(err, "watch", w.top))
	}
}

// read hands out what one reading yields; false when there was nothing.
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
				w.fail(tooFast())
			}
			continue
		}
		// A name that is none is of the directory itself, which its parent
		// reports; some files are ours.
		if e.mask&unix.IN_IGNORED == 0 && (e.name == "" || filepath.Base(e.name) != e.name || e.name == ".." || strings.HasPrefix(e.name, tempPrefix)) {
			continue
		}
		for w := range h.dirs[e.wd] {
			h.hand(w, e)
		}
		if e.mask&unix.IN_IGNORED != 0 {
			delete(h.dirs, e.wd)
		}
	}
}

// hand gives a watch an event, or the news that it reads too slowly.
func (h *hub) hand(w *Watch, e event) {
	if w.err != nil {
		return
	}
	if n := len(w.events); n >= maxWaiting || h.waiting >= maxAllWaiting && n >= maxAllWaiting/len(h.watches) {
		w.fail(tooFast())
		return
	}
	h.waiting++
	w.events = append(w.events, e)
	w.wake()
}

// take returns what waits for w, or why nothing comes any more.
func (h *hub) take(w *Watch) ([]event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(w.events) == 0 {
		return nil, w.err
	}
	events := w.events
	w.events = nil
	h.waiting -= len(events)
	return events, nil
}

// end lets nothing come to w any more but err.
func (h *hub) end(w *Watch, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting -= len(w.events)
	w.events = nil
	w.fail(err)
}

func tooFast() error {
	return engi.Errorf(engi.Exhausted, "watch: changes came faster than they were read").WithRemedy("list the directory again")
}
