package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// recipeVersion is part of every digest. Raise it when a change of engi makes definitions give another
// root than before.
const recipeVersion = 2

// A source is the origin of a root file system, resolved but not fetched.
type source struct {
	inputs []string                          // texts that identify the content
	step   string                            // description of the work of unpack, for people
	unpack func(context.Context, *job) error // fills the root with the content
	debian bool                              // unpack installs packages
	base   string                            // digest of the build that the root starts from; empty if none
	image  image                             // configuration of the base; valid after unpack
	mounts []engi.Mount
}

// An image is the configuration of a base.
type image struct {
	env     map[string]string
	user    string // user name or number, as in OCI images
	workDir string
	ports   []int
	private bool

	start, ready string
	kernels      []string
}

// A job is one build. It belongs to one goroutine.
type job struct {
	t          *Templates
	buildOwner engi.Owner // owner whose steps run; empty means the node
	room       *freeSpace
	def        recipe.Definition
	src        source
	inputs     []string // inputs covered by the digest
	dir        string   // directory of this build, in tmp
	tree       *tree.Tree
	report     *report
	image      *image
	finished   bool // no further step changes the root
}

// root returns the directory of the root file system.
func (j *job) root() string { return filepath.Join(j.dir, "root") }

// An inflightBuild is a build that several callers may wait for.
type inflightBuild struct {
	rep  *report
	done chan struct{}
	tmpl engi.Template // valid once done is closed
	err  error         // valid once done is closed
}

// Build implements [engi.Templates]. It stores the definition for the name once the template
// is built. Paths in it must be in Options.Sources.
func (t *Templates) Build(ctx context.Context, name string, definition []byte, progress func(engi.Progress)) (_ engi.Template, err error) {
	defer engi.Annotate(&err, "build template %s", name)
	return t.build(ctx, name, definition, progress, nil)
}

// build implements Build. above holds the names of templates that are based on this one.
func (t *Templates) build(ctx context.Context, name string, text []byte, progress func(engi.Progress), above []string) (tmpl engi.Template, err error) {
	if err := recipe.CheckName(name); err != nil {
		return tmpl, err
	}
	entry := nameEntry{Definition: string(text)}
	if text == nil {
		if old, err := t.dir.readName(name); err == nil && old.Steps {
			return t.find(name) // the name's spec was not stored
		}
		if text, entry.Definition, err = t.definitionOf(name); err != nil {
			return tmpl, err
		}
	}
	def, err := recipe.Parse(name, text)
	if err != nil {
		return tmpl, err
	}
	for _, w := range def.Warnings {
		if progress != nil {
			progress(engi.Progress{Step: 1, Name: "read the definition", Log: w, Warning: true})
		}
	}
	if len(def.Steps) > 0 {
		if tmpl, err = t.buildDefined(ctx, name, def, progress, above); err != nil {
			return tmpl, err
		}
		entry.Digest = tmpl.Digest
		return t.publishName(ctx, name, entry, tmpl)
	}
	src, err := t.resolve(ctx, def, progress, append(above, name))
	if err != nil {
		// If a registry does not answer, the existing build stays usable.
		if old, e := t.find(name); e == nil && engi.Is(err, engi.Unavailable) && t.unchanged(name, entry) {
			t.o.Log.WarnContext(ctx, "template not rebuilt", "template", name, "error", err)
			return old, nil
		}
		return tmpl, err
	}
	digest, inputs, err := t.digest(def, src)
	if err != nil {
		return tmpl, err
	}
	if tmpl, err = t.dir.load(strings.TrimPrefix(digest, digestPrefix)); errors.Is(err, fs.ErrNotExist) {
		tmpl, err = t.buildOnce(ctx, digest, progress, func(rep *report) (engi.Template, error) {
			return t.buildRoot(ctx, def, src, digest, inputs, &freeSpace{}, rep)
		})
	}
	if err != nil {
		return tmpl, err
	}
	entry.Digest = digest
	return t.publishName(ctx, name, entry, tmpl)
}

// publishName makes a name refer to a build.
func (t *Templates) publishName(ctx context.Context, name string, entry nameEntry, tmpl engi.Template) (engi.Template, error) {
	fresh, err := t.dir.setName(name, entry)
	if err != nil {
		return tmpl, err
	}
	if fresh {
		t.o.Log.InfoContext(ctx, "template built", "template", name, "digest", tmpl.Digest, "bytes", tmpl.Bytes)
		t.announce()
	}
	tmpl.Name, tmpl.Owner = name, entry.Owner
	return tmpl, nil
}

