package llm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// remote is the Model of a provider.
type remote struct {
	source
	model    string
	provider Provider
	client   *http.Client
	format   format
	quiet    time.Duration // maximum pause within an answer

	native bool         // objects are requested by a field of the request
	limit  atomic.Int64 // maximum tokens of an answer, from the provider's refusal of a higher limit; 0 if there was none
}

func (m *remote) Name() string { return m.name }

func (m *remote) Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error) {
	if m.provider.Dialect == Responses && q.Stop != nil {
		return Reply{}, engi.Errorf(engi.Invalid, "ask %s: the responses format has no stop sequences", m.name).
			WithRemedy("leave them out, or use the provider's chat completions")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Without this watch, a silent provider would block the caller until the caller's own
	// deadline, which may be far away.
	watch := time.AfterFunc(m.quiet, func() {
		cancel(engi.Errorf(engi.Unavailable, "ask %s: the provider sent nothing for %v", m.name, m.quiet))
	})
	defer watch.Stop()
	alive := func() { watch.Reset(m.quiet) }

	var r Reply
	var err error
	if q.Object != nil {
		r, err = m.object(ctx, q, alive, out)
	} else {
		r, err = m.ask(ctx, q, nil, alive, out)
	}
	if err != nil {
		if cause := context.Cause(ctx); ctx.Err() != nil && cause != context.Canceled {
			err = cause
		}
		return Reply{Tokens: r.Tokens}, m.classify(err)
	}
	r.Model = m.name
	r.Message.Role = engi.RoleAssistant
	r.Tokens.Calls = 1
	if q.OneCall && len(r.Message.Calls) > 1 {
		onlyFirst(&r.Message) // not all formats have a field for it
	}
	if r.Message.Signed != nil {
		r.Message.Signed.Model = m.name
	}
	return r, nil
}

// onlyFirst removes all calls of an answer but the first.
func onlyFirst(m *engi.Message) {
	m.Calls = m.Calls[:1]
	if m.Signed != nil {
		m.Signed.Parts = slices.DeleteFunc(m.Signed.Parts, func(p engi.MessagePart) bool { return p.Call != "" && p.Call != m.Calls[0].ID })
	}
}

// ask sends a request and reads the answer, as a stream if out is not nil.
func (m *remote) ask(ctx context.Context, q Request, object map[string]any, alive func(), out func(Delta) error) (Reply, error) {
	if limit := int(m.limit.Load()); q.MaxTokens == 0 && limit > 0 {
		q.MaxTokens = limit
	}
	c, err := newCall(m.model, m.name, q)
	if err != nil {
		return Reply{}, err
	}
	c.object = object
	if m.provider.Dialect == Compatible && slices.ContainsFunc(c.messages, hasDocument) {
		return Reply{}, engi.Errorf(engi.Invalid, "%s does not accept PDF files", m.name).WithRemedy("send its text, or choose a model of OpenAI, Anthropic or Gemini")
	}
	path, body := m.format.request(c, out != nil)
	resp, err := send(ctx, m.client, m.source, m.provider.URL+path, body, func(h http.Header) { m.provider.headers(m.format, h) })
	if err != nil {
		if most := anthropicTooMany.FindStringSubmatch(err.Error()); most != nil && q.MaxTokens == 0 {
			if q.MaxTokens, _ = strconv.Atoi(most[1]); q.MaxTokens > 0 { // at most nine digits
				m.limit.Store(int64(q.MaxTokens))
				return m.ask(ctx, q, object, alive, out)
			}
		}
		if ctx.Err() != nil {
			return Reply{Tokens: estimate(q, 0, engi.Tokens{})}, err // the provider may be working on the request
		}
		if _, wrote := errors.AsType[*unreadable](err); wrote {
			return malformed(q, &answer{}, err)
		}
		return Reply{}, err
	}
	defer resp.Body.Close()
	a := &answer{source: m.source, out: out, alive: alive, ids: fmt.Sprintf("call_%d_", len(q.Messages))}
	r, err := m.read(resp.Body, a)
	if err != nil {
		return malformed(q, a, err)
	}
	return r, nil
}

// malformed returns an answer without a proper end. Output that the provider could not
// parse is an answer too.
func malformed(q Request, a *answer, err error) (Reply, error) {
	t := estimate(q, a.size, a.tokens)
	if u, ok := errors.AsType[*unreadable](err); ok {
		return Reply{Stop: StopMalformed, Reason: u.reason, Tokens: t, Dropped: a.calls()}, nil
	}
	return Reply{Tokens: t}, err
}

func hasDocument(m engi.Message) bool {
	return slices.ContainsFunc(m.Images, func(img engi.Image) bool { return img.MediaType == engi.PDF })
}

// estimate completes a provider's counts for an answer without a proper
// end, from the sizes of the request and of the received part. Such answers
// are on the provider's bill too.
func estimate(q Request, written int, t engi.Tokens) engi.Tokens {
	const bytesPerToken, imageTokens = 4, 1000
	if t.Input+t.CacheRead+t.CacheWrite == 0 {
		n := len(q.System) + len(q.Object)
		for _, tool := range q.Tools {
			n += len(tool.Name) + len(tool.Description) + len(tool.Schema)
		}
		for _, m := range q.Messages {
			n += len(m.Text)
			t.Input += int64(len(m.Images)) * imageTokens
			for _, c := range m.Calls {
				n += len(c.Arguments)
			}
			for _, r := range m.Results {
				n += len(r.Text)
				t.Input += int64(len(r.Images)) * imageTokens
			}
		}
		t.Input += int64(n / bytesPerToken)
	}
	t.Output = max(t.Output, int64(written/bytesPerToken))
	return t
}

// read reads an answer, as a stream if a.out is not nil.
func (m *remote) read(body io.Reader, a *answer) (Reply, error) {
	if a.out != nil {
		err := events(body, func(data []byte) (bool, error) {
			a.alive()
			err := m.format.event(data, a)
			return a.done, err
		})
		if err != nil {
			return Reply{}, err
		}
		return a.reply()
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxPiece+1))
	if err != nil {
		return Reply{}, err
	}
	if len(raw) > maxPiece {
		return Reply{}, tooLong(m.name)
	}
	if err := m.format.whole(raw, a); err != nil {
		return Reply{}, err
	}
	return a.reply()
}

