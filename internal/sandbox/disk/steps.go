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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
)

var _ engi.TemplateBuilder = (*Templates)(nil)

// defaultAliases maps image references to the templates used in their place.
var defaultAliases = map[string]string{"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}

// A stepBuild is a build from steps.
type stepBuild struct {
	owner  engi.Owner // owner of the build; empty means the node
	room   *freeSpace
	layers map[string]int64  // layers of an owner's build, as in buildEntry
	def    recipe.Definition // definition, including the steps
	base   engi.Template     // template that the build starts from; in use until the end
	name   string            // name of base, for people
	force  bool
	open   func(archive string) (*os.File, error)
	hashes []string // digests of archives, by step
}

// A stepState is the state of a build between two steps.
type stepState struct {
	id      string   // identifier of the root so far
	layers  []string // directories that make up the root so far, topmost first
	user    string   // user of the next step; empty means root
	workDir string
	env     map[string]string
}

// BuildSteps implements [engi.TemplateBuilder]. Images get an account "user" with a
// home and permission to use sudo. Steps start as this user in this home.
func (t *Templates) BuildSteps(ctx context.Context, spec engi.BuildSpec, progress func(engi.Progress)) (tmpl engi.Template, err error) {
	defer engi.Annotate(&err, "build template %s", spec.Name)
	if err := recipe.CheckName(spec.Name); err != nil {
		return tmpl, err
	}
	if err := t.mayBuild(spec.Name, spec.Owner); err != nil {
		return tmpl, err
	}
	s := stepBuild{owner: spec.Owner, force: spec.Force, def: recipe.Definition{Size: spec.Size, Start: spec.Start, Ready: spec.Ready}}
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
		return tmpl, invalid("it can start from an image or a template, but not from both")
	}
	if alias, ok := t.alias(image); ok {
		from, image = alias, ""
	}
	if from == "" && image == "" {
		from = "base"
	}
	if s.room, err = t.freeSpace(ctx, spec.Owner); err != nil {
		return tmpl, err
	}
	var release func()
	before := firstStep(progress, len(spec.Steps)+2)
	if image != "" {
		s.name = image
		s.base, release, err = t.baseImage(ctx, image, spec.Login, s.room, before)
	} else {
		s.name = from
		s.base, release, err = t.baseTemplate(ctx, from, before, []string{spec.Name})
	}
	if err != nil {
		return tmpl, err
	}
	defer release()
	if from != "" && !s.base.VisibleTo(spec.Owner.Reach()) {
		return tmpl, unknown()
	}
	if tmpl, err = t.buildSteps(ctx, &s, progress); err != nil {
		return tmpl, err
	}
	return t.publishName(ctx, spec.Name, nameEntry{Digest: tmpl.Digest, Owner: spec.Owner, Steps: true}, tmpl)
}

// firstStep reports the progress of another build as the progress of the first step.
func firstStep(progress func(engi.Progress), steps int) func(engi.Progress) {
	if progress == nil {
		return nil
	}
	return func(e engi.Progress) {
		e.Step, e.Steps = 1, steps
		progress(e)
	}
}

// mayBuild reports Conflict if another owner has the name.
func (t *Templates) mayBuild(name string, owner engi.Owner) error {
	entry, err := t.dir.readName(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, builtin := builtins()[name]
	if owner != "" && (builtin || err == nil && entry.Owner != owner) {
		return engi.Errorf(engi.Conflict, "the name is taken").WithRemedy("choose another name")
	}
	return nil
}

// alias returns the template used instead of an image. Aliases without a tag
// or digest match any tag and digest.
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
		for _, aliases := range []map[string]string{t.o.Aliases, defaultAliases} {
			if tmpl, ok := aliases[c]; ok {
				return tmpl, true
			}
		}
	}
	return "", false
}

// baseTemplate returns a template as a base, which it builds if needed. The caller
// must call the returned function to release the template.
func (t *Templates) baseTemplate(ctx context.Context, from string, progress func(engi.Progress), above []string) (engi.Template, func(), error) {
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
		return base, nil, invalid("template %s has no files to build on", from)
	}
	return base, release, nil
}

