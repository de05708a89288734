// Package studio has tests of apps that models write, on a real server: its sandboxes,
// its previews, and npm's registry. It needs what test/env needs, and builds the template
// vite-react; make test builds and names the rest.
package studio

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// A world is a server with an app.
type world struct {
	*env.Server
	t   *testing.T
	app v1.App
}

// get returns what the app serves at a path, through its preview.
func (w *world) get(path string) string {
	w.t.Helper()
	u, err := url.Parse(w.app.PreviewURL)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = u.Host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("GET %s: %s, %v: %.500s", path, resp.Status, err, body)
	}
	return string(body)
}

// apply applies a text and returns how it ended. seen is called with each update.
func (w *world) apply(text string, seen func(v1.AppUpdate)) v1.AppUpdate {
	w.t.Helper()
	seq, err := w.ApplyToApp(w.t.Context(), w.app.ID, v1.ApplyRequest{Text: text}, "")
	if err != nil {
		w.t.Fatal(err)
	}
	for u, err := range w.WatchApp(w.t.Context(), w.app.ID, seq) {
		if err != nil {
			w.t.Fatal(err)
		}
		if seen != nil {
			seen(u)
		}
		if u.Apply == seq && (u.Type == v1.AppDone || u.Type == v1.AppError) {
			return u
		}
	}
	w.t.Fatal("the stream ended before the apply")
	return v1.AppUpdate{}
}

// recorded returns the files of the last revision.
func (w *world) recorded() map[string]string {
	w.t.Helper()
	files, err := w.AppFiles(w.t.Context(), w.app.ID, client.AppFileFilter{Content: true})
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files.Items {
		all[f.Path] = *f.Content
	}
	return all
}

// there returns the files in the sandbox.
func (w *world) there() map[string]string {
	w.t.Helper()
	out := w.Run("app", "run", w.app.ID, "--", "python3", "-c", `import json, os
print(json.dumps({os.path.relpath(os.path.join(d, f)): open(os.path.join(d, f)).read() for d, dirs, files in os.walk(".") for f in files if not d.startswith(("./.git", "./node_modules", "./.vite"))}))`)
	var all map[string]string
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		w.t.Fatalf("%v: %.500s", err, out)
	}
	return all
}

// wantSame checks that the sandbox has what is recorded.
func (w *world) wantSame() {
	w.t.Helper()
	if d := cmp.Diff(w.recorded(), w.there()); d != "" {
		w.t.Errorf("the sandbox differs (-recorded +there):\n%s", d)
	}
}

