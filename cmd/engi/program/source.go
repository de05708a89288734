// Package program reads and writes the files of "engi run" on the caller's disk:
// the files of a program, whose language it guesses, and the artifacts of
// a result, which cannot be written outside of their directory.
package program

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Limits on the files read, so that a mistake like "engi run /" fails soon. The
// server has its own limits.
const (
	maxFiles = 10_000
	maxBytes = 256 << 20
)

var extensions = map[string]engi.Language{
	".py": engi.Python, ".pyw": engi.Python,
	".js": engi.JavaScript, ".mjs": engi.JavaScript, ".cjs": engi.JavaScript,
	".ts": engi.TypeScript, ".mts": engi.TypeScript, ".cts": engi.TypeScript, ".tsx": engi.TypeScript,
	".go": engi.Go,
	".sh": engi.Bash, ".bash": engi.Bash,
}

var interpreters = map[string]engi.Language{
	"python": engi.Python, "python3": engi.Python, "node": engi.JavaScript, "nodejs": engi.JavaScript,
	"deno": engi.TypeScript, "tsx": engi.TypeScript, "ts-node": engi.TypeScript, "bash": engi.Bash, "sh": engi.Bash,
}

var names = map[string]engi.Language{
	"py": engi.Python, "python3": engi.Python, "js": engi.JavaScript, "node": engi.JavaScript,
	"ts": engi.TypeScript, "deno": engi.TypeScript, "golang": engi.Go, "sh": engi.Bash, "shell": engi.Bash,
}

