package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/node/config"
)

// machine are keys whose defaults depend on the machine and the user.
var machine = map[string]string{
	"data_dir":        "`/var/lib/engi`, or `~/.local/share/engi` for users",
	"cache_dir":       "`/var/cache/engi`, or `~/.cache/engi` for users",
	"admission.boots": "one per processor",
}

func configPage() string {
	var b strings.Builder
	b.WriteString(`# Configuration

This page is made from the program: ` + "`go test ./cmd/engi -run TestDocs -update`" + `.

engi needs no configuration. What is chosen is looked up in this order, and each wins over those before: defaults; the file
` + "`config.toml`" + ` in the data directory, else ` + "`/etc/engi/config.toml`" + `, or the one named by ` + "`--config`" + `; environment variables; flags.
` + "`engi config show`" + ` prints what is in force, where each value is from, as a valid file. Unknown keys are errors, with the nearest
known one. Every key can be set on a command line with ` + "`--set KEY=VALUE`" + `; tables, which have no variable, in TOML.

Sizes are numbers of bytes or strings like ` + "`\"512MiB\"`" + `, durations strings like ` + "`\"30s\"`" + ` or ` + "`\"7d\"`" + `. A limit of 0 means its default.

| Key | Environment | Default | Meaning |
|---|---|---|---|
`)
	c := config.Defaults()
	for _, k := range config.Keys(&c) {
		def := machine[k.Name]
		if def == "" {
			def = "`" + literal(k.Value) + "`"
			if _, ok := k.Value.Interface().([]config.Pool); ok {
				def = "see below"
			}
		}
		help, _, _ := strings.Cut(k.Help, "; in the environment:")
		variable := "-"
		if k.Variable != "" {
			variable = "`" + k.Variable + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, variable, def, help)
	}
	b.WriteString(`
## Pools

By default two Python interpreters wait (more on machines with more processors), one each for JavaScript, TypeScript, Go
and bash, and one bare sandbox. A file's pools replace all of these:

` + "```toml" + `
[[pools]]
template = ""              # empty is the default template
language = "python"        # empty is a bare sandbox
target = 4                 # warm sandboxes
max = 16                   # sandboxes at most, used ones included; 0 is no limit of its own
on_empty = "wait"          # wait, boot_sync or reject; empty is admission.on_empty
claim_timeout = "10s"      # for wait; 0 is admission.claim_timeout
` + "```" + `

A pool keeps more than its target while more than that are taken in the time that one takes to boot, up to eight for each of
` + "`admission.boots`" + `, and for half a minute after.

In the environment and in flags: ` + "`ENGI_POOLS=python=4:16,base/bash=2`" + `, or ` + "`none`" + `.

## Other variables

| Variable | Meaning |
|---|---|
| ` + "`ENGI_URL`, `ENGI_KEY`" + ` | the server that commands use |
| ` + "`ENGI_CONFIG`" + ` | the configuration file |
| ` + "`ENGI_SECRET_KEY`" + ` | the key that secrets are encrypted with, instead of the file ` + "`secret.key`" + ` in the data directory |
`)
	return b.String()
}

