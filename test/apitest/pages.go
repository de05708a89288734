package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

// Pages is a fake with fixed answers to actions: demo-counter writes a page with a
// counter, add counts, tools calls a tool, stats prints a message, bad writes a line that
// has no effect, fail fails, and wait answers until it is cancelled. All other actions change
// nothing. It is safe for concurrent use.
type Pages struct {
	Sessions engi.Sessions

	mu   sync.Mutex
	seq  int64
	of   map[engi.SessionID]*sessionPage
	wake chan struct{} // closed at the next update
}

type sessionPage struct {
	engi.Page
	page  *markup.Page
	count int
	log   []pageEvent
	acted map[string]pageRepeat // actions, by Idempotency-Key
}

// A pageEvent is an update with the page after it.
type pageEvent struct {
	engi.PageUpdate
	page engi.Page
}

type pageRepeat struct {
	action engi.PageAction
	seq    int64
}

var _ engi.Pages = (*Pages)(nil)

const counterPage = `<main><h1 id="count">%d</h1><button data-action="add">+</button></main>`

// find returns the page of a session. The caller must hold the lock.
func (u *Pages) find(ctx context.Context, viewer engi.Viewer, session string) (*sessionPage, error) {
	s, err := u.Sessions.Get(ctx, viewer, session)
	if err != nil {
		return nil, err
	}
	if u.of == nil {
		u.of, u.wake = map[engi.SessionID]*sessionPage{}, make(chan struct{})
	}
	x := u.of[s.ID]
	if x == nil {
		x = &sessionPage{page: markup.NewPage(""), Page: engi.Page{Session: s.ID, Owner: s.Owner}, acted: map[string]pageRepeat{}}
		u.of[s.ID] = x
	}
	return x, nil
}

// happen adds updates. Output and partial pages are not kept.
func (u *Pages) happen(x *sessionPage, updates ...engi.PageUpdate) {
	for _, e := range updates {
		e.Time = time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
		if e.Kind != engi.PageOutput && !e.Partial {
			u.seq += 3 // other pages have events, too
			if x.Answered == 0 {
				x.Answered = u.seq - 1
			}
			e.Seq, x.Seq = u.seq, u.seq
		}
		switch {
		case e.Kind == engi.PageReplaced && !e.Partial:
			x.page = markup.NewPage(e.HTML)
			x.HTML, x.Updated = x.page.HTML(), e.Time
		case e.Kind == engi.PagePatched:
			e.Patches, _ = x.page.Apply(e.Patches)
			x.HTML, x.Updated = x.page.HTML(), e.Time
		case e.Kind == engi.PageDone:
			x.Working, x.Waiting, x.Answered = "", 0, e.Seq // the remaining actions are not answered
		case e.Run != "":
			x.Working = e.Run
		}
		x.log = append(x.log, pageEvent{e, x.Page})
	}
	close(u.wake)
	u.wake = make(chan struct{})
}

// Act implements engi.Pages.
func (u *Pages) Act(ctx context.Context, a engi.PageAction) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, err := u.find(ctx, a.Viewer, a.Session)
	switch {
	case err != nil:
		return 0, err
	case a.Agent != "" && a.Agent != "echo":
		return 0, engi.Errorf(engi.NotFound, "there is no agent %q", a.Agent)
	}
	if first, ok := x.acted[a.Idempotency]; ok && a.Idempotency != "" {
		if !reflect.DeepEqual(first.action, a) {
			return 0, errRepeated
		}
		return first.seq, nil
	}
	data := a.Data
	if data == nil {
		data = json.RawMessage("{}")
	}
	u.happen(x, engi.PageUpdate{Kind: engi.PageActed, Action: a.Action, Data: data})
	seq := u.seq
	x.acted[a.Idempotency] = pageRepeat{a, seq}
	if x.Working != "" {
		x.Waiting++
		return seq, nil
	}
	u.answer(x, a.Action)
	return seq, nil
}