// baseImage returns an image as an unnamed template. The caller must call the returned function
// to release the template.
func (t *Templates) baseImage(ctx context.Context, ref string, login engi.RegistryLogin, r *freeSpace, progress func(engi.Progress)) (engi.Template, func(), error) {
	def := recipe.Definition{Base: "oci:" + ref, User: "user", WorkDir: "/home/user", Files: []recipe.File{
		{Path: "/etc/sudoers.d/engi-user", Content: "user ALL=(ALL:ALL) NOPASSWD:ALL\n", Mode: 0o440},
	}}
	if suite, ok := officialSuite(ref); ok {
		// If this machine can build suites, use its package archive instead of
		// the image.
		local := def
		local.Base = suite
		distro, release, _ := strings.Cut(suite, ":")
		src, err := t.debianSource(local, distro, release)
		if err == nil {
			return t.buildUnnamed(ctx, local, src, r, progress)
		}
		if !engi.Is(err, engi.Unsupported) {
			return engi.Template{}, nil, err
		}
	}
	src, err := t.imageSource(ctx, ref, r.owner, login)
	if err != nil {
		return engi.Template{}, nil, err
	}
	return t.buildUnnamed(ctx, def, src, r, progress)
}

// officialSuite returns the suite of an official image of Debian or Ubuntu.
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

// buildUnnamed builds a definition without steps as an unnamed template. The caller must call the
// returned function to release the template.
func (t *Templates) buildUnnamed(ctx context.Context, def recipe.Definition, src source, r *freeSpace, progress func(engi.Progress)) (engi.Template, func(), error) {
	digest, inputs, err := t.digest(def, src)
	if err != nil {
		return engi.Template{}, nil, err
	}
	hex := strings.TrimPrefix(digest, digestPrefix)
	if _, err := t.dir.load(hex); errors.Is(err, fs.ErrNotExist) {
		key := digest
		if r.owner != "" {
			key += " for " + string(r.owner) // the build must not end for lack of another owner's space
		}
		_, err = t.buildOnce(ctx, key, progress, func(rep *report) (engi.Template, error) {
			return t.buildRoot(ctx, def, src, digest, inputs, r, rep)
		})
		if err != nil {
			return engi.Template{}, nil, err
		}
	} else if err != nil {
		return engi.Template{}, nil, err
	}
	base, release, err := t.Use(ctx, digest)
	if err == nil {
		t.dir.touch(filepath.Join(t.dir.buildDir(hex), "orphan"))
	}
	return base, release, err
}

