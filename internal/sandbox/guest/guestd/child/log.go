package child

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Log is the output of a process: one sequence of bytes over all its streams.
// It keeps the last bytes. It is safe for concurrent use.
type Log struct {
	keep         int64         // minimum number of bytes to keep
	limit        int64         // maximum number of bytes to accept; 0 means unlimited
	limitReached chan struct{} // closed when more than limit bytes were appended

	mu          sync.Mutex
	blocks      []block // oldest first
	start       int64   // offset of the first byte kept
	end         int64   // offset after the last byte
	truncated   map[engi.Stream]bool
	count       map[engi.Stream]int64
	closed      bool
	exceeded    bool
	changed     chan struct{} // closed and replaced at each change
	readers     map[*int64]bool
	readerMoved chan struct{} // closed when a reader moves or is closed; nil while no Append waits
	terminal    *terminal     // state of the terminal; nil if the output is not from a terminal
}

type block struct {
	stream engi.Stream
	at     int64 // offset of the block's first byte
	data   []byte
}

const blockSize = 32 << 10

// NewLog returns a log that keeps the last keep bytes, or a little more. If limit
// is positive, it accepts at most limit bytes.
func NewLog(keep, limit int64) *Log {
	return &Log{
		keep: max(keep, 2*blockSize), limit: limit,
		limitReached: make(chan struct{}), changed: make(chan struct{}),
		truncated: map[engi.Stream]bool{}, count: map[engi.Stream]int64{},
		readers: map[*int64]bool{},
	}
}

// LimitReached returns a channel that is closed when more bytes were appended than the log accepts.
func (l *Log) LimitReached() <-chan struct{} { return l.limitReached }

// Append adds data to the log. While a reader would lose bytes by this, Append
// blocks, like a pipe, until stop is closed. Without readers the oldest bytes
// are dropped. In the log of a terminal only the fastest reader counts.
func (l *Log) Append(s engi.Stream, data []byte, stop <-chan struct{}) {
	for len(data) > 0 {
		n := min(len(data), blockSize)
		if !l.waitForReaders(int64(n), stop) {
			return
		}
		l.append(s, data[:n])
		data = data[n:]
	}
}

func (l *Log) append(s engi.Stream, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.limit > 0 && l.end+int64(len(data)) > l.limit {
		data = data[:l.limit-l.end]
		l.truncated[s] = true
		if !l.exceeded {
			l.exceeded = true
			close(l.limitReached)
		}
	}
	if len(data) == 0 {
		return
	}
	l.count[s] += int64(len(data))
	if l.terminal != nil {
		l.terminal.mark(l.start, l.end, time.Now())
	}
	l.end += int64(len(data))
	if n := len(l.blocks); n > 0 && l.blocks[n-1].stream == s && len(l.blocks[n-1].data)+len(data) <= blockSize {
		// Readers hold slices of the block, which appending does not change.
		l.blocks[n-1].data = append(l.blocks[n-1].data, data...)
	} else {
		l.blocks = append(l.blocks, block{s, l.end - int64(len(data)), append(make([]byte, 0, max(len(data), 256)), data...)})
	}
	needed := l.neededLocked()
	for len(l.blocks) > 1 && l.end-l.blocks[1].at >= l.keep && l.blocks[1].at <= needed {
		if l.terminal != nil {
			l.terminal.modes.feed(l.blocks[0].data)
		}
		l.start += int64(len(l.blocks[0].data))
		l.blocks[0] = block{}
		l.blocks = l.blocks[1:]
	}
	l.wakeLocked()
}

// neededLocked returns the offset of the first byte that must be kept for readers:
// the offset of the slowest reader or, in the log of a terminal, of the fastest, since one
// viewer must not stop a program that others are watching.
func (l *Log) neededLocked() int64 {
	needed, first := l.end, true
	for at := range l.readers {
		if first || (*at > needed) == (l.terminal != nil) {
			needed, first = *at, false
		}
	}
	return needed
}