// buildDefined builds a definition with steps. It first builds the base, as an
// unnamed template unless the base is a template, then the steps.
func (t *Templates) buildDefined(ctx context.Context, name string, def recipe.Definition, progress func(engi.Progress), above []string) (tmpl engi.Template, err error) {
	s := stepBuild{room: &freeSpace{}, def: def, name: def.Base, open: t.openContext}
	before := firstStep(progress, len(def.Steps)+2)
	var release func()
	if from, ok := strings.CutPrefix(def.Base, "template:"); ok && len(def.Packages)+len(def.Files)+len(def.Commands) == 0 && def.Go == nil {
		if slices.Contains(above, from) || from == name || len(above) > 8 {
			return tmpl, invalid("template %s is based on itself", from)
		}
		s.base, release, err = t.baseTemplate(ctx, from, before, append(above, name))
	} else {
		bare := def
		bare.Steps, bare.Start, bare.Ready, bare.Kernels, bare.Languages, bare.Warm = nil, "", "", nil, nil, nil
		var src source
		if src, err = t.resolve(ctx, bare, before, append(above, name)); err == nil {
			s.base, release, err = t.buildUnnamed(ctx, bare, src, &freeSpace{}, before)
		}
	}
	if err != nil {
		return tmpl, err
	}
	defer release()
	return t.buildSteps(ctx, &s, progress)
}

