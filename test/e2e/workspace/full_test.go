package workspace

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// A fullStore is a service whose volume is filled with numbered values of 100 kB.
type fullStore struct {
	// fill writes values from a number on until the server refuses one, and returns how many were acknowledged and the error.
	fill func(from, most int) (int, string)
	// count returns the number of values, of whose contents it is sure.
	count func() (int, error)
	// empty removes all values with a number of at least from.
	empty func(from int) error
}

// TestFullStores fills the volumes of Redis, FerretDB and MongoDB. What was acknowledged stays, the server comes back by itself, and
// it takes more once values were removed.
func TestFullStores(t *testing.T) {
	env.Slow(t)
	mongodTemplate(t)
	const volumes = "[volumes]\ncapacity = \"192MiB\"\n"
	s := env.Serve(t, env.ServerOptions{Config: volumes})
	s.Run("template", "build", "service-redis")
	s.Run("template", "build", "service-mongodb")
	s.Run("template", "build", "mongod.yaml", "--as", "mongod")
	ctx := t.Context()
	if _, err := s.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "shop", Services: []v1.ServiceRequest{{Type: v1.ServiceRedis}, {Type: v1.ServiceMongoDB, Name: "ferret", Exposed: true}}}); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := os.WriteFile(s.Dir+"/config.toml", []byte(volumes+"[workspaces]\nmongod = \"mongod\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start()
	if _, err := s.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMongoDB, Name: "mongod"}); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("py/.venv/bin/python"); err != nil {
		env.Need(t, "py/.venv/bin/python (make packages)")
	}
	ferret := connect(t, s, "ferret")
	service := func(name string) v1.Service {
		w, err := s.Workspace(ctx, "shop")
		if err != nil {
			t.Fatal(err)
		}
		return w.Services[slices.IndexFunc(w.Services, func(x v1.Service) bool { return x.Name == name })]
	}

	random := rand.NewChaCha8([32]byte{1})
	redis := func(args ...string) (string, error) {
		r, err := s.RedisCommand(ctx, "shop", "redis", args...)
		if err == nil && r.Refused {
			err = fmt.Errorf("%s", r.Reply)
		}
		return string(r.Reply), err
	}
	number := func(text string, err error) (int, error) {
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			err = fmt.Errorf("%q is no number", text)
		}
		return n, err
	}
	// program returns a store whose values a program writes, which prints the number of each that was acknowledged.
	program := func(run func(act string, from, most int) (string, error)) fullStore {
		return fullStore{
			fill: func(from, most int) (n int, said string) {
				out, err := run("fill", from, most)
				for line := range strings.Lines(out) {
					if line == fmt.Sprintln(from+n) {
						n++
					}
				}
				if n < most && err == nil {
					said = out[max(0, len(out)-300):]
				} else if err != nil {
					said = err.Error() + out[max(0, len(out)-300):]
				}
				return n, said
			},
			count: func() (int, error) { return number(run("count", 0, 0)) },
			empty: func(from int) error {
				_, err := number(run("empty", from, 0))
				return err
			},
		}
	}
	python := func(act string, from, most int) (string, error) {
		out, err := exec.CommandContext(ctx, "py/.venv/bin/python", "py/fill.py", ferret, act, fmt.Sprint(from), fmt.Sprint(most)).CombinedOutput()
		return string(out), err
	}
	shell := func(act string, from, most int) (string, error) {
		c, err := s.Connection(ctx, "shop", "mongod")
		if err != nil {
			return "", err
		}
		p, err := s.Exec(ctx, service("mongod").SandboxID, v1.ProcessRequest{Command: `mongo --quiet --norc "$URL" --eval "$SCRIPT"`, Env: map[string]string{
			"URL": c.URL, "SCRIPT": fmt.Sprintf("var act = %q, from = %d, most = %d;", act, from, most) + `
				function text() { var r = ""; while (r.length < 100000) r += Math.random().toString(36).substring(2); return r }
				var wait = {writeConcern: {w: 1, j: true}};
				if (act == "fill") for (var i = from; i < from + most; i++) { var r = db.filler.insert({_id: i, text: text()}, wait); if (r.nInserted != 1) { print(r); break } print(i) }
				if (act == "count") { var n = 0; db.filler.find().forEach(function (d) { if (d.text.length >= 100000) n++ }); print(n) }
				if (act == "empty") { if (from == 0) db.filler.drop(); else db.filler.remove({_id: {$gte: from}}, wait); print(0) }`,
		}})
		if err == nil && p.ExitCode != 0 {
			err = fmt.Errorf("exit code %d", p.ExitCode)
		}
		return p.Stdout + p.Stderr, err
	}
	stores := map[string]fullStore{
		"redis": {
			fill: func(from, most int) (int, string) {
				for i := range most {
					text := make([]byte, 75_000)
					random.Read(text)
					value, _ := json.Marshal(text) // in base64
					if _, err := redis("SET", fmt.Sprint("value", from+i), string(value)); err != nil {
						return i, err.Error()
					}
				}
				return most, ""
			},
			count: func() (int, error) {
				return number(redis("EVAL", `local n = 0 for _, k in ipairs(redis.call("KEYS", "value*")) do if redis.call("STRLEN", k) == 100002 then n = n + 1 end end return n`, "0"))
			},
			empty: func(from int) error {
				for i := from; ; i++ {
					if n, err := number(redis("DEL", fmt.Sprint("value", i))); err != nil || n == 0 {
						return err
					}
				}
			},
		},
		"ferret": program(python),
		"mongod": program(shell),
	}
	for _, name := range []string{"redis", "ferret", "mongod"} {
		t.Run(name, func(t *testing.T) {
			store := stores[name]
			restart := func() { s.Run("workspace", "service", "restart", "shop", name) }
			// has waits until the service is healthy, and checks the number of values. One value may have been stored that was not acknowledged.
			has := func(when string, want int) (n int) {
				t.Helper()
				var err error
				for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(500 * time.Millisecond) {
					if service(name).State != v1.ServiceHealthy {
						continue
					}
					if n, err = store.count(); err == nil {
						if n != want && n != want+1 {
							t.Errorf("%s: %d values, want %d", when, n, want)
						}
						return n
					}
				}
				t.Fatalf("%s: %+v, %v\n%s", when, service(name), err, s.Run("workspace", "service", "logs", "shop", name))
				return 0
			}
			n, said := store.fill(0, 3000)
			t.Logf("full after %d values: %s", n, said)
			if n < 200 || n == 3000 {
				t.Fatalf("%d values were taken", n)
			}
			n = has("full", n)
			restart()
			n = has("full, after a restart", n)
			more, said := store.fill(n, 1000)
			t.Logf("%d more: %s", more, said)
			if more > 500 {
				t.Errorf("it took %d more", more)
			}
			has("full, and asked for more", n+more)
			if err := store.empty(20); err != nil {
				t.Fatal(err)
			}
			has("emptied", 20)
			if name != "mongod" { // whose documents keep their room in their collection
				if got, said := store.fill(20, 20); got != 20 {
					t.Errorf("removing values made room for %d: %s", got, said)
				}
			} else if err := store.empty(0); err != nil {
				t.Fatal(err)
			}
			restart()
			n = has("emptied, after a restart", map[string]int{"mongod": 0, "redis": 40, "ferret": 40}[name])
			if got, said := store.fill(n, 100); got != 100 {
				t.Errorf("an emptied volume takes %d: %s", got, said)
			}
			restart()
			has("at the end", n+100)
		})
	}
}
