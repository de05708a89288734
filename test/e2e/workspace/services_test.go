package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/test/env"
)

const owner = engi.Owner("ann")

// A fixture is the workspaces service on a real node, which can be interrupted and opened again.
type fixture struct {
	*workspace.Service
	t    *testing.T
	db   *store.DB
	stop func()
}

func open(t *testing.T) *fixture {
	t.Helper()
	d := &fixture{t: t, db: storetest.Open(t)}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *fixture) start() {
	d.t.Helper()
	n := shared.Node(d.t)
	d.Service = workspace.New(workspace.Options{
		Store: store.Workspaces(d.db), Sandboxes: n.Sandboxes(), Templates: n.Templates(), Volumes: n.Volumes(),
		Network: engi.NetworkPolicy{Mode: engi.NetworkIsolated}, MaxAwake: time.Hour,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.t.Context()))
	var work sync.WaitGroup
	ready := make(chan struct{})
	work.Go(func() {
		if err := d.Run(ctx, func() { close(ready) }); err != nil {
			d.t.Error(err)
		}
	})
	d.stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	<-ready
}

// service returns the current state of a service.
func (d *fixture) service(w, name string) engi.Service {
	d.t.Helper()
	got, err := d.Get(d.t.Context(), owner.Viewer(), w)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, s := range got.Services {
		if s.Name == name {
			return s
		}
	}
	d.t.Fatalf("no service %s in %+v", name, got)
	return engi.Service{}
}

// healthy waits until a service has been healthy since a time.
func (d *fixture) healthy(w, name string, since time.Time) engi.Service {
	d.t.Helper()
	for {
		s := d.service(w, name)
		if s.State == engi.ServiceHealthy && s.Started.After(since) {
			return s
		}
		if s.State == engi.ServiceFailed {
			d.t.Fatalf("%s has failed: %v", name, s.Error)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-d.t.Context().Done():
			d.t.Fatalf("%s is %s: %v", name, s.State, s.Error)
		}
	}
}

// run runs a program in a sandbox, with its input, and returns its output.
func (d *fixture) run(id engi.SandboxID, vars map[string]string, args ...string) string {
	d.t.Helper()
	g, leave, err := shared.Node(d.t).Sandboxes().Enter(d.t.Context(), engi.Everyone, id)
	if err != nil {
		d.t.Fatal(err)
	}
	defer leave()
	return run(d.t, g, engi.Command{Args: args, Env: vars, Timeout: time.Minute})
}

// run runs a program inside and returns its output.
func run(t *testing.T, g engi.Guest, c engi.Command) string {
	t.Helper()
	p, err := g.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for o, err := range p.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(o.Data)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("%q ended with %+v, %v:\n%s", c.Args, exit, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// ask runs a client in the sandbox of the service itself, which goes through the network
// like every other client.
func (d *fixture) ask(w, name, text string) string {
	d.t.Helper()
	c, err := d.Connection(d.t.Context(), owner.Viewer(), w, name)
	if err != nil {
		d.t.Fatal(err)
	}
	id := d.service(w, name).Sandbox
	switch name {
	case "postgres":
		return d.run(id, map[string]string{"PGPASSWORD": c.Password}, "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", c.Host, "-U", c.User, "-c", text, c.Database)
	case "mysql":
		return d.run(id, map[string]string{"MYSQL_PWD": c.Password}, "mariadb", "--no-defaults", "-N", "-h", c.Host, "-u", c.User, "-e", text, c.Database)
	case "redis":
		return d.run(id, map[string]string{"REDISCLI_AUTH": c.Password}, append([]string{"redis-cli", "--no-auth-warning", "-h", c.Host}, strings.Fields(text)...)...)
	case "mongodb": // Debian has no client of MongoDB
		return d.program("py/.venv/bin/python", "-c", "import json, sys, pymongo; print(pymongo.MongoClient(json.loads(sys.argv[1])['mongodb']).get_default_database().notes."+text+")", d.addresses(w, name))
	}
	d.t.Fatalf("nothing asks %s", name)
	return ""
}

// addresses returns the addresses of exposed services as clients on this machine have them, as
// JSON. Ports of this machine are forwarded to them during the test.
func (d *fixture) addresses(w string, names ...string) string {
	d.t.Helper()
	at := map[string]string{}
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			d.t.Fatal(err)
		}
		var work sync.WaitGroup
		work.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				work.Go(func() {
					defer c.Close()
					to, err := d.Dial(context.WithoutCancel(d.t.Context()), owner.Viewer(), w, name)
					if err != nil {
						return // the client sees the error
					}
					defer to.Close()
					work.Go(func() { io.Copy(to, c); to.Close() })
					io.Copy(c, to)
				})
			}
		})
		d.t.Cleanup(func() { l.Close(); work.Wait() })
		c, err := d.Connection(d.t.Context(), owner.Viewer(), w, name)
		if err != nil {
			d.t.Fatal(err)
		}
		at[name] = strings.Replace(c.URL, fmt.Sprint(c.Host, ":", c.Port), l.Addr().String(), 1)
	}
	text, err := json.Marshal(at)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

