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

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Maximum times for a client to receive.
const (
	ResponseTimeout = 60 * time.Second // for a response, or for one write of a long one
	EventTimeout    = 30 * time.Second // for one event of a stream
)

// Extend sets the write deadline to d from now.
func Extend(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // fails only for writers of tests
}

// A DeadlineWriter extends the write deadline before each write.
type DeadlineWriter struct{ W http.ResponseWriter }

// Write implements io.Writer.
func (p DeadlineWriter) Write(b []byte) (int, error) {
	Extend(p.W, ResponseTimeout)
	return p.W.Write(b)
}

// An EventWriter writes a stream of events. Only one goroutine may use it.
type EventWriter struct {
	w      http.ResponseWriter
	format Format
	rc     *http.ResponseController
	sent   time.Time
}

// NewEventWriter returns an EventWriter that has written nothing yet.
func NewEventWriter(w http.ResponseWriter, f Format) *EventWriter {
	return &EventWriter{w: w, format: f, rc: http.NewResponseController(w)}
}

// Begin sends the header of the response.
func (p *EventWriter) Begin() error {
	h := p.w.Header()
	h.Set("Content-Type", string(p.format))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for nginx, which buffers by default
	h.Set("X-Content-Type-Options", "nosniff")
	p.w.WriteHeader(http.StatusOK)
	return p.write(nil)
}

// Send writes one event. Its JSON is ASCII, since some clients decode each read
// on its own and would break characters that are split between two. A client cannot resume from
// an event without id.
func (p *EventWriter) Send(kind, id string, v any) error {
	body, err := Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write %s event: %v", kind, err) // unreachable: all types of package v1 can be encoded
	}
	return p.send(kind, id, ascii(body))
}

// SendText writes one event whose data is a line of ASCII, for protocols whose events are
// this form.
func (p *EventWriter) SendText(id, text string) error { return p.send("", id, []byte(text+"\n")) }

// send writes one event, whose data ends with a newline.
func (p *EventWriter) send(kind, id string, data []byte) error {
	if p.format != SSE {
		return p.write(data)
	}
	b := make([]byte, 0, len(data)+64)
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	if kind != "" {
		b = append(append(append(b, "event: "...), kind...), '\n')
	}
	b = append(append(append(b, "data: "...), data...), '\n')
	return p.write(b)
}

// Heartbeat writes a heartbeat if nothing was written for a while.
func (p *EventWriter) Heartbeat(e any, after time.Duration) error {
	if time.Since(p.sent) < after {
		return nil
	}
	if p.format == SSE {
		return p.write([]byte(": alive\n\n"))
	}
	return p.Send(v1.EventHeartbeat, "", e)
}

func (p *EventWriter) write(b []byte) error {
	p.sent = time.Now()
	Extend(p.w, EventTimeout)
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	return p.rc.Flush()
}

// ascii escapes all characters other than ASCII in JSON, which occur only in strings.
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

// Marshal returns v as a line of JSON, without escaping for HTML.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteJSON responds with v.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) error {
	body, err := Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write response: %v", err) // unreachable: all types of package v1 can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	Extend(w, ResponseTimeout)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
	return nil
}
