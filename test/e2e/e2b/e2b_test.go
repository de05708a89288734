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
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/test/env"
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
	name string // name of the runner in its results
	file string // path relative to this directory
	tls  bool   // the runner knows only a domain, and uses https
	out  bool   // the server runs in a namespace whose Internet is simulated
	less bool   // in addition, sandboxes may reach only one.test
}

var runners = []runner{
	{name: "js", file: "js/templates.mjs"},
	{name: "js", file: "js/api.mjs"},
	{name: "js", file: "js/commands.mjs"},
	{name: "js", file: "js/files.mjs"},
	{name: "js", file: "js/lifecycle.mjs"},
	{name: "js", file: "js/webhooks.mjs"},
	{name: "js", file: "js/ports.mjs"},
	{name: "js", file: "js/storage.mjs"},
	{name: "js", file: "js/network.mjs", out: true},
	{name: "js", file: "js/restricted.mjs", less: true},
	{name: "js 1.13", file: "js/old.mjs", tls: true},
	{name: "python", file: "py/sync.py"},
	{name: "python", file: "py/async.py"},
	{name: "python", file: "py/network.py", out: true},
	{name: "python domain", file: "py/domain.py", tls: true},
	{name: "python 2.31", file: "py2.31/earlier.py"},
}

// atOnce is the maximum number of concurrent runners.
const atOnce = 3

// A server is a running engi, with keys of two owners.
type server struct {
	*env.Server
	domain, secure string
	tls            string // directory with the server's certificate
	proxy          string // URL of a proxy for which names below the domain are this machine
	ann, ben       string // keys of the owners ann and ben
	ns             *namespace
}

// needPackages checks for the packages that the runners need.
func needPackages(t *testing.T) {
	t.Helper()
	for _, f := range []string{"js/node_modules/e2b/package.json", "py/.venv/bin/python", "py2.31/.venv/bin/python"} {
		if _, err := os.Stat(f); err != nil {
			env.Need(t, f+" (make packages)")
		}
	}
	if _, err := exec.LookPath("node"); err != nil {
		env.Need(t, "node")
	}
}

// start starts an engi that ends with the test.
func start(t *testing.T, vars ...string) *server {
	t.Helper()
	return startIn(t, nil, vars...)
}

// startIn starts an engi in a namespace; nil means the current one.
func startIn(t *testing.T, ns *namespace, vars ...string) *server {
	t.Helper()
	s := &server{domain: "sbx.test", ns: ns, tls: env.Dir(t)}
	vars = append(vars, "ENGI_PREVIEW_DOMAIN="+s.domain, "ENGI_KEEP_COUNT=100", "ENGI_WEBHOOKS_PRIVATE=127.0.0.1")
	vars = append(vars, s.serveTLS(t)...)
	s.proxy = serveProxy(t, strings.TrimPrefix(s.secure, s.domain))
	s.Server = env.Serve(t, env.ServerOptions{
		Env: vars, Without: []string{"E2B_"}, Start: ns.start, Ended: func(ended *env.Server) { removeBuilds(t, ended) },
	})
	s.ann = s.Run("key", "create", "ann", "--owner", "ann")
	s.ben = s.Run("key", "create", "ben", "--owner", "ben")
	return s
}

// removeBuilds removes templates that could not be removed while sandboxes
// were kept warm from them: templates are in a cache that nodes share.
func removeBuilds(t *testing.T, s *env.Server) {
	key, err := os.ReadFile(filepath.Join(s.Dir, "tokens.key"))
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
		if out, err := s.Engi("template", "remove", strings.TrimSuffix(filepath.Base(n), ".json")).CombinedOutput(); err != nil {
			t.Logf("engi template remove: %v\n%s", err, out)
		}
	}
}

// serveTLS returns the settings that give s an https listener with a certificate of a
// private authority, which E2B's clients before version 2 need.
func (s *server) serveTLS(t *testing.T) []string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s.secure = fmt.Sprintf("%s:%d", s.domain, port)
	return append(initTLS(t, s.tls, s.domain), fmt.Sprintf("ENGI_TLS_LISTEN=127.0.0.1:%d", port))
}

// serveProxy starts a proxy that directs all connections to a port of this machine, and
// returns its URL. Not every client lets a test resolve names.
func serveProxy(t *testing.T, port string) string {
	t.Helper()
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "connections only", http.StatusMethodNotAllowed)
			return
		}
		to, err := net.Dial("tcp", "127.0.0.1"+port)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		var work sync.WaitGroup
		work.Go(func() { io.Copy(to, buffered); to.(*net.TCPConn).CloseWrite() })
		io.Copy(from, to)
		from.Close()
		work.Wait()
	}))
	t.Cleanup(p.Close)
	return p.URL
}

// initTLS creates an authority and a certificate, and returns the variables that
// name the authority.
func initTLS(t *testing.T, dir string, names ...string) []string {
	t.Helper()
	cmd := exec.Command(os.Getenv("ENGI_BIN"), append([]string{"tls", "init", "--dir", dir}, names...)...)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("engi tls init: %v\n%s", err, out)
	}
	return []string{"ENGI_TLS_CERT=" + filepath.Join(dir, "cert.pem"), "ENGI_TLS_KEY=" + filepath.Join(dir, "key.pem")}
}

// clientEnv returns the environment of an application, without other variables of the test.
func (s *server) clientEnv(r runner, image string) []string {
	vars := append(os.Environ(), "E2B_API_KEY="+s.ann, "SCENARIO_OTHER_KEY="+s.ben, "SCENARIO_DOMAIN="+s.domain, "SCENARIO_IMAGE="+image, "SCENARIO_SECRET="+secretValue,
		"SCENARIO_SCHEME=https", "NODE_EXTRA_CA_CERTS="+filepath.Join(s.tls, "ca.pem"), "SSL_CERT_FILE="+filepath.Join(s.tls, "ca.pem"),
		"NODE_NO_WARNINGS=1", "PYTHONUNBUFFERED=1")
	if r.tls {
		return append(vars, "E2B_DOMAIN="+s.secure, "HTTPS_PROXY="+s.proxy)
	}
	return append(vars, "E2B_API_URL="+s.URL, "E2B_SANDBOX_URL="+s.URL, "E2B_VOLUME_API_URL="+s.URL)
}

// run runs a runner and yields its results.
func (s *server) run(ctx context.Context, r runner, image string) ([]result, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--require", "./preload.cjs", filepath.Base(r.file))
	if strings.HasSuffix(r.file, ".py") {
		python, err := filepath.Abs(filepath.Join(filepath.Dir(r.file), ".venv/bin/python"))
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
	env.Slow(t)
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	needPackages(t)
	image := pushImage(t)
	s, outer := start(t, "ENGI_BUILDS_REGISTRIES="+registryOf(t, image)), startOutside(t)
	less := startOutside(t, "ENGI_NETWORK_MAX=restricted", "ENGI_NETWORK_ALLOW=one.test")
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
				switch {
				case r.out:
					s = outer
				case r.less:
					s = less
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
