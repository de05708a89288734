package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/author"
	"github.com/engi-dev/engi/internal/app/output"
	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// Models calls language models. It is safe for concurrent use.
type Models interface {
	// Check reports why an owner cannot use a model now, such as Unsupported or Exhausted.
	// The empty name means the default model.
	Check(ctx context.Context, owner engi.Owner, model string) error
	// Write continues a conversation. out receives the text as the model writes it; an
	// error of out ends the answer. cut reports that the answer ended because it became too long.
	// The tokens are valid even with an error.
	Write(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, out func(text string) error) (text string, cut bool, used engi.Tokens, err error)
	// Answer returns an answer of a model in JSON that conforms to a schema. The tokens are valid
	// even with an error.
	Answer(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, schema json.RawMessage) (answer json.RawMessage, used engi.Tokens, err error)
}

const (
	editTime  = time.Hour // maximum time of an edit
	lookTime  = time.Second
	checkTime = time.Minute // maximum time of the app's check script
	maxCuts   = 5           // maximum number of truncated answers of an edit, in addition to its rounds
	maxEdits  = 32          // maximum number of concurrent edits
	maxWrong  = 30          // maximum number of reported problems
	maxLog    = 64 << 10
	maxShown  = 256 << 10 // maximum bytes of a file shown to the model
)

// editKey is the prefix of the keys of edits, which keeps them apart from the keys of applies.
const editKey = "edit\x1f"

// Edit implements [engi.Apps].
func (s *Service) Edit(ctx context.Context, spec engi.EditSpec) (seq int64, err error) {
	defer engi.Annotate(&err, "edit app %.70s", spec.App)
	if err := spec.Faults().Err(); err != nil {
		return 0, err
	}
	models := spec.Models()
	spec.Model, spec.Rounds, spec.Attempts = strings.Join(models, ","), cmp.Or(spec.Rounds, 3), cmp.Or(spec.Attempts, len(models))
	if j := spec.Judge; j != nil && j.Command == "" {
		models = append(models, j.Model)
	}
	r, err := s.opt.Store.Find(ctx, spec.Viewer, spec.App)
	if err != nil {
		return 0, err
	}
	if spec.Attempts > 1 {
		if err := r.alone("attempts"); err != nil {
			return 0, err
		}
	}
	request := idempotency.Request{Owner: r.Owner, Key: spec.Idempotency}
	about := spec
	about.Viewer, about.App, about.Actor, about.Idempotency = r.Owner.Viewer(), string(r.ID), "", ""
	request.Fingerprint = idempotency.Fingerprint(about)
	return s.beginOnce(ctx, r.ID, request, editKey, func() (int64, error) { return s.beginEdit(ctx, r, spec, models, request) })
}

// beginEdit records the start of an edit and starts it.
func (s *Service) beginEdit(ctx context.Context, r Record, spec engi.EditSpec, models []string, q idempotency.Request) (seq int64, err error) {
	if q.Key != "" {
		q.Key = editKey + q.Key
	}
	if s.opt.Models == nil {
		return 0, engi.Errorf(engi.Unsupported, "this node has no language models").WithRemedy("have a model write elsewhere, and apply its text")
	}
	for _, model := range models {
		if err := s.opt.Models.Check(ctx, r.Owner, model); err != nil {
			return 0, err
		}
	}
	if !s.edits.Take(r.Owner, 1) {
		return 0, engi.Errorf(engi.Exhausted, "too many apps are being edited").WithRemedy("wait until one ends").WithRetry(engi.Retry{AfterMillis: 5000})
	}
	id, owner, a := r.ID, r.Owner, s.live(r.ID)
	if r, err = s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) (err error) {
		if err := r.busy(0); err != nil {
			return err
		}
		seq, err = tx.EmitOnce(engi.EventAppEditing, eventData{Text: clip.Bytes(spec.Prompt, maxLine), Model: spec.Model, Actor: spec.Actor}, q)
		r.Editing, r.Used = seq, time.Now().UTC()
		return err
	}); err != nil && seq != 0 && s.begun(ctx, id, func(now Record) bool { r = now; return now.Editing == seq }) {
		err = nil
	}
	if err == nil {
		err = s.beginCancellable(ctx, a, func(ctx context.Context) {
			defer s.edits.Give(owner, 1)
			s.edit(ctx, &session{s: s, a: a, id: id, owner: owner, seq: seq, spec: spec, stream: a, purse: &purse{most: spec.MaxCost}})
		})
	}
	if err != nil {
		s.edits.Give(owner, 1)
	}
	return seq, err
}

