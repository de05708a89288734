package main

import (
	"bytes"
	"image/png"
	"os"
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/apitest"
)

func TestAppCheckCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	t.Chdir(t.TempDir())
	run := func(want int, in string, args ...string) string {
		t.Helper()
		code, out, said := askServer(t, srv.URL, w.User, in, append([]string{"app"}, args...)...)
		if code != want {
			t.Fatalf("engi app %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out
	}
	run(0, "", "create", "shop")
	if out := run(0, "", "check", "shop"); out != "" {
		t.Errorf("%q", out)
	}
	run(0, "<file path=\"src/App.jsx\">\nthrow new Error('\x1b]0;late\a')\n</file>", "apply", "shop", "-")
	if out := run(1, "", "check", "shop"); !strings.HasPrefix(out, "browser: src/App.jsx:1: throw new Error(") || strings.ContainsAny(out, "\x1b\a") {
		t.Errorf("%q", out)
	}
	if out := run(1, "", "check", "shop", "--json"); !strings.Contains(out, `"source": "browser"`) {
		t.Errorf("%q", out)
	}
	if out := run(0, "", "screenshot", "shop", "/cart", "-o", "cart.png", "--width", "390"); out != "cart.png\n" {
		t.Errorf("%q", out)
	}
	raw, err := os.ReadFile("cart.png")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := png.DecodeConfig(bytes.NewReader(raw)); err != nil || c.Width != 390 || c.Height != 800 {
		t.Errorf("%+v, %v", c, err)
	}
	if out := run(0, "", "screenshot", "shop", "--json"); !strings.Contains(out, `"shop.png"`) {
		t.Errorf("%q", out)
	}
	if out := run(0, "", "screenshot", "shop", "-o", "-"); !strings.HasPrefix(out, "\x89PNG") {
		t.Errorf("%.20q", out)
	}
}