// buildSteps runs the steps that are not cached and completes the template.
func (t *Templates) buildSteps(ctx context.Context, s *stepBuild, progress func(engi.Progress)) (engi.Template, error) {
	seed := sha256.New()
	fmt.Fprintf(seed, "steps %d on %s for %q\n", recipeVersion, s.base.Digest, s.owner)
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
			fmt.Fprintf(seed, "%s\n", rand.Text()) // never equal to the text of another build
		}
	}
	facts, err := json.Marshal(s.def)
	if err != nil {
		return engi.Template{}, engi.Errorf(engi.Internal, "%v", err)
	}
	fmt.Fprintf(seed, "%s\n%q\n", facts, s.hashes)
	return t.buildOnce(ctx, "steps "+hex.EncodeToString(seed.Sum(nil)), progress, func(rep *report) (engi.Template, error) {
		return t.runSteps(ctx, s, rep)
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

// runSteps runs all steps in order.
func (t *Templates) runSteps(ctx context.Context, s *stepBuild, rep *report) (tmpl engi.Template, err error) {
	steps := len(s.def.Steps) + 2
	rep.step(1, steps, "start from "+s.name)
	state := stepState{
		id: s.base.Digest, layers: []string{s.base.Root}, user: s.base.User, workDir: s.base.WorkDir, env: maps.Clone(s.base.Env),
	}
	if s.owner != "" {
		// Results that a step of the node's own build derived from its network and
		// environment must not come out of the cache.
		state.id = "owners " + state.id
	}
	if s.def.User != "" {
		state.user = s.def.User
	}
	if s.def.WorkDir != "" {
		state.workDir = s.def.WorkDir
	}
	maps.Copy(state.env, s.def.Env)

	if s.owner != "" {
		base, err := t.dir.entry(strings.TrimPrefix(s.base.Digest, digestPrefix))
		if err != nil {
			return tmpl, fileError(err)
		}
		s.layers = map[string]int64{}
		maps.Copy(s.layers, base.Layers)
	}
	var shares []*os.File // locks of the layers in use
	defer func() {
		for _, l := range shares {
			l.Close()
		}
	}()
	// Without overlays, all steps run in one copy, and none is cached.
	var copied *workspace
	copyID := "copy " + rand.Text()
	if !t.overlayWorks() {
		if copied, err = t.newWorkspace(ctx, state.layers); err != nil {
			return tmpl, rep.explain("start from "+s.name, err)
		}
		defer t.discard(copied)
		if s.owner != "" {
			bytes, err := measure(ctx, copied.written())
			if err == nil {
				s.layers[copyID] = bytes
				err = s.room.take(bytes)
			}
			if err != nil {
				return tmpl, rep.explain("start from "+s.name, err)
			}
		}
	}
	force := s.force
	for i, st := range s.def.Steps {
		rep.step(i+2, steps, st.String())
		force = force || st.Force
		key := state.nextID(st, s.hashes[i])
		if st.Type == engi.StepEnv {
			for n := 0; n < len(st.Args); n += 2 {
				state.env[st.Args[n]] = st.Args[n+1]
			}
			state.id = key
			continue
		}
		if copied != nil {
			grown, err := t.applyWithin(ctx, s, &state, copied, rep, i)
			if err != nil {
				return tmpl, rep.explain(st.String(), err)
			}
			s.consistOf(layerEntry{ID: copyID, Bytes: s.layers[copyID] + grown})
			state.id = key
			continue
		}
		lock, err := t.cachedStep(ctx, s, i, key, force, &state, rep)
		if err != nil {
			if ctx.Err() != nil {
				err = engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
			}
			return tmpl, rep.explain(st.String(), err)
		}
		shares = append(shares, lock)
	}
	rep.step(steps, steps, "finish")
	if tmpl, err = t.complete(ctx, s, state, copied, rep); err != nil {
		return tmpl, rep.explain("finish", err)
	}
	return tmpl, nil
}

// nextID identifies the root after a step.
func (a stepState) nextID(st recipe.Step, archive string) string {
	text, err := json.Marshal([]any{a.id, a.user, a.workDir, st, archive})
	if err != nil {
		panic(err) // unreachable: the value consists of strings
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// cachedStep runs a step unless its layer is cached, and returns the shared lock of
// the layer.
func (t *Templates) cachedStep(ctx context.Context, s *stepBuild, i int, key string, force bool, state *stepState, rep *report) (*os.File, error) {
	st := s.def.Steps[i]
	if !force {
		layer, lock, err := t.dir.findLayer(key)
		if err != nil {
			return nil, err
		}
		if lock != nil {
			rep.log("cached")
			layer.apply(state, t.dir.layerDir(layer.ID))
			s.consistOf(layer)
			return lock, nil
		}
	}
	w, err := t.newWorkspace(ctx, state.layers)
	if err != nil {
		return nil, err
	}
	defer t.discard(w)
	next := *state
	grown, err := t.applyWithin(ctx, s, &next, w, rep, i)
	if err != nil {
		return nil, err
	}
	if err := w.tree.Close(); err != nil {
		return nil, fileError(err)
	}
	w.tree = nil
	if err := unmountOverlay(w.dir); err != nil {
		return nil, err
	}
	layer := layerEntry{ID: key, User: next.user, WorkDir: next.workDir, Step: st.String(), Made: now(), Owner: s.owner, Bytes: grown}
	if force {
		sum := sha256.Sum256([]byte(key + rand.Text()))
		layer.ID = hex.EncodeToString(sum[:])
	}
	if err := removeTree(filepath.Join(w.dir, "context")); err != nil {
		return nil, err
	}
	lock, err := t.dir.publishLayer(w, key, layer)
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, engi.Errorf(engi.Unavailable, "the result of the step was removed at once").WithRemedy("build again")
	}
	layer.apply(state, t.dir.layerDir(layer.ID))
	s.consistOf(layer)
	return lock, nil
}

// consistOf records a layer of an owner's template.
func (s *stepBuild) consistOf(l layerEntry) {
	if s.owner != "" {
		s.layers[l.ID] = l.Bytes
	}
}

// applyWithin calls applyStep within the free space of the build. It returns the growth of the
// workspace in bytes.
func (t *Templates) applyWithin(ctx context.Context, s *stepBuild, state *stepState, w *workspace, rep *report, i int) (int64, error) {
	return s.room.during(ctx, w.written(), func(ctx context.Context) error {
		return t.applyStep(ctx, s, s.def.Steps[i], state, w, rep, i)
	})
}

// apply updates the state with a layer.
func (l layerEntry) apply(state *stepState, dir string) {
	state.id, state.user, state.workDir = l.ID, l.User, l.WorkDir
	state.layers = append([]string{filepath.Join(dir, "tree")}, state.layers...)
}

// applyStep executes a step in a workspace.
func (t *Templates) applyStep(ctx context.Context, s *stepBuild, st recipe.Step, state *stepState, root *workspace, rep *report, i int) error {
	j := &job{t: t, buildOwner: s.owner, room: s.room, def: s.def, dir: root.dir, tree: root.tree, report: rep, image: &image{}}
	switch st.Type {
	case engi.StepRun:
		return j.runStep(ctx, st, state, s.base.Shell, i+1)
	case engi.StepCopy:
		return j.copyStep(ctx, st, state, s)
	case engi.StepUser:
		if _, ok, err := j.knownUser(st.Args[0]); err != nil {
			return err
		} else if !ok {
			return invalid("failed to change user: unauthenticated: invalid username: '%s'", st.Args[0]).WithRemedy("create the user in an earlier step, for instance with useradd")
		}
		state.user = st.Args[0]
		return nil
	case engi.StepWorkdir:
		state.workDir = joinWorkDir(state.workDir, st.Args[0])
		owner, err := j.owner(state.user)
		if err != nil {
			return err
		}
		return j.makeDirs(state.workDir, owner)
	}
	return engi.Errorf(engi.Internal, "step %q", st.Type)
}

func joinWorkDir(dir, p string) string {
	if !path.IsAbs(p) {
		p = path.Join(dir, p)
	}
	return path.Clean(p)
}

// runStep runs a shell command as the user of the step.
func (j *job) runStep(ctx context.Context, st recipe.Step, state *stepState, shell string, n int) error {
	command, user := st.Args[0], st.Args[1]
	if user == "" {
		user = state.user
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
			WithRemedy("name a user that is in /etc/passwd, or create it in an earlier step")
	}
	env := maps.Clone(state.env)
	env["HOME"], env["USER"], env["LOGNAME"] = who.home, who.name, who.name
	tmpl := engi.Template{Env: env, Shell: shell}
	sb, err := j.openSandbox(ctx, tmpl)
	if err != nil {
		return err
	}
	exit, err := sb.exec(ctx, engi.Command{
		Args: []string{shell, "-c", command}, Env: sb.env, Dir: state.workDir, User: user, Tag: fmt.Sprintf("build-%d", n),
		Timeout: commandTimeout, Output: commandOutput,
	})
	if err != nil {
		sb.abandon()
		return err
	}
	if err := sb.close(); err != nil {
		return err
	}
	switch {
	case exit.Cause != engi.CauseExited:
		return invalid("failed to run command '%s': it ended by %s", command, exit.Cause).WithRemedy("%s", exit.Cause.Remedy())
	case exit.Signal != "":
		return invalid("failed to run command '%s': signal %s", command, exit.Signal)
	case exit.Code != 0 && networkTrouble.MatchString(j.report.text()):
		remedy := "check this machine's network, proxy and mirrors, then build again"
		if j.buildOwner != "" {
			remedy = "builds reach the package registries that the operator allows with builds.allow, and no private address; get files from elsewhere before, and copy them"
		}
		return engi.Errorf(engi.Unavailable, "failed to run command '%s': exit status %d: it could not reach the network", command, exit.Code).
			WithRemedy("%s", remedy)
	case exit.Code != 0:
		return invalid("failed to run command '%s': exit status %d", command, exit.Code).WithRemedy("correct the command; the error contains the end of its output")
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

// complete creates the template from the root after the last step.
func (t *Templates) complete(ctx context.Context, s *stepBuild, state stepState, copied *workspace, rep *report) (engi.Template, error) {
	def := s.def
	def.Base, def.Steps, def.Packages, def.Files, def.Commands, def.Go = "", nil, nil, nil, nil, nil
	def.User, def.WorkDir, def.Env, def.Size = state.user, state.workDir, state.env, def.Size.Or(s.base.Size)
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
	def.Private = def.Private || s.base.Private
	if def.Shell == "" && len(s.def.Steps) == 0 {
		def.Shell = s.base.Shell
	}
	src := source{inputs: []string{"template " + s.base.Digest, "steps " + state.id}}
	digest, inputs, err := t.digest(def, src)
	if err != nil {
		return engi.Template{}, err
	}
	if tmpl, err := t.dir.load(strings.TrimPrefix(digest, digestPrefix)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return tmpl, err
	}
	if copied == nil {
		if copied, err = t.newWorkspace(ctx, state.layers); err != nil {
			return engi.Template{}, err
		}
		defer t.discard(copied)
	}
	j := &job{t: t, def: def, src: src, inputs: inputs, dir: copied.dir, tree: copied.tree, report: rep, image: &image{}}
	tmpl := engi.Template{Digest: digest, Size: def.Size, Start: def.Start, Ready: def.Ready, Kernels: def.Kernels, Private: def.Private}
	if err := j.finish(ctx, &tmpl); err != nil {
		return tmpl, err
	}
	if err := copied.flatten(ctx); err != nil {
		return tmpl, err
	}
	if err := removeTree(filepath.Join(copied.dir, "context")); err != nil {
		return tmpl, err
	}
	tmpl.Built = now()
	e := entryOf(tmpl, inputs)
	e.Owner, e.Layers = s.owner, s.layers
	return t.dir.publish(copied.dir, e)
}

// A layerEntry is the content of the index file of a layer.
type layerEntry struct {
	ID      string    `json:"id"`
	User    string    `json:"user,omitempty"` // value after the step
	WorkDir string    `json:"work_dir"`       // value after the step
	Step    string    `json:"step"`           // description of the step, for people
	Made    time.Time `json:"made"`

	Owner engi.Owner `json:"owner,omitempty"` // owner whose build added the layer; empty means the node
	Bytes int64      `json:"bytes,omitempty"` // size; only of layers of owners
}

func (d templateDir) layerDir(id string) string { return filepath.Join(d.dir, "layers", id) }

// findLayer returns the cached layer of a step with its shared lock. The lock is nil if
// there is no layer.
func (d templateDir) findLayer(key string) (e layerEntry, lock *os.File, err error) {
	id := key
	if err := readJSON(filepath.Join(d.dir, "steps", key+".json"), &id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, nil, err
	}
	if !hexPattern.MatchString(id) {
		return e, nil, nil
	}
	lock, err = d.lockDirShared(d.layerDir(id))
	if lock == nil || err != nil {
		return e, nil, err
	}
	if err := readJSON(filepath.Join(d.layerDir(id), "index.json"), &e); err != nil {
		lock.Close()
		return e, nil, err
	}
	d.touch(filepath.Join(d.layerDir(id), "lock"))
	return e, lock, nil
}

// publishLayer turns the changes of a step in root into a layer and returns its shared lock.
// The layer of a forced step replaces the older layer of the step.
func (d templateDir) publishLayer(root *workspace, key string, e layerEntry) (*os.File, error) {
	tmp := root.dir
	if err := writeJSON(filepath.Join(tmp, "index.json"), e); err != nil {
		return nil, err
	}
	if err := syncAll(tmp); err != nil {
		return nil, err
	}
	err := os.Rename(tmp, d.layerDir(e.ID))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return nil, fileError(err)
	}
	if err := syncDir(filepath.Join(d.dir, "layers")); err != nil {
		return nil, err
	}
	if e.ID != key {
		if err := writeJSON(filepath.Join(d.dir, "steps", key+".json"), e.ID); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return d.lockDirShared(d.layerDir(e.ID)) // another process ran the same step
	}
	// The builder's lock, now the layer's, becomes a shared one.
	lock := root.lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, fileError(err)
	}
	if !exists(d.layerDir(e.ID)) {
		return nil, nil
	}
	root.lock = nil
	return lock, nil
}

// touch marks a file as used now, for garbage collection.
func (d templateDir) touch(file string) {
	at := time.Now()
	_ = os.Chtimes(file, at, at) // if this fails, the layer may be built again
}

// pruneLayer removes a layer that is not in use and was not used for at least
// grace.
func (d templateDir) pruneLayer(ctx context.Context, id string, grace time.Duration) (freed int64, err error) {
	dir := d.layerDir(id)
	st, err := os.Stat(filepath.Join(dir, "lock"))
	if err != nil || time.Since(st.ModTime()) < grace {
		return 0, nil // the layer is gone, or was used recently
	}
	lock, err := tryLock(filepath.Join(dir, "lock"), unix.LOCK_EX)
	if lock == nil || err != nil {
		return 0, err
	}
	defer lock.Close()
	if freed, err = usage(ctx, filepath.Join(dir, "tree")); err != nil {
		return 0, err
	}
	away := filepath.Join(d.dir, "tmp", "gone-"+rand.Text())
	if err := os.Rename(dir, away); err != nil {
		return 0, fileError(err)
	}
	return freed, removeTree(away)
}

// pruneLayers removes layers that are not in use and were not used for at least
// grace.
func (d templateDir) pruneLayers(ctx context.Context, grace time.Duration) (freed int64, err error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "layers"))
	if err != nil {
		return 0, fileError(err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return freed, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		bytes, err := d.pruneLayer(ctx, e.Name(), grace)
		freed += bytes
		if err != nil {
			return freed, err
		}
	}
	// Remove the files of forced steps whose layers are gone.
	notes, err := filepath.Glob(filepath.Join(d.dir, "steps", "*.json"))
	if err != nil {
		panic(err) // unreachable: the pattern is constant
	}
	for _, note := range notes {
		var id string
		if readJSON(note, &id) == nil && !exists(d.layerDir(id)) {
			if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return freed, fileError(err)
			}
		}
	}
	return freed, nil
}
