// Package outputlog keeps the output of one program: the bytes of both streams in
// the order they came, found again by one offset that counts them all. A log
// is written by one goroutine while any number of readers follow it at their
// own pace; none of them can hold the writer up.
//
// A log is a sequence of frames, each an unsigned varint, two times the
// number of bytes plus one if they are of the error output, and the bytes.
// Short tapes stay in memory, long ones go on in a file.
//
// It does not know what a program is, nor where the limits of its output are.
package outputlog

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/engi-dev/engi"
)

const (
	// Inline is how many bytes of frames stay in memory.
	Inline = 32 << 10
	// maxData bounds the data of one frame.
	maxData  = 64 << 10
	maxFrame = maxData + binary.MaxVarintLen64
	// markEvery is the distance of the marks that make offsets quick to
	// find, in bytes of frames.
	markEvery = 256 << 10
)

// A Log is one program's output. It is safe for concurrent use by one writer
// and many readers.
type Log struct {
	path string // of the file a long log goes on in

	mu      sync.Mutex
	mem     []byte        // all frames, while file is nil
	file    *os.File      // all frames, once there are many
	size    int64         // bytes of frames
	total   int64         // bytes of output
	ended   bool          // nothing more comes
	err     error         // the file failed; kept for readers
	changed chan struct{} // closed and replaced when readers may go on
	marks   []mark
	refs    int // readers, and 1 until Close
}

type mark struct{ offset, pos int64 }

// New returns an empty log that goes on in a file at path when it gets long;
// its directory is made then.
func New(path string) *Log {
	return &Log{path: path, changed: make(chan struct{}), refs: 1}
}

// Load returns an ended log with the given frames.
func Load(frames []byte) *Log {
	t := &Log{mem: frames, size: int64(len(frames)), ended: true, changed: make(chan struct{}), refs: 1}
	t.total = -1
	return t
}

// Open returns an ended log whose frames are in the file at path.
func Open(path string) (*Log, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open output: %v", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, engi.Errorf(engi.Internal, "open output: %v", err)
	}
	return &Log{file: f, size: info.Size(), total: -1, ended: true, changed: make(chan struct{}), refs: 1}, nil
}

// Append adds data. After an error the log can only be read.
func (t *Log) Append(stream engi.Stream, data []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(data) > 0 && t.err == nil {
		n := min(len(data), maxData)
		t.appendLocked(stream, data[:n])
		data = data[n:]
	}
	t.wakeLocked()
	return t.err
}

func (t *Log) appendLocked(stream engi.Stream, data []byte) {
	head := uint64(len(data)) << 1
	if stream == engi.Stderr {
		head |= 1
	}
	if t.size >= int64(len(t.marks)+1)*markEvery {
		t.marks = append(t.marks, mark{t.total, t.size})
	}
	frame := len(data) + binary.MaxVarintLen64
	if t.file == nil && len(t.mem)+frame <= Inline {
		before := len(t.mem)
		t.mem = append(binary.AppendUvarint(t.mem, head), data...)
		t.size += int64(len(t.mem) - before)
		t.total += int64(len(data))
		return
	}
	if t.file == nil {
		if t.err = t.spillLocked(); t.err != nil {
			return
		}
	}
	buf := append(binary.AppendUvarint(make([]byte, 0, frame), head), data...)
	if _, err := t.file.WriteAt(buf, t.size); err != nil {
		// A full disk took a part of the frame. Whole frames stay readable.
		if e := os.Truncate(t.path, t.size); e != nil {
			err = errors.Join(err, e)
		}
		t.err = fileFault("write", err)
		return
	}
	t.size += int64(len(buf))
	t.total += int64(len(data))
}

// spillLocked moves the frames into the file.
func (t *Log) spillLocked() error {
	if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
		return fileFault("make", err)
	}
	f, err := os.OpenFile(t.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fileFault("make", err)
	}
	if _, err := f.WriteAt(t.mem, 0); err != nil {
		f.Close()
		os.Remove(t.path) // the frames stay in memory
		return fileFault("write", err)
	}
	t.file, t.mem = f, nil
	return nil
}

func fileFault(act string, err error) error {
	return engi.Errorf(engi.Exhausted, "%s output: %v", act, err).WithRemedy("free space on the disk of the data directory")
}

func (t *Log) wakeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// End says that nothing more comes; readers end when they have everything.
func (t *Log) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended = true
		t.wakeLocked()
	}
}

// Fail is End for an output that is not complete: readers get err once they
// have what there is.
func (t *Log) Fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended && t.err == nil {
		t.err = err
		t.wakeLocked()
	}
}

