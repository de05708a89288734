package workspace

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

// oneRecord is a store with one workspace.
type oneRecord struct {
	Store
	r Record
}

func (o oneRecord) Find(_ context.Context, viewer engi.Viewer, id string) (Record, error) {
	if id != string(o.r.ID) {
		viewer = "a stranger"
	}
	return o.r, o.r.Allow(viewer, engi.RoleViewer)
}

// hearing has sandboxes with servers that receive the first words of a client and disconnect.
type hearing struct {
	engi.Sandboxes
	entered engi.SandboxID
	port    int
	heard   chan []byte
	inside  int
}

func (h *hearing) Enter(_ context.Context, _ engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	h.entered = id
	h.inside++
	return guestOf{h: h}, func() { h.inside-- }, nil
}

type guestOf struct {
	engi.Guest
	h *hearing
}

func (g guestOf) Dial(_ context.Context, port int) (net.Conn, error) {
	g.h.port = port
	client, s := net.Pipe()
	go func() {
		if port == 3306 { // its server speaks first
			greeting := append([]byte("\x0a10.11\x00\x01\x00\x00\x0012345678\x00\xff\xf7\x2d\x02\x00\xff\x81\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00123456789012\x00"), "mysql_native_password\x00"...)
			_, _ = s.Write(append([]byte{byte(len(greeting)), 0, 0, 0}, greeting...))
		}
		b := make([]byte, 4096)
		n, err := s.Read(b)
		if err != nil && err != io.EOF {
			n = 0
		}
		s.Close()
		g.h.heard <- b[:n]
	}()
	return client, nil
}

func testService(services ...ServiceRecord) (*Service, *hearing) {
	h := &hearing{heard: make(chan []byte, 100)}
	r := Record{Workspace: engi.Workspace{ID: "ws_1", Owner: "owner", Collaborators: []engi.Collaborator{
		{Owner: "editor", Role: engi.RoleEditor}, {Owner: "reviewer", Role: engi.RoleReviewer}, {Owner: "viewer", Role: engi.RoleViewer},
	}}, Services: services}
	return New(Options{Store: oneRecord{r: r}, Sandboxes: h}), h
}

func serviceOf(name string, kind engi.ServiceType) ServiceRecord {
	return ServiceRecord{Service: engi.Service{Name: name, Type: kind, Sandbox: engi.SandboxID("sb_" + name), State: engi.ServiceHealthy}, User: "chief", Password: "hush", Database: "data"}
}

// TestDatabaseRoles calls every method in every role.
func TestDatabaseRoles(t *testing.T) {
	calls := map[string]func(s *Service, viewer engi.Viewer) error{
		"query": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Query(t.Context(), engi.Query{Viewer: viewer, Workspace: "ws_1", Text: "SELECT 1"})
			return err
		},
		"query, read-only": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Query(t.Context(), engi.Query{Viewer: viewer, Workspace: "ws_1", Text: "SELECT 1", ReadOnly: true})
			return err
		},
		"explain": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Explain(t.Context(), engi.Query{Viewer: viewer, Workspace: "ws_1", Text: "SELECT 1"})
			return err
		},
		"tables": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Tables(t.Context(), engi.Query{Viewer: viewer, Workspace: "ws_1"})
			return err
		},
		"describe": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Describe(t.Context(), engi.Query{Viewer: viewer, Workspace: "ws_1"}, "t")
			return err
		},
		"command": func(s *Service, viewer engi.Viewer) error {
			_, err := s.Command(t.Context(), viewer, "ws_1", "", []string{"PING"})
			return err
		},
	}
	// An admitted user finds a server that disconnects, so that the database is unavailable; the
	// server receives the name of the database user.
	const in = engi.Unavailable
	want := map[string]map[engi.Viewer]string{
		"query":            {engi.Everyone: "chief", "owner": "chief", "editor": "chief", "reviewer": "denied", "viewer": "denied", "stranger": "not_found", "": "not_found"},
		"query, read-only": {engi.Everyone: "engi_reader", "owner": "engi_reader", "editor": "engi_reader", "reviewer": "engi_reader", "viewer": "denied", "stranger": "not_found", "": "not_found"},
		"command":          {engi.Everyone: "chief", "owner": "chief", "editor": "chief", "reviewer": "denied", "viewer": "denied", "stranger": "not_found", "": "not_found"},
	}
	for _, same := range []string{"explain", "tables", "describe"} {
		want[same] = map[engi.Viewer]string{engi.Everyone: "chief", "owner": "chief", "editor": "chief", "reviewer": "engi_reader", "viewer": "denied", "stranger": "not_found", "": "not_found"}
	}
	for _, sql := range []engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL} {
		for name, call := range calls {
			for viewer, as := range want[name] {
				s, h := testService(serviceOf("db", sql), serviceOf("cache", engi.ServiceRedis), serviceOf("web", engi.ServiceNginx))
				err := call(s, viewer)
				got := engi.KindOf(err).String()
				if engi.Is(err, in) {
					heard := <-h.heard
					for _, user := range []string{"chief", "engi_reader"} {
						if bytes.Contains(heard, []byte(user)) {
							got = user
						}
					}
				}
				if got != as {
					t.Errorf("%s of %s as %q: got %s (%v), want %s", name, sql, viewer, got, err, as)
				}
				if h.inside != 0 {
					t.Errorf("%s of %s as %q does not leave the sandbox", name, sql, viewer)
				}
				if err != nil && strings.Contains(err.Error(), "hush") {
					t.Errorf("the password is in %v", err)
				}
			}
		}
	}
}

func TestDatabaseOfService(t *testing.T) {
	pg, my, cache := serviceOf("pg", engi.ServicePostgres), serviceOf("my", engi.ServiceMySQL), serviceOf("cache", engi.ServiceRedis)
	stopped, going := pg, pg
	stopped.Sandbox, stopped.State = "", engi.ServiceStopped
	going.Going = true
	type outcome struct {
		Kind    engi.Kind
		Sandbox engi.SandboxID
		Port    int
	}
	for _, x := range []struct {
		what     string
		services []ServiceRecord
		service  string
		want     outcome
	}{
		{"the only one", []ServiceRecord{cache, pg}, "", outcome{engi.Unavailable, "sb_pg", 5432}},
		{"one by name", []ServiceRecord{cache, my, pg}, "my", outcome{engi.Unavailable, "sb_my", 3306}},
		{"one of two", []ServiceRecord{my, pg}, "", outcome{engi.Invalid, "", 0}},
		{"none", []ServiceRecord{cache}, "", outcome{engi.NotFound, "", 0}},
		{"another name", []ServiceRecord{pg}, "nix", outcome{engi.NotFound, "", 0}},
		{"another type", []ServiceRecord{pg, cache}, "cache", outcome{engi.Unsupported, "", 0}},
		{"one that is stopped", []ServiceRecord{stopped}, "", outcome{engi.Conflict, "", 0}},
		{"one that is being removed", []ServiceRecord{going}, "pg", outcome{engi.NotFound, "", 0}},
		{"beside one that is being removed", []ServiceRecord{going, my}, "", outcome{engi.Unavailable, "sb_my", 3306}},
	} {
		s, h := testService(x.services...)
		_, err := s.Query(t.Context(), engi.Query{Viewer: "owner", Workspace: "ws_1", Service: x.service, Text: "SELECT 1"})
		if diff := cmp.Diff(x.want, outcome{engi.KindOf(err), h.entered, h.port}); diff != "" || err == nil {
			t.Errorf("%s: %v\n%s", x.what, err, diff)
		}
	}
}

var _ engi.WorkspaceDatabases = (*Service)(nil)
