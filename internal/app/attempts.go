package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/app/author"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	judgeTime = 5 * time.Minute // maximum time of the command of a judge
)

// A purse is the shared budget of all attempts of an edit.
type purse struct {
	spent atomic.Int64
	most  int64 // 0 means no limit
}

func (p *purse) empty() bool { return p.most > 0 && p.spent.Load() >= p.most }

// An attempt is one of several sessions of an edit, in a branch of the app.
type attempt struct {
	*session
	name string
	took bool  // the attempt occupies a slot of the edits
	err  error // remaining problem of the attempt

	ctx    context.Context // context of the attempt, which can be cancelled once the branch exists
	cancel context.CancelCauseFunc

	// Result of the judge's command.
	failed string // reason why the command did not exit with 0; empty if it did
	score  float64
	scored bool
}

// compete edits branches of the app with models in parallel, and applies the files
// of the best one to the app.
func (e *session) compete(ctx context.Context) error {
	s := e.s
	if err := s.catchUp(ctx, e.a); err != nil {
		return err
	}
	if err := e.prepare(ctx); err != nil {
		return err
	}
	files, err := s.opt.Store.Files(ctx, e.id, e.base.Revision)
	if err != nil {
		return err
	}
	var all []*attempt
	defer func() {
		e.cost = e.purse.spent.Load()
		for _, x := range all {
			if x.took {
				s.edits.Give(e.owner, 1)
			}
		}
		e.leave(ctx, all)
	}()
	begun := 0
	models := strings.Split(e.spec.Model, ",")
	for n := range e.spec.Attempts {
		x := e.attemptOf(n+1, models[n%len(models)])
		all = append(all, x)
		if x.err = x.fork(ctx, e, files); x.err == nil {
			begun++
		}
	}
	var work sync.WaitGroup
	for _, x := range all {
		if e.spec.MaxCost > 0 {
			x.spec.MaxCost = max(1, e.spec.MaxCost/int64(max(1, begun)))
		}
		work.Go(func() { x.make(ctx) })
	}
	work.Wait()
	var well []*attempt
	for _, x := range all {
		e.rounds += x.rounds
		e.tried = append(e.tried, x.line())
		if x.err == nil {
			well = append(well, x)
		}
	}
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	if len(well) == 0 {
		return noneWell(all)
	}
	best, why := e.judge(ctx, well)
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	why = fmt.Sprintf("attempt %d of %d: %s", best.attempt, len(all), why)
	e.attempt, e.tried = best.attempt, append(e.tried, "taken: "+why)
	if err := e.tell(ctx, eventData{Kind: engi.AppJudged, Text: clip.Bytes(why, maxLine)}); err != nil {
		return err
	}
	return e.take(ctx, best, files)
}

// catchUp records manual changes in the sandbox of an app as a revision.
func (s *Service) catchUp(ctx context.Context, a *app) error {
	u, err := s.hold(ctx, a, how{repair: true, capture: true})
	if err == nil {
		u.close()
	}
	return err
}

// attemptOf returns a new attempt.
func (e *session) attemptOf(n int, model string) *attempt {
	x := &session{s: e.s, owner: e.owner, seq: e.seq, spec: e.spec, stream: e.stream, attempt: n, purse: e.purse, system: e.system, said: slices.Clone(e.said)}
	x.spec.Model = model
	x.said[0].Text += author.Attempt(n, e.spec.Attempts)
	return &attempt{session: x, name: attemptName(e.base.Name, e.seq, n)}
}

// attemptName returns the name of the branch of an attempt.
func attemptName(app string, seq int64, n int) string {
	end := fmt.Sprintf("-%d-%d", seq, n)
	return app[:min(len(app), 63-len(end))] + end
}

// fork records the branch of an attempt.
func (x *attempt) fork(ctx context.Context, e *session, files []File) error {
	if x.attempt > 1 { // the first attempt uses the edit's own slot
		if x.took = x.s.edits.Take(x.owner, 1); !x.took {
			return engi.Errorf(engi.Exhausted, "too many apps are being edited").WithRemedy("wait until one ends")
		}
	}
	if _, err := x.s.underLimit(ctx, x.owner); err != nil {
		return err
	}
	r, first := branchOf(e.base, e.base.Revision, files, e.spec.Actor)
	r.Name, r.AttemptOf, r.Editing = x.name, e.id, e.seq
	x.id, x.a = r.ID, x.s.live(r.ID)
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.a.setCancel(x.cancel)
	err := x.s.opt.Store.Branch(ctx, r, first, Bounds{maxRevisions, maxHistory, maxStored})
	if err != nil {
		x.end()
	}
	return err
}

// end releases the resources of an attempt.
func (x *attempt) end() {
	x.a.setCancel(nil)
	x.cancel(nil)
}

// make edits the branch with the model, and reports the result.
func (x *attempt) make(ctx context.Context) {
	if x.err == nil {
		x.err = x.in()
	}
	if err := x.tell(ctx, x.ended()); x.err == nil {
		x.err = err
	}
}

