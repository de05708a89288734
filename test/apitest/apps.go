package apitest

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// Apps is a fake whose apps have no sandbox. It parses whole files and packages
// in the text of a model. The template broken has a server that does not start, a
// text with "fail" in it changes nothing, and a text with "wait" runs until it is
// cancelled. It is safe for concurrent use.
type Apps struct {
	Log        engi.EventLog
	Workspaces *Workspaces // workspaces whose services apps may reach; nil for none

	mu   sync.Mutex
	all  []*app
	wake chan struct{} // closed at the next event
}

type app struct {
	engi.App
	spec      engi.AppSpec
	request   idempotency.Request
	revisions []appRevision
	log       []engi.AppUpdate
	applied   map[string]appRepeat // applied texts, by Idempotency-Key
}

type appRevision struct {
	engi.Revision
	files map[string]string
}

type appRepeat struct {
	spec engi.ApplySpec
	seq  int64
}

var _ engi.Apps = (*Apps)(nil)

var (
	appNames    = regexp.MustCompile(`^[A-Za-z0-9-]{1,63}$`)
	appFiles    = regexp.MustCompile(`(?s)<file path="([^"]+)">\n?(.*?)</file>`)
	appPackages = regexp.MustCompile(`<package>([^<]+)</package>`)
	appMoment   = time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
)

