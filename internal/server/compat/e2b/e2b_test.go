package e2b

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

func TestSignature(t *testing.T) {
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	g := signature{path: "hello.txt", operation: "read", user: "user", value: "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"}
	if !g.made(token) {
		t.Error("the signature of the documentation is refused")
	}
	for _, bad := range []signature{
		{path: "other.txt", operation: "read", user: "user", value: g.value},
		{path: "hello.txt", operation: "write", user: "user", value: g.value},
		{path: "hello.txt", operation: "read", user: "root", value: g.value},
		{path: "hello.txt", operation: "read", user: "user", value: g.value, expires: "99999999999"},
		{path: "hello.txt", operation: "read", user: "user"},
	} {
		if bad.made(token) {
			t.Errorf("%+v is good", bad)
		}
	}
	late := signature{path: "f", operation: "read", expires: "1000"}
	late.value = sign(late, token)
	if err := late.current(time.Unix(999, 0)); err != nil || !late.made(token) {
		t.Error(err)
	}
	if err := late.current(time.Unix(1000, 0)); err == nil || err.Error() != "signature is already expired" {
		t.Errorf("too late: %v", err)
	}
	q := url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {strings.ReplaceAll("v1_a+b", "+", " ")}}
	if g, ok := signatureOf(q, "GET"); !ok || g.value != "v1_a+b" || g.operation != "read" {
		t.Errorf("got %+v", g)
	}
}

// sign makes a signature by trying what check takes.
func sign(g signature, token string) string {
	text := g.path + ":" + g.operation + ":" + g.user + ":" + token
	if g.expires != "" {
		text += ":" + g.expires
	}
	return signed(text)
}

func TestMetadataFilter(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                             nil,
		"a=b":                          {"a": "b"},
		"k%2520e=v%25261":              {"k e": "v&1"},
		"path=a%252Fb%252520c&x=%25FF": {"path": "a/b%20c", "x": "\xff"},
		"a=100%25":                     {"a": "100%"},
	} {
		got, err := metadataOf(text)
		if err != nil || len(got) != len(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%q: %q is %q, want %q", text, k, got[k], v)
			}
		}
	}
	if _, err := metadataOf("a=%zz"); !engi.Is(err, engi.Invalid) {
		t.Errorf("bad escape: %v", err)
	}
}

func FuzzMetadataFilter(f *testing.F) {
	f.Add("k%2520e=v%25261")
	f.Add("=&=;%")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := metadataOf(text); err != nil && !engi.Is(err, engi.Invalid) {
			t.Error(err)
		}
	})
}

func FuzzTarget(f *testing.F) {
	f.Add("3000-"+strings.Repeat("a", 26)+".sbx.test:80", "", "")
	f.Add("localhost", strings.Repeat("a", 26)+"-engi", "49983")
	f.Add("[::1]:80", "x", "70000")
	f.Fuzz(func(t *testing.T, host, id, port string) {
		r := &http.Request{Host: host, Header: http.Header{sandboxHeader: {id}, portHeader: {port}}}
		if _, n, ok := Target(r, ""); ok && (n < 1 || n > 65535) {
			t.Errorf("port %d", n)
		}
	})
}

func TestTarget(t *testing.T) {
	id := engi.NewSandboxID()
	l := id.Label()
	for _, c := range []struct {
		host, id, port string
		want           engi.SandboxID
		n              int
		ok             bool
	}{
		{"3000-" + l + ".sbx.test:8443", "", "", id, 3000, true},
		{"3000-" + strings.ToUpper(l) + ".sbx.test", "", "", id, 3000, true},
		{"49983-" + l + "-engi.sbx.test", "", "", id, 49983, true},
		{"127.0.0.1:1", l, "49999", id, 49999, true},
		{"127.0.0.1:1", l + "-engi", "", id, EnvdPort, true},
		{"127.0.0.1:1", "nosuch", "80", "nosuch", 80, true},
		{"127.0.0.1:1", "", "80", "", 0, false},
		{"127.0.0.1:1", l, "0", "", 0, false},
		{"127.0.0.1:1", l, "65536", "", 0, false},
		{"api.sbx.test", "", "", "", 0, false},
	} {
		r := &http.Request{Host: c.host, Header: http.Header{}}
		r.Header.Set(sandboxHeader, c.id)
		r.Header.Set(portHeader, c.port)
		if got, n, ok := Target(r, ""); got != c.want || n != c.n || ok != c.ok {
			t.Errorf("%+v: %q %d %v", c, got, n, ok)
		}
	}
}