// TestPagesNameTestsThatExist keeps tables honest: a test that a page names, by function
// or by the name of an attack, is there, and each row of the tables about apps names one.
func TestPagesNameTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, pattern := range []string{"../../*/*_test.go", "../../*/*/*_test.go", "../../*/*/*/*_test.go", "../../*/*/*/*/*_test.go", "../../*/*/*/*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(src)
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	name, rows := regexp.MustCompile("`(Test[A-Za-z0-9]+)`"), 0
	for _, file := range pages {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(tests.String(), "func "+m[1]+"(t *testing.T)") {
				t.Errorf("%s: there is no test %s", file, m[1])
			}
		}
		of := false // a table with a column for tests
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			switch {
			case !strings.HasPrefix(line, "|"):
				of = false
			case filepath.Base(file) == "apps.md" && strings.HasSuffix(line, "| Test |"):
				of = true
			case of && !strings.HasPrefix(line, "|-"):
				rows++
				cells := strings.Split(line, "|")
				if !name.MatchString(cells[len(cells)-2]) {
					t.Errorf("%s: no test is named in %s", file, line)
				}
			}
		}
	}
	if len(name.FindAllString(string(page), -1)) < 8 || rows < 10 {
		t.Errorf("the page on security names too few tests, or the tables have too few rows: %d", rows)
	}
	for _, attack := range []string{
		"fork bomb", "thread bomb", "memory bomb", "memory bomb in a temporary file system", "disk filling", "inode filling", "open files",
		"endless output", "a million artifacts are bounded", "an artifact over the limit stays", "there is no network",
		"raw and packet sockets are refused", "endless loop", "endless loop that ignores signals", "a program that stops itself",
		"daemon that outlives its parent", "links in artifacts show nothing", "posing as the guest", "flooding the guest's channel",
		"huge arguments and environment", "binary output comes back byte for byte",
	} {
		if !strings.Contains(string(page), attack) || !strings.Contains(tests.String(), `name: "`+attack+`"`) {
			t.Errorf("attack %q is not both on the page and among the tests", attack)
		}
	}
}

// TestCommandsOfPagesParse reads the commands of engi in the blocks of all pages, also
// those that need a service of somebody else and cannot be run here: there are such
// commands, flags and arguments.
func TestCommandsOfPagesParse(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`(?m)(?:^(?:\$ )?|[(|;&] ?|[A-Z]=\S+ )(?:bin/)?engi ((?:\$\([^)]*\)|[^\n"'|;&<>()#]|"[^"]*"|'[^']*')*)`)
	words := regexp.MustCompile(`(?:\$\([^)]*\)|[^\s"']|"[^"]*"|'[^']*')+`)
	redirects := regexp.MustCompile(` [0-9]>\S+`)
	n := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)```(?:sh|console)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			block := redirects.ReplaceAllString(strings.ReplaceAll(block[1], "\\\n", " "), "")
			for _, call := range calls.FindAllStringSubmatch(block, -1) {
				args := words.FindAllString(call[1], -1)
				for i, a := range args {
					args[i] = strings.NewReplacer(`"`, "", "'", "").Replace(a)
				}
				parser, err := newParser(new(commands), io.Discard, io.Discard, func(int) {})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := parser.Parse(args); err != nil {
					t.Errorf("%s: engi %s: %v", filepath.Base(page), call[1], err)
				}
				n++
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d commands were found", n)
	}
}

// TestCommandsOfRemediesParse reads the commands that errors and pages tell people to use,
// in all of the source.
func TestCommandsOfRemediesParse(t *testing.T) {
	// Quoted in what errors say, and after a colon in what pages of previews do.
	calls := regexp.MustCompile(`'engi ([^'\n]+)'|: engi ([^"\n]*?)[.,]?(?: with [^"]*)?"`)
	fill := strings.NewReplacer("%.70s", "X", "%.80s", "X", "%s", "X", "%d", "1", "%q", "X", "%v", "X", "PORT", "1", `\"`, "", "…", "x", "...", "x")
	n := 0
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "test" || d.Name() == "tools"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			for _, m := range calls.FindAllStringSubmatch(line, -1) {
				call := fill.Replace(m[1] + m[2])
				parser, err := newParser(new(commands), io.Discard, io.Discard, func(int) {})
				if err != nil {
					return err
				}
				if strings.HasPrefix(call, "X ") || strings.HasSuffix(call, "--help") {
					continue // of whatever command it is
				}
				// Arguments and parts of commands may be left out.
				if _, err := parser.Parse(strings.Fields(call)); err != nil && !strings.HasPrefix(err.Error(), `expected "<`) && !strings.HasPrefix(err.Error(), "expected one of") {
					t.Errorf("%s: engi %s: %v", path, call, err)
				}
				n++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Errorf("only %d commands were found", n)
	}
}
