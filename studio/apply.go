package studio

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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/studio/edit"
	"github.com/engi-dev/engi/studio/output"
	"github.com/engi-dev/engi/studio/problems"
)

// applyTime bounds an apply, whatever it does.
const applyTime = 15 * time.Minute

// Apply implements [engi.Apps].
func (s *Service) Apply(ctx context.Context, spec engi.ApplySpec) (_ int64, err error) {
	defer engi.Annotate(&err, "apply to app %.70s", spec.App)
	if len(spec.Text) > maxText {
		return 0, engi.Errorf(engi.Invalid, "the text has %d bytes, %d MiB is the most", len(spec.Text), maxText>>20).WithRemedy("apply it in parts")
	}
	if strings.TrimSpace(spec.Text) == "" {
		return 0, engi.Errorf(engi.Invalid, "the text is empty").WithRemedy("send what a model has written")
	}
	r, err := s.opt.Store.Find(ctx, spec.Owner, spec.App)
	if err != nil {
		return 0, err
	}
	if spec.Idempotency != "" {
		seq, err := s.opt.Store.Emitted(ctx, r.Owner, r.ID, spec.Idempotency)
		if err == nil || engi.KindOf(err) != engi.NotFound {
			return seq, err
		}
	}
	a := s.live(r.ID)
	var seq int64
	if _, err := s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error {
		if r.Applying != 0 {
			return engi.Errorf(engi.Conflict, "another apply to the app is under way").WithRemedy("wait for its end, or cancel it")
		}
		seq, err = tx.Emit(engi.EventAppApplying, eventData{Text: firstLine(spec.Message), Actor: spec.Actor}, spec.Idempotency)
		r.Applying, r.Used = seq, time.Now().UTC()
		return err
	}); err != nil {
		return 0, err
	}
	cancelled := make(chan struct{})
	if !s.begin(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		a.setCancel(cancel)
		close(cancelled)
		defer a.setCancel(nil)
		s.apply(ctx, a, r.ID, seq, spec)
	}) {
		return 0, engi.Errorf(engi.Unavailable, "the node is being stopped").WithRemedy("apply it again in a moment")
	}
	<-cancelled // whoever cancels it from now on does
	return seq, nil
}

func (a *app) setCancel(f context.CancelCauseFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = f
}

// cancelApply breaks an apply off, and reports whether there is one.
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
func (s *Service) Cancel(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "cancel the apply to app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	if !s.live(r.ID).cancelApply(errCancelled) {
		return engi.Errorf(engi.Conflict, "no apply is under way")
	}
	return nil
}

var errCancelled = engi.Errorf(engi.Expired, "the apply was cancelled")

// apply does what Apply has begun, and records its end.
func (s *Service) apply(ctx context.Context, a *app, id engi.AppID, seq int64, spec engi.ApplySpec) {
	ctx, cancel := context.WithTimeoutCause(ctx, applyTime, engi.Errorf(engi.Expired, "the apply took longer than %v", applyTime))
	defer cancel()
	began := time.Now()
	err := s.tryApply(ctx, a, id, seq, spec)
	s.meter.applied(began, err)
	_, broken := errors.AsType[faulty](err)
	a.count(err != nil && !broken && slices.Contains([]engi.Kind{engi.Internal, engi.Unavailable, engi.Exhausted}, engi.KindOf(err)))
	if err == nil || s.life.Err() != nil {
		return // the next node tells of what this one has not ended
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer stop()
	r, e := s.ended(late, id, err)
	if e != nil && engi.KindOf(e) != engi.NotFound {
		s.opt.Log.ErrorContext(ctx, "record the end of an apply", "app", id, "error", e)
	}
	if r.Undo != nil {
		s.putBackLater(ctx, id)
	}
}

// A faulty is what is wrong with what was applied, not with the app's sandbox.
type faulty struct{ error }

func (f faulty) Unwrap() error { return f.error }

// ended records that an apply has failed.
func (s *Service) ended(ctx context.Context, id engi.AppID, why error) (Record, error) {
	return s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		if r.Applying == 0 {
			return nil
		}
		_, err := tx.Emit(engi.EventAppApplyFailed, eventData{Apply: r.Applying, Error: errorOf(asError(why))}, "")
		r.Applying = 0
		return err
	})
}

