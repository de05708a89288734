package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/mcp"
	"github.com/engi-dev/engi/test/apitest"
)

type carrying struct{ secret string }

func (c carrying) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+c.secret)
	return http.DefaultTransport.RoundTrip(r)
}

func serve(t *testing.T) (*apitest.Fixture, string) {
	t.Helper()
	w, _, url := serveAll(t)
	return w, url
}

// serveAll also returns the services, which take the empty owner for everybody.
func serveAll(t *testing.T) (*apitest.Fixture, tool.Services, string) {
	t.Helper()
	w := apitest.New(nil)
	t.Cleanup(w.Close)
	sessions := &apitest.Sessions{Workspaces: w.Workspaces}
	services := tool.Services{Executions: w.Executions, Sandboxes: w.Sandboxes, Sessions: sessions, Docs: &apitest.Docs{Sessions: sessions}, Apps: w.Apps, Workspaces: w.Workspaces, Workflows: w.Workflows}
	s, err := mcp.New(mcp.Options{
		Services: services, Keys: w.Keys, Clients: w.Clients, Version: "1",
		URL:   func(id engi.SandboxID, port int) string { return fmt.Sprintf("http://%d-%s.test", port, id.Label()) },
		Pages: &apitest.Pages{Sessions: sessions}, View: []byte(script),
	})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return w, services, web.URL
}

func connect(t *testing.T, url, secret string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: carrying{secret}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func text(r *sdk.CallToolResult) (all string) {
	for _, c := range r.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			all += t.Text
		}
	}
	return all
}

func use(t *testing.T, c *sdk.ClientSession, name string, args any) string {
	t.Helper()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if r.IsError {
		t.Fatalf("%s: %s", name, text(r))
	}
	return text(r)
}

type args = map[string]any