// A session is a running edit. It belongs to one goroutine.
type session struct {
	s     *Service
	a     *app
	id    engi.AppID
	owner engi.Owner
	seq   int64
	spec  engi.EditSpec

	stream  *app // app in whose stream the edit is reported
	attempt int  // number of this attempt, from 1, or of the winning attempt of an edit; 0 for none
	purse   *purse

	base     Record // the app at the start of the edit
	system   string
	said     []engi.Message
	drafts   []output.Output // outputs of the model that are not in the app yet
	rounds   int
	cuts     int
	cost     int64
	revision int64              // number of the last revision of the edit
	wrong    []problems.Problem // problems of the edit so far, bounded
	tried    []string
	blind    bool // the warning that pages cannot be checked was reported
}

// edit runs a started edit, and records its end.
func (s *Service) edit(ctx context.Context, e *session) {
	ctx, cancel := context.WithTimeoutCause(ctx, editTime, engi.Errorf(engi.Expired, "the edit took longer than %v", editTime))
	defer cancel()
	run := e.run
	if e.spec.Attempts > 1 {
		run = e.compete
	}
	err := run(ctx)
	if s.life.Err() != nil {
		return // the next node reports the end of unfinished work
	}
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	d := e.summary(err)
	// Until the end is recorded, no other change of the app may start.
	if err := insist(s.life, func() error { return s.edited(s.life, e.id, d) }); err != nil && !engi.Is(err, engi.NotFound) && s.life.Err() == nil {
		s.opt.Log.ErrorContext(ctx, "record the end of an edit", "app", e.id, "error", err)
	}
}

// summary returns the result of an edit or an attempt.
func (e *session) summary(err error) eventData {
	return eventData{Attempt: e.attempt, Revision: e.revision, Round: e.rounds, Cost: e.cost, Text: clip.Bytes(strings.Join(e.tried, "\n"), maxLine), Error: errorOf(asError(err))}
}

// edited records the end of an edit.
func (s *Service) edited(ctx context.Context, id engi.AppID, d eventData) error {
	_, err := s.opt.Store.Change(ctx, id, func(r *Record, tx Tx) error {
		if r.Editing == 0 {
			return nil
		}
		d.Edit = r.Editing
		_, err := tx.Emit(engi.EventAppEdited, d)
		r.Editing = 0
		return err
	})
	return err
}

// run asks the model until the app has no problems.
func (e *session) run(ctx context.Context) error {
	if err := e.prepare(ctx); err != nil {
		return err
	}
	return e.loop(ctx)
}

// prepare builds the first message to the model.
func (e *session) prepare(ctx context.Context) error {
	s := e.s
	if _, err := s.Open(ctx, engi.Everyone, string(e.id)); err != nil && !engi.Is(err, engi.Unavailable) { // the server may be the part to repair
		return err
	}
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(e.id))
	if err != nil {
		return err
	}
	t, err := s.templateOf(ctx, r)
	if err != nil {
		return err
	}
	p, err := s.describeApp(ctx, r)
	if err != nil {
		return err
	}
	log, _, err := s.logSince(ctx, r, mark{}, 0)
	if err != nil {
		return err
	}
	before := problems.Parse(log[max(0, len(log)-maxLog/4):], t.WorkDir)
	e.said = []engi.Message{{Role: engi.RoleUser, Text: author.Ask(p, e.spec.Prompt, e.spec.Element, before[max(0, len(before)-10):])}}
	e.system, e.base = author.System(r.Template), r
	return nil
}

