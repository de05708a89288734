package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/mounts"
)

// withWorkspaces runs a test with overlays, where they work, and with copies.
func withWorkspaces(t *testing.T, f func(t *testing.T, open func(w *fakeRunner) *Templates, cached bool)) {
	for _, cached := range []bool{true, false} {
		t.Run(map[bool]string{true: "overlay", false: "copy"}[cached], func(t *testing.T) {
			f(t, func(w *fakeRunner) *Templates {
				d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
				if !cached {
					d.overlayProbe.Do(func() {})
				} else {
					need(t, d.overlayWorks(), "overlay mounts")
				}
				build(t, d, "low", "base: tar:root.tar\nuser: user\nenv: {A: low}\nworking_dir: /home/user\nfiles: [{path: /etc/motd, content: low}, {path: /gone, content: x}]\nkernels: [python]\nstart: serve\n")
				return d
			}, cached)
		})
	}
}

// shellRunner returns a BuildRunner that appends commands to /etc/motd instead of running
// them, and records them.
func shellRunner(t *testing.T, commands *[]engi.Command) *fakeRunner {
	return &fakeRunner{run: func(_ context.Context, dir string, c engi.Command, out io.Writer) engi.Exit {
		*commands = append(*commands, c)
		text := c.Args[2]
		if text == "fail" {
			fmt.Fprintln(out, "it said why")
			return engi.Exit{Code: 3, Cause: engi.CauseExited}
		}
		f, err := os.OpenFile(filepath.Join(dir, "etc/motd"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Error(err)
			return engi.Exit{Code: 1, Cause: engi.CauseExited}
		}
		_, err = f.WriteString("+" + text)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(dir, "gone")); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return engi.Exit{Cause: engi.CauseExited}
	}}
}

func run(text string, user ...string) engi.BuildStep {
	return engi.BuildStep{Type: engi.StepRun, Args: append([]string{text}, user...)}
}