func TestEveryTool(t *testing.T) {
	w, url := serve(t)
	c := connect(t, url, w.User, showing())
	var names []string
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, x.Name)
		if x.Description == "" || x.InputSchema == nil || x.Annotations == nil {
			t.Errorf("%s is described as %+v", x.Name, x)
		}
		if !mcp.Known(x.Name) {
			t.Errorf("nobody has said what %s does", x.Name)
		}
	}
	var made struct{ Sandbox string }
	if err := json.Unmarshal([]byte(use(t, c, "create_sandbox", args{"metadata": args{"a": "b"}})), &made); err != nil {
		t.Fatal(err)
	}
	id := made.Sandbox
	var talk struct{ Session string }
	if err := json.Unmarshal([]byte(use(t, c, "create_session", args{"name": "s"})), &talk); err != nil {
		t.Fatal(err)
	}
	used := []string{"create_sandbox", "create_session"}
	for _, step := range []struct {
		name string
		args args
		want string
	}{
		{"list_sandboxes", nil, id},
		{"list_sessions", nil, talk.Session},
		{"write_file", args{"sandbox": id, "path": "/workspace/a.txt", "content": "one\ntwo\n"}, "created"},
		{"edit_file", args{"sandbox": id, "path": "/workspace/a.txt", "edits": []args{{"old": "two", "new": "zwei"}}}, "1 replacement"},
		{"read_file", args{"sandbox": id, "path": "/workspace/a.txt"}, "zwei"},
		{"list_files", args{"sandbox": id, "path": "/workspace"}, "a.txt"},
		{"glob", args{"sandbox": id, "pattern": "**/*.txt", "dir": "/workspace"}, "/workspace/a.txt"},
		{"grep", args{"sandbox": id, "pattern": "zw.i", "path": "/workspace"}, ":2:zwei"},
		{"glob", args{"sandbox": id, "pattern": "*.txt"}, "/workspace/a.txt"},
		{"grep", args{"sandbox": id, "pattern": "zw.i", "glob": "*.txt"}, "1 matches in 1 files"},
		{"run_command", args{"sandbox": id, "command": "echo $((6*7)); echo oops >&2; exit 0"}, "stdout:\n42"},
		{"get_port_url", args{"sandbox": id, "port": 5173}, "http://5173-"},
		{"remove_file", args{"sandbox": id, "path": "/workspace/a.txt"}, "removed"},
		{"execute_code", args{"language": "bash", "code": "echo hello\n"}, "exit code 0"},
		{"run_code", args{"session": talk.Session, "code": "1+1"}, "success"},
		{"save_module", args{"session": talk.Session, "path": "lib/frobnicate.ts", "description": "frobnicates", "exports": []string{"f"}, "usage": "import { f } from './lib/frobnicate.ts'"}, "saved"},
		{"search_docs", args{"session": talk.Session, "query": "frobnicates"}, "lib/frobnicate.ts"},
		{"search_docs", args{"query": "frobnicates"}, "nothing found"},
		{"show_page", args{"session": talk.Session}, "empty"},
		{"act_on_page", args{"session": talk.Session, "action": "demo-counter"}, `id="count"`},
		{"watch_page", args{"session": talk.Session}, "1 updates"},
		{"create_app", args{"name": "shop"}, "app shop (app_"},
		{"apply_to_app", args{"app": "shop", "text": "<file path=\"a.css\">a</file>"}, "revision 2 of app shop is served"},
		{"read_app", args{"app": "shop"}, "a.css (1 bytes)"},
		{"create_workspace", args{"name": "desk", "services": []string{"postgres", "mongodb"}}, "workspace desk from base is"},
		{"write_workspace", args{"workspace": "desk", "files": []args{{"path": "a.txt", "content": "a"}}}, "revision 1"},
		{"move_workspace_file", args{"workspace": "desk", "from": "a.txt", "to": "b.txt"}, "revision 2"},
		{"read_workspace", args{"workspace": "desk", "path": "b.txt"}, "a"},
		{"add_service", args{"workspace": "desk", "type": "redis"}, "redis.workspace.internal"},
		{"run_sql", args{"workspace": "desk", "query": "select 42 as n"}, "[42]"},
		{"describe_tables", args{"workspace": "desk"}, "table public.orders"},
		{"query_collection", args{"workspace": "desk", "collection": "orders", "filter": `{"total": 7}`}, "(1 documents)"},
		{"enable_preview", args{"workspace": "desk"}, "It is for who works in the workspace."},
		{"run_redis_command", args{"workspace": "desk", "command": []string{"PING"}}, "PONG"},
		{"get_review_feedback", args{"workspace": "desk"}, "There is no review yet."},
		{"submit_for_review", args{"workspace": "desk", "notes": "done"}, "revision 2 is submitted; it waits for the reviewer"},
		{"submit_review", args{"workspace": "desk", "approved": false, "feedback": "no"}, "in stage revision"},
		{"run_command", args{"workspace": "desk", "command": "echo from the working copy"}, "from the working copy"},
		{"end_session", args{"session": talk.Session}, "ended"},
		{"stop_sandbox", args{"sandbox": id}, "stopped"},
	} {
		if step.name == "get_review_feedback" {
			if _, err := w.Workflows.Create(t.Context(), engi.WorkflowSpec{Viewer: "ann", Workspace: "desk"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := use(t, c, step.name, step.args); !strings.Contains(got, step.want) {
			t.Errorf("%s: %q", step.name, got)
		}
		used = append(used, step.name)
	}
	slices.Sort(names)
	slices.Sort(used)
	used = slices.Compact(used)
	if !slices.Equal(names, used) {
		t.Errorf("there are %v, used were %v", names, used)
	}
}

func TestRefusals(t *testing.T) {
	w, url := serve(t)
	ann, bob := connect(t, url, w.User, nil), connect(t, url, w.Other, nil)
	var made struct{ Sandbox string }
	if err := json.Unmarshal([]byte(use(t, ann, "create_sandbox", nil)), &made); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		tool string
		args any
		want string
	}{
		"another's":     {"run_command", args{"sandbox": made.Sandbox, "command": "id"}, "no sandbox"},
		"another's end": {"stop_sandbox", args{"sandbox": made.Sandbox}, "no sandbox"},
		"nowhere":       {"run_command", args{"command": "id"}, "sandbox or session"},
		"both":          {"read_file", args{"sandbox": made.Sandbox, "session": "x", "path": "/x"}, "either sandbox or session"},
		"no ID":         {"read_file", args{"sandbox": "../../x", "path": "/x"}, "not a sandbox ID"},
		"wrong type":    {"read_file", args{"sandbox": 7, "path": "/x"}, "not a string"},
		"unknown":       {"execute_code", args{"language": "cobol", "code": "x"}, "python"},
		"extra":         {"execute_code", args{"language": "bash", "code": "x", "sudo": true}, "sudo"},
		"missing":       {"execute_code", args{"language": "bash"}, "code"},
	} {
		r, err := bob.CallTool(t.Context(), &sdk.CallToolParams{Name: c.tool, Arguments: c.args})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !r.IsError || !strings.Contains(text(r), c.want) {
			t.Errorf("%s: %v %q", name, r.IsError, text(r))
		}
	}
	if _, err := bob.CallTool(t.Context(), &sdk.CallToolParams{Name: "rm_rf"}); err == nil {
		t.Error("a tool that is not there answers")
	}
	for _, uri := range []string{"engi://sandboxes/" + made.Sandbox + "/files/etc/passwd", "engi://sandboxes/x/files/etc", "engi://executions/" + string(engi.NewExecutionID()) + "/output", "file:///etc/passwd"} {
		if _, err := bob.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s is shown", uri)
		}
	}
	// Keys: none, a wrong one, one that may only read.
	for _, secret := range []string{"", "engi_wrong"} {
		if _, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: carrying{secret}}}, nil); err == nil {
			t.Errorf("key %q opens", secret)
		}
	}
	_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	reader := connect(t, url, secret, nil)
	if got := use(t, reader, "list_sandboxes", nil); !strings.Contains(got, made.Sandbox) {
		t.Errorf("%q", got)
	}
	r, err := reader.CallTool(t.Context(), &sdk.CallToolParams{Name: "stop_sandbox", Arguments: args{"sandbox": made.Sandbox}})
	if err != nil || !r.IsError || !strings.Contains(text(r), "may only read") && !strings.Contains(text(r), "scope") {
		t.Errorf("%v %v", text(r), err)
	}
}

