package page

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/page/markup"
)

const (
	baseEvery  = 200      // number of lines after which the page is stored, so that restoring it stays fast
	maxLines   = 5000     // maximum number of lines of one run that have an effect
	maxTold    = 20       // maximum number of failed lines that are reported to a model
	maxSource  = 200      // maximum bytes of a failed line that are reported to a model
	maxReasons = 5        // maximum number of reported reasons why patches of a line failed
	maxArgs    = 32 << 10 // maximum bytes of a call's arguments or result in an event, where each byte may become six
	maxStats   = 64 << 10 // maximum bytes of stats
	maxName    = 200      // maximum bytes of the name of a tool
	maxPending = 16       // maximum number of lines of one run that announce modules
)

// An answer processes the updates of one run: it splits the text into lines, applies them to the page,
// and records each as an event before it reads the next one. It is used by one goroutine.
//
// The text of a step may come again, after an error of the model or a restart of the node.
// Its lines are then compared with the recorded ones. Equal lines have no effect; at
// the first different line, the page is reset to its state before that line.
type answer struct {
	*processor
	rec   Record
	run   engi.RunID
	page  *markup.Page
	since int // number of lines since the page was stored

	step    int
	attempt int // number of times that the text of this step had begun again
	parser  *markup.Parser
	at      int     // number of lines of this attempt so far
	lines   []entry // recorded lines of the step
	total   int     // number of lines of all steps
	bad     []string
	modules []Modules
	calls   map[string]bool // recorded calls, by phase and ID

	// State of the run in the log, from before this process or this attempt.
	logged struct {
		step, attempt int
		lines         []entry
		bad           []string // failed lines of earlier steps
		told          bool     // the failed lines are in the answer's list
	}
	behind []markup.Line // lines of attempts that have ended according to the log, in case the last attempt is missing

	last    atomic.Int64 // sequence number of the last event
	partial time.Time    // time at which the last partial page was shown
	preview bool         // a partial page is shown
	output  output
}

// An entry is a recorded line.
type entry struct {
	hash string
	seq  int64  // sequence number of its last event
	bad  string // message for the model; empty if the line is correct
}

// watch follows the run of a batch until the run ends.
func (p *processor) watch(r Record) error {
	page, err := p.pageAt(p.ctx, r, 0)
	if err != nil {
		return err
	}
	a := &answer{processor: p, rec: r, run: r.Batch.Run, page: page.Page, parser: &markup.Parser{}, calls: map[string]bool{}}
	a.last.Store(page.seq)
	a.output.send = func(c engi.ToolCall, text string) {
		p.live.send(p.id, liveUpdate{engi.PageUpdate{Time: time.Now().UTC(), Kind: engi.PageOutput, Run: a.run, Call: &engi.ToolCall{ID: c.ID, Name: c.Name}, Text: text}, a.last.Load()})
	}
	defer a.output.flush()
	if err := a.restore(); err != nil {
		return err
	}
	if r.Batch.Cancelled { // the process may have ended before it cancelled the run
		if err := engi.Ignore(p.opt.Agents.Cancel(p.ctx, r.Owner.Viewer(), a.run), engi.NotFound); err != nil {
			return err
		}
	}
	for u, err := range p.opt.Agents.Watch(p.ctx, r.Owner.Viewer(), a.run, 0) {
		if err == nil {
			err = a.update(u)
		} else if engi.Is(err, engi.NotFound) {
			_, err = p.fail(engi.Errorf(engi.NotFound, "run %s was deleted", a.run))
			return err
		}
		if err != nil {
			if p.ctx.Err() != nil && p.base.Err() == nil {
				// The session has ended; nobody will see the rest.
				return p.opt.Agents.Cancel(p.base, r.Owner.Viewer(), a.run)
			}
			return err
		}
		if u.Kind == engi.RunEnd {
			return a.end(u.Run)
		}
	}
	return engi.Errorf(engi.Unavailable, "the updates of run %s broke off", a.run)
}