func motd(t *testing.T, tmpl engi.Template) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(tmpl.Root, "etc/motd"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func noMounts(t *testing.T, d *Templates) {
	t.Helper()
	if points, err := mounts.In(d.o.Dir); err != nil || len(points) > 0 {
		t.Errorf("mounts are left: %q, %v", points, err)
	}
	if left := d.dir.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestPrivatePorts checks that templates built on a template with private ports also have them.
func TestPrivatePorts(t *testing.T) {
	withWorkspaces(t, func(t *testing.T, open func(*fakeRunner) *Templates, _ bool) {
		var ran []engi.Command
		d := open(shellRunner(t, &ran))
		for _, step := range []struct {
			name, text string
			want       bool
		}{
			{"open", "base: template:low\nports: [80]", false},
			{"lab", "base: template:low\nprivate_ports: true", true},
			{"more", "base: template:lab\nfiles: [{path: /etc/more, content: x}]", true},
			{"steps", "base: template:lab\nsteps: [{run: one}]", true},
		} {
			build(t, d, step.name, step.text)
			if got, err := d.Get(t.Context(), step.name); err != nil || got.Private != step.want {
				t.Errorf("%s: private %v, %v", step.name, got.Private, err)
			}
		}
	})
}

func TestSteps(t *testing.T) {
	withWorkspaces(t, func(t *testing.T, open func(*fakeRunner) *Templates, cached bool) {
		var ran []engi.Command
		d := open(shellRunner(t, &ran))
		spec := engi.BuildSpec{Name: "mine", Owner: "ann", FromTemplate: "low", Ready: "true", Start: "other", Size: engi.Size{Memory: 1 << 30}, Steps: []engi.BuildStep{
			{Type: engi.StepEnv, Args: []string{"B", "1", "A", "mine"}},
			run("one"),
			{Type: engi.StepWorkdir, Args: []string{"app/x"}},
			run("two", "root"),
			{Type: engi.StepUser, Args: []string{"daemon"}},
			run("three"),
		}}
		var events []engi.Progress
		tmpl, err := d.BuildSteps(t.Context(), spec, func(e engi.Progress) { events = append(events, e) })
		if err != nil {
			t.Fatal(err)
		}
		if got := motd(t, tmpl); got != "low+one+two+three" {
			t.Errorf("the steps left %q", got)
		}
		if exists(filepath.Join(tmpl.Root, "gone")) {
			t.Error("what a step removed is there")
		}
		low, err := d.Get(t.Context(), "low")
		if err != nil {
			t.Fatal(err)
		}
		if motd(t, low) != "low" || !exists(filepath.Join(low.Root, "gone")) {
			t.Error("the base has changed")
		}
		if tmpl.User != "daemon" || tmpl.WorkDir != "/home/user/app/x" || tmpl.Env["A"] != "mine" || tmpl.Env["B"] != "1" || tmpl.Size.Memory != 1<<30 ||
			tmpl.Start != "other" || tmpl.Ready != "true" || !slices.Equal(tmpl.Kernels, []string{"python"}) || tmpl.Owner != "ann" || tmpl.Name != "mine" {
			t.Errorf("got %+v", tmpl)
		}
		if again, err := d.Get(t.Context(), "mine"); err != nil || again.Owner != "ann" || again.Ready != "true" || again.Digest != tmpl.Digest {
			t.Errorf("got %+v, %v", again, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(tmpl.Root, "home/user/app"), &st); err != nil || privileged && st.Uid != 1000 {
			t.Errorf("the working directory belongs to %d, %v", st.Uid, err)
		}
		for i, want := range []struct{ user, dir string }{{"user", "/home/user"}, {"root", "/home/user/app/x"}, {"daemon", "/home/user/app/x"}} {
			if ran[i].User != want.user || ran[i].Dir != want.dir || ran[i].Env["A"] != "mine" {
				t.Errorf("command %d: %+v", i, ran[i])
			}
		}
		if ran[0].Env["HOME"] != "/home/user" || ran[1].Env["HOME"] != "/root" {
			t.Errorf("homes: %v", ran)
		}
		if last := events[len(events)-1]; last.Step != 8 || last.Steps != 8 {
			t.Errorf("last event %+v", last)
		}

		// Unchanged steps are cached. After a changed step, the following run again.
		ran = nil
		if again, err := d.BuildSteps(t.Context(), spec, nil); err != nil || again.Digest != tmpl.Digest || len(ran) > 0 && cached {
			t.Errorf("again: %v, %d commands", err, len(ran))
		}
		ran = nil
		spec.Steps = slices.Clone(spec.Steps)
		spec.Steps[3] = run("changed")
		changed, err := d.BuildSteps(t.Context(), spec, nil)
		if err != nil || changed.Digest == tmpl.Digest || motd(t, changed) != "low+one+changed+three" || len(ran) != 2 && cached {
			t.Errorf("changed: %v, %d commands, %q", err, len(ran), motd(t, changed))
		}
		// A forced step runs again, and later builds use its result.
		ran = nil
		spec.Steps[3].Force = true
		forced, err := d.BuildSteps(t.Context(), spec, nil)
		if err != nil || cached && (forced.Digest == changed.Digest || len(ran) != 2) {
			t.Errorf("forced: %v, %d commands", err, len(ran))
		}
		ran = nil
		spec.Steps[3].Force = false
		if after, err := d.BuildSteps(t.Context(), spec, nil); err != nil || after.Digest != forced.Digest || cached && len(ran) > 0 {
			t.Errorf("after a forced step: %v, %d commands", err, len(ran))
		}
		ran = nil
		spec.Force = true
		if _, err := d.BuildSteps(t.Context(), spec, nil); err != nil || len(ran) != 3 {
			t.Errorf("all forced: %v, %d commands", err, len(ran))
		}
		noMounts(t, d)

		// On top of it, also by digest.
		top, err := d.BuildSteps(t.Context(), engi.BuildSpec{Name: "top", FromTemplate: tmpl.Digest}, nil)
		if err != nil || motd(t, top) != "low+one+two+three" || top.User != "daemon" || top.Start != "other" {
			t.Errorf("top: %+v, %v", top, err)
		}
		if _, err := d.Build(t.Context(), "defined", []byte("base: template:mine\nsteps: [{run: more}]\n"), nil); err != nil {
			t.Error(err)
		}
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "mine", Owner: "bob", FromTemplate: "low"}), engi.Conflict)
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "his", Owner: "bob", FromTemplate: "mine"}), engi.NotFound)
		hers, err := d.Get(t.Context(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "his", Owner: "bob", FromTemplate: hers.Digest}), engi.NotFound)
		if x, err := d.Get(t.Context(), hers.Digest); err != nil || !x.VisibleTo("ann") || x.VisibleTo("bob") || !x.VisibleTo(engi.Everyone) {
			t.Errorf("by its digest: %+v, %v", x, err)
		}
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "base", Owner: "bob", FromTemplate: "low"}), engi.Conflict)
	})
}

