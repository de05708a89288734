package recipe

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func container(t *testing.T, name string) Definition {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/devcontainers", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDevcontainer(t *testing.T) {
	own := func(run string) Command { return Command{Run: run, Own: true} }
	text := func(s string) *string { return &s }
	for name, want := range map[string]Definition{
		"plain":     {Base: "image:debian:bookworm", WorkDir: "/workspaces/plain"},
		"comments":  {Base: "image:mcr.microsoft.com/devcontainers/python:1-3.12-bookworm", WorkDir: "/workspaces/comments", User: "vscode", Ports: []int{8000, 5432}},
		"duplicate": {Base: "image:debian:bookworm", WorkDir: "/workspaces/duplicate", User: "two"},
		"arrays": {Base: "image:node:22", WorkDir: "/workspaces/arrays", Commands: []Command{
			own("'sh' '-c' 'echo one > /tmp/one'"), own(`'npm' 'ci' '--prefix' 'a dir with '\''quotes'\'' and $dollars'`), own("'true'"),
		}},
		"all-commands": {
			Base: "image:registry.example:5000/team/app@sha256:4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8", WorkDir: "/workspaces/all-commands",
			Commands: []Command{own("echo first"), own("echo second"), own("echo third")}, Start: "npx vite --host",
		},
		"env": {
			Base: "image:debian:bookworm", WorkDir: "/workspaces/env",
			Env:       map[string]string{"WHERE": "/workspaces/env/src", "NAME": "env", "UNSET": "", "OTHER": "other", "KEPT": "$HOME ${HOME} ${unknown:x}"},
			RemoteEnv: map[string]*string{"PATH": text("${containerEnv:PATH}:/opt/bin"), "PLAIN": text("1"), "LOCAL": text("/workspaces/env/x")},
			Warnings:  []string{"line 3: ${localEnv:ENGI_SURELY_UNSET} is empty: there is no local machine"},
		},
		"folder": {
			Base: "image:debian:bookworm", WorkDir: "/srv/folder/code", Commands: []Command{own("ls /srv/folder/code code")},
			Warnings: []string{`line 1: "workspaceMount" has no effect: no folder of this machine is in a sandbox`},
		},
		"ports": {Base: "image:debian:bookworm", WorkDir: "/workspaces/ports", Ports: []int{3000, 4000, 5000, 6000}},
		"features": {
			Base: "image:debian:bookworm", WorkDir: "/workspaces/features", User: "dev",
			Packages: []string{"bash", "ca-certificates", "curl", "fd-find", "git", "jq", "less", "nano", "nodejs", "npm", "procps", "ripgrep", "rsync", "sudo", "unzip", "vim-tiny", "wget", "xz-utils", "zip"},
			Files:    []File{{Path: "/etc/sudoers.d/dev", Content: "dev ALL=(root) NOPASSWD:ALL\n", Mode: 0o440}},
		},
		"container-user": {Base: "image:debian:bookworm", WorkDir: "/workspaces/container-user", User: "builder"},
		"requirements":   {Base: "image:debian:bookworm", WorkDir: "/workspaces/requirements", Size: engi.Size{VCPUs: 4, Memory: 8 << 30, Disk: 32 << 30}},
		"unknown": {
			Base: "image:debian:bookworm", WorkDir: "/workspaces/unknown",
			Warnings: []string{
				`line 3: unknown property "postCreateComand"; is it "postCreateCommand"?`,
				`line 4: "privileged" has no effect: no sandbox is`,
				`line 5: "mounts" has no effect: sandboxes have volumes, which are named when they are created`,
				`line 6: "runArgs" has no effect: there is no Docker`,
				`line 7: "initializeCommand" has no effect: nothing runs on this machine`,
			},
		},
		"nulls":   {Base: "image:debian:bookworm", WorkDir: "/workspaces/nulls", Env: map[string]string{}, RemoteEnv: map[string]*string{"GONE": nil, "HERE": text("")}},
		"windows": {Base: "image:debian:bookworm", WorkDir: "/workspaces/windows", Commands: []Command{own(`echo é✓ é \ "q"`)}},
	} {
		if d := cmp.Diff(want, container(t, name)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestDevcontainerCommands runs commands in the same way as a build.
func TestDevcontainerCommands(t *testing.T) {
	for _, test := range []struct{ command, out, fails string }{
		{command: `"echo one && echo two"`, out: "one\ntwo"},
		{command: `["printf", "%s|", "a b", "it's", "$HOME", "${containerEnv:PLACE}x"]`, out: "a b|it's|$HOME|here 'and there'x|"},
		{command: `"echo ${containerEnv:PLACE}"`, out: "here 'and there'"},
		{command: `{"a": "echo one > a; cat a", "b": ["sh", "-c", "while ! test -e a; do sleep 0.01; done"]}`, out: "one"},
		{command: `{"a": "exit 3", "b": "true"}`, fails: "exit status 3"},
		{command: `{"a": "true", "b": ["false"], "c": "true # a comment"}`, fails: "exit status 1"},
	} {
		d, err := Parse("x", []byte(`{"image": "a", "postCreateCommand": `+test.command+`}`))
		if err != nil || len(d.Commands) != 1 {
			t.Fatalf("%s: %+v, %v", test.command, d.Commands, err)
		}
		c := exec.Command("/bin/sh", "-ec", d.Commands[0].Run)
		c.Dir, c.Env = t.TempDir(), append(os.Environ(), "PLACE=here 'and there'")
		out, err := c.Output()
		if got := strings.TrimSpace(string(out)); err == nil && got != test.out || err != nil && err.Error() != test.fails || err == nil && test.fails != "" {
			t.Errorf("%s said %q, %v", test.command, got, err)
		}
	}
}

func TestRemoteEnv(t *testing.T) {
	d := container(t, "env")
	gone := "${containerEnv:NOPE:else}${containerEnv:NOPE}"
	d.RemoteEnv["GONE"], d.RemoteEnv["ELSE"] = nil, &gone
	env := map[string]string{"PATH": "/bin", "GONE": "1", "PLAIN": "0"}
	if err := d.ExpandRemote(env); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"PATH": "/bin:/opt/bin", "PLAIN": "1", "LOCAL": "/workspaces/env/x", "ELSE": "else"}, env); diff != "" {
		t.Error(diff)
	}
}

func TestBadDevcontainers(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "no 'image'",
		"{\n\"build\": {\"dockerfile\": \"Dockerfile\"}}":                                              "line 2: \"build\" cannot be used: nothing here runs a Dockerfile",
		`{"dockerComposeFile": "a.yml", "service": "x"}`:                                               "is one container",
		"{\"image\": \"a\",\n\"features\": {\n\"ghcr.io/x/docker-in-docker:2\": {}}}":                  "line 3: feature",
		`{"image": "a", "features": {"ghcr.io/devcontainers/features/python:1": {"version": "3.13"}}}`: "one version only",
		"{\"image\": \"a\",\n\n\"forwardPorts\": [\"x\"]}":                                             "line 3: \"x\" is not a port",
		"{\"image\": \"a\", \"forwardPorts\": [70000]}":                                                "not a port",
		"{\"image\": \"a\",\n \"remoteUser\": 5}":                                                      "line 2: this must be text",
		"{\"image\": \"a\", \"remoteUser\": \"1000\"}":                                                 "not a user name",
		"{\"image\": \"a\",\n \"postCreateCommand\": 5}":                                               "line 2: a command",
		"{\"image\": \"a\", \"postCreateCommand\": {\"a\": {}}}":                                       "text or a list",
		"{\"image\": \"a\", \"remoteEnv\": {\"A=B\": \"\"}}":                                           "not an environment variable",
		"{\"image\": \"a\", \"workspaceFolder\": \"rel\"}":                                             "absolute",
		"{\"image\": \"a\", \"workspaceFolder\": \"/proc/x\"}":                                         "cannot be in /proc",
		"{\"image\": \"a b\"}":                                                                         "is not an image",
		"{\"image\": \"a\",\n \"x\" 5}":                                                                "line 2: this is not JSON",
		"{\"image\": \"a\",\n":                                                                         "ends too early",
		"{\"image\": \"a\"} {}":                                                                        "there is text after the object",
	} {
		_, err := Parse("x", []byte(text))
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	// A definition in JSON is not a devcontainer.json.
	if d, err := Parse("x", []byte(`{"base": "debian:bookworm", "ports": [80]}`)); err != nil || d.Base != "debian:bookworm" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := Parse("x", []byte("{base: tar:a.tar, # in YAML\n}")); err != nil || d.Base != "tar:a.tar" {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestLargeDevcontainers reads files of the maximum size that would
// become far larger when expanded.
func TestLargeDevcontainers(t *testing.T) {
	many := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < 120<<10; i++ {
			b.WriteString(strings.ReplaceAll(format, "#", strconv.Itoa(i)))
		}
		return b.String()
	}
	folder := "/" + strings.Repeat("f", maxFolder-1)
	for name, test := range map[string]struct{ text, want string }{
		"unknown properties": {text: `{` + many("\"x#\": 1,\n") + `"image": "a"}`},
		"variables":          {text: `{"image": "a", "workspaceFolder": "` + folder + `", "containerEnv": {"A": "` + many("${localWorkspaceFolder}") + `"}}`},
		"long folder":        {text: `{"image": "a", "workspaceFolder": "/` + many("f") + `", "containerEnv": {"A": "` + many("${localWorkspaceFolder}") + `"}}`, want: "folder's path"},
		"remote variables":   {text: `{"image": "a", "containerEnv": {"A": "` + many("a") + `"}, "remoteEnv": {"B": "` + many("${containerEnv:A}") + `"}}`, want: "become longer"},
	} {
		if len(test.text) > maxDefinition {
			t.Fatalf("%s has %d bytes", name, len(test.text))
		}
		var err error
		allocated := testing.Benchmark(func(b *testing.B) {
			for range b.N {
				var d Definition
				if d, err = Parse("x", []byte(test.text)); err == nil {
					err = d.ExpandRemote(maps.Clone(d.Env))
				}
			}
		}).AllocedBytesPerOp()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		// The bound is four times the measured value; without bounds it would be ten thousand times the value.
		if most := int64(600 * len(test.text)); allocated > most {
			t.Errorf("%s: reading %d bytes takes %d", name, len(test.text), allocated)
		}
	}
}

func FuzzDevcontainer(f *testing.F) {
	files, err := filepath.Glob("testdata/devcontainers/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no definitions: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		plain := plainJSON(text)
		if len(plain) != len(text) || strings.Count(string(plain), "\n") != strings.Count(string(text), "\n") {
			t.Error("without comments, it has other lines")
		}
		d, err := parseDevcontainer("x", plain)
		if err != nil && !engi.Is(err, engi.Invalid) {
			t.Errorf("kind %s: %v", engi.KindOf(err), err)
		}
		if err != nil {
			return
		}
		if !strings.HasPrefix(d.Base, "image:") || slices.ContainsFunc(d.Commands, func(c Command) bool { return !c.Own || c.User != "" }) {
			t.Errorf("%+v", d)
		}
		if err := engi.Ignore(d.ExpandRemote(map[string]string{"PATH": "/bin"}), engi.Invalid); err != nil {
			t.Errorf("kind %s: %v", engi.KindOf(err), err)
		}
	})
}
