package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/app/output"
	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// applyTime is the maximum time of an apply.
const applyTime = 15 * time.Minute

// Apply implements [engi.Apps].
func (s *Service) Apply(ctx context.Context, spec engi.ApplySpec) (_ int64, err error) {
	defer engi.Annotate(&err, "apply to app %.70s", spec.App)
	if err := spec.Faults().Err(); err != nil {
		return 0, err
	}
	r, err := s.opt.Store.Find(ctx, spec.Viewer, spec.App)
	if err != nil {
		return 0, err
	}
	if spec.Snapshot {
		if err := r.alone("snapshots"); err != nil {
			return 0, err
		}
	}
	j := job{ApplySpec: spec, request: idempotency.Request{Owner: r.Owner, Key: spec.Idempotency}}
	spec.Viewer, spec.App, spec.Actor, spec.Idempotency = r.Owner.Viewer(), string(r.ID), "", ""
	j.request.Fingerprint = idempotency.Fingerprint(spec)
	return s.beginOnce(ctx, r.ID, j.request, "", func() (int64, error) {
		a := s.live(r.ID)
		seq, err := s.applying(ctx, r.ID, j)
		if err != nil {
			return 0, err
		}
		return seq, s.beginCancellable(ctx, a, func(ctx context.Context) { s.apply(ctx, a, r.ID, seq, j) })
	})
}

// beginOnce returns the Seq of the event with which create begins a change of an app, or the
// Seq of the event of an earlier request with the same key. The key of the event has a prefix.
func (s *Service) beginOnce(ctx context.Context, id engi.AppID, q idempotency.Request, prefix string, create func() (int64, error)) (int64, error) {
	find := func(ctx context.Context, owner engi.Owner, key string) (idempotency.Event, error) {
		return s.opt.Store.EventByIdempotencyKey(ctx, owner, id, prefix+key)
	}
	e, _, err := idempotency.Once(ctx, s.keys, q, find, func() (idempotency.Event, error) {
		seq, err := create()
		return idempotency.Event{Event: engi.Event{Seq: seq}}, err
	})
	return e.Seq, err
}

// A job is an apply to carry out.
type job struct {
	engi.ApplySpec
	request idempotency.Request // with the key of the apply
	edit    int64               // Seq of the edit to which the apply belongs; 0 for none
	drafts  []output.Output     // earlier outputs of the model that are not in the app yet
	ready   *plan               // plan to carry out instead of a text; nil to read the text
}

// applying records the start of an apply.
func (s *Service) applying(ctx context.Context, id engi.AppID, j job) (seq int64, err error) {
	_, err = s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) (err error) {
		if err := r.busy(j.edit); err != nil {
			return err
		}
		seq, err = tx.EmitOnce(engi.EventAppApplying, eventData{Text: firstLine(j.Message), Actor: j.Actor, Edit: j.edit}, j.request)
		r.Applying, r.Used = seq, time.Now().UTC()
		return err
	})
	if err == nil || seq == 0 {
		return seq, err
	}
	if !s.begun(ctx, id, func(r Record) bool { return r.Applying == seq }) {
		return 0, err
	}
	return seq, nil
}

// begun reports whether a transaction was committed although it returned an error:
// otherwise nobody would end the work that it started.
func (s *Service) begun(ctx context.Context, id engi.AppID, is func(r Record) bool) (yes bool) {
	late, stop := s.late(ctx)
	defer stop()
	err := insist(late, func() error {
		r, err := s.opt.Store.Find(late, engi.Everyone, string(id))
		yes = err == nil && is(r)
		return err
	})
	return yes && err == nil
}

// busy reports Conflict while a change of the app is running, except for the edit with the
// given Seq.
func (r *Record) busy(edit int64) error {
	switch {
	case r.Applying != 0 && r.Editing == 0:
		return engi.Errorf(engi.Conflict, "another apply to the app is under way").WithRemedy("wait for its end, or cancel it")
	case r.Applying != 0 || r.Editing != edit:
		return engi.Errorf(engi.Conflict, "a model changes the app").WithRemedy("wait for the end of the edit, or cancel it")
	}
	return nil
}

// beginCancellable runs f in the background with a context that Cancel ends.
func (s *Service) beginCancellable(ctx context.Context, a *app, f func(ctx context.Context)) error {
	cancelled := make(chan struct{})
	if !s.begin(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		a.setCancel(cancel)
		close(cancelled)
		defer a.setCancel(nil)
		f(ctx)
	}) {
		return engi.Errorf(engi.Unavailable, "the node is being stopped").WithRemedy("try it again in a moment")
	}
	<-cancelled // Cancel works from now on
	return nil
}

