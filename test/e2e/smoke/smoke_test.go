// Package smoke uses, once each, the features that have no other test in the
// gate: E2B's protocol over plain HTTP, MCP, SSH, an app, a workspace, a
// workflow, the dashboard's files and a webhook. It needs a server, real sandboxes and the template base, and
// no third-party program or package.
package smoke

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

const config = `[sandbox]
enabled = true
template = "base"
[ssh]
listen = "127.0.0.1:0"
[webhooks]
private = ["127.0.0.1"]
`

// A header is a request header: name, value.
type header [2]string

// ask sends a request to the server and returns the status and the body of the
// response. A header named Host replaces the host of the request.
func ask(t *testing.T, s *env.Server, method, path, body string, headers ...header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		if h[0] == "Host" {
			r.Host = h[1]
		}
		r.Header.Set(h[0], h[1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// TestFeatures uses every feature on one server.
func TestFeatures(t *testing.T) {
	hooks := newReceiver(t)
	s := env.Serve(t, env.ServerOptions{Config: config})
	// The webhook comes first, so that it gets the events of all that follows.
	hook, err := s.CreateWebhook(t.Context(), v1.WebhookRequest{URL: hooks.URL, Types: []string{"sandbox.*"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("E2B", func(t *testing.T) { useE2B(t, s) })
	t.Run("MCP", func(t *testing.T) { useMCP(t, s) })
	t.Run("SSH", func(t *testing.T) { useSSH(t, s) })
	t.Run("dashboard", func(t *testing.T) { openDashboard(t, s) })
	t.Run("webhook", func(t *testing.T) { hooks.check(t, hook) })
	t.Run("workspace", func(t *testing.T) { fillWorkspace(t, s) })
	t.Run("workflow", func(t *testing.T) { reviewWork(t, s) })
	t.Run("app", func(t *testing.T) { buildApp(t, s) })
}

// useE2B speaks E2B's protocol like its clients: it creates a sandbox, writes
// a file, runs a command that reads it, and ends the sandbox.
func useE2B(t *testing.T, s *env.Server) {
	key := header{"X-API-KEY", s.Key}
	code, body := ask(t, s, "POST", "/sandboxes", `{"templateID":"base","timeout":300,"secure":true}`, key, header{"Content-Type", "application/json"})
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(body), &made); code != http.StatusCreated || err != nil || made.SandboxID == "" || made.EnvdAccessToken == "" {
		t.Fatalf("create: %d %s", code, body)
	}
	inside := []header{{"E2b-Sandbox-Id", made.SandboxID}, {"E2b-Sandbox-Port", "49983"}, {"X-Access-Token", made.EnvdAccessToken}}
	const text = "written by plain HTTP"
	if code, body = ask(t, s, "POST", "/files?username=user&path=note.txt", text, append(inside, header{"Content-Type", "application/octet-stream"})...); code != http.StatusOK || !strings.Contains(body, "/home/user/note.txt") {
		t.Fatalf("write a file: %d %s", code, body)
	}
	if code, body = ask(t, s, "GET", "/files?username=user&path=note.txt", "", inside...); code != http.StatusOK || body != text {
		t.Errorf("read the file: %d %q", code, body)
	}
	start := `{"process":{"cmd":"/bin/bash","args":["-l","-c","cat note.txt; exit 3"]},"stdin":false}`
	code, body = ask(t, s, "POST", "/process.Process/Start", frame(start), append(inside,
		header{"Content-Type", "application/connect+json"}, header{"Connect-Protocol-Version", "1"},
		header{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"))})...)
	stdout, exit, ended := "", -1, false
	for _, message := range frames(t, body) {
		var m struct {
			Event struct {
				Data *struct{ Stdout []byte }
				End  *struct{ ExitCode int }
			}
		}
		if err := json.Unmarshal(message, &m); err != nil {
			t.Fatalf("%v: %s", err, message)
		}
		if m.Event.Data != nil {
			stdout += string(m.Event.Data.Stdout)
		}
		if m.Event.End != nil {
			exit, ended = m.Event.End.ExitCode, true
		}
	}
	if code != http.StatusOK || !ended || stdout != text || exit != 3 {
		t.Errorf("run a command: %d, output %q, exit code %d, in %q", code, stdout, exit, body)
	}
	if code, body = ask(t, s, "GET", "/files?username=user&path=note.txt", "", inside[:2]...); code != http.StatusUnauthorized {
		t.Errorf("read the file without a token: %d %s", code, body)
	}
	if code, body = ask(t, s, "DELETE", "/sandboxes/"+made.SandboxID, "", key); code != http.StatusNoContent {
		t.Errorf("end the sandbox: %d %s", code, body)
	}
	if code, body = ask(t, s, "GET", "/sandboxes/"+made.SandboxID, "", key); code != http.StatusNotFound {
		t.Errorf("after its end: %d %s", code, body)
	}
}

// frame wraps a message for a Connect stream: one byte of flags and four bytes
// of length, big-endian, before it.
func frame(message string) string {
	head := make([]byte, 5)
	binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
	return string(head) + message
}

// frames returns the messages of a Connect stream, which must end without an
// error.
func frames(t *testing.T, stream string) (all []json.RawMessage) {
	t.Helper()
	in := []byte(stream)
	for len(in) >= 5 {
		n := int(binary.BigEndian.Uint32(in[1:]))
		if n > len(in)-5 {
			break
		}
		last, message := in[0]&2 != 0, in[5:5+n]
		in = in[5+n:]
		if last {
			if string(message) != "{}" || len(in) != 0 {
				t.Fatalf("the stream ends with %s", message)
			}
			return all
		}
		all = append(all, message)
	}
	t.Fatalf("the stream has no end: %q", stream)
	return nil
}

// bearer sends a key with every request.
type bearer string

func (key bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(key))
	return http.DefaultTransport.RoundTrip(r)
}

// useMCP runs code through the tools of the MCP server, with the protocol's Go
// SDK.
func useMCP(t *testing.T, s *env.Server) {
	c, err := mcp.NewClient(&mcp.Implementation{Name: "smoke", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Key)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	named := map[string]bool{}
	for tool, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		named[tool.Name] = true
	}
	for _, name := range []string{"execute_code", "create_sandbox", "run_command", "read_file", "write_file"} {
		if !named[name] {
			t.Errorf("no tool %s among %v", name, named)
		}
	}
	res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"language": "python", "code": "print(6*7)"}})
	if err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal(res.Content)
	if err != nil || res.IsError || !strings.Contains(string(said), "42") {
		t.Errorf("execute_code: %s, %v", said, err)
	}
}

// useSSH runs a command in a session over the SSH port, and one that fails; a
// key unknown to the server is refused.
func useSSH(t *testing.T, s *env.Server) {
	if _, err := s.CreateSession(t.Context(), v1.SessionRequest{Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	signer := newSigner(t)
	if _, err := s.CreateSSHKey(t.Context(), v1.SSHKeyRequest{Name: "smoke", PublicKey: string(ssh.MarshalAuthorizedKey(signer.PublicKey()))}); err != nil {
		t.Fatal(err)
	}
	about, err := s.SSHServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(about.HostKey))
	if err != nil {
		t.Fatal(err)
	}
	dial := func(with ssh.Signer) (*ssh.Client, error) {
		return ssh.Dial("tcp", about.Address, &ssh.ClientConfig{User: "dev", Auth: []ssh.AuthMethod{ssh.PublicKeys(with)}, HostKeyCallback: ssh.FixedHostKey(host)})
	}
	if c, err := dial(newSigner(t)); err == nil {
		c.Close()
		t.Error("a key that is unknown gets in")
	}
	c, err := dial(signer)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for line, want := range map[string]int{"read -r word; echo got $word; id -un": 0, "exit 7": 7} {
		x, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		x.Stdin = strings.NewReader("in\n")
		out, err := x.Output(line)
		code := 0
		if exit, ok := err.(*ssh.ExitError); ok {
			code = exit.ExitStatus()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want || want == 0 && string(out) != "got in\nuser\n" {
			t.Errorf("%s: %q, exit code %d", line, out, code)
		}
	}
}

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// openDashboard loads the dashboard's page, and every file that the page names.
func openDashboard(t *testing.T, s *env.Server) {
	code, page := ask(t, s, "GET", "/", "", header{"Accept", "text/html"})
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, page)
	}
	files := regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(page, -1)
	scripts := 0
	for _, f := range files {
		code, body := ask(t, s, "GET", f[1], "")
		if code != http.StatusOK || body == "" {
			t.Errorf("%s: %d with %d bytes", f[1], code, len(body))
		}
		if strings.HasSuffix(f[1], ".js") {
			scripts++
		}
	}
	if scripts == 0 {
		t.Errorf("the page names no script; was the dashboard built (make web)?\n%s", page)
	}
}

// A receiver keeps the requests that webhooks send.
type receiver struct {
	*httptest.Server
	got chan delivery
}

// A delivery is one request of a webhook.
type delivery struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{got: make(chan delivery, 1000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		select {
		case r.got <- delivery{q.Header, body}:
		default: // more deliveries than the test waits for
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// check waits for the event that a sandbox runs, and checks the
// signature of each request according to Standard Webhooks.
func (r *receiver) check(t *testing.T, hook v1.Webhook) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(hook.Secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		var d delivery
		select {
		case d = <-r.got:
		case <-ctx.Done():
			t.Fatal("no sandbox.running came")
		}
		h := hmac.New(sha256.New, key)
		fmt.Fprintf(h, "%s.%s.%s", d.header.Get("Webhook-Id"), d.header.Get("Webhook-Timestamp"), d.body)
		if got := d.header.Get("Webhook-Signature"); got != "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)) {
			t.Fatalf("signature %q of %s", got, d.body)
		}
		var e v1.Event
		if err := json.NewDecoder(bytes.NewReader(d.body)).Decode(&e); err != nil || e.ID != d.header.Get("Webhook-Id") {
			t.Fatalf("%s, %v", d.body, err)
		}
		if e.Type == "sandbox.running" {
			return
		}
	}
}

// buildApp creates an app on the template node-api, changes it, breaks it,
// rolls it back, and kills the server: each time the app serves the last
// good revision.
func buildApp(t *testing.T, s *env.Server) {
	ctx := t.Context()
	// The builtin node-api is based on a template with a browser, which comes from the network.
	definition, err := os.ReadFile("../../../internal/sandbox/disk/builtin/node-api.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plain := regexp.MustCompile(`(?m)^base: .*$`).ReplaceAll(definition, []byte("base: template:base"))
	plain = regexp.MustCompile(`(?m)^name: .*$`).ReplaceAll(plain, []byte("name: node-api-plain"))
	file := filepath.Join(env.Dir(t), "node-api-plain.yaml")
	if err := os.WriteFile(file, plain, 0o644); err != nil {
		t.Fatal(err)
	}
	s.Run("template", "build", file)
	app, err := s.CreateApp(ctx, v1.AppRequest{Name: "notes", Template: "node-api-plain"})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		t.Helper()
		u, err := url.Parse(app.PreviewURL)
		if err != nil {
			t.Fatal(err)
		}
		code, body := ask(t, s, "GET", path, "", header{"Host", u.Host})
		if code != http.StatusOK {
			t.Fatalf("GET %s: %d %s", path, code, body)
		}
		return body
	}
	apply := func(text string) v1.AppUpdate {
		t.Helper()
		seq, err := s.ApplyToApp(ctx, app.ID, v1.ApplyRequest{Text: text}, "")
		if err != nil {
			t.Fatal(err)
		}
		for u, err := range s.WatchApp(ctx, app.ID, seq) {
			if err != nil {
				t.Fatal(err)
			}
			if u.Apply == seq && (u.Type == v1.AppDone || u.Type == v1.AppError) {
				return u
			}
		}
		t.Fatal("the stream ended before the apply")
		return v1.AppUpdate{}
	}
	server := func(says string) string {
		return "<file path=\"server.js\">\nimport { createServer } from 'node:http'\ncreateServer((request, response) => response.end('" + says + "')).listen(3000, '127.0.0.1')\n</file>"
	}
	if routes := get("/"); !strings.Contains(routes, "/api/notes") {
		t.Errorf("the new app serves %s", routes)
	}
	if u := apply(server("second")); u.Type != v1.AppDone || u.Revision != 2 || get("/") != "second" {
		t.Errorf("the apply ended with %+v and serves %s", u, get("/"))
	}
	if u := apply("<file path=\"server.js\">\nthrow new Error('broken')\n</file>"); u.Type != v1.AppError || u.Error == nil || get("/") != "second" {
		t.Errorf("the broken apply ended with %+v and serves %s", u, get("/"))
	}
	if r, err := s.RollbackApp(ctx, app.ID, 1); err != nil || !strings.Contains(get("/"), "/api/notes") {
		t.Errorf("rolled back: %+v, %v; it serves %s", r, err, get("/"))
	}
	if _, err := s.RollbackApp(ctx, app.ID, 2); err != nil {
		t.Error(err)
	}
	s.Kill()
	s.Start()
	if app, err = s.OpenApp(ctx, app.ID); err != nil || app.State != v1.AppReady || get("/") != "second" {
		t.Errorf("after kill -9: %+v, %v; it serves %s", app, err, get("/"))
	}
	files, err := s.AppFiles(ctx, app.ID, client.AppFileFilter{Content: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files.Items {
		if f.Path == "server.js" && !strings.Contains(*f.Content, "second") {
			t.Errorf("the recorded server.js is %s", *f.Content)
		}
	}
	if err := s.RemoveApp(ctx, app.ID); err != nil {
		t.Error(err)
	}
}

// fillWorkspace writes files of a workspace through the API, in its sandbox and in a session there,
// queries its database, kills the server, restores an earlier revision, and clones the workspace
// with git.
func fillWorkspace(t *testing.T, s *env.Server) {
	ctx := t.Context()
	text := func(path, content string) []v1.WorkspaceWrite {
		return []v1.WorkspaceWrite{{Path: path, Content: &content}}
	}
	s.Run("template", "build", "service-postgres")
	x, err := s.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "shop", Files: text("index.html", "one\n"), Services: []v1.ServiceRequest{{Type: "postgres"}}})
	if err != nil || x.Revision != 1 {
		t.Fatalf("%+v, %v", x, err)
	}
	if r, err := s.WriteWorkspace(ctx, "shop", v1.WriteRequest{Files: text("index.html", "two\n"), Base: 1}); err != nil || r.Number != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := s.WriteWorkspace(ctx, "shop", v1.WriteRequest{Files: text("index.html", "stale\n"), Base: 1}); !client.IsKind(err, v1.Conflict) {
		t.Errorf("a write that has seen revision 1 only: %v", err)
	}
	if x, err = s.StartWorkspace(ctx, "shop"); err != nil || x.SandboxID == "" {
		t.Fatalf("%+v, %v", x, err)
	}
	if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: "cat index.html && echo made inside > inside.txt"}); err != nil || p.Stdout != "two\n" {
		t.Errorf("in its sandbox: %+v, %v", p, err)
	}
	talk, err := s.CreateSession(ctx, v1.SessionRequest{Workspace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.RunCode(ctx, talk.ID, v1.CodeRequest{Code: `await Deno.writeTextFile("noted.txt", "noted\n"); export default await Deno.readTextFile("inside.txt")`}); err != nil || string(r.Result) != `"made inside\n"` {
		t.Errorf("a session in the workspace: %+v, %v", r, err)
	}
	if err := s.TerminateSession(ctx, talk.ID); err != nil {
		t.Error(err)
	}
	if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: "cat noted.txt"}); err != nil || p.Stdout != "noted\n" {
		t.Errorf("after the session: %+v, %v", p, err)
	}
	// Committed rows of a real PostgreSQL outlive the server, its sandbox and the workspace's sleep.
	query := func(sql, want string, args ...json.RawMessage) {
		t.Helper()
		r, err := s.Query(ctx, "shop", v1.QueryRequest{Text: sql, Args: args})
		rows, _ := json.Marshal(r.Rows)
		if err != nil || r.Error != nil || string(rows) != want {
			t.Errorf("%s: %s, %+v, %v; want %s", sql, rows, r.Error, err, want)
		}
	}
	query("CREATE TABLE orders (n int, price numeric)", "[]")
	query("INSERT INTO orders VALUES ($1, $2) RETURNING n", "[[1]]", json.RawMessage("1"), json.RawMessage(`"12.50"`))
	if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: "getent hosts postgres.workspace.internal"}); err != nil || !strings.Contains(p.Stdout, "postgres.workspace.internal") {
		t.Errorf("the name of the service in the sandbox: %+v, %v", p, err)
	}
	s.Run("template", "build", "node-api")
	app, err := s.CreateApp(ctx, v1.AppRequest{Template: "node-api", Workspace: "shop"})
	if err != nil || app.WorkspaceID != x.ID {
		t.Fatalf("%+v, %v", app, err)
	}
	connect := `node -e "require('net').connect(5432, 'postgres.workspace.internal').on('connect', () => { console.log('reached'); process.exit() })"`
	if p, err := s.Exec(ctx, app.SandboxID, v1.ProcessRequest{Command: connect}); err != nil || p.Stdout != "reached\n" {
		t.Errorf("an app of the workspace: %+v, %v", p, err)
	}
	if err := s.RemoveApp(ctx, app.ID); err != nil {
		t.Error(err)
	}
	// Another app is in the workspace's own sandbox, also after a kill of the server.
	app, err = s.CreateApp(ctx, v1.AppRequest{Workspace: "shop", Directory: "web", Start: `echo "of port $PORT" > index.html; exec python3 -m http.server "$PORT"`, Port: 8000})
	if err != nil || app.State != v1.AppReady || app.SandboxID != x.SandboxID {
		t.Fatalf("an app in the sandbox of the workspace: %+v, %v", app, err)
	}
	if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: "curl -s 127.0.0.1:8000; cat web/index.html"}); err != nil || p.Stdout != "of port 8000\nof port 8000\n" {
		t.Errorf("its server: %+v, %v", p, err)
	}
	s.Kill()
	s.Start()
	if app, err = s.OpenApp(ctx, app.ID); err != nil || app.State != v1.AppReady || app.SandboxID != x.SandboxID {
		t.Errorf("the app after kill -9: %+v, %v", app, err)
	}
	if err := s.RemoveApp(ctx, app.ID); err != nil {
		t.Error(err)
	}
	if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: "cat web/index.html; curl -s 127.0.0.1:8000"}); err != nil || p.Stdout != "of port 8000\n" {
		t.Errorf("after the removal of the app: %+v, %v", p, err)
	}
	query("SELECT n, price FROM orders", `[[1,12.50]]`)
	if _, err := s.StopWorkspace(ctx, "shop"); err != nil {
		t.Error(err)
	}
	if _, err := s.StartWorkspace(ctx, "shop"); err != nil {
		t.Error(err)
	}
	query("SELECT sum(price) FROM orders", `[[12.50]]`)
	if _, err := s.StopWorkspace(ctx, "shop"); err != nil {
		t.Error(err)
	}
	if r, err := s.RestoreWorkspace(ctx, "shop", 1, "index.html"); err != nil || r.Number < 4 {
		t.Errorf("restored: %+v, %v", r, err)
	}
	dir := env.Dir(t)
	clone := exec.CommandContext(ctx, "git", "clone", "-q", strings.Replace(s.URL, "//", "//engi:"+s.Key+"@", 1)+"/v1/workspaces/shop/git", dir)
	if out, err := clone.CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	for path, want := range map[string]string{"index.html": "one\n", "inside.txt": "made inside\n", "noted.txt": "noted\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("the clone has %s %q, %v", path, got, err)
		}
	}
	if err := s.RemoveWorkspace(ctx, "shop"); err != nil {
		t.Error(err)
	}
}