// reloads returns the messages of the development server to a browser.
func (w *world) reloads() <-chan string {
	w.t.Helper()
	m := regexp.MustCompile(`wsToken = "([^"]+)"`).FindStringSubmatch(w.get("/@vite/client"))
	if m == nil {
		w.t.Fatal("the client of Vite has no token")
	}
	u, err := url.Parse(w.app.PreviewURL)
	if err != nil {
		w.t.Fatal(err)
	}
	c, _, err := websocket.Dial(w.t.Context(), "ws"+strings.TrimPrefix(w.URL, "http")+"/?token="+m[1], &websocket.DialOptions{
		Host: u.Host, Subprotocols: []string{"vite-hmr"}, HTTPHeader: http.Header{"Origin": {"http://" + u.Host}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	messages, ctx := make(chan string, 100), w.t.Context()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, data, err := c.Read(ctx)
			if err != nil {
				return
			}
			messages <- string(data)
		}
	}()
	w.t.Cleanup(func() {
		c.CloseNow()
		<-done
	})
	return messages
}

const (
	counter = `Here is a counter.

<package>zustand</package>
<file path="src/App.tsx">
import { Counter } from './components/Counter'

export default function App() {
  return <main className="p-4"><Counter label="first" /></main>
}
</file>
<file path="src/components/Counter.tsx">
import { create } from 'zustand'

const useCount = create<{ n: number }>(() => ({ n: 1 }))

export function Counter({ label }: { label: string }) {
  const n = useCount((s) => s.n)
  return <p className="text-xl">{label} {n}</p>
}
</file>
`
	edited = `<edit path="src/App.tsx">
<<<<<<< SEARCH
<Counter label="first" />
=======
<Counter label="second" />
>>>>>>> REPLACE
</edit>`
	broken = `<file path="src/components/Counter.tsx">
export function Counter( { return <p>broken</p> }
</file>
<file path="src/other.ts">
export const other = 1
</file>`
	slow = `<file path="src/components/Counter.tsx">
export const Counter = ({ label }: { label: string }) => <p>half {label}</p>
</file>
<command>echo half > half.txt; sleep 60</command>`
)

func TestStudio(t *testing.T) {
	w := &world{Server: env.Serve(t, env.ServerOptions{}), t: t}
	ctx := t.Context()
	began := time.Now()
	took := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	w.Run("template", "build", "vite-react")
	took("build the template")
	var err error
	if w.app, err = w.CreateApp(ctx, v1.AppRequest{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	took("create, cold")
	if page := w.get("/"); w.app.State != v1.AppReady || !strings.Contains(page, "/src/main.tsx") {
		t.Fatalf("%+v serves %s", w.app, page)
	}

	began = time.Now()
	if u := w.apply(counter, nil); u.Type != v1.AppDone || u.Revision != 2 {
		t.Fatalf("it ended with %+v", u)
	}
	took("apply two files and a package")
	if code := w.get("/src/components/Counter.tsx"); !strings.Contains(code, "zustand.js") {
		t.Errorf("the app serves %s", code)
	}
	if err := w.Engi("app", "run", w.app.ID, "-c", "test -f package.json && exit 7").Run(); err == nil || !strings.HasSuffix(err.Error(), " 7") {
		t.Errorf("a command that ends with 7: %v", err)
	}
	if m, err := w.AppManifest(ctx, w.app.ID, 0); err != nil || m.Entry != "src/main.tsx" || !slices.ContainsFunc(m.Components, func(c v1.AppComponent) bool { return c.Name == "Counter" }) {
		t.Errorf("it consists of %+v (%v)", m, err)
	}
	messages := w.reloads()
	began = time.Now()
	var written time.Time
	if u := w.apply(edited, func(u v1.AppUpdate) {
		if u.Type == v1.AppWritten {
			written = u.Time
		}
	}); u.Type != v1.AppDone || u.Revision != 3 {
		t.Fatalf("it ended with %+v", u)
	}
	took("apply an edit")
	for reloaded := false; !reloaded; {
		select {
		case m := <-messages:
			reloaded = strings.Contains(m, `"update"`) && strings.Contains(m, "/src/App.tsx")
		case <-time.After(5 * time.Second):
			t.Fatal("no hot reload came")
		}
	}
	t.Logf("the hot reload came %v after the file was told written", time.Since(written).Round(time.Millisecond))
	good := w.recorded()
	if code := w.get("/src/App.tsx"); !strings.Contains(code, `label: "second"`) {
		t.Errorf("the app serves %s", code)
	}

	began = time.Now()
	if u := w.apply(broken, nil); u.Type != v1.AppError || u.Error == nil || !strings.Contains(u.Error.Detail, "src/components/Counter.tsx:1") {
		t.Errorf("what is broken ended with %+v, %+v", u, u.Error)
	}
	took("undo what does not work")
	if d := cmp.Diff(good, w.recorded()); d != "" {
		t.Error(d)
	}
	w.wantSame()

	began = time.Now()
	r, err := w.RollbackApp(ctx, w.app.ID, 2)
	took("roll back")
	if err != nil || r.Number != 4 || !strings.Contains(w.get("/src/App.tsx"), `label: "first"`) {
		t.Errorf("rolled back: %+v, %v", r, err)
	}
	if _, err := w.RollbackApp(ctx, w.app.ID, 3); err != nil {
		t.Error(err)
	}
	w.wantSame()

	// The daemon is killed in the middle of an apply.
	seq, err := w.ApplyToApp(ctx, w.app.ID, v1.ApplyRequest{Text: slow}, "")
	if err != nil {
		t.Fatal(err)
	}
	for u, err := range w.WatchApp(ctx, w.app.ID, seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Type == v1.AppProgress && u.Step == "command" {
			break
		}
	}
	for w.there()["half.txt"] == "" {
		time.Sleep(20 * time.Millisecond)
	}
	w.Kill()
	w.Start()
	began = time.Now()
	if w.app, err = w.OpenApp(ctx, w.app.ID); err != nil || w.app.State != v1.AppReady || w.app.Revision != 5 || w.app.Applying != 0 {
		t.Fatalf("after the kill: %+v, %v", w.app, err)
	}
	took("open after the daemon was killed")
	w.wantSame()
	if d := cmp.Diff(good, w.recorded()); d != "" {
		t.Error(d)
	}

	// The sandbox is lost, and made again with the same commits.
	revisions, err := w.AppRevisions(ctx, w.app.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.Run("sandbox", "kill", w.app.SandboxID)
	began = time.Now()
	before := w.app.SandboxID
	if w.app, err = w.OpenApp(ctx, w.app.ID); err != nil || w.app.State != v1.AppReady || w.app.SandboxID == before {
		t.Fatalf("after its sandbox was lost: %+v, %v", w.app, err)
	}
	took("open after the sandbox was lost")
	w.wantSame()
	if code := w.get("/src/components/Counter.tsx"); !strings.Contains(code, "zustand.js") {
		t.Errorf("the app serves %s", code)
	}
	var want []string
	for _, r := range revisions {
		want = append(want, r.Commit)
	}
	git := func() []string {
		out, err := w.Engi("sandbox", "exec", w.app.SandboxID, "--", "sh", "-c", "git log --format=%H && git status --porcelain && git fsck --strict").Output()
		if err != nil {
			return nil
		}
		return strings.Fields(string(out))
	}
	for end := time.Now().Add(10 * time.Second); !cmp.Equal(want, git()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the commits are %v, want %v", git(), want)
		}
	}
	if err := w.RemoveApp(ctx, w.app.ID); err != nil {
		t.Error(err)
	}
	if s, err := w.Sandbox(ctx, w.app.SandboxID); err != nil || s.State != "stopped" {
		t.Errorf("its sandbox is %s (%v)", s.State, err)
	}
}
