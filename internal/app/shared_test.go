package app_test

import (
	"context"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
)

// A sharedWorkspace is a workspace whose history has the files of its sandbox as of the last look.
type sharedWorkspace struct {
	engi.Workspace
	w     *fixture
	files map[string]string // recorded files, by path in the workspace; guarded by the fixture's mu, like Workspace
	blind bool              // the workspace records nothing any more
}

// openShared gives a fixture the workspace shop of ann, with Vite's files below each of some directories.
func (w *fixture) openShared(t testing.TB, dirs map[string]string) *sharedWorkspace {
	t.Helper()
	d := &sharedWorkspace{w: w, files: map[string]string{"README.md": "shop\n"}, Workspace: engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "ann", Name: "shop", Template: "base", State: engi.WorkspaceStopped,
		Collaborators: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}}}}
	for dir := range dirs {
		for p, text := range map[string]string{
			"index.html": `<script type="module" src="/src/main.tsx"></script>`, "src/main.tsx": "import './App.tsx'\n", "src/App.tsx": "export default 'first'\n",
			"package.json": `{"dependencies":{"react":"19"}}`, "vite.config.ts": "export default {}\n",
		} {
			d.files[dir+"/"+p] = text
		}
	}
	w.shared = d
	return d
}

func (d *sharedWorkspace) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	if err := d.w.step(ctx, "workspace", nil); err != nil {
		return engi.Workspace{}, err
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if name != d.Name && name != string(d.ID) {
		return engi.Workspace{}, engi.Errorf(engi.NotFound, "there is no such workspace")
	}
	return d.Workspace, d.Allow(viewer, engi.RoleViewer)
}

// Start gives the workspace a sandbox with the recorded files, and none of the packages.
func (d *sharedWorkspace) Start(ctx context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	x, err := d.Get(ctx, viewer, name)
	if err != nil {
		return x, err
	}
	err = d.w.act(nil, func() error {
		if d.w.boxes[d.Sandbox] == nil {
			b := &fakeSandbox{Sandbox: engi.Sandbox{ID: engi.NewSandboxID(), Owner: d.Owner, State: engi.Running, Active: time.Now()}, files: map[string]node{}, clock: time.Now().Add(-time.Hour), dead: make(chan struct{}),
				dir: "/workspace/web", dirs: map[string]bool{"/workspace": true}}
			for p, text := range d.files {
				b.put("/workspace/"+p, text)
			}
			d.w.boxes[b.ID], d.Sandbox, d.State = b, b.ID, engi.WorkspaceRunning
		}
		x = d.Workspace
		return nil
	})
	return x, err
}

// Files records the files of the sandbox, and returns all recorded files.
func (d *sharedWorkspace) Files(ctx context.Context, viewer engi.Viewer, name string, _ int64) (all []engi.WorkspaceFile, err error) {
	if _, err := d.Get(ctx, viewer, name); err != nil {
		return nil, err
	}
	err = d.w.act(nil, func() error {
		if b := d.w.boxes[d.Sandbox]; b != nil && !d.blind {
			d.files = map[string]string{}
			for p, n := range b.files {
				if rest, ok := strings.CutPrefix(p, "/workspace/"); ok && !strings.Contains(p, "node_modules") && !strings.Contains(p, "/.git/") {
					d.files[rest] = n.data
				}
			}
		}
		for p, text := range d.files {
			all = append(all, engi.WorkspaceFile{Path: p, Digest: app.Describe(p, []byte(text)).Blob})
		}
		return nil
	})
	return all, err
}

