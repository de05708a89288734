package session

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// TestSessionsByDefault uses a session of a node without any configuration, with the
// command line.
func TestSessionsByDefault(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{})
	var made struct{ ID, State string }
	if err := json.Unmarshal([]byte(s.Run("session", "create", "--json")), &made); err != nil || made.ID == "" || made.State != "idle" {
		t.Fatalf("%+v, %v", made, err)
	}
	if out := s.Run("session", "run", made.ID, "-c", "const n: number = 6; n * 7"); out != "42" {
		t.Errorf("it prints %q", out)
	}
	s.Run("session", "kill", made.ID)
}

// TestFilesOfASession creates more files than a session may have, inside and outside
// of its volume. The session works again when some are removed.
func TestFilesOfASession(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{})
	ctx := t.Context()
	if _, err := s.CreateSession(ctx, v1.SessionRequest{Name: "s", Inodes: 1000, Capacity: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	for dir, most := range map[string]int{"/srv": 1000, "/workspace": 16 << 20 / (4 << 10)} {
		x, err := s.ResumeSession(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Args: []string{"python3", "-c", `
import os, sys
n = 0
try:
    while n < 5000:
        open(f"{sys.argv[1]}/f{n}", "w").close()
        n += 1
except OSError as e:
    print(n, e.strerror)
os.remove(f"{sys.argv[1]}/f0")
open(f"{sys.argv[1]}/again", "w").close()
`, dir}, User: "root"})
		var n int
		if err != nil || p.ExitCode != 0 {
			t.Fatalf("%s: %v, %d %s", dir, err, p.ExitCode, p.Stderr)
		}
		if _, err := fmt.Sscanf(p.Stdout, "%d No space left on device", &n); err != nil || n == 0 || n > most {
			t.Errorf("%s: %q, want at most %d files", dir, p.Stdout, most)
		}
	}
}

// TestProcessorTimeOfASession uses processor time until the quota of its session is used up, and
// gets its processor back after an idle time.
func TestProcessorTimeOfASession(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{Config: "[sandbox]\nenabled = false\ncpu_quota = 0.1\ncpu_window = \"5s\"\n"})
	ctx := t.Context()
	if _, err := s.CreateSession(ctx, v1.SessionRequest{CPUQuota: 0.5}); err == nil || !strings.Contains(err.Error(), "the node's 0.1") {
		t.Errorf("more than the node's: %v", err)
	}
	if x, err := s.CreateSession(ctx, v1.SessionRequest{Name: "s", VCPUs: 1}); err != nil || x.CPUQuota != 0.1 {
		t.Fatalf("%+v, %v", x, err)
	}
	x, err := s.ResumeSession(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.StartProcess(ctx, x.SandboxID, v1.ProcessRequest{Detach: true, Args: []string{"sh", "-c", "while :; do :; done"}})
	if err != nil {
		t.Fatal(err)
	}
	throttled := func(want bool) {
		t.Helper()
		wait(t, fmt.Sprint("it is throttled: ", want), func() (bool, bool) {
			b, err := s.Sandbox(ctx, x.SandboxID)
			if err != nil {
				t.Fatal(err)
			}
			return b.Throttled, b.Throttled == want
		})
	}
	throttled(true)
	const group = "cat $(find /sys/fs/cgroup -path '*'%s'*' -name cpu.max -o -path '*'%s'*' -name cpu.cfs_quota_us 2> /dev/null | head -1)"
	limit := func() string {
		out, err := exec.Command("sh", "-c", fmt.Sprintf(group, x.SandboxID, x.SandboxID)).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))[0]
	}
	if got := wait(t, "the group is limited", func() (string, bool) { n := limit(); return n, n == "10000" }); got != "10000" {
		t.Error(got)
	}
	if err := p.Signal(ctx, "KILL"); err != nil {
		t.Fatal(err)
	}
	throttled(false)
	wait(t, "the group is not limited", func() (string, bool) { n := limit(); return n, n == "100000" })
	events, err := s.Events(ctx, client.EventFilter{Subject: x.SandboxID, Types: []string{"sandbox.updated"}})
	if err != nil || len(events) != 2 {
		t.Errorf("%+v, %v", events, err)
	}
}
