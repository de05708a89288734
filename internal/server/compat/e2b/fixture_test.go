package e2b

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/store"
)

// fakeKeys has keys whose secrets are their IDs.
type fakeKeys struct {
	engi.Keys // panics: not used
	mu        sync.Mutex
	all       []engi.Key
}

func (r *fakeKeys) Authenticate(_ context.Context, secret string) (engi.Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.all {
		if k.ID == secret && k.Revoked.IsZero() {
			return k, nil
		}
	}
	return engi.Key{}, engi.Errorf(engi.Anonymous, "unknown key")
}

func (r *fakeKeys) Live(_ context.Context, owner engi.Owner) (live []engi.Key, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.all {
		if k.Revoked.IsZero() && (k.Admin || k.Owner == owner) {
			live = append(live, k)
		}
	}
	return live, nil
}

func (r *fakeKeys) Revoke(_ context.Context, _ engi.Viewer, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.all {
		if r.all[i].ID == id {
			r.all[i].Revoked = time.Now()
		}
	}
	return nil
}

// fakeSandboxes keeps records only; guest handles the requests to all of them.
type fakeSandboxes struct {
	mu     sync.Mutex
	all    []engi.Sandbox
	guest  http.Handler
	remote string // URL of a server to use in place of guest
	enters int
}

func (b *fakeSandboxes) Create(_ context.Context, s engi.SandboxSpec) (engi.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sandbox := engi.Sandbox{ID: engi.NewSandboxID(), Owner: s.Owner, Template: s.Template, State: engi.Running, Created: time.Now(), Started: time.Now(), Lifetime: s.Lifetime,
		Metadata: s.Metadata, Network: s.Network, Ports: s.Ports, Notes: s.Notes, Snapshot: s.Snapshot, Deadline: time.Now().Add(s.Lifetime.Timeout)}
	b.all = append([]engi.Sandbox{sandbox}, b.all...)
	return sandbox, nil
}

func (b *fakeSandboxes) Get(_ context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.all {
		if x.ID == id && viewer.Sees(x.Owner) {
			return x, nil
		}
	}
	return engi.Sandbox{}, engi.Errorf(engi.NotFound, "no such sandbox")
}

func (b *fakeSandboxes) List(_ context.Context, viewer engi.Viewer, f engi.SandboxFilter) (list []engi.Sandbox, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := f.After == ""
	for _, x := range b.all {
		if seen && viewer.Sees(x.Owner) && !x.Started.Before(f.Started) && (f.Limit <= 0 || len(list) < f.Limit) {
			list = append(list, x)
		}
		seen = seen || x.ID == f.After
	}
	return list, nil
}

func (b *fakeSandboxes) Update(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, u engi.SandboxUpdate) (engi.Sandbox, error) {
	if _, err := b.Get(ctx, viewer, id); err != nil {
		return engi.Sandbox{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.all {
		x := &b.all[i]
		if x.ID != id {
			continue
		}
		if u.Network != nil {
			x.Network = *u.Network
		}
		if u.Notes != nil {
			x.Notes = *u.Notes
		}
		if u.Timeout != nil {
			x.Deadline = time.Now().Add(*u.Timeout)
		}
		return *x, nil
	}
	panic("unreachable")
}

func (b *fakeSandboxes) Stop(_ context.Context, viewer engi.Viewer, id engi.SandboxID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.all {
		if b.all[i].ID == id {
			b.all[i].State = engi.Stopped
		}
	}
	return nil
}

type fakeGuest struct {
	engi.Guest
	h      http.Handler
	remote string
}

// guests speaks HTTP/2 without TLS, as guests do.
var guests = &http.Transport{Protocols: cleartext()}

func cleartext() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func (g fakeGuest) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.remote != "" {
		out := r.Clone(r.Context())
		out.URL.Host, out.RequestURI = strings.TrimPrefix(g.remote, "http://"), ""
		return guests.RoundTrip(out)
	}
	w := httptest.NewRecorder()
	g.h.ServeHTTP(w, r)
	return w.Result(), nil
}

func (b *fakeSandboxes) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	x, err := b.Get(ctx, viewer, id)
	if err != nil {
		return nil, nil, err
	}
	if x.State != engi.Running && !x.Lifetime.AutoResume {
		return nil, nil, engi.Errorf(engi.Conflict, "it is hibernated")
	}
	b.mu.Lock()
	b.enters++
	b.mu.Unlock()
	return fakeGuest{h: b.guest, remote: b.remote}, func() {}, nil
}

func (b *fakeSandboxes) Samples(context.Context, engi.Viewer, engi.SandboxID, time.Time, time.Time) ([]engi.Sample, error) {
	return []engi.Sample{{Time: time.Now()}}, nil
}