// stop stops the workspace: its files are recorded, and the sandbox is gone.
func (d *sharedWorkspace) stop(t testing.TB) {
	t.Helper()
	if _, err := d.Files(t.Context(), engi.Everyone, d.Name, 0); err != nil {
		t.Fatal(err)
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.lose(d.w.boxes[d.Sandbox])
	d.State, d.Sandbox = engi.WorkspaceStopped, ""
}

func sharedSpec(name, dir string) engi.AppSpec {
	return engi.AppSpec{Owner: "ann", Name: name, Workspace: "shop", Directory: dir, Start: "npm start", Port: 3000}
}

func createShared(t testing.TB, s *app.Service, name, dir string) engi.App {
	t.Helper()
	a, err := s.Create(t.Context(), sharedSpec(name, dir))
	if err != nil || a.State != engi.AppReady || a.Sandbox == "" || a.Revision != 1 || a.Port != 3000 || a.Directory != dir || a.Template != "base" {
		t.Fatalf("a new app is %+v, %v", a, err)
	}
	return a
}

// wantOnly checks that an app has left nothing in the sandbox of its workspace but its own files, and no program.
func (w *fixture) wantOnly(t testing.TB, a engi.App) {
	t.Helper()
	w.change(a.Sandbox, func(b *fakeSandbox) {
		for p := range b.files {
			if rest, ok := strings.CutPrefix(p, "/workspace/"); (!ok || !strings.HasPrefix(rest, a.Directory+"/") && rest != "README.md") && p != "/root/cleared" || strings.Contains(p, "/.git/") {
				t.Errorf("there is %s", p)
			}
		}
		for _, p := range b.procs {
			if !p.ended() && p.tag != "" {
				t.Errorf("%s still runs", p.name)
			}
		}
	})
}

// TestAppInWorkspace follows an app whose files and server are in a workspace.
func TestAppInWorkspace(t *testing.T) {
	w := newFixture(t)
	d := w.openShared(t, map[string]string{"web": ""})
	s, stop := w.begin(t)
	a := createShared(t, s, "shop", "web")
	w.change(a.Sandbox, func(b *fakeSandbox) { b.put(".git/config", "somebody's repository\n") })
	if first := recorded(t, s, "shop", 1); first["src/App.tsx"] != "export default 'first'\n" || len(first) < 5 {
		t.Errorf("the first revision has %v", first)
	}
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: "<package>zustand</package>" + file("src/App.tsx", "two\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	wantSame(t, w, s, "shop")
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/main.tsx", "BROKEN\n")}); last.Kind != engi.AppApplyFailed {
		t.Errorf("it ended with %+v", last)
	}
	wantSame(t, w, s, "shop")
	if r, err := s.Rollback(t.Context(), "ann", "shop", 1); err != nil || r.Of != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	wantSame(t, w, s, "shop")
	if l, err := s.Logs(t.Context(), "ann", "shop", "", 0); err != nil || !strings.Contains(l.Text, "ready") {
		t.Errorf("%+v, %v", l, err)
	}
	if st, err := s.Status(t.Context(), "ann", "shop"); err != nil || !st.Healthy || st.Memory != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if !a.Shows(3000) || a.Shows(22) {
		t.Error("the preview shows another port than the app's")
	}
	// The next node finds the server, and starts no other.
	starts := func() (n int) {
		x, err := s.Open(t.Context(), "ann", "shop")
		if err != nil || x.State != engi.AppReady {
			t.Fatalf("%+v, %v", x, err)
		}
		w.change(x.Sandbox, func(b *fakeSandbox) { n = b.starts })
		return n
	}
	before := starts()
	stop()
	s, _ = w.begin(t)
	if n := starts(); n != before {
		t.Errorf("the server was started %d times, then %d times", before, n)
	}
	// Stopping the app ends its server, and not the workspace.
	if err := s.Stop(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) {
		if b.server || b.gone {
			t.Errorf("the server runs: %v, the sandbox is gone: %v", b.server, b.gone)
		}
	})
	// A file that somebody writes in the workspace while the app is stopped is a revision of the app.
	projected(t, w, s, a)
	d.stop(t)
	w.mu.Lock()
	d.files["web/src/App.tsx"] = "by hand\n"
	w.mu.Unlock()
	x, err := s.Open(t.Context(), "ann", "shop")
	if err != nil || x.Sandbox == a.Sandbox || recorded(t, s, "shop", 0)["src/App.tsx"] != "by hand\n" {
		t.Errorf("%+v, %v, %v", x, err, recorded(t, s, "shop", 0))
	}
	w.change(x.Sandbox, func(b *fakeSandbox) {
		if !b.server || b.files["/workspace/web/node_modules/react/index.js"].data == "" {
			t.Error("the new sandbox has no server, or none of the packages")
		}
		b.put(".git/config", "somebody's repository\n")
	})
	// Removing the app leaves the files, and the sandbox.
	if err := s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	w.change(x.Sandbox, func(b *fakeSandbox) {
		if b.server || b.files["/workspace/web/src/App.tsx"].data != "by hand\n" || b.files["/workspace/web/.git/config"].data != "somebody's repository\n" {
			t.Errorf("the server runs: %v; the files are %v", b.server, b.files)
		}
		for p := range b.files {
			if strings.Contains(p, "/.git/") && !strings.HasSuffix(p, "config") || strings.Contains(p, "engi") {
				t.Errorf("there is %s", p)
			}
		}
	})
	// The port and the directory are free again. A removed workspace ends the app, and its history stays.
	again := createShared(t, s, "shop", "web")
	w.mu.Lock()
	w.lose(w.boxes[again.Sandbox])
	d.Name, d.ID = "gone", engi.NewWorkspaceID()
	w.mu.Unlock()
	if _, err := s.Open(t.Context(), "ann", "shop"); !engi.Is(err, engi.NotFound) || engi.RemedyOf(err) == "" {
		t.Errorf("opened without its workspace: %v", err)
	}
	if recorded(t, s, "shop", 0)["src/App.tsx"] != "by hand\n" {
		t.Error("the history is gone")
	}
	if err := s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Error(err)
	}
}

