package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

const (
	// coalescing is how long output is held back for more of it. Clients keep
	// each message apart and join them with line ends, so there must be few.
	coalescing = 200 * time.Millisecond
	// keepalive is how often a client hears something at least.
	keepalive = 5 * time.Second
)

// message is a line of an execution's answer. Absent fields are absent: some
// clients take null for a value.
type message struct {
	Type      string `json:"type"`
	Count     int    `json:"execution_count,omitempty"`
	Text      string `json:"text,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"` // unix nanoseconds
}

// stream writes the answer to one execution. It belongs to the goroutine of
// its request.
type stream struct {
	ctx   context.Context
	w     http.ResponseWriter
	flush func() error
	alive *time.Ticker
}

func newStream(ctx context.Context, w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	st := &stream{ctx: ctx, w: w, flush: http.NewResponseController(w).Flush, alive: time.NewTicker(keepalive)}
	st.flush() // clients bound how long they wait for the head
	return st
}

func (st *stream) stop() { st.alive.Stop() }

// send writes one line. That the client has gone is learned from the context.
func (st *stream) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		return // there is no such value
	}
	st.w.Write(append(ascii(b), '\n'))
	st.flush()
}

// ascii escapes what is not ASCII, because clients decode pieces of the stream
// that may end within a character.
func ascii(b []byte) []byte {
	i := bytes.IndexFunc(b, func(r rune) bool { return r >= utf8.RuneSelf })
	if i < 0 {
		return b
	}
	out := append(make([]byte, 0, len(b)+len(b)/2), b[:i]...)
	for i < len(b) {
		if b[i] < utf8.RuneSelf {
			out = append(out, b[i])
			i++
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		i += n
		if r > 0xffff {
			r -= 0x10000
			out = appendEscape(appendEscape(out, 0xd800+r>>10), 0xdc00+r&0x3ff)
		} else {
			out = appendEscape(out, r)
		}
	}
	return out
}

func appendEscape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// during keeps the client alive while f works.
func (st *stream) during(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			return err
		case <-st.alive.C:
			st.send(message{Type: "keepalive"})
		}
	}
}

// fail ends the answer of an execution whose kernel is lost.
func (st *stream) fail(name, why string) {
	st.send(failure{"error", name, why, ""})
	st.send(message{Type: "unexpected_end_of_execution"})
}

type failure struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// follow sends what an execution gives until it has ended. When the client
// leaves first it interrupts the kernel.
func (st *stream) follow(p *process, events <-chan event, id int64) {
	var hold <-chan time.Time
	for {
		select {
		case e := <-events:
			// What was printed before came before; it is in the pipe already.
			p.out.drain()
			switch e.Event {
			case "result":
				if r := result(e); r != nil {
					st.print(p, false)
					st.send(r)
				}
			case "error":
				st.print(p, true)
				st.send(failure{"error", e.Name, e.Value, e.Traceback})
			case "end":
				if e.ID != id {
					continue
				}
				st.print(p, true)
				if e.Status != 0 {
					st.exit(e.Status)
				}
				if e.Over {
					p.expire()
				}
				st.send(message{Type: "end_of_execution"})
				return
			}
		case <-p.out.news:
			if p.out.full() {
				st.print(p, false)
				hold = nil
			} else if hold == nil {
				hold = time.After(coalescing)
			}
		case <-hold:
			hold = nil
			st.print(p, false)
		case <-st.alive.C:
			st.send(message{Type: "keepalive"})
		case <-p.child.Done():
			st.last(p, events)
			return
		case <-st.ctx.Done():
			p.interrupt(events, id)
			return
		}
	}
}

// print sends what has been printed so far.
func (st *stream) print(p *process, last bool) {
	for i, text := range p.out.take(last) {
		if text != "" {
			st.send(message{Type: [2]string{"stdout", "stderr"}[i], Text: text, Timestamp: time.Now().UnixNano()})
		}
	}
}

// exit reports the status of a bash execution that is not zero.
func (st *stream) exit(status int) {
	text := "exit status " + strconv.Itoa(status)
	st.send(failure{"error", "ExitError", text, text})
}

// last sends the last words of a kernel that has ended on its own.
func (st *stream) last(p *process, events <-chan event) {
	wait := time.After(2 * lastWords)
	for more := true; more; {
		select {
		case e := <-events:
			if r := result(e); e.Event == "result" && r != nil {
				st.send(r)
			}
		case <-wait:
			more = false
		}
	}
	p.out.drain()
	st.print(p, true)
	how := p.child.Exit()
	if p.language == "bash" && how.Signal == "" {
		if how.Code != 0 {
			st.exit(how.Code)
		}
		st.send(message{Type: "end_of_execution"}) // the code said exit
		return
	}
	st.fail("KernelDied", "the kernel ended "+ended(how)+"; what it had defined is lost, and the next execution gets a fresh one")
}

func ended(how engi.Exit) string {
	if how.Signal != "" {
		return "by signal " + how.Signal
	}
	return "with exit status " + strconv.Itoa(how.Code)
}

// fields are the names of MIME types in a result.
var fields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
	"application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// result is a line for a result; nil if there is nothing in it. What has no
// field of its own is an extra, which one client looks for at the top and
// another below extra.
func result(e event) map[string]any {
	r, extra := map[string]any{}, map[string]any{}
	for mime, v := range e.Data {
		if len(v) == 0 || string(v) == "null" {
			continue
		}
		name, known := fields[mime]
		switch {
		case !known:
			if !strings.Contains(mime, "/") {
				continue // no MIME type, and perhaps the name of a field
			}
			r[mime], extra[mime] = v, v
		case name == "data" || name == "chart":
			if v[0] == '{' {
				r[name] = v
			}
		case v[0] == '"' || name == "json":
			r[name] = v
		}
	}
	if len(r) == 0 {
		return nil
	}
	if len(extra) > 0 {
		r["extra"] = extra
	}
	r["type"], r["is_main_result"] = "result", e.Main
	return r
}