func buildErr(d *Templates, spec engi.BuildSpec) error {
	_, err := d.BuildSteps(context.Background(), spec, nil)
	return err
}

func TestStepsThatFail(t *testing.T) {
	withWorkspaces(t, func(t *testing.T, open func(*fakeRunner) *Templates, cached bool) {
		var ran []engi.Command
		d := open(shellRunner(t, &ran))
		archive := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(archive, packed(t, false, map[string]string{"a": "x"}), 0o600); err != nil {
			t.Fatal(err)
		}
		evil := filepath.Join(t.TempDir(), "evil.tar")
		if err := os.WriteFile(evil, tinyRoot(t, &tar.Header{Name: "../evil", Typeflag: tar.TypeDir}), 0o600); err != nil {
			t.Fatal(err)
		}
		copying := func(archive string, args ...string) engi.BuildStep {
			return engi.BuildStep{Type: engi.StepCopy, Args: args, Archive: archive}
		}
		for _, test := range []struct {
			step  engi.BuildStep
			kind  engi.Kind
			words string
		}{
			{run("whoami", "root123"), engi.Invalid, "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"},
			{engi.BuildStep{Type: engi.StepUser, Args: []string{"nobody9"}}, engi.Invalid, "invalid username: 'nobody9'"},
			{run("fail"), engi.Invalid, "failed to run command 'fail': exit status 3\nit said why"},
			{run(" "), engi.Invalid, "run has no command"},
			{engi.BuildStep{Type: "jump"}, engi.Invalid, "jump"},
			{engi.BuildStep{Type: engi.StepEnv, Args: []string{"A"}}, engi.Invalid, "without value"},
			{engi.BuildStep{Type: engi.StepEnv, Args: []string{"A=B", "x"}}, engi.Invalid, "A=B"},
			{copying("", "a", "b"), engi.Invalid, "no archive"},
			{copying(archive, "none*", "b"), engi.Invalid, "none*"},
			{copying(archive, "a", "b", "ghost"), engi.Invalid, "ghost"},
			{copying(archive, "a", "b", "", "999"), engi.Invalid, "999"},
			{copying(evil, "a", "b"), engi.Invalid, "leads upwards"},
			{copying(archive+"x", "a", "b"), engi.Internal, "no such file"},
		} {
			err := buildErr(d, engi.BuildSpec{Name: "bad", FromTemplate: "low", Steps: []engi.BuildStep{test.step}})
			if !engi.Is(err, test.kind) || !strings.Contains(err.Error(), test.words) {
				t.Errorf("%v %q: %v", test.step.Type, test.step.Args, err)
			}
		}
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "bad", FromTemplate: "low", FromImage: "x"}), engi.Invalid)
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "bad", FromTemplate: "none"}), engi.NotFound)
		wantKind(t, buildErr(d, engi.BuildSpec{Name: "../bad", FromTemplate: "low"}), engi.Invalid)
		noMounts(t, d)
	})
}

