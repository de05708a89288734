package rest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { http.DefaultClient.CloseIdleConnections() }))
}

var ask, refused, until = apitest.Ask, apitest.Refused, apitest.Until

func read[T any](t *testing.T, rec *httptest.ResponseRecorder, status int) T {
	t.Helper()
	return apitest.Read[T](t, rec, status)
}

func newFixture(t *testing.T, change func(*apitest.Options)) *apitest.Fixture {
	w := apitest.New(change)
	t.Cleanup(w.Close)
	return w
}

// program returns a request that runs code.
func program(code string) string {
	body, err := json.Marshal(map[string]any{"language": "python", "code": code})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// reading counts how often artifacts of executions are read.
type reading struct {
	engi.Executions
	reads atomic.Int32
}

func (r *reading) Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (engi.Execution, error) {
	r.reads.Add(1)
	return r.Executions.Get(ctx, viewer, id)
}

func (r *reading) Artifact(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	r.reads.Add(1)
	return r.Executions.Artifact(ctx, viewer, id, path)
}

// TestManyArtifacts checks that records are not read again for each artifact of
// an answer, which would take time by the square of their number.
func TestManyArtifacts(t *testing.T) {
	counted := &reading{}
	w := newFixture(t, func(o *apitest.Options) { counted.Executions, o.Executions = o.Executions, counted })
	for _, n := range []int{1, 500} {
		var code strings.Builder
		for i := range n {
			fmt.Fprintf(&code, "save f%d.txt x;", i)
		}
		counted.reads.Store(0)
		x := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program(code.String())), 200)
		x = read[v1.Execution](t, ask(t, w, "GET", "/v1/executions/"+x.ID, ""), 200)
		if len(x.Result.Artifacts) != n || string(x.Result.Artifacts[n-1].ContentBase64) != "x" {
			t.Fatalf("%d artifacts, want %d with their contents", len(x.Result.Artifacts), n)
		}
		if got := counted.reads.Load(); got > 2 {
			t.Errorf("the record with %d artifacts was read %d times for two answers", n, got)
		}
	}
}

func TestAnswerIsTheResult(t *testing.T) {
	w := newFixture(t, nil)
	rec := ask(t, w, "POST", "/v1/executions", program("print(6*7); echo oops >&2; save plot.txt hello; exit 3"))
	x := read[v1.Execution](t, rec, 200)
	if x.State != v1.Done || x.Result == nil || x.Result.ExitCode != 3 || x.Result.Stdout != "42\n" || x.Result.Stderr != "oops\n" || x.Result.Cause != "exited" {
		t.Fatalf("got %s", rec.Body)
	}
	if rec.Header().Get("Location") != "/v1/executions/"+x.ID {
		t.Errorf("Location %q", rec.Header().Get("Location"))
	}
	if len(x.Result.Artifacts) != 1 || string(x.Result.Artifacts[0].ContentBase64) != "hello" {
		t.Fatalf("artifacts %+v", x.Result.Artifacts)
	}
	if got := read[v1.Execution](t, ask(t, w, "GET", "/v1/executions/"+x.ID, ""), 200); got.Result.Stdout != "42\n" {
		t.Errorf("got later: %+v", got)
	}
}

