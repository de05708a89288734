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

	"github.com/engi-dev/engi/internal/engi"
)

const (
	// coalesceDelay is the time for which output is held back to send more at once.
	// Clients join messages with newlines, so there must be few.
	coalesceDelay = 200 * time.Millisecond
	// keepaliveInterval is the maximum time without a message.
	keepaliveInterval = 5 * time.Second
)

// message is a line of an execution's answer. Empty fields are left out: some
// clients treat null as a value.
type message struct {
	Type      string `json:"type"`
	Count     int    `json:"execution_count,omitempty"`
	Text      string `json:"text,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"` // unix nanoseconds
}

// stream writes the answer to one execution. It is owned by the goroutine of the
// request.
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
	st := &stream{ctx: ctx, w: w, flush: http.NewResponseController(w).Flush, alive: time.NewTicker(keepaliveInterval)}
	st.flush() // clients limit their wait for the header
	return st
}

func (st *stream) stop() { st.alive.Stop() }

// send writes one line. If the client has disconnected, ctx ends.
func (st *stream) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		return // unreachable: values can be encoded
	}
	st.w.Write(append(ascii(b), '\n'))
	st.flush()
}

// ascii escapes characters that are not ASCII, because clients decode pieces of
// the stream that may split a character.
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

// keepAliveDuring sends keepalives while f runs.
func (st *stream) keepAliveDuring(f func() error) error {
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
	st.send(errorMessage{"error", name, why, ""})
	st.send(message{Type: "unexpected_end_of_execution"})
}

type errorMessage struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// follow sends the output and results of an execution until it has ended. If the
// client disconnects first, it interrupts the kernel.
func (st *stream) follow(p *process, events <-chan event, id int64) {
	var hold <-chan time.Time
	for {
		select {
		case e := <-events:
			// Output printed before the event is in the pipe already.
			p.out.drain()
			if st.pass(p, e, id) {
				return
			}
		case <-p.out.ready:
			if p.out.full() {
				st.print(p, false)
				hold = nil
			} else if hold == nil {
				hold = time.After(coalesceDelay)
			}
		case <-hold:
			hold = nil
			st.print(p, false)
		case <-st.alive.C:
			st.send(message{Type: "keepalive"})
		case <-p.child.Done():
			st.drainAfterExit(p, events, id)
			return
		case <-st.ctx.Done():
			p.interrupt(events, id)
			return
		}
	}
}

// pass sends the content of an event, and reports whether the event ends the execution.
func (st *stream) pass(p *process, e event, id int64) (ended bool) {
	switch e.Event {
	case "result":
		if r := resultMessage(e); r != nil {
			st.print(p, false)
			st.send(r)
		}
	case "error":
		st.print(p, true)
		st.send(errorMessage{"error", e.Name, e.Value, e.Traceback})
	case "end":
		if e.ID != id {
			return false
		}
		st.print(p, true)
		if e.Status != 0 {
			st.sendExitError(e.Status)
		}
		if e.Over {
			p.awaitExit()
		}
		st.send(message{Type: "end_of_execution"})
		return true
	}
	return false
}

// print sends the buffered output.
func (st *stream) print(p *process, last bool) {
	for i, text := range p.out.take(last) {
		if text != "" {
			st.send(message{Type: [2]string{"stdout", "stderr"}[i], Text: text, Timestamp: time.Now().UnixNano()})
		}
	}
}

// sendExitError reports that bash has ended an execution with a status other
// than 0.
func (st *stream) sendExitError(status int) {
	text := "exit status " + strconv.Itoa(status)
	st.send(errorMessage{"error", "ExitError", text, text})
}

// drainAfterExit sends the remaining events of an exited kernel: it may have ended the
// execution before.
func (st *stream) drainAfterExit(p *process, events <-chan event, id int64) {
	wait := time.After(2 * drainTimeout)
	for more := true; more; {
		select {
		case e := <-events:
			p.out.drain()
			if st.pass(p, e, id) {
				return
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
			st.sendExitError(how.Code)
		}
		st.send(message{Type: "end_of_execution"}) // the code has called exit
		return
	}
	st.fail("KernelDied", "the kernel ended "+describeExit(how)+"; its variables are lost, and the next execution starts another")
}

func describeExit(how engi.Exit) string {
	if how.Signal != "" {
		return "by signal " + how.Signal
	}
	return "with exit status " + strconv.Itoa(how.Code)
}

// resultFields maps MIME types to fields of a result.
var resultFields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
	"application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// resultMessage returns the line for a result, or nil if the result is empty. MIME types
// without a field are extras, which one client expects at the top level and
// another below extra.
func resultMessage(e event) map[string]any {
	r, extra := map[string]any{}, map[string]any{}
	for mime, v := range e.Data {
		if len(v) == 0 || string(v) == "null" {
			continue
		}
		name, known := resultFields[mime]
		switch {
		case !known:
			if !strings.Contains(mime, "/") {
				continue // not a MIME type; could collide with a field
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