func (s *Service) tryApply(ctx context.Context, a *app, id engi.AppID, seq int64, spec engi.ApplySpec) error {
	unlock, err := lock(ctx, a.locked)
	if err != nil {
		return err
	}
	defer unlock()
	u, err := s.enter(ctx, a, id)
	if err != nil {
		return err
	}
	defer func() { u.leave() }()
	// What somebody has changed by hand is a revision of its own.
	if u.rec, err = s.capture(ctx, a, u.rec, u.g, u.dir); err != nil {
		return err
	}
	say := s.teller(ctx, u, seq)
	if err := say.step("parse", "Read what the model has written"); err != nil {
		return err
	}
	p, err := s.plan(ctx, u, spec, say)
	if err != nil {
		return err
	}
	return s.carryOut(ctx, u, p, say)
}

// A plan is what is to change in an app.
type plan struct {
	put      []content
	removed  []string
	packages []string
	commands []string
	message  string
	actor    string
	of       int64 // revision that it goes back to; 0 for none
	keep     bool  // although something is wrong with it
}

func (p plan) paths() (all []string) {
	for _, c := range p.put {
		all = append(all, c.path)
	}
	return append(all, p.removed...)
}

// plan reads a text. What has no effect is told.
func (s *Service) plan(ctx context.Context, u *use, spec engi.ApplySpec, say *teller) (p plan, err error) {
	out := output.Parse(spec.Text)
	files, err := s.opt.Store.Files(ctx, u.rec.ID, u.rec.Revision)
	if err != nil {
		return p, err
	}
	before := treeOf(files)
	read := func(path string) (string, bool, error) {
		f, ok := before[path]
		if !ok {
			return "", false, nil
		}
		content, err := s.content(ctx, u.rec.ID, f.Digest)
		return string(content), true, err
	}
	for _, w := range out.Warnings {
		say.warn(w.Path, w.Line, w.Text)
	}
	for _, path := range out.Cut {
		say.warn(path, 0, "the text ends in the middle of this file, so it is as it was: ask the model for it again")
	}
	next := map[string]string{}
	order := []string{}
	set := func(path, text string) {
		if _, ok := next[path]; !ok {
			order = append(order, path)
		}
		next[path] = text
	}
	for _, f := range out.Files {
		if err := CheckPath(f.Path); err != nil {
			say.warn(f.Path, f.Line, err.Error())
			continue
		}
		old, ok, err := read(f.Path)
		if err != nil {
			return p, err
		}
		if text := f.Content; ok {
			set(f.Path, edit.Like(old, text))
		} else {
			set(f.Path, text)
		}
	}
	gone := map[string]bool{}
	for _, e := range out.Edits {
		if err := CheckPath(e.Path); err != nil {
			say.warn(e.Path, e.Line, err.Error())
			continue
		}
		from := cmp.Or(e.From, e.Path)
		text, ok := next[from]
		if !ok {
			if text, ok, err = read(from); err != nil {
				return p, err
			}
		}
		if !ok && e.From != "" {
			return p, engi.Errorf(engi.Conflict, "there is no %s that could be moved to %s", e.From, e.Path).WithRemedy("have the model write the whole file")
		}
		if text, err = edit.Apply(text, e.Blocks); err != nil {
			return p, engi.Errorf(engi.KindOf(err), "%s: %w", e.Path, err)
		}
		if e.From != "" {
			gone[e.From] = true
			delete(next, e.From)
		}
		set(e.Path, text)
	}
	for _, path := range out.Removed {
		_, there := before[path]
		if _, ok := next[path]; !there && !ok {
			say.warn(path, 0, "there is no such file to remove")
		}
		if _, ok := next[path]; !ok {
			gone[path] = true // else it was moved away and written again
		}
	}
	maps.DeleteFunc(gone, func(path string, _ bool) bool {
		_, there := before[path]
		_, again := next[path]
		return !there || again
	})
	p = plan{removed: slices.Sorted(maps.Keys(gone)), commands: s.commands(out, say), message: cmp.Or(spec.Message, out.Message), actor: spec.Actor, keep: spec.Keep}
	now := maps.Clone(before)
	for _, path := range order {
		text, ok := next[path]
		if !ok {
			continue // it was moved on
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
	if p.packages, err = s.missing(ctx, u, now, next, out.Packages, say); err != nil {
		return p, err
	}
	if len(p.put)+len(p.removed)+len(p.packages)+len(p.commands) == 0 {
		return p, engi.Errorf(engi.Invalid, "the text changes nothing").
			WithRemedy("have the model write files as <file path=\"src/App.tsx\">…</file>, or edits of them; see docs/studio.md")
	}
	if p.message == "" {
		p.message = summary(before.changes(now), p)
	}
	p.message = firstLine(p.message)
	return p, nil
}

// summary says in one line what changes.
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

// firstLine returns the beginning of a text, as a line that can be shown anywhere.
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(strings.ToValidUTF8(text, "\ufffd")), "\n")
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)), " ")
	if len(text) > maxMessage {
		text = text[:maxMessage]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	return text
}

