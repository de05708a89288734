// Package outputlog keeps the output of one program: the bytes of both streams
// in the order they came. One offset counts them all. One goroutine writes a
// log while any number of readers follow it at their own pace; no reader can
// slow the writer down.
//
// A log is a sequence of frames. A frame is an unsigned varint, which is twice
// the number of bytes, plus one for standard error, and the bytes. A short log
// stays in memory, a long one continues in a file.
//
// The package knows nothing of programs, nor of limits on their output.
package outputlog

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	// Inline is how many bytes of frames stay in memory.
	Inline = 32 << 10
	// maxData bounds the data of one frame.
	maxData  = 64 << 10
	maxFrame = maxData + binary.MaxVarintLen64
	// markEvery is the distance, in bytes of frames, between the marks by
	// which readers find offsets.
	markEvery = 256 << 10
)

// A Log is one program's output. It is safe for concurrent use by one writer
// and many readers.
type Log struct {
	path string // of the file, if the log gets long

	mu      sync.Mutex
	mem     []byte        // all frames while file is nil
	file    *os.File      // all frames, once there are many
	size    int64         // bytes of frames
	total   int64         // bytes of output; -1 if unknown
	ended   bool          // nothing more comes
	err     error         // why the log is incomplete; readers get it at the end
	changed chan struct{} // closed and replaced when readers can continue
	marks   []mark
	refs    int // readers, plus 1 until Close
}

// A mark says where the frame begins that has an offset of the output.
type mark struct{ offset, pos int64 }

// New returns an empty log. When it gets long, it continues in a file at path,
// whose directory it makes.
func New(path string) *Log {
	return &Log{path: path, changed: make(chan struct{}), refs: 1}
}

// Load returns an ended log with the given frames.
func Load(frames []byte) *Log {
	l := &Log{mem: frames, size: int64(len(frames)), ended: true, changed: make(chan struct{}), refs: 1}
	l.total = -1
	return l
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

// Append adds output. After an error the log can only be read.
func (l *Log) Append(stream engi.Stream, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(data) > 0 && l.err == nil {
		n := min(len(data), maxData)
		l.appendLocked(stream, data[:n])
		data = data[n:]
	}
	l.wakeLocked()
	return l.err
}

func (l *Log) appendLocked(stream engi.Stream, data []byte) {
	head := uint64(len(data)) << 1
	if stream == engi.Stderr {
		head |= 1
	}
	if l.size >= int64(len(l.marks)+1)*markEvery {
		l.marks = append(l.marks, mark{l.total, l.size})
	}
	frame := len(data) + binary.MaxVarintLen64
	if l.file == nil && len(l.mem)+frame <= Inline {
		before := len(l.mem)
		l.mem = append(binary.AppendUvarint(l.mem, head), data...)
		l.size += int64(len(l.mem) - before)
		l.total += int64(len(data))
		return
	}
	if l.file == nil {
		if l.err = l.spillLocked(); l.err != nil {
			return
		}
	}
	buf := append(binary.AppendUvarint(make([]byte, 0, frame), head), data...)
	if _, err := l.file.WriteAt(buf, l.size); err != nil {
		// A full disk took a part of the frame; keep the frames before it.
		if e := os.Truncate(l.path, l.size); e != nil {
			err = errors.Join(err, e)
		}
		l.err = fileFault("write", err)
		return
	}
	l.size += int64(len(buf))
	l.total += int64(len(data))
}

// spillLocked moves the frames into the file.
func (l *Log) spillLocked() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return fileFault("make", err)
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fileFault("make", err)
	}
	if _, err := f.WriteAt(l.mem, 0); err != nil {
		f.Close()
		os.Remove(l.path) // the frames stay in memory
		return fileFault("write", err)
	}
	l.file, l.mem = f, nil
	return nil
}

func fileFault(act string, err error) error {
	return engi.Errorf(engi.Exhausted, "%s output: %v", act, err).WithRemedy("free space on the disk of the data directory")
}

func (l *Log) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// End declares the output complete. Readers get io.EOF when they have read it
// all.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		l.wakeLocked()
	}
}

// Fail is End for an incomplete output: readers get err when they have read
// what there is.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.err == nil {
		l.err = err
		l.wakeLocked()
	}
}

// Len returns the bytes of output so far; -1 for a log that was loaded.
func (l *Log) Len() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Frames returns the frames of a short log, for Load. It returns false for a
// long one, which is in its file, for Open.
func (l *Log) Frames() ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mem, l.file == nil
}

// Close releases the log. Its file is closed when the last reader is.
func (l *Log) Close() { l.release() }

func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs--; l.refs == 0 && l.file != nil {
		l.file.Close()
	}
}

// Read returns a reader that begins at offset from; close it. After Close, Read
// returns nil once all readers are closed.
func (l *Log) Read(from int64) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == 0 {
		return nil
	}
	l.refs++
	r := &Reader{log: l, skip: from}
	for _, m := range l.marks {
		if m.offset > from {
			break
		}
		r.pos, r.offset, r.skip = m.pos, m.offset, from-m.offset
	}
	return r
}

// Split returns both streams of an ended log.
func (l *Log) Split() (stdout, stderr []byte, err error) {
	r := l.Read(0)
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
	log    *Log
	pos    int64  // of the next frame
	offset int64  // of the output, at pos
	skip   int64  // bytes of output still to skip
	buf    []byte // frames read ahead, from pos on
	hold   []byte // memory that buf is a part of, if the log is in a file
}

// Next returns the next piece of output, whose data is valid until the next
// call. It waits for the writer. It reports io.EOF after the end, Expired when
// ctx ends first, and Invalid if the reader began beyond the end.
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

// frame takes one complete frame from what was read ahead, if there is one.
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
	size := n + len(c.Data)
	r.buf = r.buf[size:]
	r.pos += int64(size)
	r.offset += int64(len(c.Data))
	return c, true, nil
}

// fetch reads ahead from pos, waiting until there is something.
func (r *Reader) fetch(ctx context.Context) error {
	for {
		r.log.mu.Lock()
		mem, file, size := r.log.mem, r.log.file, r.log.size
		ended, failure, changed := r.log.ended, r.log.err, r.log.changed
		r.log.mu.Unlock()

		if r.pos < size {
			if file == nil {
				if len(r.buf) > 0 { // in memory there are only complete frames
					return engi.Errorf(engi.Internal, "output is damaged at byte %d", r.pos)
				}
				r.buf = mem[r.pos:size] // the writer only appends after that
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
			return engi.Errorf(engi.Invalid, "offset %d is beyond the end of the output, %d", r.offset+r.skip, r.offset).
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

// Close closes the reader.
func (r *Reader) Close() { r.log.release() }
