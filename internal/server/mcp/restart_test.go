package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/mcp"
	"github.com/engi-dev/engi/test/apitest"
)

// A restarting is what servers one after the other share, as a node's after restarts.
type restarting struct {
	*apitest.Fixture
	services tool.Services
}

func newRestarting(t *testing.T) restarting {
	w, services, _ := serveAll(t)
	return restarting{w, services}
}

// server returns the address of a new server.
func (h restarting) server(t *testing.T, idle time.Duration) string {
	t.Helper()
	s, err := mcp.New(mcp.Options{Services: h.services, Keys: h.Keys, Clients: h.Clients, Idle: idle})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	t.Cleanup(web.CloseClientConnections)
	return web.URL
}

// ask sends a request with headers, and returns the answer, which is closed at
// the end of the test.
func ask(t *testing.T, method, url, secret, body string, headers ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	headers = append([]string{"Authorization", "Bearer " + secret, "Content-Type", "application/json", "Accept", "application/json, text/event-stream"}, headers...)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func bodyOf(t *testing.T, r *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	list  = `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`
)

// begin opens a session and returns the headers of requests in it.
func begin(t *testing.T, url, secret string) []string {
	t.Helper()
	resp := ask(t, "POST", url, secret, hello)
	session := []string{"Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25"}
	if resp.StatusCode != http.StatusOK || session[1] == "" {
		t.Fatalf("%s %s", resp.Status, bodyOf(t, resp))
	}
	if got := ask(t, "POST", url, secret, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session...); got.StatusCode != http.StatusAccepted {
		t.Fatalf("%s", got.Status)
	}
	return session
}

// TestSessionsOutliveTheServer uses one session of the protocol at one server
// after the other.
func TestSessionsOutliveTheServer(t *testing.T) {
	h := newRestarting(t)
	k, secret, err := h.Keys.Create(t.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	session := begin(t, h.server(t, 0), secret)
	for range 3 {
		url := h.server(t, 0)
		if got := ask(t, "POST", url, secret, list, session...); got.StatusCode != http.StatusOK || !strings.Contains(bodyOf(t, got), "execute_code") {
			t.Fatalf("after a restart: %s", got.Status)
		}
		if got := ask(t, "POST", url, h.Other, list, session...); got.StatusCode != http.StatusNotFound {
			t.Errorf("with another key: %s", got.Status)
		}
		stream := ask(t, "GET", url, secret, "", session...)
		if stream.StatusCode != http.StatusOK {
			t.Errorf("its stream: %s %s", stream.Status, bodyOf(t, stream))
		}
	}
	// It ends when the client says so, and when the key is revoked.
	url := h.server(t, 0)
	if got := ask(t, "DELETE", url, secret, "", session...); got.StatusCode != http.StatusNoContent {
		t.Errorf("%s", got.Status)
	}
	for _, url := range []string{url, h.server(t, 0)} {
		if got := ask(t, "POST", url, secret, list, session...); got.StatusCode != http.StatusNotFound {
			t.Errorf("ended: %s", got.Status)
		}
	}
	session = begin(t, url, secret)
	if err := h.Keys.Revoke(t.Context(), "ann", k.ID); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, "POST", h.server(t, 0), secret, list, session...); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("of a revoked key: %s", got.Status)
	}
	if _, err := h.Clients.Get(t.Context(), k.ID, session[1], time.Time{}); !engi.Is(err, engi.NotFound) {
		t.Errorf("of a revoked key: %v", err)
	}
	// Nobody uses it.
	session = begin(t, h.server(t, 0), h.User)
	time.Sleep(5 * time.Millisecond)
	if got := ask(t, "POST", h.server(t, time.Millisecond), h.User, list, session...); got.StatusCode != http.StatusNotFound {
		t.Errorf("one that is not used: %s", got.Status)
	}
}

// TestLimitOfSessionsOutlivesTheServer counts those that other servers opened.
func TestLimitOfSessionsOutlivesTheServer(t *testing.T) {
	h := newRestarting(t)
	n := 0
	for ; n < 1000; n++ {
		s, err := mcp.New(mcp.Options{Services: h.services, Keys: h.Keys, Clients: h.Clients})
		if err != nil {
			t.Fatal(err)
		}
		if got := post(t, s, h.User, "", hello); got.Code == http.StatusTooManyRequests {
			break
		} else if got.Code != http.StatusOK {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	}
	if n == 1000 || n < 10 {
		t.Errorf("%d sessions", n)
	}
}

// An event is one of a stream.
type event struct{ id, data string }

// next returns the next event of a stream.
func next(t *testing.T, in *bufio.Reader) (e event) {
	t.Helper()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		switch field, value, _ := strings.Cut(strings.TrimSpace(line), ": "); field {
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "":
			if e != (event{}) {
				return e
			}
		}
	}
}

