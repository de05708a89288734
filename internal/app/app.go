// Package app manages applications that models write: it implements [engi.Apps]. An
// app consists of its revisions; the sandbox in which its server runs is a working copy that can
// be rebuilt from the last one.
//
// It does not run programs, which package fleet does, and has no parsers of its
// own: internal/app/output parses the text of models, internal/app/edit applies their edits,
// and internal/app/project finds the imports of source files.
//
// Every change of a sandbox is recorded before it is made (see [Undo]), and a new
// revision is recorded last, so that an app that was being changed when the node was
// killed is restored to its last revision before it is used again.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/holder"
)

// Workspaces is the part of [engi.Workspaces] that a Service needs.
type Workspaces interface {
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error)
	Start(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error)
	Files(ctx context.Context, viewer engi.Viewer, idOrName string, revision int64) ([]engi.WorkspaceFile, error)
}

// Options configures a Service. All fields except Models, Log, Metrics and the durations are required.
type Options struct {
	Store      Store
	Events     engi.EventLog
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Lifecycle  engi.Lifecycle
	Snapshots  engi.Snapshots
	Workspaces Workspaces            // workspaces whose services apps may reach, and in which apps may be; nil for none
	Models     Models                // models for edits; nil for none
	Log        *slog.Logger          // nil discards
	Metrics    prometheus.Registerer // nil registers none

	Network  engi.NetworkPolicy // network policy of apps without one
	MaxAwake time.Duration      // maximum run time of a sandbox before it hibernates, even in use
	Idle     time.Duration      // time without use after which a sandbox hibernates; 0 means 15 minutes
	Health   time.Duration      // interval of health checks of apps in use; 0 means 30 seconds
	Alerts   Settings           // thresholds of alerts; zero means [DefaultSettings]; its Health is ignored
	Look     time.Duration      // time to wait for errors of a page after an apply of an edit; 0 means 1 second
}

const (
	defaultTemplate = "vite-react"
	defaultIdle     = 15 * time.Minute
	defaultHealth   = 30 * time.Second
	maxApps         = 1000 // maximum number of apps of one owner
	maxRevisions    = 1000
	maxHistory      = 256 << 20 // bytes of contents of one app
	maxStored       = 2 << 30   // bytes of contents of all apps of an owner
	cacheSize       = 64 << 20  // bytes of contents in memory
	undoTime        = time.Minute
	putBackTries    = 8 // attempts within four minutes
)

// size is the resource limit of an app's sandbox, unless the template has a lower one.
var size = engi.Size{VCPUs: 1, Memory: 2 << 30, Disk: 1 << 30}

// A Service manages apps. It is safe for concurrent use.
type Service struct {
	opt       Options
	sandboxes holder.Holder
	meter     *metrics
	cache     *cache
	edits     *engi.Shares
	keys      *idempotency.Keys
	joining   *engi.KeyedSemaphore[engi.WorkspaceID] // lock of the directories and ports of the apps in a workspace
	manifests manifests
	work      sync.WaitGroup     // background work
	life      context.Context    // context of the background work
	end       context.CancelFunc // ends life

	publishing chan struct{}                    // holds a value for each publication in memory
	publishers *engi.KeyedSemaphore[engi.Owner] // limits publications to one per owner at a time

	mu   sync.Mutex
	apps map[engi.AppID]*app          // guarded by mu
	left map[engi.SandboxID]time.Time // times at which checks last left the sandboxes; guarded by mu

	checked map[engi.Owner]bool // guarded by mu; owners whose apps are being checked
}

var _ engi.Apps = (*Service)(nil)

// An app is the node's in-memory state of an app.
type app struct {
	id     engi.AppID
	locked holder.Lock // is held while the sandbox is used
	git    holder.Lock // is held while the git repository is written
	copy   workingCopy // guarded by locked
	hands  time.Time   // time at which a reader last caused a revision; guarded by locked
	live   hub

	gitNext chan struct{} // holds a value while a caller waits for git

	mu     sync.Mutex
	cancel context.CancelCauseFunc // cancels the running apply or edit; nil if there is none; guarded by mu, like all fields below
	health health
}

