package web

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

const ui = "../../../internal/server/web/ui"

// viteApp is the directory of an ordinary program for browsers, whose development server runs inside.
const viteApp = "../preview/app"

func tool(t *testing.T, name, of string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		env.Need(t, name+" ("+of+")")
	}
}

// TestTypes checks the dashboard against the description of the API: the types that it
// expects of answers are generated from the description.
func TestTypes(t *testing.T) {
	env.Slow(t)
	tool(t, "npm", "make setup")
	if _, err := os.Stat(ui + "/node_modules/.of"); err != nil {
		env.Need(t, "what builds the dashboard (make web)")
	}
	cmd := exec.CommandContext(t.Context(), "npm", "run", "-s", "check")
	cmd.Dir = ui
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestFirstLoad adds up the sizes of the files that a browser loads before it shows the first page.
func TestFirstLoad(t *testing.T) {
	env.Slow(t)
	const most = 400 << 10
	dist := "../../../internal/server/web/dist/app"
	page, err := os.ReadFile(dist + "/index.html.br")
	if err != nil {
		env.Need(t, "the dashboard (make web)")
	}
	plain, err := os.ReadFile(dist + "/index.html")
	if err != nil {
		t.Fatal(err)
	}
	first, all := len(page), len(page)
	err = filepath.WalkDir(dist+"/assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".br") {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		all += int(st.Size())
		if strings.Contains(string(plain), strings.TrimSuffix(filepath.Base(path), ".br")) {
			first += int(st.Size())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if first > most || all > 2*most || first < 10<<10 {
		t.Errorf("the first page has %d bytes, everything %d", first, all)
	}
	t.Logf("the first page has %d bytes, everything %d", first, all)
}

// A repository is a repository that git serves over HTTP to clients with the password.
type repository struct {
	URL      string `json:"url"`
	Host     string `json:"-"`   // host name in network.hosts
	Dir      string `json:"dir"` // directory of the repository
	User     string `json:"user"`
	Password string `json:"password"`
}

func serveRepository(t *testing.T) repository {
	t.Helper()
	dir := t.TempDir()
	r := repository{Dir: filepath.Join(dir, "shop", "site.git"), User: "bot", Password: "git-3d0f82b6c54e91a7"}
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@git.test", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@git.test")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	work := filepath.Join(dir, "work")
	git("init", "-q", "-b", "main", work)
	git("-C", work, "commit", "-q", "--allow-empty", "-m", "Begin")
	git("-C", work, "commit", "-q", "--allow-empty", "-m", "Sell tickets")
	git("clone", "-q", "--bare", work, r.Dir)
	git("-C", r.Dir, "config", "http.receivepack", "true")
	backend := &cgi.Handler{
		Path: filepath.Join(git("--exec-path"), "git-http-backend"), Root: "/", Dir: dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=" + r.User, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if user, password, _ := q.BasicAuth(); user != r.User || password != r.Password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, q)
	}))
	address := ownAddress(t)
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	r.URL, r.Host = strings.Replace(server.URL, address, "git.test", 1)+"/shop/site.git", "git.test="+address
	return r
}

// ownAddress returns an address of this machine that has the same meaning inside a
// sandbox, unlike loopback addresses.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	env.Need(t, "a network interface with an IPv4 address")
	return ""
}

// A check is a result of drive.mjs.
type check struct {
	Name   string
	OK     bool
	Detail string
}

// browser returns the path of Chromium, and skips the test if a requirement is missing.
func browser(t *testing.T, more ...string) string {
	t.Helper()
	tool(t, "node", "make setup")
	chromium := cmp.Or(os.Getenv("ENGI_TEST_CHROMIUM"), "/usr/bin/chromium")
	of := map[string]string{chromium: "make setup", "../../../internal/server/web/dist/app/index.html": "make web"}
	for _, path := range append(more, "browser/node_modules") {
		of[path] = "make packages"
	}
	for path, of := range of {
		if _, err := os.Stat(path); err != nil {
			env.Need(t, path+" ("+of+")")
		}
	}
	return chromium
}

// drive runs a script with Chromium, which must make at least least checks.
func drive(t *testing.T, script string, input any, least int) {
	t.Helper()
	given, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	drive := exec.CommandContext(ctx, "node", "browser/"+script)
	var said bytes.Buffer
	drive.Stdin, drive.Stderr, drive.WaitDelay = bytes.NewReader(given), &said, 5*time.Second
	out, err := drive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := drive.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c check
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		n++
		t.Run(c.Name, func(t *testing.T) {
			if !c.OK {
				t.Error(c.Detail)
			} else if c.Detail != "" {
				t.Log(c.Detail)
			}
		})
	}
	if err := drive.Wait(); err != nil || n < least {
		t.Fatalf("the browser ended after %d checks: %v\n%s", n, err, said.String())
	}
}

// TestDashboard drives a browser through the dashboard of a node.
func TestDashboard(t *testing.T) {
	env.Slow(t)
	for _, name := range []string{"git", "ssh", "ssh-keygen", "python3"} {
		tool(t, name, "make setup")
	}
	chromium := browser(t, viteApp+"/node_modules")
	repo := serveRepository(t)
	address := ownAddress(t)
	port, err := net.Listen("tcp", address+":0") // reserves a free port
	if err != nil {
		t.Fatal(err)
	}
	port.Close()
	_, number, _ := strings.Cut(port.Addr().String(), ":")
	tracker := map[string]string{"address": address, "url": "http://tracker.demo:" + number, "key": "board-9c51d7f20ab84e36"}
	s := env.Serve(t, env.ServerOptions{Config: "[sandbox]\nenabled = true\n" +
		"[webhooks]\nprivate = [\"127.0.0.1\"]\n" + // allows a server that the browser's script runs
		"[network]\nhosts = [\"" + repo.Host + "\", \"tracker.demo=" + address + "\"]\n" +
		"[ssh]\nlisten = \"127.0.0.1:0\"\n" +
		"[models.prices.\"demo:script\"]\ninput = 3.0\noutput = 15.0\n" +
		"[[mcp.servers]]\nname = \"tickets\"\nurl = \"https://mcp.example.com/mcp\"\n"})
	link := func() string { return strings.TrimSpace(s.Run("open", "--print")) }
	made, err := s.CreateKey(t.Context(), v1.KeyRequest{Name: "laptop", Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := s.CreateKey(t.Context(), v1.KeyRequest{Name: "wall screen", Owner: "ann", Scopes: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("shots", 0o755); err != nil {
		t.Fatal(err)
	}
	input := map[string]any{
		"url": s.URL, "admin": s.Key, "link": link(), "key": made, "reader": reader, "chromium": chromium, "shots": "shots", "vite": viteApp, "git": repo, "tracker": tracker,
	}
	drive(t, "drive.mjs", input, 30)
	_, code, _ := strings.Cut(input["link"].(string), "code=")
	for what, secret := range map[string]string{"the admin's key": s.Key, "a key": made.Secret, "git's password": repo.Password, "the tracker's key": tracker["key"], "the link": code} {
		if strings.Contains(s.Log(), secret) {
			t.Errorf("the log has %s in it", what)
		}
	}
}