// find returns an app. The caller must hold the lock.
func (a *Apps) find(viewer engi.Viewer, name string) (*app, error) {
	for _, x := range a.all {
		if (string(x.ID) == name || x.Name == name) && viewer.Sees(x.Owner) {
			return x, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "no app %.80q", name)
}

// happen adds an update, and an event of the given type unless the type is empty.
func (a *Apps) happen(ctx context.Context, x *app, event string, u engi.AppUpdate) (int64, error) {
	u.Time = appMoment
	if event != "" {
		e, err := a.Log.Append(ctx, engi.EventSpec{Owner: x.Owner, Subject: string(x.ID), Type: event})
		if err != nil {
			return 0, err
		}
		u.Seq = e[0].Seq
		if u.Kind == engi.AppApplyBegun {
			u.Apply = u.Seq
		}
		if u.Kind == engi.AppEditBegun {
			u.Edit = u.Seq
		}
	}
	x.log = append(x.log, u)
	if a.wake != nil {
		close(a.wake)
	}
	a.wake = make(chan struct{})
	return u.Seq, nil
}

// revise adds a revision with files.
func (x *app) revise(r engi.Revision, files map[string]string) engi.Revision {
	var before map[string]string
	if n := len(x.revisions); n > 0 {
		before = x.revisions[n-1].files
	}
	r.App, r.Number, r.Parent, r.Created = x.ID, int64(len(x.revisions)+1), int64(len(x.revisions)), appMoment
	r.Commit = fmt.Sprintf("%040x", r.Number)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		switch old, ok := before[path]; {
		case !ok:
			r.Changed = append(r.Changed, engi.AppChange{Path: path, Op: engi.FileCreated, Size: int64(len(files[path]))})
		case old != files[path]:
			r.Changed = append(r.Changed, engi.AppChange{Path: path, Op: engi.FileWritten, Size: int64(len(files[path]))})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if _, ok := files[path]; !ok {
			r.Changed = append(r.Changed, engi.AppChange{Path: path, Op: engi.FileRemoved})
		}
	}
	x.revisions = append(x.revisions, appRevision{r, files})
	x.Revision = r.Number
	return r
}

// revision returns a revision; 0 means the last one.
func (x *app) revision(n int64) (appRevision, error) {
	if n == 0 {
		n = x.Revision
	}
	if n < 1 || n > int64(len(x.revisions)) {
		return appRevision{}, engi.Errorf(engi.NotFound, "app %s has no revision %d", x.Name, n)
	}
	return x.revisions[n-1], nil
}

// repeated returns the app that an earlier request with the same key created, or nil.
func (a *Apps) repeated(q idempotency.Request) (*app, error) {
	for _, x := range a.all {
		if q.Key != "" && x.request.Owner == q.Owner && x.request.Key == q.Key {
			if x.request != q {
				return nil, errRepeated
			}
			return x, nil
		}
	}
	return nil, nil
}

// copyOf returns the app; a zero one for nil.
func (x *app) copyOf() engi.App {
	if x == nil {
		return engi.App{}
	}
	return x.App
}

// Create implements engi.Apps.
func (a *Apps) Create(ctx context.Context, spec engi.AppSpec) (engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency, Fingerprint: idempotency.Fingerprint(spec)}
	if x, err := a.repeated(request); x != nil || err != nil {
		return x.copyOf(), err
	}
	if (spec.Directory == "") != (spec.Start == "") || (spec.Directory == "") != (spec.Port == 0) || spec.Directory != "" && (spec.Workspace == "" || spec.Template != "") {
		return engi.App{}, engi.Errorf(engi.Invalid, "an app in a workspace needs a directory, a start command and a port").WithRemedy("give all of them, or none")
	}
	spec.Template, spec.Name, spec.Port = cmp.Or(spec.Template, "vite-react"), cmp.Or(spec.Name, fmt.Sprint("app-", len(a.all)+1)), cmp.Or(spec.Port, 5173)
	if !appNames.MatchString(spec.Name) {
		return engi.App{}, engi.Errorf(engi.Invalid, "%.80q is not the name of an app", spec.Name)
	}
	if !slices.Contains([]string{"vite-react", "node-api", "fastapi", "broken"}, spec.Template) {
		return engi.App{}, engi.Errorf(engi.NotFound, "no template %.80q", spec.Template)
	}
	var of engi.Workspace
	if spec.Workspace != "" {
		if a.Workspaces == nil {
			return engi.App{}, engi.Errorf(engi.Unsupported, "there are no workspaces here")
		}
		var err error
		if of, err = a.Workspaces.Get(ctx, spec.Owner.Viewer(), spec.Workspace); err != nil {
			return engi.App{}, err
		}
	}
	sandbox := engi.NewSandboxID()
	if spec.Directory != "" {
		of, err := a.Workspaces.Start(ctx, spec.Owner.Viewer(), spec.Workspace)
		if err != nil {
			return engi.App{}, err
		}
		spec.Template, sandbox = of.Template, of.Sandbox
	}
	for _, x := range a.all {
		if x.Owner == spec.Owner && x.Name == spec.Name {
			return engi.App{}, engi.Errorf(engi.Conflict, "there is an app %q already", spec.Name).WithRemedy("choose another name")
		}
	}
	for _, x := range a.all {
		if spec.Replace && x.Owner == spec.Owner {
			x.State, x.Sandbox = engi.AppStopped, ""
		}
	}
	x := &app{spec: spec, request: request, applied: map[string]appRepeat{}, App: engi.App{
		ID: engi.NewAppID(), Owner: spec.Owner, Name: spec.Name, Template: spec.Template, Workspace: of.ID, Directory: spec.Directory, Start: spec.Start, State: engi.AppReady, Sandbox: sandbox, Port: spec.Port,
		Metadata: spec.Metadata, Created: appMoment, Used: appMoment,
	}}
	if spec.Template == "broken" {
		x.State, x.Error = engi.AppFailed, engi.Errorf(engi.Unavailable, "its server does not answer").WithRemedy("see what it prints")
	}
	x.revise(engi.Revision{Message: "Created from " + spec.Template}, map[string]string{
		"index.html": "<div id=\"root\"></div>\n", "package.json": "{\"dependencies\":{\"react\":\"19.2.0\"}}\n", "src/App.jsx": "export default function App() { return <h1>New</h1> }\n",
	})
	a.all = append(a.all, x)
	_, err := a.happen(ctx, x, engi.EventAppCreated, engi.AppUpdate{Kind: engi.AppStateChanged, State: x.State})
	return x.App, err
}

// Get implements engi.Apps.
func (a *Apps) Get(_ context.Context, viewer engi.Viewer, name string) (engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return engi.App{}, err
	}
	return x.App, nil
}

