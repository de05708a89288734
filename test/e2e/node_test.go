package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

// A testNode is a private node with real sandboxes, shared by the tests of
// this package because the pools take seconds to fill.
type testNode struct {
	executions engi.Executions
	private    *node.Private
}

var shared = env.Shared{Configure: func(c *config.Config) {
	c.Pools = []config.Pool{{Language: "python", Target: 4}, {Language: "javascript", Target: 1}, {Language: "typescript", Target: 1}, {Language: "bash", Target: 2}}
}}

// The canary is a file and a listener of the host that no sandbox may see.
const (
	canaryName = "engi-canary-of-the-host"
	canaryPath = "/tmp/" + canaryName
	canaryPort = "47113"
)

func TestMain(m *testing.M) {
	code := run(m)
	os.Exit(code)
}

func run(m *testing.M) int {
	if err := os.WriteFile(canaryPath, []byte("host"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.Remove(canaryPath)
	// A port that is already in use is also a valid canary.
	if l, err := net.Listen("tcp", "127.0.0.1:"+canaryPort); err == nil {
		defer l.Close()
	}
	return shared.Main(m)
}

// sharedNode returns the shared node, or skips.
func sharedNode(t *testing.T) *testNode {
	t.Helper()
	p := shared.Node(t)
	return &testNode{executions: p.Executions(), private: p}
}

func program(l engi.Language, code string) engi.ExecutionSpec {
	name := map[engi.Language]string{engi.Python: "main.py", engi.JavaScript: "main.js", engi.TypeScript: "main.ts", engi.Go: "main.go", engi.Bash: "main.sh"}[l]
	return engi.ExecutionSpec{
		Owner:        "tester",
		Template:     "base",
		Program:      engi.Program{Language: l, Files: []engi.SourceFile{{Path: name, Data: []byte(code)}}},
		ClaimTimeout: time.Minute,
	}
}

// run runs spec and fails the test if there is no result.
func (n *testNode) run(t *testing.T, spec engi.ExecutionSpec) engi.Execution {
	t.Helper()
	x, err := n.try(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (n *testNode) try(ctx context.Context, spec engi.ExecutionSpec) (engi.Execution, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	x, err := n.executions.Start(ctx, spec)
	if err != nil {
		return x, err
	}
	return n.executions.Wait(ctx, spec.Owner.Viewer(), x.ID)
}

func (n *testNode) artifact(t *testing.T, x engi.Execution, path string) []byte {
	t.Helper()
	r, err := n.executions.Artifact(t.Context(), x.Owner.Viewer(), x.ID, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// leavesNothing waits until no sandbox that ran for an owner has processes on
// the host any more.
func (n *testNode) leavesNothing(t *testing.T) {
	t.Helper()
	xs, err := n.executions.List(t.Context(), "tester", engi.ExecutionFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		left := map[string]string{}
		for pid, cmd := range processes(t) {
			for _, x := range xs {
				if x.State == engi.ExecutionDone && strings.Contains(cmd, string(x.Sandbox)) {
					left[strconv.Itoa(pid)] = cmd
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes of ended executions after a minute: %v", left)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// processes returns the command lines of the host's processes.
func processes(t *testing.T) map[int]string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]string{}
	for _, e := range entries {
		text, err := os.ReadFile(e)
		if err != nil {
			continue // the process has ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(e)))
		if err != nil {
			t.Fatal(err)
		}
		all[pid] = strings.ReplaceAll(string(text), "\x00", " ")
	}
	return all
}