func TestBadInput(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.MaxBody, o.Bounds.File, o.Bounds.Input = 1<<20, 1<<16, 1<<17 })
	const post, x = "POST", "/v1/executions"
	files := func(paths ...string) string {
		var list []map[string]string
		for _, p := range paths {
			list = append(list, map[string]string{"path": p, "content": "x"})
		}
		b, _ := json.Marshal(map[string]any{"language": "go", "files": list, "entry": paths[0]})
		return string(b)
	}
	with := func(field, value string) string {
		return `{"language":"python","code":"print(6*7)",` + fmt.Sprintf("%q:%s}", field, value)
	}
	for name, c := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		kind               engi.Kind
		says               string // in the detail
	}{
		"wrong JSON":         {post, x, `{"language":"python",}`, nil, 400, engi.Invalid, "not JSON"},
		"no body":            {post, x, "", nil, 400, engi.Invalid, "empty"},
		"null":               {post, x, "null", nil, 400, engi.Invalid, "language: it is missing"},
		"not an object":      {post, x, "[]", nil, 400, engi.Invalid, "want an object"},
		"unknown field":      {post, x, with("time", `"1s"`), nil, 400, engi.Invalid, `did you mean "timeout"?`},
		"unknown language":   {post, x, `{"language":"cobol","code":"x"}`, nil, 400, engi.Invalid, `"cobol" is not one of python`},
		"misspelt language":  {post, x, `{"language":"Python3","code":"x"}`, nil, 400, engi.Invalid, `did you mean "python"?`},
		"no language":        {post, x, `{"code":"x"}`, nil, 400, engi.Invalid, "language: it is missing"},
		"no program":         {post, x, `{"language":"go"}`, nil, 400, engi.Invalid, "there is no program"},
		"no entry":           {post, x, `{"language":"go","files":[{"path":"a"},{"path":"b"}]}`, nil, 400, engi.Invalid, "entry: it is missing"},
		"entry elsewhere":    {post, x, `{"language":"go","files":[{"path":"a"}],"entry":"b"}`, nil, 400, engi.Invalid, "not one of the files"},
		"code and entry":     {post, x, with("entry", `"x.py"`), nil, 400, engi.Invalid, "leave entry out"},
		"too much code":      {post, x, program(strings.Repeat("x", 2<<20)), nil, 413, engi.Invalid, "1MiB"},
		"a large file":       {post, x, program(strings.Repeat("x", 1<<16+1)), nil, 413, engi.Invalid, "it has 65537 bytes, 64KiB at most"},
		"large files":        {post, x, with("stdin", `"`+strings.Repeat("x", 1<<17)+`"`), nil, 413, engi.Invalid, "have 131082 bytes, 128KiB at most"},
		"missing template":   {post, x, with("template", `"nope"`), nil, 404, engi.NotFound, `"nope"`},
		"NUL in template":    {post, x, with("template", `"a\u0000b"`), nil, 400, engi.Invalid, "NUL"},
		"negative memory":    {post, x, with("memory", "-1"), nil, 400, engi.Invalid, "memory"},
		"negative timeout":   {post, x, with("timeout", `"-1s"`), nil, 400, engi.Invalid, "timeout"},
		"timeout as number":  {post, x, with("timeout", "30"), nil, 400, engi.Invalid, `such as "30s"`},
		"negative vcpus":     {post, x, with("vcpus", "-0.5"), nil, 400, engi.Invalid, "vcpus: -0.5 is negative"},
		"negative processes": {post, x, with("processes", "-5"), nil, 400, engi.Invalid, "processes: -5 is negative"},
		"negative count":     {post, x, with("artifacts", `{"max_count":-1}`), nil, 400, engi.Invalid, "artifacts.max_count: -1 is negative"},
		"outside":            {post, x, files("../x"), nil, 400, engi.Invalid, "leads out"},
		"outside, hidden":    {post, x, files("a/../../x"), nil, 400, engi.Invalid, "leads out"},
		"absolute":           {post, x, files("/etc/passwd"), nil, 400, engi.Invalid, "absolute"},
		"odd path":           {post, x, files("a//b"), nil, 400, engi.Invalid, "plainest form"},
		"a directory":        {post, x, files("."), nil, 400, engi.Invalid, "is a directory"},
		"empty path":         {post, x, files(""), nil, 400, engi.Invalid, "empty"},
		"long path":          {post, x, files(strings.Repeat("a/", 2100) + "b"), nil, 400, engi.Invalid, "longer"},
		"NUL in path":        {post, x, files("a\x00b"), nil, 400, engi.Invalid, "NUL"},
		"twice":              {post, x, files("a", "a"), nil, 400, engi.Invalid, "twice"},
		"file and directory": {post, x, files("a", "a/b"), nil, 400, engi.Invalid, "both a file and a directory"},
		"file mode":          {post, x, `{"language":"go","files":[{"path":"a","mode":644}]}`, nil, 400, engi.Invalid, "octal"},
		"two contents":       {post, x, `{"language":"go","files":[{"path":"a","content":"x","content_base64":"eA=="}]}`, nil, 400, engi.Invalid, "both content"},
		"NUL in argument":    {post, x, with("args", `["a\u0000b"]`), nil, 400, engi.Invalid, "args[0]"},
		"NUL in variable":    {post, x, with("env", `{"A\u0000":"b"}`), nil, 400, engi.Invalid, "name of a variable"},
		"odd variable":       {post, x, with("env", `{"A=B":"b"}`), nil, 400, engi.Invalid, "name of a variable"},
		"network":            {post, x, with("network", `"opne"`), nil, 400, engi.Invalid, "none, isolated, restricted, open"},
		"network's kind":     {post, x, with("network", `7`), nil, 400, engi.Invalid, "network: want a mode"},
		"network's field":    {post, x, with("network", `{"mod":"open"}`), nil, 400, engi.Invalid, "network.mod"},
		"no such tier":       {post, x, with("min_tier", `"microvm"`), nil, 501, engi.Unsupported, "microvm"},
		"on_empty":           {post, x, with("on_empty", `"boot"`), nil, 400, engi.Invalid, "boot_sync"},
		"output_dir":         {post, x, with("output_dir", `"../out"`), nil, 400, engi.Invalid, "absolute"},
		"not UTF-8":          {post, x, "{\"language\":\"go\",\"code\":\"\xff\"}", nil, 400, engi.Invalid, "UTF-8"},
		"half a character":   {post, x, `{"language":"go","code":"\ud800"}`, nil, 400, engi.Invalid, "surrogate"},
		"a form":             {post, x, "language=go", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, engi.Invalid, "cannot be read"},
		"other charset":      {post, x, "{}", []string{"Content-Type", "application/json; charset=latin1"}, 415, engi.Invalid, "latin1"},
		"wants a picture":    {post, x, program("echo"), []string{"Accept", "image/png"}, 406, engi.Invalid, "image/png"},
		"odd idempotency":    {post, x, program("echo"), []string{"Idempotency-Key", "a\tb"}, 400, engi.Invalid, "Idempotency-Key"},
		"odd event":          {post, x, program("echo"), []string{"Last-Event-ID", "x"}, 400, engi.Invalid, "Last-Event-ID"},
		"odd ID":             {"GET", x + "/exe_1", "", nil, 400, engi.Invalid, "exe_1"},
		"no such ID":         {"GET", x + "/" + string(engi.NewExecutionID()), "", nil, 404, engi.NotFound, "no execution"},
		"odd wait":           {"GET", x + "/" + string(engi.NewExecutionID()) + "?wait=30", "", nil, 400, engi.Invalid, "query.wait"},
		"odd limit":          {"GET", x + "?limit=0", "", nil, 400, engi.Invalid, "query.limit"},
		"odd state":          {"GET", x + "?state=gone", "", nil, 400, engi.Invalid, "query.state"},
		"odd cursor":         {"GET", x + "?cursor=5", "", nil, 400, engi.Invalid, "query.cursor"},
		"unknown parameter":  {"GET", x + "?limt=5", "", nil, 400, engi.Invalid, "query.limt"},
		"negative offset":    {"GET", x + "/" + string(engi.NewExecutionID()) + "/events?offset=-1", "", nil, 400, engi.Invalid, "query.offset"},
		"unknown path":       {"GET", "/v1/execution", "", nil, 404, engi.NotFound, "/v1/execution"},
		"unknown method":     {"PUT", x, "", nil, 405, engi.Invalid, `"PUT"`},
		"odd template name":  {"GET", "/v1/templates/..%2f..%2fetc", "", nil, 400, engi.Invalid, "path.name"},
		"unbuilt template":   {"GET", "/v1/templates/unbuilt", "", nil, 503, engi.Unavailable, "not built"},
		"no such sandbox":    {"GET", "/v1/sandboxes/" + string(engi.NewSandboxID()), "", nil, 404, engi.NotFound, "no sandbox"},
		"no such key":        {"DELETE", "/v1/keys/key_x", "", nil, 404, engi.NotFound, "no such key"},
	} {
		rec := ask(t, w, c.method, c.path, c.body, c.header...)
		p := refused(t, rec, c.status, c.kind)
		if !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s: detail %q does not say %q", name, p.Detail, c.says)
		}
		if t.Failed() {
			t.Fatalf("%s: %s", name, rec.Body)
		}
	}
	xs, err := w.Executions.List(t.Context(), engi.Everyone, engi.ExecutionFilter{})
	if err != nil || len(xs) != 0 {
		t.Errorf("left behind: %v, %v", xs, err)
	}
	if rec := ask(t, w, "PUT", x, ""); rec.Header().Get("Allow") == "" {
		t.Error("405 without Allow")
	}
}

