package script

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	jswire "github.com/engi-dev/engi/internal/sandbox/script/wire"
)

// sessions is a fake with ann's sessions, each with a guest in this process.
type sessions struct {
	mu      sync.Mutex
	all     map[string]engi.Session
	guests  map[engi.SessionID]engi.Guest
	inside  int // number of entered and not released sandboxes
	entered int
}

func (s *sessions) Get(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	if x, ok := s.all[idOrName]; ok && viewer.Sees(x.Owner) {
		return x, nil
	}
	return engi.Session{}, engi.Errorf(engi.NotFound, "session %s", idOrName)
}

func (s *sessions) Enter(ctx context.Context, viewer engi.Viewer, id string) (engi.Guest, func(), error) {
	x, err := s.Get(ctx, viewer, id)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside++
	s.entered++
	return s.guests[x.ID], sync.OnceFunc(func() { s.mu.Lock(); s.inside--; s.mu.Unlock() }), nil
}

// inProcessGuest returns a guest in this process, which runs programs of this host.
func inProcessGuest(t *testing.T) (engi.Guest, string) {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "workspace"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := guestd.New(guestd.Options{Root: root, Token: "t", InProcess: true})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	c, err := guest.Open(t.Context(), func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		serving.Go(func() { s.Serve(ctx, b) })
		return a, nil
	}, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		serving.Wait()
		s.Close()
	})
	if err := c.Setup(t.Context(), wire.Setup{}); err != nil {
		t.Fatal(err)
	}
	return c, root
}

// sessionRunner returns a runner with kv, ann's session "work" and one session that has ended.
func sessionRunner(t *testing.T, change func(*Options)) (*Runner, *sessions, string) {
	t.Helper()
	g, root := inProcessGuest(t)
	s := &sessions{
		all: map[string]engi.Session{
			"work":  {ID: "ses_1", Owner: "ann", State: engi.SessionIdle, Network: engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"api.example.com"}}},
			"other": {ID: "ses_2", Owner: "ann", State: engi.SessionIdle},
			"over":  {ID: "ses_3", Owner: "ann", State: engi.SessionTerminated},
		},
		guests: map[engi.SessionID]engi.Guest{"ses_1": g, "ses_2": g},
	}
	s.all["ses_1"] = s.all["work"]
	s.all["ses_2"] = s.all["other"]
	r := runner(t, func(o *Options) {
		o.Sessions = s
		o.APIs = append(append(o.APIs, KV()...), Sandbox()...)
		o.Limits.MaxTimeout = 30 * time.Second // long enough for a slow machine
		if change != nil {
			change(o)
		}
	})
	return r, s, root
}

func runIn(t *testing.T, r *Runner, session, code string) engi.ScriptResult {
	t.Helper()
	x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "ann", Session: session, Code: code, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return x
}

