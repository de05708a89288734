package guestd

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/guestd/warm"
	"github.com/engi-dev/engi/guest/wire"
)

// A Go program is built, then executed in place of the builder, so that exit
// code and signals are the program's own: go run would replace them.
const goScript = `go=$1 out=$2 target=$3
shift 3
GOTOOLCHAIN=local "$go" build -o "$out" "$target" || exit
exec "$out" "$@"`

// goStart returns how to build and run the package that entry is in.
func (s *Server) goStart(r *run, a *account, entry string, env map[string]string) (st warm.Start, err error) {
	defer engi.Annotate(&err, "go program")
	out := s.path("/tmp") + "/engi-" + r.ID
	if err := tree.MakeDirAll(filepath.Dir(out), tree.Nobody); err != nil {
		return st, err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return st, tree.Classify(err, "make directory", out)
	}
	r.scratch = append(r.scratch, out)
	if a.owner.UID >= 0 {
		if err := os.Lchown(out, a.owner.UID, a.owner.GID); err != nil {
			return st, tree.Classify(err, "give away", out)
		}
	}
	if err := s.ensureModule(r, a, entry); err != nil {
		return st, err
	}
	s.keepGoCache(a, env)
	target := "."
	if d := path.Dir(entry); d != "." {
		target = "./" + d
	}
	name := "main"
	args := []string{"/bin/sh", "-c", goScript, "engi", r.Interpreter, out + "/" + name, target}
	return warm.Start{Args: append(args, r.Args...), Env: env}, nil
}

// keepGoCache tells the go command that its cache was tidied just now. Once a
// day it looks at every file in there, and in a sandbox that lives for one
// program every day is the first: half a second of each run.
func (s *Server) keepGoCache(a *account, env map[string]string) {
	at := env["GOCACHE"]
	if at == "" {
		at = filepath.Join(a.Home, ".cache", "go-build")
	}
	dir, err := tree.OpenDir(at)
	if err != nil {
		return // no cache, nothing to tidy
	}
	defer dir.Close()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	// Without it the program is only slower.
	_, _ = dir.Create("trim.txt", 0o644, a.owner, strings.NewReader(now), int64(len(now)))
}

// ensureModule writes a go.mod if no directory from the entry's upwards to the
// working directory has one.
func (s *Server) ensureModule(r *run, a *account, entry string) error {
	for d := path.Dir(entry); ; d = path.Dir(d) {
		if _, err := os.Lstat(filepath.Join(a.WorkDir, d, "go.mod")); err == nil {
			return nil
		}
		if d == "." {
			break
		}
	}
	dir, err := tree.OpenDir(a.WorkDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	text := "module " + s.moduleName(r, a) + "\n"
	if v := goVersion(r.Interpreter); v != "" {
		text += "\ngo " + v + "\n"
	}
	stamp, err := dir.Create("go.mod", 0o644, a.owner, strings.NewReader(text), int64(len(text)))
	if err != nil {
		return err
	}
	r.known[a.WorkDir+"/go.mod"] = stamp
	return nil
}

// goVersion returns the language version of a toolchain, from the file every
// one carries; empty if it cannot be found.
func goVersion(interpreter string) string {
	bin, err := filepath.EvalSymlinks(interpreter)
	if err != nil {
		return ""
	}
	f, err := tree.OpenRegular(filepath.Join(filepath.Dir(filepath.Dir(bin)), "VERSION"))
	if err != nil {
		return ""
	}
	defer f.Close()
	var b [64]byte
	n, _ := f.Read(b[:])
	version, ok := strings.CutPrefix(string(b[:n]), "go1.")
	if !ok {
		return ""
	}
	minor := version[:len(version)-len(strings.TrimLeft(version, "0123456789"))]
	if minor == "" {
		return ""
	}
	return "1." + minor
}

// moduleName guesses the module's path from how the program imports its own
// packages: a program that has a directory util and imports "example/util" is
// module example. Without such imports it is main.
func (s *Server) moduleName(r *run, a *account) string {
	var dirs []string
	for _, f := range r.Files {
		for d := path.Dir(f.Path); d != "."; d = path.Dir(d) {
			if strings.HasSuffix(f.Path, ".go") && !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	if len(dirs) == 0 {
		return "main"
	}
	// The longest directory first: of "x/a/b" the prefix before "a/b" is meant.
	slices.SortFunc(dirs, func(x, y string) int { return len(y) - len(x) })
	for _, f := range r.Files {
		if !strings.HasSuffix(f.Path, ".go") || f.Size > 1<<20 {
			continue
		}
		file, err := tree.OpenBelow(a.WorkDir, f.Path)
		if err != nil {
			continue
		}
		text := make([]byte, f.Size)
		n, _ := file.Read(text)
		file.Close()
		// Strings alone on a line or after a name are what imports look like; a
		// parser would cost this program more memory than a wrong guess costs.
		for line := range strings.Lines(string(text[:n])) {
			_, quoted, _ := strings.Cut(line, `"`)
			name, _, ok := strings.Cut(quoted, `"`)
			for _, d := range dirs {
				if prefix, found := strings.CutSuffix(name, "/"+d); ok && found && prefix != "" && wire.CheckRelative(prefix) == nil {
					return prefix
				}
			}
		}
	}
	return "main"
}