// maxPiece is the maximum size in bytes of data read at once: an answer that is not streamed, or one
// event of a stream. Such a piece contains whole images.
const maxPiece = 32 << 20

// events calls f with the data of each event of a stream until f returns true for
// the last one, or the stream ends.
// (https://html.spec.whatwg.org/multipage/server-sent-events.html)
func events(body io.Reader, f func(data []byte) (last bool, err error)) error {
	lines := lineReader{r: bufio.NewReaderSize(body, 64<<10)}
	var data []byte
	for first := true; ; first = false {
		line, err := lines.next()
		if err != nil && err != io.EOF {
			return err
		}
		if first {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if piece, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if len(data) > 0 {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(piece, []byte(" "))...)
			if len(data) > maxPiece {
				return tooBig()
			}
		}
		if len(data) > 0 && (len(line) == 0 || err == io.EOF) {
			last, err := f(data)
			if last || err != nil {
				return err
			}
			data = data[:0]
		}
		if err == io.EOF {
			return nil
		}
	}
}

// A lineReader reads lines that end with CR, LF or CRLF, in any mixture.
type lineReader struct {
	r  *bufio.Reader
	cr bool // the last line ended with CR: a following LF belongs to it
}

// next returns the next line, which is valid until the following call, or the
// last one with the error that ended the stream. It does not wait for the byte after a CR.
func (l *lineReader) next() (line []byte, err error) {
	for {
		_, err := l.r.Peek(1)
		part, _ := l.r.Peek(l.r.Buffered())
		if l.cr && len(part) > 0 {
			l.cr = false
			if part[0] == '\n' {
				l.discard(1)
				continue
			}
		}
		end := bytes.IndexAny(part, "\r\n")
		if end < 0 {
			if line = append(line, part...); err != nil {
				return line, err
			}
			l.discard(len(part))
		} else {
			line = append(line, part[:end]...)
			l.cr = part[end] == '\r'
			l.discard(end + 1)
		}
		if len(line) > maxPiece {
			return nil, tooBig()
		}
		if end >= 0 {
			return line, nil
		}
	}
}