// List implements engi.Apps.
func (a *Apps) List(_ context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []engi.App
	for _, x := range slices.Backward(a.all) {
		if viewer.Sees(x.Owner) {
			list = append(list, x.App)
		}
	}
	return engi.Cut(p, list, func(x engi.App) string { return string(x.ID) })
}

// Open implements engi.Apps.
func (a *Apps) Open(ctx context.Context, viewer engi.Viewer, name string) (engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil || x.State != engi.AppStopped {
		if err != nil {
			return engi.App{}, err
		}
		return x.App, nil
	}
	x.State, x.Sandbox = engi.AppReady, engi.NewSandboxID()
	_, err = a.happen(ctx, x, engi.EventAppState, engi.AppUpdate{Kind: engi.AppStateChanged, State: x.State})
	return x.App, err
}

// Stop implements engi.Apps.
func (a *Apps) Stop(ctx context.Context, viewer engi.Viewer, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil || x.State == engi.AppStopped {
		return err
	}
	x.State, x.Sandbox, x.Error = engi.AppStopped, "", nil
	_, err = a.happen(ctx, x, engi.EventAppState, engi.AppUpdate{Kind: engi.AppStateChanged, State: x.State})
	return err
}

// Remove implements engi.Apps.
func (a *Apps) Remove(ctx context.Context, viewer engi.Viewer, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return err
	}
	x.State = engi.AppRemoved
	a.all = slices.DeleteFunc(a.all, func(y *app) bool { return x == y })
	_, err = a.happen(ctx, x, engi.EventAppRemoved, engi.AppUpdate{Kind: engi.AppStateChanged, State: x.State})
	return err
}

// Apply implements engi.Apps.
func (a *Apps) Apply(ctx context.Context, spec engi.ApplySpec) (int64, error) {
	if err := spec.Faults().Err(); err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(spec.Viewer, spec.App)
	if err != nil {
		return 0, err
	}
	if first, ok := x.applied[spec.Idempotency]; ok && spec.Idempotency != "" {
		if first.spec != spec {
			return 0, errRepeated
		}
		return first.seq, nil
	}
	if x.Applying != 0 {
		return 0, engi.Errorf(engi.Conflict, "another apply is under way in app %s", x.Name).WithRemedy("wait for its end, or cancel it")
	}
	seq, err := a.happen(ctx, x, engi.EventAppApplying, engi.AppUpdate{Kind: engi.AppApplyBegun})
	if err != nil {
		return 0, err
	}
	x.applied[spec.Idempotency] = appRepeat{spec, seq}
	x.Applying = seq
	do := func(u engi.AppUpdate) {
		event := map[engi.AppUpdateKind]string{engi.AppApplied: engi.EventAppApplied, engi.AppApplyFailed: engi.EventAppApplyFailed, engi.AppLog: ""}
		kind, ok := event[u.Kind]
		if !ok {
			kind = engi.EventAppProgress
		}
		u.Apply = seq
		if err == nil {
			_, err = a.happen(ctx, x, kind, u)
		}
	}
	do(engi.AppUpdate{Kind: engi.AppProgress, Step: "parse"})
	if strings.Contains(spec.Text, "wait") {
		return seq, err
	}
	x.Applying = 0
	files := maps.Clone(x.revisions[len(x.revisions)-1].files)
	for _, m := range appPackages.FindAllStringSubmatch(spec.Text, -1) {
		do(engi.AppUpdate{Kind: engi.AppProgress, Step: "packages"})
		do(engi.AppUpdate{Kind: engi.AppLog, Text: "added 1 package"})
		do(engi.AppUpdate{Kind: engi.AppPackage, Name: m[1]})
	}
	found := appFiles.FindAllStringSubmatch(spec.Text, -1)
	if strings.Contains(spec.Text, "fail") || len(found) == 0 {
		do(engi.AppUpdate{Kind: engi.AppApplyFailed, Path: "src/App.jsx", Line: 3, Error: engi.Errorf(engi.Invalid, "src/App.jsx:3: unexpected token").WithRemedy("write it again")})
		return seq, err
	}
	do(engi.AppUpdate{Kind: engi.AppProgress, Step: "write"})
	for _, m := range found {
		op := engi.FileCreated
		if _, ok := files[m[1]]; ok {
			op = engi.FileWritten
		}
		files[m[1]] = m[2]
		do(engi.AppUpdate{Kind: engi.AppFileWritten, Path: m[1], Op: op})
	}
	do(engi.AppUpdate{Kind: engi.AppProgress, Step: "check"})
	r := x.revise(engi.Revision{Message: cmp.Or(spec.Message, "Changed "+found[0][1]), Actor: spec.Actor}, files)
	if spec.Snapshot {
		do(engi.AppUpdate{Kind: engi.AppProgress, Step: "snapshot"})
		r = x.keep()
	}
	do(engi.AppUpdate{Kind: engi.AppApplied, Revision: r.Number})
	return seq, err
}