// fakeTemplates has engi's templates by name.
type fakeTemplates struct {
	mu    sync.Mutex
	names map[string]bool
	fail  error

	during func(context.Context, engi.BuildSpec) // each build; nil is nothing
}

func (s *fakeTemplates) Get(_ context.Context, name string) (engi.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] {
		return engi.Template{Name: name, Digest: "sha256:x"}, nil
	}
	return engi.Template{}, engi.Errorf(engi.NotFound, "no template %q", name)
}
func (s *fakeTemplates) List(context.Context) (list []engi.Template, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.names {
		list = append(list, engi.Template{Name: name})
	}
	return list, nil
}
func (s *fakeTemplates) Build(context.Context, string, []byte, func(engi.Progress)) (engi.Template, error) {
	panic("not used")
}
func (s *fakeTemplates) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
	return nil
}
func (s *fakeTemplates) Prune(context.Context) (int64, error) { return 0, nil }

func (s *fakeTemplates) BuildSteps(ctx context.Context, spec engi.BuildSpec, progress func(engi.Progress)) (engi.Template, error) {
	if s.during != nil {
		s.during(ctx, spec)
		if ctx.Err() != nil {
			return engi.Template{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
		}
	}
	progress(engi.Progress{Step: 1, Steps: 3, Name: "begin"})
	progress(engi.Progress{Step: 2, Steps: 3, Name: "run it"})
	for _, st := range spec.Steps {
		if st.Archive != "" {
			b, err := os.ReadFile(st.Archive)
			if err != nil {
				return engi.Template{}, engi.Errorf(engi.Internal, "%v", err)
			}
			progress(engi.Progress{Step: 2, Steps: 3, Log: string(b)})
		}
	}
	if s.fail != nil {
		return engi.Template{}, s.fail
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[spec.Name] = true
	return engi.Template{Name: spec.Name}, nil
}

// newStore returns an empty store of templates.
func newStore(t *testing.T) registry.Store {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return store.Registry(db)
}

type fixture struct {
	*Server
	t         *testing.T
	sandboxes *fakeSandboxes
	templates *fakeTemplates
	url       string
}

func newFixture(t *testing.T, more ...func(*Options)) *fixture {
	t.Helper()
	w := &fixture{t: t, sandboxes: &fakeSandboxes{guest: http.NotFoundHandler()}, templates: &fakeTemplates{names: map[string]bool{"base": true}}}
	o := Options{
		Internet:  engi.NetworkOpen,
		Sandboxes: w.sandboxes, Templates: w.templates, Builder: w.templates, Store: newStore(t),
		Keys: &fakeKeys{all: []engi.Key{{ID: "ann", Owner: "ann"}, {ID: "ann's other", Owner: "ann"}, {ID: "ben", Owner: "ben"}, {ID: "root", Admin: true},
			{ID: "look", Owner: "ann", Scopes: []engi.Scope{engi.ScopeRead}}}},
		Secret: make([]byte, 32), Dir: t.TempDir(), MaxUpload: 1000, MaxUploads: 1500,
	}
	for _, f := range more {
		f(&o)
	}
	w.Server = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	ready := make(chan struct{})
	running.Go(func() {
		if err := w.Run(ctx, func() { close(ready) }); err != nil {
			t.Error(err)
		}
	})
	<-ready
	control, in := w.Control(), w.Proxy()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, _, ok := Target(r, ""); ok {
			in.ServeHTTP(rw, r)
			return
		}
		control.ServeHTTP(rw, r)
	}))
	w.url = srv.URL
	t.Cleanup(func() { srv.Close(); cancel(); running.Wait() })
	return w
}

// call sends a request and decodes the response.
func (w *fixture) call(key, method, path, body string, header ...string) (int, http.Header, map[string]any) {
	w.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = w.url + path
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("X-API-KEY", key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var m map[string]any
	if len(b) > 0 && b[0] == '[' {
		b = append(append([]byte(`{"list":`), b...), '}')
	}
	if len(b) > 0 && b[0] == '{' {
		if err := json.Unmarshal(b, &m); err != nil {
			w.t.Fatalf("%s %s answered %q: %v", method, path, b, err)
		}
	}
	return resp.StatusCode, resp.Header, m
}

func (w *fixture) want(status int, key, method, path, body string, header ...string) map[string]any {
	w.t.Helper()
	got, _, m := w.call(key, method, path, body, header...)
	if got != status {
		w.t.Fatalf("%s %s: status %d, want %d: %v", method, path, got, status, m)
	}
	return m
}