// reviewWork has work of a program in a sandbox reviewed, sent back and approved, over a kill of the server, until another program
// makes the approval void.
func reviewWork(t *testing.T, s *env.Server) {
	ctx := t.Context()
	x, err := s.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "reviewed"})
	if err == nil {
		x, err = s.StartWorkspace(ctx, x.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := func(command string) {
		t.Helper()
		if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Command: command}); err != nil || p.Stderr != "" {
			t.Fatalf("%s: %+v, %v", command, p, err)
		}
	}
	if _, err := s.ChangeWorkspace(ctx, x.ID, v1.WorkspaceUpdate{Share: []v1.Collaborator{{Owner: "maria", Role: v1.RoleReviewer}}}); err != nil {
		t.Fatal(err)
	}
	key, err := s.CreateKey(ctx, v1.KeyRequest{Owner: "maria"})
	if err != nil {
		t.Fatal(err)
	}
	maria := client.New(s.URL, key.Secret)
	w, err := s.CreateWorkflow(ctx, v1.WorkflowRequest{Workspace: x.ID, Task: "a page", Limits: v1.WorkflowLimits{Review: v1.Duration(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	want := func(stage string, w v1.Workflow, err error) v1.Workflow {
		t.Helper()
		if err != nil || w.Stage != stage {
			t.Fatalf("%+v, %v; want it in stage %s", w, err, stage)
		}
		return w
	}
	submit := func() v1.Workflow {
		t.Helper()
		w, err := s.SubmitForReview(ctx, w.ID, "done")
		return want(v1.WorkflowReview, w, err)
	}
	program("echo one > page.html")
	w = submit()
	back, err := maria.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "send_back", Feedback: "two, please"})
	want(v1.WorkflowRevision, back, err)
	program("echo two > page.html")
	w = submit()
	s.Kill()
	s.Start()
	maria = client.New(s.URL, key.Secret)
	if _, err := s.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "approve", Revision: w.Revision}); !client.IsKind(err, v1.Denied) {
		t.Errorf("the submitter approves: %v", err)
	}
	approved, err := maria.SubmitReview(ctx, w.ID, v1.ReviewRequest{Decision: "approve", Revision: w.Revision, Grade: "A"})
	want(v1.WorkflowApproved, approved, err)
	program("echo three > page.html")
	void, err := s.Workflow(ctx, w.ID)
	want(v1.WorkflowRevision, void, err)
	history, err := maria.WorkflowHistory(ctx, w.ID)
	var actions []string
	for _, e := range history {
		actions = append(actions, e.Action)
	}
	if got := strings.Join(actions, " "); err != nil || got != "create submit send_back submit approve void" {
		t.Errorf("its history is %s, %v", got, err)
	}
	if err := s.RemoveWorkspace(ctx, x.ID); err != nil {
		t.Error(err)
	}
}
