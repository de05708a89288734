// Package interpreter runs the code interpreter's packages for JavaScript and
// Python, as applications use them, against a running engi: every scenario of
// js/run.mjs and python/run.py is a test. It needs root, runsc, the template
// code-interpreter-v1, node, npm and python3; make test provides them.
package interpreter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/engi-dev/engi/test/env"
)

const template, languages = "code-interpreter-v1", "code-interpreter-r-java"

// packages checks for the packages that make packages installs.
func packages(t *testing.T) {
	t.Helper()
	for _, path := range []string{"js/node_modules", "python/.venv"} {
		if _, err := os.Stat(path); err != nil {
			env.Need(t, path+" (make packages)")
		}
	}
}

// serve starts a separate engi, with a template, and returns the environment of its
// clients.
func serve(t *testing.T, template string) []string {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		if out, err := exec.CommandContext(t.Context(), os.Getenv("ENGI_BIN"), "template", "build", template).CombinedOutput(); err != nil {
			t.Fatalf("build the template %s: %v\n%s", template, err, out)
		}
	}
	s := env.Serve(t, env.ServerOptions{Templates: []string{template}})
	return []string{"E2B_API_KEY=" + s.Key, "E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL}
}

// scenarios runs a program that prints a line of JSON per scenario and runs a
// test for each.
func scenarios(t *testing.T, least int, vars []string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Env = append(os.Environ(), vars...)
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
	env.Slow(t)
	packages(t)
	vars := serve(t, template)
	t.Run("javascript", func(t *testing.T) { scenarios(t, 40, vars, "node", "js/run.mjs") })
	t.Run("python", func(t *testing.T) { scenarios(t, 14, vars, "python/.venv/bin/python", "python/run.py") })
}

// TestRAndJava runs the languages that have a separate template.
func TestRAndJava(t *testing.T) {
	env.Slow(t)
	packages(t)
	scenarios(t, 12, append(serve(t, languages), "SCENARIO_TEMPLATE="+languages), "node", "js/run.mjs")
}
