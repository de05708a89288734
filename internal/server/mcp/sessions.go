package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A keyServer serves one key, and finds only the MCP sessions of that key.
// Protocol revisions since 2026-07-28 have no sessions. Sessions of older
// revisions are stored, so that they continue after a restart.
type keyServer struct {
	s         *Server
	key       engi.Key
	server    *sdk.Server
	sessions  http.Handler
	stateless http.Handler
	used      time.Time // time of the last use; guarded by mu of the Server

	opening sync.Mutex // held while a session starts; guards next
	next    string     // ID of the starting session

	mu      sync.Mutex
	loose   int                  // number of requests outside of sessions; guarded by mu
	touched map[string]time.Time // times of the last recorded use by session; guarded by mu
}

const (
	// statelessRevision is the first revision of the protocol without sessions.
	statelessRevision = "2026-07-28"
	metaVersion       = "io.modelcontextprotocol/protocolVersion"

	sessionHeader = "Mcp-Session-Id"
	nameHeader    = "Mcp-Name"
	// runHeader holds the ID under which a call creates objects. Clients do not send it.
	runHeader = "Engi-Run"

	maxAbout      = 256 << 10 // maximum bytes of the message that opens a session
	maxRequests   = 256       // maximum number of stored requests of a key
	maxRemembered = 256 << 10 // maximum bytes of a stored request or answer
	maxEvents     = 1 << 20   // maximum bytes of a key's events in memory that clients can resume from
	touchInterval = time.Minute
	redoTime      = 15 * time.Minute // maximum time to repeat a call that a restart interrupted
)

func (s *Server) newKeyServer(key engi.Key) *keyServer {
	k := &keyServer{s: s, key: key, touched: map[string]time.Time{}}
	k.server = s.server(key, func() string { return k.next })
	events := &eventStore{MemoryEventStore: sdk.NewMemoryEventStore(nil), k: k}
	events.SetMaxBytes(maxEvents)
	handler := func(o sdk.StreamableHTTPOptions) http.Handler {
		o.DisableLocalhostProtection = true // admit has checked the host name
		o.MaxRequestBodyBytes = maxBody
		return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return k.server }, &o)
	}
	k.sessions = handler(sdk.StreamableHTTPOptions{SessionTimeout: s.opt.Idle, EventStore: events})
	k.stateless = handler(sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	return k
}

// A message holds the parts of a request that are needed before the protocol's library
// reads it.
type message struct {
	body    []byte
	methods []string // methods of the requests and notifications; more than one in a batch
	calls   []call   // requests of the message
	version string   // version of the protocol, if the message names one
}

// A call is one request in a message.
type call struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// peek reads the message of a request. It refuses a batch of too many messages
// without reading the rest: the library reads all messages into memory
// before it answers any, and allocates a thousand times their size. The library itself
// refuses invalid JSON.
func peek(r *http.Request) (m message, err error) {
	if r.Method != http.MethodPost || r.Body == nil {
		return m, nil
	}
	body, seen := httpio.LimitValues(io.LimitReader(r.Body, maxBody+1)), &bytes.Buffer{}
	in := json.NewDecoder(io.TeeReader(body, seen))
	if first, err := in.Token(); err == nil && first == json.Delim('[') {
		for n := 0; in.More(); n++ {
			var c json.RawMessage
			if n == maxBatch {
				return m, engi.Errorf(engi.Invalid, "a batch of more than %d messages", maxBatch).WithRemedy("send fewer at once")
			}
			if in.Decode(&c) != nil {
				break
			}
		}
	}
	if _, err := io.Copy(seen, body); err != nil {
		if engi.Is(err, engi.Internal) { // the connection failed or its time is up
			err = engi.Errorf(engi.Invalid, "read the body: %v", err)
		}
		return m, err
	}
	m.body = seen.Bytes()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(m.body)), int64(len(m.body))
	for _, c := range calls(m.body) {
		m.methods = append(m.methods, c.Method)
		if len(c.ID) > 0 && c.Method != "" {
			m.calls = append(m.calls, c)
		}
		var p struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		if json.Unmarshal(c.Params, &p) == nil && p.Meta[metaVersion] != nil {
			m.version = strings.Trim(string(p.Meta[metaVersion]), `"`)
		}
	}
	return m, nil
}

// calls returns the messages of a body; none if the body is invalid.
func calls(body []byte) []call {
	var all []call
	var one call
	switch trimmed := bytes.TrimLeft(body, " \t\r\n"); {
	case bytes.HasPrefix(trimmed, []byte("[")):
		if json.Unmarshal(trimmed, &all) != nil {
			return nil
		}
	case json.Unmarshal(trimmed, &one) == nil:
		all = []call{one}
	}
	return all
}

// stateless reports whether a request is of a revision without sessions.
func (m message) stateless(r *http.Request) bool {
	return r.Header.Get("Mcp-Protocol-Version") >= statelessRevision || m.version != "" || slices.Contains(m.methods, "server/discover")
}

