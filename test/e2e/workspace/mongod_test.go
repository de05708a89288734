package workspace

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
	"github.com/engi-dev/engi/internal/workspace/server"
	"github.com/engi-dev/engi/test/env"
)

// mongodTemplate returns the definition of a template with mongod.
func mongodTemplate(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("mongod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/usr/share/keyrings/ubuntu-archive-keyring.gpg"); err != nil {
		env.Need(t, "the keys of Ubuntu's archive (.ci/setup all)")
	}
	return text
}

// TestMongod runs the mongod of a template that the operator gives, with MongoDB's shell as a client. The server is killed amid writes,
// and has every document that was acknowledged.
func TestMongod(t *testing.T) {
	env.Slow(t)
	mongodTemplate(t)
	s := env.Serve(t, env.ServerOptions{})
	ctx := t.Context()
	s.Run("template", "build", "service-mongodb")
	s.Run("template", "build", "mongod.yaml", "--as", "mongod")
	if _, err := s.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "shop", Services: []v1.ServiceRequest{{Type: v1.ServiceMongoDB, Name: "old"}}}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := os.WriteFile(s.Dir+"/config.toml", []byte("[workspaces]\nmongod = \"mongod\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start()

	if _, err := s.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMongoDB, Name: "bad", Version: "3.6"}); err == nil || !strings.Contains(err.Error(), "the template mongod decides") {
		t.Errorf("a version that only the template knows: %v", err)
	}
	x, err := s.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMongoDB})
	if err != nil || x.State != v1.ServiceHealthy || x.Server != "MongoDB" || x.Version != "3.6.8" {
		t.Fatalf("%+v, %v", x, err)
	}
	s.Run("workspace", "service", "restart", "shop", "old")
	if list := s.Run("workspace", "service", "list", "shop"); !regexp.MustCompile(`MongoDB +3\.6\.8 +healthy`).MatchString(list) || !regexp.MustCompile(`FerretDB 1\.24 +1\.24\.0 +healthy`).MatchString(list) {
		t.Errorf("the services are\n%s", list)
	}
	find := func(args ...string) string {
		t.Helper()
		return s.Run(append([]string{"workspace", "find", "shop", "--service", "mongodb"}, args...)...)
	}
	c, err := s.Connection(ctx, "shop", "mongodb")
	if err != nil || !strings.HasSuffix(c.URL, "?authSource=admin&journal=true") {
		t.Fatalf("%+v, %v", c, err)
	}
	shell := func(script string) (string, error) {
		w, err := s.Workspace(ctx, "shop")
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(w.Services, func(x v1.Service) bool { return x.Name == "mongodb" })
		p, err := s.Exec(ctx, w.Services[i].SandboxID, v1.ProcessRequest{Command: `mongo --quiet --norc "$URL" --eval "$SCRIPT"`, Env: map[string]string{"URL": c.URL, "SCRIPT": script}})
		if err == nil && p.ExitCode != 0 {
			err = fmt.Errorf("exit code %d", p.ExitCode)
		}
		return p.Stdout + p.Stderr, err
	}
	work := func(script, want string) {
		t.Helper()
		if out, err := shell(script); err != nil || strings.TrimSpace(out) != want {
			t.Errorf("%s: %q, %v; want %q", script, out, err, want)
		}
	}
	work(`db.orders.insert([{_id: 1, total: 5}, {_id: 2, total: 7}]); db.orders.update({_id: 1}, {$set: {total: 6}}); db.orders.remove({_id: 2}); db.orders.count()`, "1")
	if out := find("orders", `{"total": {"$gt": 5}}`); out != `{"_id":1.0,"total":6.0}` {
		t.Errorf("find: %s", out)
	}
	find("orders", "--pipeline", `[{"$match": {}}, {"$out": "copies"}]`)
	work(`db.copies.findOne().total`, "6")
	if out := find("orders", "--pipeline", `[{"$lookup": {"from": "copies", "localField": "_id", "foreignField": "_id", "as": "found"}}, {"$project": {"n": {"$size": "$found"}}}]`); out != `{"_id":1.0,"n":1}` {
		t.Errorf("a pipeline: %s", out)
	}
	for _, url := range []string{"mongodb://127.0.0.1/app", strings.Replace(c.URL, c.Password, "wrong", 1)} {
		if p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Args: []string{"mongo", "--quiet", "--norc", url, "--eval", `db.getSiblingDB("admin").createUser({user: "x", pwd: "y", roles: ["root"]}); print(db.orders.findOne().total)`}}); err != nil || p.ExitCode == 0 {
			t.Errorf("%s works without the password: %+v, %v", url, p, err)
		}
	}

	for round := range 3 {
		var writing sync.WaitGroup
		var out string
		writing.Go(func() {
			out, _ = shell(fmt.Sprintf(`for (var i = 0; i < 1e6; i++) { var r = db.kept.insert({_id: %d + i, text: new Array(1000).join("x")}, {writeConcern: {w: 1, j: true}}); if (!r.nInserted) throw r; print(%d + i) }`, round*1e6, round*1e6))
		})
		for began := time.Now(); find("kept", fmt.Sprintf(`{"_id": %d}`, int(round*1e6)+50*(round+1)), "--projection", `{"_id": 1}`) == ""; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("round %d: nothing is written", round)
			}
		}
		w, err := s.Workspace(ctx, "shop")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(w.Services, func(x v1.Service) bool { return x.Name == "mongodb" })
		before := w.Services[i]
		if p, err := s.Exec(ctx, before.SandboxID, v1.ProcessRequest{Command: `for p in /proc/[0-9]*; do [ "$(cat $p/comm)" != mongod ] || kill -9 ${p#/proc/}; done`, User: "root"}); err != nil || p.ExitCode != 0 {
			t.Fatalf("%+v, %v", p, err)
		}
		writing.Wait()
		acknowledged := 0
		for line := range strings.Lines(out) {
			if line == fmt.Sprintf("%d\n", round*1e6+acknowledged) {
				acknowledged++
			}
		}
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
			w, err := s.Workspace(ctx, "shop")
			if err != nil {
				t.Fatal(err)
			}
			if now := w.Services[i]; now.State == v1.ServiceHealthy && now.StartedAt.After(*before.StartedAt) {
				break
			}
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("%+v", w.Services[i])
			}
		}
		got, err := shell(fmt.Sprintf(`db.kept.count({_id: {$gte: %d}})`, int(round*1e6)))
		var kept int
		if _, bad := fmt.Sscan(got, &kept); err != nil || bad != nil || acknowledged == 0 || kept < acknowledged {
			t.Errorf("round %d: %d documents were acknowledged, there are %q, %v", round, acknowledged, got, err)
		}
		t.Logf("round %d: %d were acknowledged, %d are there", round, acknowledged, kept)
	}
	if logs := s.Run("workspace", "service", "logs", "shop", "mongodb"); strings.Contains(logs, c.Password) || !strings.Contains(logs, "port 27017") {
		t.Errorf("the logs have the password, or nothing:\n%s", logs)
	}
	s.Run("workspace", "stop", "shop")
	s.Run("workspace", "start", "shop")
	work(`db.orders.count()`, "1")

	// Without the setting, the service stays what it is, and new ones run FerretDB again.
	s.Stop()
	if err := os.Remove(s.Dir + "/config.toml"); err != nil {
		t.Fatal(err)
	}
	s.Start()
	s.Run("workspace", "service", "restart", "shop", "mongodb")
	work(`db.orders.count()`, "1")
	if x, err := s.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMongoDB, Name: "next"}); err != nil || x.Server != "FerretDB 1.24" {
		t.Errorf("%+v, %v", x, err)
	}
}