// New returns a service. It does no background work before Run.
func New(o Options) *Service {
	o.Idle, o.Health, o.Look = cmp.Or(o.Idle, defaultIdle), cmp.Or(o.Health, defaultHealth), cmp.Or(o.Look, lookTime)
	if o.Alerts == (Settings{}) {
		o.Alerts = DefaultSettings()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	held := holder.Holder{Sandboxes: o.Sandboxes, Thing: func(sb engi.Sandbox) string { return sb.Notes[noteApp] }, Bound: limits.Bound, Log: o.Log}
	s := &Service{opt: o, sandboxes: held, meter: newMetrics(o.Metrics), cache: newCache(cacheSize), edits: engi.NewShares(maxEdits), keys: idempotency.NewKeys(nil), joining: engi.NewKeyedSemaphore[engi.WorkspaceID](1), apps: map[engi.AppID]*app{}, left: map[engi.SandboxID]time.Time{}, checked: map[engi.Owner]bool{}, publishing: make(chan struct{}, publishers), publishers: engi.NewKeyedSemaphore[engi.Owner](1)}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Run finishes or undoes the unfinished work of an earlier node, and checks apps until ctx ends. Work
// that is running then is interrupted.
func (s *Service) Run(ctx context.Context, ready func()) error {
	defer func() {
		s.mu.Lock() // no new work starts
		s.end()
		s.mu.Unlock()
		s.work.Wait()
	}()
	if err := s.reconcile(ctx); err != nil {
		return err
	}
	ready()
	tick := time.NewTicker(s.opt.Health)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.checkAll(ctx)
		}
	}
}

// begin runs f in the background, unless the service has ended.
func (s *Service) begin(ctx context.Context, f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	// The work continues after ctx ends, and ends with the service.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.life, cancel)
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer cancel()
		defer stop()
		f(ctx)
	}()
	return true
}

// late returns a context for cleanup after ctx has ended.
func (s *Service) late(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// reconcile reports the end of applies and edits that an earlier node left unfinished. Their
// changes are undone before the app is used, and attempts are deleted.
func (s *Service) reconcile(ctx context.Context) error {
	all, err := s.opt.Store.List(ctx, engi.Everyone, engi.Paging{})
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.AttemptOf != "" {
			s.discardLater(ctx, r.ID, func() {})
			continue
		}
		if r.Applying != 0 {
			why := engi.Errorf(engi.Unavailable, "the node was stopped during the apply").WithRemedy("apply the text again")
			if _, err := s.ended(ctx, r.ID, why); err != nil {
				s.opt.Log.WarnContext(ctx, "record the end of an apply; it is tried again", "app", r.ID, "error", err)
				s.begin(ctx, func(context.Context) { s.endApply(r.ID, why) })
			}
		}
		if r.Editing != 0 {
			why := engi.Errorf(engi.Unavailable, "the node was stopped during the edit").WithRemedy("look at the app's files, and edit again")
			if err := s.edited(ctx, r.ID, eventData{Error: errorOf(why)}); err != nil {
				return err
			}
		}
		if r.Undo != nil || r.State == engi.AppStarting {
			s.putBackLater(ctx, r.ID)
		}
		if r.Stray.any() {
			s.tidyLater(ctx, r.ID)
		}
	}
	return nil
}

// putBackLater restores an app to its last revision in the background, by opening it. It
// eventually gives up: the next use tries again.
func (s *Service) putBackLater(ctx context.Context, id engi.AppID) {
	s.begin(ctx, func(ctx context.Context) {
		if err := retry(ctx, putBackTries, func() error {
			_, err := s.Open(ctx, engi.Everyone, string(id))
			return err
		}); err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "put an app back to its last revision; its next use tries again", "app", id, "error", err)
		}
	})
}