// Guess returns the language of a file by its name or its first line, or "" if
// neither determines it.
func Guess(name string, content []byte) engi.Language {
	if l, ok := extensions[strings.ToLower(filepath.Ext(name))]; ok {
		return l
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	words := strings.Fields(string(rest))
	for len(words) > 0 {
		base := path.Base(words[0])
		if l, ok := interpreters[base]; ok {
			return l
		}
		if l, ok := interpreters[strings.TrimRight(base, "0123456789.")]; ok {
			return l
		}
		// "env -S node --flag": skip env, its flags and assignments.
		if base != "env" && !strings.HasPrefix(base, "-") && !strings.Contains(words[0], "=") {
			return ""
		}
		words = words[1:]
	}
	return ""
}

// Language returns the language of a name, which may be an alias.
func Language(name string) (engi.Language, error) {
	l := engi.Language(strings.ToLower(name))
	if other, ok := names[string(l)]; ok {
		l = other
	}
	if !slices.Contains(engi.Languages(), l) {
		return "", engi.Errorf(engi.Invalid, "language %.40q is not supported", name).WithRemedy("use one of %v", engi.Languages())
	}
	return l, nil
}

// entries holds the file names that are tried in order to run a directory.
var entries = map[engi.Language][]string{
	engi.Python:     {"main.py", "__main__.py", "app.py"},
	engi.JavaScript: {"main.js", "index.js", "main.mjs", "index.mjs"},
	engi.TypeScript: {"main.ts", "index.ts", "mod.ts"},
	engi.Go:         {"main.go"},
	engi.Bash:       {"main.sh", "run.sh"},
}

// A Source is the source of a program: Code, or a file or directory at Path.
type Source struct {
	Path     string
	Code     string
	Language string   // language; empty means that it is guessed
	Entry    string   // file to run in a directory
	Extra    []string // further files: PATH or PATH=NAME

	// Left receives directories that are not sent; may be nil.
	Left func(dir string)
}

// Request reads the program into a request. It reports Invalid if there is no
// program to run.
func (s Source) Request() (req v1.ExecutionRequest, err error) {
	var lang engi.Language
	if s.Language != "" {
		if lang, err = Language(s.Language); err != nil {
			return req, err
		}
	}
	c := collector{seen: map[string]bool{}, left: s.Left}
	base := ""
	if s.Path != "" {
		if base, lang, err = s.read(&c, lang); err != nil {
			return req, err
		}
		req.Entry = s.entry(&c, lang)
	} else {
		req.Code = s.Code
	}
	if lang == "" && s.Code != "" {
		lang = Guess("", []byte(s.Code))
	}
	if lang == "" {
		return req, engi.Errorf(engi.Invalid, "cannot tell the program's language").WithRemedy("name the language with --lang: one of %v", engi.Languages())
	}
	req.Language = string(lang)
	for _, e := range s.Extra {
		if err := c.extra(e, base); err != nil {
			return req, err
		}
	}
	if len(c.files) > 1 && req.Code == "" && req.Entry == "" {
		return req, engi.Errorf(engi.Invalid, "which file of %s is to be run?", s.Path).
			WithRemedy("name the file with --entry; without it, %s looks for %v", lang, entries[lang])
	}
	req.Files = c.files
	return req, nil
}

// read reads the program at s.Path and returns its language and the directory to which its
// files are relative.
func (s Source) read(c *collector, lang engi.Language) (string, engi.Language, error) {
	info, err := os.Stat(s.Path)
	if err != nil {
		return "", "", engi.Errorf(engi.Invalid, "%v", err).WithRemedy("give code with -c")
	}
	if info.IsDir() {
		if err := c.tree(s.Path, ""); err != nil {
			return "", "", err
		}
		if len(c.files) == 0 {
			return "", "", engi.Errorf(engi.Invalid, "directory %s holds no files", s.Path)
		}
		if lang == "" {
			lang = c.guess(s.Entry)
		}
		return s.Path, lang, nil
	}
	if err := c.file(s.Path, filepath.Base(s.Path)); err != nil {
		return "", "", err
	}
	if lang == "" {
		f := c.files[0]
		lang = Guess(f.Path, []byte(f.Content))
	}
	return filepath.Dir(s.Path), lang, nil
}

// entry returns the file to run; empty if the server chooses it.
func (s Source) entry(c *collector, lang engi.Language) string {
	if s.Entry != "" {
		return path.Clean(filepath.ToSlash(s.Entry))
	}
	if len(c.files) == 1 {
		return c.files[0].Path
	}
	for _, name := range entries[lang] {
		if c.seen[name] {
			return name
		}
	}
	return ""
}

// A collector gathers files, within limits.
type collector struct {
	files []v1.File
	seen  map[string]bool // by path
	bytes int64
	left  func(dir string)
}

// guess returns the language of a directory by its entry, or the only language
// that has an entry there.
func (c *collector) guess(entry string) engi.Language {
	if entry != "" {
		return Guess(entry, nil)
	}
	if c.seen["go.mod"] {
		return engi.Go
	}
	var found engi.Language
	for _, l := range engi.Languages() {
		if slices.ContainsFunc(entries[l], func(name string) bool { return c.seen[name] }) {
			if found != "" {
				return "" // the language is ambiguous
			}
			found = l
		}
	}
	return found
}

// extra adds PATH or PATH=NAME. Without NAME a file keeps its place relative
// to the program's directory or to the current one, else only its last name.
func (c *collector) extra(arg, base string) error {
	from, name := arg, ""
	if _, err := os.Stat(arg); err != nil {
		if i := strings.LastIndexByte(arg, '='); i > 0 {
			from, name = arg[:i], filepath.ToSlash(arg[i+1:])
			if name = path.Clean(name); !fs.ValidPath(name) || name == "." {
				return engi.Errorf(engi.Invalid, "%.200q is not a valid name in the sandbox", arg[i+1:]).WithRemedy("give a relative path without ..")
			}
		}
	}
	info, err := os.Stat(from)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	if name == "" {
		name = placeOf(from, base)
	}
	if info.IsDir() {
		return c.tree(from, name)
	}
	return c.file(from, name)
}

func placeOf(file, base string) string {
	for _, dir := range []string{base, "."} {
		a, errA := filepath.Abs(dir)
		b, errB := filepath.Abs(file)
		if errA != nil || errB != nil {
			continue
		}
		if rel, err := filepath.Rel(a, b); err == nil && filepath.IsLocal(rel) && rel != "." {
			return filepath.ToSlash(rel)
		}
	}
	return filepath.Base(file)
}

// Directories that are sent only if they are named: those that no
// program needs, and packages, which are built for the machine that
// they are on.
var (
	skipped  = []string{".git", ".hg", ".svn", "__pycache__"}
	packages = []string{"node_modules", ".venv"}
)

func (c *collector) tree(dir, prefix string) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
		if e.IsDir() {
			switch {
			case file == dir:
			case slices.Contains(packages, e.Name()):
				if c.left != nil {
					c.left(file)
				}
				return fs.SkipDir
			case slices.Contains(skipped, e.Name()):
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
		info, err := os.Stat(file) // Stat follows links
		if err != nil || !info.Mode().IsRegular() {
			return nil // skip dangling links, sockets and directories behind links
		}
		return c.file(file, path.Join(prefix, filepath.ToSlash(rel)))
	})
}

func (c *collector) file(from, name string) error {
	if c.seen[name] {
		return engi.Errorf(engi.Invalid, "two files would be %.200q in the sandbox", name).WithRemedy("give one another name with -f PATH=NAME")
	}
	info, err := os.Stat(from)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	if !info.Mode().IsRegular() {
		return engi.Errorf(engi.Invalid, "%s is not a regular file", from)
	}
	if c.bytes += info.Size(); c.bytes > maxBytes || len(c.files) >= maxFiles {
		return engi.Errorf(engi.Invalid, "the program has more than %d MiB or %d files", maxBytes>>20, maxFiles).
			WithRemedy("run a smaller directory, or build a template with the data")
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	f := v1.File{Path: name, Mode: v1.Mode(info.Mode().Perm() | 0o400)}
	if utf8.Valid(data) {
		f.Content = string(data)
	} else {
		f.ContentBase64 = data
	}
	c.files = append(c.files, f)
	c.seen[name] = true
	return nil
}