// restore reads the recorded work on the run from the log.
func (a *answer) restore() error {
	after := a.rec.Batch.Actions[0].Seq
	for {
		events, err := a.opt.Events.List(a.ctx, engi.Everyone, engi.EventFilter{Subject: string(a.id), Types: []string{pageEvents}, After: after, Oldest: true, Limit: eventPage})
		if err != nil || len(events) == 0 {
			return err
		}
		for _, e := range events {
			after = e.Seq
			d, err := decodeEvent(e)
			if err != nil {
				return err
			}
			if d.Run != a.run {
				continue
			}
			if d.Call != nil {
				a.calls[callKey(d.Call.ID, d.Result != nil)] = true
			}
			l := &a.logged
			if d.Step > l.step {
				l.bad = append(l.bad, badOf(l.lines)...)
				l.step, l.attempt, l.lines = d.Step, 0, nil
			}
			l.attempt = max(l.attempt, d.Attempt)
			if d.Undoes > 0 {
				l.lines = l.lines[:min(len(l.lines), d.Undoes-1)]
			}
			if d.Line == 0 {
				continue
			}
			a.total++
			if n := len(l.lines); d.Line < n || d.Line == n && l.lines[n-1].hash != d.Hash {
				l.lines = l.lines[:d.Line-1]
			}
			if d.Line > len(l.lines) {
				l.lines = append(l.lines, entry{hash: d.Hash})
			}
			x := &l.lines[len(l.lines)-1]
			if x.seq = e.Seq; e.Type == engi.EventPageFailed {
				x.bad = badLine(d.Text, d.Source)
			}
		}
	}
}

func badOf(lines []entry) (bad []string) {
	for _, l := range lines {
		if l.bad != "" {
			bad = append(bad, l.bad)
		}
	}
	return bad
}

func badLine(why, source string) string { return why + ": " + source }

func callKey(id string, ended bool) string { return fmt.Sprint(ended, " ", id) }

// update handles an update of the run.
func (a *answer) update(u engi.RunUpdate) error {
	if u.Step > a.step {
		if err := a.endStep(); err != nil {
			return err
		}
		a.beginStep(u.Step)
	}
	switch u.Kind {
	case engi.RunText:
		if err := a.take(a.parser.Write(u.Text)); err != nil {
			return err
		}
		a.showPartial()
	case engi.RunReset:
		a.attempt++
		a.at, a.parser, a.behind = 0, &markup.Parser{}, nil
		return a.endPreview()
	case engi.RunCall, engi.RunResult:
		if u.Kind == engi.RunResult {
			a.output.flush()
		}
		return a.call(u)
	case engi.RunOutput:
		if u.Call != nil && a.live.watched(a.id) {
			a.output.write(*u.Call, u.Text)
		}
	}
	return nil
}

func (a *answer) beginStep(n int) {
	a.step, a.attempt, a.at, a.lines, a.parser = n, 0, 0, nil, &markup.Parser{}
	switch l := &a.logged; {
	case n == l.step:
		a.lines, a.bad, l.told = l.lines, append(a.bad, l.bad...), true
	case n > l.step:
		a.tellLogged()
	}
}

// tellLogged adds the failed lines of steps that are only in the log.
func (a *answer) tellLogged() {
	if l := &a.logged; !l.told {
		a.bad, l.told = append(append(a.bad, l.bad...), badOf(l.lines)...), true
	}
}

// endStep handles the rest of the step's text.
func (a *answer) endStep() error {
	if err := a.take(a.parser.Close()); err != nil || a.step < a.logged.step {
		return err
	}
	if behind := a.behind; behind != nil {
		// The updates of an old run are rebuilt from its messages, which only contain the last attempt.
		a.behind, a.attempt = nil, a.logged.attempt
		if err := a.take(behind); err != nil {
			return err
		}
	}
	if a.at < len(a.lines) {
		if err := a.undo(); err != nil {
			return err
		}
	}
	a.bad = append(a.bad, badOf(a.lines)...)
	a.lines, a.at = nil, 0
	return a.endPreview()
}

// take handles complete lines.
func (a *answer) take(lines []markup.Line) error {
	if len(lines) == 0 {
		return nil
	}
	if a.step == a.logged.step && a.attempt < a.logged.attempt {
		a.behind = append(a.behind, lines...)
		return nil
	}
	var events []lineEvent
	for _, l := range lines {
		if l.Modules != nil {
			a.announce(l.Modules)
			continue
		}
		if a.step < a.logged.step {
			continue // the whole step is recorded
		}
		sum := sha256.Sum256([]byte(l.Raw))
		hash := hex.EncodeToString(sum[:8])
		if a.at < len(a.lines) {
			if a.lines[a.at].hash == hash {
				a.at++
				continue
			}
			if err := a.undo(); err != nil {
				return err
			}
		}
		if a.total == maxLines {
			l = markup.Line{Raw: l.Raw, Err: engi.Errorf(engi.Exhausted, "the answer has more than %d lines; the rest was left out", maxLines)}
		}
		if a.total++; a.total > maxLines+1 {
			continue
		}
		a.at++
		more, err := a.apply(l, hash)
		if err != nil {
			return err
		}
		events = append(events, more...)
	}
	if len(events) == 0 {
		return nil
	}
	return a.emit(events...)
}

