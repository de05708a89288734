package mcp

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/env"
)

const python = "py/.venv/bin/python"

// TestPython uses tools and resources with the newest clients for Python, in every
// mode and over both transports.
func TestPython(t *testing.T) {
	env.Slow(t)
	if _, err := os.Stat(python); err != nil {
		env.Need(t, "the packages below py (make packages)")
	}
	n := env.Run(t, settings(t))
	at, key := n.Endpoint().URL, n.AdminKey()
	bin, err := filepath.Abs(os.Getenv("ENGI_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, args...)
		cmd.Env = append(os.Environ(), "ENGI_URL="+at, "ENGI_KEY="+key)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", args, err, out, said.String())
		}
		return string(out)
	}
	for name, where := range map[string][]string{"http": {"http", at + "/mcp", key}, "stdio": {"stdio", bin}} {
		for mode, version := range map[string]string{"auto": "2026-07-28", "legacy": "2025-11-25", "2026-07-28": "2026-07-28"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				var got struct {
					Version, Progress string
					Tools             int
					Title             bool
				}
				if out := run(t, append([]string{"py/client.py", mode}, where...)...); json.Unmarshal([]byte(out), &got) != nil || got.Version != version || got.Tools < 10 || !got.Title || !strings.Contains(got.Progress, "step 1") {
					t.Errorf("%s", out)
				}
			})
		}
		t.Run(name+" fastmcp", func(t *testing.T) {
			if out := run(t, append([]string{"py/fast.py"}, where...)...); !strings.Contains(out, "fine") {
				t.Error(out)
			}
		})
	}
}
