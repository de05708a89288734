package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A bridge forwards the messages of an MCP client on standard input and output to
// a server on HTTP unchanged, so that client and server can use any revision of
// the protocol and any extension. It outlives the server: it
// waits for the next one, resumes answers whose connection broke, and opens
// a session again that the server has lost.
type bridge struct {
	url, secret string
	patience    time.Duration // maximum time without an answer of the server
	http        *http.Client

	outMu sync.Mutex
	out   io.Writer

	mu      sync.Mutex
	hello   *rpc                          // message that opened the session
	session string                        // ID of the session; empty for none
	running map[string]context.CancelFunc // requests without a session, by ID
	again   map[string]bool               // tools that may be called again, by name, as in the last list of tools

	opening sync.Mutex // held while a lost session is reopened
}

const (
	bridgePatience   = 2 * time.Minute
	bridgePause      = 100 * time.Millisecond // pause after the first failure
	bridgeLongest    = 2 * time.Second        // maximum pause between attempts
	bridgeGrace      = 30 * time.Second       // time for answers after the client has closed its end
	statelessVersion = "2026-07-28"           // the first revision without sessions
	resumingVersion  = "2025-11-25"           // a revision whose answers can be resumed
)

// An rpc holds the fields of a message that the bridge uses.
type rpc struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
		Name      string          `json:"name"`
		URI       string          `json:"uri"`
		TaskID    string          `json:"taskId"`
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
	raw []byte
}

func (m *rpc) isRequest() bool { return len(m.ID) > 0 && m.Method != "" }
func (m *rpc) stateless() bool { return m.Params.Meta.Version >= statelessVersion }