// loop asks the model until the app has no problems.
func (e *session) loop(ctx context.Context) error {
	for {
		if e.spec.MaxCost > 0 && e.cost >= e.spec.MaxCost || e.purse.empty() {
			return engi.Errorf(engi.Exhausted, "the model has cost %.4f of %.4f, and the app is not well", float64(e.cost)/1e6, float64(e.spec.MaxCost)/1e6).
				WithRemedy("edit again with a higher maximum, or correct the app by hand")
		}
		if e.rounds++; e.rounds > e.spec.Rounds {
			e.rounds--
			return engi.Errorf(engi.Conflict, "the app is not well after %d rounds: %.1000s", e.rounds, strings.Join(e.tried[max(0, len(e.tried)-1):], "")).
				WithRemedy("edit again with more rounds or a simpler prompt, or roll back to an earlier revision")
		}
		if err := e.tell(ctx, eventData{Kind: engi.AppRound, Round: e.rounds}); err != nil {
			return err
		}
		text, long, err := e.write(ctx)
		if err != nil {
			return err
		}
		e.said = append(e.said, engi.Message{Role: engi.RoleAssistant, Text: text})
		report, err := e.try(ctx, text, long)
		if err != nil {
			return err
		}
		for _, p := range report.Problems {
			if err := e.tell(ctx, eventData{Kind: engi.AppProblem, Round: e.rounds, Source: p.Source, Path: clip.Bytes(p.File, maxPath), Line: p.Line, Text: clip.Bytes(p.Text, maxLine)}); err != nil {
				return err
			}
		}
		e.wrong = append(e.wrong, report.Problems[:min(len(report.Problems), maxWrong-len(e.wrong))]...)
		e.tried = append(e.tried, fmt.Sprintf("%d: %s", e.rounds, tried(report)))
		if len(report.Problems) == 0 {
			return nil
		}
		if len(report.Cut) > 0 {
			e.rounds--
		}
		e.said = append(e.said, engi.Message{Role: engi.RoleUser, Text: report.Again()})
	}
}

// tried returns the result of an answer in one line.
func tried(r author.Report) string {
	text := "nothing applied"
	switch {
	case len(r.Cut) > 0:
		text = "cut off"
	case r.Revision > 0:
		text = fmt.Sprintf("revision %d", r.Revision)
	}
	if len(r.Problems) > 0 {
		p := r.Problems[0]
		text += "; " + firstLine(fault{p.File, p.Line, p.Text}.Error())
	}
	if n := len(r.Problems) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

func (e *session) tell(ctx context.Context, d eventData) error {
	t := reporter{s: e.s, ctx: ctx, u: &use{rec: Record{App: engi.App{ID: e.stream.id, Owner: e.owner}}}, edit: e.seq}
	d.Attempt = e.attempt
	return t.tell(d)
}

// write gets the next answer of the model.
func (e *session) write(ctx context.Context) (text string, long bool, err error) {
	size := 0
	text, long, used, err := e.s.opt.Models.Write(ctx, e.owner, e.spec.Model, e.system, author.Shorten(e.said), func(text string) error {
		if size += len(text); size > engi.MaxApplyText {
			return engi.Errorf(engi.Exhausted, "the model writes more than %d MiB", engi.MaxApplyText>>20)
		}
		e.stream.live.send(engi.AppUpdate{Time: time.Now().UTC(), Kind: engi.AppOutput, Edit: e.seq, Attempt: e.attempt, Round: e.rounds, Text: text})
		return nil
	})
	e.cost += used.Cost
	e.purse.spent.Add(used.Cost)
	return text, long, err
}

// try applies an answer, and collects the problems that follow. An error is not the model's fault.
func (e *session) try(ctx context.Context, text string, long bool) (report author.Report, err error) {
	s := e.s
	out := output.Parse(text)
	if report.Cut = out.Cut; long && len(out.Cut) == 0 {
		report.Cut = []string{"the text"}
	}
	if len(report.Cut) > 0 && e.cuts < maxCuts {
		e.cuts++
		e.drafts = append(e.drafts, out)
		for _, path := range report.Cut {
			report.Problems = append(report.Problems, problems.Problem{Source: "model", File: path, Text: "the answer of the model ends in the middle of this file"})
		}
		return report, nil
	}
	report.Cut = nil
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(e.id))
	if err != nil {
		return report, err
	}
	_, from, err := s.logSince(ctx, r, mark{}, 0)
	if err != nil {
		return report, err
	}
	j := job{ApplySpec: engi.ApplySpec{Text: text, Message: out.Message, Actor: e.spec.Actor}, edit: e.seq, drafts: e.drafts}
	if j.Message == "" {
		j.Message = firstLine(e.spec.Prompt)
	}
	seq, err := s.applying(ctx, e.id, j)
	if err != nil {
		return report, err
	}
	o := s.apply(ctx, e.a, e.id, seq, j)
	if ctx.Err() != nil || s.life.Err() != nil {
		return report, cmp.Or(o.err, ctx.Err())
	}
	if o.err == nil {
		e.revision, e.drafts = o.revision, nil
		report.Revision = o.revision
		var blind string
		report.Problems, blind, err = s.inspect(ctx, e.a, from)
		if err != nil {
			return report, err
		}
		if blind != "" && !e.blind {
			if e.blind, err = true, e.tell(ctx, eventData{Kind: engi.AppWarning, Step: "check", Text: clip.Bytes(blind, maxLine)}); err != nil {
				return report, err
			}
		}
	} else {
		if !o.ofText() {
			return report, o.err
		}
		report.Problems = o.problems()
		report.Unplaced = o.bad
		if e.drafts = o.keep(append(e.drafts, out)); e.drafts != nil {
			report.Kept = true
		}
	}
	report.Problems = report.Problems[:min(len(report.Problems), maxWrong)]
	report.Files, err = s.pointedTo(ctx, e.id, report.Problems, o, out)
	return report, err
}