func TestCurlNeedsNoContentType(t *testing.T) {
	rec := ask(t, newFixture(t, nil), "POST", "/v1/executions", " "+program("print(6*7)"), "Content-Type", "application/x-www-form-urlencoded")
	if x := read[v1.Execution](t, rec, 200); x.Result.Stdout != "42\n" {
		t.Errorf("got %s", rec.Body)
	}
}

func TestEveryFaultIsTold(t *testing.T) {
	w := newFixture(t, nil)
	rec := ask(t, w, "POST", "/v1/executions", `{"language":"pyton","files":[{"path":"../x"},{"path":"/y"}],"vcpus":-1}`)
	p := refused(t, rec, 400, engi.Invalid)
	var fields []string
	for _, f := range p.Faults {
		fields = append(fields, f.Field)
	}
	if got, want := strings.Join(fields, " "), "language files[0].path files[1].path entry vcpus"; got != want {
		t.Errorf("faults of %s, want %s", got, want)
	}
}

func TestWhoMayCall(t *testing.T) {
	w := newFixture(t, nil)
	mine := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("echo mine")), 200).ID

	for name, c := range map[string]struct {
		header []string
		status int
		says   string
	}{
		"no key":         {[]string{"Authorization", ""}, 401, "carries no API key"},
		"unknown key":    {[]string{"Authorization", "Bearer engi_" + strings.Repeat("a", 52)}, 401, "unknown key"},
		"no key at all":  {[]string{"Authorization", "Bearer hello"}, 401, "not an engi key"},
		"another scheme": {[]string{"Authorization", "Basic eDp5", "X-API-Key", w.User}, 401, "carries no API key"},
		"bearer":         {[]string{"Authorization", "bearer " + w.User}, 200, ""},
		"header":         {[]string{"Authorization", "", "X-API-Key", w.User}, 200, ""},
	} {
		rec := ask(t, w, "GET", "/v1/node", "", c.header...)
		if c.status == 200 {
			read[v1.Node](t, rec, 200)
			continue
		}
		if p := refused(t, rec, c.status, engi.Anonymous); !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s: %s", name, p.Detail)
		}
		if rec.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", name)
		}
	}

	other := []string{"Authorization", "Bearer " + w.Other}
	for _, c := range []struct{ method, path string }{
		{"GET", ""}, {"DELETE", ""}, {"GET", "/events"}, {"GET", "/artifacts/x"}, {"GET", "?wait=1s"},
	} {
		rec := ask(t, w, c.method, "/v1/executions/"+mine+c.path, "", other...)
		refused(t, rec, 404, engi.NotFound)
	}
	if list := read[v1.List[v1.ExecutionSummary]](t, ask(t, w, "GET", "/v1/executions", "", other...), 200); len(list.Items) != 0 {
		t.Errorf("somebody else sees %v", list.Items)
	}
	root := []string{"Authorization", "Bearer " + w.Admin}
	if list := read[v1.List[v1.ExecutionSummary]](t, ask(t, w, "GET", "/v1/executions", "", root...), 200); len(list.Items) != 1 {
		t.Errorf("the admin sees %v", list.Items)
	}

	// Everything else that a key without admin rights must not do.
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/keys", "{}"}, {"POST", "/v1/templates", `{"name":"x"}`}, {"DELETE", "/v1/templates/host", ""}, {"POST", "/v1/templates/prune", ""},
	} {
		refused(t, ask(t, w, c.method, c.path, c.body), 403, engi.Denied)
	}
	for _, path := range []string{"/v1/executions", "/v1/sandboxes", "/v1/templates", "/v1/pools", "/v1/node", "/v1/keys", "/metrics"} {
		refused(t, ask(t, w, "GET", path, "", "Authorization", ""), 401, engi.Anonymous)
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"} {
		if rec := ask(t, w, "GET", path, "", "Authorization", ""); rec.Code != 200 {
			t.Errorf("GET %s without a key: %d", path, rec.Code)
		}
	}
}

// TestDocsOnAPhone checks that the list of operations leaves room for them where it
// stands above them.
func TestDocsOnAPhone(t *testing.T) {
	css := ask(t, newFixture(t, nil), "GET", "/docs/docs.css", "").Body.String()
	_, narrow, ok := strings.Cut(css, "@media (max-width: 48rem)")
	_, nav, found := strings.Cut(narrow, "nav {")
	nav, _, _ = strings.Cut(nav, "}")
	if !ok || !found || !strings.Contains(nav, "max-height: 11rem") || !strings.Contains(css, "overflow: auto") {
		t.Errorf("on narrow screens: nav {%s}", nav)
	}
}

func TestEndedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, nil)
		root := []string{"Authorization", "Bearer " + w.Admin}
		make := func(body string) v1.Key {
			return read[v1.Key](t, ask(t, w, "POST", "/v1/keys", body, root...), 201)
		}
		k, kept := make(`{"owner":"ann","expires_in":"1h"}`), make(`{"name":"laptop"}`)
		if kept.Owner != "default" || kept.ExpiresAt != nil || kept.Secret == "" || k.ExpiresAt == nil {
			t.Errorf("made %+v, %+v", k, kept)
		}
		auth := func(k v1.Key) []string { return []string{"Authorization", "Bearer " + k.Secret} }
		read[v1.Node](t, ask(t, w, "GET", "/v1/node", "", auth(k)...), 200)
		time.Sleep(time.Hour)
		if p := refused(t, ask(t, w, "GET", "/v1/node", "", auth(k)...), 401, engi.Anonymous); !strings.Contains(p.Detail, "expired at") {
			t.Errorf("expired key: %s", p.Detail)
		}
		if rec := ask(t, w, "DELETE", "/v1/keys/"+kept.ID, "", auth(kept)...); rec.Code != 204 {
			t.Errorf("revoke: %d %s", rec.Code, rec.Body)
		}
		if p := refused(t, ask(t, w, "GET", "/v1/node", "", auth(kept)...), 401, engi.Anonymous); !strings.Contains(p.Detail, "revoked at") {
			t.Errorf("revoked key: %s", p.Detail)
		}
		for _, listed := range read[v1.List[v1.Key]](t, ask(t, w, "GET", "/v1/keys", "", root...), 200).Items {
			if listed.Secret != "" {
				t.Errorf("a list shows the secret of %s", listed.ID)
			}
		}
	})
}

func TestRepeatedRequestMakesOneKey(t *testing.T) {
	w := newFixture(t, nil)
	root := []string{"Authorization", "Bearer " + w.Admin, "Idempotency-Key", "k1"}
	made := read[v1.Key](t, ask(t, w, "POST", "/v1/keys", "{}", root...), 201)
	if p := refused(t, ask(t, w, "POST", "/v1/keys", "{}", root...), 409, engi.Conflict); !strings.Contains(p.Detail, made.ID) {
		t.Errorf("detail %q does not name %s", p.Detail, made.ID)
	}
	root[3] = "k2"
	if other := read[v1.Key](t, ask(t, w, "POST", "/v1/keys", "{}", root...), 201); other.ID == made.ID || len(other.ID) != len(made.ID) {
		t.Errorf("keys %s and %s", made.ID, other.ID)
	}
	root[3] = "k\x01"
	refused(t, ask(t, w, "POST", "/v1/keys", "{}", root...), 400, engi.Invalid)
}

func TestForeignNamesAreRefused(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Hosts = []string{"Engi.Example.com."} })
	for host, want := range map[string]int{
		"localhost": 200, "localhost:7777": 200, "LOCALHOST.": 200, "a.localhost": 200, "127.0.0.1:80": 200, "[::1]:7777": 200, "[::1]": 200, "10.1.2.3": 200,
		"engi.example.com:443": 200, "evil.example.com": 403, "localhost.evil.com": 403, "engi.example.com.evil.com": 403, "": 403,
	} {
		r := httptest.NewRequest("GET", "http://x/healthz", nil)
		r.Host = host
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		if rec.Code != want {
			t.Errorf("Host %q: %d, want %d", host, rec.Code, want)
		}
	}
}

func TestRefusalsSayWhenToComeBack(t *testing.T) {
	w := newFixture(t, nil)
	w.Executions.SetCapacity(0)
	rec := ask(t, w, "POST", "/v1/executions", program("echo"))
	p := refused(t, rec, 429, engi.Exhausted)
	if rec.Header().Get("Retry-After") != "2" || p.RetryAfter.Std() != 1500*time.Millisecond || p.QueuePosition != 7 {
		t.Errorf("Retry-After %q, problem %+v", rec.Header().Get("Retry-After"), p)
	}
}

func TestAsyncAndLongPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, nil)
		start := time.Now()
		rec := ask(t, w, "POST", "/v1/executions", `{"language":"bash","code":"sleep 90s; echo done","timeout":"2m","async":true}`)
		x := read[v1.Execution](t, rec, 202)
		if x.State != v1.Running || rec.Header().Get("Location") != "/v1/executions/"+x.ID {
			t.Fatalf("%s, Location %q", rec.Body, rec.Header().Get("Location"))
		}
		for i, want := range []struct {
			wait  string
			after time.Duration
			state string
		}{{"10s", 10 * time.Second, v1.Running}, {"1h", 70 * time.Second, v1.Running}, {"1h", 90 * time.Second, v1.Done}, {"1h", 90 * time.Second, v1.Done}} {
			x = read[v1.Execution](t, ask(t, w, "GET", "/v1/executions/"+x.ID+"?wait="+want.wait, ""), 200)
			if x.State != want.state || time.Since(start) != want.after {
				t.Errorf("poll %d: %s after %v, want %s after %v", i, x.State, time.Since(start), want.state, want.after)
			}
		}
		if x.Result.Stdout != "done\n" {
			t.Errorf("result %+v", x.Result)
		}
	})
}