// TestSharedSandboxIsLost loses the sandbox of a workspace that has not recorded the last revision of an app.
func TestSharedSandboxIsLost(t *testing.T) {
	w := newFixture(t)
	d := w.openShared(t, map[string]string{"web": ""})
	s, _ := w.begin(t)
	a := createShared(t, s, "shop", "web")
	projected(t, w, s, a)
	w.mu.Lock()
	d.blind = true
	w.mu.Unlock()
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "import './New.tsx'\n") + file("src/New.tsx", "new\n")}); last.Kind != engi.AppApplied {
		t.Fatalf("it ended with %+v", last)
	}
	want := recorded(t, s, "shop", 0)
	w.change(a.Sandbox, func(b *fakeSandbox) { w.lose(b) })
	x, err := s.Open(t.Context(), "ann", "shop")
	if err != nil || x.Sandbox == a.Sandbox || x.Revision != 2 || !maps.Equal(recorded(t, s, "shop", 0), want) {
		t.Errorf("%+v, %v", x, err)
	}
	wantSame(t, w, s, "shop")
}

// TestPortOfSharedApp has another program listen at the port of an app.
func TestPortOfSharedApp(t *testing.T) {
	w := newFixture(t)
	d := w.openShared(t, map[string]string{"web": ""})
	s, _ := w.begin(t)
	if _, err := d.Start(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	w.change(d.Sandbox, func(b *fakeSandbox) { b.other = true })
	if a, err := s.Create(t.Context(), sharedSpec("shop", "web")); !engi.Is(err, engi.Conflict) || !strings.Contains(err.Error(), "in use by another program") || engi.RemedyOf(err) == "" {
		t.Errorf("%+v, %v", a, err)
	}
	if all, err := s.List(t.Context(), "ann", engi.Paging{}); err != nil || len(all) != 0 {
		t.Errorf("the refused app is there: %+v, %v", all, err)
	}
	w.change(d.Sandbox, func(b *fakeSandbox) { b.other = false })
	createShared(t, s, "shop", "web")
	// The server ends, and another program takes the port: that is not the app.
	w.change(d.Sandbox, func(b *fakeSandbox) { b.server, b.other = false, true })
	if st, err := s.Status(t.Context(), "ann", "shop"); err != nil || st.Healthy {
		t.Errorf("the answers of another program count: %+v, %v", st, err)
	}
	if a, err := s.Open(t.Context(), "ann", "shop"); !engi.Is(err, engi.Conflict) || a.State != engi.AppFailed {
		t.Errorf("%+v, %v", a, err)
	}
	w.change(d.Sandbox, func(b *fakeSandbox) { b.other = false })
	if a, err := s.Open(t.Context(), "ann", "shop"); err != nil || a.State != engi.AppReady {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestPlacesOfSharedApps refuses what cannot be in the sandbox of a workspace, and two apps in one place.
func TestPlacesOfSharedApps(t *testing.T) {
	w := newFixture(t)
	d := w.openShared(t, map[string]string{"web": "", "api/v1": ""})
	s, _ := w.begin(t)
	for what, c := range map[string]struct {
		change func(x *engi.AppSpec)
		want   engi.Kind
	}{
		"no workspace":             {func(x *engi.AppSpec) { x.Workspace = "" }, engi.Invalid},
		"no directory":             {func(x *engi.AppSpec) { x.Directory = "" }, engi.Invalid},
		"no start":                 {func(x *engi.AppSpec) { x.Start = "" }, engi.Invalid},
		"no port":                  {func(x *engi.AppSpec) { x.Port = 0 }, engi.Invalid},
		"a port too high":          {func(x *engi.AppSpec) { x.Port = 65536 }, engi.Invalid},
		"a template":               {func(x *engi.AppSpec) { x.Template = "vite-react" }, engi.Invalid},
		"a network":                {func(x *engi.AppSpec) { x.Network.Mode = engi.NetworkOpen }, engi.Invalid},
		"a way out":                {func(x *engi.AppSpec) { x.Directory = "../etc" }, engi.Invalid},
		"an absolute path":         {func(x *engi.AppSpec) { x.Directory = "/etc" }, engi.Invalid},
		"the workspace itself":     {func(x *engi.AppSpec) { x.Directory = "." }, engi.Invalid},
		"a repository":             {func(x *engi.AppSpec) { x.Directory = ".GIT/web" }, engi.Invalid},
		"packages":                 {func(x *engi.AppSpec) { x.Directory = "node_modules/web" }, engi.Invalid},
		"a stranger":               {func(x *engi.AppSpec) { x.Owner = "eve" }, engi.NotFound},
		"an editor":                {func(x *engi.AppSpec) { x.Owner = "bob" }, engi.Denied},
		"a file for a directory":   {func(x *engi.AppSpec) { x.Directory = "README.md" }, engi.Conflict},
		"a directory below a file": {func(x *engi.AppSpec) { x.Directory = "README.md/web" }, engi.Conflict},
	} {
		spec := sharedSpec("refused", "web")
		c.change(&spec)
		if a, err := s.Create(t.Context(), spec); !engi.Is(err, c.want) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %+v, %v, remedy %q", what, a, err, engi.RemedyOf(err))
		}
	}
	if all, err := s.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(all) != 0 {
		t.Errorf("refused apps are there: %+v, %v", all, err)
	}
	w.mu.Lock()
	kept := d.files["README.md"]
	w.mu.Unlock()
	if kept != "shop\n" {
		t.Errorf("the file is %q", kept)
	}

	x := createShared(t, s, "shop", "web")
	// An app there has nothing that needs a sandbox of its own.
	name := string(x.ID)
	for what, err := range map[string]error{
		"branch":   second(s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: name})),
		"snapshot": second(s.Snapshot(t.Context(), "ann", name)),
		"restore":  second(s.Restore(t.Context(), "ann", name, 0)),
		"apply":    second(s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: name, Text: file("a", "a\n"), Snapshot: true})),
		"attempts": second(s.Edit(t.Context(), engi.EditSpec{Viewer: "ann", App: name, Prompt: "x", Attempts: 2})),
	} {
		if !engi.Is(err, engi.Unsupported) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := s.List(t.Context(), "bob", engi.Paging{}); err != nil || len(all) != 0 {
		t.Errorf("an editor of the workspace sees %+v, %v", all, err)
	}
	if _, err := s.Get(t.Context(), "bob", name); !engi.Is(err, engi.NotFound) {
		t.Errorf("an editor of the workspace finds the app: %v", err)
	}
}