// waitForReaders waits until n bytes can be appended without loss to a reader.
// It returns false if stop is closed first.
func (l *Log) waitForReaders(n int64, stop <-chan struct{}) bool {
	for {
		l.mu.Lock()
		if l.end+n-l.neededLocked() <= l.keep || l.closed {
			l.mu.Unlock()
			return true
		}
		if l.readerMoved == nil {
			l.readerMoved = make(chan struct{})
		}
		moved := l.readerMoved
		l.mu.Unlock()
		select {
		case <-moved:
		case <-stop:
			return false
		}
	}
}

func (l *Log) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Close marks the end of the output.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.wakeLocked()
		l.movedLocked()
	}
}

func (l *Log) movedLocked() {
	if l.readerMoved != nil {
		close(l.readerMoved)
		l.readerMoved = nil
	}
}

// End returns the offset after the last byte.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Accepted returns the number of bytes of a stream that were accepted, and whether some
// bytes were refused.
func (l *Log) Accepted(s engi.Stream) (n int64, truncated bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[s], l.truncated[s]
}

// A LogReader reads a log. It is not safe for concurrent use. Close it.
type LogReader struct {
	l  *Log
	at int64 // offset of the next byte; guarded by l.mu
}

// Read returns a reader at offset from, which may also be engi.OldestOutput.
// Other negative offsets mean the current end. Read reports Conflict if the byte
// at from is not kept any more, and Invalid if it does not exist yet.
func (l *Log) Read(from int64) (*LogReader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case from == engi.OldestOutput:
		from = l.start
	case from < 0:
		from = l.end
	case from < l.start:
		return nil, engi.Errorf(engi.Conflict, "output before byte %d is no longer kept", l.start).
			WithRemedy("read from %d on", l.start)
	case from > l.end:
		return nil, engi.Errorf(engi.Invalid, "offset %d is beyond the %d bytes of output", from, l.end)
	}
	r := &LogReader{l: l, at: from}
	l.readers[&r.at] = true
	return r, nil
}

// Close releases the reader.
func (r *LogReader) Close() {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	delete(r.l.readers, &r.at)
	r.l.movedLocked()
}

// At returns the offset of the next byte to read.
func (r *LogReader) At() int64 {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return r.at
}

// Ready returns a channel that is closed once TryNext has something to return.
// Call it before TryNext, and wait on the channel if TryNext returned nothing.
func (r *LogReader) Ready() <-chan struct{} {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.at < r.l.end || r.l.closed {
		return nil
	}
	return r.l.changed
}

// Err reports Conflict if bytes that the reader had yet to read were dropped,
// which happens only in the log of a terminal with several readers.
func (r *LogReader) Err() error {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return r.errLocked()
}

func (r *LogReader) errLocked() error {
	if r.at >= r.l.start {
		return nil
	}
	return engi.Errorf(engi.Conflict, "output from byte %d to %d was not read in time and is no longer kept", r.at, r.l.start).
		WithRemedy("read from %d on", r.l.start)
}

// TryNext returns the next piece without waiting. Without data, done reports
// whether the log has ended for this reader; see [LogReader.Err].
func (r *LogReader) TryNext() (s engi.Stream, data []byte, done bool) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.at >= l.end:
		return "", nil, l.closed
	case r.errLocked() != nil:
		return "", nil, true
	}
	i := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].at > r.at }) - 1
	b := l.blocks[i]
	data = b.data[r.at-b.at:]
	r.at += int64(len(data))
	l.movedLocked()
	return b.stream, data[:len(data):len(data)], false
}

// Next waits for the next piece. At the end of the log data is nil.
func (r *LogReader) Next(ctx context.Context) (engi.Stream, []byte, error) {
	for {
		ready := r.Ready()
		if s, data, done := r.TryNext(); data != nil || done {
			return s, data, r.Err()
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return "", nil, engi.Errorf(engi.Expired, "read output: %v", ctx.Err())
		}
	}
}