func TestRepeatedKeyIsOneRun(t *testing.T) {
	w := newFixture(t, nil)
	first := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("echo once"), "Idempotency-Key", "k1"), 200)
	again := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("echo once"), "Idempotency-Key", "k1"), 200)
	if first.ID != again.ID {
		t.Errorf("two runs: %s, %s", first.ID, again.ID)
	}
	refused(t, ask(t, w, "POST", "/v1/executions", program("echo other"), "Idempotency-Key", "k1"), 409, engi.Conflict)
}

// leave sends a request whose caller leaves as soon as the run is going on,
// and returns the run.
func leave(t *testing.T, w *apitest.Fixture, header ...string) engi.Execution {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/executions", strings.NewReader(program("sleep 30s")))
	r.Header.Set("Authorization", "Bearer "+w.User)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	var served sync.WaitGroup
	served.Go(func() { w.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	synctest.Wait()
	cancel()
	served.Wait()
	xs, err := w.Executions.List(t.Context(), engi.Everyone, engi.ExecutionFilter{})
	if err != nil || len(xs) != 1 {
		t.Fatalf("runs %v, %v", xs, err)
	}
	return xs[0]
}

func TestWhoLeavesCancels(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		want   engi.ExecutionState
	}{
		"waits for JSON":         {nil, engi.ExecutionDone},
		"JSON with a key":        {[]string{"Idempotency-Key", "k"}, engi.ExecutionRunning},
		"watches a stream":       {[]string{"Accept", "text/event-stream"}, engi.ExecutionRunning},
		"watches another stream": {[]string{"Accept", "application/x-ndjson"}, engi.ExecutionRunning},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := leave(t, newFixture(t, nil), c.header...)
			if x.State != c.want {
				t.Errorf("%s: the run is %s, want %s", name, x.State, c.want)
			}
			if x.Result != nil && x.Result.Exit.Cause != engi.CauseCancelled {
				t.Errorf("%s: cause %s", name, x.Result.Exit.Cause)
			}
		})
	}
}

func TestServerLeaves(t *testing.T) {
	for _, form := range []string{"application/json", "application/x-ndjson"} {
		synctest.Test(t, func(t *testing.T) {
			going, goes := context.WithCancel(t.Context())
			w := newFixture(t, func(o *apitest.Options) { o.Leave = going })
			var rec *httptest.ResponseRecorder
			var served sync.WaitGroup
			served.Go(func() { rec = ask(t, w, "POST", "/v1/executions", program("echo a; sleep 30s"), "Accept", form) })
			synctest.Wait()
			goes()
			served.Wait()
			var p v1.Problem
			if form == "application/json" {
				p = refused(t, rec, 503, engi.Unavailable)
				if rec.Header().Get("Location") == "" {
					t.Error("no Location of the run that goes on")
				}
			} else {
				events := ndjson(t, rec.Body)
				p = *events[len(events)-1].Error
			}
			if p.RetryAfter.Std() != time.Second || p.Kind != "unavailable" {
				t.Errorf("%s: %+v", form, p)
			}
			xs, _ := w.Executions.List(t.Context(), engi.Everyone, engi.ExecutionFilter{State: engi.ExecutionRunning})
			if len(xs) != 1 {
				t.Errorf("%s: the run did not go on", form)
			}
			if rec := ask(t, w, "GET", "/readyz", ""); rec.Code != 503 {
				t.Errorf("readyz: %d", rec.Code)
			}
		})
	}
}

func ndjson(t *testing.T, r io.Reader) []v1.ExecutionUpdate {
	t.Helper()
	var events []v1.ExecutionUpdate
	for sc := bufio.NewScanner(r); sc.Scan(); {
		var e v1.ExecutionUpdate
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatalf("%v in %q", err, sc.Text())
		}
		events = append(events, e)
	}
	return events
}

// sse reads a stream as browsers do.
func sse(t *testing.T, r io.Reader) (events []v1.ExecutionUpdate, ids []string) {
	t.Helper()
	var id, kind, data string
	for sc := bufio.NewScanner(r); sc.Scan(); {
		field, value, _ := strings.Cut(sc.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case sc.Text() == "" && data != "":
			var e v1.ExecutionUpdate
			if err := json.Unmarshal([]byte(data), &e); err != nil || e.Type != kind {
				t.Fatalf("%v in %q of %s", err, data, kind)
			}
			events, ids = append(events, e), append(ids, id)
			kind, data = "", ""
		case field == "id":
			id = value
		case field == "event":
			kind = value
		case field == "data":
			data += value
		}
	}
	return events, ids
}

func kinds(events []v1.ExecutionUpdate) string {
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%s@%d", e.Type, e.Offset))
	}
	return strings.Join(all, " ")
}

