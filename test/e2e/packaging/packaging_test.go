// Package packaging installs the packages of a release from their folder,
// each into a clean place, and runs a first program with it.
package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/env"
)

// dist returns the folder of a release, and the newest file there that matches pattern.
func dist(t *testing.T, pattern string) (folder, file string) {
	t.Helper()
	env.Machine(t)
	folder = os.Getenv("ENGI_TEST_DIST")
	if folder == "" {
		env.Need(t, "the folder of a release in ENGI_TEST_DIST (make release)")
	}
	// The folder also has files of older commits.
	var newest os.FileInfo
	files, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, folder, err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if newest == nil || st.ModTime().After(newest.ModTime()) {
			newest, file = st, f
		}
	}
	return folder, file
}

func need(t *testing.T, program string) string {
	t.Helper()
	at, err := exec.LookPath(program)
	if err != nil {
		env.Need(t, program)
	}
	return at
}

// A place is a directory without data, cache and settings of engi.
type place struct {
	t    *testing.T
	dir  string
	vars []string
}

func clean(t *testing.T) *place {
	t.Helper()
	// Paths of sockets below the directory may have 107 bytes.
	dir, err := os.MkdirTemp("", "engi-pkg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &place{t: t, dir: dir, vars: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "ENGI_DATA_DIR=" + filepath.Join(dir, "d"), "ENGI_CACHE_DIR=" + filepath.Join(dir, "c"),
	}}
	for _, key := range []string{"SSL_CERT_FILE", "TMPDIR", "LANG"} {
		if v := os.Getenv(key); v != "" {
			p.vars = append(p.vars, key+"="+v)
		}
	}
	return p
}

// run runs a program and returns its output and its exit code.
func (p *place) run(name string, args ...string) (stdout string, code int) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.dir, p.vars
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		p.t.Fatal(err)
	}
	p.t.Logf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), cmd.ProcessState, out.String(), errs.String())
	return out.String(), cmd.ProcessState.ExitCode()
}

// must is like run for a program that must succeed.
func (p *place) must(name string, args ...string) string {
	p.t.Helper()
	out, code := p.run(name, args...)
	if code != 0 {
		p.t.Fatalf("%s ended with %d", name, code)
	}
	return out
}

// first runs first programs with engi, by a command that begins with words.
func (p *place) first(words ...string) {
	p.t.Helper()
	engi := func(args ...string) (string, int) { return p.run(words[0], append(words[1:], args...)...) }
	if out, code := engi("run", "-l", "python", "-c", "print(6*7)"); out != "42\n" || code != 0 {
		p.t.Errorf("the first program printed %q and ended with %d", out, code)
	}
	if _, code := engi("run", "-l", "bash", "-c", "exit 3"); code != 3 {
		p.t.Errorf("exit code %d, want that of the program, 3", code)
	}
	if out, code := engi("version"); code != 0 || !strings.Contains(out, "release") {
		p.t.Errorf("version: %q", out)
	}
}

func TestNpm(t *testing.T) {
	env.Slow(t)
	npm := need(t, "npm")
	_, main := dist(t, "engi-[0-9]*.tgz")
	_, platform := dist(t, "engi-dev-engi-linux-*.tgz")
	p := clean(t)
	p.must(npm, "init", "-y")
	p.must(npm, "install", "--offline", "--no-audit", "--no-fund", "--loglevel=error", platform, main)
	p.first(need(t, "npx"), "--offline", "engi")

	alone := clean(t)
	alone.must(npm, "init", "-y")
	alone.must(npm, "install", "--offline", "--no-audit", "--no-fund", "--loglevel=error", main)
	if _, code := alone.run("npx", "--offline", "engi", "version"); code != 125 {
		t.Errorf("without the program: exit code %d", code)
	}
}

// TestRuntime installs the runtime for pages. Node can load all of it except its element.
func TestRuntime(t *testing.T) {
	env.Slow(t)
	npm := need(t, "npm")
	_, packed := dist(t, "engi-dev-ui-*.tgz")
	p := clean(t)
	p.must(npm, "init", "-y")
	p.must(npm, "install", "--offline", "--no-audit", "--no-fund", "--loglevel=error", packed)
	out := p.must(need(t, "node"), "--input-type=module", "-e", `
import * as ui from "@engi-dev/ui"
import { existsSync, readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
const at = (name) => fileURLToPath(import.meta.resolve(name))
const files = ["@engi-dev/ui", "@engi-dev/ui/element", "@engi-dev/ui/react"].flatMap((name) => [at(name), at(name).replace(/js$/, "d.ts")])
const { version } = JSON.parse(readFileSync(at("@engi-dev/ui").replace("dist/index.js", "package.json")))
console.log(typeof ui.mount, typeof ui.View, files.every((f) => existsSync(f)), "engi-dev-ui-" + version + ".tgz")`)
	if want := "function function true " + filepath.Base(packed) + "\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestPython(t *testing.T) {
	env.Slow(t)
	folder, wheel := dist(t, "engi-*.whl")
	venv, err := filepath.Abs("py/.venv/bin")
	if err != nil {
		t.Fatal(err)
	}
	uvx := filepath.Join(venv, "uvx")
	if _, err := os.Stat(uvx); err != nil {
		env.Need(t, "uv in test/e2e/packaging/py/.venv (make packages)")
	}
	version := strings.Split(filepath.Base(wheel), "-")[1]
	p := clean(t)
	p.first(uvx, "--offline", "--no-index", "--find-links", folder, "--from", "engi=="+version, "engi")
	p.must(filepath.Join(venv, "python"), "-m", "pip", "install", "--quiet", "--no-index", "--target", filepath.Join(p.dir, "target"), wheel)
	p.first(filepath.Join(p.dir, "target", "bin", "engi"))
}

