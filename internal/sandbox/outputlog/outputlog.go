// Package outputlog keeps the output of one program: the bytes of both streams
// in order of arrival. One offset counts the bytes of both. One goroutine writes a
// log while any number of readers follow it at their own pace; no reader can
// slow the writer down.
//
// A log is a sequence of frames. A frame is an unsigned varint, whose value is twice
// the number of bytes, plus one for standard error, followed by the bytes. A short log
// stays in memory, a long log continues in a file.
//
// The package does not run programs or limit their output.
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
	// Inline is the maximum number of bytes of frames that stay in memory.
	Inline = 32 << 10
	// maxData is the maximum number of data bytes of one frame.
	maxData  = 64 << 10
	maxFrame = maxData + binary.MaxVarintLen64
	// markEvery is the distance, in bytes of frames, between the marks by
	// which readers find offsets.
	markEvery = 256 << 10
)

// A Log is one program's output. It is safe for concurrent use by one writer
// and many readers.
type Log struct {
	path string // path of the file for a long log

	mu      sync.Mutex
	mem     []byte        // all frames while file is nil
	file    *os.File      // holds all frames of a long log; nil before
	size    int64         // number of bytes of frames
	total   int64         // number of bytes of output; -1 if unknown
	ended   bool          // no more output will come
	err     error         // reason why the log is incomplete; readers get it at the end
	changed chan struct{} // closed and replaced when readers can continue
	marks   []mark
	refs    int // number of open readers, plus 1 until Close
}

// A mark maps an offset of the output to the position of its frame.
type mark struct{ offset, pos int64 }

// New returns an empty log. When the log gets long, it continues in a file at path,
// whose directory it creates.
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
		// A full disk stored only a part of the frame; keep the frames before it.
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

// Fail is like End for an incomplete output: readers get err when they have read
// the existing output.
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
// long log, which is in its file, for Open.
func (l *Log) Frames() ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mem, l.file == nil
}

// Close releases the log. Its file is closed when the last reader is closed.
func (l *Log) Close() { l.release() }

func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs--; l.refs == 0 && l.file != nil {
		l.file.Close()
	}
}

// Read returns a reader that begins at offset from. The caller must close the reader. After Close, Read
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
	pos    int64  // position of the next frame
	offset int64  // offset of the output at pos
	skip   int64  // bytes of output still to skip
	buf    []byte // frames read ahead, starting at pos
	hold   []byte // memory of which buf is a part, if the log is in a file
}

// Next returns the next piece of output, whose data is valid until the next
// call. It waits for the writer. It returns io.EOF after the end, Expired if
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

// frame takes one complete frame from buf, if there is one.
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

// fetch reads ahead from pos, and waits until there is output.
func (r *Reader) fetch(ctx context.Context) error {
	for {
		r.log.mu.Lock()
		mem, file, size := r.log.mem, r.log.file, r.log.size
		ended, failure, changed := r.log.ended, r.log.err, r.log.changed
		r.log.mu.Unlock()

		if r.pos < size {
			if file == nil {
				if len(r.buf) > 0 { // the memory holds only complete frames
					return engi.Errorf(engi.Internal, "output is damaged at byte %d", r.pos)
				}
				r.buf = mem[r.pos:size] // the writer only appends after this slice
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