// program runs a program of this machine and returns its output.
func (d *fixture) program(args ...string) string {
	d.t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		env.Need(d.t, args[0]+" (make packages)")
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s: %v\n%s%s", args[1], err, out, said.String())
	}
	return strings.TrimSpace(string(out))
}

// killServer kills a server as the kernel would.
func (d *fixture) killServer(id engi.SandboxID) {
	d.t.Helper()
	g, leave, err := shared.Node(d.t).Sandboxes().Enter(d.t.Context(), engi.Everyone, id)
	if err != nil {
		d.t.Fatal(err)
	}
	defer leave()
	p, err := g.Attach(d.t.Context(), "service")
	if err != nil {
		d.t.Fatal(err)
	}
	if err := p.Signal(d.t.Context(), "KILL"); err != nil {
		d.t.Fatal(err)
	}
}

// empty reports sandboxes of the owner that still exist.
func (d *fixture) empty(when string) {
	d.t.Helper()
	all, err := shared.Node(d.t).Sandboxes().List(d.t.Context(), owner.Viewer(), engi.SandboxFilter{Limit: -1})
	if err != nil || len(all) > 0 {
		d.t.Errorf("%s there are sandboxes: %+v, %v", when, all, err)
	}
}

// page requests a page from nginx.
func (d *fixture) page(w, path string) string {
	d.t.Helper()
	g, leave, err := shared.Node(d.t).Sandboxes().Enter(d.t.Context(), engi.Everyone, d.service(w, "nginx").Sandbox)
	if err != nil {
		d.t.Fatal(err)
	}
	defer leave()
	c, err := g.Dial(d.t.Context(), 80)
	if err != nil {
		d.t.Fatal(err)
	}
	h := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }, DisableKeepAlives: true}}
	resp, err := h.Get("http://nginx.workspace.internal" + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(text)))
}