func TestWhoMay(t *testing.T) {
	w := newFixture(t)
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	path := "/sandboxes/" + made["sandboxID"].(string)
	for _, c := range []struct {
		key, method, path, body string
		status                  int
	}{
		{"", "GET", path, "", 401},
		{"nobody", "GET", path, "", 401},
		{"ben", "GET", path, "", 404},
		{"ben", "DELETE", path, "", 404},
		{"ben", "POST", path + "/timeout", `{"timeout":1}`, 404},
		{"look", "POST", "/v2/sandboxes", `{"templateID":"base"}`, 403},
		{"look", "DELETE", path, "", 403},
		{"ann", "GET", path, "", 200},
		{"root", "GET", path, "", 200},
		{"e2b_" + hex.EncodeToString([]byte("ann")), "GET", path, "", 200},
		{"e2b_zz", "GET", path, "", 401},
		{"ann", "POST", path + "/pause", "", 501},
		{"ann", "GET", "/snapshots", "", 501},
		{"ann", "GET", "/volumes", "", 501},
		{"ann", "GET", "/secrets", "", 501},
		{"ann", "GET", "/nothing", "", 404},
	} {
		m := w.want(c.status, c.key, c.method, c.path, c.body)
		if c.status >= 400 && (m["code"] != float64(c.status) || m["message"] == "") {
			t.Errorf("%s %s as %s: %v", c.method, c.path, c.key, m)
		}
	}
	if m := w.want(200, "", "GET", path, "", "Authorization", "Bearer ann"); m["envdAccessToken"] != made["envdAccessToken"] {
		t.Errorf("got %v", m)
	}
	if m := w.want(200, "look", "GET", path, ""); m["envdAccessToken"] != nil {
		t.Error("a key that only reads gets the access token")
	}
	if m := w.want(200, "ben", "GET", "/v2/sandboxes", ""); len(m["list"].([]any)) != 0 {
		t.Errorf("ben sees %v", m)
	}
}

// A web page can make a name of its own resolve to this server.
func TestControlNames(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Hosts = []string{"api.sbx.test"} })
	link := "/templates/x/files/abc?expires=1&signature=x"
	for root := range roots {
		for _, path := range []string{"/" + root, "/" + root + "/x", "/v2/" + root, "/v3/" + root, link} {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
				for host, served := range map[string]bool{"evil.test": false, "evil.test:80": false, "api.sbx.test.evil.test": false, "API.sbx.test:8443": true, "localhost": true, "127.0.0.1:7777": true} {
					r := httptest.NewRequest(method, path, strings.NewReader("{}"))
					r.Host = host
					r.Header.Set("X-API-KEY", "root")
					rec := httptest.NewRecorder()
					w.Control().ServeHTTP(rec, r)
					if refused := rec.Code == 403 && strings.Contains(rec.Body.String(), "host name"); refused == served {
						t.Errorf("%s %s at %s: %d %s", method, path, host, rec.Code, rec.Body)
					}
				}
			}
		}
	}
}