func (u *Pages) answer(x *sessionPage, action string) {
	run := engi.NewRunID()
	page := func(html string, partial bool) engi.PageUpdate {
		return engi.PageUpdate{Kind: engi.PageReplaced, Run: run, HTML: html, Partial: partial}
	}
	done := engi.PageUpdate{Kind: engi.PageDone, Run: run, Ended: engi.RunDone}
	call := &engi.ToolCall{ID: "call-" + string(run), Name: "run_code", Arguments: `{"code":"6*7"}`}
	switch action {
	case "demo-counter":
		whole := fmt.Sprintf(counterPage, 0)
		u.happen(x, page(`<main></main>`, true), page(whole[:len(whole)-7], true), page(whole, false), done)
		x.count = 0
	case "add":
		x.count++
		u.happen(x, engi.PageUpdate{Kind: engi.PagePatched, Run: run, Patches: []engi.PagePatch{
			{Selector: "#count", Text: new(fmt.Sprint(x.count))}, {Selector: "#count", Attr: map[string]*string{"title": nil}},
		}}, done)
	case "tools":
		u.happen(x, engi.PageUpdate{Kind: engi.PageTool, Run: run, Call: call}, engi.PageUpdate{Kind: engi.PageOutput, Run: run, Call: &engi.ToolCall{ID: call.ID, Name: call.Name}, Text: "4"},
			engi.PageUpdate{Kind: engi.PageTool, Run: run, Call: call, Result: &engi.ToolResult{Call: call.ID, Name: call.Name, Text: "42"}}, done)
	case "stats":
		u.happen(x, engi.PageUpdate{Kind: engi.PageStats, Run: run, Data: json.RawMessage(`{"patches":2}`)}, done)
	case "bad":
		u.happen(x, engi.PageUpdate{Kind: engi.PageBad, Run: run, Text: "nothing matches #nowhere"}, engi.PageUpdate{Kind: engi.PageBad, Run: run, Text: "nothing matches #there"}, done)
	case "fail":
		u.happen(x, engi.PageUpdate{Kind: engi.PageBad, Run: run, Text: "the model is gone"}, engi.PageUpdate{Kind: engi.PageDone, Run: run, Ended: engi.RunFailed})
	case "wait":
		u.happen(x, engi.PageUpdate{Kind: engi.PageStats, Run: run, Data: json.RawMessage(`{}`)}, page(`<p>wai`, true))
	default:
		u.happen(x, done)
	}
}

// Get implements engi.Pages.
func (u *Pages) Get(ctx context.Context, viewer engi.Viewer, session string, at int64) (engi.Page, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, err := u.find(ctx, viewer, session)
	if err != nil || at == 0 {
		if x != nil {
			return x.Page, err
		}
		return engi.Page{}, err
	}
	return u.then(x, at)
}

func (u *Pages) then(x *sessionPage, at int64) (engi.Page, error) {
	if at > u.seq {
		return engi.Page{}, engi.Errorf(engi.Invalid, "there is no event %d yet", at).WithRemedy("name one that has happened")
	}
	then := engi.Page{Session: x.Session, Owner: x.Owner}
	for _, e := range x.log {
		if e.Seq > 0 && e.Seq <= at {
			then = e.page
		}
	}
	return then, nil
}

// Watch implements engi.Pages.
func (u *Pages) Watch(ctx context.Context, viewer engi.Viewer, session string, seq int64) iter.Seq2[engi.PageUpdate, error] {
	return func(yield func(engi.PageUpdate, error) bool) {
		u.mu.Lock()
		x, err := u.find(ctx, viewer, session)
		if err != nil {
			u.mu.Unlock()
			yield(engi.PageUpdate{}, err)
			return
		}
		var next []pageEvent
		seen := len(x.log)
		if seq == 0 || seq > u.seq { // the number is from another log, or from one that was lost
			next = []pageEvent{{PageUpdate: engi.PageUpdate{Kind: engi.PageReplaced, Seq: x.Seq, Time: x.Updated, HTML: x.HTML}}}
		} else {
			next = slices.DeleteFunc(slices.Clone(x.log), func(e pageEvent) bool { return e.Seq <= seq })
		}
		for {
			wake := u.wake
			u.mu.Unlock()
			for _, e := range next {
				if !yield(e.PageUpdate, nil) {
					return
				}
			}
			u.mu.Lock()
			if next, seen = slices.Clone(x.log[seen:]), len(x.log); len(next) > 0 {
				continue
			}
			u.mu.Unlock()
			select {
			case <-wake:
			case <-ctx.Done():
				yield(engi.PageUpdate{}, engi.Errorf(engi.Expired, "watch page: %v", context.Cause(ctx)))
				return
			}
			u.mu.Lock()
		}
	}
}

// Cancel implements engi.Pages.
func (u *Pages) Cancel(ctx context.Context, viewer engi.Viewer, session string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, err := u.find(ctx, viewer, session)
	if err != nil || x.Working == "" {
		return err
	}
	u.happen(x, engi.PageUpdate{Kind: engi.PageDone, Run: x.Working, Ended: engi.RunCancelled})
	return nil
}

// Restore implements engi.Pages.
func (u *Pages) Restore(ctx context.Context, viewer engi.Viewer, session string, at int64) (engi.Page, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, err := u.find(ctx, viewer, session)
	if err != nil {
		return engi.Page{}, err
	}
	if x.Working != "" {
		return engi.Page{}, engi.Errorf(engi.Conflict, "an answer is being given").WithRemedy("cancel it, or wait for its end")
	}
	then, err := u.then(x, at)
	if err != nil {
		return engi.Page{}, err
	}
	if _, after, ok := strings.Cut(then.HTML, `id="count">`); ok {
		if _, err := fmt.Sscanf(after, "%d", &x.count); err != nil {
			panic(err) // the page is valid
		}
	}
	u.happen(x, engi.PageUpdate{Kind: engi.PageReplaced, HTML: then.HTML})
	return x.Page, nil
}

// Happen adds updates to the page of a session, as if a run had caused them.
func (u *Pages) Happen(ctx context.Context, session engi.SessionID, updates ...engi.PageUpdate) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, err := u.find(ctx, engi.Everyone, string(session))
	if err == nil {
		u.happen(x, updates...)
	}
	return err
}