// discard skips n bytes in the buffer.
func (l *lineReader) discard(n int) { _, _ = l.r.Discard(n) }

func tooBig() error {
	return engi.Errorf(engi.Unavailable, "a piece of the answer has more than %d bytes", maxPiece)
}

// object requests an object, by the format's field for schemas if it supports
// every schema, else as the arguments of a tool that must be called.
func (m *remote) object(ctx context.Context, q Request, alive func(), out func(Delta) error) (Reply, error) {
	schema, err := plain(q.Object)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Invalid, "describe the object: %w", err)
	}
	q.Tools, q.Choice = nil, ""
	schema, wrapped := wrap(schema)
	if m.native {
		if out != nil {
			out = partial(wrapped, out)
		}
		r, err := m.ask(ctx, q, schema, alive, out)
		r.Message.Text, r.Message.Signed = unwrap(r.Message.Text, wrapped), nil
		return r, err
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Internal, "describe the object: %v", err)
	}
	name := q.ObjectName
	if name == "" {
		name = "answer"
	}
	q.Tools, q.Choice = []engi.Tool{{Name: name, Description: "Gives the answer, in the form that is asked for.", Schema: raw}}, Choice(name)
	if out != nil {
		out = partial(wrapped, out)
	}
	r, err := m.ask(ctx, q, nil, alive, out)
	if err != nil {
		return r, err
	}
	text := r.Message.Text // some models answer in prose nevertheless
	if len(r.Message.Calls) > 0 {
		text = r.Message.Calls[0].Arguments
		if r.Stop == StopTools {
			r.Stop = StopEnd
		}
	}
	r.Message.Text, r.Message.Calls, r.Message.Signed = unwrap(text, wrapped), nil, nil
	return r, nil
}

// partial passes the unfinished object on to out with each piece.
func partial(wrapped bool, out func(Delta) error) func(Delta) error {
	var text []byte
	next, call := 1, ""
	return func(d Delta) error {
		if d.Thought != "" {
			return out(d)
		}
		if d.Call != "" && d.Call != call {
			if call != "" {
				return nil // only the first call counts
			}
			call, text = d.Call, text[:0]
		}
		text = append(append(text, d.Arguments...), d.Text...)
		// Parsing all of the text for every piece would take quadratic time.
		if len(text) < next {
			return nil
		}
		next = len(text) + len(text)/32 + 1
		v, ok := half(text)
		if o, is := v.(map[string]any); ok && wrapped && is {
			v, ok = o[wrapping]
		}
		if !ok {
			return nil
		}
		return out(Delta{Object: v})
	}
}

// headers adds the key and the provider's own headers to a request.
func (p Provider) headers(f format, h http.Header) {
	f.authorize(h, p.Key)
	for k, v := range p.Headers {
		h.Set(k, v)
	}
}

// send posts body as JSON and returns the response of a request that was
// accepted; the caller closes its body. The error has a kind.
func send(ctx context.Context, client *http.Client, s source, url string, body any, header func(http.Header)) (*http.Response, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "ask %s: %v", s.name, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "ask %s: its URL cannot be used", s.name).WithRemedy("check the provider's url in the configuration")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "engi")
	header(req.Header)
	resp, err := client.Do(req)
	if err != nil {
		return nil, s.classify(err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		raw = nil // the status is sufficient
	}
	return nil, s.refused(resp.StatusCode, resp.Header, raw)
}

// said returns the text of a provider's error, in any of the usual forms.
func said(raw []byte) string {
	var e struct {
		Error   json.RawMessage
		Message string
		Detail  string
	}
	if list := []json.RawMessage(nil); json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		raw = list[0] // Gemini's answers to streams are lists
	}
	if json.Unmarshal(raw, &e) != nil {
		return string(raw)
	}
	var inner struct{ Message any }
	var text string
	switch {
	case json.Unmarshal(e.Error, &text) == nil && text != "":
		return text
	case json.Unmarshal(e.Error, &inner) == nil && inner.Message != nil:
		return fmt.Sprint(inner.Message)
	case e.Message != "":
		return e.Message
	case e.Detail != "":
		return e.Detail
	}
	return string(raw)
}