func (a *app) setCancel(f context.CancelCauseFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = f
}

// cancelApply cancels the running apply, and reports whether there was one.
func (a *app) cancelApply(why error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel == nil {
		return false
	}
	a.cancel(why)
	return true
}

// Cancel implements [engi.Apps].
func (s *Service) Cancel(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "cancel the apply to app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	why := errCancelled
	if r.Editing != 0 {
		why = errEditCancelled
	}
	if !s.live(r.ID).cancelApply(why) {
		return engi.Errorf(engi.Conflict, "neither an apply nor an edit is under way")
	}
	return nil
}

var (
	errCancelled     = engi.Errorf(engi.Expired, "the apply was cancelled")
	errEditCancelled = engi.Errorf(engi.Expired, "the edit was cancelled")
)

// An outcome is the result of an apply.
type outcome struct {
	err      error
	step     string // step that failed
	revision int64
	told     []eventData       // warnings
	bad      string            // file with an edit that matches no place
	wrote    map[string]string // files to write, by path
}

// apply carries out a started apply, and records its end.
func (s *Service) apply(ctx context.Context, a *app, id engi.AppID, seq int64, j job) (o outcome) {
	ctx, cancel := context.WithTimeoutCause(ctx, applyTime, engi.Errorf(engi.Expired, "the apply took longer than %v", applyTime))
	defer cancel()
	began := time.Now()
	o.err = s.tryApply(ctx, a, id, seq, j, &o)
	if o.err != nil && ctx.Err() == nil && s.lost(ctx, a, id, seq) {
		o = outcome{}
		o.err = s.tryApply(ctx, a, id, seq, j, &o)
	}
	s.meter.applied(began, o.err)
	_, broken := errors.AsType[faulty](o.err)
	a.count(!broken && engi.Is(o.err, engi.Internal, engi.Unavailable, engi.Exhausted))
	if o.err == nil || s.life.Err() != nil {
		return o // the next node tells of what this one has not ended
	}
	if cause := context.Cause(ctx); cause != nil {
		o.err = cause
	}
	s.endApply(id, o.err)
	return o
}

// lost reports whether an apply ended because its sandbox was lost, and announces that it starts
// again in another sandbox.
func (s *Service) lost(ctx context.Context, a *app, id engi.AppID, seq int64) bool {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil || r.Sandbox == "" {
		return false
	}
	_, leave, err := s.sandboxes.Reconnect(ctx, r.Sandbox)
	leave()
	if !engi.Is(err, engi.NotFound) {
		return false
	}
	s.reporter(ctx, &use{app: a, rec: r}, seq).warn("", 0, "the sandbox was lost, so the apply begins again in a new one")
	return true
}

// endApply records that an apply has failed, with retries: until then, no other apply
// can start.
func (s *Service) endApply(id engi.AppID, why error) {
	var r Record
	if err := insist(s.life, func() (err error) {
		r, err = s.ended(s.life, id, why)
		return err
	}); err != nil && !engi.Is(err, engi.NotFound) && s.life.Err() == nil {
		s.opt.Log.Error("record the end of an apply", "app", id, "error", err)
	}
	if r.Undo != nil {
		s.putBackLater(s.life, id)
	}
}

// A faulty is an error of the applied text, not of the app's sandbox.
type faulty struct{ error }

func (f faulty) Unwrap() error { return f.error }

// ended records that an apply has failed.
func (s *Service) ended(ctx context.Context, id engi.AppID, why error) (Record, error) {
	return s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		if r.Applying == 0 {
			return nil
		}
		_, err := tx.Emit(engi.EventAppApplyFailed, eventData{Apply: r.Applying, Edit: r.Editing, Error: errorOf(asError(why))})
		r.Applying = 0
		return err
	})
}

func (s *Service) tryApply(ctx context.Context, a *app, id engi.AppID, seq int64, j job, o *outcome) error {
	// Manual changes become a revision of their own.
	u, err := s.hold(ctx, a, how{repair: true, capture: true})
	if err != nil {
		return err
	}
	defer u.close()
	say := s.reporter(ctx, u, seq)
	say.edit = j.edit
	defer func() { o.step, o.told, o.revision = say.now, say.told, u.rec.Revision }()
	if err := say.step("parse", "Read what the model has written"); err != nil {
		return err
	}
	p, err := s.plan(ctx, u, j, say)
	o.bad, o.wrote = p.bad, map[string]string{}
	for _, c := range p.put {
		o.wrote[c.path] = string(c.data)
	}
	if err != nil {
		return err
	}
	return s.carryOut(ctx, u, p, say)
}