func TestStreams(t *testing.T) {
	w := newFixture(t, nil)
	code := `put "a\u20ac"; puterr "\xff"; save f.txt hi`
	rec := ask(t, w, "POST", "/v1/executions", program(code), "Accept", "text/event-stream")
	events, ids := sse(t, rec.Body)
	if got, want := kinds(events), "started@0 stdout@4 stderr@5 result@5"; got != want || strings.Join(ids, " ") != "0 4 5 5" {
		t.Errorf("SSE %s with ids %v, want %s", got, ids, want)
	}
	if events[1].Data != "a€" || string(events[2].DataBase64) != "\xff" || events[2].Data != "" {
		t.Errorf("events %+v", events)
	}
	last := events[3].Execution
	if last.Result.Stdout != "a€" || last.Result.Stderr != "\uFFFD" || string(last.Result.StderrBase64) != "\xff" || string(last.Result.Artifacts[0].ContentBase64) != "hi" {
		t.Errorf("result %+v", last.Result)
	}
	if events[0].Execution.Result != nil || events[0].Execution.State != v1.Running {
		t.Errorf("started with %+v", events[0].Execution)
	}

	path := "/v1/executions/" + last.ID + "/events"
	for name, c := range map[string]struct {
		path   string
		header []string
		want   string
	}{
		"from the beginning":   {path, nil, "started@0 stdout@4 stderr@5 result@5"},
		"from an offset":       {path + "?offset=4", nil, "stderr@5 result@5"},
		"from the end":         {path + "?offset=5", nil, "result@5"},
		"as browsers do":       {path + "?offset=1", []string{"Last-Event-ID", "4"}, "stderr@5 result@5"},
		"within a character":   {path + "?offset=2", nil, "stdout@4 stderr@5 result@5"},
		"JSON lines, explicit": {path, []string{"Accept", "application/x-ndjson"}, "started@0 stdout@4 stderr@5 result@5"},
	} {
		rec := ask(t, w, "GET", c.path, "", c.header...)
		if got := kinds(ndjson(t, rec.Body)); got != c.want || rec.Header().Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s: %s (%s), want %s", name, got, rec.Header().Get("Content-Type"), c.want)
		}
	}
	rec = ask(t, w, "GET", path, "")
	if i := bytes.IndexFunc(rec.Body.Bytes(), func(r rune) bool { return r > 127 }); i >= 0 {
		t.Errorf("not ASCII at %d: %q", i, rec.Body)
	}
}

func TestStreamsAreLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, nil)
		for _, form := range []string{"text/event-stream", "application/x-ndjson"} {
			pr, pw := io.Pipe()
			var served sync.WaitGroup
			served.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/executions", strings.NewReader(program("echo a; sleep 40s; echo b")))
				r.Header.Set("Authorization", "Bearer "+w.User)
				r.Header.Set("Accept", form)
				w.Handler.ServeHTTP(&pipeWriter{h: http.Header{}, w: pw}, r)
				pw.Close()
			})
			start := time.Now()
			var beats []time.Duration
			sc := bufio.NewScanner(pr)
			for sc.Scan() {
				if line := sc.Text(); line == ": alive" || line == `{"type":"heartbeat","offset":2}` {
					beats = append(beats, time.Since(start))
				}
			}
			served.Wait()
			if len(beats) != 2 || beats[0] < 15*time.Second || beats[1] > 40*time.Second {
				t.Errorf("%s: heartbeats after %v, want two while the program is silent for 40 s", form, beats)
			}
		}
	})
}

// pipeWriter is a ResponseWriter whose reader sees each byte when it is sent.
type pipeWriter struct {
	h http.Header
	w *io.PipeWriter
}

func (p *pipeWriter) Header() http.Header         { return p.h }
func (p *pipeWriter) WriteHeader(int)             {}
func (p *pipeWriter) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p *pipeWriter) Flush()                      {}

func TestArtifacts(t *testing.T) {
	w := newFixture(t, nil)
	big := strings.Repeat("x", 1<<20)
	rec := ask(t, w, "POST", "/v1/executions", program("save page.html <script>; save dir/ü%2F.txt hi; save big.bin "+big+"; save small yes"))
	x := read[v1.Execution](t, rec, 200)
	var inline []string
	for _, a := range x.Result.Artifacts {
		if a.ContentBase64 != nil {
			inline = append(inline, a.Path)
		}
		got := ask(t, w, "GET", a.URL, "")
		h := got.Header()
		if got.Code != 200 || got.Body.Len() != int(a.Size) || h.Get("ETag") != `"`+a.SHA256+`"` {
			t.Errorf("%s at %s: %d, %d bytes, ETag %s", a.Path, a.URL, got.Code, got.Body.Len(), h.Get("ETag"))
		}
		if h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment") {
			t.Errorf("%s: a browser may run it: %v", a.Path, h)
		}
		if cached := ask(t, w, "GET", a.URL, "", "If-None-Match", h.Get("ETag")); cached.Code != 304 || cached.Body.Len() != 0 {
			t.Errorf("%s again: %d", a.Path, cached.Code)
		}
	}
	if got := strings.Join(inline, " "); got != "page.html dir/ü%2F.txt small" {
		t.Errorf("inside the answer: %s", got)
	}
	refused(t, ask(t, w, "GET", "/v1/executions/"+x.ID+"/artifacts/nope", ""), 404, engi.NotFound)
	refused(t, ask(t, w, "GET", "/v1/executions/"+x.ID+"/artifacts/..%2f..%2fetc%2fpasswd", ""), 404, engi.NotFound)
}

func TestPages(t *testing.T) {
	w := newFixture(t, nil)
	var want []string
	for i := range 5 {
		x := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program(fmt.Sprintf("exit %d", i))), 200)
		want = append([]string{x.ID}, want...)
	}
	var got []string
	path := "/v1/executions?limit=2"
	for path != "" {
		page := read[v1.List[v1.ExecutionSummary]](t, ask(t, w, "GET", path, ""), 200)
		for _, x := range page.Items {
			got = append(got, x.ID)
		}
		path = ""
		if page.NextCursor != "" {
			path = "/v1/executions?limit=2&cursor=" + page.NextCursor
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("pages %v, want %v", got, want)
	}
}