// A key cannot use the MCP session of another.
func TestSessionsOfClients(t *testing.T) {
	w, url := serve(t)
	session := begin(t, url, w.User)
	if resp := ask(t, "POST", url, w.Other, list, session...); resp.StatusCode != http.StatusNotFound {
		t.Errorf("session %q is %s for another key", session[1], resp.Status)
	}
}

func TestProgressAndGivingUp(t *testing.T) {
	w, url := serve(t)
	var mu sync.Mutex
	var told string
	c := connect(t, url, w.User, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
		mu.Lock()
		told += n.Params.Message
		mu.Unlock()
	}})
	var made struct{ Sandbox string }
	if err := json.Unmarshal([]byte(use(t, c, "create_sandbox", nil)), &made); err != nil {
		t.Fatal(err)
	}
	p := &sdk.CallToolParams{Name: "run_command", Arguments: args{"sandbox": made.Sandbox, "command": "for i in 1 2 3; do echo line $i; sleep 0.2; done"}}
	p.SetProgressToken("t1")
	if r, err := c.CallTool(t.Context(), p); err != nil || r.IsError {
		t.Fatalf("%v %v", r, err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		got := told
		mu.Unlock()
		if strings.Contains(got, "line 1") && strings.Contains(got, "line 3") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("told was %q", got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	// Whoever called leaves when its output has come.
	go func() {
		defer cancel()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			got := told
			mu.Unlock()
			if strings.Contains(got, "it runs") {
				return
			}
		}
	}()
	p = &sdk.CallToolParams{Name: "run_command", Arguments: args{"sandbox": made.Sandbox, "command": "sleep 300 & echo it runs; wait"}}
	p.SetProgressToken("t2")
	if _, err := c.CallTool(ctx, p); err == nil {
		t.Error("a call that was given up answers")
	}
	// What it was running ends.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		g, release, err := w.Sandboxes.Enter(t.Context(), "ann", engi.SandboxID(made.Sandbox))
		if err != nil {
			t.Fatal(err)
		}
		list, err := g.Processes(t.Context())
		release()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(p engi.ProcessInfo) bool { return !p.Ended }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %+v", list)
		}
	}
	if got := use(t, c, "run_command", args{"sandbox": made.Sandbox, "command": "echo still here"}); !strings.Contains(got, "still here") {
		t.Errorf("%q", got)
	}
}