// ofText reports whether an apply failed because of its text.
func (o outcome) ofText() bool {
	switch engi.KindOf(o.err) {
	case engi.Invalid, engi.Conflict, engi.Exhausted:
		return o.step != ""
	case engi.Unavailable:
		return o.step == "restart" || o.step == "check"
	}
	return false
}

// problems returns the reasons why an apply failed.
func (o outcome) problems() (all []problems.Problem) {
	checked := false
	for _, d := range o.told {
		all = append(all, problems.Problem{Source: "apply", File: d.Path, Line: d.Line, Text: d.Text})
		checked = checked || d.Step == "check"
	}
	if !checked {
		text := o.err.Error()
		if e, ok := errors.AsType[*engi.Error](o.err); ok && e.Remedy != "" {
			text += "; " + e.Remedy
		}
		all = append([]problems.Problem{{Source: "apply", File: o.bad, Text: text}}, all...)
	}
	return all
}

// keep returns the drafts that are worth keeping after they could not be applied.
func (o outcome) keep(drafts []output.Output) []output.Output {
	if o.bad == "" && o.step == "parse" {
		return nil // there is too much, or nothing
	}
	for i := range drafts {
		d := &drafts[i]
		d.Edits = slices.DeleteFunc(slices.Clone(d.Edits), func(e output.Edit) bool { return e.Path == o.bad || e.From == o.bad && o.bad != "" })
		switch o.step {
		case "packages":
			d.Packages = nil
		case "command":
			d.Commands = nil
		}
	}
	return drafts
}

// describeApp returns the description of an app for a model.
func (s *Service) describeApp(ctx context.Context, r Record) (p author.Project, err error) {
	found, err := s.opt.Store.Files(ctx, r.ID, r.Revision)
	if err != nil {
		return p, err
	}
	files := make(map[string]string, len(found))
	for _, f := range found {
		if files[f.Path] = ""; f.Size > maxShown {
			continue
		}
		data, err := s.content(ctx, r.ID, f.Digest)
		if err != nil {
			return p, err
		}
		if utf8.Valid(data) {
			files[f.Path] = string(data)
		}
	}
	last, err := s.opt.Store.Revisions(ctx, r.ID, engi.Paging{Limit: 3})
	if err != nil {
		return p, err
	}
	var recent []string
	for _, rev := range last {
		for _, c := range rev.Changed {
			if rev.Number > 1 {
				recent = append(recent, c.Path)
			}
		}
	}
	return author.New(r.Template, files, recent), nil
}

// pointedTo returns the files that problems point to in the form for the model, except
// those that the model has just written as a whole.
func (s *Service) pointedTo(ctx context.Context, id engi.AppID, wrong []problems.Problem, o outcome, out output.Output) (map[string]string, error) {
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil {
		return nil, err
	}
	files, err := s.opt.Store.Files(ctx, id, r.Revision)
	if err != nil {
		return nil, err
	}
	there, all := treeOf(files), map[string]string{}
	for _, p := range wrong {
		if slices.ContainsFunc(out.Files, func(f output.File) bool { return f.Path == p.File }) && p.File != o.bad {
			continue
		}
		if text, ok := o.wrote[p.File]; ok && o.err != nil {
			all[p.File] = text
			continue
		}
		f, ok := there[p.File]
		if _, done := all[p.File]; !ok || done || f.Size > maxShown {
			continue
		}
		data, err := s.content(ctx, id, f.Digest)
		if err != nil {
			return nil, err
		}
		all[p.File] = string(data)
	}
	return all, nil
}

