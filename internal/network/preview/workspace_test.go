package preview

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/internal/engi"
)

// sites is a fake Workspaces with one workspace.
type sites struct {
	x     engi.Workspace
	files map[string]string
	open  atomic.Int64 // number of files that were not closed
}

func (s *sites) Get(_ context.Context, _ engi.Viewer, workspace string) (engi.Workspace, error) {
	if workspace != string(s.x.ID) {
		return engi.Workspace{}, engi.Errorf(engi.NotFound, "no workspace")
	}
	return s.x, nil
}

type siteFile struct {
	io.ReadSeeker
	s *sites
}

func (f siteFile) Close() error { f.s.open.Add(-1); return nil }

func (s *sites) PreviewFile(_ context.Context, _ engi.Viewer, _, name string) (engi.PublishedFile, error) {
	text, ok := s.files[name]
	if !ok {
		return engi.PublishedFile{}, engi.Errorf(engi.NotFound, "no file")
	}
	s.open.Add(1)
	return engi.PublishedFile{Path: name, Digest: name, Size: int64(len(text)), Content: siteFile{strings.NewReader(text), s}}, nil
}

func newSites(t *testing.T) (*fixture, *sites) {
	s := &sites{
		x: engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "ann", Collaborators: []engi.Collaborator{{Owner: "vera", Role: engi.RoleViewer}}},
		files: map[string]string{
			"index.html": "<h1>shop</h1>", "a.css": "b{}", "docs/index.html": "docs", "x.bin": "0123456789",
		},
	}
	return newFixture(t, func(o *Options) { o.Workspaces = s }), s
}

func (f *fixture) visit(t *testing.T, address, path string, header ...string) (*http.Response, string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	method := http.MethodGet
	if m, rest, ok := strings.Cut(path, " "); ok {
		method, path = m, rest
	}
	r, err := http.NewRequestWithContext(t.Context(), method, f.http.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = u.Host
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return do(t, r)
}

func (f *fixture) bearer(k engi.Key) string {
	f.t.Helper()
	_, secret, err := f.keys.Create(f.t.Context(), k)
	if err != nil {
		f.t.Fatal(err)
	}
	return "Bearer " + secret
}

func TestStaticPreviews(t *testing.T) {
	f, s := newSites(t)
	address := f.proxy.WorkspaceURL(s.x.ID, "")
	if want := "http://ws-" + s.x.ID.Label() + ".sbx.test/"; address != want {
		t.Fatalf("%s, want %s", address, want)
	}
	ann := f.bearer(engi.Key{Owner: "ann"})
	if res, body := f.visit(t, address, "/", "Authorization", ann); res.StatusCode != 404 || !strings.Contains(body, noPreview) {
		t.Errorf("of nothing: %d %s", res.StatusCode, body)
	}
	s.x.Preview = engi.WorkspacePreview{Type: engi.PreviewStatic, Public: true}
	for _, c := range []struct {
		path, header, value string
		status              int
		want, kind          string
	}{
		{"/", "", "", 200, "<h1>shop</h1>", "text/html; charset=utf-8"},
		{"/a.css", "", "", 200, "b{}", "text/css; charset=utf-8"},
		{"/deep/route", "Accept", "text/html", 200, "<h1>shop</h1>", "text/html; charset=utf-8"},
		{"/deep/route", "Accept", "application/json", 404, "", ""},
		{"/docs", "", "", 302, "", ""},
		{"/docs/", "", "", 200, "docs", "text/html; charset=utf-8"},
		{"/x.bin", "Range", "bytes=2-4", 206, "234", "application/octet-stream"},
		{"/x.bin", "Range", "bytes=90-", 416, "", ""},
		{"/x.bin", "If-None-Match", `"x.bin"`, 304, "", ""},
		{"/../x.bin", "", "", 404, "", ""},
		{"POST /", "", "", 405, "", ""},
		{"HEAD /", "", "", 200, "", "text/html; charset=utf-8"},
	} {
		res, body := f.visit(t, address, c.path, c.header, c.value)
		if res.StatusCode != c.status || c.status/100 == 2 && (body != c.want || res.Header.Get("Content-Type") != c.kind || res.Header.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s %s: %d %q %v", c.path, c.value, res.StatusCode, body, res.Header)
		}
	}
	for deadline := time.Now().Add(time.Minute); s.open.Load() != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are open", s.open.Load())
		}
	}
	for _, host := range []string{"ws-" + engi.NewWorkspaceID().Label(), "ws-", "ws-x", "ws-" + s.x.ID.Label() + "-nginx", "ws-" + s.x.ID.Label() + "-"} {
		res, body := f.visit(t, "http://"+host+".sbx.test/", "/", "Authorization", ann)
		if trailing := strings.HasSuffix(host, s.x.ID.Label()+"-"); res.StatusCode != 404 && !trailing || trailing && body != "<h1>shop</h1>" {
			t.Errorf("%s: %d %s", host, res.StatusCode, body)
		}
	}
	f.proxy.o.Private = true
	if res, body := f.visit(t, address, "/"); res.StatusCode != 403 || !strings.Contains(body, ofMembers) {
		t.Errorf("private by the node: %d %s", res.StatusCode, body)
	}
}