func TestResources(t *testing.T) {
	w, url := serve(t)
	c := connect(t, url, w.User, nil)
	var made struct{ Sandbox string }
	if err := json.Unmarshal([]byte(use(t, c, "create_sandbox", nil)), &made); err != nil {
		t.Fatal(err)
	}
	use(t, c, "write_file", args{"sandbox": made.Sandbox, "path": "/workspace/a.md", "content": "# hello"})
	base := "engi://sandboxes/" + made.Sandbox + "/files"
	for _, name := range []string{"zwei Wörter.md", "100%.md", "a+b?c#d.md"} {
		use(t, c, "write_file", args{"sandbox": made.Sandbox, "path": "/workspace/" + name, "content": "in " + name})
	}
	for uri, want := range map[string]string{
		base + "/workspace/a.md": "# hello", base + "/workspace": "a.md",
		base + "/workspace/zwei%20W%C3%B6rter.md": "in zwei Wörter.md", base + "/workspace/zwei Wörter.md": "in zwei Wörter.md",
		base + "/workspace/100%25.md": "in 100%.md", base + "/workspace/a%2Bb%3Fc%23d.md": "in a+b?c#d.md",
	} {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || !strings.Contains(r.Contents[0].Text, want) {
			t.Errorf("%s: %+v %v", uri, r, err)
		}
	}
	g, release, err := w.Sandboxes.Enter(t.Context(), "ann", engi.SandboxID(made.Sandbox))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for tag, command := range map[string]string{"ended": "echo said; echo oops >&2", "going": "echo said; exec sleep 60"} {
		p, err := g.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", command}, Tag: tag})
		if err != nil {
			t.Fatal(err)
		}
		for chunk, err := range p.Output(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(chunk.Data), "said") {
				break
			}
		}
	}
	logs := "engi://sandboxes/" + made.Sandbox + "/processes/"
	for uri, want := range map[string]string{logs + "ended/log": "said\n", logs + "going/log": "said\n", logs + "-/log": "going"} {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || !strings.Contains(r.Contents[0].Text, want) {
			t.Errorf("%s: %+v %v", uri, r, err)
		}
	}
	for _, uri := range []string{logs + "none/log", logs + "../log", logs + "/log", logs + "ended"} {
		if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s is shown", uri)
		}
	}
	n := 0
	for _, err := range c.ResourceTemplates(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d templates of resources", n)
	}
}

// Pages whose host names point here are refused.
func TestForeignHostNamesAreRefused(t *testing.T) {
	w, url := serve(t)
	for name, value := range map[string]string{"Host": "evil.example.com", "Origin": "http://evil.example.com"} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.User)
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s: %s", name, value, resp.Status)
		}
	}
}

// Bodies that are not messages of the protocol are refused.
func TestBrokenRequests(t *testing.T) {
	w, url := serve(t)
	c := connect(t, url, w.User, nil)
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for name, body := range map[string]string{
		"nothing": "", "half": `{"jsonrpc":"2.0","id":1`, "no object": `7`, "null": `null`, "empty batch": `[]`, "version": `{"jsonrpc":"1.0","id":1,"method":"ping"}`,
		"method": `{"jsonrpc":"2.0","id":1,"method":"no/such"}`, "id": `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "deep": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + deep + `}`,
		"no UTF-8": "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"\xff\xfe\"}}", "params": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"all"}`,
		"large": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + strings.Repeat("x", 17<<20) + `"}}`,
		"batch": "[" + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 1000) + `{}]`, "answer": `{"jsonrpc":"2.0","id":99,"result":{}}`,
	} {
		for _, session := range []string{"", c.ID(), "made-up"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range map[string]string{"Authorization": "Bearer " + w.User, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
				if v != "" {
					req.Header.Set(k, v)
				}
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				continue // the server hung up on too much
			}
			answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			resp.Body.Close()
			if err != nil || len(answer) > 100<<10 || resp.StatusCode >= 500 || resp.StatusCode == 200 && !strings.Contains(string(answer), `"error"`) {
				t.Errorf("%s in session %.10q: %s %.200q %v", name, session, resp.Status, answer, err)
			}
		}
	}
	if got := use(t, c, "execute_code", args{"language": "bash", "code": "echo hello\n"}); !strings.Contains(got, "exit code 0") {
		t.Errorf("%q", got)
	}
}