// serve serves a request, or returns the reason of a refusal.
func (k *keyServer) serve(w http.ResponseWriter, r *http.Request, m message) error {
	r.Header.Del(runHeader)
	id := r.Header.Get(sessionHeader)
	switch {
	case m.stateless(r):
		k.mu.Lock()
		if k.loose >= maxSessions {
			k.mu.Unlock()
			return engi.Errorf(engi.Exhausted, "clients of this key have %d requests under way", k.loose).WithRetry(engi.Retry{AfterMillis: 1000})
		}
		k.loose++
		k.mu.Unlock()
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.loose--
		}()
		if coded, ok := strings.CutPrefix(r.Header.Get(nameHeader), "=?base64?"); ok { // the library does not decode this form
			if name, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(coded, "?=")); err == nil {
				r.Header.Set(nameHeader, string(name))
			}
		}
		if !m.namesTask(r) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			// A client that has left needs no answer.
			_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": m.calls[0].ID, "error": map[string]any{
				"code": sdk.CodeHeaderMismatch, "message": "the header Mcp-Name is not the ID of the task",
			}})
			return nil
		}
		k.stateless.ServeHTTP(w, r)
		return nil
	case id == "" && r.Method == http.MethodPost:
		return k.open(w, r, m)
	case id == "":
		k.sessions.ServeHTTP(w, r) // the library refuses the request
		return nil
	}
	if err := k.resume(r.Context(), id); err != nil {
		return err
	}
	if r.Method == http.MethodDelete {
		if err := k.s.opt.Clients.Delete(r.Context(), k.key.ID, id); err != nil {
			return err
		}
	}
	if len(m.calls) > 0 {
		q := engi.ToolRequest{Body: m.body}
		if len(m.methods) == 1 {
			q.Run = engi.NewRunID()
			r.Header.Set(runHeader, string(q.Run))
		}
		if len(q.Body) > maxRemembered {
			q.Body = m.forgetful()
		}
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
	}
	k.sessions.ServeHTTP(w, r)
	return nil
}

// forgetful returns the message without its parameters.
func (m message) forgetful() []byte {
	for i := range m.calls {
		m.calls[i].Params = json.RawMessage(`{}`)
	}
	body, err := json.Marshal(m.calls)
	if err != nil { // unreachable: the calls were decoded from JSON
		return nil
	}
	return body
}

// requestKey is the context key of a [engi.ToolRequest].
type requestKey struct{}

