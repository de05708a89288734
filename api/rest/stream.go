package rest

import (
	"bytes"
	"encoding/json"
	"iter"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/v1"
)

// A form is how an answer is written.
type form string

const (
	formJSON   form = "application/json"
	formSSE    form = "text/event-stream"
	formNDJSON form = "application/x-ndjson"
)

var formNames = map[string]form{
	"application/json":     formJSON,
	"text/event-stream":    formSSE,
	"application/x-ndjson": formNDJSON,
	"application/ndjson":   formNDJSON,
	"application/jsonl":    formNDJSON,
}

// negotiate returns the form the caller likes best; between equals the first
// of ours.
func negotiate(r *http.Request, ours ...form) (form, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return ours[0], nil
	}
	var best form
	var most float64
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weight := 1.0
		if q, ok := params["q"]; ok {
			if weight, err = strconv.ParseFloat(q, 64); err != nil || !(weight > 0) {
				continue
			}
		}
		var named form
		if family, any := strings.CutSuffix(kind, "/*"); any {
			for _, f := range slices.Backward(ours) {
				if family == "*" || strings.HasPrefix(string(f), family+"/") {
					named = f
				}
			}
			weight *= 0.999 // what is named goes before what is not
		} else if f := formNames[kind]; slices.Contains(ours, f) {
			named = f
		}
		if named != "" && (weight > most || weight == most && slices.Index(ours, named) < slices.Index(ours, best)) {
			best, most = named, weight
		}
	}
	if best != "" {
		return best, nil
	}
	var names []string
	for _, f := range ours {
		names = append(names, string(f))
	}
	return "", refuse(http.StatusNotAcceptable, "accept "+strings.Join(names, " or "), "nothing here is of type %.120q", accept)
}

