package httpio

import (
	"bytes"
	"cmp"
	"slices"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
)

// ChunkSize is the maximum number of bytes of data in one event.
const ChunkSize = 64 << 10

// A Chunk is output of one stream for an event: Text, or Bytes if it is not
// UTF-8. Offset is the offset at which to resume after it.
type Chunk struct {
	Stream string
	Offset int64
	Text   string
	Bytes  []byte
}

// A Joiner joins characters that were split between chunks of
// output. It buffers at most three bytes of each stream. Only one goroutine may
// use it.
type Joiner struct {
	next    int64 // offset after all added output
	pending []part
}

type part struct {
	stream string
	data   []byte // first bytes of an incomplete character
	at     int64  // offset of data
}

// NewJoiner returns a Joiner for output from an offset on.
func NewJoiner(from int64) *Joiner { return &Joiner{next: from} }

func (j *Joiner) part(stream string) *part {
	for i := range j.pending {
		if j.pending[i].stream == stream {
			return &j.pending[i]
		}
	}
	j.pending = append(j.pending, part{stream: stream})
	return &j.pending[len(j.pending)-1]
}

// Add returns the chunk for output without an incomplete character at its end;
// false if that leaves nothing.
func (j *Joiner) Add(stream string, offset int64, data []byte) (Chunk, bool) {
	pending := j.part(stream)
	end := offset + int64(len(data))
	j.next = max(j.next, end)
	grown := len(pending.data) > 0
	if grown {
		data = append(pending.data, data...)
		pending.data = nil
	}
	if n := len(data) - clip.Whole(data); n > 0 {
		if !grown || n < len(data) { // otherwise the same character is still incomplete
			pending.at = end - int64(n)
		}
		pending.data = bytes.Clone(data[len(data)-n:])
		data = data[:len(data)-n]
	}
	return j.chunk(stream, data), len(data) > 0
}

// Split sends output in chunks of at most [ChunkSize].
func (j *Joiner) Split(stream string, offset int64, data []byte, send func(Chunk) error) error {
	for len(data) > 0 {
		n := min(len(data), ChunkSize)
		if c, ok := j.Add(stream, offset, data[:n]); ok {
			if err := send(c); err != nil {
				return err
			}
		}
		offset, data = offset+int64(n), data[n:]
	}
	return nil
}

// Flush returns the incomplete characters at the end of all output, in order of
// offsets.
func (j *Joiner) Flush() []Chunk {
	slices.SortFunc(j.pending, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	var chunks []Chunk
	for i := range j.pending {
		if pending := &j.pending[i]; len(pending.data) > 0 {
			data := pending.data
			pending.data = nil
			chunks = append(chunks, j.chunk(pending.stream, data))
		}
	}
	return chunks
}

// Resume returns the offset at which to resume without losing a byte.
func (j *Joiner) Resume() int64 {
	at := j.next
	for _, h := range j.pending {
		if len(h.data) > 0 {
			at = min(at, h.at)
		}
	}
	return at
}

func (j *Joiner) chunk(stream string, data []byte) Chunk {
	p := Chunk{Stream: stream, Offset: j.Resume()}
	if utf8.Valid(data) {
		p.Text = string(data)
	} else {
		p.Bytes = data
	}
	return p
}
