package workspace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// connect runs engi workspace connect until the test ends, and returns the URL that it prints.
func connect(t *testing.T, s *env.Server, service string) string {
	t.Helper()
	cmd := s.Engi("workspace", "connect", "shop", service)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("connect %s: %v", service, err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("connect %s: %v", service, err)
	}
	return strings.TrimSpace(line)
}

// runClient runs a client of a database on this machine.
func runClient(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		env.Need(t, args[0]+" (make packages)")
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, out)
	}
	return string(out)
}

// TestClientsThroughConnect uses unmodified clients from Debian, npm and PyPI on this machine through
// engi workspace connect, and those of Debian inside too.
func TestClientsThroughConnect(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{})
	q := v1.WorkspaceRequest{Name: "shop"}
	for _, name := range []string{"postgres", "mysql", "redis", "mongodb"} {
		s.Run("template", "build", "service-"+name)
		q.Services = append(q.Services, v1.ServiceRequest{Type: name, Exposed: true})
	}
	w, err := s.CreateWorkspace(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for _, x := range w.Services {
		at[x.Name] = connect(t, s, x.Name)
	}
	text, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	runClient(t, "node", "js/clients.mjs", string(text))
	runClient(t, "py/.venv/bin/python", "py/clients.py", string(text))

	// On this machine.
	runClient(t, "pgbench", "-i", "-q", at["postgres"])
	if out := runClient(t, "pgbench", "-t", "100", "-c", "4", at["postgres"]); !strings.Contains(out, "400/400") || !strings.Contains(out, "number of failed transactions: 0") {
		t.Errorf("pgbench:\n%s", out)
	}
	if out := runClient(t, "psql", "-XAtq", "-c", "select count(*) from pgbench_history", at["postgres"]); out != "400\n" {
		t.Errorf("psql: %q", out)
	}
	if out := runClient(t, "redis-benchmark", "-u", at["redis"], "-n", "2000", "-c", "10", "-t", "set,get,lpush", "-q"); strings.Count(out, "requests per second") != 3 {
		t.Errorf("redis-benchmark:\n%s", out)
	}

	// Inside, by the name of the service.
	inside := func(service, command string) string {
		t.Helper()
		c, err := s.Connection(t.Context(), "shop", service)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range w.Services {
			if x.Name != service {
				continue
			}
			p, err := s.Exec(t.Context(), x.SandboxID, v1.ProcessRequest{Command: command, Env: map[string]string{
				"URL": c.URL, "PGPASSWORD": c.Password, "MYSQL_PWD": c.Password, "REDISCLI_AUTH": c.Password, "DBHOST": c.Host, "DBUSER": c.User, "DBNAME": c.Database,
			}})
			if err != nil || p.ExitCode != 0 {
				t.Fatalf("%s: %+v, %v", command, p, err)
			}
			return p.Stdout + p.Stderr
		}
		t.Fatalf("there is no service %s", service)
		return ""
	}
	if out := inside("postgres", `pgbench -i -q "$URL" && pgbench -t 100 -c 4 "$URL" && pgbench -S -t 100 -c 4 "$URL"`); strings.Count(out, "400/400") != 2 {
		t.Errorf("pgbench inside:\n%s", out)
	}
	if out := inside("redis", `redis-benchmark -h "$DBHOST" -a "$REDISCLI_AUTH" -n 2000 -c 10 -t set,get -q`); strings.Count(out, "requests per second") != 2 {
		t.Errorf("redis-benchmark inside:\n%s", out)
	}
	if out := inside("mysql", `mariadb --no-defaults -N -h "$DBHOST" -u "$DBUSER" -e 'select 42' "$DBNAME"`); out != "42\n" {
		t.Errorf("mariadb inside: %q", out)
	}
}

// TestFullVolume fills the volumes of databases. What is committed stays, the server comes back by
// itself, and it takes more once there is room.
func TestFullVolume(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{Config: "[volumes]\ncapacity = \"192MiB\"\n"})
	names := []string{"postgres", "mysql"}
	q := v1.WorkspaceRequest{Name: "shop"}
	for _, name := range names {
		s.Run("template", "build", "service-"+name)
		q.Services = append(q.Services, v1.ServiceRequest{Type: name})
	}
	if _, err := s.CreateWorkspace(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		query := func(sql string) (string, error) {
			r, err := s.Query(t.Context(), "shop", v1.QueryRequest{Service: name, Text: sql, Timeout: v1.Duration(30 * time.Second)})
			if err == nil && r.Error != nil {
				err = fmt.Errorf("%s: %s", r.Error.Code, r.Error.Text)
			}
			text, _ := json.Marshal(r.Rows)
			return string(text), err
		}
		must := func(sql string) {
			t.Helper()
			if _, err := query(sql); err != nil {
				t.Fatalf("%s: %s: %v", name, sql, err)
			}
		}
		must("CREATE TABLE kept AS SELECT 42 AS n")
		must("CREATE TABLE filler (n int, text text)")
		fill := map[string]string{
			"postgres": "INSERT INTO filler SELECT m, string_agg(md5(random()::text || n), '') FROM generate_series(1, 2000) n, generate_series(1, 100) m GROUP BY m",
			"mysql":    "INSERT INTO filler SELECT a.seq, repeat(md5(rand()), 1500) FROM seq_1_to_200 a",
		}[name]
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			_, err = query(fill)
		}
		t.Logf("%s: full after %d inserts: %v", name, n, err)
		if err == nil {
			t.Fatalf("%s: the volume is never full", name)
		}
		healthy := func(when string) {
			t.Helper()
			for range 600 {
				w, err := s.Workspace(t.Context(), "shop")
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(w.Services, func(x v1.Service) bool { return x.Name == name })
				if w.Services[i].State == v1.ServiceHealthy {
					if got, err := query("SELECT n FROM kept"); err == nil {
						if got != "[[42]]" {
							t.Errorf("%s, %s: %s", name, when, got)
						}
						return
					}
				}
				time.Sleep(200 * time.Millisecond)
			}
			t.Fatalf("%s is not healthy, %s:\n%s", name, when, s.Run("workspace", "service", "logs", "shop", name))
		}
		healthy("full")
		s.Run("workspace", "service", "restart", "shop", name)
		healthy("full, after a restart")
		if _, err := query(fill); err == nil || !strings.HasPrefix(err.Error(), "25006") {
			t.Errorf("a full database takes more: %v", err)
		}
		empty := "SET STATEMENT tx_read_only=0 FOR DROP TABLE filler"
		if name == "postgres" {
			empty = "BEGIN READ WRITE; DROP TABLE filler; COMMIT"
		}
		// What was kept for this moment may be used up, too.
		for range 20 {
			if _, err := query(fill); err != nil {
				break
			}
		}
		s.Run("workspace", "service", "restart", "shop", name)
		healthy("full again")
		must(empty)
		s.Run("workspace", "service", "restart", "shop", name)
		healthy("emptied")
		must("CREATE TABLE filler (n int, text text)")
		must(fill)
	}
}