func TestGuestGetsNoCredentials(t *testing.T) {
	w := newFixture(t)
	var mu sync.Mutex
	var seen http.Header
	var path string
	w.sandboxes.guest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen, path = r.Header.Clone(), r.URL.RequestURI()
		rw.Header().Set("Set-Cookie", "a=b")
		io.WriteString(rw, "{}")
	})
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	id, token := made["sandboxID"].(string), made["envdAccessToken"].(string)
	in := func(status int, path, port string, header ...string) http.Header {
		t.Helper()
		got, h, m := w.call("key", "GET", path, "", append([]string{sandboxHeader, id, portHeader, port}, header...)...)
		if got != status {
			t.Fatalf("%s at %s: status %d, want %d: %v", path, port, got, status, m)
		}
		return h
	}
	in(401, "/envs", "49983")
	in(401, "/envs", "49983", accessHeader, "wrong")
	in(401, "/files?path=x&signature=v1_x", "49983")
	in(401, "/execute", "49999")
	h := in(200, "/envs?a=b%20c", "49983", accessHeader, token, "Cookie", "x=y", "Authorization", "Basic dXNlcjo=", "X-Metadata-A", "b", "X-Forwarded-Authorization", "Bearer engi_"+strings.Repeat("abcd", 13))
	mu.Lock()
	if path != "/envs?a=b%20c" || seen.Get("X-Metadata-A") != "b" || seen.Get("Authorization") != "Basic dXNlcjo=" {
		t.Errorf("the guest saw %s %v", path, seen)
	}
	for _, name := range []string{accessHeader, "X-Api-Key", "Cookie", sandboxHeader, portHeader, "X-Forwarded-For", "X-Forwarded-Authorization"} {
		if v := seen.Get(name); v != "" {
			t.Errorf("the guest saw %s: %s", name, v)
		}
	}
	mu.Unlock()
	if h.Get("Set-Cookie") != "" {
		t.Error("the guest sets cookies")
	}
	in(200, "/contexts", "49999", "Authorization", "Bearer secret", trafficHeader, made["trafficAccessToken"].(string))
	mu.Lock()
	if path != "/interpreter/contexts" || seen.Get("Authorization") != "" {
		t.Errorf("the guest saw %s %v", path, seen)
	}
	mu.Unlock()
	in(200, "/health", "49983", accessHeader, token)
	in(200, "/execute", "49999", accessHeader, token)

	// A URL that is signed needs no name of the sandbox.
	g := signature{path: "/f", operation: "read"}
	q := url.Values{"path": {"/f"}, "signature": {sign(g, token)}}
	w.want(200, "", "GET", "/files?"+q.Encode(), "")
	q.Set("path", "/g")
	w.want(401, "", "GET", "/files?"+q.Encode(), "")
	w.want(400, "", "GET", "/files?path=/f", "")

	w.want(204, "ann", "DELETE", "/sandboxes/"+id, "")
	if m := w.want(502, "", "GET", "/health", "", sandboxHeader, id, portHeader, "49983"); m["message"] != textLost || m["sandboxId"] != id {
		t.Errorf("got %v", m)
	}
}