// retry calls f until it succeeds, at most the given number of times, and stops if it reports
// NotFound.
func retry(ctx context.Context, tries int, f func() error) (err error) {
	for pause, i := time.Second, 1; ; pause, i = 2*pause, i+1 {
		if err = f(); err == nil || engi.Is(err, engi.NotFound) || i == tries || clock.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// live returns the in-memory state of an app.
func (s *Service) live(id engi.AppID) *app {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.apps[id]
	if a == nil {
		a = &app{id: id, locked: holder.NewLock(), git: holder.NewLock(), gitNext: make(chan struct{}, 1)}
		s.apps[id] = a
	}
	return a
}

// forget drops the in-memory state of a deleted app.
func (s *Service) forget(id engi.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.apps, id)
	s.manifests.forget(id)
}

var appName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// Create implements [engi.Apps].
func (s *Service) Create(ctx context.Context, spec engi.AppSpec) (_ engi.App, err error) {
	defer engi.Annotate(&err, "create app %.70s", spec.Name)
	if err := checkPlace(spec); err != nil {
		return engi.App{}, err
	}
	if spec.Directory == "" {
		spec.Template = cmp.Or(spec.Template, defaultTemplate)
	}
	if spec.Name != "" && !appName.MatchString(spec.Name) {
		return engi.App{}, engi.Errorf(engi.Invalid, "%.70q is not a name", spec.Name).WithRemedy("use 1 to 63 letters, digits and dashes")
	}
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency}
	spec.Idempotency = ""
	request.Fingerprint = idempotency.Fingerprint(spec)
	return s.once(ctx, request, func() (Record, error) { return s.add(ctx, spec, request) })
}

// once opens the app that create records, or the app that an earlier request with the same key created.
func (s *Service) once(ctx context.Context, q idempotency.Request, create func() (Record, error)) (engi.App, error) {
	r, repeated, err := idempotency.Once(ctx, s.keys, q, s.opt.Store.ByIdempotencyKey, create)
	if err != nil {
		return engi.App{}, err
	}
	if repeated {
		return s.Open(ctx, r.Owner.Viewer(), string(r.ID))
	}
	return s.openNew(ctx, r.ID)
}

// add records a new app.
func (s *Service) add(ctx context.Context, spec engi.AppSpec, q idempotency.Request) (Record, error) {
	w, err := s.workspace(ctx, spec)
	if err != nil {
		return Record{}, err
	}
	if spec.Directory != "" {
		free, err := s.joining.Acquire(ctx, w.ID)
		if err != nil {
			return Record{}, err
		}
		defer free()
		spec.Template = w.Template
	} else {
		t, err := s.template(ctx, spec.Owner, spec.Template)
		if err != nil {
			return Record{}, err
		}
		spec.Port = t.Ports[0]
	}
	all, err := s.underLimit(ctx, spec.Owner)
	if err == nil {
		err = checkNeighbours(all, w.ID, spec)
	}
	if err != nil {
		return Record{}, err
	}
	if spec.Replace {
		for _, r := range all {
			if r.Owner != spec.Owner || r.State == engi.AppStopped {
				continue
			}
			if err := engi.Ignore(s.Stop(ctx, r.Owner.Viewer(), string(r.ID)), engi.NotFound); err != nil {
				return Record{}, err
			}
		}
	}
	now := time.Now().UTC()
	r := Record{
		App: engi.App{
			ID: engi.NewAppID(), Owner: spec.Owner, Name: spec.Name, Template: spec.Template, Workspace: w.ID, Directory: spec.Directory, Start: spec.Start, State: engi.AppStarting, Port: spec.Port,
			Metadata: spec.Metadata, Created: now, Used: now,
		},
		Env: spec.Env, Network: spec.Network, Idempotency: q.Key, Fingerprint: q.Fingerprint,
	}
	r.Name = cmp.Or(r.Name, madeUp(r.ID))
	if spec.Network.Mode == "" && len(spec.Network.Allow) == 0 {
		r.Network.Mode, r.Network.Allow = s.opt.Network.Mode, s.opt.Network.Allow
	}
	switch {
	case spec.Directory != "":
		r.Network = engi.NetworkPolicy{} // the sandbox has the workspace's
	case w.ID != "":
		if r.Network.Group = w.ID.Group(); r.Network.Mode == engi.NetworkNone {
			r.Network.Mode = engi.NetworkIsolated // the strictest mode that has groups
		}
	}
	return r, s.opt.Store.Put(ctx, r)
}

