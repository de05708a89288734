// Package interpreter runs the code interpreter's packages for JavaScript and
// Python, as applications use them, against a started engi: every scenario of
// js/run.mjs and python/run.py is a test. It needs root, runsc, the template
// code-interpreter-v1, node, npm and python3; make test provides them.
package interpreter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const template = "code-interpreter-v1"

func required() bool { return os.Getenv("ENGI_TEST_REQUIRE") == "1" }

// lacks skips, or fails where everything has to be there.
func lacks(t *testing.T, what string) {
	t.Helper()
	if required() {
		t.Fatalf("needs %s", what)
	}
	t.Skipf("needs %s", what)
}

func command(t *testing.T, dir string, env []string, args ...string) ([]byte, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	return c.CombinedOutput()
}

// packages looks for what make packages installs.
func packages(t *testing.T) {
	t.Helper()
	for _, path := range []string{"js/node_modules", "python/.venv"} {
		if _, err := os.Stat(path); err != nil {
			lacks(t, path+" (make packages)")
		}
	}
}

// serve starts an engi of its own and returns the environment of its clients.
func serve(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		lacks(t, "root")
	}
	for _, v := range []string{"ENGI_BIN", "ENGI_RUNSC", "ENGI_GUEST"} {
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			lacks(t, "a program named by "+v+" (make build)")
		}
	}
	engi, data := os.Getenv("ENGI_BIN"), t.TempDir()
	env := []string{"ENGI_DATA_DIR=" + data}
	verb := "show"
	if required() {
		verb = "build"
	}
	out, err := command(t, ".", env, engi, "template", verb, template)
	if err != nil || bytes.Contains(out, []byte("not built")) {
		lacks(t, "the template "+template+": "+string(out))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	log, err := os.Create(filepath.Join(data, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	server := exec.Command(engi, "serve", "--listen", address, "--pools", "none")
	server.Env, server.Stdout, server.Stderr = append(os.Environ(), env...), log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(engi, "stop", "--destroy", "--data-dir", data).CombinedOutput(); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
			server.Process.Kill()
		}
		server.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			if len(b) > 8<<10 {
				b = b[len(b)-8<<10:]
			}
			t.Logf("the end of the server's log:\n%s", b)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/health")
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
	key, err := os.ReadFile(filepath.Join(data, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + address
	return []string{"E2B_API_KEY=" + strings.TrimSpace(string(key)), "E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url}
}

// scenarios runs a program that prints a line of JSON per scenario and makes a
// test of each.
func scenarios(t *testing.T, least int, env []string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Env = append(os.Environ(), env...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for in := bufio.NewScanner(out); in.Scan(); {
		var line struct {
			Name  string
			Error string
			MS    int
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Errorf("it printed %q", in.Text())
			continue
		}
		n++
		t.Run(line.Name, func(t *testing.T) {
			t.Logf("%d ms", line.MS)
			if line.Error != "" {
				t.Error(line.Error)
			}
		})
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
	if n < least && os.Getenv("SCENARIO_ONLY") == "" {
		t.Errorf("%d scenarios ran, at least %d should", n, least)
	}
}

func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	packages(t)
	env := serve(t)
	t.Run("javascript", func(t *testing.T) { scenarios(t, 40, env, "node", "js/run.mjs") })
	t.Run("python", func(t *testing.T) { scenarios(t, 14, env, "python/.venv/bin/python", "python/run.py") })
}
