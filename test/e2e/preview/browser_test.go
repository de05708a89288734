package preview

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// A step is a line of the output of drive.mjs.
type step struct {
	Step, Heading, Count, Mark string
	Sockets                    []struct {
		URL    string
		Frames int
	}
	Problems []string
}

// TestViteInABrowser starts an ordinary development server inside a sandbox,
// opens its preview in Chromium, changes a source file inside, and checks that the
// change arrives by hot reload: with the page's state and without a reload of the
// page.
func TestViteInABrowser(t *testing.T) {
	env.Slow(t)
	w := open(t)
	chromium := "/usr/bin/chromium"
	if v := os.Getenv("ENGI_TEST_CHROMIUM"); v != "" {
		chromium = v
	}
	if _, err := os.Stat(chromium); err != nil {
		env.Need(t, chromium+" (make setup)")
	}
	app, browser := w.packages(t, "app"), w.packages(t, "browser")
	s := w.sandbox(t, nil)
	files := w.Files(s.ID)
	w.upload(t, s, "/home/user/app", os.DirFS(app))
	w.background(t, s, "/home/user/app", "exec node_modules/.bin/vite")
	w.listens(t, s, 5173)

	const first, second = "Hello from inside", "Changed inside"
	drive := exec.CommandContext(t.Context(), "node", filepath.Join(browser, "drive.mjs"), w.address(s, 5173)+"/", first, second)
	drive.Env = append(os.Environ(), "ENGI_TEST_CHROMIUM="+chromium)
	var stderr strings.Builder
	drive.Stderr = &stderr
	out, err := drive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := drive.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	read := func(name string) step {
		t.Helper()
		var got step
		if !lines.Scan() {
			err := drive.Wait()
			t.Fatalf("the browser ended before %q: %v\n%s", name, err, stderr.String())
		}
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil || got.Step != name {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		return got
	}
	shown := read("shown")
	if shown.Heading != first || shown.Count != "3" || len(shown.Problems) > 0 {
		t.Errorf("the page: %+v", shown)
	}
	t.Logf("shown after %v", time.Since(began).Round(time.Millisecond))

	source, err := os.ReadFile("app/src/App.jsx")
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(source), first, second, 1)
	began = time.Now()
	if _, err := files.Write(t.Context(), "/home/user/app/src/App.jsx", strings.NewReader(edited), client.WithUser("user")); err != nil {
		t.Fatal(err)
	}
	changed := read("changed")
	t.Logf("changed after %v", time.Since(began).Round(time.Millisecond))
	if changed.Heading != second || changed.Count != "3" || changed.Mark == "" {
		t.Errorf("the page was loaded again instead of changed: %+v", changed)
	}
	if len(changed.Sockets) == 0 || !strings.HasPrefix(changed.Sockets[0].URL, "ws://5173-") || changed.Sockets[0].Frames < 2 {
		t.Errorf("sockets %+v", changed.Sockets)
	}
	if len(changed.Problems) > 0 {
		t.Errorf("problems %q", changed.Problems)
	}
	if err := drive.Wait(); err != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
}