// TestPrivatePreviews requests the previews of a workspace and its services as each kind of client.
func TestPrivatePreviews(t *testing.T) {
	f, s := newSites(t)
	nginx, main := f.sandbox(echo), f.sandbox(echo)
	nginx.ports[80] = nginx.ports[3000]
	s.x.Sandbox = main.record.ID
	s.x.Services = []engi.Service{
		{Name: "nginx", Type: engi.ServiceNginx, Sandbox: nginx.record.ID, Port: 80, Exposed: true},
		{Name: "hidden", Type: engi.ServiceNginx, Sandbox: nginx.record.ID, Port: 80},
		{Name: "db", Type: engi.ServicePostgres, Sandbox: nginx.record.ID, Port: 80, Exposed: true},
	}
	preview := f.proxy.WorkspaceURL(s.x.ID, "")
	who := map[string]int{"": 403, f.bearer(engi.Key{Owner: "ann"}): 200, f.bearer(engi.Key{Owner: "vera"}): 200, f.bearer(engi.Key{Owner: "eve"}): 403, f.bearer(engi.Key{Admin: true}): 200}
	for _, c := range []struct {
		service string
		shows   engi.WorkspacePreview
	}{
		{"", engi.WorkspacePreview{Type: engi.PreviewStatic}}, {"", engi.WorkspacePreview{Type: engi.PreviewProxy, Port: 3000}}, {"", engi.WorkspacePreview{Type: engi.PreviewWebSocket, Port: 3000}},
		{"nginx", engi.WorkspacePreview{}}, {"nginx", engi.WorkspacePreview{Type: engi.PreviewStatic, Public: true}},
	} {
		s.x.Preview = c.shows
		address := f.proxy.WorkspaceURL(s.x.ID, c.service)
		for auth, want := range who {
			if res, body := f.visit(t, address, "/", "Authorization", auth); res.StatusCode != want || want == 403 && !strings.Contains(body, "orkspace") {
				t.Errorf("%+v, %.15s: %d %s", c, auth, res.StatusCode, body)
			}
		}
		link, expires, err := f.proxy.SignWorkspace(s.x.ID, c.service, time.Hour)
		if err != nil || time.Until(expires) > time.Hour || !strings.HasPrefix(link, address) {
			t.Fatal(link, expires, err)
		}
		query := link[strings.Index(link, "?"):]
		if res, body := f.visit(t, address, "/"+query); res.StatusCode != 200 || strings.Contains(body, tokenParameter) {
			t.Errorf("%+v, a link: %d %s", c, res.StatusCode, body)
		}
		res, _ := f.visit(t, address, "/a"+query, "Accept", "text/html")
		if res.StatusCode != 303 || res.Header.Get("Location") != "/a" || len(res.Cookies()) != 1 {
			t.Fatalf("a browser with the link: %d %v", res.StatusCode, res.Header)
		}
		cookie := tokenCookie + "=" + res.Cookies()[0].Value
		for origin, want := range map[string]int{
			"": 200, strings.TrimSuffix(address, "/"): 200, "http://ws-" + engi.NewWorkspaceID().Label() + ".sbx.test": 403, "http://" + main.host(3000): 403,
			"http://ws-" + s.x.ID.Label() + "-other.sbx.test": 403, "https://else.where": 403,
		} {
			if res, _ := f.visit(t, address, "/", "Cookie", cookie, "Origin", origin); res.StatusCode != want {
				t.Errorf("%+v, the cookie from %q: %d", c, origin, res.StatusCode)
			}
		}
		for what, wrong := range map[string]func() (string, time.Time, error){
			"another workspace's": func() (string, time.Time, error) {
				return f.proxy.SignWorkspace(engi.NewWorkspaceID(), c.service, time.Hour)
			},
			"another service's": func() (string, time.Time, error) {
				return f.proxy.SignWorkspace(s.x.ID, c.service+"x", time.Hour)
			},
			"its sandbox's": func() (string, time.Time, error) { return f.proxy.Sign(main.record.ID, 3000, time.Hour) },
		} {
			link, _, err := wrong()
			if err != nil {
				t.Fatal(err)
			}
			if res, _ := f.visit(t, address, "/"+link[strings.Index(link, "?"):]); res.StatusCode != 403 {
				t.Errorf("%+v, %s link: %d", c, what, res.StatusCode)
			}
		}
	}
	for _, service := range []string{"hidden", "db", "none"} {
		for auth, want := range who {
			if want == 200 {
				want = 404
			}
			if res, body := f.visit(t, f.proxy.WorkspaceURL(s.x.ID, service), "/", "Authorization", auth); res.StatusCode != want {
				t.Errorf("%s, %.15s: %d %s", service, auth, res.StatusCode, body)
			}
		}
	}
	s.x.Preview = engi.WorkspacePreview{Type: engi.PreviewProxy, Port: 3000}
	for _, sandbox := range []engi.SandboxID{"", engi.NewSandboxID()} { // no sandbox, and a lost one
		s.x.Sandbox = sandbox
		for auth, want := range who {
			if want == 200 {
				want = 502
			}
			if res, body := f.visit(t, preview, "/", "Authorization", auth); res.StatusCode != want || (want == 502) != strings.Contains(body, notStarted) {
				t.Errorf("one that does not run (%q), %.15s: %d %s", sandbox, auth, res.StatusCode, body)
			}
		}
	}
	long := strings.Repeat("a", 40)
	if got := f.proxy.WorkspaceURL(s.x.ID, long); got != "" {
		t.Errorf("of a name that is too long: %s", got)
	}
	if _, _, err := f.proxy.SignWorkspace(s.x.ID, long, time.Hour); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	if _, _, err := f.proxy.SignWorkspace(s.x.ID, "", LongestLink+time.Second); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
}