// Len returns the bytes of output so far; -1 for a log that was loaded.
func (t *Log) Len() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Frames returns the frames of a short log, to be kept for Load; false for a
// long one, whose file is to be kept for Open.
func (t *Log) Frames() ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mem, t.file == nil
}

// Close lets go of the log; its file closes when the last reader does.
func (t *Log) Close() { t.release() }

func (t *Log) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refs--; t.refs == 0 && t.file != nil {
		t.file.Close()
	}
}

// Read returns a reader that begins at offset from. Close it. It returns nil
// after Close when no other reader is left.
func (t *Log) Read(from int64) *Reader {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refs == 0 {
		return nil
	}
	t.refs++
	r := &Reader{t: t, skip: from}
	for _, m := range t.marks {
		if m.offset > from {
			break
		}
		r.pos, r.offset, r.skip = m.pos, m.offset, from-m.offset
	}
	return r
}

// Split returns what a whole, ended log says on both streams.
func (t *Log) Split() (stdout, stderr []byte, err error) {
	r := t.Read(0)
	defer r.Close()
	for {
		c, err := r.Next(context.Background())
		if err == io.EOF {
			return stdout, stderr, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if c.Stream == engi.Stderr {
			stderr = append(stderr, c.Data...)
		} else {
			stdout = append(stdout, c.Data...)
		}
	}
}

// A Reader follows a log. It belongs to one goroutine.
type Reader struct {
	t      *Log
	pos    int64  // of the next frame
	offset int64  // of output, at pos
	skip   int64  // bytes of output still to leave out
	buf    []byte // frames read ahead, from pos on
	hold   []byte // memory behind buf
}

// Next returns the next piece of output; its data are valid until the next
// call. It waits for the writer, and reports io.EOF after the end, Expired
// when ctx ends first, and Invalid if the reader began behind the end.
func (r *Reader) Next(ctx context.Context) (engi.Chunk, error) {
	for {
		c, ok, err := r.frame()
		if err != nil {
			return engi.Chunk{}, err
		}
		if ok {
			if r.skip >= int64(len(c.Data)) {
				r.skip -= int64(len(c.Data))
				continue
			}
			c.Offset += r.skip
			c.Data = c.Data[r.skip:]
			r.skip = 0
			return c, nil
		}
		if err := r.fetch(ctx); err != nil {
			return engi.Chunk{}, err
		}
	}
}

// frame takes one whole frame from what was read ahead, if there is one.
func (r *Reader) frame() (c engi.Chunk, ok bool, err error) {
	head, n := binary.Uvarint(r.buf)
	if n < 0 || n > 0 && head>>1 > maxData {
		return c, false, engi.Errorf(engi.Internal, "output is damaged at byte %d", r.pos)
	}
	if n == 0 || len(r.buf)-n < int(head>>1) {
		return c, false, nil
	}
	c = engi.Chunk{Stream: engi.Stdout, Offset: r.offset, Data: r.buf[n : n+int(head>>1)]}
	if head&1 == 1 {
		c.Stream = engi.Stderr
	}
	whole := n + len(c.Data)
	r.buf = r.buf[whole:]
	r.pos += int64(whole)
	r.offset += int64(len(c.Data))
	return c, true, nil
}

// fetch reads ahead from pos, waiting until there is something.
func (r *Reader) fetch(ctx context.Context) error {
	for {
		r.t.mu.Lock()
		mem, file, size := r.t.mem, r.t.file, r.t.size
		ended, failure, changed := r.t.ended, r.t.err, r.t.changed
		r.t.mu.Unlock()

		if r.pos < size {
			if file == nil {
				if len(r.buf) > 0 { // a memory log has whole frames only
					return engi.Errorf(engi.Internal, "output is damaged at byte %d", r.pos)
				}
				r.buf = mem[r.pos:size] // the writer only ever appends behind
				return nil
			}
			if r.hold == nil {
				r.hold = make([]byte, 2*maxFrame)
			}
			n, err := file.ReadAt(r.hold[:min(int64(len(r.hold)), size-r.pos)], r.pos)
			if err != nil && err != io.EOF {
				return engi.Errorf(engi.Internal, "read output: %v", err)
			}
			if n <= len(r.buf) {
				return engi.Errorf(engi.Internal, "output is damaged at byte %d", r.pos)
			}
			r.buf = r.hold[:n]
			return nil
		}
		switch {
		case failure != nil:
			return failure
		case ended && r.skip > 0:
			return engi.Errorf(engi.Invalid, "offset %d is behind the end of the output, %d", r.offset+r.skip, r.offset).
				WithRemedy("resume from the offset of the last event received plus its length")
		case ended:
			return io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "wait for output: %v", context.Cause(ctx))
		}
	}
}

// Close lets go of the log.
func (r *Reader) Close() { r.t.release() }