// Edit implements engi.Apps: the text of the model is the prompt.
func (a *Apps) Edit(ctx context.Context, spec engi.EditSpec) (int64, error) {
	a.mu.Lock()
	x, err := a.find(spec.Viewer, spec.App)
	if err != nil {
		a.mu.Unlock()
		return 0, err
	}
	key := "edit " + spec.Idempotency
	if first, ok := x.applied[key]; ok && spec.Idempotency != "" {
		a.mu.Unlock()
		if first.spec.Text != spec.Prompt {
			return 0, errRepeated
		}
		return first.seq, nil
	}
	if spec.Model == "none" {
		a.mu.Unlock()
		return 0, engi.Errorf(engi.Unsupported, "no language model is configured").WithRemedy("configure one")
	}
	seq, err := a.happen(ctx, x, engi.EventAppEditing, engi.AppUpdate{Kind: engi.AppEditBegun})
	x.applied[key] = appRepeat{engi.ApplySpec{Text: spec.Prompt}, seq}
	tell := func(event string, u engi.AppUpdate) {
		if u.Edit = seq; err == nil {
			_, err = a.happen(ctx, x, event, u)
		}
	}
	last := engi.AppUpdate{Kind: engi.AppEdited, Round: 1, Cost: 1500, Text: "1: tried"}
	for n := range spec.Attempts { // all attempts write the same
		tell(engi.EventAppProgress, engi.AppUpdate{Kind: engi.AppAttempt, Attempt: n + 1, Branch: x.ID, Name: fmt.Sprint(x.Name, "-", n+1), Port: x.Port, Model: spec.Model})
		tell(engi.EventAppProgress, engi.AppUpdate{Kind: engi.AppAttempted, Attempt: n + 1, Branch: x.ID, Model: spec.Model, Round: 1, Cost: 1500, Revision: 2})
		last.Attempt = 1
	}
	if spec.Judge != nil {
		tell(engi.EventAppProgress, engi.AppUpdate{Kind: engi.AppJudged, Attempt: 1, Text: "for " + spec.Judge.Command + spec.Judge.Model + spec.Judge.Criteria})
	}
	tell(engi.EventAppProgress, engi.AppUpdate{Kind: engi.AppRound, Round: 1})
	tell("", engi.AppUpdate{Kind: engi.AppOutput, Text: spec.Prompt})
	a.mu.Unlock()
	if err != nil {
		return 0, err
	}
	before := x.Revision
	if _, err := a.Apply(ctx, engi.ApplySpec{Viewer: spec.Viewer, App: spec.App, Text: spec.Prompt, Actor: spec.Actor}); err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if last.Revision = x.Revision; x.Revision == before {
		tell(engi.EventAppProgress, engi.AppUpdate{Kind: engi.AppProblem, Source: "apply", Path: "src/App.jsx", Line: 3, Text: "unexpected token"})
		last.Revision, last.Error = 0, engi.Errorf(engi.Conflict, "the app is not well after 1 rounds").WithRemedy("edit again")
	}
	tell(engi.EventAppEdited, last)
	return seq, err
}