// A plan lists the changes to make in an app.
type plan struct {
	put      []content
	removed  []string
	packages []string
	commands []string
	message  string
	actor    string
	of       int64 // revision to roll back to; 0 for none
	keep     bool  // keep the result even if it has problems
	snapshot bool  // take a snapshot with the revision
	bad      string
}

func (p plan) paths() (all []string) {
	for _, c := range p.put {
		all = append(all, c.path)
	}
	return append(all, p.removed...)
}

// plan reads a text and earlier drafts. Parts without effect are reported as warnings.
func (s *Service) plan(ctx context.Context, u *use, j job, say *reporter) (p plan, err error) {
	if j.ready != nil {
		return *j.ready, nil
	}
	out := output.Parse(j.Text)
	files, err := s.opt.Store.Files(ctx, u.rec.ID, u.rec.Revision)
	if err != nil {
		return p, err
	}
	before := treeOf(files)
	for _, w := range out.Warnings {
		say.warn(w.Path, w.Line, w.Text)
	}
	for _, path := range out.Cut {
		say.warn(path, 0, "the text ends in the middle of this file, so it is as it was: ask the model for it again")
	}
	d := pendingFiles{next: map[string]string{}, gone: map[string]bool{}, placed: map[string]bool{}, read: func(path string) (string, bool, error) {
		f, ok := before[path]
		if !ok {
			return "", false, nil
		}
		content, err := s.content(ctx, u.rec.ID, f.Digest)
		return string(content), true, err
	}}
	var asked []string
	for _, o := range append(slices.Clone(j.drafts), out) {
		if p.bad, err = d.put(o, say); err != nil {
			return p, err
		}
		asked = append(asked, o.Packages...)
		for _, c := range s.commands(o, say) {
			if !slices.Contains(p.commands, c) {
				p.commands = append(p.commands, c)
			}
		}
	}
	next, gone := d.next, d.gone
	maps.DeleteFunc(gone, func(path string, _ bool) bool {
		_, there := before[path]
		_, again := next[path]
		return !there || again
	})
	p.removed, p.message, p.actor, p.keep, p.snapshot = slices.Sorted(maps.Keys(gone)), cmp.Or(j.Message, out.Message), j.Actor, j.Keep, j.Snapshot
	now := maps.Clone(before)
	for _, path := range d.order {
		text, ok := next[path]
		if !ok {
			continue // the file was moved again
		}
		data := []byte(text)
		mode := uint32(fileMode)
		if old, ok := before[path]; ok {
			mode = old.Mode
		}
		f := describe(path, data, mode)
		if old, ok := before[path]; ok && old.Digest == f.Digest {
			continue
		}
		now[path] = f
		p.put = append(p.put, content{path, data, mode})
	}
	maps.DeleteFunc(now, func(path string, _ File) bool { return gone[path] })
	if err := now.check(); err != nil {
		return p, err
	}
	if p.packages, err = s.missing(ctx, u, now, next, asked, say); err != nil {
		return p, err
	}
	if len(p.put)+len(p.removed)+len(p.packages)+len(p.commands) == 0 {
		return p, engi.Errorf(engi.Invalid, "the text changes nothing").
			WithRemedy("have the model write files as <file path=\"src/App.tsx\">…</file>, or edits of them; see docs/apps.md")
	}
	if p.message == "" {
		p.message = summary(before.changes(now), p)
	}
	p.message = firstLine(p.message)
	return p, nil
}

// A pendingFiles collects the files to write.
type pendingFiles struct {
	read func(path string) (string, bool, error) // returns the app's current content
	next map[string]string
	gone map[string]bool

	order  []string // paths in the order in which they were added to next
	placed map[string]bool
}

func (d *pendingFiles) set(path, text string) {
	if !d.placed[path] {
		d.placed[path] = true
		d.order = append(d.order, path)
	}
	d.next[path] = text
	delete(d.gone, path)
}