// packed returns an archive of files. A name that ends in a slash is a directory, a
// text that begins with -> is a link.
func packed(t *testing.T, zip bool, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	var to io.Writer = &buf
	z := gzip.NewWriter(&buf)
	if zip {
		to = z
	}
	w := tar.NewWriter(to)
	names := []string{}
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(files[name])), Uid: 77, ModTime: time.Unix(1e9, 0)}
		if link, ok := strings.CutPrefix(files[name], "->"); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, link, 0
		} else if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o700
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, files[name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestCopySteps(t *testing.T) {
	withWorkspaces(t, func(t *testing.T, open func(*fakeRunner) *Templates, cached bool) {
		d := open(nil)
		archive := filepath.Join(t.TempDir(), "a.tgz")
		if err := os.WriteFile(archive, packed(t, true, map[string]string{
			"app/a.txt": "a", "app/b.txt": "b", "app/sub/c": "c", "app/link": "->a.txt", "up": "->/etc", "up2/x": "x", "single": "s", "empty/": "",
		}), 0o600); err != nil {
			t.Fatal(err)
		}
		type step = []string
		for _, test := range []struct {
			steps []step
			want  map[string]string // path: content
		}{
			{[]step{{"single", "new"}}, map[string]string{"home/user/new": "s"}},
			{[]step{{"single", "."}}, map[string]string{"home/user/single": "s"}},
			{[]step{{"./single", "/opt/y/"}}, map[string]string{"opt/y/single": "s"}},
			{[]step{{"app", "/opt/z"}}, map[string]string{"opt/z/a.txt": "a", "opt/z/sub/c": "c", "opt/z/link": "a"}},
			{[]step{{"app/", "."}}, map[string]string{"home/user/a.txt": "a", "home/user/sub/c": "c"}},
			{[]step{{"app/*", "/w"}}, map[string]string{"w/a.txt": "a", "w/b.txt": "b", "w/c": "c"}},
			{[]step{{"app/*.txt", "/w"}}, map[string]string{"w/a.txt": "a", "w/b.txt": "b", "w/c": ""}},
			{[]step{{".", "/all"}}, map[string]string{"all/app/a.txt": "a", "all/single": "s"}},
			{[]step{{"app", "/opt/z"}, {"single", "/opt/z/a.txt"}}, map[string]string{"opt/z/a.txt": "s", "opt/z/b.txt": "b"}},
			{[]step{{"app/link", "/etc/passwd2"}}, map[string]string{"etc/passwd2": ""}},
		} {
			spec := engi.BuildSpec{Name: "copied", FromTemplate: "low"}
			for _, args := range test.steps {
				spec.Steps = append(spec.Steps, engi.BuildStep{Type: engi.StepCopy, Args: args, Archive: archive})
			}
			tmpl, err := d.BuildSteps(t.Context(), spec, nil)
			if err != nil {
				t.Errorf("%v: %v", test.steps, err)
				continue
			}
			for name, want := range test.want {
				if data, err := os.ReadFile(filepath.Join(tmpl.Root, name)); string(data) != want || want == "" && err == nil {
					t.Errorf("%v: %s has %q, %v; want %q", test.steps, name, data, err, want)
				}
			}
		}
		tmpl, err := d.BuildSteps(t.Context(), engi.BuildSpec{Name: "copied", FromTemplate: "low", Steps: []engi.BuildStep{
			{Type: engi.StepCopy, Args: []string{"app", "/opt/z", "root", "0640"}, Archive: archive},
			{Type: engi.StepCopy, Args: []string{"app", "/opt/y"}, Archive: archive},
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]unix.Stat_t{
			"opt/z/a.txt": {Mode: 0o640}, "opt/z": {Mode: 0o755}, "opt/z/sub": {Mode: 0o750}, "opt/y/a.txt": {Mode: 0o600, Uid: 1000}, "opt/y/sub": {Uid: 1000},
		} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(tmpl.Root, name), &st); err != nil || want.Mode != 0 && st.Mode&0o777 != want.Mode || privileged && st.Uid != want.Uid {
				t.Errorf("%s: mode %o of %d, %v; want %o of %d", name, st.Mode&0o777, st.Uid, err, want.Mode, want.Uid)
			}
		}
		noMounts(t, d)
	})
}

func TestStepsCopyDirectoriesOfTheNode(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	from := filepath.Join(d.o.Sources[0], "app", "sub")
	if err := os.MkdirAll(from, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "a"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(d.o.Sources[0], "out")); err != nil {
		t.Fatal(err)
	}
	const text = "base: tar:root.tar\nsteps: [{copy: {from: app, source: sub, dest: /x}}]\n"
	first := build(t, d, "mine", text)
	if data, err := os.ReadFile(filepath.Join(first.Root, "x/a")); err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
	if again := build(t, d, "mine", text); again.Digest != first.Digest {
		t.Error("nothing changed and it was built again")
	}
	if err := os.WriteFile(filepath.Join(from, "a"), []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	if again := build(t, d, "mine", text); again.Digest == first.Digest {
		t.Error("a file changed and nothing was built")
	}
	for from, kind := range map[string]engi.Kind{"out": engi.Invalid, "/etc": engi.Denied, "none": engi.Invalid, "../..": engi.Denied} {
		_, err := d.Build(t.Context(), "bad", []byte("base: tar:root.tar\nsteps: [{copy: {from: "+from+", source: x, dest: /x}}]\n"), nil)
		wantKind(t, err, kind)
	}
}

func TestImagesThatTemplatesStandFor(t *testing.T) {
	d := openTemplates(t, Options{Aliases: map[string]string{"ubuntu:22.04": "low", "registry.example.com/team/img": "low"}}, map[string][]byte{"root.tar": tinyRoot(t)})
	build(t, d, "low", "base: tar:root.tar\n")
	for image, want := range map[string]string{
		"ubuntu:22.04": "low", "docker.io/library/ubuntu:22.04": "low", "registry.example.com/team/img:v3": "low",
		"e2bdev/base": "base", "e2bdev/base:latest": "base", "docker.io/e2bdev/code-interpreter:latest": "code-interpreter-v1",
	} {
		if got, ok := d.alias(image); !ok || got != want {
			t.Errorf("%s is %q", image, got)
		}
	}
	for _, image := range []string{"ubuntu:24.04", "base", "evil.example.com/e2bdev/base", ""} {
		if got, ok := d.alias(image); ok {
			t.Errorf("%s is %q", image, got)
		}
	}
	for image, want := range map[string]string{
		"debian:12": "debian:bookworm", "debian:bookworm-slim": "debian:bookworm", "ubuntu:22.04": "ubuntu:jammy", "debian": "debian:stable",
		"quay.io/debian:12": "", "python:3.12": "", "debian:../x": "",
	} {
		if got, ok := officialSuite(image); ok != (want != "") || ok && got != want {
			t.Errorf("%s is %q", image, got)
		}
	}
	if tmpl, err := d.BuildSteps(t.Context(), engi.BuildSpec{Name: "x", FromImage: "ubuntu:22.04"}, nil); err != nil || !exists(tmpl.Root) {
		t.Errorf("%+v, %v", tmpl, err)
	}
}

func TestHeldBuildsStay(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	old := build(t, d, "mine", "base: tar:root.tar")
	needs := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(needs, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Hold(t.Context(), old.Digest, needs); err != nil {
			t.Fatal(err)
		}
	}
	notes := filepath.Join(filepath.Dir(old.Root), "holds")
	if list, err := os.ReadDir(notes); err != nil || len(list) != 1 {
		t.Errorf("notes %v, %v", list, err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	if err := errors.Join(os.Mkdir(gone, 0o700), d.Hold(t.Context(), old.Digest, gone), os.Remove(gone), d.collect(t.Context())); err != nil {
		t.Fatal(err)
	}
	if list, err := os.ReadDir(notes); err != nil || len(list) != 1 {
		t.Errorf("notes of what is gone stay: %v, %v", list, err)
	}
	wantKind(t, d.Hold(t.Context(), old.Digest, "relative"), engi.Invalid)
	wantKind(t, d.Hold(t.Context(), digestPrefix+strings.Repeat("0", 64), needs), engi.NotFound)
	wantKind(t, d.Remove(t.Context(), "mine"), engi.Conflict)
	build(t, d, "mine", "base: tar:root.tar\nversion: 2")
	other, err := Open(t.Context(), Options{Dir: d.o.Dir}) // another process after this one has ended
	if err != nil {
		t.Fatal(err)
	}
	if freed, err := other.Prune(t.Context()); err != nil || freed != 0 || !exists(old.Root) {
		t.Errorf("pruned what a snapshot needs: %d, %v", freed, err)
	}
	if err := os.Remove(needs); err != nil {
		t.Fatal(err)
	}
	if freed, err := other.Prune(t.Context()); err != nil || freed != old.Bytes || exists(old.Root) {
		t.Errorf("freed %d, %v", freed, err)
	}
}

func TestBuildsWithoutNamesGoAfterAWhile(t *testing.T) {
	d := openTemplates(t, Options{Grace: time.Hour}, map[string][]byte{"root.tar": tinyRoot(t)})
	old := build(t, d, "mine", "base: tar:root.tar")
	used := build(t, d, "mine", "base: tar:root.tar\nversion: 2")
	_, release, err := d.Use(t.Context(), used.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	kept := build(t, d, "mine", "base: tar:root.tar\nversion: 3")
	collect := func() {
		t.Helper()
		if err := d.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	age := func(tmpl engi.Template) {
		t.Helper()
		long := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(filepath.Join(filepath.Dir(tmpl.Root), "orphan"), long, long); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	if !exists(old.Root) || !exists(used.Root) || !exists(kept.Root) {
		t.Error("a build went at once")
	}
	age(old)
	age(used)
	// Naming the build again removes the mark.
	build(t, d, "again", "base: tar:root.tar")
	collect()
	if !exists(old.Root) {
		t.Error("a build went that a name means again")
	}
	if err := d.dir.removeName("again"); err != nil {
		t.Fatal(err)
	}
	collect()
	if !exists(old.Root) {
		t.Error("it went before its time had passed anew")
	}
	age(old)
	collect()
	if exists(old.Root) || !exists(used.Root) || !exists(kept.Root) {
		t.Errorf("old %v, used %v, kept %v", exists(old.Root), exists(used.Root), exists(kept.Root))
	}
	// With a negative grace nothing is removed.
	d.o.Grace = -1
	age(used)
	release()
	collect()
	if !exists(used.Root) {
		t.Error("it went although nothing should")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx, func() {}); err != nil {
		t.Error(err)
	}
}

func TestLayersGoWhenNobodyRepeatsThem(t *testing.T) {
	var ran []engi.Command
	w := shellRunner(t, &ran)
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	need(t, d.overlayWorks(), "overlay mounts")
	build(t, d, "low", "base: tar:root.tar\nfiles: [{path: /etc/motd, content: low}]")
	spec := engi.BuildSpec{Name: "mine", FromTemplate: "low", Steps: []engi.BuildStep{run("one"), {Type: engi.StepRun, Args: []string{"two"}, Force: true}}}
	tmpl, err := d.BuildSteps(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	count := func(dir string) int {
		list, err := os.ReadDir(filepath.Join(d.o.Dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if count("layers") != 2 || count("steps") != 1 {
		t.Errorf("%d layers, %d notes", count("layers"), count("steps"))
	}
	if freed, err := d.dir.pruneLayers(t.Context(), time.Hour); err != nil || freed != 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	list, err := os.ReadDir(filepath.Join(d.o.Dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := d.dir.lockDirShared(d.dir.layerDir(list[0].Name()))
	if lock == nil || err != nil {
		t.Fatal(err)
	}
	if _, err := d.Prune(t.Context()); err != nil || count("layers") != 1 {
		t.Errorf("%d layers, one in use; %v", count("layers"), err)
	}
	lock.Close()
	if _, err := d.Prune(t.Context()); err != nil || count("layers") != 0 || count("steps") != 0 {
		t.Errorf("%d layers, %d notes; %v", count("layers"), count("steps"), err)
	}
	// The template does not need the layers.
	if motd(t, tmpl) != "low+one+two" {
		t.Errorf("left %q", motd(t, tmpl))
	}
}

func TestAnOverlayThatIsStillInUse(t *testing.T) {
	d := openTemplates(t, Options{}, nil)
	need(t, d.overlayWorks(), "overlay mounts")
	below, dir := t.TempDir(), t.TempDir()
	if err := mountOverlay(dir, []string{below}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "root", "file"))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { f.Close() })
	if err := unmountOverlay(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tree", "file")); err != nil {
		t.Error(err)
	}
}

func TestOverlaysOfKilledBuildsAreTakenApart(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t)})
	need(t, d.overlayWorks(), "overlay mounts")
	low := build(t, d, "low", "base: tar:root.tar\nfiles: [{path: /etc/motd, content: low}]")
	w, err := d.newWorkspace(t.Context(), []string{low.Root})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "root/etc/motd"), []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.tree.Close()
	w.lock.Close() // as at the end of its process
	again, err := Open(t.Context(), Options{Dir: d.o.Dir})
	if err != nil {
		t.Fatal(err)
	}
	noMounts(t, again)
	if motd(t, low) != "low" {
		t.Errorf("the base has %q", motd(t, low))
	}
}

func TestFlattenKeepsEverything(t *testing.T) {
	d := openTemplates(t, Options{}, map[string][]byte{"root.tar": tinyRoot(t,
		&tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: time.Unix(1e9, 0)},
		&tar.Header{Name: "d/fifo", Typeflag: tar.TypeFifo, Mode: 0o600},
		&tar.Header{Name: "d/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		&tar.Header{Name: "replaced/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "replaced/in/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "opaque/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "opaque/old", Typeflag: tar.TypeSymlink, Linkname: "x"},
		&tar.Header{Name: "turned", Typeflag: tar.TypeSymlink, Linkname: "d"},
		&tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o4755},
	)})
	need(t, d.overlayWorks(), "overlay mounts")
	low := build(t, d, "low", "base: tar:root.tar")
	w, err := d.newWorkspace(t.Context(), []string{low.Root})
	if err != nil {
		t.Fatal(err)
	}
	defer d.discard(w)
	root := filepath.Join(w.dir, "root")
	for _, err := range []error{
		os.RemoveAll(filepath.Join(root, "replaced")), os.WriteFile(filepath.Join(root, "replaced"), []byte("file"), 0o644),
		os.RemoveAll(filepath.Join(root, "opaque")), os.Mkdir(filepath.Join(root, "opaque"), 0o700), os.WriteFile(filepath.Join(root, "opaque/new"), nil, 0o644),
		os.Remove(filepath.Join(root, "turned")), os.Mkdir(filepath.Join(root, "turned"), 0o755), os.WriteFile(filepath.Join(root, "turned/fifo"), []byte("mine"), 0o644),
		os.Remove(filepath.Join(root, "usr/bin/python3")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := listing(t, root)
	if err := w.flatten(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, root); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if data, err := os.ReadFile(filepath.Join(root, "turned/fifo")); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
}

// listing returns a description of all files below a directory.
func listing(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		target, _ := os.Readlink(path)
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0
		}
		all = append(all, fmt.Sprintf("%s %o %d:%d %d %d.%d %s", rel, st.Mode, st.Uid, st.Gid, size, st.Mtim.Sec, st.Mtim.Nsec, target))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
