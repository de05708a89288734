package e2b

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A result is one line of a runner's output.
type result struct {
	Section string `json:"section"`
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Error   string `json:"error"`
	Millis  int64  `json:"ms"`
}

// A runner is one program with scenarios.
type runner struct {
	name string // of its results
	file string // relative to this directory
	tls  bool   // it knows a domain only, and speaks https
	out  bool   // its server is where the outside is the test's
}

var runners = []runner{
	{name: "js", file: "js/templates.mjs"},
	{name: "js", file: "js/api.mjs"},
	{name: "js", file: "js/commands.mjs"},
	{name: "js", file: "js/files.mjs"},
	{name: "js", file: "js/lifecycle.mjs"},
	{name: "js", file: "js/ports.mjs"},
	{name: "js", file: "js/storage.mjs"},
	{name: "js", file: "js/network.mjs", out: true},
	{name: "js 1.13", file: "js/old.mjs", tls: true},
	{name: "python", file: "py/sync.py"},
	{name: "python", file: "py/async.py"},
	{name: "python", file: "py/network.py", out: true},
}

// atOnce is how many runners run at the same time.
const atOnce = 3

// A server is a started engi with a data directory of its own.
type server struct {
	dir, domain, url, secure string
	key, other               string
	env                      []string
	ns                       *namespace // where it runs; nil is here
}

// missing says what this machine lacks; "" if nothing.
func missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, v := range []string{"ENGI_BIN", "ENGI_RUNSC", "ENGI_GUEST"} {
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			return "a program named by " + v + " (make build)"
		}
	}
	for _, f := range []string{"js/node_modules/e2b/package.json", "py/.venv/bin/python"} {
		if _, err := os.Stat(f); err != nil {
			return f + " (make setup)"
		}
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "node"
	}
	return ""
}

// engi runs the program for s and returns what it prints.
func (s *server) engi(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Getenv("ENGI_BIN"), args...)
	cmd.Env = s.env
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := s.output(ctx, cmd)
	if err != nil {
		t.Fatalf("engi %s: %v\n%s", strings.Join(args, " "), err, failure.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// start starts an engi that ends with the test.
func start(t *testing.T) *server {
	t.Helper()
	return startIn(t, nil)
}

// startIn starts an engi in a namespace; nil is here.
func startIn(t *testing.T, ns *namespace, env ...string) *server {
	t.Helper()
	// Sockets have short names, so the directory of a test would not do.
	dir, err := os.MkdirTemp("", "engi-e2b-")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{dir: dir, domain: "sbx.test", ns: ns}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "E2B_") {
			s.env = append(s.env, v)
		}
	}
	s.env = append(s.env, "ENGI_DATA_DIR="+dir, "ENGI_POOLS=none", "ENGI_LISTEN=127.0.0.1:0", "ENGI_PREVIEW_DOMAIN="+s.domain, "ENGI_KEEP_COUNT=100")
	s.env = append(s.env, env...)
	s.serveTLS(t)

	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Getenv("ENGI_BIN"), "serve")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, log, log
	if err := ns.start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		stop := exec.Command(os.Getenv("ENGI_BIN"), "stop", "--destroy")
		stop.Env = s.env
		var said bytes.Buffer
		stop.Stderr = &said
		if _, err := s.output(context.Background(), stop); err != nil {
			t.Errorf("engi stop: %v\n%s", err, said.Bytes())
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("engi serve: %v", err)
			}
		case <-time.After(time.Minute):
			cmd.Process.Signal(syscall.SIGKILL)
			t.Error("engi serve did not end within a minute")
		}
		s.removeBuilds(t)
		if t.Failed() {
			if b, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-8<<10):])
			}
		}
	})
	var status struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal([]byte(s.engi(t, "status", "--wait", "60s", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	s.url = status.URL
	s.key = s.engi(t, "key", "create", "ann", "--owner", "ann")
	s.other = s.engi(t, "key", "create", "ben", "--owner", "ben")
	return s
}

// removeBuilds removes templates that could not be removed while something
// was kept warm from them: they lie in a cache that nodes share.
func (s *server) removeBuilds(t *testing.T) {
	key, err := os.ReadFile(filepath.Join(s.dir, "tokens.key"))
	if err != nil {
		t.Error(err)
		return
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte("node\x00"))
	prefix := "e2b-" + hex.EncodeToString(m.Sum(nil))[:8] + "-"
	names, err := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("ENGI_TEST_TEMPLATES"), filepath.Join(os.Getenv("ENGI_CACHE_DIR"), "templates")), "names", prefix+"*.json"))
	if err != nil {
		t.Error(err)
	}
	for _, n := range names {
		rm := exec.Command(os.Getenv("ENGI_BIN"), "template", "remove", strings.TrimSuffix(filepath.Base(n), ".json"))
		rm.Env = s.env
		if out, err := rm.CombinedOutput(); err != nil {
			t.Logf("engi template remove: %v\n%s", err, out)
		}
	}
}