func TestHealthWakesNobody(t *testing.T) {
	w := newFixture(t)
	w.sandboxes.guest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(204) })
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`)
	id := made["sandboxID"].(string)
	w.sandboxes.mu.Lock()
	w.sandboxes.all[0].State = engi.Hibernated
	w.sandboxes.mu.Unlock()
	w.want(502, "", "GET", "/health", "", sandboxHeader, id, portHeader, "49983")
	w.want(204, "", "GET", "/envs", "", sandboxHeader, id, portHeader, "49983", accessHeader, made["envdAccessToken"].(string))
	w.sandboxes.mu.Lock()
	w.sandboxes.all[0].Disk = true // without memory, only its owner wakes it
	w.sandboxes.mu.Unlock()
	w.want(502, "", "GET", "/envs", "", sandboxHeader, id, portHeader, "49983", accessHeader, made["envdAccessToken"].(string))
}

// A chunked body whose end the server has not read when the response begins must
// not break the response.
func TestAnswersBeforeTheEndOfTheBody(t *testing.T) {
	w := newFixture(t)
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	id, token := made["sandboxID"].(string), made["envdAccessToken"].(string)
	// The guest responds at once, and the transport still sends the body while
	// the response is read.
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(200)
		http.NewResponseController(rw).Flush()
		time.Sleep(5 * time.Millisecond)
		io.WriteString(rw, "the answer")
	}))
	srv.Config.Protocols = cleartext()
	srv.Start()
	defer srv.Close()
	w.sandboxes.mu.Lock()
	w.sandboxes.remote = srv.URL
	w.sandboxes.mu.Unlock()
	for _, path := range []string{"/process.Process/Start", "/files?path=x"} {
		for range 50 {
			body, feed := io.Pipe()
			go func() {
				io.WriteString(feed, "a message")
				time.Sleep(time.Millisecond)
				feed.Close()
			}()
			r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = http.Header{sandboxHeader: {id}, portHeader: {"49983"}, accessHeader: {token}}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(b) != "the answer" {
				t.Fatalf("%s: %q, %v", path, b, err)
			}
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newFixture(t)
	for body, status := range map[string]int{
		`{`:                                  400,
		`{}`:                                 400,
		`{"templateID":"none"}`:              404,
		`{"templateID":"base:tag"}`:          404,
		`{"templateID":"base","timeout":-1}`: 400,
		`{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`:   400,
		`{"templateID":"base","network":{"allowOut":["example.com"]}}`:                                   400,
		`{"templateID":"base","network":{"denyOut":["example.com"]}}`:                                    400,
		`{"templateID":"base","network":{"allowOut":["a b"],"denyOut":["0.0.0.0/0"]}}`:                   400,
		`{"templateID":"base","network":{"egressProxy":{"address":"nowhere"}}}`:                          400,
		`{"templateID":"base","network":{"httpsPorts":[49983]}}`:                                         400,
		`{"templateID":"base","unknown":{"field":1},"network":{"rules":null},"mcp":null,"envVars":null}`: 201,
		`"` + strings.Repeat("x", maxBody) + `"`:                                                         413,
	} {
		if got, _, m := w.call("ann", "POST", "/v2/sandboxes", body); got != status {
			t.Errorf("%.100s: status %d, want %d: %v", body, got, status, m)
		}
	}
}

func TestPolicyKeepsPasswordsToItself(t *testing.T) {
	w := newFixture(t)
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","allow_internet_access":false,
		"network":{"allowOut":["example.com"],"denyOut":["0.0.0.0/0"],"egressProxy":{"address":"p:1","username":"u","password":"a secret value"},"rules":{"a":[]}}}`)
	path := "/sandboxes/" + made["sandboxID"].(string)
	m := w.want(200, "ann", "GET", path, "")
	b, _ := json.Marshal(m)
	if strings.Contains(string(b), "a secret value") || m["allowInternetAccess"] != false {
		t.Errorf("got %s", b)
	}
	w.sandboxes.mu.Lock()
	sandbox := w.sandboxes.all[0]
	w.sandboxes.mu.Unlock()
	if sandbox.Network.Mode != engi.NetworkRestricted || sandbox.Network.Proxy == nil || sandbox.Network.Proxy.Password != "a secret value" {
		t.Errorf("kept %+v %v", sandbox.Network, sandbox.Notes)
	}
	w.want(204, "ann", "PUT", path+"/network", `{}`)
	m = w.want(200, "ann", "GET", path, "")
	if n := m["network"].(map[string]any); n["allowOut"] != nil || n["egressProxy"] != nil || m["allowInternetAccess"] != true {
		t.Errorf("after an empty update: %v", m)
	}
}

func TestPages(t *testing.T) {
	w := newFixture(t)
	want := map[string]bool{}
	for range 5 {
		want[w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)["sandboxID"].(string)] = true
	}
	token, pages := "", 0
	for {
		status, h, m := w.call("ann", "GET", "/v2/sandboxes?limit=2&nextToken="+token, "")
		if status != 200 {
			t.Fatalf("status %d: %v", status, m)
		}
		for _, x := range m["list"].([]any) {
			id := x.(map[string]any)["sandboxID"].(string)
			if !want[id] {
				t.Errorf("%s twice", id)
			}
			delete(want, id)
		}
		pages++
		if token = h.Get("X-Next-Token"); token == "" {
			break
		}
	}
	if pages != 3 || len(want) != 0 {
		t.Errorf("%d pages, %d left out", pages, len(want))
	}
	for _, q := range []string{"limit=0", "limit=101", "limit=x", "state=odd", "order=up", "startedAfter=x", "nextToken=x", "metadata=%25zz"} {
		w.want(400, "ann", "GET", "/v2/sandboxes?"+q, "")
	}
}

