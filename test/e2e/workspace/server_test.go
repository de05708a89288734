// Package workspace tests services of workspaces with real servers in real sandboxes.
package workspace

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/server"
	"github.com/engi-dev/engi/test/env"
)

var shared env.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// A serviceSandbox is a server with its volume and its sandbox.
type serviceSandbox struct {
	t      *testing.T
	k      *server.Kind
	a      server.Access
	vars   map[string]string
	volume engi.Volume
	id     engi.SandboxID
	g      engi.Guest
}

func newServiceSandbox(t *testing.T, kind engi.ServiceType, vars map[string]string) *serviceSandbox {
	t.Helper()
	k, err := server.Find(kind, "")
	if err != nil {
		t.Fatal(err)
	}
	return newSandboxOf(t, k, nil, vars)
}

// newSandboxOf is newServiceSandbox for a kind with a definition of its template; nil for a built-in one.
func newSandboxOf(t *testing.T, k *server.Kind, definition []byte, vars map[string]string) *serviceSandbox {
	t.Helper()
	n := shared.Node(t)
	if _, err := n.Templates().Build(t.Context(), k.Template, definition, func(engi.Progress) {}); err != nil {
		t.Fatal(err)
	}
	a, err := k.Access(vars)
	if err != nil {
		t.Fatal(err)
	}
	v, err := n.Volumes().Create(t.Context(), engi.VolumeSpec{Name: strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-") + "-" + k.Template})
	if err != nil {
		t.Fatal(err)
	}
	return &serviceSandbox{t: t, k: k, a: a, vars: vars, volume: v}
}

// boot starts a sandbox with the volume, but no server.
func (b *serviceSandbox) boot() {
	b.t.Helper()
	n := shared.Node(b.t)
	sb, err := n.Sandboxes().Create(b.t.Context(), engi.SandboxSpec{
		Template: b.k.Template, Volumes: []engi.VolumeMount{{Volume: string(b.volume.ID), Path: server.DataDir}},
		Network: engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "ws-test", Name: string(b.k.Type)},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	g, leave, err := n.Sandboxes().Enter(b.t.Context(), engi.Everyone, sb.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(leave)
	b.id, b.g = sb.ID, g
}

// serve starts the server and returns its version and the duration of the start.
func (b *serviceSandbox) serve() (string, time.Duration) {
	b.t.Helper()
	began := time.Now()
	p, err := b.k.Start(b.t.Context(), b.g, b.a, b.vars)
	if err != nil {
		b.t.Fatal(err)
	}
	version, err := b.k.Wait(b.t.Context(), b.g, p, b.a)
	if err != nil {
		b.t.Fatal(err)
	}
	return version, time.Since(began)
}

// interrupt destroys sandboxes some time after the start of the server in them.
func (b *serviceSandbox) interrupt(times ...time.Duration) {
	b.t.Helper()
	for _, after := range times {
		b.boot()
		p, err := b.k.Start(b.t.Context(), b.g, b.a, b.vars)
		if err != nil {
			b.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), after)
		if _, err := b.k.Wait(ctx, b.g, p, b.a); err == nil {
			b.t.Logf("%s is ready within %v", b.k, after)
		}
		<-ctx.Done()
		cancel()
		b.destroy()
	}
}

// TestFirstStarts interrupts first starts, later each time, and logs the duration of complete ones.
func TestFirstStarts(t *testing.T) {
	env.Slow(t)
	for _, kind := range []engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL, engi.ServiceRedis, engi.ServiceMongoDB, engi.ServiceNginx} {
		t.Run(string(kind), func(t *testing.T) {
			b := newServiceSandbox(t, kind, nil)
			b.interrupt(0, 300*time.Millisecond, 900*time.Millisecond)
			began := time.Now()
			b.boot()
			booted := time.Since(began)
			version, first := b.serve()
			if _, err := b.k.Check(t.Context(), b.g, b.a); err != nil || version == "" {
				t.Errorf("version %q, %v", version, err)
			}
			if _, err := b.g.Stat(t.Context(), server.DataDir+"/new"); !engi.Is(err, engi.NotFound) {
				t.Errorf("what was cut off is still there: %v", err)
			}
			if err := b.k.Stop(t.Context(), b.g); err != nil {
				t.Error(err)
			}
			_, again := b.serve()
			t.Logf("%s %s: the sandbox takes %v, the first start %v, the next one %v", b.k.Program, version, booted, first, again)
			b.destroy()
		})
	}
}

// TestHalfDone leaves FerretDB the state that it leaves itself when it is killed between the steps of
// an operation, from which it cannot recover alone.
func TestHalfDone(t *testing.T) {
	env.Slow(t)
	b := newServiceSandbox(t, engi.ServiceMongoDB, nil)
	b.boot()
	b.serve()
	if err := b.k.Stop(t.Context(), b.g); err != nil {
		t.Fatal(err)
	}
	users := b.sh(`cd /data/server && touch cut.sqlite && sqlite3 admin.sqlite "
		CREATE TABLE fresh_00000001 (_ferretdb_sjson TEXT NOT NULL) STRICT;
		CREATE TABLE \"a\"\"b_00000002\" (_ferretdb_sjson TEXT NOT NULL) STRICT;
		INSERT INTO _ferretdb_collections VALUES ('a\"b', 'a\"b_00000002', '{}');
		CREATE INDEX half ON fresh_00000001 (_ferretdb_sjson->'half');
		CREATE TABLE kept_00000003 (_ferretdb_sjson TEXT NOT NULL) STRICT;
		INSERT INTO kept_00000003 VALUES ('{}');
		CREATE UNIQUE INDEX kept_00000003__id_ ON kept_00000003 (_ferretdb_sjson->'_id');
		CREATE INDEX kept_00000003_made ON kept_00000003 (_ferretdb_sjson->'made');
		INSERT INTO _ferretdb_collections VALUES ('kept', 'kept_00000003', '{\"uuid\": \"1\", \"indexes\": [{\"name\": \"_id_\"}, {\"name\": \"lost\"}]}');
		SELECT * FROM _ferretdb_collections WHERE name = 'system.users'"`)
	if !strings.Contains(users, "_id_") {
		t.Fatalf("users: %q", users)
	}
	b.serve()
	if err := b.k.Stop(t.Context(), b.g); err != nil {
		t.Fatal(err)
	}
	got := b.sh(`cd /data/server && ls && sqlite3 admin.sqlite "SELECT type, name FROM sqlite_master WHERE name NOT LIKE '%system.users%' AND name NOT LIKE 'sqlite_%' ORDER BY name;
		SELECT count(*) FROM kept_00000003; SELECT name, settings FROM _ferretdb_collections ORDER BY name DESC"`)
	want := "admin.sqlite\napp.sqlite\ntable|_ferretdb_collections\ntable|kept_00000003\nindex|kept_00000003__id_\n1\n" + users[:strings.Index(users, "|")+1]
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\nkept|{\"uuid\":\"1\",\"indexes\":[{\"name\":\"_id_\"}]}") {
		t.Errorf("got\n%s\nwant\n%s…", got, want)
	}
	b.destroy()
}

// sh runs a line of shell in the sandbox and returns its output.
func (b *serviceSandbox) sh(line string) string {
	b.t.Helper()
	return run(b.t, b.g, engi.Command{Args: []string{"/bin/sh", "-ec", line}, Dir: "/", User: "root"})
}

// destroy ends the sandbox and all its programs.
func (b *serviceSandbox) destroy() {
	b.t.Helper()
	if err := shared.Node(b.t).Sandboxes().Stop(b.t.Context(), engi.Everyone, b.id); err != nil {
		b.t.Fatal(err)
	}
}
