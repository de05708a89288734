package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// TestTerminalCommands goes through the life of a terminal of a session.
func TestTerminalCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	server := []string{"--url", srv.URL, "--key", w.User}
	c := client.New(srv.URL, w.User)
	if _, err := c.CreateSession(t.Context(), v1.SessionRequest{Name: "chat"}); err != nil {
		t.Fatal(err)
	}
	run := func(want int, args ...string) string {
		t.Helper()
		var out, said bytes.Buffer
		if code := engiMain(append(append([]string{args[0], args[1]}, server...), args[2:]...), os.Stdin, &out, &said); code != want {
			t.Fatalf("engi %s: %d, want %d: %s%s", strings.Join(args, " "), code, want, out.String(), said.String())
		}
		return out.String()
	}
	id := strings.TrimSpace(run(0, "terminal", "new", "chat", "--cols", "100", "--", "/bin/sh"))
	if list := run(0, "terminal", "list", "chat"); !regexp.MustCompile(id + ` +/bin/sh +running`).MatchString(list) {
		t.Errorf("list: %s", list)
	}

	owner := sit(t, append([]string{"session", "shell", "chat"}, server...)...)
	owner.types("PS1='> '\necho so$((1+1))far\n")
	owner.sees("so2far\r\n> ")
	if screen := run(0, "terminal", "screen", "chat"); !strings.Contains(screen, "so2far\n>\n") {
		t.Errorf("screen: %q", screen)
	}
	looks, types := strings.TrimSpace(run(0, "terminal", "share", "chat")), strings.TrimSpace(run(0, "terminal", "share", "chat", id, "--write", "--ttl", "1m", "--name", "bob"))
	nobody := []string{"--url", srv.URL}
	watcher := sit(t, append([]string{"terminal", "watch", looks}, nobody...)...)
	watcher.sees("so2far")
	helper := sit(t, append([]string{"terminal", "watch", types}, nobody...)...)
	helper.sees("so2far")
	watcher.types("echo e$((1+1))vil\n")
	helper.types("echo good$((3+4))\n")
	owner.sees("good7")
	watcher.sees("good7")
	if strings.Contains(owner.shown(), "e2vil") {
		t.Error("who only looks has typed")
	}
	if list := run(0, "terminal", "list", "chat"); !strings.Contains(list, "ann guest bob") {
		t.Errorf("list: %s", list)
	}
	links := run(0, "terminal", "links", "chat")
	for _, line := range regexp.MustCompile(`tlk_[a-z2-7]{26}`).FindAllString(links, -1) {
		run(0, "terminal", "unshare", "chat", line)
	}
	watcher.ends(failureOf(t, watcher))
	helper.ends(failureOf(t, helper))

	// Whoever leaves comes back.
	owner.types("y=4$((1+1))\n\x1d")
	owner.ends(0)
	owner = sit(t, append([]string{"terminal", "attach", "chat"}, server...)...)
	owner.sees("good7")
	owner.types("echo still $y\n")
	owner.sees("still 42")

	cast := filepath.Join(t.TempDir(), "demo.cast")
	for _, format := range []string{"2", "3"} {
		run(0, "terminal", "record", "chat", "-o", cast, "--format", format)
		if played := run(0, "terminal", "replay", "--idle", "0", cast); !strings.Contains(played, "so2far") || !strings.Contains(played, "still 42") {
			t.Errorf("replayed: %q", played)
		}
	}
	run(0, "terminal", "kill", "chat")
	owner.ends(failureOf(t, owner))
	run(1, "terminal", "screen", "chat")
	for name, text := range map[string]string{"empty": "", "no recording": "{}\n", "bad event": "{\"version\":2}\n[1]\n"} {
		if err := os.WriteFile(cast, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, said bytes.Buffer
		if code := engiMain([]string{"terminal", "replay", cast}, os.Stdin, &out, &said); code == 0 {
			t.Errorf("%s: it was played", name)
		}
	}
}

// failureOf waits for engi's exit code, which is not 0, and leaves it to be read again.
func failureOf(t *testing.T, p *privileges) int {
	t.Helper()
	select {
	case code := <-p.end:
		if code == 0 {
			t.Errorf("it ended as if all was well; the screen has %q", p.shown())
		}
		p.end <- code
		return code
	case <-time.After(time.Minute):
		t.Fatalf("engi does not end; the screen has %q", p.shown())
	}
	return 0
}