func TestBuild(t *testing.T) {
	w := newFixture(t)
	m := w.want(202, "ann", "POST", "/v3/templates", `{"name":"App:v1"}`)
	id, build := m["templateID"].(string), m["buildID"].(string)
	status := "/templates/" + id + "/builds/" + build + "/status"
	if m := w.want(200, "ann", "GET", status, ""); m["status"] != "waiting" || m["logs"] == nil || m["logEntries"] == nil {
		t.Errorf("got %v", m)
	}
	w.want(404, "ben", "GET", status, "")

	// A file that is copied goes up through a link that is good for it only.
	steps := `{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","/a","",""],"filesHash":"abc"},{"type":"RUN","args":["true",""]},{"type":"ENV","args":["A","b"]}]}`
	w.want(400, "ann", "POST", "/v2/templates/"+id+"/builds/"+build, steps)
	m = w.want(201, "ann", "GET", "/templates/"+id+"/files/abc", "")
	link := m["url"].(string)
	if m["present"] != false {
		t.Errorf("got %v", m)
	}
	w.want(403, "", "PUT", strings.Replace(link, "files/abc", "files/abd", 1), "x")
	w.want(403, "", "PUT", strings.Replace(link, "expires=", "expires=1", 1), "x")
	w.want(413, "", "PUT", link, strings.Repeat("x", 1001))
	w.want(200, "", "PUT", link, "the archive")
	if m := w.want(201, "ann", "GET", "/templates/"+id+"/files/abc", ""); m["present"] != true {
		t.Errorf("got %v", m)
	}
	w.want(400, "ann", "GET", "/templates/"+id+"/files/a.b", "")

	code, h, _ := w.call("ann", "POST", "/v2/templates/"+id+"/builds/"+build, steps)
	if code != 202 || h.Get("Content-Length") != "0" {
		t.Errorf("status %d, length %q", code, h.Get("Content-Length"))
	}
	end := w.ended(status)
	if end["status"] != "ready" {
		t.Fatalf("got %v", end)
	}
	if logs, _ := json.Marshal(end["logs"]); !strings.Contains(string(logs), "the archive") {
		t.Errorf("logs %s", logs)
	}
	w.want(409, "ann", "POST", "/v2/templates/"+id+"/builds/"+build, steps)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(w.Dir, "builds", "*"))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("a build has left %v, %v", left, err)
		}
		if len(left) == 0 {
			break // it is removed after the end was told
		}
	}
	w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"app:v1"}`)
	w.want(404, "ann", "POST", "/v2/sandboxes", `{"templateID":"app:v2"}`)
	w.want(404, "ben", "POST", "/v2/sandboxes", `{"templateID":"app:v1"}`)
	w.want(200, "ann", "GET", "/templates/aliases/app", "")
	w.want(404, "ben", "GET", "/templates/aliases/app", "")

	// One that fails says at which step and why, in its own words.
	m = w.want(202, "ann", "POST", "/v3/templates", `{"name":"app"}`)
	if m["templateID"] != id {
		t.Errorf("another template of the name: %v", m)
	}
	build = m["buildID"].(string)
	status = "/templates/" + id + "/builds/" + build + "/status"
	w.templates.mu.Lock()
	w.templates.fail = engi.Errorf(engi.Invalid, "build template %s: it broke", w.Server.built(id, build))
	w.templates.mu.Unlock()
	w.want(202, "ann", "POST", "/v2/templates/"+id+"/builds/"+build, `{"steps":[{"type":"RUN","args":["x"]}]}`)
	end = w.ended(status)
	if r := end["reason"].(map[string]any); end["status"] != "error" || r["message"] != "it broke" || r["step"] != "1" {
		t.Errorf("got %v", end)
	}
	w.want(204, "ann", "DELETE", "/templates/"+id, "")
	w.want(404, "ann", "DELETE", "/templates/"+id, "")
	w.templates.mu.Lock()
	defer w.templates.mu.Unlock()
	if len(w.templates.names) != 1 {
		t.Errorf("left %v", w.templates.names)
	}
}

// ended waits for a build to end and returns its status with all lines.
func (w *fixture) ended(status string) map[string]any {
	w.t.Helper()
	for range 6000 {
		m := w.want(200, "ann", "GET", status, "")
		if m["status"] == "ready" || m["status"] == "error" {
			return m
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatal("the build does not end")
	return nil
}

func TestBuildRefuses(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"", "Bad Name", "-x", strings.Repeat("x", 200), "x:bad tag"} {
		b, _ := json.Marshal(map[string]string{"name": name})
		w.want(400, "ann", "POST", "/v3/templates", string(b))
	}
	m := w.want(202, "ann", "POST", "/v3/templates", `{"name":"x"}`)
	path := "/v2/templates/" + m["templateID"].(string) + "/builds/" + m["buildID"].(string)
	for body, status := range map[string]int{
		`{"fromImage":"a","fromTemplate":"base"}`:                              400,
		`{"fromTemplate":"none"}`:                                              404,
		`{"steps":[{"type":"ADD","args":["a"]}]}`:                              400,
		`{"steps":[{"type":"RUN","args":[]}]}`:                                 400,
		`{"steps":[{"type":"ENV","args":["A"]}]}`:                              400,
		`{"steps":[{"type":"USER","args":["a","b"]}]}`:                         400,
		`{"steps":[{"type":"COPY","args":["a","b"]}]}`:                         400,
		`{"steps":[{"type":"COPY","args":["a","b"],"filesHash":"../../etc"}]}`: 400,
		`{"fromImage":"a","fromImageRegistry":{"type":"aws"}}`:                 501,
		`{"startCmd":"x"}`:                                                     501,
	} {
		w.want(status, "ann", "POST", path, body)
	}
}

func TestUploadsAreBounded(t *testing.T) {
	for name, body := range map[string]func(string) io.Reader{
		"with a length": func(s string) io.Reader { return strings.NewReader(s) },
		"chunked":       func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) },
	} {
		t.Run(name, func(t *testing.T) { uploadsAreBounded(t, body) })
	}
}

func uploadsAreBounded(t *testing.T, body func(string) io.Reader) {
	w := newFixture(t)
	id := w.want(202, "ann", "POST", "/v3/templates", `{"name":"x"}`)["templateID"].(string)
	for _, hash := range []string{"one", "two", "three"} {
		link := w.want(201, "ann", "GET", "/templates/"+id+"/files/"+hash, "")["url"].(string)
		r, err := http.NewRequestWithContext(t.Context(), "PUT", link, body(strings.Repeat("x", 700)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		time.Sleep(5 * time.Millisecond) // apart in the file system's clock
	}
	var total int64
	err := filepath.WalkDir(filepath.Join(w.Dir, "files"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, ierr := d.Info()
			if ierr != nil {
				return ierr
			}
			total += info.Size()
		}
		return err
	})
	if err != nil || total > 1500 {
		t.Errorf("%d bytes are kept, %v", total, err)
	}
	if m := w.want(201, "ann", "GET", "/templates/"+id+"/files/three", ""); m["present"] != true {
		t.Error("the newest was thrown away")
	}
}

func TestRecover(t *testing.T) {
	store := newStore(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "builds", "left"), 0o700); err != nil {
		t.Fatal(err)
	}
	store.Put(t.Context(), registry.Template{ID: "t", Owner: "ann", Name: "x", Builds: []registry.Build{{ID: "a", State: registry.BuildBuilding}, {ID: "b", State: registry.BuildReady}, {ID: "c", State: registry.BuildWaiting}}})
	w := newFixture(t, func(o *Options) { o.Store, o.Dir = store, dir })
	got, err := w.Store.Get(t.Context(), "ann", "x")
	if err != nil {
		t.Fatal(err)
	}
	if got.Builds[0].State != registry.BuildFailed || got.Builds[0].Reason == "" || got.Builds[1].State != registry.BuildReady || got.Builds[2].State != registry.BuildWaiting {
		t.Errorf("got %+v", got.Builds)
	}
	if _, err := os.Stat(filepath.Join(dir, "builds")); !os.IsNotExist(err) {
		t.Errorf("what a build has left is there: %v", err)
	}
}

func TestSweepTemplates(t *testing.T) {
	w := newFixture(t)
	id := strings.Repeat("a", 20)
	lost, kept, failed := w.Server.built(id, "00000000"), w.Server.built(id, "00000001"), w.Server.built(id, "00000002")
	others := "e2b-01234567-" + id + "-00000000" // of a node that shares the cache
	w.Store.Put(t.Context(), registry.Template{ID: id, Name: "x", Builds: []registry.Build{{ID: "1", State: registry.BuildReady, Template: kept}, {ID: "2", State: registry.BuildFailed, Template: failed}}})
	w.templates.mu.Lock()
	for _, name := range []string{lost, kept, failed, others, "e2b-mine"} {
		w.templates.names[name] = true
	}
	w.templates.mu.Unlock()
	if err := w.sweepTemplates(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.templates.mu.Lock()
	defer w.templates.mu.Unlock()
	if n := w.templates.names; n[lost] || n[failed] || !n[kept] || !n["base"] || !n[others] || !n["e2b-mine"] {
		t.Errorf("left %v", n)
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.key")
	a, err := LoadSecret(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadSecret(path)
	if err != nil || string(a) != string(b) || len(a) != secretSize {
		t.Errorf("%x, then %x, %v", a, b, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecret(path); !engi.Is(err, engi.Invalid) {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestListByStart(t *testing.T) {
	w := newFixture(t)
	w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	id := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)["sandboxID"]
	now := time.Now()
	w.sandboxes.mu.Lock()
	w.sandboxes.all[0].Started = now.Add(time.Hour) // it was resumed
	w.sandboxes.mu.Unlock()
	list := w.want(200, "ann", "GET", "/v2/sandboxes?startedAfter="+now.Add(time.Minute).UTC().Format(time.RFC3339), "")["list"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["sandboxID"] != id {
		t.Errorf("listed %v", list)
	}
}

// Users of E2B's clients have none of the commands and settings that remedies name.
func TestRemediesAreApart(t *testing.T) {
	w := httptest.NewRecorder()
	fail(w, engi.Errorf(engi.Denied, "not this").WithRemedy("run 'engi allow this'"))
	var m map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || m["message"] != "not this" || m["remedy"] != "run 'engi allow this'" || m["code"] != 403.0 {
		t.Errorf("%s, %v", w.Body, err)
	}
}

func TestLogs(t *testing.T) {
	w := newFixture(t)
	id := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)["sandboxID"].(string)
	path := "/sandboxes/" + id + "/logs"
	m := w.want(200, "ann", "GET", path, "")
	lines, entries := m["logs"].([]any), m["logEntries"].([]any)
	if len(lines) == 0 || len(lines) != len(entries) {
		t.Fatalf("got %v", m)
	}
	for _, l := range lines {
		var parsed map[string]string
		if err := json.Unmarshal([]byte(l.(map[string]any)["line"].(string)), &parsed); err != nil || parsed["level"] != "info" || parsed["logger"] == "" || parsed["message"] == "" {
			t.Errorf("line %v: %v", l, err)
		}
	}
	if e := entries[0].(map[string]any); e["level"] != "info" || e["message"] != "created from base" || e["fields"].(map[string]any)["logger"] == "" {
		t.Errorf("entry %v", e)
	}
	if m := w.want(200, "ann", "GET", "/v2"+path, ""); len(m["logs"].([]any)) != len(lines) {
		t.Errorf("version 2: %v", m)
	}
	later := strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)
	if m := w.want(200, "ann", "GET", path+"?start="+later, ""); len(m["logs"].([]any)) != 0 {
		t.Errorf("since later: %v", m)
	}
	w.want(400, "ann", "GET", path+"?start=x", "")
}
