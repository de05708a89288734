package child

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// terminal is the state of a terminal that a log keeps besides its output.
type terminal struct {
	marks []mark // in ascending order
	sizes []wire.SizeChange
	modes modes // modes set by the dropped part of the output
}

// A mark is the time at which the output from offset at on arrived, in milliseconds.
type mark struct{ at, millis int64 }

// markInterval is the minimum time between two marks.
const markInterval = 4 // milliseconds

// NewTerminalLog returns a log for a terminal of the given size. It is like a log of
// [NewLog], but slow readers delay the program only while all readers are
// slow, and it has a [Log.History].
func NewTerminalLog(keep int64, size wire.Size) *Log {
	l := NewLog(keep, 0)
	l.terminal = &terminal{sizes: []wire.SizeChange{{Millis: time.Now().UnixMilli(), Size: size}}}
	return l
}

// mark records the time at which the output from start to end arrived.
func (t *terminal) mark(start, end int64, now time.Time) {
	millis := now.UnixMilli()
	if n := len(t.marks); n > 0 && millis-t.marks[n-1].millis < markInterval {
		return
	}
	if len(t.marks) >= wire.MaxMarks {
		t.trim(start)
	}
	if len(t.marks) >= wire.MaxMarks { // the times become less exact from here on
		for i := 1; 2*i < len(t.marks); i++ {
			t.marks[i] = t.marks[2*i]
		}
		t.marks = t.marks[:len(t.marks)/2]
	}
	t.marks = append(t.marks, mark{end, millis})
}

// trim drops the records of output that is no longer kept: all marks and sizes
// except the last one before start.
func (t *terminal) trim(start int64) {
	i := 0
	for i+1 < len(t.marks) && t.marks[i+1].at <= start {
		i++
	}
	t.marks = slices.Delete(t.marks, 0, i)
	for i = 0; i+1 < len(t.sizes) && t.sizes[i+1].At <= start; i++ {
	}
	t.sizes = slices.Delete(t.sizes, 0, i)
}

// Resized records a new size of the terminal, from the current end of the output on.
func (l *Log) Resized(size wire.Size) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.terminal
	if t == nil || t.sizes[len(t.sizes)-1].Size == size {
		return
	}
	t.trim(l.start)
	if len(t.sizes) >= wire.MaxSizes {
		t.sizes = slices.Delete(t.sizes, 1, 2)
	}
	t.sizes = append(t.sizes, wire.SizeChange{At: l.end, Millis: time.Now().UnixMilli(), Size: size})
}

// History returns the recorded history of the terminal. It is zero for other logs.
func (l *Log) History() wire.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := wire.History{Start: l.start, End: l.end}
	t := l.terminal
	if t == nil {
		return h
	}
	t.trim(l.start)
	for _, m := range t.marks {
		h.At, h.Millis = append(h.At, m.at), append(h.Millis, m.millis)
	}
	h.Sizes, h.Modes = slices.Clone(t.sizes), t.modes.set()
	return h
}

// modes follows which of a terminal's private modes output sets (CSI ? … h) and
// resets (CSI ? … l), such as the alternate screen. No other state is kept of
// dropped output.
type modes struct {
	state  modeState
	params []byte
	on     map[int]bool
}

type modeState uint8

const (
	inText modeState = iota
	afterEscape
	afterBracket // ESC [
	inPrivate    // ESC [ ?
)

// maxParams bounds the parameters of a sequence that are parsed, in bytes.
const maxParams = 64

func (m *modes) feed(data []byte) {
	for len(data) > 0 {
		if m.state == inText {
			i := bytes.IndexByte(data, 0x1b)
			if i < 0 {
				return
			}
			data, m.state = data[i+1:], afterEscape
			continue
		}
		c := data[0]
		data = data[1:]
		switch {
		case c == 0x1b:
			m.state = afterEscape
		case m.state == afterEscape && c == '[':
			m.state = afterBracket
		case m.state == afterEscape && c == 'c': // reset
			m.on, m.state = nil, inText
		case m.state == afterBracket && c == '?':
			m.state, m.params = inPrivate, m.params[:0]
		case m.state == inPrivate && ('0' <= c && c <= '9' || c == ';') && len(m.params) < maxParams:
			m.params = append(m.params, c)
		case m.state == inPrivate && (c == 'h' || c == 'l'):
			m.apply(c == 'h')
			m.state = inText
		default:
			m.state = inText
		}
	}
}

func (m *modes) apply(on bool) {
	for p := range bytes.SplitSeq(m.params, []byte(";")) {
		mode := atoi(p)
		switch {
		case mode <= 0:
		case !on:
			delete(m.on, mode)
		case len(m.on) < wire.MaxModes:
			if m.on == nil {
				m.on = map[int]bool{}
			}
			m.on[mode] = true
		}
	}
}

// atoi parses at most five digits. It returns 0 for other text.
func atoi(b []byte) (n int) {
	if len(b) > 5 {
		return 0
	}
	for _, c := range b {
		n = 10*n + int(c-'0')
	}
	return n
}

func (m *modes) set() []int { return slices.Sorted(maps.Keys(m.on)) }
