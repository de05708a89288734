// Package app has tests of apps that models write, on a real server: its sandboxes,
// its previews, and npm's registry. It has the requirements of test/env, and builds the template
// vite-react; make test builds the other programs and sets their variables.
package app

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/network/cert"
	"github.com/engi-dev/engi/test/env"
)

// A fixture is a server with an app.
type fixture struct {
	*env.Server
	t   *testing.T
	app v1.App
}

// get returns the response of the app at a path, through its preview.
func (w *fixture) get(path string) string {
	w.t.Helper()
	return w.ask(w.app, http.MethodGet, path, "")
}

// fetch returns the response at a path of an address.
func (w *fixture) fetch(address, path string) string {
	w.t.Helper()
	return w.ask(v1.App{PreviewURL: address}, http.MethodGet, path, "")
}

// apply applies a text and returns its last update. seen is called with each update.
func (w *fixture) apply(text string, seen func(v1.AppUpdate)) v1.AppUpdate {
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
func (w *fixture) recorded() map[string]string {
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
func (w *fixture) there() map[string]string {
	w.t.Helper()
	out := w.Run("app", "run", w.app.ID, "--", "python3", "-c", `import json, os
print(json.dumps({os.path.relpath(os.path.join(d, f)): open(os.path.join(d, f)).read() for d, dirs, files in os.walk(".") for f in files if not d.startswith(("./.git", "./node_modules", "./.vite", "./dist"))}))`)
	var all map[string]string
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		w.t.Fatalf("%v: %.500s", err, out)
	}
	return all
}

// wantSame checks that the sandbox has the recorded files.
func (w *fixture) wantSame() {
	w.t.Helper()
	if d := gocmp.Diff(w.recorded(), w.there()); d != "" {
		w.t.Errorf("the sandbox differs (-recorded +there):\n%s", d)
	}
}

// connect connects to the development server as a browser does.
func (w *fixture) connect() *websocket.Conn {
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
	return c
}

// reloads returns the messages of the development server to a browser.
func (w *fixture) reloads() <-chan string {
	w.t.Helper()
	c := w.connect()
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

// The ways in which a page came to show a text.
const (
	opened   = "opened"
	hot      = "hot"  // without a reload
	back     = "back" // the page reloaded by itself
	whatever = "whatever"
)

// browser opens the app in Chromium at all its addresses, and returns a function that waits
// until all pages show a text.
func (w *fixture) browser(made cert.Files, secure int) (shown func(text, how string)) {
	w.t.Helper()
	chromium, driver := cmp.Or(os.Getenv("ENGI_TEST_CHROMIUM"), "/usr/bin/chromium"), "../web/browser"
	for path, of := range map[string]string{chromium: "make setup", driver + "/node_modules": "make packages"} {
		if _, err := os.Stat(path); err != nil {
			env.Need(w.t, path+" ("+of+")")
		}
	}
	proxy := w.nginx(made)
	own, err := url.Parse(w.app.PreviewURL)
	if err != nil {
		w.t.Fatal(err)
	}
	label := strings.Replace(w.app.ID, "_", "-", 1) // label of the app, and not of a sandbox
	if want := "5173-" + label + ".sbx.localhost"; own.Hostname() != want {
		w.t.Fatalf("the app is at %s, want %s", own, want)
	}
	path := "/preview/" + label + "/5173/"
	pages, err := json.Marshal(map[string]string{
		"preview_url":             own.String(),
		"by path":                 w.URL + path,
		"TLS":                     fmt.Sprintf("https://%s:%d/", own.Hostname(), secure),
		"behind a proxy":          fmt.Sprintf("https://%s:%d/", own.Hostname(), proxy),
		"behind a proxy, by path": fmt.Sprintf("https://127.0.0.1:%d/engi%s", proxy, path),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	drive := exec.CommandContext(w.t.Context(), "node", driver+"/reload.mjs", string(pages))
	drive.Env = append(os.Environ(), "ENGI_TEST_CHROMIUM="+chromium)
	var said bytes.Buffer
	drive.Stderr = &said
	in, err := drive.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := drive.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := drive.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		in.Close()
		drive.Wait() // errors have been reported
	})
	lines := bufio.NewScanner(out)
	return func(text, how string) {
		w.t.Helper()
		line, err := json.Marshal(map[string]any{"text": text, "back": how == back})
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := in.Write(append(line, '\n')); err != nil || !lines.Scan() {
			in.Close()
			drive.Wait()
			w.t.Fatalf("the browser ended before it showed %q: %v\n%s", text, err, said.String())
		}
		var pages []struct {
			Name, Origin, Typed string
			Ms, Loaded          int
			Problems            []string
		}
		if err := json.Unmarshal(lines.Bytes(), &pages); err != nil || len(pages) != 5 {
			w.t.Fatalf("%s: %v", lines.Text(), err)
		}
		for _, p := range pages {
			w.t.Logf("%-25s %-10s %-12s %5d ms", p.Name, how, text, p.Ms)
			if strings.Contains(p.Name, "path") != (p.Origin == "null") {
				w.t.Errorf("the page %s has the origin %s", p.Name, p.Origin)
			}
			switch {
			case how == hot && (p.Typed != "typed" || p.Loaded != 0), how == opened && p.Loaded != 1, how == back && p.Loaded < 1,
				(how == hot || how == opened) && len(p.Problems) > 0:
				w.t.Errorf("%s, %s: %+v", text, how, p)
			}
		}
	}
}

// quickly changes a file twice, with pauses of different lengths, and checks that the server
// serves the last content each time.
func (w *fixture) quickly() {
	w.t.Helper()
	out := w.Run("app", "run", w.app.ID, "--", "python3", "-c", `import os, time, urllib.request
text = open("src/App.tsx").read()
def serves(label):
    for end in range(1000):
        if f'label: "{label}"' in urllib.request.urlopen("http://127.0.0.1:5173/src/App.tsx").read().decode():
            return True
        time.sleep(0.002)
def write(label, replace):
    into = "src/.App.tsx" if replace else "src/App.tsx"
    to = os.open(into, os.O_WRONLY | os.O_CREAT) # it is never half there: pages would load again
    os.write(to, text.replace('"second"', f'"{label}"').encode())
    os.close(to)
    if replace:
        os.rename(into, "src/App.tsx")
for replace in False, True:
    for pause in 0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96:
        write(f"early{pause:02}", replace)
        serves(f"early{pause:02}") # as a page would have it
        time.sleep(pause / 1000)
        write(f"later{pause:02}", replace)
        if not serves(f"later{pause:02}"):
            print(f"old after {pause} ms, replaced: {replace}")
        time.sleep(0.2)`)
	if out != "" {
		w.t.Errorf("changes that the server has missed:\n%s", out)
	}
}

// late changes a module of a page that has loaded it, and does not listen for changes yet.
func (w *fixture) late(module, text string) {
	w.t.Helper()
	drive := exec.CommandContext(w.t.Context(), "node", "../web/browser/late.mjs", w.app.PreviewURL, "/src/App.tsx")
	drive.Env = append(os.Environ(), "ENGI_TEST_CHROMIUM="+cmp.Or(os.Getenv("ENGI_TEST_CHROMIUM"), "/usr/bin/chromium"))
	var said bytes.Buffer
	drive.Stderr = &said
	in, err := drive.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := drive.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := drive.Start(); err != nil {
		w.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	held := lines.Scan()
	if held {
		if _, err := w.Files(w.app.SandboxID).Write(w.t.Context(), "/home/user/app/src/App.tsx", strings.NewReader(module)); err != nil {
			w.t.Error(err)
		}
		label, _, _ := strings.Cut(text, " ")
		for end := time.Now().Add(10 * time.Second); !strings.Contains(w.get("/src/App.tsx"), fmt.Sprintf("label: %q", label)) && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Fprintln(in, text)
	}
	shown := held && lines.Scan()
	in.Close()
	if err := drive.Wait(); err != nil || !shown {
		w.t.Errorf("a page that did not listen yet: %v\n%s", err, said.String())
	}
}

// nginx starts nginx as described in docs/previews.md, and returns its port.
func (w *fixture) nginx(made cert.Files) (port int) {
	w.t.Helper()
	program := "/usr/sbin/nginx"
	if _, err := os.Stat(program); err != nil {
		env.Need(w.t, program+" (make setup)")
	}
	docs, err := os.ReadFile("../../../docs/previews.md")
	if err != nil {
		w.t.Fatal(err)
	}
	_, config, _ := strings.Cut(string(docs), "```nginx\n")
	config, _, _ = strings.Cut(config, "```")
	port = freePort(w.t)
	for from, to := range map[string]string{
		"443 ssl": fmt.Sprintf("127.0.0.1:%d ssl", port), "http://127.0.0.1:7777": w.URL, "/etc/engi/sbx.pem": made.Cert, "/etc/engi/sbx.key": made.Key,
	} {
		if !strings.Contains(config, from) {
			w.t.Fatalf("the configuration in docs/previews.md has no %q", from)
		}
		config = strings.ReplaceAll(config, from, to)
	}
	dir := env.Dir(w.t)
	if err := os.WriteFile(dir+"/nginx.conf", []byte("daemon off; pid nginx.pid; events {}\nhttp {\naccess_log off;\n"+config+"}\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	nginx := exec.Command(program, "-p", dir, "-c", dir+"/nginx.conf", "-e", "stderr")
	var said bytes.Buffer
	nginx.Stdout, nginx.Stderr = &said, &said
	if err := nginx.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- nginx.Wait() }()
	w.t.Cleanup(func() {
		nginx.Process.Signal(syscall.SIGTERM) // the process may have ended
		if err := <-ended; err != nil || w.t.Failed() {
			w.t.Logf("nginx: %v\n%s", err, said.String())
		}
	})
	for {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
			return port
		}
		select {
		case err := <-ended:
			ended <- err
			w.t.Fatalf("nginx ended: %v\n%s", err, said.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort returns an unused port.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

const (
	counter = `Here is a counter.

<package>zustand</package>
<file path="src/App.tsx">
import { Counter } from './components/Counter'

export default function App() {
  return <main className="p-4"><input /><Counter label="first" /></main>
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

// python has an API that imports a package whose distribution has another name. The package is also there in
// another sandbox. Invalid names are not passed on.
func (w *fixture) python() {
	w.t.Helper()
	w.Run("template", "build", "fastapi")
	app, err := w.CreateApp(w.t.Context(), v1.AppRequest{Name: "api", Template: "fastapi"})
	if err != nil {
		w.t.Fatal(err)
	}
	api := &fixture{Server: w.Server, t: w.t, app: app}
	if u := api.apply("<package>--index-url=https://example.com</package>\n<file path=\"main.py\">\nimport yaml\nfrom fastapi import FastAPI\n\napp = FastAPI()\n\n\n"+
		"@app.get(\"/\")\ndef index():\n    return yaml.safe_load(\"works: 1\")\n</file>", nil); u.Type != v1.AppDone {
		w.t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	if r := api.recorded()["requirements.txt"]; !strings.Contains(r, "PyYAML==") {
		w.t.Errorf("requirements.txt has %s", r)
	}
	w.Run("sandbox", "kill", app.SandboxID)
	if api.app, err = w.OpenApp(w.t.Context(), app.ID); err != nil || api.app.SandboxID == app.SandboxID {
		w.t.Fatalf("after its sandbox was lost: %+v, %v", api.app, err)
	}
	if page := api.get("/"); page != `{"works":1}` {
		w.t.Errorf("it serves %s", page)
	}
	if err := w.RemoveApp(w.t.Context(), app.ID); err != nil {
		w.t.Error(err)
	}
}

func TestBuiltApp(t *testing.T) {
	env.Slow(t)
	made, err := cert.Make(env.Dir(t), []string{"sbx.localhost"}, false)
	if err != nil {
		t.Fatal(err)
	}
	_, config := models(t)
	secure := freePort(t)
	config += fmt.Sprintf("[preview]\npath = true\ndomain = \"sbx.localhost\"\n[tls]\nlisten = \"127.0.0.1:%d\"\ncert = %q\nkey = %q\n", secure, made.Cert, made.Key)
	w := &fixture{Server: env.Serve(t, env.ServerOptions{Config: config}), t: t}
	ctx := t.Context()
	began := time.Now()
	took := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	w.Run("template", "build", "vite-react")
	took("build the template")
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
	shown := w.browser(made, secure)
	shown("first 1", opened)
	took("until five pages show it")
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
		case <-time.After(time.Minute):
			t.Fatal("no hot reload came")
		}
	}
	t.Logf("the hot reload came %v after the file was told written", time.Since(written).Round(time.Millisecond))
	shown("second 1", hot)
	took("until all pages show it")
	good := w.recorded()
	if code := w.get("/src/App.tsx"); !strings.Contains(code, `label: "second"`) {
		t.Errorf("the app serves %s", code)
	}

	began = time.Now()
	if u := w.apply(broken, nil); u.Type != v1.AppError || u.Error == nil || !strings.Contains(u.Error.Detail, "src/components/Counter.tsx:1") {
		t.Errorf("what is broken ended with %+v, %+v", u, u.Error)
	}
	took("undo what does not work")
	if d := gocmp.Diff(good, w.recorded()); d != "" {
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

	// The daemon is killed in the middle of the apply of an edit.
	seq, err := w.EditApp(ctx, w.app.ID, v1.EditRequest{Prompt: "slow"}, "")
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
	shown("half second", whatever)
	w.Kill()
	w.Start()
	began = time.Now()
	if w.app, err = w.OpenApp(ctx, w.app.ID); err != nil || w.app.State != v1.AppReady || w.app.Revision != 5 || w.app.Applying != 0 {
		t.Fatalf("after the kill: %+v, %v", w.app, err)
	}
	took("open after the daemon was killed")
	if u := w.edited(seq, nil); u.Error == nil || u.Error.Kind != v1.Unavailable || w.app.Editing != 0 {
		t.Errorf("the edit ended with %+v", u)
	}
	w.wantSame()
	if d := gocmp.Diff(good, w.recorded()); d != "" {
		t.Error(d)
	}

	// Pages reload by themselves, also those of a hibernated sandbox, and then change
	// without a reload.
	shown("second 1", back)
	took("until all pages are back")
	w.Run("sandbox", "hibernate", w.app.SandboxID)
	shown("second 1", back)
	took("until all pages are back after hibernation")
	for _, label := range []string{"third", "second"} {
		text := strings.Replace(good["src/App.tsx"], "second", label, 1)
		if _, err := w.Files(w.app.SandboxID).Write(ctx, "/home/user/app/src/App.tsx", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		shown(label+" 1", hot)
	}
	took("until all pages show what was written, twice")
	w.quickly()
	w.late(strings.Replace(good["src/App.tsx"], "second", "late", 1), "late 1")
	if _, err := w.Files(w.app.SandboxID).Write(ctx, "/home/user/app/src/App.tsx", strings.NewReader(good["src/App.tsx"])); err != nil {
		t.Fatal(err)
	}
	shown("second 1", hot)
	took("changes one upon the other, and before a page listens")

	// The sandbox is lost, and rebuilt with the same commits.
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
	shown("second 1", back) // at the same addresses
	took("until all pages are back in another sandbox")
	text := strings.Replace(good["src/App.tsx"], "second", "fourth", 1)
	if u := w.apply("<file path=\"src/App.tsx\">\n"+text+"</file>", nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v", u)
	}
	shown("fourth 1", hot)
	if _, err := w.RollbackApp(ctx, w.app.ID, revisions[0].Number); err != nil {
		t.Fatal(err)
	}
	shown("second 1", hot)
	if revisions, err = w.AppRevisions(ctx, w.app.ID); err != nil {
		t.Fatal(err)
	}
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
	for end := time.Now().Add(time.Minute); !gocmp.Equal(want, git()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the commits are %v, want %v", git(), want)
		}
	}
	began = time.Now()
	if w.app, err = w.PublishApp(ctx, w.app.ID, v1.PublishRequest{}); err != nil || w.app.Published == nil {
		t.Fatalf("publish: %+v, %v", w.app, err)
	}
	took("publish")
	published, box := w.app.Published.URL, w.app.SandboxID
	w.python()
	took("a package of Python, in two sandboxes")

	// A published page needs neither the sandbox nor the node that published it.
	if _, err := w.StopApp(ctx, w.app.ID); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	w.Start()
	script := regexp.MustCompile(`src="(/assets/[^"]+)"`).FindStringSubmatch(w.fetch(published, "/carts/7"))
	if script == nil || !strings.Contains(w.fetch(published, script[1]), "second") {
		t.Errorf("the page at %s has the script %s", published, script)
	}

	began = time.Now()
	blue, err := w.BranchApp(ctx, w.app.ID, v1.BranchRequest{Name: "blue", Revision: 2})
	took("branch")
	if err != nil || blue.State != v1.AppReady || !strings.Contains(w.fetch(blue.PreviewURL, "/src/App.tsx"), `label: "first"`) || !strings.Contains(w.fetch(blue.PreviewURL, "/src/components/Counter.tsx"), "zustand.js") {
		t.Errorf("the branch is %+v, %v", blue, err)
	}
	for _, id := range []string{w.app.ID, blue.ID} {
		if err := w.RemoveApp(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if s, err := w.Sandbox(ctx, box); err != nil || s.State != "stopped" {
		t.Errorf("its sandbox is %s (%v)", s.State, err)
	}
}