// A lineEvent is an event about a line; line is 0 for other events.
type lineEvent struct {
	engi.EventSpec
	line int
}

// apply applies a line to the page and returns the resulting events.
func (a *answer) apply(l markup.Line, hash string) (events []lineEvent, err error) {
	x := entry{hash: hash}
	add := func(kind string, d eventData) {
		d.Line, d.Hash = a.at, hash
		spec, e := a.spec(kind, d)
		if e != nil {
			err = e
		}
		events = append(events, spec)
	}
	fail := func(why string) {
		d := eventData{Text: clip.Line(why, 1000), Source: clip.Line(l.Raw, maxSource)}
		x.bad = badLine(d.Text, d.Source)
		add(engi.EventPageFailed, d)
	}
	whole := func() {
		html := a.page.HTML()
		a.preview = false
		add(engi.EventPageReplaced, eventData{HTML: &html})
	}
	switch {
	case l.Err != nil:
		if a.preview {
			whole()
		}
		fail(l.Err.Error())
	case l.Stats != nil:
		if len(l.Stats) > maxStats {
			fail(fmt.Sprintf("the stats are longer than %d bytes", maxStats))
		} else {
			add(engi.EventPageStats, eventData{Stats: l.Stats})
		}
	case l.HTML != nil:
		why := a.page.Set(*l.HTML)
		if why == nil || a.preview {
			whole()
		}
		if why != nil {
			fail(why.Error())
		}
	default:
		applied, errs := a.page.Apply(l.Patches)
		switch {
		case a.preview:
			whole()
		case len(applied) > 0:
			if add(engi.EventPagePatched, eventData{Patches: applied}); len(events[0].Data) > markup.MaxJSON {
				events = nil
				whole() // a whole page never exceeds the limit
			}
		case len(errs) == 0:
			fail("the patches change nothing")
		}
		if len(errs) > 0 {
			fail(reasons(errs))
		}
	}
	a.lines = append(a.lines, x)
	return events, err
}