// serveTLS gives s an https listener with a certificate of a private
// authority, as E2B's clients before version 2 need one.
func (s *server) serveTLS(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	tls := filepath.Join(s.dir, "tls")
	s.engi(t, "tls", "init", "--dir", tls, s.domain)
	s.env = append(s.env, fmt.Sprintf("ENGI_TLS_LISTEN=127.0.0.1:%d", port),
		"ENGI_TLS_CERT="+filepath.Join(tls, "cert.pem"), "ENGI_TLS_KEY="+filepath.Join(tls, "key.pem"))
	s.secure = fmt.Sprintf("%s:%d", s.domain, port)
}

// clientEnv is what an application is given, and nothing else of ours.
func (s *server) clientEnv(r runner, image string) []string {
	env := append(os.Environ(), "E2B_API_KEY="+s.key, "SCENARIO_OTHER_KEY="+s.other, "SCENARIO_DOMAIN="+s.domain, "SCENARIO_IMAGE="+image, "SCENARIO_SECRET="+secretValue,
		"SCENARIO_SCHEME=https", "NODE_EXTRA_CA_CERTS="+filepath.Join(s.dir, "tls", "ca.pem"), "SSL_CERT_FILE="+filepath.Join(s.dir, "tls", "ca.pem"),
		"NODE_NO_WARNINGS=1", "PYTHONUNBUFFERED=1")
	if r.tls {
		return append(env, "E2B_DOMAIN="+s.secure)
	}
	return append(env, "E2B_API_URL="+s.url, "E2B_SANDBOX_URL="+s.url, "E2B_VOLUME_API_URL="+s.url)
}

// run runs a runner and yields its results.
func (s *server) run(ctx context.Context, r runner, image string) ([]result, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--require", "./preload.cjs", filepath.Base(r.file))
	if strings.HasSuffix(r.file, ".py") {
		python, err := filepath.Abs("py/.venv/bin/python")
		if err != nil {
			return nil, err
		}
		cmd = exec.CommandContext(ctx, python, filepath.Base(r.file))
	}
	cmd.Dir, cmd.Env = filepath.Dir(r.file), s.clientEnv(r, image)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := s.output(ctx, cmd)
	var results []result
	lines := bufio.NewReader(bytes.NewReader(out))
	for {
		line, rerr := lines.ReadBytes('\n')
		var res result
		if json.Unmarshal(line, &res) == nil && res.Name != "" {
			results = append(results, res)
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
	}
	if err != nil {
		return results, fmt.Errorf("%s: %v\n%s", r.file, err, said.Bytes())
	}
	return results, nil
}

func TestE2B(t *testing.T) {
	if what := missing(); what != "" {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatalf("needs %s", what)
		}
		t.Skipf("needs %s", what)
	}
	image := pushImage(t)
	s, outer := start(t), startOutside(t)
	list := scenarios(t)

	var mu sync.Mutex
	all := map[string][]result{}
	slots := make(chan struct{}, atOnce)
	t.Run("packages", func(t *testing.T) {
		for _, r := range runners {
			t.Run(strings.TrimSuffix(filepath.Base(r.file), filepath.Ext(r.file)), func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				s := s
				if r.out {
					s = outer
				}
				results, err := s.run(t.Context(), r, image)
				if err != nil {
					t.Error(err)
				}
				ran := map[string]bool{}
				for _, res := range results {
					ran[res.Section+": "+res.Name] = true
					t.Run(res.Section+": "+res.Name, func(t *testing.T) {
						if !res.OK {
							t.Errorf("after %d ms: %s", res.Millis, res.Error)
						}
					})
				}
				for _, sc := range list[r.file] {
					if !ran[sc.section+": "+sc.name] {
						t.Errorf("scenario %q of %q did not run", sc.name, sc.section)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				all[r.file] = results
			})
		}
	})
	count := 0
	for _, results := range all {
		count += len(results)
	}
	t.Logf("%d scenarios", count)
	if path := os.Getenv("ENGI_E2B_RESULTS"); path != "" {
		b, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getenv("ENGI_UPDATE_DOCS") == "1" {
		writeTable(t, all)
	}
}
