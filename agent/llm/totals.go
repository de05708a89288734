package llm

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/engi-dev/engi"
)

// counting returns a client that reads the counts of Gemini as they are meant.
func counting(c *http.Client) *http.Client {
	counts := *c
	counts.Transport = totals{cmp.Or[http.RoundTripper](c.Transport, http.DefaultTransport)}
	return &counts
}

// totals makes differences of the counts in streams of Gemini. Each piece of
// such a stream says how many tokens there were so far, and the library that
// reads it adds all of them up.
type totals struct{ next http.RoundTripper }

func (t totals) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		resp.Body = &differences{body: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), said: map[string]int64{}}
	}
	return resp, err
}

// maxPiece bounds one piece of a stream; images are in one.
const maxPiece = 32 << 20

// differences rewrites a stream line by line.
type differences struct {
	body  io.ReadCloser
	lines *bufio.Reader
	left  []byte // of the line that is being read
	said  map[string]int64
}

func (d *differences) Close() error { return d.body.Close() }

func (d *differences) Read(p []byte) (int, error) {
	if len(d.left) == 0 {
		line, err := d.line()
		if len(line) == 0 {
			return 0, err
		}
		d.left = d.rewrite(line)
	}
	n := copy(p, d.left)
	d.left = d.left[n:]
	return n, nil
}

func (d *differences) line() (line []byte, err error) {
	for {
		part, err := d.lines.ReadSlice('\n')
		if line = append(line, part...); err != bufio.ErrBufferFull {
			return line, err
		}
		if len(line) > maxPiece {
			return nil, engi.Errorf(engi.Unavailable, "a piece of the answer has more than %d bytes", maxPiece)
		}
	}
}

// rewrite leaves what it does not understand as it is.
func (d *differences) rewrite(line []byte) []byte {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok || !bytes.Contains(data, []byte(`"usageMetadata"`)) {
		return line
	}
	var piece, usage map[string]json.RawMessage
	if json.Unmarshal(data, &piece) != nil || json.Unmarshal(piece["usageMetadata"], &usage) != nil {
		return line
	}
	for _, name := range []string{"candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount"} {
		var n int64
		if json.Unmarshal(usage[name], &n) != nil || n < 0 {
			continue
		}
		usage[name], _ = json.Marshal(max(n-d.said[name], 0))
		d.said[name] = max(n, d.said[name])
	}
	var err error
	if piece["usageMetadata"], err = json.Marshal(usage); err != nil {
		return line
	}
	raw, err := json.Marshal(piece)
	if err != nil {
		return line
	}
	return append(append([]byte("data: "), raw...), '\n')
}