// stream answers with the events of a run from an offset on. A caller that
// leaves changes nothing for the run.
func (s *server) stream(w http.ResponseWriter, r *http.Request, f form, id engi.ExecutionID, from int64) error {
	ctx, cancel := s.waiting(r)
	viewer := callOf(r.Context()).viewer()
	source := pull(s.executions.Watch(ctx, viewer, id, from))
	defer source.stop()
	defer cancel()

	out := newPipe(w, f)
	if err := out.begin(); err != nil {
		return nil // the caller has left
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	seam := seam{next: from}
	for {
		select {
		case <-beat.C:
			if out.beat(v1.Event{Type: v1.EventHeartbeat, Offset: seam.resume()}, s.beat) != nil {
				s.gone(r)
				return nil
			}
		case e, ok := <-source.events:
			if !ok {
				return nil
			}
			last, err := s.relay(r, out, &seam, e)
			source.release()
			if err != nil {
				s.gone(r)
				return nil
			}
			if last {
				return nil
			}
		}
	}
}

// relay sends one event of a run and reports whether it was the last. Its
// error means that the caller is not there.
func (s *server) relay(r *http.Request, out *pipe, seam *seam, e pulled) (last bool, err error) {
	if e.err != nil {
		if s.gone(r) {
			return true, nil
		}
		err := e.err
		if s.leaving() {
			err = errLeaving
		}
		s.logInternal(r, err)
		p := describe(err, callOf(r.Context()).id)
		return true, out.send(v1.Event{Type: v1.EventError, Offset: seam.resume(), Error: &p})
	}
	switch e.event.Type {
	case engi.EventStdout, engi.EventStderr:
		// Pieces bound the memory of one event, whatever Watch yields.
		for offset, data := e.event.Offset, e.event.Data; len(data) > 0; {
			n := min(len(data), pieceSize)
			if piece, ok := seam.add(e.event.Type, offset, data[:n]); ok {
				if err := out.send(piece); err != nil {
					return false, err
				}
			}
			offset, data = offset+int64(n), data[n:]
		}
		return false, nil
	case engi.EventResult:
		for _, rest := range seam.flush() {
			if err := out.send(rest); err != nil {
				return false, err
			}
		}
		last = true
	}
	event := v1.Event{Type: string(e.event.Type), Offset: seam.resume()}
	if x := e.event.Execution; x != nil {
		viewer := callOf(r.Context()).viewer()
		if last {
			// The event's record has no output, since that came before; a
			// result has all of it.
			if whole, err := s.executions.Get(r.Context(), viewer, x.ID); err == nil {
				x = &whole
			}
		}
		wire := executionOf(*x)
		if last {
			s.inline(r.Context(), viewer, &wire, *x)
		} else { // the record may be of today; the event is of the beginning
			wire.State, wire.EndedAt, wire.Result = v1.Running, nil, nil
		}
		event.Execution = &wire
	}
	return last, out.send(event)
}

const pieceSize = 64 << 10

// A seam puts characters together that Watch's events cut in two. It holds
// back at most three bytes of each stream.
type seam struct {
	next int64   // offset after everything seen
	held [2]part // of stdout and stderr
}

type part struct {
	data []byte // the beginning of a character
	at   int64  // its offset
}

func index(t engi.ExecutionEventType) int {
	if t == engi.EventStderr {
		return 1
	}
	return 0
}

// add returns the event for output, less the beginning of a character at its
// end; false if nothing is left.
func (s *seam) add(t engi.ExecutionEventType, offset int64, data []byte) (v1.Event, bool) {
	held := &s.held[index(t)]
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
	return s.event(t, data), len(data) > 0
}

// flush returns what is held back, in order of offsets: no more is coming.
func (s *seam) flush() []v1.Event {
	order := []engi.ExecutionEventType{engi.EventStdout, engi.EventStderr}
	if s.held[1].at < s.held[0].at {
		slices.Reverse(order)
	}
	var events []v1.Event
	for _, t := range order {
		if held := &s.held[index(t)]; len(held.data) > 0 {
			data := held.data
			held.data = nil
			events = append(events, s.event(t, data))
		}
	}
	return events
}

// resume is where to come back without losing a byte.
func (s *seam) resume() int64 {
	at := s.next
	for _, h := range s.held {
		if len(h.data) > 0 {
			at = min(at, h.at)
		}
	}
	return at
}

func (s *seam) event(t engi.ExecutionEventType, data []byte) v1.Event {
	e := v1.Event{Type: string(t), Offset: s.resume()}
	if utf8.Valid(data) {
		e.Data = string(data)
	} else {
		e.DataBase64 = data
	}
	return e
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

// A puller is an iterator that runs in a goroutine of its own, so that its
// user can wait for other things too. It is one event ahead at most.
type puller struct {
	events chan pulled
	next   chan struct{} // the event has been used
	quit   chan struct{}
	done   chan struct{}
}

type pulled struct {
	event engi.ExecutionEvent
	err   error
}

func pull(seq iter.Seq2[engi.ExecutionEvent, error]) *puller {
	p := &puller{make(chan pulled), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(p.done)
		defer close(p.events)
		defer func() {
			if v := recover(); v != nil {
				select {
				case p.events <- pulled{err: engi.Errorf(engi.Internal, "panic: %v\n%s", v, debug.Stack())}:
				case <-p.quit:
				}
			}
		}()
		for e, err := range seq {
			select {
			case p.events <- pulled{e, err}:
			case <-p.quit:
				return
			}
			// The event's data may be gone once the iterator goes on.
			select {
			case <-p.next:
			case <-p.quit:
				return
			}
		}
	}()
	return p
}

// release gives the event back. After an iterator's panic nobody takes it.
func (p *puller) release() {
	select {
	case p.next <- struct{}{}:
	case <-p.done:
	}
}

// stop ends the iteration and waits until its goroutine is gone. The context
// of the iterator must have ended.
func (p *puller) stop() {
	close(p.quit)
	<-p.done
}

// A pipe writes events as they come.
type pipe struct {
	w    http.ResponseWriter
	form form
	rc   *http.ResponseController
	sent time.Time
}

func newPipe(w http.ResponseWriter, f form) *pipe {
	return &pipe{w: w, form: f, rc: http.NewResponseController(w)}
}

// begin sends the header, so that the caller knows that all is well.
func (p *pipe) begin() error {
	h := p.w.Header()
	h.Set("Content-Type", string(p.form))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that buffer by default
	h.Set("X-Content-Type-Options", "nosniff")
	p.w.WriteHeader(http.StatusOK)
	return p.write(nil)
}

// send writes one event, whose JSON has only ASCII characters: readers exist
// that decode each chunk they get on its own, and cut characters in two.
func (p *pipe) send(e v1.Event) error {
	return p.sendAs(e.Type, strconv.FormatInt(e.Offset, 10), e)
}

func (p *pipe) sendAs(kind, id string, v any) error {
	body, err := marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write %s event: %v", kind, err) // unreachable: all types of package v1 can be written
	}
	body = ascii(body)
	if p.form != formSSE {
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

// beat says that the stream is alive if it has been silent for a while.
func (p *pipe) beat(e any, after time.Duration) error {
	if time.Since(p.sent) < after {
		return nil
	}
	if p.form == formSSE {
		return p.write([]byte(": alive\n\n"))
	}
	return p.sendAs(v1.EventHeartbeat, "", e)
}

func (p *pipe) write(b []byte) error {
	p.sent = time.Now()
	// A caller that does not read must not keep us, nor what we hold for it.
	extend(p.w, eventTime)
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

// marshal writes v and the end of a line, without escaping what only HTML
// needs escaped.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) error {
	body, err := marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "write answer: %v", err) // unreachable: all types of package v1 can be written
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	extend(w, answerTime)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller may have left; nobody to tell
	return nil
}