// workspace returns the workspace whose services a new app may reach, which has the app's owner: the app
// would outlive a change of roles.
func (s *Service) workspace(ctx context.Context, spec engi.AppSpec) (w engi.Workspace, err error) {
	switch {
	case spec.Workspace == "":
		return w, nil
	case s.opt.Workspaces == nil:
		return w, errNoWorkspaces
	case spec.Network.Group != "":
		return w, engi.Errorf(engi.Invalid, "an app of a workspace is in the group of the workspace").WithRemedy("leave the group out, or the workspace")
	}
	if w, err = s.opt.Workspaces.Get(ctx, spec.Owner.Viewer(), spec.Workspace); err == nil && w.Owner != spec.Owner {
		err = engi.Errorf(engi.Denied, "workspace %s belongs to another owner", w.ID).WithRemedy("ask its owner to create the app")
	}
	return w, err
}

// madeUp returns a generated name for an app.
func madeUp(id engi.AppID) string { return "app-" + id.Label()[:8] }

// underLimit returns the apps of an owner. It reports Exhausted if the owner may have no more.
func (s *Service) underLimit(ctx context.Context, owner engi.Owner) ([]Record, error) {
	all, err := s.opt.Store.List(ctx, owner.Viewer(), engi.Paging{})
	if err == nil && owner != "" && len(all) >= maxApps {
		err = engi.Errorf(engi.Exhausted, "there are already %d apps, which is the limit", len(all)).WithRemedy("remove an unused one")
	}
	return all, err
}

// openNew opens an app that was just recorded. It deletes the app if it cannot get a sandbox.
func (s *Service) openNew(ctx context.Context, id engi.AppID) (engi.App, error) {
	opened, err := s.Open(ctx, engi.Everyone, string(id))
	if engi.Is(err, engi.Invalid, engi.NotFound, engi.Exhausted, engi.Unsupported, engi.Denied) && opened.Sandbox == "" || opened.Directory != "" && engi.Is(err, engi.Conflict) {
		// The app has no sandbox, or its directory or port is taken there, and another attempt would fail the same way.
		late, cancel := s.late(ctx)
		defer cancel()
		return engi.App{}, errors.Join(err, s.Remove(late, engi.Everyone, string(id)))
	}
	if err != nil && opened.State == engi.AppFailed {
		return opened, nil // opened.Error says why
	}
	return opened, err
}

// template returns a template, if it is fit for apps.
func (s *Service) template(ctx context.Context, owner engi.Owner, name string) (engi.Template, error) {
	t, err := s.opt.Templates.Get(ctx, name)
	if err == nil {
		err = fit(t, owner)
	}
	return t, err
}

// fit reports why the apps of an owner cannot have a template.
func fit(t engi.Template, owner engi.Owner) error {
	switch {
	case !t.VisibleTo(owner.Reach()):
		return engi.ErrNoTemplate
	case t.Start == "" || len(t.Ports) == 0 || t.WorkDir == "" || t.WorkDir == "/":
		return engi.Errorf(engi.Invalid, "the template %s is not for apps", t.Name).
			WithRemedy("use vite-react, node-api or fastapi, or a template whose definition has working_dir, ports and start")
	}
	return nil
}

// Get implements [engi.Apps].
func (s *Service) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.App, error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	return r.App, err
}

// List implements [engi.Apps].
func (s *Service) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.App, error) {
	all, err := s.opt.Store.List(ctx, viewer, p)
	if err != nil {
		return nil, err
	}
	apps := make([]engi.App, len(all))
	for i, r := range all {
		apps[i] = r.App
	}
	return apps, nil
}

// Open implements [engi.Apps].
func (s *Service) Open(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.App, err error) {
	defer engi.Annotate(&err, "open app %.70s", idOrName)
	u, err := s.open(ctx, viewer, idOrName, how{})
	if err == nil {
		u.close()
		return u.rec.App, nil
	}
	if r, e := s.opt.Store.Find(ctx, viewer, idOrName); e == nil {
		return r.App, err
	}
	return engi.App{}, err
}

// open finds an app of an owner and calls hold. An app that must be idle and is not is a
// Conflict at once, before open waits for anything.
func (s *Service) open(ctx context.Context, viewer engi.Viewer, idOrName string, h how) (*use, error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err == nil && h.idle {
		err = r.busy(0)
	}
	if err != nil {
		return nil, err
	}
	return s.hold(ctx, s.live(r.ID), h)
}

