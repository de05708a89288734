package operation

import (
	"bytes"
	"iter"
)

// A splitter splits output into lines and counts its bytes.
type splitter struct {
	offset int64  // offset after the last complete line
	rest   []byte // bytes of an incomplete line
	skip   bool   // the first line is to be skipped
}

// add yields the lines that data completes. They are valid until the next
// call.
func (s *splitter) add(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		s.rest = append(s.rest, data...)
		for {
			n := bytes.IndexByte(s.rest, '\n')
			if n < 0 {
				return
			}
			line, wanted := s.rest[:n], !s.skip
			s.offset, s.rest, s.skip = s.offset+int64(n)+1, s.rest[n+1:], false
			if wanted && !yield(line) {
				return
			}
		}
	}
}
