package main

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/apitest"
)

func TestAppPublishCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	run := func(want int, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, srv.URL, w.User, "", append([]string{"app"}, args...)...)
		if code != want {
			t.Fatalf("engi app %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
	run(0, "create", "shop")
	if out, said := run(0, "branch", "shop", "blue", "--revision", "1"); !strings.HasPrefix(out, "app_") || strings.Count(out, "\n") != 1 || !strings.Contains(said, "blue is at http://") {
		t.Errorf("%q %q", out, said)
	}
	if out, _ := run(0, "branch", "shop", "--json"); !strings.Contains(out, `"preview_url"`) {
		t.Errorf("%s", out)
	}
	run(1, "branch", "shop", "blue")
	run(1, "rollback", "shop", "--snapshot")
	if out, _ := run(0, "snapshot", "shop"); out != "1\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "history", "shop"); !strings.Contains(out, "100 MiB") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "rollback", "shop", "--snapshot"); out != "2\n" {
		t.Errorf("%q", out)
	}
	run(0, "branch", "shop", "green", "--snapshot", "--revision", "1")
	run(1, "branch", "shop", "red", "--snapshot", "--revision", "2")
	run(1, "link", "shop", "--published")
	address, _ := run(0, "open", "shop", "--print")
	if link, _ := run(0, "link", "shop", "--ttl", "10m"); !strings.HasPrefix(link, strings.TrimSpace(address)+"?") || strings.Count(link, "\n") != 1 {
		t.Errorf("%q", link)
	}
	if link, _ := run(0, "link", "shop", "--json"); !strings.Contains(link, `"private": false`) {
		t.Errorf("%s", link)
	}
	run(0, "create", "secret", "--meta", "private=1")
	for _, app := range []string{"shop", "secret"} {
		if out, _ := run(0, "open", app, "--print"); strings.Contains(out, "?token=") != (app == "secret") || strings.Count(out, "\n") != 1 {
			t.Errorf("the address of %s is %q", app, out)
		}
	}
	out, _ := run(0, "publish", "shop", "--private")
	if !strings.HasPrefix(out, "http://app-") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	if shown, _ := run(0, "show", "shop"); !strings.Contains(shown, strings.TrimSpace(out)) {
		t.Errorf("%s", shown)
	}
	if link, _ := run(0, "link", "shop", "--published", "--ttl", "10m"); !strings.HasPrefix(link, strings.TrimSpace(out)+"?") {
		t.Errorf("%q", link)
	}
	if out, _ := run(0, "unpublish", "shop", "blue"); strings.Count(out, "unpublished") != 2 {
		t.Errorf("%q", out)
	}
	run(0, "create", "api", "--template", "node-api")
	if _, said := run(1, "publish", "api"); !strings.Contains(said, "publish pages only") {
		t.Errorf("%q", said)
	}
}
