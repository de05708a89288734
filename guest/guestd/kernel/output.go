package kernel

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"
)

// output collects what a kernel and its children print. While nobody listens
// it is read and forgotten, so that nothing in the background waits.
type output struct {
	files [2]*os.File   // standard output and error
	news  chan struct{} // has a token when something came

	mu     sync.Mutex
	on     bool
	closed bool
	buf    [2][]byte
	room   *sync.Cond
}

const (
	// maxBuffered is how much is read ahead of a client; then the kernel waits.
	maxBuffered = 1 << 20
	// maxDrained bounds what is taken at an execution's end from children that
	// never stop printing.
	maxDrained = 4 << 20
)

func newOutput(files [2]*os.File) *output {
	o := &output{files: files, news: make(chan struct{}, 1), on: true}
	o.room = sync.NewCond(&o.mu)
	return o
}

var pieces = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump reads one stream until its last writer is gone or close is called.
func (o *output) pump(i int) {
	defer o.files[i].Close()
	raw, err := o.files[i].SyscallConn()
	if err != nil {
		return
	}
	for end := false; !end; {
		err := raw.Read(func(fd uintptr) (done bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			for o.on && !o.closed && len(o.buf[i]) >= maxBuffered {
				o.room.Wait()
			}
			n, again := o.readLocked(i, fd)
			end = n <= 0 && !again
			return !again
		})
		if err != nil {
			return
		}
	}
}

// readLocked moves what is in the pipe into the buffer. The read happens under
// the lock, so that drain knows of every byte where it is.
func (o *output) readLocked(i int, fd uintptr) (n int, again bool) {
	piece := pieces.Get().(*[32 << 10]byte)
	defer pieces.Put(piece)
	for {
		n, err := syscall.Read(int(fd), piece[:])
		if err == syscall.EINTR {
			continue
		}
		if n > 0 && o.on {
			o.buf[i] = append(o.buf[i], piece[:n]...)
			select {
			case o.news <- struct{}{}:
			default:
			}
		}
		return n, err == syscall.EAGAIN
	}
}

// drain takes what is in the pipes now, without waiting.
func (o *output) drain() {
	for i, f := range o.files {
		raw, err := f.SyscallConn()
		if err != nil {
			continue // closed: there is nothing in it
		}
		raw.Control(func(fd uintptr) {
			o.mu.Lock()
			defer o.mu.Unlock()
			for total := 0; total < maxDrained; {
				n, _ := o.readLocked(i, fd)
				if n <= 0 {
					return
				}
				total += n
			}
		})
	}
}

// listen keeps what comes from now on.
func (o *output) listen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on, o.buf = true, [2][]byte{}
	select {
	case <-o.news:
	default:
	}
}

// drop forgets what came and what comes.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on, o.buf = false, [2][]byte{}
	o.room.Broadcast()
}

// full reports whether a kernel waits for its output to be taken.
func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf[0]) >= maxBuffered || len(o.buf[1]) >= maxBuffered
}

// take returns what came as text. Unless it is the last, a character of which
// not all bytes have come stays.
func (o *output) take(last bool) (texts [2]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, b := range o.buf {
		n := len(b)
		if !last {
			n -= partial(b)
			if end := bytes.LastIndexByte(b, '\n') + 1; len(b) >= maxBuffered && end > 0 {
				n = end // so much comes that lines are cut: cut between them
			}
		}
		texts[i] = strings.ToValidUTF8(string(b[:n]), "\ufffd")
		o.buf[i] = append([]byte(nil), b[n:]...)
	}
	o.room.Broadcast()
	return texts
}

// text returns what came on one stream, which stays.
func (o *output) text(i int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf[i])
}

// partial returns how many bytes at the end of b begin a character that is not
// complete.
func partial(b []byte) int {
	for n := 1; n <= min(len(b), utf8.UTFMax-1); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// close ends the pumps although others may still hold the pipes.
func (o *output) close() {
	o.mu.Lock()
	o.closed = true
	o.room.Broadcast()
	o.mu.Unlock()
	for _, f := range o.files {
		f.Close()
	}
}
