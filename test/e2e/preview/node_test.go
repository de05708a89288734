package preview

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/test/env"
)

// A fixture is a private node and a client of it.
type fixture struct {
	*client.Client
	node  *node.Private
	dir   string
	cache string // cache directory of the node
	url   *url.URL
}

var shared env.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func open(t *testing.T) *fixture {
	t.Helper()
	p := shared.Node(t)
	u, err := url.Parse(p.Endpoint().URL)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{Client: client.New(u.String(), p.AdminKey()), node: p, dir: shared.Dir, cache: shared.Cache, url: u}
}

// sandbox creates a sandbox that ends with the test.
func (w *fixture) sandbox(t *testing.T, ports *v1.PortPolicy) v1.Sandbox {
	t.Helper()
	s, err := w.CreateSandbox(t.Context(), v1.SandboxRequest{
		Template: "base", VCPUs: 2, Memory: 1 << 30, Disk: 1 << 30, Ports: ports,
		Lifetime: v1.Lifetime{Timeout: v1.Duration(20 * time.Minute)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context has ended.
		if err := w.StopSandbox(context.Background(), s.ID); err != nil && !strings.Contains(err.Error(), "404") {
			t.Logf("stop %s: %v", s.ID, err)
		}
	})
	return s
}

// address returns the URL of a port of a sandbox.
func (w *fixture) address(s v1.Sandbox, port int) string {
	return fmt.Sprintf("http://%d-%s.localhost:%s", port, strings.TrimPrefix(s.ID, "sbx_"), w.url.Port())
}

// background starts a program inside, whose output is shown if the test fails.
func (w *fixture) background(t *testing.T, s v1.Sandbox, dir, command string) {
	t.Helper()
	p, err := w.StartProcess(t.Context(), s.ID, v1.ProcessRequest{Command: command, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		var out bytes.Buffer
		for e, err := range p.Output(ctx, 0) {
			if err != nil || out.Len() > 8<<10 {
				break
			}
			out.WriteString(e.Data)
		}
		t.Logf("%s said:\n%s", command, out.String())
	})
}

// listens waits until a port answers.
func (w *fixture) listens(t *testing.T, s v1.Sandbox, port int) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		p, err := w.Port(t.Context(), s.ID, port)
		if err != nil {
			t.Fatal(err)
		}
		if p.Listening {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no program listens on port %d", port)
		}
	}
}

// browserless returns an HTTP client that resolves names below localhost, which the
// resolver of this machine may not know, and follows no redirects.
func browserless(t *testing.T, w *fixture) *http.Client {
	dialer := &http.Transport{DialContext: w.dial, DisableCompression: true}
	t.Cleanup(dialer.CloseIdleConnections)
	return &http.Client{Transport: dialer, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// packages installs the packages of dir's lock file, once for all tests that ever
// run on this machine, and returns their directory.
func (w *fixture) packages(t *testing.T, dir string) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		env.Need(t, "npm")
	}
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	home := filepath.Join(w.cache, "test", "preview-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(filepath.Join(home, "node_modules")); err == nil {
		return home
	}
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(home), ".preview-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.CopyFS(tmp, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = tmp
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(tmp, home); err != nil && !os.IsExist(err) {
		if _, there := os.Stat(filepath.Join(home, "node_modules")); there != nil { // no other process was faster
			t.Fatal(err)
		}
	}
	return home
}

// upload copies a tree of this machine to dir in the sandbox.
func (w *fixture) upload(t *testing.T, s v1.Sandbox, dir string, from fs.FS) {
	t.Helper()
	r, pw := io.Pipe()
	go func() {
		out := tar.NewWriter(pw)
		err := out.AddFS(from)
		if err == nil {
			err = out.Close()
		}
		pw.CloseWithError(err)
	}()
	err := w.Files(s.ID).Unpack(t.Context(), dir, r)
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
}