// carryOut does what p says and records it, or puts back what was.
func (s *Service) carryOut(ctx context.Context, u *use, p plan, say *teller) (err error) {
	undo := Undo{Paths: p.paths(), All: len(p.commands) > 0}
	manifests := slices.ContainsFunc(undo.Paths, isManifest)
	if undo.Packages = manifests; len(p.packages) > 0 {
		undo.Paths = append(undo.Paths, "package.json", "package-lock.json", "requirements.txt")
	}
	if u.rec, err = s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, _ Tx) error {
		r.Undo = &undo
		return nil
	}); err != nil {
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
			return // the next node puts it back
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if e := s.putAllBack(late, u); e != nil {
			// It is put back before the app is used again.
			s.opt.Log.WarnContext(ctx, "put back what an apply has changed; the next use tries again", "app", u.rec.ID, "error", e)
		}
	}()
	if manifests {
		// npm reads what the model wants, and adds to it.
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
	u.rec, _, err = s.revise(ctx, u.rec, now, contents, engi.Revision{Message: p.message, Actor: p.actor, Of: p.of}, func(r *Record, tx Tx, rev engi.Revision) error {
		r.Undo = nil
		to := engi.AppReady
		if wrong != nil && engi.KindOf(wrong) == engi.Unavailable { // its server does not answer
			to = engi.AppFailed
		}
		if err := become(r, tx, to, asError(wrong)); err != nil {
			return err
		}
		kind := engi.EventAppApplied
		if p.of != 0 {
			kind = engi.EventAppRolledBack
		}
		_, err := tx.Emit(kind, eventData{Apply: say.seq, Revision: rev.Number, Of: p.of, Text: rev.Message, Commit: rev.Commit, Error: errorOf(asError(wrong))}, "")
		if say.seq != 0 {
			r.Applying = 0
		}
		return err
	})
	if err == nil {
		s.projectLater(ctx, u)
	}
	return err
}

// settle restarts the server if it must, and returns what is wrong with the app then.
func (s *Service) settle(ctx context.Context, u *use, changed []string, say *teller) (wrong, err error) {
	if u.mustRestart(changed) {
		if err := say.step("restart", "Start the server again"); err != nil {
			return nil, err
		}
		err := u.restart(ctx)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil && engi.KindOf(err) != engi.Unavailable {
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
		kind = engi.Unavailable // it is the page itself
	}
	return engi.Errorf(kind, "the app does not work with it: %s", strings.Join(text, "\n")).
		WithRemedy("correct it and apply again; nothing has changed"), nil
}

// putAllBack puts back what an apply has changed.
func (s *Service) putAllBack(ctx context.Context, u *use) error {
	// The context of the apply may have ended a call in the middle, so what is there is
	// read again.
	if err := s.restore(ctx, u, false); err != nil {
		return err
	}
	if err := u.probe(ctx); err != nil {
		return u.restart(ctx)
	}
	return nil
}