// Watch implements engi.Apps.
func (a *Apps) Watch(ctx context.Context, viewer engi.Viewer, name string, seq int64) iter.Seq2[engi.AppUpdate, error] {
	return func(yield func(engi.AppUpdate, error) bool) {
		a.mu.Lock()
		x, err := a.find(viewer, name)
		if err != nil {
			a.mu.Unlock()
			yield(engi.AppUpdate{}, err)
			return
		}
		seen := 0
		for i, u := range x.log {
			if u.Seq > 0 && u.Seq <= seq {
				seen = i + 1
			}
		}
		for {
			next, wake := slices.Clone(x.log[seen:]), a.wake
			seen += len(next)
			a.mu.Unlock()
			for _, u := range next {
				if !yield(u, nil) || u.State == engi.AppRemoved {
					return
				}
			}
			if len(next) == 0 {
				select {
				case <-wake:
				case <-ctx.Done():
					yield(engi.AppUpdate{}, engi.Errorf(engi.Expired, "watch app: %v", context.Cause(ctx)))
					return
				}
			}
			a.mu.Lock()
		}
	}
}

// Cancel implements engi.Apps.
func (a *Apps) Cancel(ctx context.Context, viewer engi.Viewer, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	switch {
	case err != nil:
		return err
	case x.Applying == 0:
		return engi.Errorf(engi.Conflict, "no apply is under way in app %s", x.Name)
	}
	seq := x.Applying
	x.Applying = 0
	_, err = a.happen(ctx, x, engi.EventAppApplyFailed, engi.AppUpdate{Kind: engi.AppApplyFailed, Apply: seq, Error: engi.Errorf(engi.Expired, "the apply was cancelled")})
	return err
}

// Rollback implements engi.Apps.
func (a *Apps) Rollback(ctx context.Context, viewer engi.Viewer, name string, revision int64) (engi.Revision, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return engi.Revision{}, err
	}
	if x.Applying != 0 {
		return engi.Revision{}, engi.Errorf(engi.Conflict, "an apply is under way in app %s", x.Name)
	}
	then, err := x.revision(revision)
	if err != nil {
		return engi.Revision{}, err
	}
	r := x.revise(engi.Revision{Of: revision, Message: fmt.Sprintf("Rolled back to %d", revision)}, then.files)
	_, err = a.happen(ctx, x, engi.EventAppRolledBack, engi.AppUpdate{Kind: engi.AppRolledBack, Revision: r.Number})
	return r, err
}

// Revisions implements engi.Apps.
func (a *Apps) Revisions(_ context.Context, viewer engi.Viewer, name string, p engi.Paging) ([]engi.Revision, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return nil, err
	}
	var list []engi.Revision
	for _, r := range slices.Backward(x.revisions) {
		list = append(list, r.Revision)
	}
	return engi.Cut(p, list, func(r engi.Revision) string { return strconv.FormatInt(r.Number, 10) })
}

// Diff implements engi.Apps. Each file that has changed is one hunk.
func (a *Apps) Diff(_ context.Context, viewer engi.Viewer, name string, from, to int64) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return "", err
	}
	after, err := x.revision(to)
	if err != nil {
		return "", err
	}
	var before appRevision
	if from = cmp.Or(from, after.Parent); from > 0 {
		if before, err = x.revision(from); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	paths := maps.Clone(before.files)
	if paths == nil {
		paths = map[string]string{}
	}
	maps.Copy(paths, after.files)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if before.files[path] == after.files[path] {
			continue
		}
		fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n", path, path)
		for line := range strings.Lines(before.files[path]) {
			b.WriteString("-" + line)
		}
		for line := range strings.Lines(after.files[path]) {
			b.WriteString("+" + line)
		}
	}
	return b.String(), nil
}

// Files implements engi.Apps.
func (a *Apps) Files(_ context.Context, viewer engi.Viewer, name string, revision int64) ([]engi.AppFile, error) {
	r, err := a.at(viewer, name, revision)
	if err != nil {
		return nil, err
	}
	var list []engi.AppFile
	for _, path := range slices.Sorted(maps.Keys(r.files)) {
		sum := sha256.Sum256([]byte(r.files[path]))
		list = append(list, engi.AppFile{Path: path, Size: int64(len(r.files[path])), Mode: 0o644, Digest: hex.EncodeToString(sum[:]), Since: r.Number})
	}
	return list, nil
}