func (x *attempt) ended() eventData {
	d := x.summary(x.err)
	d.Kind, d.Branch, d.Name, d.Model = engi.AppAttempted, x.id, x.name, x.spec.Model
	return d
}

// in runs the attempt until it ends or somebody cancels it or the edit.
func (x *attempt) in() (err error) {
	ctx := x.ctx
	defer x.end()
	defer func() {
		if cause := context.Cause(ctx); cause != nil && err != nil {
			err = cause
		}
	}()
	opened, err := x.s.Open(ctx, engi.Everyone, string(x.id))
	if err != nil && (opened.Sandbox == "" || !engi.Is(err, engi.Unavailable)) { // the server may be the part to repair
		return err
	}
	if err := x.tell(ctx, eventData{Kind: engi.AppAttempt, Branch: x.id, Name: x.name, Port: opened.Port, Model: x.spec.Model}); err != nil {
		return err
	}
	return x.loop(ctx)
}

// line returns the result of an attempt in one line.
func (x *attempt) line() string {
	text := fmt.Sprintf("attempt %d: ", x.attempt)
	if x.err != nil {
		return text + firstLine(x.err.Error())
	}
	return text + fmt.Sprintf("well after %d rounds with %d problems, for %.4f", x.rounds, len(x.wrong), float64(x.cost)/1e6)
}

// noneWell returns the error of an edit without a successful attempt.
func noneWell(all []*attempt) error {
	kind := engi.KindOf(all[0].err)
	var lines []string
	for _, x := range all {
		if lines = append(lines, x.line()); !engi.Is(x.err, kind) {
			kind = engi.Conflict
		}
	}
	return engi.Errorf(kind, "none of %d attempts is well, and the app is as it was; %s", len(all), strings.Join(lines, "; ")).
		WithRemedy("%s", cmp.Or(engi.RemedyOf(all[0].err), "edit again with more rounds or a plainer prompt, or keep the attempts and go on from one of them"))
}

// compareWell orders successful attempts, best first.
func compareWell(a, b *attempt) int {
	return cmp.Or(cmp.Compare(len(a.wrong), len(b.wrong)), cmp.Compare(a.cost, b.cost), cmp.Compare(a.attempt, b.attempt))
}

// judge returns the best of the successful attempts, and the reason.
func (e *session) judge(ctx context.Context, well []*attempt) (best *attempt, why string) {
	best = slices.MinFunc(well, compareWell)
	why = fmt.Sprintf("of %d that are well, it is the first with the fewest problems (%d) and then the least cost (%.4f)", len(well), len(best.wrong), float64(best.cost)/1e6)
	j := e.spec.Judge
	switch {
	case len(well) == 1:
		return best, "it is the only one that is well"
	case j == nil:
		return best, why
	case j.Command != "":
		return e.test(ctx, well)
	}
	x, reason, err := e.ask(ctx, well)
	if err != nil {
		return best, fmt.Sprintf("the judge gave no answer (%s); %s", firstLine(err.Error()), why)
	}
	return x, firstLine("the judge says: " + reason)
}

// test compares attempts by a command.
func (e *session) test(ctx context.Context, well []*attempt) (*attempt, string) {
	var work sync.WaitGroup
	for _, x := range well {
		work.Go(func() { x.test(ctx, e.spec.Judge.Command) })
	}
	work.Wait()
	passed := 0
	for _, x := range well {
		if x.failed == "" {
			passed++
		}
	}
	best := slices.MinFunc(well, func(a, b *attempt) int {
		n := 0 // an attempt with a score beats one without
		if a.scored && b.scored {
			n = cmp.Compare(b.score, a.score)
		} else if a.scored != b.scored {
			n = 1
			if a.scored {
				n = -1
			}
		}
		return cmp.Or(cmp.Compare(min(len(a.failed), 1), min(len(b.failed), 1)), n, compareWell(a, b))
	})
	why := fmt.Sprintf("the command of the judge ended with 0 in %d of %d", passed, len(well))
	if best.failed != "" {
		why = fmt.Sprintf("the command of the judge failed in all %d, in this one because %s", len(well), best.failed)
	}
	if best.scored {
		why += fmt.Sprintf(", and its score is the highest of those, %g", best.score)
	}
	return best, why
}

// test runs the judge's command in the sandbox of an attempt.
func (x *attempt) test(ctx context.Context, command string) {
	last := ""
	code, err := func() (int, error) {
		u, err := x.s.hold(ctx, x.a, how{})
		if err != nil {
			return 0, err
		}
		defer u.close()
		return u.run(ctx, judgeTime, func(line string) { last = strings.TrimSpace(line) }, u.shell(), "-c", command)
	}()
	switch {
	case err != nil:
		x.failed = firstLine(err.Error())
		return
	case code < 0:
		x.failed = "it was ended"
	case code > 0:
		x.failed = fmt.Sprintf("it ended with %d", code)
	}
	if n, err := strconv.ParseFloat(last, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		x.score, x.scored = n, true
	}
}