// Stop implements [engi.Apps].
func (s *Service) Stop(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "stop app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	a := s.live(r.ID)
	a.cancelApply(errStopped)
	unlock, err := a.locked.Acquire(ctx, "app")
	if err != nil {
		return err
	}
	defer unlock()
	return s.stopLocked(ctx, a, r.ID, true)
}

var errStopped = engi.Errorf(engi.Conflict, "the app was stopped during the apply").WithRemedy("open it and apply again")

// stopLocked destroys the sandbox, or ends the app's server in the sandbox of its workspace, after recording manual changes in it
// if keep is set.
func (s *Service) stopLocked(ctx context.Context, a *app, id engi.AppID, keep bool) error {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil {
		return err
	}
	if keep {
		s.keepChanges(ctx, a, r)
	}
	if r.Directory != "" {
		err = s.vacate(ctx, a, r)
	} else {
		err = s.sandboxes.Release(ctx, string(id), r.Sandbox, r.State == engi.AppStarting || r.State == engi.AppFailed)
	}
	if err != nil {
		return err
	}
	a.copy.forget()
	_, err = s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		if r.Sandbox = ""; r.Directory == "" && r.Undo != nil && r.Undo.Snapshot == "" {
			r.Undo = nil
		}
		return become(r, tx, engi.AppStopped, nil)
	})
	return err
}

// keepChanges records manual changes in a sandbox that is about to be destroyed.
func (s *Service) keepChanges(ctx context.Context, a *app, r Record) {
	if r.Sandbox == "" || r.Undo != nil || r.Revision == 0 {
		return
	}
	g, leave, err := s.sandboxes.Enter(ctx, r.Sandbox)
	if err == nil {
		defer leave()
		var t engi.Template
		if t, err = s.templateOf(ctx, r); err == nil {
			_, err = s.capture(ctx, a, r, g, t.WorkDir)
		}
	} else if engi.Is(err, engi.NotFound) {
		return
	}
	if err != nil {
		s.opt.Log.WarnContext(ctx, "keep what was changed in the sandbox of an app, which goes", "app", r.ID, "error", err)
	}
}

// Remove implements [engi.Apps].
func (s *Service) Remove(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	a := s.live(r.ID)
	a.cancelApply(errRemoved)
	unlock, err := a.locked.Acquire(ctx, "app")
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.stopLocked(ctx, a, r.ID, false); err != nil {
		return err
	}
	if err := s.dropSnapshots(ctx, r.ID); err != nil {
		s.tidyLater(ctx, r.ID)
		return err
	}
	if err := s.opt.Store.Remove(ctx, r.ID); err != nil {
		return err
	}
	s.forget(r.ID)
	return nil
}

var errRemoved = engi.Errorf(engi.NotFound, "the app was removed")

// become changes the state of an app, and appends an event if it differs.
func become(r *Record, tx Tx, to engi.AppState, why *engi.Error) error {
	if r.State == to {
		r.Error = why
		return nil
	}
	if _, err := r.State.To(to); err != nil {
		return err
	}
	if to == engi.AppStopped || to == engi.AppStarting || to == engi.AppReady {
		why = nil
	}
	if to == engi.AppStopped {
		if err := calm(r, tx); err != nil {
			return err
		}
	}
	from := r.State
	r.State, r.Error, r.Used = to, why, time.Now().UTC()
	_, err := tx.Emit(engi.EventAppState, eventData{From: from, State: to, Error: errorOf(why), Sandbox: r.Sandbox})
	return err
}

// setState records a new state.
func (s *Service) setState(ctx context.Context, id engi.AppID, to engi.AppState, why error) (Record, error) {
	return s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		if to == engi.AppReady && r.State == engi.AppStopped {
			if err := become(r, tx, engi.AppStarting, nil); err != nil {
				return err
			}
		}
		return become(r, tx, to, asError(why))
	})
}

// asError returns err as an error of this module.
func asError(err error) *engi.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*engi.Error](err); ok {
		c := *e
		c.Text, c.Remedy = fmt.Sprintf("%.2000s", err.Error()), engi.RemedyOf(err)
		return &c
	}
	return engi.Errorf(engi.KindOf(err), "%.2000s", err)
}
