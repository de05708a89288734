package preview

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// A fixture is a node with sandboxes whose ports are listeners of this process.
type fixture struct {
	engi.Sandboxes // nil, because other methods are not used

	t     testing.TB
	keys  *key.Keyring
	proxy *Proxy
	http  *httptest.Server

	mu        sync.Mutex
	sandboxes map[engi.SandboxID]*fakeSandbox
	entered   int // number of calls of Enter that were not released
}

// A fakeSandbox is a sandbox and its engi.Guest.
type fakeSandbox struct {
	engi.Guest

	w       *fixture
	mu      sync.Mutex
	record  engi.Sandbox
	ports   map[int]string // addresses of listeners, by port
	conns   map[net.Conn]bool
	dials   int
	files   map[string]string
	refusal error // error that Enter returns
}

func newFixture(t testing.TB, change func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, keys: key.New(store.Keys(storetest.Open(t))), sandboxes: map[engi.SandboxID]*fakeSandbox{}}
	o := Options{Sandboxes: f, Keys: f.keys, LinkKey: make([]byte, 32), Domains: []string{"sbx.test"}}
	if change != nil {
		change(&o)
	}
	f.proxy = New(o)
	f.http = httptest.NewUnstartedServer(f.proxy)
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	f.http.Config.Protocols = p
	f.http.Start()
	t.Cleanup(func() {
		f.http.CloseClientConnections()
		f.http.Close()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			f.mu.Lock()
			n := f.entered
			f.mu.Unlock()
			if n == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%d requests did not release their sandbox", n)
				break
			}
		}
	})
	return f
}

func (f *fixture) Get(_ context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Sandbox, error) {
	f.mu.Lock()
	b := f.sandboxes[id]
	f.mu.Unlock()
	if b == nil || !viewer.Sees(b.record.Owner) {
		return engi.Sandbox{}, engi.Errorf(engi.NotFound, "no sandbox %s", id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record, nil
}

func (f *fixture) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	if _, err := f.Get(ctx, viewer, id); err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.sandboxes[id]
	if b.refusal != nil {
		return nil, nil, b.refusal
	}
	f.entered++
	return b, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.entered--
	}), nil
}

// sandbox creates a sandbox whose port 3000 is served by h.
func (f *fixture) sandbox(h http.Handler) *fakeSandbox {
	b := &fakeSandbox{w: f, ports: map[int]string{}, conns: map[net.Conn]bool{}}
	b.record = engi.Sandbox{ID: engi.NewSandboxID(), Owner: "ann", State: engi.Running, Started: time.Now()}
	f.mu.Lock()
	f.sandboxes[b.record.ID] = b
	f.mu.Unlock()
	if h != nil {
		s := httptest.NewUnstartedServer(h)
		p := new(http.Protocols)
		p.SetHTTP1(true)
		p.SetUnencryptedHTTP2(true)
		s.Config.Protocols = p
		s.Start()
		f.t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		b.ports[3000] = s.Listener.Addr().String()
	}
	return b
}

// raw serves each connection to port 3000 with f.
func (b *fakeSandbox) raw(f func(net.Conn)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.w.t.Fatal(err)
	}
	b.w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(c)
		}
	}()
	b.ports[3000] = l.Addr().String()
}

func (b *fakeSandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dials++
	addr := b.ports[port]
	if addr == "" || b.record.State != engi.Running {
		return nil, engi.Errorf(engi.Unavailable, "no program listens on port %d", port)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		b.conns[c] = true
	}
	return c, err
}

func (b *fakeSandbox) Stat(context.Context, string) (engi.FileInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.record.State != engi.Running {
		return engi.FileInfo{}, engi.Errorf(engi.Unavailable, "gone")
	}
	return engi.FileInfo{}, nil
}

func (b *fakeSandbox) Open(_ context.Context, name string) (io.ReadCloser, error) {
	if text, ok := b.files[name]; ok {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	return nil, engi.Errorf(engi.NotFound, "no file %s", name)
}

func (b *fakeSandbox) List(_ context.Context, dir string, _ int) ([]engi.FileInfo, error) {
	var list []engi.FileInfo
	for name, text := range b.files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok && !strings.Contains(rest, "/") {
			list = append(list, engi.FileInfo{Path: name, Target: text})
		}
	}
	return list, nil
}

// end stops the sandbox.
func (b *fakeSandbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record.State = engi.Stopped
	for c := range b.conns {
		c.Close()
	}
}

func (b *fakeSandbox) change(f func(*engi.Sandbox)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.record)
}

// host returns the host name of a port.
func (b *fakeSandbox) host(port int) string {
	return strconv.Itoa(port) + "-" + b.record.ID.Label() + ".sbx.test"
}

// request returns a request to port 3000.
func (b *fakeSandbox) request(method, path string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(b.w.t.Context(), method, b.w.http.URL+path, body)
	if err != nil {
		b.w.t.Fatal(err)
	}
	r.Host = b.host(3000)
	return r
}

// client returns a client that follows no redirects.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func do(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestMain(m *testing.M) {
	code := m.Run()
	client.CloseIdleConnections()
	os.Exit(code)
}
