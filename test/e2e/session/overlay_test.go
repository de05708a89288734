package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/test/env"
)

// TestOverlayOnANewTemplate changes the disk of a sandbox in all possible ways, lets
// the template be rebuilt meanwhile, and finds the changes on the files of the new
// template, also after the server was killed during a save.
func TestOverlayOnANewTemplate(t *testing.T) {
	env.Slow(t)
	name := fmt.Sprintf("overlay-%d", os.Getpid())
	t.Cleanup(func() { // runs after the end of the server
		templates, err := disk.Open(context.Background(), disk.Options{Dir: os.Getenv("ENGI_TEST_TEMPLATES")})
		if err == nil {
			err = templates.Remove(context.Background(), name)
		}
		if err != nil && !engi.Is(err, engi.NotFound) {
			t.Error(err)
		}
	})
	s := env.Serve(t, env.ServerOptions{})
	ctx := t.Context()
	build := func(version string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "template.yaml")
		text := "base: template:base\nfiles:\n"
		for _, f := range []string{"kept", "changed", "removed", "mode", "dir/old", "gone/old"} {
			text += fmt.Sprintf("  - {path: /opt/t/%s, content: \"%s of %s\\n\"}\n", f, f, version)
		}
		text += fmt.Sprintf("  - {path: /opt/t/only-%s, content: \"new\\n\"}\n", version)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Run("template", "build", file, "--as", name)
	}
	build("v1")
	create := func() {
		t.Helper()
		if _, err := s.CreateSession(ctx, v1.SessionRequest{Name: "s", Persistence: "overlay", Template: name}); err != nil {
			t.Fatal(err)
		}
	}
	sh := func(script string) string {
		t.Helper()
		x, err := s.ResumeSession(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Args: []string{"sh", "-c", script}, User: "root"})
		if err != nil || p.ExitCode != 0 {
			t.Fatalf("%v, %d: %s", err, p.ExitCode, p.Stderr)
		}
		return strings.TrimSpace(p.Stdout)
	}
	create()
	sh(`cd /opt/t
echo mine > changed
rm removed
chmod 4711 mode
chown 12:34 mode
rm -r dir && mkdir dir && echo mine > dir/new
rm -r gone
ln -s /etc/passwd link
echo twice > hard && ln hard harder
mkfifo pipe
python3 -c 'import os; os.setxattr("changed", "user.k", b"v")' 2> /dev/null || true
touch "with
newline"
head -c 3000000 /dev/urandom > large
sha256sum large > sum
mkdir -p /srv/deep/er && echo deep > /srv/deep/er/file`)
	const look = `cd /opt/t; grep -H . kept changed mode dir/* 2>&1; ls -A1; ls -A dir; stat -c '%a %u %g' mode; readlink link; [ hard -ef harder ] && cat harder
test -p pipe && echo pipe; sha256sum -c sum; cat /srv/deep/er/file; python3 -c 'import os; print(os.getxattr("changed", "user.k"))' 2> /dev/null`
	before := sh(look)
	if x, err := s.ReleaseSession(ctx, "s"); err != nil || x.State != "idle" || x.SavedAt == nil {
		t.Fatalf("%+v, %v", x, err)
	}
	build("v2")
	want := strings.NewReplacer("kept of v1", "kept of v2", "only-v1", "only-v2").Replace(before)
	if got := sh(look); got != want {
		t.Errorf("on the new template:\n%s\nwant:\n%s", got, want)
	}

	// The server is killed while it saves another version.
	saved := "the first"
	sh("echo '" + saved + "' > /opt/t/version")
	if x, err := s.SaveSession(ctx, "s"); err != nil || x.Bytes == 0 {
		t.Fatalf("%+v, %v", x, err)
	}
	const next = "the next"
	sh("echo '" + next + "' > /opt/t/version; dd if=/dev/urandom of=/opt/t/fill bs=1M count=16 2> /dev/null")
	done := make(chan error, 1)
	go func() { _, err := s.SaveSession(ctx, "s"); done <- err }()
	time.Sleep(60 * time.Millisecond)
	s.Kill()
	acknowledged := <-done == nil
	s.Start()
	x, err := s.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StopSandbox(ctx, x.SandboxID); err != nil { // unsaved changes are lost
		t.Fatal(err)
	}
	got := sh("cat /opt/t/version")
	if got != next && (acknowledged || got != saved) {
		t.Fatalf("%q, want %q or %q; acknowledged %t", got, next, saved, acknowledged)
	}
	t.Logf("acknowledged %t, %q is there", acknowledged, got)
	if err := s.TerminateSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Snapshots(ctx, ""); err != nil || len(left) > 0 {
		t.Errorf("snapshots are left: %+v, %v", left, err)
	}
}
