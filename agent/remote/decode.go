package remote

import (
	"bytes"
	"iter"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/engi-dev/engi"
)

const (
	maxMessage = 8 << 20 // bytes
	maxNoise   = 1000    // lines that are no messages
)

// A framer takes messages out of a stream of lines. Lines that are none are
// passed over, since programs print all sorts of things before they begin.
type lineDecoder struct {
	partial []byte // of a line that has not ended
	noise   int
}

// next yields the messages that end in data. After an error there is nothing
// more.
func (d *lineDecoder) next(data []byte) iter.Seq2[jsonrpc.Message, error] {
	return func(yield func(jsonrpc.Message, error) bool) {
		for {
			line, more, ended := bytes.Cut(data, []byte("\n"))
			if len(d.partial)+len(line) > maxMessage {
				yield(nil, engi.Errorf(engi.Exhausted, "a message of it has more than %d bytes", maxMessage))
				return
			}
			if !ended {
				d.partial = append(d.partial, line...)
				return
			}
			// Messages keep parts of their line, and data is only lent.
			line, d.partial = append(d.partial, line...), nil
			data = more
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
			m, err := jsonrpc.DecodeMessage(line)
			if err == nil {
				if !yield(m, nil) {
					return
				}
				continue
			}
			if d.noise++; d.noise > maxNoise {
				yield(nil, engi.Errorf(engi.Unavailable, "it does not speak the protocol: %.80q", line))
				return
			}
		}
	}
}