// put applies a text to the files. If an edit matches no place, bad is the path of its file.
func (d *pendingFiles) put(out output.Output, say *reporter) (bad string, err error) {
	written := map[string]bool{}
	for _, f := range out.Files {
		if err := CheckPath(f.Path); err != nil {
			say.warn(f.Path, f.Line, err.Error())
			continue
		}
		old, ok, err := d.read(f.Path)
		if err != nil {
			return "", err
		}
		text := f.Content
		if ok {
			text = edit.Like(old, text)
		}
		d.set(f.Path, text)
		written[f.Path] = true
	}
	for _, e := range out.Edits {
		if err := CheckPath(e.Path); err != nil {
			say.warn(e.Path, e.Line, err.Error())
			continue
		}
		from := cmp.Or(e.From, e.Path)
		text, ok := d.next[from]
		if !ok && !d.gone[from] {
			if text, ok, err = d.read(from); err != nil {
				return "", err
			}
		}
		if !ok && e.From != "" {
			return e.Path, engi.Errorf(engi.Conflict, "there is no %s to move to %s", e.From, e.Path).WithRemedy("have the model write the whole file")
		}
		if text, err = edit.Apply(text, e.Blocks); err != nil {
			return e.Path, engi.Errorf(engi.KindOf(err), "%s: %w", e.Path, err)
		}
		if e.From != "" {
			delete(d.next, e.From)
			d.gone[e.From] = true
		}
		d.set(e.Path, text)
		written[e.Path] = true
	}
	for _, path := range out.Removed {
		_, there, err := d.read(path)
		if err != nil {
			return "", err
		}
		if _, ok := d.next[path]; !there && !ok {
			say.warn(path, 0, "there is no such file to remove")
		}
		if !written[path] { // otherwise the file was moved away and written again
			delete(d.next, path)
			d.gone[path] = true
		}
	}
	return "", nil
}

// summary describes changes in one line.
func summary(changes []engi.AppChange, p plan) string {
	switch {
	case len(changes) == 0 && len(p.packages) > 0:
		return "Install " + strings.Join(p.packages, ", ")
	case len(changes) == 0:
		return "Run " + p.commands[0]
	}
	verb := map[engi.FileOp]string{engi.FileCreated: "Add", engi.FileWritten: "Change", engi.FileRemoved: "Remove"}[changes[0].Op]
	text := verb + " " + changes[0].Path
	if n := len(changes) - 1; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// firstLine returns the beginning of a text as one printable line.
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(strings.ToValidUTF8(text, "\ufffd")), "\n")
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)), " ")
	if len(text) > engi.MaxRevisionText {
		text = text[:engi.MaxRevisionText]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	return text
}

// carryOut carries out p and records it, or restores the previous state.
func (s *Service) carryOut(ctx context.Context, u *use, p plan, say *reporter) (err error) {
	undo := Undo{Paths: p.paths(), All: len(p.commands) > 0}
	manifests := slices.ContainsFunc(undo.Paths, isManifest)
	if undo.Packages = manifests; len(p.packages) > 0 {
		undo.Paths = append(undo.Paths, "package.json", "package-lock.json", "requirements.txt")
	}
	if err := s.change(ctx, u, func(r *Record) { r.Undo = &undo }); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if s.life.Err() != nil {
			return // the next node restores it
		}
		late, cancel := s.late(ctx)
		defer cancel()
		defer s.tidyLater(ctx, u.rec.ID)
		done, e := s.putAllBack(late, u)
		if done {
			err = nil
		}
		if e != nil {
			// The state is restored before the app is used again.
			s.opt.Log.WarnContext(ctx, "put back what an apply has changed; it is tried again", "app", u.rec.ID, "error", e)
		}
	}()
	if manifests {
		// npm reads the model's manifest, and adds to it.
		put := slices.DeleteFunc(slices.Clone(p.put), func(c content) bool { return !isManifest(c.path) })
		if err := u.write(ctx, put, nil); err != nil {
			return err
		}
	}
	if len(p.packages) > 0 || manifests {
		if err := say.step("packages", "Install "+cmp.Or(strings.Join(p.packages, ", "), "what package.json asks for")); err != nil {
			return err
		}
		if err := s.install(ctx, u, p.packages, say.line); err != nil {
			return err
		}
		if err := say.packages(p.packages); err != nil {
			return err
		}
	}
	if err := say.step("write", fmt.Sprintf("Write %d files", len(p.put)+len(p.removed))); err != nil {
		return err
	}
	before := u.app.copy.known
	put := slices.DeleteFunc(slices.Clone(p.put), func(c content) bool { return isManifest(c.path) })
	if err := u.write(ctx, put, p.removed); err != nil {
		return err
	}
	if err := say.files(p, before); err != nil {
		return err
	}
	for _, c := range p.commands {
		if err := say.step("command", c); err != nil {
			return err
		}
		code, err := u.run(ctx, commandTime, say.line, u.shell(), "-c", c)
		if err != nil {
			return err
		}
		if err := say.command(c, code); err != nil {
			return err
		}
	}
	changed := p.paths()
	if len(p.packages) > 0 {
		changed = append(changed, "package.json")
	}
	wrong, err := s.settle(ctx, u, changed, say)
	if err != nil {
		return err
	}
	if wrong != nil && !p.keep {
		return faulty{wrong}
	}
	now, contents, err := u.app.copy.read(ctx, u.g, u.dir)
	if err != nil {
		return err
	}
	var snapshot Snapshot
	if p.snapshot {
		if snapshot, err = s.tryKeep(ctx, u, say); err != nil {
			return err
		}
	}
	r, _, err := s.revise(ctx, u.rec, now, contents, engi.Revision{Message: p.message, Actor: p.actor, Of: p.of}, func(r *Record, tx Tx, rev engi.Revision) error {
		r.Undo = nil
		r.keep(snapshot, rev.Number)
		to := engi.AppReady
		if engi.Is(wrong, engi.Unavailable) { // the server does not answer
			to = engi.AppFailed
		}
		if err := become(r, tx, to, asError(wrong)); err != nil {
			return err
		}
		kind := engi.EventAppApplied
		if p.of != 0 {
			kind = engi.EventAppRolledBack
		}
		_, err := tx.Emit(kind, eventData{Apply: say.seq, Edit: say.edit, Revision: rev.Number, Of: p.of, Text: rev.Message, Commit: rev.Commit, Snapshot: snapshot.ID, Error: errorOf(asError(wrong))})
		if say.seq != 0 {
			r.Applying = 0
		}
		return err
	})
	if err != nil {
		return err
	}
	u.rec = r
	s.projectLater(ctx, u.app, u.dir)
	if r.Stray.any() {
		s.tidyLater(ctx, r.ID)
	}
	return nil
}

