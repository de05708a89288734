package disk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/recipe"
)

var _ engi.TemplateBuilder = (*Templates)(nil)

// usualAliases are references of images that templates stand for everywhere.
var usualAliases = map[string]string{"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}

// A stepped is a build by steps.
type stepped struct {
	def    recipe.Definition // steps included
	base   engi.Template     // what it starts from, pinned
	name   string            // of base, for people
	force  bool
	open   func(archive string) (*os.File, error)
	hashes []string // of archives, by step
}

// A stand is where a build by steps has come to.
type stand struct {
	id      string   // what identifies the root so far
	below   []string // parts of the root so far, topmost first
	user    string   // empty is root
	workDir string
	env     map[string]string
}

// BuildSteps implements [engi.TemplateBuilder]. Step 1 of the progress prepares
// what the template is made from, step i+2 is spec.Steps[i], the last completes
// the template. An image gets a user called user with a home, who may use sudo if
// there is one; steps begin as that user there.
func (t *Templates) BuildSteps(ctx context.Context, spec engi.BuildSpec, progress func(engi.BuildEvent)) (tmpl engi.Template, err error) {
	defer engi.Annotate(&err, "build template %s", spec.Name)
	if err := recipe.CheckName(spec.Name); err != nil {
		return tmpl, err
	}
	if err := t.mayBuild(spec.Name, spec.Owner); err != nil {
		return tmpl, err
	}
	s := stepped{force: spec.Force, def: recipe.Definition{Size: spec.Size, Start: spec.Start, Ready: spec.Ready}}
	if err := spec.Size.Validate(); err != nil {
		return tmpl, err
	}
	for _, st := range spec.Steps {
		s.def.Steps = append(s.def.Steps, recipe.Step{Type: st.Type, Args: append([]string(nil), st.Args...), Archive: st.Archive, Force: st.Force})
	}
	if err := recipe.CheckSteps(s.def.Steps); err != nil {
		return tmpl, err
	}
	s.open = func(archive string) (*os.File, error) {
		f, err := os.OpenFile(archive, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fileError(err)
		}
		return f, nil
	}
	from, image := spec.FromTemplate, spec.FromImage
	if from != "" && image != "" {
		return tmpl, invalid("it is made from an image or from a template, not from both")
	}
	if alias, ok := t.alias(image); ok {
		from, image = alias, ""
	}
	if from == "" && image == "" {
		from = "base"
	}
	var release func()
	before := firstStep(progress, len(spec.Steps)+2)
	if image != "" {
		s.name = image
		s.base, release, err = t.imageFoundation(ctx, image, spec.Login, before)
	} else {
		s.name = from
		s.base, release, err = t.templateFoundation(ctx, from, before, []string{spec.Name})
	}
	if err != nil {
		return tmpl, err
	}
	defer release()
	if tmpl, err = t.takeSteps(ctx, &s, progress); err != nil {
		return tmpl, err
	}
	return t.name(ctx, spec.Name, nameEntry{Digest: tmpl.Digest, Owner: spec.Owner, Steps: true}, tmpl)
}

// firstStep makes the progress of another build that of the first step.
func firstStep(progress func(engi.BuildEvent), steps int) func(engi.BuildEvent) {
	if progress == nil {
		return nil
	}
	return func(e engi.BuildEvent) {
		e.Step, e.Steps = 1, steps
		progress(e)
	}
}

// mayBuild reports Conflict if a name is somebody else's.
func (t *Templates) mayBuild(name string, owner engi.Owner) error {
	entry, err := t.shelf.name(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, builtin := builtins()[name]
	if owner != "" && (builtin || err == nil && entry.Owner != owner) {
		return engi.Errorf(engi.Conflict, "the name is taken").WithRemedy("choose another name")
	}
	return nil
}

// alias returns the template that stands for an image. Tags and digests of an
// image count only where an alias has one.
func (t *Templates) alias(image string) (string, bool) {
	if image == "" {
		return "", false
	}
	candidates := []string{image}
	if ref, err := name.ParseReference(image); err == nil {
		repo := strings.TrimPrefix(strings.TrimPrefix(ref.Context().Name(), "index.docker.io/"), "library/")
		candidates = append(candidates, repo+":"+ref.Identifier(), repo)
	}
	for _, c := range candidates {
		for _, aliases := range []map[string]string{t.o.Aliases, usualAliases} {
			if tmpl, ok := aliases[c]; ok {
				return tmpl, true
			}
		}
	}
	return "", false
}

// templateFoundation returns a template to build on, building it if need be.
func (t *Templates) templateFoundation(ctx context.Context, from string, progress func(engi.BuildEvent), above []string) (engi.Template, func(), error) {
	if !strings.HasPrefix(from, digestPrefix) {
		if _, err := t.build(ctx, from, nil, progress, above); err != nil {
			return engi.Template{}, nil, fmt.Errorf("base template %s: %w", from, err)
		}
	}
	base, release, err := t.Use(ctx, from)
	if err != nil {
		return base, nil, err
	}
	if len(base.Mounts) > 0 {
		release()
		return base, nil, invalid("template %s has no files of its own to build on", from)
	}
	return base, release, nil
}

// imageFoundation returns an image as a template without a name.
func (t *Templates) imageFoundation(ctx context.Context, ref string, login engi.RegistryLogin, progress func(engi.BuildEvent)) (engi.Template, func(), error) {
	def := recipe.Definition{Base: "oci:" + ref, User: "user", WorkDir: "/home/user", Files: []recipe.File{
		{Path: "/etc/sudoers.d/engi-user", Content: "user ALL=(ALL:ALL) NOPASSWD:ALL\n", Mode: 0o440},
	}}
	if suite, ok := officialSuite(ref); ok {
		// The same packages come from the archive that this machine uses, if
		// it can build suites at all.
		local := def
		local.Base = suite
		distro, release, _ := strings.Cut(suite, ":")
		src, err := t.debianSource(local, distro, release)
		if err == nil {
			return t.foundation(ctx, local, src, progress)
		}
		if engi.KindOf(err) != engi.Unsupported {
			return engi.Template{}, nil, err
		}
	}
	src, err := t.imageSource(ctx, ref, login)
	if err != nil {
		return engi.Template{}, nil, err
	}
	return t.foundation(ctx, def, src, progress)
}

// officialSuite returns the suite that an official image of Debian or Ubuntu is.
func officialSuite(image string) (string, bool) {
	ref, err := name.ParseReference(image)
	if err != nil || ref.Context().RegistryStr() != name.DefaultRegistry {
		return "", false
	}
	distro := strings.TrimPrefix(ref.Context().RepositoryStr(), "library/")
	if _, ok := distributions[distro]; !ok {
		return "", false
	}
	tag := strings.TrimSuffix(ref.Identifier(), "-slim")
	if suite, ok := releases[distro+"-"+tag]; ok {
		return suite, true
	}
	if tag == "latest" {
		tag = map[string]string{"debian": "stable", "ubuntu": "noble"}[distro]
	}
	return distro + ":" + tag, suitePattern.MatchString(tag)
}

// foundation builds a definition without steps under no name, and pins it.
func (t *Templates) foundation(ctx context.Context, def recipe.Definition, src source, progress func(engi.BuildEvent)) (engi.Template, func(), error) {
	digest, inputs, err := t.digest(def, src)
	if err != nil {
		return engi.Template{}, nil, err
	}
	hex := strings.TrimPrefix(digest, digestPrefix)
	if _, err := t.shelf.load(hex); errors.Is(err, fs.ErrNotExist) {
		_, err = t.fly(ctx, digest, progress, func(rep *report) (engi.Template, error) {
			return t.make(ctx, def, src, digest, inputs, rep)
		})
		if err != nil {
			return engi.Template{}, nil, err
		}
	} else if err != nil {
		return engi.Template{}, nil, err
	}
	base, release, err := t.Use(ctx, digest)
	if err == nil {
		t.shelf.refresh(filepath.Join(t.shelf.build(hex), "orphan"))
	}
	return base, release, err
}

// takeSteps takes the steps that were not taken before, and completes the
// template.
func (t *Templates) takeSteps(ctx context.Context, s *stepped, progress func(engi.BuildEvent)) (engi.Template, error) {
	seed := sha256.New()
	fmt.Fprintf(seed, "steps %d on %s\n", recipeVersion, s.base.Digest)
	s.hashes = make([]string, len(s.def.Steps))
	for i, st := range s.def.Steps {
		if st.Archive != "" {
			sum, err := sumFile(st.Archive, s.open)
			if err != nil {
				return engi.Template{}, err
			}
			s.hashes[i] = sum
		}
		if st.Force || s.force {
			fmt.Fprintf(seed, "%s\n", rand.Text()) // nobody else's flight
		}
	}
	facts, err := json.Marshal(s.def)
	if err != nil {
		return engi.Template{}, engi.Errorf(engi.Internal, "%v", err)
	}
	fmt.Fprintf(seed, "%s\n%q\n", facts, s.hashes)
	return t.fly(ctx, "steps "+hex.EncodeToString(seed.Sum(nil)), progress, func(rep *report) (engi.Template, error) {
		return t.climb(ctx, s, rep)
	})
}

func sumFile(name string, open func(string) (*os.File, error)) (string, error) {
	f, err := open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", invalid("%s is not a regular file", name)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fileError(err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// climb takes one step after the other.
func (t *Templates) climb(ctx context.Context, s *stepped, rep *report) (tmpl engi.Template, err error) {
	steps := len(s.def.Steps) + 2
	rep.step(1, steps, "begin with "+s.name)
	at := stand{
		id: s.base.Digest, below: []string{s.base.Root}, user: s.base.User, workDir: s.base.WorkDir, env: maps.Clone(s.base.Env),
	}
	if s.def.User != "" {
		at.user = s.def.User
	}
	if s.def.WorkDir != "" {
		at.workDir = s.def.WorkDir
	}
	maps.Copy(at.env, s.def.Env)

	var shares []*os.File // layers in use
	defer func() {
		for _, l := range shares {
			l.Close()
		}
	}()
	// Without overlays, all steps are taken in one copy, and none is kept.
	var whole *stack
	if !t.overlayWorks() {
		if whole, err = t.stackOn(ctx, at.below); err != nil {
			return tmpl, rep.explain("begin with "+s.name, err)
		}
		defer t.drop(whole)
	}
	force := s.force
	for i, st := range s.def.Steps {
		rep.step(i+2, steps, st.String())
		force = force || st.Force
		key := at.key(st, s.hashes[i])
		if st.Type == engi.StepEnv {
			for n := 0; n < len(st.Args); n += 2 {
				at.env[st.Args[n]] = st.Args[n+1]
			}
			at.id = key
			continue
		}
		if whole != nil {
			if err := t.takeStep(ctx, s, st, &at, whole, rep, i); err != nil {
				return tmpl, rep.explain(st.String(), err)
			}
			at.id = key
			continue
		}
		share, err := t.step(ctx, s, i, key, force, &at, rep)
		if err != nil {
			if ctx.Err() != nil {
				err = engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
			}
			return tmpl, rep.explain(st.String(), err)
		}
		shares = append(shares, share)
	}
	rep.step(steps, steps, "finish")
	if tmpl, err = t.complete(ctx, s, at, whole, rep); err != nil {
		return tmpl, rep.explain("finish", err)
	}
	return tmpl, nil
}

// key identifies the root after a step is taken from here.
func (a stand) key(st recipe.Step, archive string) string {
	text, err := json.Marshal([]any{a.id, a.user, a.workDir, st, archive})
	if err != nil {
		panic(err) // strings
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// step takes one step, unless its layer is there from before, and returns the
// share in the layer.
func (t *Templates) step(ctx context.Context, s *stepped, i int, key string, force bool, at *stand, rep *report) (*os.File, error) {
	st := s.def.Steps[i]
	if !force {
		layer, share, err := t.shelf.layer(key)
		if err != nil {
			return nil, err
		}
		if share != nil {
			rep.log("taken before")
			layer.apply(at, t.shelf.layerDir(layer.ID))
			return share, nil
		}
	}
	stack, err := t.stackOn(ctx, at.below)
	if err != nil {
		return nil, err
	}
	defer t.drop(stack)
	next := *at
	if err := t.takeStep(ctx, s, st, &next, stack, rep, i); err != nil {
		return nil, err
	}
	if err := stack.tree.Close(); err != nil {
		return nil, fileError(err)
	}
	stack.tree = nil
	if err := lay(stack.dir); err != nil {
		return nil, err
	}
	layer := layerEntry{ID: key, User: next.user, WorkDir: next.workDir, Step: st.String(), Made: now()}
	if force {
		sum := sha256.Sum256([]byte(key + rand.Text()))
		layer.ID = hex.EncodeToString(sum[:])
	}
	if err := removeTree(filepath.Join(stack.dir, "context")); err != nil {
		return nil, err
	}
	share, err := t.shelf.publishLayer(stack, key, layer)
	if err != nil {
		return nil, err
	}
	if share == nil {
		return nil, engi.Errorf(engi.Unavailable, "what the step made was removed at once").WithRemedy("build again")
	}
	layer.apply(at, t.shelf.layerDir(layer.ID))
	return share, nil
}

// apply moves on to what a layer has made.
func (l layerEntry) apply(at *stand, dir string) {
	at.id, at.user, at.workDir = l.ID, l.User, l.WorkDir
	at.below = append([]string{filepath.Join(dir, "tree")}, at.below...)
}

// takeStep does what a step says, in a root.
func (t *Templates) takeStep(ctx context.Context, s *stepped, st recipe.Step, at *stand, root *stack, rep *report, i int) error {
	j := &job{t: t, def: s.def, dir: root.dir, tree: root.tree, rep: rep, image: &image{}}
	switch st.Type {
	case engi.StepRun:
		return j.runStep(ctx, st, at, s.base.Shell, i+1)
	case engi.StepCopy:
		return j.copyStep(ctx, st, at, s)
	case engi.StepUser:
		if _, ok, err := j.knownUser(st.Args[0]); err != nil {
			return err
		} else if !ok {
			return invalid("failed to change user: unauthenticated: invalid username: '%s'", st.Args[0]).WithRemedy("make the user with a step before, for instance with useradd")
		}
		at.user = st.Args[0]
		return nil
	case engi.StepWorkdir:
		at.workDir = inWorkDir(at.workDir, st.Args[0])
		owner, err := j.owner(at.user)
		if err != nil {
			return err
		}
		return j.makeDirs(at.workDir, owner)
	}
	return engi.Errorf(engi.Internal, "step %q", st.Type)
}

func inWorkDir(dir, p string) string {
	if !path.IsAbs(p) {
		p = path.Join(dir, p)
	}
	return path.Clean(p)
}

// runStep runs a shell command as somebody.
func (j *job) runStep(ctx context.Context, st recipe.Step, at *stand, shell string, n int) error {
	command, user := st.Args[0], st.Args[1]
	if user == "" {
		user = at.user
	}
	if user == "" {
		user = "root"
	}
	who, ok, err := j.knownUser(user)
	if err != nil {
		return err
	}
	if !ok {
		return invalid("failed to run command '%s': command failed: unauthenticated: invalid username: '%s'", command, user).
			WithRemedy("name a user that is in /etc/passwd, or make it with a step before")
	}
	env := maps.Clone(at.env)
	env["HOME"], env["USER"], env["LOGNAME"] = who.home, who.name, who.name
	tmpl := engi.Template{Env: env, Shell: shell}
	box, err := j.openSandbox(ctx, tmpl)
	if err != nil {
		return err
	}
	exit, err := box.exec(ctx, engi.Command{
		Args: []string{shell, "-c", command}, Env: box.env, Dir: at.workDir, User: user, Tag: fmt.Sprintf("build-%d", n),
		Timeout: commandTimeout, Output: commandOutput,
	})
	if err != nil {
		box.abandon()
		return err
	}
	if err := box.close(); err != nil {
		return err
	}
	switch {
	case exit.Cause != engi.CauseExited:
		return invalid("failed to run command '%s': it ended by %s", command, exit.Cause).WithRemedy("%s", exit.Cause.Remedy())
	case exit.Signal != "":
		return invalid("failed to run command '%s': signal %s", command, exit.Signal)
	case exit.Code != 0 && networkTrouble.MatchString(j.rep.text()):
		return engi.Errorf(engi.Unavailable, "failed to run command '%s': exit status %d: it could not reach the network", command, exit.Code).
			WithRemedy("check this machine's network, proxy and mirrors, then build again")
	case exit.Code != 0:
		return invalid("failed to run command '%s': exit status %d", command, exit.Code).WithRemedy("correct the command; the end of its output is in the error")
	}
	return nil
}

// knownUser finds an account by name or number.
func (j *job) knownUser(who string) (account, bool, error) {
	all, err := accounts(j.tree)
	if err != nil {
		return account{}, false, err
	}
	for _, a := range all {
		if a.name == who || fmt.Sprint(a.uid) == who {
			return a, true, nil
		}
	}
	return account{name: "root", home: "/root"}, who == "root" || who == "0", nil
}

// complete makes a template of the root that the steps have led to.
func (t *Templates) complete(ctx context.Context, s *stepped, at stand, whole *stack, rep *report) (engi.Template, error) {
	def := s.def
	def.Base, def.Steps, def.Packages, def.Files, def.Commands, def.Go = "", nil, nil, nil, nil, nil
	def.User, def.WorkDir, def.Env, def.Size = at.user, at.workDir, at.env, def.Size.Or(s.base.Size)
	if def.User == "" {
		def.User = "root"
	}
	if def.Start == "" && def.Ready == "" {
		def.Start, def.Ready = s.base.Start, s.base.Ready
	}
	if def.Kernels == nil {
		def.Kernels = s.base.Kernels
	}
	if def.Ports == nil {
		def.Ports = s.base.Ports
	}
	if def.Shell == "" && len(s.def.Steps) == 0 {
		def.Shell = s.base.Shell
	}
	src := source{inputs: []string{"template " + s.base.Digest, "steps " + at.id}}
	digest, inputs, err := t.digest(def, src)
	if err != nil {
		return engi.Template{}, err
	}
	if tmpl, err := t.shelf.load(strings.TrimPrefix(digest, digestPrefix)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return tmpl, err
	}
	if whole == nil {
		if whole, err = t.stackOn(ctx, at.below); err != nil {
			return engi.Template{}, err
		}
		defer t.drop(whole)
	}
	j := &job{t: t, def: def, src: src, inputs: inputs, dir: whole.dir, tree: whole.tree, rep: rep, image: &image{}}
	tmpl := engi.Template{Digest: digest, Size: def.Size, Start: def.Start, Ready: def.Ready, Kernels: def.Kernels}
	if err := j.finish(ctx, &tmpl); err != nil {
		return tmpl, err
	}
	if err := whole.settle(ctx); err != nil {
		return tmpl, err
	}
	if err := removeTree(filepath.Join(whole.dir, "context")); err != nil {
		return tmpl, err
	}
	tmpl.Built = now()
	return t.shelf.publish(whole.dir, entryOf(tmpl, inputs))
}

// A layerEntry is the index file of a layer.
type layerEntry struct {
	ID      string    `json:"id"`
	User    string    `json:"user,omitempty"` // after the step
	WorkDir string    `json:"work_dir"`       // after the step
	Step    string    `json:"step"`           // for people
	Made    time.Time `json:"made"`
}

func (s shelf) layerDir(id string) string { return filepath.Join(s.dir, "layers", id) }

// layer returns what a step has made, with a share in it; nil if nothing is
// left of it.
func (s shelf) layer(key string) (e layerEntry, share *os.File, err error) {
	id := key
	if err := readJSON(filepath.Join(s.dir, "steps", key+".json"), &id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, nil, err
	}
	if !hexPattern.MatchString(id) {
		return e, nil, nil
	}
	share, err = s.shareAt(s.layerDir(id))
	if share == nil || err != nil {
		return e, nil, err
	}
	if err := readJSON(filepath.Join(s.layerDir(id), "index.json"), &e); err != nil {
		share.Close()
		return e, nil, err
	}
	s.refresh(filepath.Join(s.layerDir(id), "lock"))
	return e, share, nil
}

// publishLayer turns what a step has changed in root into a layer, and returns a
// share in it. A layer of a forced step takes the place of the step's
// older one.
func (s shelf) publishLayer(root *stack, key string, e layerEntry) (*os.File, error) {
	tmp := root.dir
	if err := writeJSON(filepath.Join(tmp, "index.json"), e); err != nil {
		return nil, err
	}
	if err := syncAll(tmp); err != nil {
		return nil, err
	}
	err := os.Rename(tmp, s.layerDir(e.ID))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return nil, fileError(err)
	}
	if err := syncDir(filepath.Join(s.dir, "layers")); err != nil {
		return nil, err
	}
	if e.ID != key {
		if err := writeJSON(filepath.Join(s.dir, "steps", key+".json"), e.ID); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return s.shareAt(s.layerDir(e.ID)) // somebody else took the same step
	}
	// The builder's own lock is the layer's now: it becomes a share.
	lock := root.lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, fileError(err)
	}
	if !exists(s.layerDir(e.ID)) {
		return nil, nil
	}
	root.lock = nil
	return lock, nil
}

// refresh tells the garbage collection that something was used just now.
func (s shelf) refresh(file string) {
	at := time.Now()
	_ = os.Chtimes(file, at, at) // at worst it is made again
}

// pruneLayers removes layers that nobody uses and that were not used for at
// least grace.
func (s shelf) pruneLayers(ctx context.Context, grace time.Duration) (freed int64, err error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return 0, fileError(err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return freed, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		dir := s.layerDir(e.Name())
		st, err := os.Stat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(st.ModTime()) < grace {
			continue // gone, or needed again
		}
		lock, err := tryLock(filepath.Join(dir, "lock"), unix.LOCK_EX)
		if err != nil {
			return freed, err
		}
		if lock == nil {
			continue
		}
		bytes, err := usage(ctx, filepath.Join(dir, "tree"))
		if err == nil {
			away := filepath.Join(s.dir, "tmp", "gone-"+rand.Text())
			if err = fileError(os.Rename(dir, away)); err == nil {
				err = removeTree(away)
				freed += bytes
			}
		}
		lock.Close()
		if err != nil {
			return freed, err
		}
	}
	// What forced steps left, whose layers are gone.
	notes, err := filepath.Glob(filepath.Join(s.dir, "steps", "*.json"))
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, note := range notes {
		var id string
		if readJSON(note, &id) == nil && !exists(s.layerDir(id)) {
			if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return freed, fileError(err)
			}
		}
	}
	return freed, nil
}
