package database_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
)

// The servers are real, and shared by the tests of the package.

const password = "s3cret-of-the-service"

type server struct {
	database.Server
	port string
	cmd  *exec.Cmd
	dir  string
}

var servers struct {
	sync.Mutex
	started map[engi.ServiceType]*server
}

func TestMain(m *testing.M) {
	servers.started = map[engi.ServiceType]*server{}
	code := m.Run()
	for _, s := range servers.started {
		if err := errors.Join(s.cmd.Process.Signal(syscall.SIGTERM), wait(s.cmd), os.RemoveAll(s.dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// wait waits for a server that was asked to end. Its exit status is ignored.
func wait(cmd *exec.Cmd) error {
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// need skips a test that lacks a program, or fails it under ENGI_TEST_REQUIRE=1.
func need(t testing.TB, programs ...string) (paths []string) {
	t.Helper()
	for _, p := range programs {
		path, err := exec.LookPath(p)
		for _, pattern := range []string{"/usr/lib/postgresql/*/bin/" + p, "/usr/sbin/" + p} {
			if found, _ := filepath.Glob(pattern); err != nil && len(found) > 0 {
				path, err = found[len(found)-1], nil
			}
		}
		if err != nil {
			if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
				t.Fatalf("needs %s", p)
			}
			t.Skipf("needs %s", p)
		}
		paths = append(paths, path)
	}
	return paths
}

// command returns a program that runs as an ordinary user, since servers refuse root.
func command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/bin", "HOME=" + dir, "LC_ALL=C.UTF-8", "TZ=Europe/Lisbon"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return cmd
}

func run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// started returns the server of a type, and starts it if necessary.
func started(t testing.TB, kind engi.ServiceType) *server {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	if s := servers.started[kind]; s != nil {
		return s
	}
	var programs []string
	switch kind {
	case engi.ServicePostgres:
		programs = need(t, "initdb", "postgres")
	case engi.ServiceMySQL:
		programs = need(t, "mariadb-install-db", "mariadbd")
	case engi.ServiceRedis:
		programs = need(t, "redis-server")
	}
	dir, err := os.MkdirTemp("", "engi-database-")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{dir: dir, port: freePort(t)}
	if os.Getuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	data := filepath.Join(dir, "data")
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", "127.0.0.1:"+s.port)
	}
	s.Server = database.Server{Type: kind, Dial: dial, User: "engi", Password: password}
	switch kind {
	case engi.ServicePostgres:
		s.Database = "postgres"
		run(t, command(dir, programs[0], "-D", data, "-U", "engi", "-A", "scram-sha-256", "--pwfile="+write("pw", password), "--no-sync", "-E", "UTF8"))
		s.cmd = command(dir, programs[1], "-D", data, "-p", s.port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=50")
	case engi.ServiceMySQL:
		s.Database = "app"
		run(t, command(dir, programs[0], "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db"))
		init := write("init.sql", "CREATE DATABASE app;\nCREATE USER 'engi'@'%' IDENTIFIED BY '"+password+"';\nGRANT ALL ON *.* TO 'engi'@'%' WITH GRANT OPTION;\n")
		s.cmd = command(dir, programs[1], "--no-defaults", "--datadir="+data, "--port="+s.port, "--bind-address=127.0.0.1", "--socket="+filepath.Join(dir, "s"), "--init-file="+init, "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", "--secure-file-priv=")
	case engi.ServiceRedis:
		s.User = "default"
		s.cmd = command(dir, programs[0], "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--requirepass", password, "--busy-reply-threshold", "100")
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	servers.started[kind] = s
	for range 600 {
		if kind == engi.ServiceRedis {
			_, err = s.Command(t.Context(), []string{"PING"})
		} else {
			_, err = s.Query(t.Context(), engi.Query{Text: "select 1"})
		}
		if err == nil {
			return s
		}
		time.Sleep(100 * time.Millisecond)
	}
	printed, _ := os.ReadFile(log.Name())
	t.Fatalf("the server does not answer: %v\n%s", err, printed)
	return nil
}

func freePort(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// table returns the rows of a result as one JSON text.
func table(t testing.TB, r engi.QueryResult) string {
	t.Helper()
	if r.Error != nil {
		t.Fatalf("the server refuses: %+v", *r.Error)
	}
	b, err := json.Marshal(r.Rows)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (s *server) do(t testing.TB, q engi.Query) engi.QueryResult {
	t.Helper()
	r, err := s.Query(t.Context(), q)
	if err != nil {
		t.Fatalf("%s: %v", q.Text, err)
	}
	return r
}

// must runs statements that must succeed.
func (s *server) must(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if r := s.do(t, engi.Query{Text: text}); r.Error != nil {
			t.Fatalf("%s: %+v", text, *r.Error)
		}
	}
}
