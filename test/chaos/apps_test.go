package chaos

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"

	"github.com/engi-dev/engi/test/env"
	"github.com/engi-dev/engi/test/seed"
)

const (
	appFaults     = 3    // number of faults in make test; make chaos has 1000
	mostAppFaults = 1000 // maximum number of faults, also for make soak: each takes seconds
)

// A registry serves packages of any name that begins with chaos-, unless it is down.
type registry struct {
	*httptest.Server
	mu    sync.Mutex
	fails int           // number of next answers that are errors
	hangs chan struct{} // if it is not nil, answers wait until it is closed
}

var tarballPath = regexp.MustCompile(`^/(chaos-\d+)(/1\.0\.0|/-/chaos-\d+-1\.0\.0\.tgz)?$`)

func newRegistry(t *testing.T) *registry {
	r := &registry{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		fail, hangs := r.fails > 0, r.hangs
		if fail {
			r.fails--
		}
		r.mu.Unlock()
		if hangs != nil {
			select {
			case <-hangs:
			case <-q.Context().Done():
				return
			}
		}
		m := tarballPath.FindStringSubmatch(q.URL.Path)
		switch {
		case fail:
			w.WriteHeader(http.StatusServiceUnavailable)
		case m == nil:
			w.WriteHeader(http.StatusNotFound)
		case strings.HasSuffix(m[2], ".tgz"):
			w.Write(tarball(m[1]))
		default:
			sum := sha512.Sum512(tarball(m[1]))
			var answer any = map[string]any{"name": m[1], "version": "1.0.0", "dist": map[string]string{
				"tarball": "http://" + q.Host + "/" + m[1] + "/-/" + m[1] + "-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			}}
			if m[2] == "" {
				answer = map[string]any{"name": m[1], "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": answer}}
			}
			json.NewEncoder(w).Encode(answer)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func tarball(name string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for p, text := range map[string]string{"package/package.json": `{"name":"` + name + `","version":"1.0.0","main":"index.js"}`} {
		w.WriteHeader(&tar.Header{Name: p, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg})
		io.WriteString(w, text)
	}
	w.Close()
	z.Close()
	return b.Bytes()
}

func (r *registry) set(fails int, hangs chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails, r.hangs = fails, hangs
}

// An appScenario is an app on a real node into which faults are injected.
type appScenario struct {
	*server
	t      *testing.T
	rng    *rand.Rand
	npm    *registry
	c, bob *client.Client
	app    v1.App
	n      int // number of the last apply
}

// An appFault is one fault in the middle of an apply.
type appFault struct {
	name string
	own  time.Duration // maximum time until the fault is noticed
	hit  func(a *appScenario) (heal func())
}

var appMishaps = []appFault{
	{"kill the server", 0, func(a *appScenario) func() {
		a.root(`for p in /proc/[0-9]*; do grep -q '[v]ite' $p/cmdline && kill -9 ${p##*/}; done; true`)
		return nil
	}},
	{"kill the guest", 30 * time.Second, func(a *appScenario) func() { a.root("kill -9 1"); return nil }},
	{"kill the sandbox", 30 * time.Second, func(a *appScenario) func() { a.killOne(a.t, a.rng, "boot"); return nil }},
	{"kill a gofer", 30 * time.Second, func(a *appScenario) func() { a.killOne(a.t, a.rng, "gofer"); return nil }},
	{"kill the node", 0, func(a *appScenario) func() { a.kill(a.t); a.start(a.t); return nil }},
	{"stop the node", 60 * time.Second, func(a *appScenario) func() { a.server.stop(a.t); a.start(a.t); return nil }},
	{"npm fails and works", 0, func(a *appScenario) func() { a.npm.set(1+a.rng.IntN(6), nil); return nil }},
	{"the registry hangs", 20 * time.Second, func(a *appScenario) func() {
		hangs := make(chan struct{})
		a.npm.set(0, hangs)
		pause(a.t.Context(), time.Duration(1+a.rng.IntN(15))*time.Second)
		a.npm.set(0, nil)
		close(hangs)
		return nil
	}},
	{"fill the disk", 10 * time.Second, func(a *appScenario) func() {
		release := a.fillDisk(a.t)
		pause(a.t.Context(), time.Duration(200+a.rng.IntN(3000))*time.Millisecond)
		return release
	}},
	{"fill the sandbox", 30 * time.Second, func(a *appScenario) func() {
		a.root("head -c 1100M /dev/zero > /home/user/ballast")
		return func() { a.root("rm -f /home/user/ballast") }
	}},
	{"cancel", 0, func(a *appScenario) func() {
		a.note(a.c.CancelApply(a.t.Context(), a.app.ID))
		return nil
	}},
	{"rollback", 30 * time.Second, func(a *appScenario) func() {
		_, err := a.c.RollbackApp(a.t.Context(), a.app.ID, a.app.Revision)
		a.note(err)
		return nil
	}},
	{"restore", 60 * time.Second, func(a *appScenario) func() {
		_, err := a.c.RestoreApp(a.t.Context(), a.app.ID, 0)
		a.note(err)
		return nil
	}},
	{"snapshot", 30 * time.Second, func(a *appScenario) func() {
		_, err := a.c.SnapshotApp(a.t.Context(), a.app.ID)
		a.note(err)
		return nil
	}},
	{"restore and kill the node", 60 * time.Second, func(a *appScenario) func() {
		// Wait until the apply has ended; before, the call would be a conflict.
		for ctx := a.t.Context(); ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
			if x, err := a.c.App(ctx, a.app.ID); err == nil && x.Applying == 0 {
				break
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := a.c.RestoreApp(a.t.Context(), a.app.ID, 0)
			a.note(err)
		}()
		pause(a.t.Context(), time.Duration(a.rng.IntN(1500))*time.Millisecond)
		a.kill(a.t)
		<-done
		a.start(a.t)
		return nil
	}},
	{"another apply", 0, func(a *appScenario) func() {
		_, err := a.c.ApplyToApp(a.t.Context(), a.app.ID, v1.ApplyRequest{Text: file("src/a.ts", "export const a = -1\n")}, "")
		a.note(err)
		return nil
	}},
	{"stop the app", 30 * time.Second, func(a *appScenario) func() {
		_, err := a.c.StopApp(a.t.Context(), a.app.ID)
		a.note(err)
		return nil
	}},
}

func (a *appScenario) note(err error) {
	if err != nil {
		a.t.Logf("  meanwhile: %v", err)
	}
}

func file(path, text string) string { return "<file path=\"" + path + "\">\n" + text + "</file>\n" }

// root runs a command as root in the sandbox, which may end because of it.
func (a *appScenario) root(script string) {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.bin, "sandbox", "exec", "--user", "root", a.app.SandboxID, "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+a.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Logf("  in the sandbox: %v: %.300s", err, out)
	}
}

// inside returns the output of a command in the sandbox.
func (a *appScenario) inside(script string) string {
	cmd := exec.CommandContext(a.t.Context(), a.bin, "sandbox", "exec", a.app.SandboxID, "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+a.dir)
	out, err := cmd.Output()
	if err != nil {
		a.t.Logf("  in the sandbox: %v: %.300s", err, out)
	}
	return string(out)
}

// TestChaosOfApps injects faults while texts are applied to an app of a real node.
// Afterwards the app has its old state or the intended one.
func TestChaosOfApps(t *testing.T) {
	env.Slow(t)
	requireReal(t)
	seed, faults := seed.Of(t, "ENGI_CHAOS_SEED", 1), int(min(number("ENGI_CHAOS_FAULTS", appFaults), mostAppFaults))
	t.Logf("ENGI_CHAOS_FAULTS=%d", faults)
	s := newServer(t, "2g")
	a := &appScenario{server: s, t: t, rng: rand.New(rand.NewPCG(seed, seed)), npm: newRegistry(t)}
	s.pools, s.env = "none", []string{"ENGI_MIRROR_NPM=" + a.npm.URL}
	s.start(t)
	build := exec.Command(s.bin, "template", "build", "vite-react")
	build.Env = append(os.Environ(), "ENGI_DATA_DIR="+s.dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() { // the test did not reach its end
			cmd := exec.Command(s.bin, "stop", "--destroy")
			cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+s.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Logf("stop: %v: %s", err, out)
			}
		}
	})
	a.c = client.New(s.url, s.key)
	key, err := a.c.CreateKey(t.Context(), v1.KeyRequest{Name: "bob", Owner: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	a.bob = client.New(s.url, key.Secret)
	if a.app, err = a.c.CreateApp(t.Context(), v1.AppRequest{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	if took, ok := a.apply(nil); !ok {
		t.Fatalf("without any fault, an apply does nothing for %v", took)
	}
	counts, done, failed := map[string]int{}, 0, 0
	var slow time.Duration
	for range faults {
		f := appMishaps[a.rng.IntN(len(appMishaps))]
		counts[f.name]++
		took, ok := a.apply(&f)
		if slow = max(slow, took); ok {
			done++
		} else {
			failed++
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("faults: %v; %d applied, %d not; the slowest took %v", counts, done, failed, slow)
	if err := a.c.RemoveApp(t.Context(), a.app.ID); err != nil {
		t.Error(err)
	}
	if left, err := a.c.Snapshots(t.Context(), ""); err != nil || len(left) > 0 {
		t.Errorf("the snapshots %+v are left (%v)", left, err)
	}
	s.checkLeaks(t)
	s.stop(t)
	s.destroyWarm(t)
}

// apply applies a text while a fault happens, and checks the state of the
// app. It returns the time for which the app was unusable, and whether the text was applied.
func (a *appScenario) apply(f *appFault) (took time.Duration, ok bool) {
	t, ctx := a.t, a.t.Context()
	a.n++
	n := a.n
	text := file("src/App.tsx", fmt.Sprintf("import { a } from './a'\nimport { b } from './b'\n\nexport default () => <p>{a} {b} %d</p>\n", n)) +
		file("src/a.ts", fmt.Sprintf("export const a = %d\n", n)) + file("src/b.ts", fmt.Sprintf("export const b = %d\n", n))
	name := "nothing"
	if f != nil {
		name = f.name
	}
	if a.rng.IntN(2) == 0 || strings.Contains(name, "npm") || strings.Contains(name, "registry") {
		text += fmt.Sprintf("<package>chaos-%d</package>\n", n)
	}
	if a.rng.IntN(3) == 0 {
		text += fmt.Sprintf("<command>echo %d > made.txt; sleep 1; echo %d >> made.txt</command>\n", n, n)
	}
	if a.rng.IntN(4) == 0 {
		text += file(".env", fmt.Sprintf("VITE_N=%d\n", n))
	}
	var heal func()
	began := time.Now()
	limit := 30 * time.Second // maximum duration: the normal one, plus 10 s
	seq, err := a.c.ApplyToApp(ctx, a.app.ID, v1.ApplyRequest{Text: text, Message: fmt.Sprint("apply ", n), Snapshot: a.rng.IntN(5) == 0}, "")
	if err != nil {
		t.Fatalf("apply %d: %v", n, err)
	}
	if f != nil {
		after := time.Duration(a.rng.IntN(2500)) * time.Millisecond
		if strings.Contains(name, "npm") || strings.Contains(name, "registry") {
			after = 0
		}
		pause(ctx, after)
		heal = f.hit(a)
		limit += f.own
	}
	if heal != nil {
		pause(ctx, time.Duration(a.rng.IntN(3000))*time.Millisecond)
		heal()
	}
	for applying := true; applying; {
		if x, err := a.c.App(ctx, a.app.ID); err == nil {
			applying = x.Applying != 0
		}
		if took := time.Since(began); took > limit*slack() {
			t.Fatalf("apply %d, %s: it has not ended after %v", n, name, took)
		}
		pause(ctx, 50*time.Millisecond)
	}
	if took, ok = a.settle(name, n, began); ok != a.told(seq) {
		t.Errorf("apply %d, %s: it was told otherwise", n, name)
	}
	return took, ok
}

// told reports whether the events say that an apply succeeded. If not, they must contain a reason.
func (a *appScenario) told(seq int64) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	for u, err := range a.c.WatchApp(ctx, a.app.ID, seq) {
		switch {
		case err != nil:
			a.t.Fatal(err)
		case u.Apply == seq && u.Type == v1.AppError:
			a.t.Logf("  it ended with %s: %.400s", u.Error.Kind, u.Error.Detail)
			if u.Error.Remedy == "" {
				a.t.Errorf("%s has no remedy", u.Error.Detail)
			}
			return false
		case u.Apply == seq && u.Type == v1.AppDone:
			return true
		}
	}
	a.t.Fatal("the stream has no end of the apply")
	return false
}

// settle opens the app and checks it.
func (a *appScenario) settle(name string, n int, began time.Time) (took time.Duration, ok bool) {
	t, ctx := a.t, a.t.Context()
	took = time.Since(began)
	var err error
	for { // a full node has a free place after a short time
		a.npm.set(0, nil)
		if a.app, err = a.c.OpenApp(ctx, a.app.ID); err == nil && a.app.State == v1.AppReady {
			break
		}
		if time.Since(began) > 90*time.Second*slack() {
			t.Fatalf("apply %d, %s: it cannot be opened: %v, %+v", n, name, err, a.app)
		}
		t.Logf("  open: %v", err)
		pause(ctx, time.Second)
	}
	if a.app.Applying != 0 {
		t.Errorf("apply %d, %s: the app is %+v", n, name, a.app)
	}
	revs, err := a.c.AppRevisions(ctx, a.app.ID)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range revs {
		known[r.Message] = true
		if r.Message == "Changed in the sandbox" {
			t.Errorf("apply %d, %s: revision %d was made by nobody", n, name, r.Number)
		}
	}
	ok = known[fmt.Sprint("apply ", n)]
	files, err := a.c.AppFiles(ctx, a.app.ID, client.AppFileFilter{Content: true})
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]string{}
	for _, f := range files.Items {
		recorded[f.Path] = *f.Content
	}
	number := regexp.MustCompile(`\d+`)
	if revs[0].Number > 1 {
		x, y, z := number.FindString(recorded["src/a.ts"]), number.FindString(recorded["src/b.ts"]), number.FindString(recorded["src/App.tsx"])
		if x != y && recorded["src/a.ts"] != "export const a = -1\n" || y != z {
			t.Errorf("apply %d, %s: the revision has a %s, b %s and App %s", n, name, x, y, z)
		}
		if made := recorded["made.txt"]; made != "" && len(slices.Compact(strings.Fields(made))) != 1 || made != "" && len(strings.Fields(made)) != 2 {
			t.Errorf("apply %d, %s: made.txt is half written: %q", n, name, made)
		}
	}
	var there map[string]string
	out := a.inside(`python3 -c 'import json, os
print(json.dumps({os.path.relpath(os.path.join(d, f)): open(os.path.join(d, f)).read() for d, dirs, files in os.walk(".") for f in files if not d.startswith(("./.git", "./node_modules", "./.vite"))}))'`)
	if err := json.Unmarshal([]byte(out), &there); err != nil {
		t.Fatalf("apply %d, %s: %v: %.300s", n, name, err, out)
	}
	for p := range recorded {
		if recorded[p] != there[p] {
			t.Errorf("apply %d, %s: %s is %q in the sandbox and %q in the revision", n, name, p, there[p], recorded[p])
		}
	}
	if len(there) != len(recorded) {
		t.Errorf("apply %d, %s: there are %d files in the sandbox and %d in the revision", n, name, len(there), len(recorded))
	}
	if want := number.FindString(recorded["src/b.ts"]); !strings.Contains(a.get("/src/b.ts"), "b = "+want) {
		t.Errorf("apply %d, %s: revision %d has %s, and it serves %.300s", n, name, revs[0].Number, want, a.get("/src/b.ts"))
	}
	for end := time.Now().Add(60 * time.Second * slack()); ; pause(ctx, 200*time.Millisecond) {
		out := a.inside("git rev-parse HEAD && git status --porcelain && pgrep -f '[n]pm install' || true")
		if strings.TrimSpace(out) == revs[0].Commit {
			break
		}
		if time.Now().After(end) {
			t.Errorf("apply %d, %s: git says %q, the last revision is %s", n, name, out, revs[0].Commit)
			break
		}
	}
	// The disk is small, and the removal of snapshots must have no effect.
	kept, err := a.c.Snapshots(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range kept[min(1, len(kept)):] {
		if err := a.c.RemoveSnapshot(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := a.bob.App(ctx, a.app.ID); !client.IsKind(err, v1.NotFound) {
		t.Errorf("bob sees %v", err)
	}
	t.Logf("apply %d, %s: %v, applied %v, revision %d", n, name, took.Round(time.Millisecond), ok, a.app.Revision)
	return took, ok
}

// get returns the response of the app at a path.
func (a *appScenario) get(path string) string {
	u, err := url.Parse(a.app.PreviewURL)
	if err != nil {
		a.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, a.url+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Host = u.Host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Errorf("get %s: %v", path, err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		a.t.Errorf("get %s: %s, %v: %.300s", path, resp.Status, err, body)
	}
	return string(body)
}