// Manifest implements engi.Apps. Each file imports react, and each in src is a component.
func (a *Apps) Manifest(ctx context.Context, viewer engi.Viewer, name string, revision int64) (engi.AppManifest, error) {
	r, err := a.at(viewer, name, revision)
	if err != nil {
		return engi.AppManifest{}, err
	}
	files, err := a.Files(ctx, viewer, name, r.Number)
	m := engi.AppManifest{App: r.App, Revision: r.Number, Entry: "src/App.jsx", Packages: map[string]string{"react": "19.2.0"}, Routes: []engi.AppRoute{{Path: "/", Component: "App", File: "src/App.jsx", Line: 1}}}
	for _, f := range files {
		m.Files = append(m.Files, engi.AppSource{AppFile: f, Type: "component", Lines: 1, Imports: []engi.AppImport{{Path: "react", Package: "react", Line: 1, Type: "static"}}, Exports: []string{"default"}})
		if title, ok := strings.CutPrefix(f.Path, "src/"); ok {
			m.Components = append(m.Components, engi.AppComponent{Name: strings.TrimSuffix(title, ".jsx"), File: f.Path, Line: 1})
		}
	}
	return m, err
}

func (a *Apps) at(viewer engi.Viewer, name string, revision int64) (appRevision, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil {
		return appRevision{}, err
	}
	return x.revision(revision)
}

// File implements engi.Apps.
func (a *Apps) File(_ context.Context, viewer engi.Viewer, name, path string, revision int64) (io.ReadCloser, error) {
	r, err := a.at(viewer, name, revision)
	if err != nil {
		return nil, err
	}
	text, ok := r.files[path]
	if !ok {
		return nil, engi.Errorf(engi.NotFound, "revision %d has no file %.80q", r.Number, path)
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// Zip implements engi.Apps.
func (a *Apps) Zip(_ context.Context, viewer engi.Viewer, name string, revision int64, w io.Writer) error {
	r, err := a.at(viewer, name, revision)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(r.files)) {
		f, err := z.Create(path)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(f, r.files[path]); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	_, err = b.WriteTo(w)
	return err
}

// Logs implements engi.Apps.
func (a *Apps) Logs(ctx context.Context, viewer engi.Viewer, name, after string, max int) (engi.AppLogs, error) {
	x, err := a.Get(ctx, viewer, name)
	switch {
	case err != nil:
		return engi.AppLogs{}, err
	case x.Sandbox == "":
		return engi.AppLogs{}, engi.Errorf(engi.Conflict, "app %s is stopped", x.Name).WithRemedy("open it first")
	}
	text := "VITE ready in 100 ms\n"
	if after == "21.vite" {
		text = ""
	}
	cut := len(text) > max
	return engi.AppLogs{
		Text: text[len(text)-min(max, len(text)):], Truncated: cut, Mark: "21.vite", Faults: []engi.AppFault{{Source: "browser", Path: "src/App.tsx", Line: 3, Text: "x is not defined"}},
	}, nil
}

// Status implements engi.Apps.
func (a *Apps) Status(ctx context.Context, viewer engi.Viewer, name string) (engi.AppStatus, error) {
	x, err := a.Get(ctx, viewer, name)
	if err != nil {
		return engi.AppStatus{}, err
	}
	r, err := a.at(viewer, name, 0)
	return engi.AppStatus{App: x, Healthy: x.State == engi.AppReady, Checked: appMoment, Latency: 2 * time.Millisecond, Startup: time.Second, Memory: 100 << 20, Files: len(r.files), CacheHits: 0.9, FileTime: 4 * time.Millisecond,
		Alerts: []engi.AppAlert{{Metric: "memory", Value: 0.85, Limit: 0.8, Action: engi.AppActRestartServer, Text: "the sandbox uses 85 % of its memory, more than 80 %", Since: appMoment, Seq: 7}}}, err
}