// open serves a request outside of a session, which may start one. Sessions start
// one after the other: their answers are quick, and do not wait for the client.
func (k *keyServer) open(w http.ResponseWriter, r *http.Request, m message) error {
	k.opening.Lock()
	defer k.opening.Unlock()
	k.next = rand.Text()
	opens := slices.Contains(m.methods, "initialize")
	if opens {
		if len(m.body) > maxAbout {
			return engi.Errorf(engi.Invalid, "the message that opens a session has %d bytes, %d at most", len(m.body), maxAbout)
		}
		now := time.Now()
		c := engi.ToolClient{ID: k.next, Key: k.key.ID, About: m.body, Used: now}
		if err := k.s.opt.Clients.Put(r.Context(), c, maxSessions, now.Add(-k.s.opt.Idle)); err != nil {
			return err
		}
	}
	a := answer{header: w.Header()}
	k.sessions.ServeHTTP(&a, r)
	if opens && !k.lives(k.next) {
		if err := k.s.opt.Clients.Delete(context.WithoutCancel(r.Context()), k.key.ID, k.next); err != nil {
			return err
		}
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	if _, err := w.Write(a.body.Bytes()); err != nil {
		k.s.opt.Log.DebugContext(r.Context(), "answer an MCP client", "error", err)
	}
	return nil
}

// lives reports whether the library has a session.
func (k *keyServer) lives(id string) bool {
	for s := range k.server.Sessions() {
		if s.ID() == id {
			return true
		}
	}
	return false
}

// resume makes sure that the library has a session, which may have started before a
// restart, and records its use.
func (k *keyServer) resume(ctx context.Context, id string) error {
	now := time.Now()
	k.mu.Lock()
	recent := now.Sub(k.touched[id]) < min(touchInterval, k.s.opt.Idle/4)
	if !recent {
		if len(k.touched) > 2*maxSessions {
			clear(k.touched)
		}
		k.touched[id] = now
	}
	k.mu.Unlock()
	lives := k.lives(id)
	if lives && recent {
		return nil
	}
	c, err := k.s.opt.Clients.Get(ctx, k.key.ID, id, now.Add(-k.s.opt.Idle))
	if err != nil {
		k.mu.Lock()
		delete(k.touched, id)
		k.mu.Unlock()
		return err
	}
	if err := k.s.opt.Clients.Touch(ctx, id, now); err != nil || lives {
		return err
	}
	k.opening.Lock()
	defer k.opening.Unlock()
	if k.lives(id) {
		return nil
	}
	// The client sent these messages before the restart.
	k.next = id
	for _, body := range []string{string(c.About), `{"jsonrpc":"2.0","method":"notifications/initialized"}`} {
		r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, "/", strings.NewReader(body))
		if err != nil {
			return engi.Errorf(engi.Internal, "resume a session: %v", err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if k.lives(id) {
			r.Header.Set(sessionHeader, id)
		}
		k.sessions.ServeHTTP(&answer{header: http.Header{}}, r)
	}
	if !k.lives(id) {
		return engi.Errorf(engi.NotFound, "there is no such session")
	}
	return nil
}

// An answer is an http.ResponseWriter that keeps the response in memory.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// An eventStore stores the events of streams, for clients whose connections break:
// all events in memory, and answers also in the store.
type eventStore struct {
	*sdk.MemoryEventStore
	k *keyServer
}

// Open implements [sdk.EventStore].
func (e *eventStore) Open(ctx context.Context, session, stream string) error {
	if q, ok := ctx.Value(requestKey{}).(engi.ToolRequest); ok && stream != "" {
		q.Client, q.Stream = session, stream
		if err := e.k.s.opt.Clients.PutRequest(ctx, q, maxRequests); err != nil {
			return err
		}
	}
	return e.MemoryEventStore.Open(ctx, session, stream)
}

// Append implements [sdk.EventStore].
func (e *eventStore) Append(ctx context.Context, session, stream string, data []byte) error {
	if stream != "" && len(data) > 0 && len(data) <= maxRemembered {
		if c := calls(data); len(c) == 1 && c[0].Method == "" {
			e.remember(ctx, session, stream, data)
		}
	}
	return e.MemoryEventStore.Append(ctx, session, stream, data)
}

// remember stores an answer. The client gets the answer even if that fails.
func (e *eventStore) remember(ctx context.Context, session, stream string, data []byte) {
	if err := e.k.s.opt.Clients.AddAnswer(context.WithoutCancel(ctx), session, stream, data, 2*maxRemembered); err != nil {
		e.k.s.opt.Log.ErrorContext(ctx, "record an answer to an MCP client", "error", err)
	}
}

// After implements [sdk.EventStore]. A stream that started before a restart has the
// answers stored then, and new answers to the calls that the restart interrupted.
func (e *eventStore) After(ctx context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var lost error
		for data, err := range e.MemoryEventStore.After(ctx, session, stream, index) {
			if lost = err; lost != nil {
				break
			}
			if !yield(data, nil) {
				return
			}
		}
		if lost == nil {
			return
		}
		q, err := e.k.s.opt.Clients.Request(ctx, session, stream)
		if err != nil {
			yield(nil, err)
			return
		}
		open := calls(q.Body)
		for _, data := range q.Answers {
			var a call
			before := len(open)
			if json.Unmarshal(data, &a) == nil {
				open = slices.DeleteFunc(open, func(c call) bool { return sameID(c.ID, a.ID) })
			}
			if len(open) < before && !yield(data, nil) { // skip a second answer to the same call
				return
			}
		}
		if errors.Is(lost, sdk.ErrEventsPurged) {
			return // this process is running the call, or has answered it
		}
		for _, c := range open {
			if len(c.ID) == 0 || c.Method == "" {
				continue
			}
			data, err := e.k.redo(ctx, q.Run, c)
			if err != nil {
				yield(nil, err)
				return
			}
			if len(data) <= maxRemembered {
				e.remember(ctx, session, stream, data)
			}
			if !yield(data, nil) {
				return
			}
		}
	}
}

// sameID reports whether two IDs are the same, whatever their formatting.
func sameID(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	switch x.(type) {
	case string, float64:
		return x == y
	}
	return false
}

// redo returns the answer to a request that a restart interrupted: the result of a tool
// that may be called again or finds the objects that it created, or else an error saying that
// the effect is unknown.
func (k *keyServer) redo(ctx context.Context, run engi.RunID, c call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redoTime)
	defer cancel()
	reply := struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result,omitempty"`
		Error   any             `json:"error,omitempty"`
	}{Version: "2.0", ID: c.ID}
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if c.Method != "tools/call" || json.Unmarshal(c.Params, &p) != nil {
		reply.Error = map[string]any{"code": -32603, "message": "a restart interrupted the request; send it again"}
		return json.Marshal(reply)
	}
	at := slices.IndexFunc(k.s.tools, func(t tool.Tool) bool { return t.Name == p.Name })
	if at < 0 || !k.s.tools[at].Repeatable || run == "" {
		reply.Result = resultOf(tool.Failure(engi.Errorf(engi.Unavailable, "a restart interrupted the call; it may have been done in part").
			WithRemedy("check its effects before you repeat it")))
		return json.Marshal(reply)
	}
	r, err := k.s.run(ctx, k.key, k.s.tools[at], run, 0, p.Arguments, func(engi.Stream, []byte) {})
	if err != nil {
		return nil, err
	}
	reply.Result = r
	return json.Marshal(reply)
}