// TestProxiedPreviews: a preview follows the sandbox of its workspace, WebSockets
// included, and reaches no port that is served here.
func TestProxiedPreviews(t *testing.T) {
	f, s := newSites(t)
	f.proxy.o.Special = map[int]http.Handler{3001: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a port that is served here") })}
	address := f.proxy.WorkspaceURL(s.x.ID, "")
	s.x.Preview = engi.WorkspacePreview{Type: engi.PreviewProxy, Port: 3000, Public: true}
	for _, text := range []string{"old", "new"} {
		b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "" {
				c, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.CloseNow()
				if err := c.Write(r.Context(), websocket.MessageText, []byte(text)); err != nil {
					t.Error(err)
				}
				return
			}
			io.WriteString(w, text)
		}))
		b.change(func(x *engi.Sandbox) { x.Ports.Private = true }) // the workspace decides the access
		s.x.Sandbox = b.record.ID
		if res, body := f.visit(t, address, "/"); res.StatusCode != 200 || body != text {
			t.Errorf("the %s sandbox: %d %s", text, res.StatusCode, body)
		}
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(f.http.URL, "http"), &websocket.DialOptions{Host: u.Host})
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
		c.CloseNow()
	}
	s.x.Preview.Port = 3001
	if res, _ := f.visit(t, address, "/"); res.StatusCode != 502 {
		t.Errorf("of a port on which nothing listens: %d", res.StatusCode)
	}
}
