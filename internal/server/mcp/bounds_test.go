package mcp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/mcp"
)

// post sends a body to s as a client with a key does; session may be empty.
func post(t *testing.T, s http.Handler, secret, session, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/mcp", strings.NewReader(body))
	for k, v := range map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
		if v != "" {
			r.Header.Set(k, v)
		}
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	return rec
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

func open(t *testing.T) (*mcp.Server, [2]string) {
	t.Helper()
	w, services, _ := serveAll(t)
	s, err := mcp.New(mcp.Options{Services: services, Keys: w.Keys, Clients: w.Clients})
	if err != nil {
		t.Fatal(err)
	}
	return s, [2]string{w.User, w.Other}
}

// TestBatchesAreBounded counts what is allocated for batches, in a session and
// outside of one.
func TestBatchesAreBounded(t *testing.T) {
	s, keys := open(t)
	session := post(t, s, keys[0], "", initialize).Header().Get("Mcp-Session-Id")
	if session == "" {
		t.Fatal("no session")
	}
	const call = `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"list_sandboxes"}}`
	batch := func(n int) string { return " [" + strings.Repeat(call+",", n-1) + call + "]" }
	for _, in := range []string{session, ""} {
		for _, n := range []int{101, 10_000, 20_000} {
			body := batch(n)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := post(t, s, keys[0], in, body)
			runtime.ReadMemStats(&after)
			if got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), "batch of more than") {
				t.Errorf("%d calls: %d %.200s", n, got.Code, got.Body)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
				t.Errorf("%d bytes are allocated to refuse %d", used, len(body))
			}
		}
	}
	// A short one is answered, whole.
	if got := post(t, s, keys[0], session, `[{"jsonrpc":"2.0","id":7,"method":"ping"},{"jsonrpc":"2.0","id":8,"method":"ping"}]`); got.Code != http.StatusOK || !strings.Contains(got.Body.String(), `"id":7`) || !strings.Contains(got.Body.String(), `"id":8`) {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}

// TestSessionsAreBounded opens sessions with one key until no more are taken.
func TestSessionsAreBounded(t *testing.T) {
	s, keys := open(t)
	var sessions []string
	var last *httptest.ResponseRecorder
	for range 1000 {
		if last = post(t, s, keys[0], "", initialize); last.Code != http.StatusOK {
			break
		}
		sessions = append(sessions, last.Header().Get("Mcp-Session-Id"))
	}
	if last.Code != http.StatusTooManyRequests || len(sessions) < 10 {
		t.Fatalf("%d sessions, then %d %.200s", len(sessions), last.Code, last.Body)
	}
	// Sessions that there are go on, and those of another key begin.
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if got := post(t, s, keys[0], sessions[0], ping); got.Code != http.StatusOK {
		t.Errorf("a session: %d %s", got.Code, got.Body)
	}
	if got := post(t, s, keys[1], "", initialize); got.Code != http.StatusOK {
		t.Errorf("another key: %d %s", got.Code, got.Body)
	}
	// What begins none does not count for ever, and one that ends makes room.
	for range 3 {
		end := httptest.NewRequestWithContext(t.Context(), "DELETE", "http://localhost/mcp", nil)
		end.Header.Set("Authorization", "Bearer "+keys[0])
		end.Header.Set("Mcp-Session-Id", sessions[len(sessions)-1])
		s.ServeHTTP(httptest.NewRecorder(), end)
		post(t, s, keys[0], "", ping)
		got := post(t, s, keys[0], "", initialize)
		if got.Code != http.StatusOK {
			t.Fatalf("after one has ended: %d %s", got.Code, got.Body)
		}
		sessions[len(sessions)-1] = got.Header().Get("Mcp-Session-Id")
	}
}

// waitingExecutions start nothing, until their callers leave.
type waitingExecutions struct {
	engi.Executions
	begun chan struct{}
}

func (x waitingExecutions) Start(ctx context.Context, _ engi.ExecutionSpec) (engi.Execution, error) {
	x.begun <- struct{}{}
	<-ctx.Done()
	return engi.Execution{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
}

// TestRequestsOutsideOfSessionsAreBounded has one key begin requests without
// sessions until no more are taken.
func TestRequestsOutsideOfSessionsAreBounded(t *testing.T) {
	h := newRestarting(t)
	x := waitingExecutions{h.services.Executions, make(chan struct{})}
	h.services.Executions = x
	s, err := mcp.New(mcp.Options{Services: h.services, Keys: h.Keys, Clients: h.Clients})
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context, secret, method, name, params string) int {
		r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+meta("{}")+`}}`))
		for k, v := range map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name} {
			r.Header.Set(k, v)
		}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		return rec.Code
	}
	list := func(secret string) int { return call(t.Context(), secret, "tools/list", "", "") }
	var running sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	defer running.Wait()
	defer leave()
	n := 0
	for ; n < 1000 && list(h.User) == http.StatusOK; n++ {
		running.Go(func() {
			call(ctx, h.User, "tools/call", "execute_code", `"name":"execute_code","arguments":{"language":"bash","code":":"},`)
		})
		<-x.begun
	}
	if code := list(h.User); n < 10 || code != http.StatusTooManyRequests {
		t.Errorf("after %d requests: %d", n, code)
	}
	if code := list(h.Other); code != http.StatusOK {
		t.Errorf("another key: %d", code)
	}
	leave()
	running.Wait()
	if code := list(h.User); code != http.StatusOK {
		t.Errorf("when the others have ended: %d", code)
	}
}

// TestBodiesAreBounded sends many large bodies at a time with one key, which end
// together.
func TestBodiesAreBounded(t *testing.T) {
	s, keys := open(t)
	const (
		requests = 8
		size     = 15 << 20
	)
	begin := func(secret string, size int) (end func() *httptest.ResponseRecorder) {
		out, in := io.Pipe()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/mcp", out)
		for k, v := range map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			r.Header.Set(k, v)
		}
		rec, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			s.ServeHTTP(rec, r)
			out.CloseWithError(io.ErrClosedPipe) // what is refused is not read
		}()
		piece := []byte(strings.Repeat(" ", 1<<20))
		for n := 0; n < size; n += len(piece) {
			if _, err := in.Write(piece); err != nil {
				break
			}
		}
		return func() *httptest.ResponseRecorder {
			_, _ = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`) // refused requests are not read
			in.Close()
			<-done
			return rec
		}
	}
	for range 2 { // all is given back
		var ends []func() *httptest.ResponseRecorder
		for range requests {
			ends = append(ends, begin(keys[0], size))
		}
		if got := begin(keys[1], 4<<20)(); got.Code != http.StatusOK {
			t.Errorf("another owner: %d %.200s", got.Code, got.Body)
		}
		codes := map[int]int{}
		for _, end := range ends {
			got := end()
			codes[got.Code]++
			if got.Code == http.StatusTooManyRequests && (!strings.Contains(got.Body.String(), "too many large requests") || got.Header().Get("Retry-After") == "") {
				t.Errorf("%v %s", got.Header(), got.Body)
			}
		}
		if codes[http.StatusOK] < 2 || codes[http.StatusTooManyRequests] != requests-codes[http.StatusOK] || codes[http.StatusOK] > 4 {
			t.Errorf("answers: %v", codes)
		}
	}
}