// TestSharedAppsAtOnce creates several apps at once with overlapping directories or one port. Each of them comes as far as the
// store before it adds one, unless it waits for the others.
func TestSharedAppsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.adding = time.Second
		w.openShared(t, map[string]string{"web": ""})
		s, stop := w.begin(t)
		var work sync.WaitGroup
		var made atomic.Int32
		for i, dir := range []string{"web", "web", "web/admin", "web/admin/old", "other"} {
			work.Go(func() {
				spec := sharedSpec("", dir)
				if dir != "other" {
					spec.Port += i
				}
				if _, err := s.Create(t.Context(), spec); err == nil {
					made.Add(1)
				} else if !engi.Is(err, engi.Conflict) || engi.RemedyOf(err) == "" {
					t.Errorf("%s: %v", dir, err)
				}
			})
		}
		work.Wait()
		all, err := s.List(t.Context(), "ann", engi.Paging{})
		if err != nil || len(all) != int(made.Load()) || len(all) == 0 {
			t.Errorf("%d apps, %v, and %d were created", len(all), err, made.Load())
		}
		for i, r := range all {
			for _, o := range all[:i] {
				if r.Port == o.Port || strings.HasPrefix(r.Directory+"/", o.Directory+"/") || strings.HasPrefix(o.Directory+"/", r.Directory+"/") {
					t.Errorf("%s at %d and %s at %d are both there", r.Directory, r.Port, o.Directory, o.Port)
				}
			}
		}
		stop()
		w.end()
	})
}

// TestEndScript ends processes that ignore TERM, are stopped or have left their session, and no others.
func TestEndScript(t *testing.T) {
	mark := "ENGI_APP=" + string(engi.NewAppID())
	begin := func(mark, script string) *exec.Cmd {
		t.Helper()
		c := exec.Command("/bin/sh", "-c", script)
		c.Env, c.SysProcAttr = append(c.Environ(), mark), &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ours := []*exec.Cmd{begin(mark, "sleep 1000"), begin(mark, `trap "" TERM; sleep 1000 & sleep 1000`), begin(mark, "kill -STOP $$; sleep 1000")}
	other := begin("ENGI_APP="+string(engi.NewAppID()), "exec sleep 1000")
	if out, err := exec.Command("/bin/sh", "-c", app.EndScript, "end", mark).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range ours {
		if err := c.Wait(); err == nil || c.ProcessState.ExitCode() == 0 {
			t.Errorf("%s ended with %v", c, err)
		}
	}
	if left, err := exec.Command("/bin/sh", "-c", `grep -lsF "$0" /proc/[0-9]*/environ`, mark).Output(); err == nil {
		t.Errorf("there is left: %s", left)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process of another app: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Error(err)
	}
	other.Wait() // it was killed
}