// definitionOf returns the definition that a name was last built from, or the
// built-in one, and the text to store as the name's definition.
func (t *Templates) definitionOf(name string) ([]byte, string, error) {
	entry, err := t.dir.readName(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	if entry.Definition != "" {
		return []byte(entry.Definition), entry.Definition, nil
	}
	if text, ok := builtins()[name]; ok {
		return text, "", nil
	}
	return nil, "", unknown()
}

func (t *Templates) unchanged(name string, e nameEntry) bool {
	old, err := t.dir.readName(name)
	return err == nil && old.Definition == e.Definition
}

// digest returns the digest of a definition and all its inputs.
func (t *Templates) digest(def recipe.Definition, src source) (digest string, inputs []string, err error) {
	inputs = append([]string{fmt.Sprintf("recipe %d for %s", recipeVersion, runtime.GOARCH)}, src.inputs...)
	for _, f := range def.Files {
		if f.Source == "" {
			continue
		}
		sum, err := sumFile(f.Source, t.openSource)
		if err != nil {
			return "", nil, err
		}
		inputs = append(inputs, fileInput(f, sum))
	}
	text, err := json.Marshal(def)
	if err != nil {
		return "", nil, engi.Errorf(engi.Internal, "%v", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", text, strings.Join(inputs, "\n"))
	return digestPrefix + hex.EncodeToString(h.Sum(nil)), inputs, nil
}

func fileInput(f recipe.File, sum string) string { return fmt.Sprintf("file %s %s", f.Path, sum) }

// buildOnce calls build once for callers that ask for the same digest at the same
// time. The others wait and see its progress. If the first caller is cancelled, one of
// the others starts over.
func (t *Templates) buildOnce(ctx context.Context, digest string, progress func(engi.Progress), build func(*report) (engi.Template, error)) (engi.Template, error) {
	for {
		t.mu.Lock()
		f := t.inflight[digest]
		if f == nil {
			f = &inflightBuild{rep: newReport(), done: make(chan struct{})}
			t.inflight[digest] = f
			t.mu.Unlock()
			leave := f.rep.watch(progress)
			f.tmpl, f.err = build(f.rep)
			leave()
			t.mu.Lock()
			delete(t.inflight, digest)
			t.mu.Unlock()
			close(f.done)
			return f.tmpl, f.err
		}
		t.mu.Unlock()
		leave := f.rep.watch(progress)
		select {
		case <-f.done:
			leave()
			if engi.Is(f.err, engi.Expired) && ctx.Err() == nil {
				continue
			}
			return f.tmpl, f.err
		case <-ctx.Done():
			leave()
			return engi.Template{}, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
	}
}

// buildRoot builds in a temporary directory and publishes it. The build counts for the
// first owner that needs it.
func (t *Templates) buildRoot(ctx context.Context, def recipe.Definition, src source, digest string, inputs []string, r *freeSpace, rep *report) (_ engi.Template, err error) {
	var w *workspace
	if src.base == "" {
		w, err = t.emptyWorkspace()
	} else {
		base, release, e := t.Use(ctx, src.base)
		if e != nil {
			return engi.Template{}, e
		}
		defer release()
		w, err = t.newWorkspace(ctx, []string{base.Root})
	}
	if err != nil {
		return engi.Template{}, err
	}
	defer t.discard(w)
	j := &job{t: t, room: r, def: def, src: src, inputs: inputs, dir: w.dir, tree: w.tree, report: rep, image: &src.image}

	tmpl := engi.Template{Digest: digest, Mounts: src.mounts, Size: def.Size}
	if err := j.run(ctx, &tmpl); err != nil {
		err = r.explain(err)
		if ctx.Err() != nil {
			return engi.Template{}, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		return engi.Template{}, err
	}
	if tmpl.Start, tmpl.Ready = def.Start, def.Ready; def.Start == "" && def.Ready == "" {
		tmpl.Start, tmpl.Ready = src.image.start, src.image.ready
	}
	if tmpl.Kernels = def.Kernels; tmpl.Kernels == nil {
		tmpl.Kernels = src.image.kernels
	}
	tmpl.Private = def.Private || src.image.private
	if err := w.flatten(ctx); err != nil {
		return engi.Template{}, err
	}
	tmpl.Built = now()
	e := entryOf(tmpl, inputs)
	if r.owner != "" {
		e.Owner, e.Layers = r.owner, map[string]int64{digest: tmpl.Bytes}
		if err := r.take(tmpl.Bytes); err != nil {
			return engi.Template{}, err
		}
	}
	return t.dir.publish(w.dir, e)
}

// emptyWorkspace returns a workspace with an empty root.
func (t *Templates) emptyWorkspace() (_ *workspace, err error) {
	w := &workspace{}
	if w.dir, w.lock, err = t.dir.newBuildDir(); err != nil {
		return nil, err
	}
	root := filepath.Join(w.dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.discard(w)
		return nil, fileError(err)
	}
	if w.tree, err = tree.Open(root); err != nil {
		t.discard(w)
		return nil, err
	}
	return w, nil
}

// run runs all steps. It determines the steps in advance, so that progress is
// meaningful.
func (j *job) run(ctx context.Context, tmpl *engi.Template) error {
	type step struct {
		name string
		do   func(context.Context) error
	}
	steps := []step{{j.src.step, func(ctx context.Context) error { return j.src.unpack(ctx, j) }}}
	if g := j.def.Go; g != nil {
		steps = append(steps, step{"install Go " + g.Version, func(ctx context.Context) error { return j.installGo(ctx, *g) }})
	}
	steps = append(steps, step{"prepare users and files", func(context.Context) error { return j.prepare(tmpl) }})
	var sb *sandbox
	inside := j.def.Commands
	if len(j.def.Packages) > 0 && !j.src.debian {
		inside = slices.Concat([]recipe.Command{{Run: ""}}, inside)
	}
	if len(inside) > 0 {
		steps = append(steps, step{"open a sandbox", func(ctx context.Context) (err error) {
			sb, err = j.openSandbox(ctx, *tmpl)
			return err
		}})
		defer func() {
			if sb != nil {
				sb.abandon()
			}
		}()
	}
	for i, c := range inside {
		name := c.String()
		if c.Run == "" {
			name = "install packages"
		}
		steps = append(steps, step{name, func(ctx context.Context) error {
			if c.Run == "" {
				var err error
				if c, err = j.installCommand(); err != nil {
					return err
				}
			}
			if c.Own {
				c.User, c.Dir = tmpl.User, tmpl.WorkDir
			}
			return sb.run(ctx, i+1, c)
		}})
	}
	steps = append(steps, step{"finish", func(ctx context.Context) error {
		if sb != nil {
			if err := sb.close(); err != nil {
				return err
			}
			sb = nil
		}
		return j.finish(ctx, tmpl)
	}})
	for i, s := range steps {
		if err := ctx.Err(); err != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		j.report.step(i+1, len(steps), s.name)
		if err := s.do(ctx); err != nil {
			return j.report.explain(s.name, err)
		}
	}
	return nil
}

// finish removes files that only the build needed, finds the interpreters and measures
// the size.
func (j *job) finish(ctx context.Context, tmpl *engi.Template) error {
	if err := j.slim(); err != nil {
		return err
	}
	j.finished = true
	// Commands may have created the user or the shell that the definition names.
	if err := j.account(tmpl); err != nil {
		return err
	}
	if err := j.findLanguages(tmpl); err != nil {
		return err
	}
	var err error
	tmpl.Bytes, err = usage(ctx, j.root())
	return err
}

// usage returns the bytes on disk below root. A file with several links counts once.
func usage(ctx context.Context, root string) (int64, error) {
	type inode struct{ dev, ino uint64 }
	var total int64
	seen := map[inode]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if id := (inode{uint64(st.Dev), st.Ino}); st.Nlink > 1 && !d.IsDir() {
			if seen[id] {
				return nil
			}
			seen[id] = true
		}
		total += st.Blocks * 512
		return nil
	})
	if err != nil {
		return 0, fileError(err)
	}
	return total, nil
}

// A report passes the progress of a build to its watchers and keeps the end of its
// log for errors. It is safe for concurrent use.
type report struct {
	mu       sync.Mutex
	watchers map[int]func(engi.Progress) // guarded by mu, like all fields below
	next     int
	current  engi.Progress // the current step, without a line of the log
	tail     []string
	ticks    time.Time // time of the last event with progress
}

const tailLines = 30

func newReport() *report { return &report{watchers: map[int]func(engi.Progress){}} }

// watch adds a watcher, and first calls it with the current step. The watcher is not
// called after the returned function has returned.
func (r *report) watch(f func(engi.Progress)) func() {
	if f == nil {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.next
	r.next++
	r.watchers[id] = f
	if r.current.Step > 0 {
		f(r.current)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, id)
	}
}

func (r *report) send(e engi.Progress) {
	for _, f := range r.watchers {
		f(e)
	}
}

func (r *report) step(n, of int, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = engi.Progress{Step: n, Steps: of, Name: name}
	r.tail = nil
	r.send(r.current)
}

// log reports a line of output.
func (r *report) log(line string) {
	line = printable(line)
	if line == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tail = append(r.tail, line); len(r.tail) > tailLines {
		r.tail = r.tail[1:]
	}
	e := r.current
	e.Log = line
	r.send(e)
}

// progress reports the finished part of the step, at most ten times a second.
func (r *report) progress(done, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.Done, r.current.Total = done, total
	if t := time.Now(); t.Sub(r.ticks) >= 100*time.Millisecond || done == total {
		r.ticks = t
		r.send(r.current)
	}
}

// text returns the end of the step's log.
func (r *report) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.tail, "\n")
}

// explain adds the step and the end of its log to an error.
func (r *report) explain(step string, err error) error {
	if engi.Is(err, engi.Expired) {
		return fmt.Errorf("%s: %w", step, err)
	}
	if tail := r.text(); tail != "" {
		return fmt.Errorf("%s: %w\n%s", step, err, tail)
	}
	return fmt.Errorf("%s: %w", step, err)
}

// printable makes a line of output safe to display: valid UTF-8 of limited length
// without control characters and terminal sequences.
func printable(line string) string {
	if i := strings.LastIndexByte(strings.TrimRight(line, "\r\n"), '\r'); i >= 0 {
		line = line[i+1:] // keep only the last state of a progress bar
	}
	var b strings.Builder
	escape := 0
	for _, c := range line {
		switch {
		case c == 0x1b:
			escape = 1
		case escape == 1 && c == '[':
			escape = 2
		case escape == 1 && c == ']':
			escape = 3
		case escape == 1, escape == 2 && c >= 0x40 && c <= 0x7e, escape == 3 && c == 0x07:
			escape = 0
		case escape != 0:
		case c == '\t':
			b.WriteByte(' ')
		case c >= 0x20 && (c < 0x7f || c > 0x9f):
			b.WriteRune(c)
		}
		if b.Len() > 500 {
			b.WriteString("…")
			break
		}
	}
	return strings.TrimRight(b.String(), " ")
}
