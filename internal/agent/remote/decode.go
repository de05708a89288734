package remote

import (
	"bytes"
	"iter"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxMessage = 8 << 20 // maximum bytes of a message
	maxNoise   = 1000    // maximum number of lines that are not messages
)

// A lineDecoder decodes messages, one per line. It skips lines that are not
// messages, since programs print other text when they start.
type lineDecoder struct {
	partial []byte // incomplete line
	noise   int
}

// next yields the messages that data completes. It ends after an error.
func (d *lineDecoder) next(data []byte) iter.Seq2[jsonrpc.Message, error] {
	return func(yield func(jsonrpc.Message, error) bool) {
		for {
			line, more, ended := bytes.Cut(data, []byte("\n"))
			if len(d.partial)+len(line) > maxMessage {
				yield(nil, engi.Errorf(engi.Exhausted, "a message has more than %d bytes", maxMessage))
				return
			}
			if !ended {
				d.partial = append(d.partial, line...)
				return
			}
			// Messages refer to parts of their line, and the caller reuses data.
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
				yield(nil, engi.Errorf(engi.Unavailable, "the program does not speak MCP: %.80q", line))
				return
			}
		}
	}
}
