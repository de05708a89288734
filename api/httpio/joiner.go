package httpio

import (
	"bytes"
	"cmp"
	"slices"
	"unicode/utf8"
)

// ChunkSize bounds the data of one event, whatever its source yields.
const ChunkSize = 64 << 10

// A Chunk is output of one stream on its way into an event: Text, or Bytes if
// it is no UTF-8. Offset is where to come back once it has arrived.
type Chunk struct {
	Stream string
	Offset int64
	Text   string
	Bytes  []byte
}

// A Joiner puts characters together that their source cut in two. It holds back
// at most three bytes of each stream. It is for one goroutine.
type Joiner struct {
	next int64 // offset after everything seen
	held []part
}

type part struct {
	stream string
	data   []byte // the beginning of a character
	at     int64  // its offset
}

// NewJoiner returns a seam for output from an offset on.
func NewJoiner(from int64) *Joiner { return &Joiner{next: from} }

func (s *Joiner) part(stream string) *part {
	for i := range s.held {
		if s.held[i].stream == stream {
			return &s.held[i]
		}
	}
	s.held = append(s.held, part{stream: stream})
	return &s.held[len(s.held)-1]
}

// Add returns the piece for output, less the beginning of a character at its
// end; false if nothing is left.
func (s *Joiner) Add(stream string, offset int64, data []byte) (Chunk, bool) {
	held := s.part(stream)
	end := offset + int64(len(data))
	s.next = max(s.next, end)
	grown := len(held.data) > 0
	if grown {
		data = append(held.data, data...)
		held.data = nil
	}
	if n := unfinished(data); n > 0 {
		if !grown || n < len(data) { // else it is the same character, still not whole
			held.at = end - int64(n)
		}
		held.data = bytes.Clone(data[len(data)-n:])
		data = data[:len(data)-n]
	}
	return s.piece(stream, data), len(data) > 0
}

// Pass sends output as chunks that are no larger than [ChunkSize].
func (s *Joiner) Pass(stream string, offset int64, data []byte, send func(Chunk) error) error {
	for len(data) > 0 {
		n := min(len(data), ChunkSize)
		if c, ok := s.Add(stream, offset, data[:n]); ok {
			if err := send(c); err != nil {
				return err
			}
		}
		offset, data = offset+int64(n), data[n:]
	}
	return nil
}

// Flush returns what is held back, in order of offsets: no more is coming.
func (s *Joiner) Flush() []Chunk {
	slices.SortFunc(s.held, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	var pieces []Chunk
	for i := range s.held {
		if held := &s.held[i]; len(held.data) > 0 {
			data := held.data
			held.data = nil
			pieces = append(pieces, s.piece(held.stream, data))
		}
	}
	return pieces
}

// Resume is where to come back without losing a byte.
func (s *Joiner) Resume() int64 {
	at := s.next
	for _, h := range s.held {
		if len(h.data) > 0 {
			at = min(at, h.at)
		}
	}
	return at
}

func (s *Joiner) piece(stream string, data []byte) Chunk {
	p := Chunk{Stream: stream, Offset: s.Resume()}
	if utf8.Valid(data) {
		p.Text = string(data)
	} else {
		p.Bytes = data
	}
	return p
}

// unfinished returns the length of the beginning of a character at the end
// of b: 0 to 3.
func unfinished(b []byte) int {
	for n := 1; n <= min(3, len(b)); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
