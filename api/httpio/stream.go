package httpio

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/v1"
)

// How long a caller may take for what we write.
const (
	ResponseTimeout = 60 * time.Second // a whole answer, or one piece of a long one
	EventTimeout    = 30 * time.Second // one event of a stream
)

// Extend gives the caller d more to take what we write.
func Extend(w http.ResponseWriter, d time.Duration) {
	// Writers that know no deadlines are those of tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// A DeadlineWriter gives the caller time for each piece, not for the whole.
type DeadlineWriter struct{ W http.ResponseWriter }

// Write implements io.Writer.
func (p DeadlineWriter) Write(b []byte) (int, error) {
	Extend(p.W, ResponseTimeout)
	return p.W.Write(b)
}

// An EventWriter writes events as they come. It is for one goroutine.
type EventWriter struct {
	w    http.ResponseWriter
	form Format
	rc   *http.ResponseController
	sent time.Time
}

// NewEventWriter returns a pipe that has not begun.
func NewEventWriter(w http.ResponseWriter, f Format) *EventWriter {
	return &EventWriter{w: w, form: f, rc: http.NewResponseController(w)}
}

// Begin sends the header, so that the caller knows that all is well.
func (p *EventWriter) Begin() error {
	h := p.w.Header()
	h.Set("Content-Type", string(p.form))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that buffer by default
	h.Set("X-Content-Type-Options", "nosniff")
	p.w.WriteHeader(http.StatusOK)
	return p.write(nil)
}

// Send writes one event, whose JSON has only ASCII characters: readers exist
// that decode each chunk they get on its own, and cut characters in two. An
// empty id means that nobody can come back to it.
func (p *EventWriter) Send(kind, id string, v any) error {
	body, err := Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write %s event: %v", kind, err) // unreachable: all types of package v1 can be written
	}
	body = ascii(body)
	if p.form != SSE {
		return p.write(body)
	}
	b := make([]byte, 0, len(body)+64)
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "event: "...), kind...), '\n')
	b = append(append(append(b, "data: "...), body...), '\n') // body ends its own line
	return p.write(b)
}

// Beat says that the stream is alive if it has been silent for a while.
func (p *EventWriter) Beat(e any, after time.Duration) error {
	if time.Since(p.sent) < after {
		return nil
	}
	if p.form == SSE {
		return p.write([]byte(": alive\n\n"))
	}
	return p.Send(v1.EventHeartbeat, "", e)
}

func (p *EventWriter) write(b []byte) error {
	p.sent = time.Now()
	// A caller that does not read must not keep us, nor what we hold for it.
	Extend(p.w, EventTimeout)
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	return p.rc.Flush()
}

// ascii replaces what is not ASCII in JSON by escapes. Such characters occur
// in strings only.
func ascii(b []byte) []byte {
	if !slices.ContainsFunc(b, func(c byte) bool { return c >= utf8.RuneSelf }) {
		return b
	}
	out := make([]byte, 0, len(b)*2)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r < utf8.RuneSelf:
			out = append(out, b[0])
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = escape(escape(out, hi), lo)
		default:
			out = escape(out, r)
		}
		b = b[n:]
	}
	return out
}

func escape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// Marshal writes v and the end of a line, without escaping what only HTML
// needs escaped.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) error {
	body, err := Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write answer: %v", err) // unreachable: all types of package v1 can be written
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	Extend(w, ResponseTimeout)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller may have left; nobody to tell
	return nil
}