func TestSandboxOfSession(t *testing.T) {
	r, s, root := sessionRunner(t, nil)
	for _, c := range []struct{ code, want string }{
		{`await api.sandbox.write('a/b.txt', 'é'); await api.sandbox.read('/workspace/a/b.txt')`, `"é"`},
		{`await api.sandbox.write('bin', 'AP8=', {encoding: 'base64'}); await api.sandbox.read('bin', {encoding: 'base64'})`, `"AP8="`},
		{`await api.sandbox.read('bin').catch(e => e.name + ': ' + e.message)`, `"TypeError: /workspace/bin is not text: read it with {encoding: \"base64\"}"`},
		{`await api.sandbox.read('missing').catch(e => e.name)`, `"NotFoundError"`},
		{`(await api.sandbox.list()).map(f => f.type + ' ' + f.path)`, `["dir /workspace/a","file /workspace/bin"]`},
		{`(await api.sandbox.list('.', {depth: 2})).length`, `3`},
		{`const s = await api.sandbox.stat('bin'); [s.type, s.size]`, `["file",2]`},
		{`await api.sandbox.mkdir('d/e'); await api.sandbox.move('bin', 'd/e/f'); await api.sandbox.remove('d/e/f'); (await api.sandbox.list('d')).length`, `1`},
		{`const x = await api.sandbox.run('cat a/b.txt; echo err >&2; exit 3'); [x.exitCode, x.stdout, x.stderr, x.cause, x.truncated]`, `[3,"é","err\n","exited",false]`},
		{`const x = await api.sandbox.run(['cat'], {stdin: 'in', env: {A: 'b'}}); x.stdout`, `"in"`},
		{`(await api.sandbox.run('pwd; echo $A', {dir: 'a', env: {A: 'b'}})).stdout.split('\n').slice(1)`, `["b",""]`},
		{`(await api.sandbox.run(['true'], {stdin: 'x'.repeat(1e6)})).exitCode`, `0`},
		{`const x = await api.sandbox.run('sleep 60', {timeout: 100}); [x.cause, x.signal]`, `["timeout","KILL"]`},
		{`const x = await api.sandbox.run('yes'); [x.truncated, x.stdout.length, x.cause]`, `[true,131072,"output"]`},
		{`await api.sandbox.run(['no-such-program']).catch(e => e.name) instanceof Object`, `false`},
	} {
		if x := runIn(t, r, "work", c.code); !x.OK || string(x.Value) != c.want {
			t.Errorf("%s: got %s, %+v, want %s", c.code, x.Value, x.Error, c.want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "workspace/a/b.txt")); err != nil || string(data) != "é" {
		t.Errorf("inside is %q, %v", data, err)
	}
	x := runIn(t, r, "work", "1")
	if x.Environment.Session != "ses_1" || !strings.Contains(strings.Join(x.Environment.APIs, " "), "sandbox.run") {
		t.Errorf("got %+v", x.Environment)
	}
	if s.inside != 0 {
		t.Errorf("%d visits were not ended", s.inside)
	}
	before := s.entered
	if runIn(t, r, "work", "2"); s.entered != before {
		t.Error("a script that wants nothing of the sandbox started it")
	}
	runIn(t, r, "work", "await Promise.all([1, 2, 3].map(() => api.sandbox.stat('a')))")
	if s.entered != before+1 || s.inside != 0 {
		t.Errorf("one script entered %d times, %d still", s.entered-before, s.inside)
	}
}

// TestSandboxRefuses makes invalid calls, which must not reach the sandbox.
func TestSandboxRefuses(t *testing.T) {
	r, s, _ := sessionRunner(t, nil)
	for _, call := range []string{
		"read()", "read('')", "read(1)", "read('a\\0b')", "read('x'.repeat(5000))", "read('a', {encoding: 'utf16'})", "read('a', 1)", "read('a', {}, 3)",
		"write('a')", "write('a', 1)", "write('a', '???', {encoding: 'base64'})", "list('.', {depth: 0})", "list('.', {depth: 1e9})", "list('.', {depth: -1})",
		"run()", "run('')", "run([])", "run([''])", "run([1])", "run({})", "run('a\\0')", "run('a', {timeout: -1})", "run('a', {timeout: 1e300})", "run('a', {env: 1})",
		"move('a')", "move('', 'b')", "stat()", "mkdir('')", "remove('')",
	} {
		x := runIn(t, r, "work", "await api.sandbox."+call+".then(() => 'done', e => e.name)")
		if !x.OK || string(x.Value) != `"TypeError"` {
			t.Errorf("%s: got %s, %+v", call, x.Value, x.Error)
		}
	}
	if x := runIn(t, r, "work", "await api.sandbox.write('a', 'x'.repeat(1.5e6)).catch(e => e.name)"); string(x.Value) != `"RangeError"` {
		t.Errorf("a large file: %s, %+v", x.Value, x.Error)
	}
	if s.entered != 0 {
		t.Errorf("entered %d times", s.entered)
	}
}

func TestSessionsOfScripts(t *testing.T) {
	r, _, _ := sessionRunner(t, nil)
	for _, c := range []struct {
		owner engi.Owner
		name  string
		want  engi.Kind
	}{{"bob", "work", engi.NotFound}, {"ann", "nowhere", engi.NotFound}, {"ann", strings.Repeat("x", 1000), engi.NotFound}, {"ann", "over", engi.Conflict}} {
		if _, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: c.owner, Session: c.name, Code: "1"}); !engi.Is(err, c.want) {
			t.Errorf("%s in %.10s: %v", c.owner, c.name, err)
		}
	}
	if x := mustRun(t, r, "ann", "typeof api.sandbox"); string(x.Value) != `"undefined"` || strings.Contains(strings.Join(x.Environment.APIs, " "), "sandbox") {
		t.Errorf("without a session: %s, %v", x.Value, x.Environment.APIs)
	}
	// A helper that was taken over may call functions that the script does not have.
	v, err := r.newInvocation(t.Context(), engi.ScriptSpec{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if a := r.handleCall(t.Context(), v, jswire.Call{API: "sandbox.read", Args: []byte(`["/etc/passwd"]`)}); a.Error == "" {
		t.Errorf("without a session: %+v", a)
	}
	// Values belong to the session.
	runIn(t, r, "work", "await api.kv.set('k', 1)")
	for session, want := range map[string]string{"work": "1", "ses_1": "1", "other": "null", "": "null"} {
		if x := runIn(t, r, session, "await api.kv.get('k')"); string(x.Value) != want {
			t.Errorf("scratch of %q: %s, want %s", session, x.Value, want)
		}
	}
	bare := runner(t, nil)
	if _, err := bare.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "ann", Session: "work", Code: "1"}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("without sessions: %v", err)
	}
}