// TestServices tests a workspace with every kind of service, whose servers and sandboxes are
// killed, and whose node is interrupted. Committed data is always found afterwards.
func TestServices(t *testing.T) {
	env.Slow(t)
	d := open(t)
	ctx := t.Context()
	began := time.Now()
	w, err := d.Create(ctx, engi.WorkspaceSpec{Owner: owner, Name: "shop", Services: []engi.ServiceSpec{
		{Type: engi.ServicePostgres, Exposed: true}, {Type: engi.ServiceMySQL, Exposed: true}, {Type: engi.ServiceRedis, Exposed: true},
		{Type: engi.ServiceMongoDB, Exposed: true}, {Type: engi.ServiceNginx, Needs: []string{"redis"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all five are healthy after %v", time.Since(began))
	names := []string{"mongodb", "mysql", "nginx", "postgres", "redis"}
	for i, s := range w.Services {
		if s.Name != names[i] || s.State != engi.ServiceHealthy || s.Version == "" || s.Host != s.Name+".workspace.internal" {
			t.Errorf("%+v", s)
		}
	}

	at := d.addresses("shop", "postgres", "mysql", "redis", "mongodb")
	d.program("node", "js/clients.mjs", at)
	d.program("py/.venv/bin/python", "py/clients.py", at)

	d.ask("shop", "postgres", "CREATE TABLE notes (text text)")
	d.ask("shop", "mysql", "CREATE TABLE notes (text text)")
	rows := 0
	write := func() {
		rows++
		d.ask("shop", "postgres", fmt.Sprintf("INSERT INTO notes VALUES ('row %d')", rows))
		d.ask("shop", "mysql", fmt.Sprintf("INSERT INTO notes VALUES ('row %d')", rows))
		d.ask("shop", "redis", fmt.Sprintf("RPUSH notes row%d", rows))
		d.ask("shop", "mongodb", fmt.Sprintf("insert_one({'row': %d})", rows))
	}
	check := func(when string) {
		t.Helper()
		want := fmt.Sprint(rows)
		for name, text := range map[string]string{"postgres": "SELECT count(*) FROM notes", "mysql": "SELECT count(*) FROM notes", "redis": "LLEN notes", "mongodb": "count_documents({})"} {
			if got := d.ask("shop", name, text); got != want {
				t.Errorf("%s: %s has %s rows, want %s", when, name, got, want)
			}
		}
		if got := d.page("shop", "/nothing"); !strings.HasPrefix(got, "404 ") {
			t.Errorf("%s: nginx says %s", when, got)
		}
	}
	write()
	check("at first")

	for _, name := range names {
		s := d.service("shop", name)
		write()
		now := time.Now()
		d.killServer(s.Sandbox)
		again := d.healthy("shop", name, now)
		t.Logf("%s is healthy %v after its server was killed", name, time.Since(now))
		if again.Sandbox != s.Sandbox || again.Restarts != s.Restarts+1 {
			t.Errorf("it was %+v, is %+v", s, again)
		}
		check(name + " was killed")
	}
	for _, name := range names {
		s := d.service("shop", name)
		write()
		now := time.Now()
		if err := shared.Node(t).Sandboxes().Stop(ctx, engi.Everyone, s.Sandbox); err != nil {
			t.Fatal(err)
		}
		again := d.healthy("shop", name, now)
		t.Logf("%s is healthy %v after its sandbox was destroyed", name, time.Since(now))
		if again.Sandbox == s.Sandbox {
			t.Errorf("it was %+v, is %+v", s, again)
		}
		check("the sandbox of " + name + " was destroyed")
	}

	// Another node finds the servers unchanged.
	before, err := d.Get(ctx, owner.Viewer(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.start()
	write()
	check("after a restart of the node")
	after, err := d.Get(ctx, owner.Viewer(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	for i := range after.Services {
		if after.Services[i].Sandbox != before.Services[i].Sandbox || !after.Services[i].Started.Equal(before.Services[i].Started) {
			t.Errorf("it was %+v, is %+v", before.Services[i], after.Services[i])
		}
	}

	now := time.Now()
	if s, err := d.RestartService(ctx, owner.Viewer(), "shop", "postgres"); err != nil || s.State != engi.ServiceHealthy || s.Restarts != 0 || !s.Started.After(now) {
		t.Errorf("%+v, %v", s, err)
	}
	if text, err := d.ServiceLogs(ctx, owner.Viewer(), "shop", "postgres", 0); err != nil || !strings.Contains(text, "ready to accept connections") {
		t.Errorf("logs %q, %v", text, err)
	}

	now = time.Now()
	if err := d.Stop(ctx, owner.Viewer(), "shop"); err != nil {
		t.Fatal(err)
	}
	t.Logf("all are stopped after %v", time.Since(now))
	if w, err = d.Get(ctx, owner.Viewer(), "shop"); err != nil || w.Services[0].State != engi.ServiceStopped || w.Services[0].Sandbox != "" {
		t.Errorf("%+v, %v", w, err)
	}
	d.empty("after a stop")
	now = time.Now()
	if w, err = d.Start(ctx, owner.Viewer(), "shop"); err != nil {
		t.Fatal(err)
	}
	t.Logf("the workspace and all services run after %v", time.Since(now))
	check("after a start")
	// The names resolve in the sandbox of the workspace to the services.
	for _, s := range w.Services {
		d.run(w.Sandbox, nil, "python3", "-c", fmt.Sprintf("import socket; socket.create_connection((%q, %d), 10).close()", s.Host, s.Port))
	}
	if err := d.Remove(ctx, owner.Viewer(), "shop"); err != nil {
		t.Fatal(err)
	}
	d.empty("after the removal")
	if all, err := shared.Node(t).Volumes().List(ctx, owner.Viewer(), engi.Paging{}); err != nil || len(all) > 0 {
		t.Errorf("volumes %+v, %v", all, err)
	}
}