// TestInterruptedCalls comes back to streams of calls at another server: of one
// that was answered, one that may be made again, one that may not.
func TestInterruptedCalls(t *testing.T) {
	h := newRestarting(t)
	first := h.server(t, 0)
	session := begin(t, first, h.User)
	made := bodyOf(t, ask(t, "POST", first, h.User, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"create_sandbox"}}`, session...))
	at := strings.Index(made, "sbx_")
	if at < 0 {
		t.Fatal(made)
	}
	box, _, _ := strings.Cut(made[at:], `\`)
	id := 4
	call := func(name, args string) string {
		id++
		return `{"jsonrpc":"2.0","id":"\u0069` + fmt.Sprint(id) + `","method":"tools/call","params":{"name":"` + name + `","arguments":` + args + `}}`
	}
	for name, c := range map[string]struct{ body, want string }{
		"found again": {call("execute_code", `{"language":"bash","code":"echo begun; sleep 2s; echo over"}`), "over"},
		"not known":   {call("run_command", `{"sandbox":"`+box+`","command":"sleep 60"}`), "a restart interrupted the call"},
	} {
		t.Run(name, func(t *testing.T) {
			stream := ask(t, "POST", first, h.User, c.body, session...)
			before := next(t, bufio.NewReader(stream.Body))
			if before.id == "" {
				t.Fatalf("an event without an ID: %+v", before)
			}
			runs := len(h.executions(t))
			second := h.server(t, 0)
			for range 2 { // a second time from what was stored
				resp := ask(t, "GET", second, h.User, "", append(session, "Last-Event-ID", before.id)...)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s %s", resp.Status, bodyOf(t, resp))
				}
				in := bufio.NewReader(resp.Body)
				got := next(t, in)
				if _, err := in.ReadByte(); err != io.EOF { // until then, the stream is in use
					t.Errorf("the stream goes on: %v", err)
				}
				var answer struct {
					ID     string
					Result struct {
						Content []struct{ Text string }
					}
				}
				if err := json.Unmarshal([]byte(got.data), &answer); err != nil || got.id == "" || !strings.Contains(c.body, strings.TrimPrefix(answer.ID, "i")+`"`) || len(answer.Result.Content) != 1 || !strings.Contains(answer.Result.Content[0].Text, c.want) {
					t.Errorf("%+v %v", got, err)
				}
			}
			if now := len(h.executions(t)); now > max(runs, 1) {
				t.Errorf("%d programs ran, before %d", now, runs)
			}
			// At the first server, it goes on as well.
			if got := ask(t, "GET", second, h.Other, "", append(session, "Last-Event-ID", before.id)...); got.StatusCode != http.StatusNotFound {
				t.Errorf("with another key: %s", got.Status)
			}
		})
	}
	t.Run("answered", func(t *testing.T) {
		stream := ask(t, "POST", first, h.User, call("list_sandboxes", `{}`), session...)
		in := bufio.NewReader(stream.Body)
		before, answer := next(t, in), next(t, in)
		if !strings.Contains(answer.data, box) {
			t.Fatalf("%+v", answer)
		}
		resp := ask(t, "GET", h.server(t, 0), h.User, "", append(session, "Last-Event-ID", before.id)...)
		if got := next(t, bufio.NewReader(resp.Body)); got.data != answer.data {
			t.Errorf("%+v instead of %+v", got, answer)
		}
	})
}