// inspect returns the problems of an app that was just changed: those of its check script,
// of its page in a browser, and of the logs of its server and its pages
// since from. blind is the reason why a check was skipped.
func (s *Service) inspect(ctx context.Context, a *app, from mark) (all []problems.Problem, blind string, err error) {
	u, err := s.hold(ctx, a, how{})
	if err != nil {
		return nil, "", err
	}
	defer u.close()
	return s.inspectUse(ctx, u, from)
}

func (s *Service) inspectUse(ctx context.Context, u *use, from mark) (all []problems.Problem, blind string, err error) {
	began, wait := time.Now(), time.Duration(0)
	if all, err = s.checkScript(ctx, u); err != nil {
		return nil, "", err
	}
	v, err := s.view(ctx, u, from)
	if err != nil {
		return nil, "", err
	}
	if u.vite() {
		wait = s.opt.Look - time.Since(began) // time for open pages to load the change
	}
	log, _, err := s.logSince(ctx, u.rec, from, wait)
	if err != nil {
		return nil, "", err
	}
	for _, p := range problems.Parse(log, u.dir) {
		if p.Source != "vite" || !u.vite() { // the apply has already reported files that Vite cannot serve
			all = append(all, p)
		}
	}
	return v.with(all), v.blind, nil
}

// checkScript runs the script check of package.json, if it exists.
func (s *Service) checkScript(ctx context.Context, u *use) ([]problems.Problem, error) {
	k, ok := u.app.copy.known["package.json"]
	if !ok {
		return nil, nil
	}
	data, err := s.content(ctx, u.rec.ID, k.file.Digest)
	if err != nil {
		return nil, err
	}
	var m struct {
		Scripts map[string]any `json:"scripts"`
	}
	if json.Unmarshal(data, &m) != nil || m.Scripts["check"] == nil {
		return nil, nil
	}
	var b strings.Builder
	code, err := u.run(ctx, checkTime, func(line string) {
		if b.Len() < maxLog {
			b.WriteString(line + "\n")
		}
	}, "npm", "run", "--silent", "check")
	if err != nil || code <= 0 { // a check that takes too long has no result
		return nil, err
	}
	all := problems.Parse(b.String(), u.dir)
	if len(all) == 0 {
		all = []problems.Problem{{Source: "check", Text: fmt.Sprintf("npm run check ended with %d:\n%s", code, clip.Bytes(b.String(), 900))}}
	}
	return all, nil
}

// A mark is a position in the output of an app's server.
type mark struct {
	process string
	offset  int64
}

// since returns the output between the mark and now; text is the end
// of the output until now.
func (m mark) since(text string, now mark) string {
	if n := now.offset - m.offset; m.process == now.process && n < int64(len(text)) {
		return text[int64(len(text))-max(n, 0):]
	}
	return text
}

func (m mark) String() string { return fmt.Sprintf("%d.%s", m.offset, m.process) }

// parseMark parses a mark. A malformed text is a mark of another server.
func parseMark(text string) mark {
	offset, process, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return mark{}
	}
	return mark{process, n}
}

// logSince returns the output of an app's server since a mark, or all output if the server was
// restarted since, including the output within a waiting time.
func (s *Service) logSince(ctx context.Context, r Record, from mark, wait time.Duration) (text string, now mark, err error) {
	g, leave, err := s.sandboxes.Reconnect(ctx, r.Sandbox)
	if err != nil {
		return "", now, err
	}
	defer leave()
	p, err := g.Attach(ctx, r.tag(serviceTag))
	if engi.Is(err, engi.NotFound) {
		return "", now, nil
	}
	if err != nil {
		return "", now, err
	}
	now.process = p.ID()
	if wait > 0 {
		if err := clock.Sleep(ctx, wait); err != nil {
			return "", now, err
		}
	}
	text, now.offset, _ = lastOutput(ctx, p, maxLog)
	return strings.ToValidUTF8(from.since(text, now), "\ufffd"), now, nil
}