// settle restarts the server if needed, and returns the remaining problem of the app.
func (s *Service) settle(ctx context.Context, u *use, changed []string, say *reporter) (wrong, err error) {
	if u.mustRestart(changed) {
		if err := say.step("restart", "Start the server again"); err != nil {
			return nil, err
		}
		err := u.restart(ctx)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil && !engi.Is(err, engi.Unavailable) {
			return nil, err
		}
		if err != nil {
			for _, p := range problems.Parse(err.Error(), u.dir) {
				say.fault(fault{p.File, p.Line, p.Text})
			}
			return err, nil
		}
	}
	if err := say.step("check", "Look whether it works"); err != nil {
		return nil, err
	}
	faults, err := u.check(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return err, nil // the server does not answer
	}
	if len(faults) == 0 {
		return nil, nil
	}
	text := make([]string, 0, len(faults))
	for _, f := range faults[:min(len(faults), 20)] {
		say.fault(f)
		text = append(text, f.Error())
	}
	kind := engi.Conflict
	if faults[0].path == "" {
		kind = engi.Unavailable // the page itself fails
	}
	return engi.Errorf(kind, "the app does not work with it: %s", strings.Join(text, "\n")).
		WithRemedy("correct it and apply again; nothing has changed"), nil
}

// putAllBack restores the files that an apply has changed, unless the apply was committed:
// the caller of a transaction may not know its result.
func (s *Service) putAllBack(ctx context.Context, u *use) (done bool, err error) {
	if err := insist(ctx, func() (err error) {
		r, err := s.opt.Store.Find(ctx, engi.Everyone, string(u.rec.ID))
		if err == nil {
			u.rec = r
		}
		return err
	}); err != nil {
		return false, err
	}
	if u.rec.Undo == nil {
		s.projectLater(ctx, u.app, u.dir)
		return true, nil
	}
	// The end of the apply's context may have interrupted a call, so the files are
	// read again.
	if err := s.restore(ctx, u); err != nil {
		return false, err
	}
	if u.down {
		return false, nil // the server did not answer before the apply either
	}
	if err := u.probe(ctx); err != nil {
		return false, u.restart(ctx)
	}
	return false, nil
}

const (
	insistPause = 100 * time.Millisecond // before the second attempt; twice as long before each further one
	insistLimit = 10 * time.Second       // maximum pause
)

// insist calls f until it succeeds, fails permanently, or ctx ends.
func insist(ctx context.Context, f func() error) error {
	for pause := insistPause; ; pause = min(2*pause, insistLimit) {
		err := f()
		switch engi.KindOf(err) {
		case engi.Internal, engi.Unavailable, engi.Exhausted, engi.Expired:
		default:
			return err
		}
		if err == nil || clock.Sleep(ctx, pause) != nil {
			return err
		}
	}
}