// passOn forwards messages between a client and the server at url until the client
// closes in, or ctx ends.
func passOn(ctx context.Context, url, secret string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := newBridge(url, secret, out)
	lines := make(chan []byte)
	go func() { // the goroutine ends with in, or with the process: a read cannot be interrupted
		defer close(lines)
		r := bufio.NewReader(in)
		for {
			line, err := r.ReadBytes('\n')
			if line = bytes.TrimSpace(line); len(line) > 0 {
				select {
				case lines <- line:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for open := true; open; {
		select {
		case line, ok := <-lines:
			if open = ok; ok {
				b.take(ctx, &wg, line)
			}
		case <-ctx.Done():
			open = false
		}
	}
	timer := time.AfterFunc(bridgeGrace, cancel)
	defer timer.Stop()
	wg.Wait()
	b.end(ctx)
	return nil
}

func newBridge(url, secret string, out io.Writer) *bridge {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// On a connection kept from an earlier server, it is unknown whether
	// that server has still read a message.
	transport.DisableKeepAlives = true
	return &bridge{url: url, secret: secret, patience: bridgePatience, http: &http.Client{Transport: transport}, out: out, running: map[string]context.CancelFunc{}, again: map[string]bool{}}
}

// take handles one message. Requests are answered concurrently; other messages
// keep their order.
func (b *bridge) take(ctx context.Context, wg *sync.WaitGroup, line []byte) {
	m := &rpc{raw: line}
	if line[0] != '[' {
		if err := json.Unmarshal(line, m); err != nil {
			m = &rpc{raw: line}
			if !json.Valid(line) {
				b.say(map[string]any{"jsonrpc": "2.0", "id": nil, "error": rpcError(-32700, "this is no JSON")})
				return
			}
		}
	}
	switch {
	case m.Method == "notifications/cancelled":
		b.mu.Lock()
		stop := b.running[string(m.Params.RequestID)]
		b.mu.Unlock()
		if stop != nil { // without a session, closing the connection cancels a request
			stop()
			return
		}
		b.carry(ctx, m)
	case m.Method == "initialize":
		b.mu.Lock()
		b.hello, b.session = m, ""
		b.mu.Unlock()
		b.carry(ctx, m)
	case !m.isRequest() && line[0] != '[':
		b.carry(ctx, m)
	default:
		ctx, cancel := context.WithCancel(ctx)
		id := string(m.ID)
		if m.stateless() {
			b.mu.Lock()
			b.running[id] = cancel
			b.mu.Unlock()
		}
		wg.Go(func() {
			defer cancel()
			b.carry(ctx, m)
			b.mu.Lock()
			delete(b.running, id)
			b.mu.Unlock()
		})
	}
}

func rpcError(code int, text string) map[string]any {
	return map[string]any{"code": code, "message": text}
}

// say sends the client a message that the bridge itself made.
func (b *bridge) say(v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		raw = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"an internal error"}}`)
	}
	b.pass(raw)
}

// pass sends a message to the client, as one line.
func (b *bridge) pass(raw []byte) {
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil {
		return
	}
	line.WriteByte('\n')
	b.outMu.Lock()
	defer b.outMu.Unlock()
	// A client that has left also closes its other end, which ends the bridge.
	_, _ = b.out.Write(line.Bytes())
}

// Errors of an attempt after which another one follows.
var (
	errAway = errors.New("the server does not answer")           // the server has not received the message
	errCut  = errors.New("the connection to the server broke")   // the server may have received the message
	errGone = errors.New("the server does not know the session") // the server has not processed the request
)

// carry sends a message to the server, and returns the answer to the client.
func (b *bridge) carry(ctx context.Context, m *rpc) {
	pause := bridgePause
	wait := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			pause = min(2*pause, bridgeLongest)
			return true
		}
	}
	for failing := time.Now(); ; {
		session := b.current()
		if m.Method == "initialize" || m.stateless() {
			session = ""
		}
		x := &exchange{bridge: b, m: m, session: session}
		err := x.post(ctx)
		for {
			if x.reached {
				x.reached, failing, pause = false, time.Now(), bridgePause
			}
			if !errors.Is(err, errCut) || x.last == "" || time.Since(failing) >= b.patience || !wait() {
				break
			}
			err = x.resume(ctx)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, errGone) && session != "":
			if err = b.reopen(ctx, session); err == nil {
				continue
			}
		case errors.Is(err, errCut) && m.isRequest() && m.Method == "tools/call" && !b.repeatable(m.Params.Name):
			b.say(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"isError": true, "resultType": "complete", "content": []any{map[string]any{
				"type": "text", "text": "the connection to the server broke during the call, and how much of it was done is unknown (check its effects before you repeat it)",
			}}}})
			return
		}
		again := errors.Is(err, errAway) || errors.Is(err, errCut)
		if again && time.Since(failing) < b.patience && wait() {
			continue
		}
		if m.isRequest() && ctx.Err() == nil {
			b.say(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": rpcError(-32000, "engi mcp: "+err.Error())})
		}
		return
	}
}

// learn stores which tools of a list may be called again.
func (b *bridge) learn(answer []byte) {
	var list struct {
		Result struct {
			Tools []struct {
				Name        string `json:"name"`
				Annotations struct {
					ReadOnly   bool `json:"readOnlyHint"`
					Idempotent bool `json:"idempotentHint"`
				} `json:"annotations"`
			} `json:"tools"`
		} `json:"result"`
	}
	if json.Unmarshal(answer, &list) != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range list.Result.Tools {
		b.again[t.Name] = t.Annotations.ReadOnly || t.Annotations.Idempotent
	}
}

func (b *bridge) repeatable(tool string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.again[tool]
}

func (b *bridge) current() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session
}

// reopen opens a session again that the server has lost, for example because it
// expired.
func (b *bridge) reopen(ctx context.Context, lost string) error {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	hello, now := b.hello, b.session
	b.mu.Unlock()
	if now != lost {
		return nil
	}
	if err := (&exchange{bridge: b, m: hello, silent: true}).post(ctx); err != nil {
		return err
	}
	ready := &rpc{Method: "notifications/initialized", raw: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)}
	return (&exchange{bridge: b, m: ready, session: b.current()}).post(ctx)
}

// end tells the server that the session has ended.
func (b *bridge) end(ctx context.Context) {
	session := b.current()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	// If this fails, the session expires on the server.
	if resp, err := b.send(ctx, http.MethodDelete, &exchange{session: session}); err == nil {
		resp.Body.Close()
	}
}

// send sends an HTTP request.
func (b *bridge) send(ctx context.Context, method string, x *exchange) (*http.Response, error) {
	var body io.Reader
	if method == http.MethodPost {
		body = bytes.NewReader(x.m.raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, b.url, body)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "bad address %s", b.url)
	}
	set := func(name, value string) {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	set("Authorization", "Bearer "+b.secret)
	set("Accept", "application/json, text/event-stream")
	set("Mcp-Session-Id", x.session)
	set("Last-Event-ID", x.last)
	if x.session != "" && (x.m == nil || x.m.raw[0] != '[') {
		// Whatever revision client and server use, the bridge itself can resume
		// answers.
		set("Mcp-Protocol-Version", resumingVersion)
	}
	if method == http.MethodPost {
		set("Content-Type", "application/json")
		if x.m.stateless() {
			set("Mcp-Protocol-Version", x.m.Params.Meta.Version)
			set("Mcp-Method", x.m.Method)
			set("Mcp-Name", headerText(cmp.Or(x.m.Params.Name, x.m.Params.URI, x.m.Params.TaskID)))
		}
	}
	return b.http.Do(r)
}

// headerText encodes text so that it is valid in a header.
func headerText(text string) string {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
		}
	}
	return text
}

// An exchange is one attempt to get an answer to a message.
type exchange struct {
	*bridge
	m       *rpc
	session string
	last    string // ID of the last event
	silent  bool   // the bridge itself asked, and the client does not see the answer
	reached bool   // the server has answered since the last check
}

// post sends the message and passes on the response. It returns nil once the
// message is answered, or accepted if it is not a request.
func (x *exchange) post(ctx context.Context) error {
	resp, err := x.send(ctx, http.MethodPost, x)
	if err != nil {
		if engi.Is(err, engi.Invalid) {
			return err
		}
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			return errAway
		}
		return errCut
	}
	defer resp.Body.Close()
	x.reached = true
	if session := resp.Header.Get("Mcp-Session-Id"); session != "" && x.m.Method == "initialize" {
		x.mu.Lock()
		x.bridge.session = session
		x.mu.Unlock()
	}
	return x.read(resp)
}

// deliver passes a message on to the client, unless the bridge itself has asked for it.
func (x *exchange) deliver(raw []byte) {
	if x.m.Method == "tools/list" {
		x.learn(raw)
	}
	if !x.silent {
		x.pass(raw)
	}
}

// resume requests the events after the last one.
func (x *exchange) resume(ctx context.Context) error {
	resp, err := x.send(ctx, http.MethodGet, x)
	if err != nil {
		return errCut
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		x.reached = true
		return x.read(resp)
	case http.StatusNotFound, http.StatusBadRequest: // the server has lost the stream
		x.last = ""
	}
	return errCut // the server is starting, or has not noticed the broken connection yet
}

// read passes on the response of the server.
func (x *exchange) read(resp *http.Response) error {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch {
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusOK && !x.m.isRequest() && x.m.raw[0] != '[':
		return nil
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return x.events(resp.Body)
	case resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout:
		return errAway
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return errCut
	}
	var answer rpc
	if kind == "application/json" && json.Unmarshal(body, &answer) == nil && answer.Method == "" && (resp.StatusCode == http.StatusOK || bytes.Equal(answer.ID, x.m.ID)) {
		x.deliver(body)
		return nil
	}
	if resp.StatusCode == http.StatusNotFound && x.session != "" {
		return errGone
	}
	var problem struct {
		Detail string `json:"detail"`
		Remedy string `json:"remedy"`
	}
	if json.Unmarshal(body, &problem) != nil || problem.Detail == "" {
		problem.Detail = fmt.Sprintf("%s %.300s", resp.Status, bytes.TrimSpace(body))
	}
	if problem.Remedy != "" {
		problem.Detail += " (" + problem.Remedy + ")"
	}
	return engi.Errorf(engi.Unavailable, "%s", problem.Detail)
}

// events passes on the messages of a stream, up to the answer.
func (x *exchange) events(body io.Reader) error {
	r := bufio.NewReader(body)
	var data [][]byte
	id, answers := "", 1
	if x.m.raw[0] == '[' {
		var batch []rpc
		if json.Unmarshal(x.m.raw, &batch) == nil {
			answers = 0
			for _, m := range batch {
				if m.isRequest() {
					answers++
				}
			}
		}
	}
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return errCut
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			id = string(value)
		case "data":
			data = append(data, bytes.Clone(value))
		}
		if len(line) > 0 {
			continue
		}
		raw := bytes.Join(data, []byte("\n"))
		data = nil
		if len(raw) > 0 {
			var m rpc
			isAnswer := json.Unmarshal(raw, &m) != nil || m.Method == ""
			x.deliver(raw)
			if isAnswer {
				answers--
			}
		}
		if id != "" {
			x.last = id
		}
		if answers <= 0 {
			return nil
		}
	}
}