func (h restarting) executions(t *testing.T) []engi.Execution {
	t.Helper()
	list, err := h.services.Executions.List(t.Context(), "ann", engi.ExecutionFilter{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestRevisionWithoutSessions speaks 2026-07-28, beside the old ones.
func TestRevisionWithoutSessions(t *testing.T) {
	h := newRestarting(t)
	url := h.server(t, 0)
	modern := func(method, name, params string, more ...string) *http.Response {
		t.Helper()
		return h.modern(t, url, method, name, params, "{}", more...)
	}
	for _, c := range []struct{ method, name, params, want string }{
		{"server/discover", "", "", `"2026-07-28"`},
		{"tools/list", "", "", "execute_code"},
		{"tools/call", "list_sandboxes", `"name":"list_sandboxes","arguments":{},`, `"structuredContent"`},
	} {
		got := modern(c.method, c.name, c.params)
		text := bodyOf(t, got)
		if got.StatusCode != http.StatusOK || !strings.Contains(text, c.want) || got.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: %s %s", c.method, got.Status, text)
		}
	}
	if got := modern("no/such", "", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("%s", got.Status)
	}
	// Header and body must agree, or others between would be misled.
	if got := modern("tools/list", "", "", "Mcp-Method", "tools/call"); got.StatusCode != http.StatusBadRequest {
		t.Errorf("%s", got.Status)
	}
	if got := ask(t, "POST", url, h.User, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta("{}")+`}}`); got.StatusCode != http.StatusBadRequest {
		t.Errorf("without headers: %s %s", got.Status, bodyOf(t, got))
	}
	if got := ask(t, "GET", url, h.User, "", "Mcp-Protocol-Version", "2026-07-28"); got.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%s", got.Status)
	}
	begin(t, url, h.User)
}

// meta is what each request of 2026-07-28 says of its client.
func meta(capabilities string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
}

// modern sends a request of 2026-07-28.
func (h restarting) modern(t *testing.T, url, method, name, params, capabilities string, more ...string) *http.Response {
	t.Helper()
	headers := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return ask(t, "POST", url, h.User, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+meta(capabilities)+`}}`, append(headers, more...)...)
}

// TestTasks has a client that knows tasks begin programs, and asks another server
// how they go.
func TestTasks(t *testing.T) {
	h := newRestarting(t)
	first := h.server(t, 0)
	const knows = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	type task struct {
		ResultType, TaskID, Status string
		TTL                        *int `json:"ttlMs"`
		StructuredContent          struct{ Stdout string }
		Result                     struct {
			StructuredContent struct{ Stdout string }
		}
	}
	read := func(resp *http.Response) (answer struct {
		Result task
		Error  struct{ Code int }
	}) {
		t.Helper()
		text := bodyOf(t, resp)
		if err := json.Unmarshal([]byte(text[max(0, strings.Index(text, "{")):]), &answer); err != nil {
			t.Fatalf("%s %s %v", resp.Status, text, err)
		}
		return answer
	}
	run := func(code, capabilities string) task {
		t.Helper()
		return read(h.modern(t, first, "tools/call", "execute_code", `"name":"execute_code","arguments":{"language":"bash","code":"`+code+`"},`, capabilities)).Result
	}
	about := func(url, method, id, capabilities string) *http.Response {
		t.Helper()
		return h.modern(t, url, method, id, `"taskId":"`+id+`",`, capabilities)
	}
	if got := run("echo quick", knows); got.ResultType != "complete" || got.StructuredContent.Stdout != "quick\n" {
		t.Errorf("%+v", got)
	}
	if got := run("sleep 3s; echo slow", "{}"); got.ResultType != "complete" || got.StructuredContent.Stdout != "slow\n" {
		t.Errorf("one that does not know tasks: %+v", got)
	}
	made := run("sleep 4s; echo slow", knows)
	if made.ResultType != "task" || made.Status != "working" || made.TaskID == "" {
		t.Fatalf("%+v", made)
	}
	second := h.server(t, 0)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got := read(about(second, "tasks/get", made.TaskID, knows)).Result
		if got.Status == "completed" {
			if got.ResultType != "complete" || got.Result.StructuredContent.Stdout != "slow\n" {
				t.Errorf("%+v", got)
			}
			break
		}
		if got.Status != "working" || time.Now().After(deadline) {
			t.Fatalf("%+v", got)
		}
	}
	made = run("sleep 60s", knows)
	for range 2 {
		if got := read(about(second, "tasks/cancel", made.TaskID, knows)); got.Result.ResultType != "complete" || got.Error.Code != 0 {
			t.Errorf("%+v", got)
		}
	}
	for deadline := time.Now().Add(time.Minute); read(about(second, "tasks/get", made.TaskID, knows)).Result.Status != "cancelled"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not cancelled")
		}
	}
	// Others know of no tasks, and not of this one.
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		if got := about(second, method, made.TaskID, "{}"); got.StatusCode != http.StatusBadRequest || read(got).Error.Code != -32021 {
			t.Errorf("%s: %s", method, got.Status)
		}
		if got := read(about(second, method, string(engi.NewExecutionID()), knows)); got.Error.Code != -32602 {
			t.Errorf("%s of none: %+v", method, got)
		}
		if got := h.modern(t, second, method, "other", `"taskId":"`+made.TaskID+`",`, knows); got.StatusCode != http.StatusBadRequest || read(got).Error.Code != -32020 {
			t.Errorf("%s with a wrong header: %s", method, got.Status)
		}
	}
	h.User = h.Other
	if got := read(about(second, "tasks/get", made.TaskID, knows)); got.Error.Code != -32602 {
		t.Errorf("of another owner: %+v", got)
	}
}
