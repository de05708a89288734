package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/remote"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/test/apitest"
)

// A fixture is a Remote with fake services.
type fixture struct {
	*remote.Remote
	services *apitest.Fixture
	logs     *bytes.Buffer
	env      tool.Env
}

func program(t *testing.T, mode string) remote.Server {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A fake guest sees the files of this machine, but looks programs up in a
	// root of its own.
	return remote.Server{Name: "srv", Command: []string{"/bin/sh", "-c", `exec "$PROGRAM"`}, Env: map[string]string{modeVariable: mode, "PROGRAM": exe}, Timeout: 20 * time.Second}
}

func open(t *testing.T, servers ...remote.Server) *fixture {
	t.Helper()
	b := &fixture{services: apitest.New(nil), logs: &bytes.Buffer{}, env: tool.Env{Owner: "ann", Run: engi.NewRunID()}}
	t.Cleanup(b.services.Close)
	var err error
	b.Remote, err = remote.New(remote.Options{Servers: servers, Sandboxes: b.services.Sandboxes, Places: place.Resolver{Sandboxes: b.services.Sandboxes}, Version: "1", Log: slog.New(slog.NewTextHandler(b.logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tools opens the first server for a run.
func (f *fixture) tools(t *testing.T) map[string]tool.Tool {
	t.Helper()
	list, release, err := f.Sources()[0].Open(t.Context(), f.env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	all := map[string]tool.Tool{}
	for _, x := range list {
		all[x.Name] = x
	}
	return all
}

func (f *fixture) use(t *testing.T, x tool.Tool, args string) (tool.Result, string) {
	t.Helper()
	var mu sync.Mutex
	var said strings.Builder
	r, err := x.Run(t.Context(), &tool.Call{Env: f.env, ID: "c", Out: func(_ engi.Stream, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		said.Write(data)
	}}, args)
	if err != nil {
		t.Fatalf("%s: %v", x.Name, err)
	}
	mu.Lock()
	defer mu.Unlock()
	return r, said.String()
}

func (f *fixture) sandboxes(t *testing.T) int {
	t.Helper()
	list, err := f.services.Sandboxes.List(t.Context(), "ann", engi.SandboxFilter{Owned: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// served returns a good server on loopback that requires a header, and counts
// requests for its tools.
func served(t *testing.T) (remote.Server, *atomic.Int64) {
	t.Helper()
	var lists atomic.Int64
	s := good()
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "tools/list" {
				lists.Add(1)
			}
			return next(ctx, method, req)
		}
	})
	h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "s3cret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return remote.Server{Name: "srv", URL: web.URL, Header: http.Header{"X-Key": {"s3cret"}}, Timeout: 20 * time.Second}, &lists
}

// TestTools uses all features of a server, over both transports.
func TestTools(t *testing.T) {
	web, _ := served(t)
	for name, s := range map[string]remote.Server{"command": program(t, "good"), "url": web} {
		t.Run(name, func(t *testing.T) {
			b := open(t, s)
			if got := b.Servers()[0]; got.State != engi.ToolServerUnused {
				t.Errorf("%+v", got)
			}
			all := b.tools(t)
			if !all["srv_echo"].Repeatable || all["srv_fail"].Repeatable || all["srv_echo"].Description != "does echo" {
				t.Errorf("%+v", all["srv_echo"])
			}
			if r, _ := b.use(t, all["srv_echo"], `{"text":"hello"}`); r.Text != "echo hello" || r.Failed {
				t.Errorf("%+v", r)
			}
			if r, _ := b.use(t, all["srv_echo"], `{"text":5}`); !r.Failed {
				t.Errorf("arguments that do not fit: %+v", r)
			}
			if r, _ := b.use(t, all["srv_fail"], `{}`); r.Text != "no can do" || !r.Failed {
				t.Errorf("%+v", r)
			}
			if r, said := b.use(t, all["srv_steps"], `{}`); r.Text != "done" || said != "step 0\nstep 1\nstep 2\n" && name == "command" {
				t.Errorf("%+v %q", r, said)
			}
			if r, _ := b.use(t, all["srv_sample"], `{}`); r.Text != "no model, no answer, no roots" {
				t.Errorf("%+v", r)
			}
			if r, _ := b.use(t, all["srv_huge"], `{}`); len(r.Text) > 1<<20+10 || !strings.HasPrefix(r.Text, "0123") {
				t.Errorf("%d bytes", len(r.Text))
			}
			r, _ := b.use(t, all["srv_mixed"], `{}`)
			if len(r.Images) != 1 || r.Images[0].MediaType != "image/png" || !bytes.Equal(r.Images[0].Data, pixel) {
				t.Errorf("images %+v", r.Images)
			}
			for _, want := range []string{"look", "image/svg+xml left out", "image/png left out", "audio of 4 bytes left out", "file:///x", "inside", "2 bytes left out"} {
				if !strings.Contains(r.Text, want) {
					t.Errorf("no %q in %q", want, r.Text)
				}
			}
			if got := b.Servers()[0]; got.State != engi.ToolServerReady || !slices.Contains(got.Tools, "srv_echo") || got.Checked.IsZero() {
				t.Errorf("%+v", got)
			}
			if strings.Contains(b.logs.String(), "s3cret") {
				t.Error("the log has the secret")
			}
		})
	}
}

// TestOwnSandbox checks when the sandbox of a command is created and stopped.
func TestOwnSandbox(t *testing.T) {
	s := program(t, "good")
	s.Env["SOME"] = "value"
	b := open(t, s)
	list, release, err := b.Sources()[0].Open(t.Context(), b.env)
	if err != nil {
		t.Fatal(err)
	}
	if n := b.sandboxes(t); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	at := slices.IndexFunc(list, func(x tool.Tool) bool { return x.Name == "srv_env" })
	if r, _ := b.use(t, list[at], `{"text":"SOME"}`); r.Text != "value" {
		t.Errorf("%+v", r)
	}
	release()
	release()
	if n := b.sandboxes(t); n != 0 {
		t.Errorf("%d sandboxes after the run", n)
	}
	if r, _ := b.use(t, list[at], `{"text":"SOME"}`); !r.Failed {
		t.Errorf("after the run: %+v", r)
	}
	// The tools are cached: the next run creates a sandbox with the first call.
	list, release, err = b.Sources()[0].Open(t.Context(), b.env)
	if err != nil || len(list) == 0 {
		t.Fatalf("%v %v", list, err)
	}
	defer release()
	if n := b.sandboxes(t); n != 0 {
		t.Errorf("%d sandboxes before a call", n)
	}
	if r, _ := b.use(t, list[at], `{"text":"SOME"}`); r.Text != "value" || b.sandboxes(t) != 1 {
		t.Errorf("%+v, %d sandboxes", r, b.sandboxes(t))
	}
	// After a crash, the sandbox that is left from the same run is stopped.
	second, err := remote.New(remote.Options{Servers: []remote.Server{s}, Sandboxes: b.services.Sandboxes, Places: place.Resolver{Sandboxes: b.services.Sandboxes}})
	if err != nil {
		t.Fatal(err)
	}
	_, leave, err := second.Sources()[0].Open(t.Context(), b.env)
	if err != nil {
		t.Fatal(err)
	}
	if n := b.sandboxes(t); n != 1 {
		t.Errorf("%d sandboxes after a crash", n)
	}
	leave()
}

// TestInRunSandbox runs a command in the sandbox of the run, which it does not
// stop.
func TestInRunSandbox(t *testing.T) {
	s := program(t, "good")
	s.InRunSandbox = true
	b := open(t, s)
	if list, release, err := b.Sources()[0].Open(t.Context(), b.env); err != nil || len(list) != 0 {
		t.Errorf("without a sandbox: %v %v", list, err)
	} else {
		release()
	}
	sandbox, err := b.services.Sandboxes.Create(t.Context(), engi.SandboxSpec{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	b.env.Sandbox = sandbox.ID
	b.env.Scopes = []engi.Scope{engi.ScopeAgents, engi.ScopeRead}
	if list, release, err := b.Sources()[0].Open(t.Context(), b.env); err != nil || len(list) != 0 {
		t.Errorf("with a key that may not run it: %v %v", list, err)
	} else {
		release()
	}
	b.env.Scopes = nil
	list, release, err := b.Sources()[0].Open(t.Context(), b.env)
	if err != nil || len(list) == 0 {
		t.Fatalf("%v %v", list, err)
	}
	release()
	if n := b.sandboxes(t); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	g, leave, err := b.services.Sandboxes.Enter(t.Context(), "ann", sandbox.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	p, err := g.Attach(t.Context(), "mcp-srv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Errorf("the program still runs: %v", err)
	}
}

// TestCrash has a server crash during a call.
func TestCrash(t *testing.T) {
	b := open(t, program(t, "good"))
	all := b.tools(t)
	for range 3 {
		if r, _ := b.use(t, all["srv_die"], `{}`); !r.Failed || !strings.Contains(r.Text, "connection broke") {
			t.Errorf("%+v", r)
		}
		if r, _ := b.use(t, all["srv_echo"], `{"text":"again"}`); r.Text != "echo again" {
			t.Errorf("%+v", r)
		}
	}
	b.use(t, all["srv_die"], `{}`)
	if r, _ := b.use(t, all["srv_echo"], `{}`); !r.Failed || !strings.Contains(r.Text, "times in this run") {
		t.Errorf("%+v", r)
	}
	if n := b.sandboxes(t); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestCancel cancels a call and checks that the server learns of it.
func TestCancel(t *testing.T) {
	given := filepath.Join(t.TempDir(), "given-up")
	s := program(t, "good")
	s.Env["GIVEN_UP"] = given
	b := open(t, s)
	all := b.tools(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := all["srv_wait"].Run(ctx, &tool.Call{Env: b.env, ID: "c", Out: func(_ engi.Stream, data []byte) {
		if strings.Contains(string(data), "waiting") {
			cancel()
		}
	}}, `{}`)
	if !engi.Is(err, engi.Expired) {
		t.Errorf("%v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(given); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server was not told that its call was cancelled")
		}
	}
	if r, _ := b.use(t, all["srv_echo"], `{"text":"on"}`); r.Text != "echo on" {
		t.Errorf("%+v", r)
	}
}

// TestHostileLists has servers that cannot be used, or only in part.
func TestHostileLists(t *testing.T) {
	for mode, c := range map[string]struct {
		tools int
		want  string // in the error
	}{
		"dies":          {want: "no license key"},
		"noise":         {want: "does not speak MCP"},
		"endless line":  {want: "more than"},
		"silent":        {want: "did not answer within"},
		"some noise":    {tools: 1},
		"endless pages": {tools: 64},
		"many":          {tools: 128},
		"broken list":   {want: "cannot unmarshal"},
		"error":         {want: "eeee"},
		"asks":          {want: "more than 1000"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := program(t, mode)
			if mode == "silent" {
				s.Timeout = 300 * time.Millisecond
			}
			b := open(t, s)
			list, release, err := b.Sources()[0].Open(t.Context(), b.env)
			if err == nil {
				defer release()
			}
			if mode == "asks" && err == nil {
				// It may have listed its tools before it reached the limit.
				r, _ := b.use(t, list[0], `{}`)
				t.Logf("%+v", r)
				return
			}
			if c.want == "" {
				if err != nil || len(list) != c.tools {
					t.Errorf("%d tools, %v", len(list), err)
				}
				return
			}
			if !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 2<<10 {
				t.Errorf("%.500v", err)
			}
			if got := b.Servers()[0]; got.State != engi.ToolServerFailed || got.Error == "" {
				t.Errorf("%+v", got)
			}
			if n := b.sandboxes(t); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
		})
	}
}

func TestHostileTools(t *testing.T) {
	b := open(t, program(t, "names"))
	all := b.tools(t)
	var names []string
	for name, x := range all {
		names = append(names, name)
		if len(name) > 64 || len(x.Description) > 5<<10 {
			t.Errorf("%s: %d bytes of description", name, len(x.Description))
		}
	}
	slices.Sort(names)
	for _, want := range []string{"srv_one", "srv__etc_passwd", "srv_text", "srv_a_b", "srv_none"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
	if len(names) != 6 { // and the long one
		t.Errorf("%v", names)
	}
	if left := strings.Join(b.Servers()[0].Skipped, "\n"); !strings.Contains(left, "itself: ") || !strings.Contains(left, "a/b: there is another") || !strings.Contains(left, "deep: ") {
		t.Errorf("left out: %s", left)
	}
}

func TestHostileCalls(t *testing.T) {
	for mode, c := range map[string]struct {
		want   string
		failed bool
	}{
		"huge message":   {"more than", true},
		"flood":          {"at once", true},
		"progress flood": {"at last", false},
		"broken call":    {"martian", true},
		"deaf":           {"more than 1000", true},
		"hangs":          {"did not answer within", true},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := program(t, mode)
			if mode == "hangs" {
				s.Timeout = 3 * time.Second // it has to start within that, too
			}
			b := open(t, s)
			all := b.tools(t)
			r, said := b.use(t, all["srv_one"], `{}`)
			if r.Failed != c.failed || !strings.Contains(r.Text, c.want) {
				t.Errorf("%v %.300q", r.Failed, r.Text)
			}
			if len(said) > 65<<10 {
				t.Errorf("%d bytes of progress", len(said))
			}
		})
	}
}

// TestList checks that the list of tools is cached, and filtered.
func TestList(t *testing.T) {
	s, lists := served(t)
	s.Tools = []string{"echo", "nothing"}
	b := open(t, s)
	for range 5 {
		if all := b.tools(t); len(all) != 1 {
			t.Errorf("%v", all)
		}
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	if left := b.Servers()[0].Skipped; len(left) != 1 || !strings.Contains(left[0], "nothing") {
		t.Errorf("%v", left)
	}
}

// TestHeaders checks that secret headers go to the server's host only.
func TestHeaders(t *testing.T) {
	var got atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got.Add(1) }))
	defer elsewhere.Close()
	home := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer home.Close()
	b := open(t, remote.Server{Name: "srv", URL: home.URL, Header: http.Header{"Authorization": {"Bearer s3cret"}}, Timeout: 5 * time.Second})
	_, _, err := b.Sources()[0].Open(t.Context(), b.env)
	if !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
	if n := got.Load(); n != 0 {
		t.Errorf("another host was asked %d times", n)
	}
}

// TestHostileWeb has HTTP responses without an end.
func TestHostileWeb(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"endless JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); err != nil {
					return
				}
			}
		},
		"endless events": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n"); err != nil {
					return
				}
			}
		},
		"endless error": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for {
				if _, err := w.Write(bytes.Repeat([]byte("e"), 1<<16)); err != nil {
					return
				}
			}
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "<html>")
		},
		"nothing": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else nobody notices that the client has gone
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(h)
			defer web.Close()
			defer web.CloseClientConnections()
			b := open(t, remote.Server{Name: "srv", URL: web.URL, Timeout: time.Second})
			_, _, err := b.Sources()[0].Open(t.Context(), b.env)
			if !engi.Is(err, engi.Unavailable) || len(err.Error()) > 2<<10 {
				t.Errorf("%.300v", err)
			}
		})
	}
}

func TestBadServers(t *testing.T) {
	for name, s := range map[string]remote.Server{
		"no name":     {URL: "http://x"},
		"bad name":    {Name: "Ann_1", URL: "http://x"},
		"neither":     {Name: "x"},
		"both":        {Name: "x", URL: "http://x", Command: []string{"y"}},
		"scheme":      {Name: "x", URL: "file:///etc/passwd"},
		"user":        {Name: "x", URL: "http://me:secret@host/"},
		"inside url":  {Name: "x", URL: "http://x", InRunSandbox: true},
		"no program":  {Name: "x", Command: []string{""}},
		"bad timeout": {Name: "x", URL: "http://x", Timeout: -1},
	} {
		_, err := remote.New(remote.Options{Servers: []remote.Server{s}})
		if !engi.Is(err, engi.Invalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	two := []remote.Server{{Name: "x", URL: "http://x"}, {Name: "x", URL: "http://y"}}
	if _, err := remote.New(remote.Options{Servers: two}); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v", err)
	}
}
