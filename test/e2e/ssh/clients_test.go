package ssh

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/test/env"
)

// TestLibraries uses a session with the SSH clients on which extensions of editors and
// tools for development environments are based: programs, a terminal whose size
// changes, SFTP, a tunnel, keepalives and a pinned host key. One finds the session
// not started, the next one awake, and the last one hibernated.
func TestLibraries(t *testing.T) {
	env.Slow(t)
	needs(t, "ssh-keygen", "node")
	for _, path := range []string{"js/node_modules/ssh2", "py/.venv/bin/python"} {
		if _, err := os.Stat(path); err != nil {
			env.Need(t, path+" (make packages)")
		}
	}
	s := env.Serve(t, env.ServerOptions{Config: config})
	s.Run("session", "create", "dev", "--template", "base", "--persistence", "snapshot")
	p := at(t, s.Client, s.Engi)
	p.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "other")
	other, err := os.ReadFile(p.path("other.pub"))
	if err != nil {
		t.Fatal(err)
	}
	about, err := s.SSHServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(about.Address)
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, program, script string
		signal                any
	}{
		{"ssh2", "node", "/js/client.mjs", "SIGTERM"},
		{"asyncssh", here + "/py/.venv/bin/python", "/py/use_asyncssh.py", "TERM"},
		{"paramiko", here + "/py/.venv/bin/python", "/py/use_paramiko.py", -1.}, // paramiko does not report signals
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.name == "paramiko" {
				s.Run("session", "release", "dev")
			}
			p.t = t
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out := p.run(p.command(exec.CommandContext(ctx, x.program, here+x.script, host, port, "dev", p.path("id"), about.HostKey, strings.TrimSpace(string(other)))), "")
			var got map[string]any
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			want := map[string]any{
				"exec": "hi\nno\n7", "input": "LOUD", "many": "01234567", "signal": x.signal, "shell": 9., "same": true, "inside": true, "stat": "640 3145728", "list": "b link",
				"missing": 2., "tunnel": "THROUGH", "closed": "refused", "alive": "yes", "pinned": "yes",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