// ask compares attempts by a model. The model sees them in random order, so that their numbers and
// models do not bias it.
func (e *session) ask(ctx context.Context, well []*attempt) (best *attempt, why string, err error) {
	if e.purse.empty() {
		return nil, "", engi.Errorf(engi.Exhausted, "the maximum cost is reached")
	}
	well = slices.Clone(well)
	rand.Shuffle(len(well), func(i, k int) { well[i], well[k] = well[k], well[i] })
	var all []author.Change
	for _, x := range well {
		diff, err := e.s.Diff(ctx, engi.Everyone, string(x.id), 1, x.revision)
		if err != nil {
			return nil, "", err
		}
		all = append(all, author.Change{Diff: diff, Rounds: x.rounds, Problems: x.wrong})
	}
	j := e.spec.Judge
	said := []engi.Message{{Role: engi.RoleUser, Text: author.Judge(e.spec.Prompt, j.Criteria, all)}}
	schema := fmt.Sprintf(`{"type":"object","properties":{"why":{"type":"string"},"best":{"type":"integer","minimum":1,"maximum":%d}},"required":["why","best"],"additionalProperties":false}`, len(all))
	raw, used, err := e.s.opt.Models.Answer(ctx, e.owner, j.Model, author.JudgeSystem, said, json.RawMessage(schema))
	e.purse.spent.Add(used.Cost)
	if err != nil {
		return nil, "", err
	}
	var answer struct {
		Why  string
		Best int
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Best < 1 || answer.Best > len(well) {
		return nil, "", engi.Errorf(engi.Unavailable, "it names none of %d changes", len(well))
	}
	return well[answer.Best-1], answer.Why, nil
}

// take records the changes of an attempt as a revision of the app. files are the files with which the attempt
// started.
func (e *session) take(ctx context.Context, x *attempt, files []File) error {
	s := e.s
	now, err := s.opt.Store.Files(ctx, x.id, x.revision)
	if err != nil {
		return err
	}
	rev, err := s.opt.Store.Revision(ctx, x.id, x.revision)
	if err != nil {
		return err
	}
	end := fmt.Sprintf(" (attempt %d of %d)", x.attempt, e.spec.Attempts)
	p := plan{message: clip.Bytes(rev.Message, engi.MaxRevisionText-len(end)) + end, actor: e.spec.Actor}
	next := treeOf(now)
	for _, c := range treeOf(files).changes(next) {
		if c.Op == engi.FileRemoved {
			p.removed = append(p.removed, c.Path)
			continue
		}
		data, err := s.content(ctx, x.id, next[c.Path].Digest)
		if err != nil {
			return err
		}
		p.put = append(p.put, content{c.Path, data, next[c.Path].Mode})
	}
	j := job{ApplySpec: engi.ApplySpec{Message: p.message, Actor: p.actor}, edit: e.seq, ready: &p}
	seq, err := s.applying(ctx, e.id, j)
	if err != nil {
		return err
	}
	o := s.apply(ctx, e.a, e.id, seq, j)
	if o.err == nil {
		e.revision = o.revision
	}
	return o.err
}

// leave deletes the branches of attempts that have ended, or keeps them if the edit asks
// for it. It continues in the background; after a restart, the next node does.
func (e *session) leave(ctx context.Context, all []*attempt) {
	s := e.s
	gone, waiting := make(chan struct{}, len(all)), 0
	for _, x := range all {
		switch {
		case x.id == "" || s.life.Err() != nil:
		case e.spec.Keep && ctx.Err() == nil && x.rounds > 0:
			if err := insist(s.life, func() error { return s.release(s.life, x.id) }); err != nil && !engi.Is(err, engi.NotFound) && s.life.Err() == nil {
				s.opt.Log.WarnContext(ctx, "keep an attempt", "app", x.id, "error", err)
			}
		default:
			waiting++
			s.discardLater(ctx, x.id, func() { gone <- struct{}{} })
		}
	}
	for late := time.After(undoTime); waiting > 0; waiting-- {
		select {
		case <-gone:
		case <-late:
			return
		case <-s.life.Done():
			return
		}
	}
}

// release turns the branch of an attempt into an independent app.
func (s *Service) release(ctx context.Context, id engi.AppID) error {
	_, err := s.opt.Store.Change(ctx, id, func(r *Record, _ Tx) error {
		r.AttemptOf, r.Editing = "", 0
		return nil
	})
	return err
}

// discardLater deletes the branch of an attempt in the background, with retries,
// and then calls done.
func (s *Service) discardLater(ctx context.Context, id engi.AppID, done func()) {
	if !s.begin(ctx, func(ctx context.Context) {
		defer done()
		err := insist(ctx, func() error { return s.Remove(ctx, engi.Everyone, string(id)) })
		if err == nil || engi.Is(err, engi.NotFound) {
			s.forget(id)
		} else if ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "remove an attempt; the next start does", "app", id, "error", err)
		}
	}) {
		done()
	}
}