// A mongodClient creates the user of a mongod.
type mongodClient struct{ server.MongodClient }

func (mongodClient) SetUp(ctx context.Context, dial server.Dial, a server.Access) error {
	return database.Server{Type: engi.ServiceMongoDB, User: a.User, Password: a.Password, Database: a.Database, Users: server.MongodUsers, Dial: dial}.SetUp(ctx)
}

// TestMongodStarts interrupts first starts of a mongod, later each time, and starts another server over its data.
func TestMongodStarts(t *testing.T) {
	env.Slow(t)
	definition := mongodTemplate(t)
	k, err := server.Mongod("mongod", "", mongodClient{})
	if err != nil {
		t.Fatal(err)
	}
	b := newSandboxOf(t, k, definition, nil)
	var times []time.Duration
	for after := range 12 {
		times = append(times, time.Duration(after)*250*time.Millisecond)
	}
	b.interrupt(times...)
	b.boot()
	version, took := b.serve()
	t.Logf("MongoDB %s starts in %v", version, took)
	db := database.Server{Type: engi.ServiceMongoDB, User: b.a.User, Password: b.a.Password, Database: b.a.Database, Users: server.MongodUsers, Dial: func(ctx context.Context) (net.Conn, error) { return b.g.Dial(ctx, k.Port) }}
	if r, err := db.Documents(t.Context(), engi.DocumentQuery{Collection: "x"}); err != nil || r.Error != nil {
		t.Errorf("the user cannot log in: %+v, %v", r.Error, err)
	}
	if _, err := b.g.Stat(t.Context(), server.DataDir+"/new"); !engi.Is(err, engi.NotFound) {
		t.Errorf("what was cut off is still there: %v", err)
	}
	settings := b.sh("cat /run/service/* /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n' || :")
	if strings.Contains(settings, b.a.Password) {
		t.Error("the password is in a file of the sandbox, in an argument or in a variable")
	}
	b.destroy()

	ferret, err := server.Find(engi.ServiceMongoDB, "")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(k *server.Kind, want string) {
		t.Helper()
		b.k = k
		b.boot()
		defer b.destroy()
		p, err := k.Start(t.Context(), b.g, b.a, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Wait(t.Context(), b.g, p, b.a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("another server starts over the data: %v", err)
		}
	}
	other := newServiceSandbox(t, engi.ServiceMongoDB, nil)
	refused(ferret, "data of mongod, which FerretDB cannot read")
	other.boot()
	other.serve()
	other.destroy()
	b.volume = other.volume
	refused(k, "data of FerretDB, which mongod cannot read")
}
