package providertest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// startLinked starts a machine with a link.
func (s *suite) startLinked(t *testing.T) (provider.Machine, provider.Spec, *guest.Client) {
	t.Helper()
	spec := s.spec()
	spec.Netns = s.env.Link(t)
	m, err := s.p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	return m, spec, open(t, m, spec)
}

// echoes fails the test unless the other end of the link echoes.
func (s *suite) echoes(t *testing.T, c *guest.Client) {
	t.Helper()
	script := fmt.Sprintf(`exec bash -c 'exec 3<>/dev/tcp/%s/7; for i in 1 2 3; do echo line $i >&3; read -t 20 -u 3 l; echo "$l"; done'`, s.env.EchoAddr)
	if got := mustSh(t, c, script); got != "line 1\nline 2\nline 3" {
		t.Errorf("got %q", got)
	}
}

// ownLoopback fails the test unless programs can connect over loopback.
func ownLoopback(t *testing.T, c *guest.Client) {
	t.Helper()
	for _, addr := range []string{"127.0.0.1", "::1"} {
		script := fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/%s/9' 2>&1; true`, addr)
		if got := mustSh(t, c, script); !strings.Contains(got, "refused") {
			t.Errorf("a closed port of %s: %q, want refused", addr, got)
		}
	}
}

func (s *suite) linked(t *testing.T) {
	if s.env.Link == nil {
		t.Skip("these machines have no links")
	}
	m, spec, c := s.startLinked(t)
	s.echoes(t, c)
	if w, ok := s.p.(provider.Networked); !ok {
		t.Error("nobody finds the namespace of a machine again")
	} else if path, err := w.Netns(t.Context(), spec.ID); err != nil || !sameFile(t, path, spec.Netns) {
		t.Errorf("the namespace is found at %q, %v", path, err)
	}
	ownLoopback(t, c)
	if got := mustSh(t, c, `bash -c 'exec 3<>/dev/tcp/'`+s.env.EchoAddr+`'/8' 2>&1; true`); !strings.Contains(got, "refused") {
		t.Errorf("a closed port at the other end: %q, want refused", got)
	}
	if got := mustSh(t, c, "grep CapEff /proc/self/status"); hasCapability(got, 13) {
		t.Errorf("programs may use raw sockets: %s", got)
	}

	if err := m.Close(); err != nil {
		t.Fatal(err)
	}

	// Without a link there is only loopback.
	m, spec = s.start(t)
	_, err := s.p.(provider.Networked).Netns(t.Context(), spec.ID)
	wantKind(t, err, engi.NotFound)
	c = open(t, m, spec)
	ownLoopback(t, c)
	if got := mustSh(t, c, `timeout 5 bash -c 'exec 3<>/dev/tcp/'`+s.env.EchoAddr+`'/7' 2>&1; true`); !strings.Contains(got, "unreachable") {
		t.Errorf("a machine without a link: %q, want unreachable", got)
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

// hasCapability reports whether a line of /proc/self/status has a capability.
func hasCapability(line string, bit int) bool {
	var set uint64
	fmt.Sscanf(line, "CapEff: %x", &set)
	return set&(1<<bit) != 0
}

func (s *suite) linkedRestore(t *testing.T) {
	if s.env.Link == nil {
		t.Skip("these machines have no links")
	}
	m, spec, c := s.startLinked(t)
	if _, ok := m.(provider.Snapshotter); !ok {
		t.Skip("this kind of machine cannot be saved")
	}
	s.echoes(t, c)
	// A program keeps a connection open and writes to it on request.
	_, err := c.Start(t.Context(), engi.Command{User: "root", Dir: "/", Args: []string{"bash", "-c", fmt.Sprintf(
		`exec 3<>/dev/tcp/%s/7; echo one >&3; read -t 20 -u 3 l; echo got $l > /tmp/said; trap '' PIPE
		while ! test -e /tmp/go; do sleep 0.05; done; echo two >&3; if read -t 20 -u 3 l; then echo got $l; else echo broken; fi >> /tmp/said; echo end >> /tmp/said`,
		s.env.EchoAddr)}})
	if err != nil {
		t.Fatal(err)
	}
	said := func(c *guest.Client, want string) {
		t.Helper()
		var got string
		for until := time.Now().Add(timeout); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			if got = mustSh(t, c, "cat /tmp/said 2>/dev/null; true"); got == want {
				return
			}
		}
		t.Errorf("the holder of a connection said %q, want %q", got, want)
	}
	said(c, "got one")
	quiesce(t, c)
	dir := t.TempDir()
	if err := provider.Snapshot(t.Context(), m, dir); err != nil {
		t.Fatal(err)
	}
	// The original keeps its connections.
	c = open(t, m, spec)
	s.echoes(t, c)
	mustSh(t, c, "touch /tmp/go")
	said(c, "got one\ngot two\nend")

	// The connections of copies are broken, and copies can open new ones at the same time.
	for range 2 {
		fresh := s.spec()
		fresh.Netns = s.env.Link(t)
		_, c := s.restore(t, fresh, dir)
		s.echoes(t, c)
		ownLoopback(t, c)
		mustSh(t, c, "touch /tmp/go")
		said(c, "got one\nbroken\nend")
	}
	// A copy may have no link.
	_, c = s.restore(t, s.spec(), dir)
	ownLoopback(t, c)
	if got := mustSh(t, c, `timeout 5 bash -c 'exec 3<>/dev/tcp/'`+s.env.EchoAddr+`'/7' 2>&1; true`); !strings.Contains(got, "unreachable") {
		t.Errorf("a copy without a link: %q, want unreachable", got)
	}

	// A copy of a machine without a link may have one.
	m, spec = s.start(t)
	c = open(t, m, spec)
	quiesce(t, c)
	bare := t.TempDir()
	if err := provider.Checkpoint(t.Context(), m, bare); err != nil {
		t.Fatal(err)
	}
	fresh := s.spec()
	fresh.Netns = s.env.Link(t)
	_, c = s.restore(t, fresh, bare)
	s.echoes(t, c)
	ownLoopback(t, c)
}
