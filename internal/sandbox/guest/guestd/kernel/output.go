package kernel

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/engi-dev/engi/internal/clip"
)

// output collects the text printed by a kernel and its children. Between executions this text is
// read and dropped, so that background processes do not block.
type output struct {
	files [2]*os.File   // standard output and error
	ready chan struct{} // holds a token when there is new output

	mu     sync.Mutex
	keep   bool
	closed bool
	buf    [2][]byte
	space  *sync.Cond
}

const (
	// maxBuffered is the number of bytes buffered for a client before the kernel blocks.
	maxBuffered = 1 << 20
	// maxDrained bounds the bytes read at an execution's end, in case children
	// never stop printing.
	maxDrained = 4 << 20
)

func newOutput(files [2]*os.File) *output {
	o := &output{files: files, ready: make(chan struct{}, 1), keep: true}
	o.space = sync.NewCond(&o.mu)
	return o
}

var readBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump reads stream i until its last writer has closed it or close is called.
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
			for o.keep && !o.closed && len(o.buf[i]) >= maxBuffered {
				o.space.Wait()
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

// readLocked moves bytes from the pipe to the buffer. It reads with mu held, so
// that every byte is either in the pipe or in the buffer when drain reads them.
func (o *output) readLocked(i int, fd uintptr) (n int, again bool) {
	piece := readBuffers.Get().(*[32 << 10]byte)
	defer readBuffers.Put(piece)
	for {
		n, err := syscall.Read(int(fd), piece[:])
		if err == syscall.EINTR {
			continue
		}
		if n > 0 && o.keep {
			o.buf[i] = append(o.buf[i], piece[:n]...)
			select {
			case o.ready <- struct{}{}:
			default:
			}
		}
		return n, err == syscall.EAGAIN
	}
}

// drain moves the contents of the pipes to the buffers, without blocking.
func (o *output) drain() {
	for i, f := range o.files {
		raw, err := f.SyscallConn()
		if err != nil {
			continue // a closed stream is empty
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

// listen begins to keep output.
func (o *output) listen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep, o.buf = true, [2][]byte{}
	select {
	case <-o.ready:
	default:
	}
}

// discard drops the buffered output, and all output from now on.
func (o *output) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep, o.buf = false, [2][]byte{}
	o.space.Broadcast()
}

// full reports whether a buffer is full, so that the kernel blocks.
func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf[0]) >= maxBuffered || len(o.buf[1]) >= maxBuffered
}

// take returns the buffered output as text. Unless last is set, an incomplete
// character at the end stays in the buffer.
func (o *output) take(last bool) (texts [2]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, b := range o.buf {
		n := len(b)
		if !last {
			n = clip.Whole(b)
			if end := bytes.LastIndexByte(b, '\n') + 1; len(b) >= maxBuffered && end > 0 {
				n = end // with much output, split it at line ends
			}
		}
		texts[i] = strings.ToValidUTF8(string(b[:n]), "\ufffd")
		o.buf[i] = append([]byte(nil), b[n:]...)
	}
	o.space.Broadcast()
	return texts
}

// text returns the buffered output of one stream, and leaves it in the buffer.
func (o *output) text(i int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf[i])
}

// close ends the pumps even if processes still have the pipes open.
func (o *output) close() {
	o.mu.Lock()
	o.closed = true
	o.space.Broadcast()
	o.mu.Unlock()
	for _, f := range o.files {
		f.Close()
	}
}
