package guestd

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/warm"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// goScript builds a Go program, then executes it in place of the shell, so that exit code
// and signals come from the program itself. The command `go run` would hide them.
const goScript = `go=$1 out=$2 target=$3
shift 3
GOTOOLCHAIN=local "$go" build -o "$out" "$target" || exit
exec "$out" "$@"`

// goStart returns the command that builds and runs the package of entry.
func (s *Server) goStart(r *run, cfg *settings, entry string, env map[string]string) (st warm.Command, err error) {
	defer engi.Annotate(&err, "go program")
	out := s.path("/tmp") + "/engi-" + r.ID
	if err := tree.MakeDirAll(filepath.Dir(out), tree.KeepOwner); err != nil {
		return st, err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return st, tree.Classify(err, "make directory", out)
	}
	r.temp = append(r.temp, out)
	if cfg.owner.UID >= 0 {
		if err := os.Lchown(out, cfg.owner.UID, cfg.owner.GID); err != nil {
			return st, tree.Classify(err, "give away", out)
		}
	}
	if err := s.ensureModule(r, cfg, entry); err != nil {
		return st, err
	}
	s.touchGoCache(cfg, env)
	target := "."
	if d := path.Dir(entry); d != "." {
		target = "./" + d
	}
	name := "main"
	args := []string{"/bin/sh", "-c", goScript, "engi", r.Interpreter, out + "/" + name, target}
	return warm.Command{Args: append(args, r.Args...), Env: env}, nil
}

// touchGoCache marks the build cache as trimmed now. The go command inspects
// every file of the cache once a day. In a sandbox made for one run that check is always
// due, and it takes half a second.
func (s *Server) touchGoCache(cfg *settings, env map[string]string) {
	at := env["GOCACHE"]
	if at == "" {
		at = filepath.Join(cfg.Home, ".cache", "go-build")
	}
	dir, err := tree.OpenDir(at)
	if err != nil {
		return // there is no cache to trim
	}
	defer dir.Close()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	// If this fails, the run is only slower.
	_, _ = dir.Create("trim.txt", 0o644, cfg.owner, strings.NewReader(now), int64(len(now)))
}

// ensureModule writes a go.mod to the working directory if neither this directory nor any
// directory between it and the entry has one.
func (s *Server) ensureModule(r *run, cfg *settings, entry string) error {
	for d := path.Dir(entry); ; d = path.Dir(d) {
		if _, err := os.Lstat(filepath.Join(cfg.WorkDir, d, "go.mod")); err == nil {
			return nil
		}
		if d == "." {
			break
		}
	}
	dir, err := tree.OpenDir(cfg.WorkDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	text := "module " + s.moduleName(r, cfg) + "\n"
	if v := goVersion(r.Interpreter); v != "" {
		text += "\ngo " + v + "\n"
	}
	stamp, err := dir.Create("go.mod", 0o644, cfg.owner, strings.NewReader(text), int64(len(text)))
	if err != nil {
		return err
	}
	r.inputs[cfg.WorkDir+"/go.mod"] = stamp
	return nil
}

// goVersion returns the language version of a toolchain from its VERSION file,
// or "" if it is unknown.
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

// moduleName guesses the module's path from the program's imports of its own
// packages: a program with a directory util that imports "example/util" is
// module example. The default is main.
func (s *Server) moduleName(r *run, cfg *settings) string {
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
	// The longest directory first: of "x/a/b", "a/b" is the better match.
	slices.SortFunc(dirs, func(x, y string) int { return len(y) - len(x) })
	for _, f := range r.Files {
		if !strings.HasSuffix(f.Path, ".go") || f.Size > 1<<20 {
			continue
		}
		file, err := tree.OpenBelow(cfg.WorkDir, f.Path)
		if err != nil {
			continue
		}
		text := make([]byte, f.Size)
		n, _ := file.Read(text)
		file.Close()
		// The first string on a line may be an import. A parser would cost this
		// program more memory than a wrong guess is worth.
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