func reasons(errs []error) string {
	var b strings.Builder
	for i, err := range errs {
		if i == maxReasons {
			fmt.Fprintf(&b, "; and %d more", len(errs)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(clip.Line(err.Error(), 200))
	}
	return b.String()
}

// spec returns an event about the run.
func (a *answer) spec(kind string, d eventData) (lineEvent, error) {
	d.Run, d.Step, d.Attempt = a.run, a.step, a.attempt
	data, err := d.encode()
	return lineEvent{engi.EventSpec{Owner: a.rec.Owner, Subject: string(a.id), Type: kind, Actor: string(a.run), Data: data}, d.Line}, err
}

// emit appends events to the log.
func (a *answer) emit(lines ...lineEvent) error {
	specs := make([]engi.EventSpec, len(lines))
	for i, l := range lines {
		specs[i] = l.EventSpec
	}
	events, err := a.opt.Events.Append(a.ctx, specs...)
	if err != nil {
		return err
	}
	for i, e := range events {
		a.last.Store(e.Seq)
		if n := lines[i].line; n > 0 {
			a.lines[n-1].seq = e.Seq
			a.since++
		}
	}
	if a.since < baseEvery {
		return nil
	}
	a.since = 0
	html, seq := a.page.HTML(), a.last.Load()
	_, err = a.opt.Store.Change(a.ctx, a.id, func(r *Record, _ Emit) error {
		r.HTML, r.Seq = html, seq
		return nil
	})
	return err
}

// undo resets the page to its state after the first a.at lines of the step.
func (a *answer) undo() error {
	at := a.lines[0].seq - 1
	if a.at > 0 {
		at = a.lines[a.at-1].seq
	}
	r, err := a.opt.Store.Get(a.ctx, a.id)
	if err != nil {
		return err
	}
	before, err := a.pageAt(a.ctx, r, at)
	switch {
	case err == nil:
		a.page = before.Page
	case errors.Is(err, errTooOld): // the log does not reach back so far: the lines stay
	default:
		return err
	}
	a.lines = a.lines[:a.at]
	html := a.page.HTML()
	spec, err := a.spec(engi.EventPageReplaced, eventData{Undoes: a.at + 1, HTML: &html})
	if err != nil {
		return err
	}
	a.preview = false
	return a.emit(spec)
}

// showPartial shows watchers the beginning of a page that is being written.
func (a *answer) showPartial() {
	// Text that comes again is already on the page, and is mostly unchanged.
	again := a.at < len(a.lines) || a.step < a.logged.step || a.step == a.logged.step && a.attempt < a.logged.attempt
	if again || time.Since(a.partial) < partialEvery || !a.live.watched(a.id) {
		return
	}
	html, ok := a.parser.Partial()
	if !ok {
		return
	}
	a.partial, a.preview = time.Now(), true
	a.live.send(a.id, liveUpdate{engi.PageUpdate{
		Time: time.Now().UTC(), Kind: engi.PageReplaced, Run: a.run, HTML: markup.NewPage(html).HTML(), Partial: true,
	}, a.last.Load()})
}

// endPreview shows the current page again if a partial page is shown that will not
// be completed.
func (a *answer) endPreview() error {
	if !a.preview {
		return nil
	}
	a.preview = false
	html := a.page.HTML()
	spec, err := a.spec(engi.EventPageReplaced, eventData{HTML: &html})
	if err != nil {
		return err
	}
	return a.emit(spec)
}

// call records the beginning and the end of a tool call.
func (a *answer) call(u engi.RunUpdate) error {
	if u.Call == nil {
		return nil
	}
	key := callKey(u.Call.ID, u.Result != nil)
	if a.calls[key] {
		return nil
	}
	a.calls[key] = true
	d := eventData{Call: &callData{ID: u.Call.ID, Name: clip.Line(u.Call.Name, maxName), Arguments: clip.Text(u.Call.Arguments, maxArgs)}}
	if u.Result != nil {
		d.Call.Arguments, d.Result = "", &resultData{Text: clip.Text(u.Result.Text, maxArgs), Failed: u.Result.Failed}
	}
	spec, err := a.spec(engi.EventPageTool, d)
	if err != nil {
		return err
	}
	return a.emit(spec)
}

func (a *answer) announce(list []engi.CodeModule) {
	if a.opt.Docs == nil || !a.opt.Sandbox || len(a.modules) == maxPending {
		return
	}
	x := Modules{Run: a.run, List: list}
	for _, m := range a.modules {
		if fmt.Sprint(m) == fmt.Sprint(x) {
			return // the line came again
		}
	}
	a.modules = append(a.modules, x)
}

// end ends the batch, or starts a correction of failed lines by the model.
func (a *answer) end(run *engi.Run) error {
	if err := a.endStep(); err != nil {
		return err
	}
	a.tellLogged()
	done := eventData{Run: a.run, State: run.State, Reason: run.Reason}
	var failed *eventData
	switch {
	case run.Error != nil:
		failed = &eventData{Run: a.run, Text: run.Error.Text, Remedy: run.Error.Remedy}
	case run.State == engi.RunStopped:
		failed = &eventData{Run: a.run, Text: "the answer is not complete: the run was stopped by the limit of " + cmp.Or(run.Reason, "its agent")}
	}
	html := a.page.HTML()
	r, err := a.opt.Store.Change(engi.WithActor(a.ctx, string(a.run)), a.id, func(r *Record, emit Emit) error {
		if r.Batch == nil || r.Batch.Run != a.run {
			return nil
		}
		if failed != nil {
			data, err := failed.encode()
			if err != nil {
				return err
			}
			if _, err := emit(engi.EventPageFailed, data, idempotency.Request{}); err != nil {
				return err
			}
		}
		data, err := done.encode()
		if err != nil {
			return err
		}
		if r.Seq, err = emit(engi.EventPageDone, data, idempotency.Request{}); err != nil {
			return err
		}
		r.HTML, r.Modules = html, append(r.Modules, a.modules...)
		b := r.Batch
		if r.Batch = nil; len(a.bad) > 0 && b.Retry < maxRetries && !b.Cancelled && run.State == engi.RunDone {
			r.Batch = &Batch{Actions: b.Actions, Retry: b.Retry + 1, Talk: run.Conversation, Input: correction(a.bad)}
		}
		return nil
	})
	if err == nil && len(r.Modules) > 0 {
		a.save(a.id)
	}
	a.next()
	return err
}

// correction returns the prompt for correcting lines without effect.
func correction(bad []string) string {
	var b strings.Builder
	b.WriteString("These lines of your answer, or parts of them, did nothing:\n")
	for i, line := range bad {
		if i == maxTold {
			fmt.Fprintf(&b, "and %d more.\n", len(bad)-i)
			break
		}
		fmt.Fprintf(&b, "%d. %s\n", i+1, line)
	}
	b.WriteString("The rest stands. Write lines that do what those should have done, and nothing else.")
	return b.String()
}