func TestDebian(t *testing.T) {
	env.Slow(t)
	_, deb := dist(t, "engi_*.deb")
	roots, err := filepath.Glob(filepath.Join(os.Getenv("ENGI_TEST_TEMPLATES"), "builds", "*", "root", "usr", "bin", "dpkg"))
	if err != nil || len(roots) == 0 {
		env.Need(t, "the template base in ENGI_TEST_TEMPLATES (make template)")
	}
	p := clean(t)
	// A separate Debian, in which only copies are written.
	root := filepath.Join(p.dir, "root")
	from := ""
	for _, r := range roots {
		r = strings.TrimSuffix(r, "/usr/bin/dpkg")
		if _, err := os.Stat(filepath.Join(r, "usr/local/go")); err != nil || from == "" {
			from = r // the smaller, the sooner
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.must("cp", "-a", "/dev/null", filepath.Join(root, "dev"))
	for _, d := range []string{"bin", "sbin", "lib", "lib64", "etc", "usr", "var"} {
		if _, err := os.Lstat(filepath.Join(from, d)); err == nil {
			p.must("cp", "-a", filepath.Join(from, d), root)
		}
	}
	p.must("cp", deb, filepath.Join(root, "engi.deb"))
	in := func(args ...string) string {
		return p.must("chroot", append([]string{root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, args...)...)
	}
	in("dpkg", "-i", "/engi.deb")
	in("dpkg", "--verify", "engi")
	if out := in("engi", "version"); !strings.Contains(out, "engi ") {
		t.Errorf("version: %q", out)
	}
	if out := in("engi", "config", "show", "data_dir"); strings.TrimSpace(out) != "/var/lib/engi" {
		t.Errorf("data_dir: %q", out)
	}
	if verify, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is missing: the units are not verified")
	} else {
		for _, unit := range []string{"system/engi.service", "user/engi.service"} {
			args := []string{"verify", "--man=no"}
			if strings.HasPrefix(unit, "user") {
				args = append(args, "--user")
			}
			cmd := exec.CommandContext(t.Context(), verify, append(args, unitOf(t, root, p.dir, unit))...)
			cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+p.dir)
			out, err := cmd.CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%s: %v\n%s", unit, err, out)
			}
		}
	}
	p.first(filepath.Join(root, "usr/bin/engi"))
	// An upgrade and a removal keep the configuration, a purge does not.
	config := filepath.Join(root, "etc/engi/config.toml")
	if err := os.WriteFile(config, []byte("listen = \"127.0.0.1:1\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	in("dpkg", "--force-confold", "-i", "/engi.deb")
	in("dpkg", "-r", "engi")
	if text, err := os.ReadFile(config); err != nil || !strings.Contains(string(text), ":1") {
		t.Errorf("the configuration is %q, %v", text, err)
	}
	in("dpkg", "--purge", "engi")
	for _, left := range []string{"usr/bin/engi", "etc/engi", "usr/lib/systemd/system/engi.service", "var/cache/engi"} {
		if _, err := os.Stat(filepath.Join(root, left)); err == nil {
			t.Errorf("a purge leaves /%s", left)
		}
	}
}

// unitOf copies a unit to dir and replaces its program by the one in root.
func unitOf(t *testing.T, root, dir, unit string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd", unit))
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, filepath.Dir(unit), "engi.service")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("=/usr/bin/engi"), []byte("="+filepath.Join(root, "usr/bin/engi")))
	if err := os.WriteFile(at, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestReproducible builds the packages again: the result has the same bytes.
func TestReproducible(t *testing.T) {
	env.Slow(t)
	folder, deb := dist(t, "engi_*.deb")
	_, binary := dist(t, "engi-linux-*[0-9]")
	describe := os.Getenv("ENGI_TEST_VERSION")
	if describe == "" {
		env.Need(t, "the version of the release in ENGI_TEST_VERSION")
	}
	p := clean(t)
	arch := strings.TrimSuffix(deb[strings.LastIndex(deb, "_")+1:], ".deb")
	p.vars = append(p.vars, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	script, err := filepath.Abs("../../../.ci/package")
	if err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(p.dir, "again")
	for _, name := range strings.Fields(p.must(script, binary, arch, describe, again)) {
		a, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(again, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is another one when it is made again", name)
		}
	}
}