// TestCommandEndsWithScript: commands of a script are killed when it ends.
func TestCommandEndsWithScript(t *testing.T) {
	r, s, _ := sessionRunner(t, func(o *Options) { o.Limits.MinTimeout = 10 * time.Millisecond })
	for _, code := range []string{
		"await api.sandbox.run('exec sleep 3600')",                 // the script exceeds its timeout
		"api.sandbox.run('exec sleep 3600'); throw new Error('x')", // the script does not wait for the command
		"api.sandbox.run('exec sleep 3600'); await api.add(1, 1)",
	} {
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "ann", Session: "work", Code: code, Timeout: 700 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if s.inside != 0 {
			t.Errorf("%s: %d visits were not ended: %+v", code, s.inside, x.Error)
		}
		deadline := time.Now().Add(time.Minute)
		for {
			running := 0
			all, err := s.guests["ses_1"].Processes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if !p.Ended {
					running++
				}
			}
			if running == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d processes go on", code, running)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// fakeEgress sends all requests to one server, and records their owners.
type fakeEgress struct {
	to     *httptest.Server
	owner  engi.Owner
	policy engi.NetworkPolicy
}

func (w *fakeEgress) client(owner engi.Owner, policy engi.NetworkPolicy) (*http.Client, error) {
	w.owner, w.policy = owner, policy
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Hostname() != "api.example.com" || r.URL.User != nil {
			return nil, engi.Errorf(engi.Denied, "host %s is not allowed", r.URL.Hostname())
		}
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host = "http", strings.TrimPrefix(w.to.URL, "http://")
		return http.DefaultTransport.RoundTrip(r)
	})}, nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFetchThroughEgress(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "https://elsewhere.example.com/", http.StatusFound)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		default:
			w.Write([]byte("hello"))
		}
	}))
	defer srv.Close()
	w := &fakeEgress{to: srv}
	fetch := Fetch(nil, w.client)
	r, _, _ := sessionRunner(t, func(o *Options) { o.APIs = append(o.APIs, fetch) })
	for code, want := range map[string]string{
		"(await api.fetch('https://api.example.com/x')).body":                                `"hello"`,
		"await api.fetch('https://elsewhere.example.com/').catch(e => e.name)":               `"DeniedError"`,
		"await api.fetch('https://api.example.com/away').catch(e => e.name)":                 `"DeniedError"`,
		"await api.fetch('https://api.example.com/file').catch(e => e.name)":                 `"DeniedError"`,
		"await api.fetch('file:///etc/passwd').catch(e => e.name)":                           `"DeniedError"`,
		"await api.fetch('https://user:pass@api.example.com/').catch(e => e.name)":           `"DeniedError"`,
		"await api.fetch('https://api.example.com/x', {method: 'TRACE'}).catch(e => e.name)": `"TypeError"`,
	} {
		if x := runIn(t, r, "work", code); !x.OK || string(x.Value) != want {
			t.Errorf("%s: got %s, %+v, want %s", code, x.Value, x.Error, want)
		}
	}
	if w.owner != "ann" || len(w.policy.Allow) != 1 {
		t.Errorf("the egress gateway was asked for %s, %+v", w.owner, w.policy)
	}
	if x := mustRun(t, r, "ann", "typeof api.fetch"); string(x.Value) != `"undefined"` {
		t.Errorf("without a session and without hosts: %s", x.Value)
	}
}
