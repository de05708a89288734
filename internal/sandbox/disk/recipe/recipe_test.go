package recipe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestDefinitionReadsEverythingPeopleWrite(t *testing.T) {
	got, err := Parse("mine", []byte(`
name: mine
base: debian:bookworm
mirror: https://mirror.example/debian
version: 7
packages: [git, libstdc++6, python3=3.11.2-1]
go: 1.26
files:
  - {path: /etc/motd, content: "hello\n"}
  - {path: /opt/tool, source: tool, mode: 0755, owner: user}
  - {path: /opt/other, content: "", mode: "0o600"}
commands:
  - apt-get update
  - run: make
    user: user
    dir: /opt
env: {A: "1"}
user: user
working_dir: /code
default_shell: /bin/dash
ports: [80]
resources: {vcpus: 0.5, memory: 512MiB, disk: 10GB, inodes: 9, processes: 8, open_files: 7}
languages: {python: /usr/bin/python3, bash: ""}
warm: []
docs: true
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Definition{
		Base: "debian:bookworm", Mirror: "https://mirror.example/debian", Version: "7",
		Packages: []string{"git", "libstdc++6", "python3=3.11.2-1"},
		Go:       &Toolchain{Version: "1.26"},
		Files: []File{
			{Path: "/etc/motd", Content: "hello\n", Mode: 0o644},
			{Path: "/opt/tool", Source: "tool", Mode: 0o755, Owner: "user"},
			{Path: "/opt/other", Mode: 0o600},
		},
		Commands: []Command{{Run: "apt-get update"}, {Run: "make", User: "user", Dir: "/opt"}},
		Env:      map[string]string{"A": "1"}, User: "user", WorkDir: "/code", Shell: "/bin/dash", Ports: []int{80},
		Size:      engi.Size{VCPUs: 0.5, Memory: 512 << 20, Disk: 10e9, Inodes: 9, Processes: 8, OpenFiles: 7},
		Languages: map[engi.Language]string{engi.Python: "/usr/bin/python3", engi.Bash: ""},
		Warm:      []engi.Language{}, Docs: true,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDefinitionTakesSeveralTemplates(t *testing.T) {
	text := []byte(`
templates:
  python-dev:
    base: ubuntu-22.04
    packages:
      - python3.11
      - git
    default_shell: /bin/bash
    working_dir: /workspace
    resources:
      vcpus: 2
      memory_mb: 2048
      disk_gb: 10
  web:
    base: ubuntu-22.04
    expose_ports: [3000, 5173, 8080]
`)
	d, err := Parse("python-dev", text)
	if err != nil {
		t.Fatal(err)
	}
	if want := (engi.Size{VCPUs: 2, Memory: 2 << 30, Disk: 10 << 30}); d.Size != want {
		t.Errorf("size %+v, want %+v", d.Size, want)
	}
	if d, err = Parse("web", text); err != nil || !slices.Equal(d.Ports, []int{3000, 5173, 8080}) {
		t.Errorf("ports %v, %v", d.Ports, err)
	}
	if _, err := Parse("other", text); err == nil || !strings.Contains(err.Error(), "python-dev, web") {
		t.Errorf("unknown template: %v", err)
	} else if !strings.Contains(engi.RemedyOf(err), "--as NAME") {
		t.Errorf("remedy %q does not say how to choose one", engi.RemedyOf(err))
	}
}

func TestDefinitionErrorsHelp(t *testing.T) {
	tests := []struct{ text, want, remedy string }{
		{"base: debian:bookworm\npakages: [a]\n", `line 2: unknown key "pakages"`, `did you mean "packages"?`},
		{"base: x\nfiles:\n- path: /a\n  contnt: b\n", `line 4: unknown key "contnt"`, `did you mean "content"?`},
		{"base: x\ncommands:\n- rn: c", `line 3: unknown key "rn"`, `did you mean "run"?`},
		{"base: x\nresources:\n  memry: 1", `line 3: unknown key "memry"`, `did you mean "memory"?`},
		{"base: x\ngo:\n  vrsion: 1.26", `line 3: unknown key "vrsion"`, `did you mean "version"?`},
		{"base: x\nzzzzzzzzzz: 1", `line 2: unknown key "zzzzzzzzzz"`, "the keys of a template are name, base"},
		{"base: x\nbase: y", "line 2:", ""},
		{"base: [x]", "line 1: this value must be text", ""},
		{"base: x\npackages: git", "line 2: string was used where sequence", ""},
		{"base: x\nports: [a]", "line 2: this value must be a whole number", ""},
		{"base: x\nresources: {vcpus: two}", "line 2: this value must be a number", ""},
		{"base: x\nresources: 3", "line 2:", ""},
		{"- x", "line 1:", ""},
		{"base: x\nenv: *a", "line 2: aliases", ""},
		{"base: 'x", "line 1:", ""},
		{"", "empty", ""},
		{"packages: [a]", "'base' is missing", "debian:bookworm"},
		{"base: x\nname: other", `has the name "other", not "mine"`, ""},
		{"base: x\ntemplates: {mine: {base: y}}", "not both", ""},
		{"templates: {mine: {templates: {mine: {base: x}}}}", "'templates' in it", ""},
		{"base: x\npackages: ['-o=evil']", "not the name of a package", ""},
		{"base: x\npackages: ['a b']", "not the name of a package", ""},
		{"base: x\nmirror: 'http://x y [trusted=yes]'", "URL", ""},
		{"base: x\nmirror: 'file:///etc'", "URL", ""},
		{"base: x\nuser: 'a:b'", "user name", ""},
		{"base: x\nworking_dir: a", "absolute", ""},
		{"base: x\nworking_dir: /a/../b", "clean", ""},
		{"base: x\nworking_dir: /proc/1", "/proc", ""},
		{"base: x\nworking_dir: /.engi", "/.engi", ""},
		{"base: x\nfiles: [{path: /}]", "below /", ""},
		{"base: x\nfiles: [{path: /a}]", "'content' or 'source'", ""},
		{"base: x\nfiles: [{path: /a, content: x, source: y}]", "'content' or 'source'", ""},
		{"base: x\nfiles: [{path: /a, content: x, mode: 4755}]", "octal mode", ""},
		{"base: x\nfiles: [{path: /a, content: x, mode: rw}]", "octal mode", ""},
		{"base: x\ncommands: ['']", "command 1 is empty", ""},
		{"base: x\nenv: {'A=B': c}", "environment variable", ""},
		{"base: x\nports: [0]", "port", ""},
		{"base: x\nports: [1]\nexpose_ports: [1]", "use one", ""},
		{"base: x\nresources: {memory: 1, memory_mb: 1}", "use one", ""},
		{"base: x\nresources: {memory: lots}", "not a size", "512MiB"},
		{"base: x\nresources: {memory_mb: -1}", "negative", ""},
		{"base: x\nlanguages: [cobol]", "not a language", "python"},
		{"base: x\ngo: '../1.26'", "not a version of Go", ""},
		{"base: x\ngo: {version: 1.26.8, sum: {amd64: abc}}", "h1:", ""},
		{"base: x\nfiles: [{path: /a, content: '" + strings.Repeat("x", maxDefinition) + "'}]", "are allowed", ""},
	}
	for _, test := range tests {
		_, err := Parse("mine", []byte(test.text))
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("%.60q: error %v, want Invalid", test.text, err)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || !strings.Contains(engi.RemedyOf(err), test.remedy) {
			t.Errorf("%.60q: %q (%q), want %q (%q)", test.text, err, engi.RemedyOf(err), test.want, test.remedy)
		}
	}
}

func FuzzDefinition(f *testing.F) {
	files, err := filepath.Glob("../builtin/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no built-in definitions: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("templates:\n  x: {base: a, go: {version: 1.2}, languages: {python: ''}}\n"))
	f.Add([]byte("base: &a x\nname: *a\n"))
	f.Add([]byte("base: x\nfiles:\n !# a tag without a value"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse("x", text)
		if err != nil && !engi.Is(err, engi.Invalid) {
			t.Errorf("kind %s: %v", engi.KindOf(err), err)
		}
		if err == nil && d.Base == "" {
			t.Error("a definition without base")
		}
	})
}

func TestSteps(t *testing.T) {
	d, err := Parse("x", []byte(`
base: template:base
steps:
  - run: apt-get update
    user: root
  - copy: {from: ctx.tgz, source: "src/*", dest: ., mode: 0755}
  - env: {B: 2, A: one}
  - workdir: /app
  - user: user
start: serve
ready: curl localhost
kernels: [python, javascript]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Type: engi.StepRun, Args: []string{"apt-get update", "root"}},
		{Type: engi.StepCopy, Args: []string{"src/*", ".", "", "0755"}, Archive: "ctx.tgz"},
		{Type: engi.StepEnv, Args: []string{"A", "one", "B", "2"}},
		{Type: engi.StepWorkdir, Args: []string{"/app"}},
		{Type: engi.StepUser, Args: []string{"user"}},
	}
	if cmp.Diff(want, d.Steps) != "" || d.Start != "serve" || d.Ready != "curl localhost" || !slices.Equal(d.Kernels, []string{"python", "javascript"}) {
		t.Errorf("got %+v", d)
	}
	for text, words := range map[string]string{
		"steps: [{}]":                                             "0 of the keys",
		"steps: [{run: a, workdir: /b}]":                          "2 of the keys",
		"steps: [{copy: {source: a, dest: b}}]":                   "no archive",
		"steps: [{copy: {from: a, source: '['}}]":                 "source and a destination",
		"steps: [{copy: {from: a, source: '[', dest: b}}]":        "not a pattern",
		"steps: [{copy: {from: a, source: b, dest: c, mode: 9}}]": "octal",
		"steps: [{env: {'a b': c}}]":                              "environment variable",
		"steps: [{rum: a}]":                                       `unknown key "rum"`,
		"kernels: [cobol]":                                        "not a language",
		"steps: [" + strings.Repeat("{run: a},", 181) + "]":       "more than 180",
	} {
		_, err := Parse("x", []byte("base: template:base\n"+text+"\n"))
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