func TestTemplatesAreBuilt(t *testing.T) {
	w := newFixture(t, nil)
	root := []string{"Authorization", "Bearer " + w.Admin}
	build := func(body string, header ...string) *httptest.ResponseRecorder {
		return ask(t, w, "POST", "/v1/templates", body, append(root, header...)...)
	}
	if x := read[v1.Template](t, build(`{"name":"mine","definition":"good"}`), 200); !x.Built || x.Name != "mine" {
		t.Errorf("built %+v", x)
	}
	refused(t, build(`{"name":"mine","definition":"bad"}`), 400, engi.Invalid)
	refused(t, build(`{"name":"../x"}`), 400, engi.Invalid)
	refused(t, build(`{"name":"nope"}`, "Accept", "application/x-ndjson"), 404, engi.NotFound)
	for definition, want := range map[string]string{
		"good": "progress log progress log progress log result", "bad": "progress log error",
	} {
		rec := build(`{"name":"mine","definition":"`+definition+`"}`, "Accept", "application/x-ndjson")
		var got []string
		for sc := bufio.NewScanner(rec.Body); sc.Scan(); {
			var e v1.BuildUpdate
			if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Type)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", definition, s, want)
		}
	}
	if rec := build(`{"name":"mine","definition":"good"}`, "Accept", "text/event-stream"); !strings.Contains(rec.Body.String(), "event: result\ndata: {") {
		t.Errorf("SSE: %s", rec.Body)
	}
	refused(t, ask(t, w, "DELETE", "/v1/templates/base", "", root...), 409, engi.Conflict)
	if rec := ask(t, w, "DELETE", "/v1/templates/mine", "", root...); rec.Code != 204 {
		t.Errorf("remove: %d", rec.Code)
	}
	if p := read[v1.Pruned](t, ask(t, w, "POST", "/v1/templates/prune", "", root...), 200); p.Freed != 1<<20 {
		t.Errorf("pruned %v", p)
	}
	rec := ask(t, w, "GET", "/v1/templates", "")
	if strings.Contains(rec.Body.String(), "/secret/place") {
		t.Error("the answer tells where a template lies on the host")
	}
}

func TestLeavingEndsABuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, nil)
		for _, form := range []string{"application/json", "application/x-ndjson"} {
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/templates", strings.NewReader(`{"name":"x","definition":"slow"}`))
			r.Header.Set("Authorization", "Bearer "+w.Admin)
			r.Header.Set("Accept", form)
			var served sync.WaitGroup
			served.Go(func() { w.Handler.ServeHTTP(httptest.NewRecorder(), r) })
			synctest.Wait()
			cancel()
			served.Wait() // hangs, and synctest says so, if the build goes on
		}
	})
}

func TestSandboxes(t *testing.T) {
	w := newFixture(t, nil)
	read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", `{"language":"bash","code":"sleep 30s","async":true}`), 202)
	list := read[v1.List[v1.Sandbox]](t, ask(t, w, "GET", "/v1/sandboxes", ""), 200)
	if len(list.Items) != 1 || list.Items[0].State != "running" || list.Items[0].Size.Memory != 512<<20 {
		t.Fatalf("sandboxes %+v", list)
	}
	path := "/v1/sandboxes/" + list.Items[0].ID
	read[v1.Sandbox](t, ask(t, w, "GET", path, ""), 200)
	refused(t, ask(t, w, "DELETE", path, "", "Authorization", "Bearer "+w.Other), 404, engi.NotFound)
	if rec := ask(t, w, "DELETE", path, ""); rec.Code != 204 {
		t.Errorf("stop: %d", rec.Code)
	}
	refused(t, ask(t, w, "GET", path, ""), 404, engi.NotFound)
}

func TestHealth(t *testing.T) {
	w := newFixture(t, nil)
	for cold, want := range map[bool]int{true: 503, false: 200} {
		w.Pools.SetCold(cold)
		if r := read[v1.Readiness](t, ask(t, w, "GET", "/readyz", ""), want); r.Ready == cold || cold && !strings.Contains(r.Reason, "base/python") {
			t.Errorf("cold %t: %+v", cold, r)
		}
	}
	if rec := ask(t, w, "GET", "/healthz", ""); rec.Code != 200 {
		t.Errorf("healthz: %d", rec.Code)
	}
	ask(t, w, "GET", "/v1/nope", "")
	metrics := ask(t, w, "GET", "/metrics", "").Body.String()
	for _, line := range []string{
		`engi_http_requests_total{route="GET /readyz",status="503"} 1`, `engi_http_requests_total{route="none",status="404"} 1`,
		`engi_http_requests_in_flight 1`, `engi_http_request_seconds_count{route="GET /healthz"} 1`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("metrics have no line %s:\n%s", line, metrics)
		}
	}
}