func TestStreamsEndWithTheirKey(t *testing.T) {
	w, url := serve(t)
	k, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session := ""
	send := func(method, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			req.Header.Set(k, v)
		}
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode >= 400 {
			t.Fatalf("%s: %s", method, resp.Status)
		}
		return resp
	}
	resp := send("POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	resp.Body.Close()
	session = resp.Header.Get("Mcp-Session-Id")
	send("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`).Body.Close()
	stream := send("GET", "")
	defer stream.Body.Close()
	if err := w.Keys.Revoke(ctx, "ann", k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream.Body); ctx.Err() != nil {
		t.Errorf("the stream of a revoked key stays open: %v", err)
	}
}

// TestStructuredResults holds what tools return to programs against the schemas
// that they announce, and arguments against the values to choose from.
func TestStructuredResults(t *testing.T) {
	w, url := serve(t)
	c := connect(t, url, w.User, nil)
	tools := map[string]*sdk.Tool{}
	for x, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		tools[x.Name] = x
	}
	call := func(name string, a args) map[string]any {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: a})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		raw, err := json.Marshal(tools[name].OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		schema, err := llm.ParseSchema(raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, err := json.Marshal(r.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := schema.Check(string(data)); err != nil {
			t.Errorf("%s: %s: %v", name, data, err)
		}
		out, _ := r.StructuredContent.(map[string]any)
		return out
	}
	box := call("create_sandbox", nil)["sandbox"]
	talk := call("create_session", args{"name": "s"})["session"]
	if got, _ := call("list_sandboxes", nil)["sandboxes"].([]any); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if got, _ := call("list_sessions", nil)["sessions"].([]any); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if got, _ := call("get_port_url", args{"sandbox": box, "port": 80})["url"].(string); !strings.HasPrefix(got, "http://80-") {
		t.Errorf("%v", got)
	}
	if got := call("run_command", args{"sandbox": box, "command": "echo out; echo err >&2; exit 3"}); got["exit_code"] != 3.0 || got["stdout"] != "out\n" || got["stderr"] != "err\n" || got["truncated"] != false {
		t.Errorf("%v", got)
	}
	if got := call("execute_code", args{"language": "bash", "code": "echo hello\n"}); got["exit_code"] != 0.0 || got["stdout"] != "hello\n" {
		t.Errorf("%v", got)
	}
	if got := call("run_code", args{"session": talk, "code": "1+1"}); got["success"] != true {
		t.Errorf("%v", got)
	}
	var schema struct {
		Properties struct{ Language struct{ Enum []string } }
	}
	raw, err := json.Marshal(tools["execute_code"].InputSchema)
	if err != nil || json.Unmarshal(raw, &schema) != nil || !slices.Contains(schema.Properties.Language.Enum, "python") {
		t.Errorf("%s %v", raw, err)
	}
	for name, want := range map[string][4]bool{ // read-only, destructive, idempotent, open world
		"list_sandboxes": {true, false, true, false}, "create_sandbox": {false, false, false, false}, "run_command": {false, true, false, true},
		"write_file": {false, true, true, false}, "stop_sandbox": {false, true, true, false}, "execute_code": {false, false, false, true},
	} {
		a := tools[name].Annotations
		if got := [4]bool{a.ReadOnlyHint, *a.DestructiveHint, a.IdempotentHint, *a.OpenWorldHint}; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