func TestLogHasOneLineAndNoSecrets(t *testing.T) {
	var log bytes.Buffer
	w := newFixture(t, func(o *apitest.Options) { o.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	ask(t, w, "POST", "/v1/executions?token=QUERYSECRET", program("CODESECRET"))
	ask(t, w, "POST", "/v1/executions", program("echo CODESECRET"), "X-Request-Id", "my-id.1")
	ask(t, w, "GET", "/v1/node", "", "X-Request-Id", "evil\nid", "Authorization", "Bearer engi_nonsense")
	ask(t, w, "GET", "/healthz", "")
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 {
		t.Errorf("%d lines, want 3:\n%s", len(lines), &log)
	}
	for _, secret := range []string{"SECRET", w.User, "nonsense", "evil"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q in it:\n%s", secret, &log)
		}
	}
	for _, part := range []string{`"request_id":"my-id.1"`, `"status":200`, `"owner":"ann"`, `"path":"/v1/executions"`} {
		if !strings.Contains(lines[1], part) {
			t.Errorf("no %s in %s", part, lines[1])
		}
	}
}

// broken panics and fails in ways that a caller must not see.
type broken struct{ engi.Executions }

func (broken) Get(context.Context, engi.Viewer, engi.ExecutionID) (engi.Execution, error) {
	panic("at /secret/path")
}
func (broken) List(context.Context, engi.Viewer, engi.ExecutionFilter) ([]engi.Execution, error) {
	return nil, engi.Errorf(engi.Internal, "database: password hunter2")
}

func TestFaultsOfOursStayInTheLog(t *testing.T) {
	var log bytes.Buffer
	w := newFixture(t, func(o *apitest.Options) {
		o.Executions = broken{}
		o.Log = slog.New(slog.NewJSONHandler(&log, nil))
	})
	for path, secret := range map[string]string{"/v1/executions/" + string(engi.NewExecutionID()): "/secret/path", "/v1/executions": "hunter2"} {
		log.Reset()
		rec := ask(t, w, "GET", path, "")
		p := refused(t, rec, 500, engi.Internal)
		if strings.Contains(rec.Body.String(), secret) {
			t.Errorf("%s tells %q: %s", path, secret, rec.Body)
		}
		if !strings.Contains(log.String(), secret) || !strings.Contains(log.String(), p.RequestID) {
			t.Errorf("%s: the log does not have %q and %s:\n%s", path, secret, p.RequestID, &log)
		}
	}
}

// TestTooMuch sends more than is taken over a real connection, as clients do
// that listen only when they have sent everything, and uses it again.
func TestTooMuch(t *testing.T) {
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.MaxBody = 1 << 20 })
	body := program(strings.Repeat("x", 50<<20))
	send := func(length int64, header ...string) (status, used string) {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		r, err := http.NewRequest("POST", srv.URL+"/v1/executions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = length
		r.Header.Set("Authorization", "Bearer "+w.User)
		if err := r.Write(conn); err != nil {
			t.Fatalf("the server does not listen to the end: %v", err)
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		status = resp.Status
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return status, err.Error()
		}
		if resp, err = http.ReadResponse(in, r); err != nil {
			return status, err.Error()
		}
		return status, resp.Status
	}
	for name, length := range map[string]int64{"told before": int64(len(body)), "chunked": -1} {
		if status, used := send(length); status != "413 Request Entity Too Large" || used != "200 OK" {
			t.Errorf("%s: %s, and then on the same connection: %s", name, status, used)
		}
	}

	r, err := http.NewRequest("POST", srv.URL+"/v1/executions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.User)
	r.Header.Set("Expect", "100-continue")
	tr := &http.Transport{ExpectContinueTimeout: time.Minute}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("a client that asks first: %s", resp.Status)
	}
}

func TestManyLargeBodiesAreRefused(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.MaxBody, o.MaxHeld = 1<<20, 1<<10 })
	rec := ask(t, w, "POST", "/v1/executions", program(strings.Repeat("x", 2<<10)))
	refused(t, rec, 429, engi.Exhausted)
	for range 3 { // what was refused does not count for ever
		read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("echo "+strings.Repeat("x", 600))), 200)
	}
}

// TestBodiesOfOneOwnerLeaveSpace has one owner send more large bodies at once than the
// server holds, which never end until another has sent one.
func TestBodiesOfOneOwnerLeaveSpace(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.MaxBody, o.MaxHeld = 2<<20, 8<<20 })
	begin := func() (end func() (status int)) {
		out, in := io.Pipe()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/executions", out)
		r.Header.Set("Authorization", "Bearer "+w.User)
		rec, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			w.Handler.ServeHTTP(rec, r)
			out.CloseWithError(io.ErrClosedPipe)
		}()
		// A mebibyte counts once it was read, and what is refused is not read on.
		_, _ = io.WriteString(in, strings.Repeat(" ", 1<<20+1))
		return func() int {
			_, _ = io.WriteString(in, "{}")
			in.Close()
			<-done
			return rec.Code
		}
	}
	for range 2 { // all is given back
		var ends []func() int
		for range 10 {
			ends = append(ends, begin())
		}
		read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("print(6*7)"), "Authorization", "Bearer "+w.Other), 200)
		codes := map[int]int{}
		for _, end := range ends {
			codes[end()]++
		}
		if whole := codes[http.StatusBadRequest]; whole < 4 || codes[http.StatusTooManyRequests] != 10-whole || whole > 6 {
			t.Errorf("answers: %v", codes)
		}
	}
}

// TestStalledReader holds that a caller that does not read cannot keep a run's
// stream, and what it holds, for ever. The deadline is the server's; here it
// is enough that a broken writer ends the stream.
func TestStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, nil)
		x := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", `{"language":"bash","code":"echo a; sleep 1s; echo b; sleep 50s","async":true}`), 202)
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/v1/executions/"+x.ID+"/events", nil)
		r.Header.Set("Authorization", "Bearer "+w.User)
		start := time.Now()
		w.Handler.ServeHTTP(&stalledWriter{h: http.Header{}, room: 1}, r)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("the stream lasted %v", took)
		}
	})
}

// stalledWriter takes some writes; each one after blocks until its deadline.
type stalledWriter struct {
	h        http.Header
	room     int
	deadline time.Time
}

func (s *stalledWriter) Header() http.Header { return s.h }
func (s *stalledWriter) WriteHeader(int)     {}
func (s *stalledWriter) Flush()              {}
func (s *stalledWriter) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}
func (s *stalledWriter) Write(b []byte) (int, error) {
	if s.room--; s.room >= 0 {
		return len(b), nil
	}
	if s.deadline.IsZero() {
		select {}
	}
	time.Sleep(time.Until(s.deadline))
	return 0, context.DeadlineExceeded
}

// TestBothProtocols asks over HTTP/1.1 and over HTTP/2 without TLS.
func TestBothProtocols(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2.0": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		set(tr.Protocols)
		r, err := http.NewRequest("POST", srv.URL+"/v1/executions", strings.NewReader(program("echo hi")))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+w.User)
		r.Header.Set("Accept", "text/event-stream")
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		events, _ := sse(t, resp.Body)
		resp.Body.Close()
		tr.CloseIdleConnections()
		if resp.Proto != name || kinds(events) != "started@0 stdout@3 result@3" {
			t.Errorf("%s: %s %s", name, resp.Proto, kinds(events))
		}
	}
}
