package page_test

import (
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page"
	"github.com/engi-dev/engi/internal/page/markup"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/store"
)

// A fixture holds the things that outlive a process: a database, the directory of runs, and the
// model, which is external.
type fixture struct {
	t         testing.TB
	dir       string
	db        *store.DB
	model     *scripted.Server
	transport http.RoundTripper // connects to another model
	tools     []tool.Tool
	library   engi.Docs
	runs      int
	backoff   time.Duration // pause between attempts to save modules
	writes    atomic.Int64  // number of writes to the store so far
	refuses   atomic.Bool   // the log refuses stats
	failing   atomic.Int64  // number of the first write that fails, like all after it; 0 for none
	half      bool          // the first failing write takes effect before it fails
}

func newFixture(t testing.TB, play func(scripted.Conversation) scripted.Answer) *fixture {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t: t, dir: dir, db: db, model: &scripted.Server{Play: play}}
}

// session makes a session.
func (w *fixture) session(owner engi.Owner) engi.SessionID {
	w.t.Helper()
	id := engi.NewSessionID()
	if err := store.Sessions(w.db).Put(w.t.Context(), session.Record{Session: engi.Session{ID: id, Owner: owner, State: engi.SessionIdle, Created: time.Now()}}); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// end ends a session.
func (w *fixture) end(id engi.SessionID) {
	w.t.Helper()
	s := store.Sessions(w.db)
	r, err := s.Find(w.t.Context(), engi.Everyone, string(id))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Steps = []session.Step{{From: r.State, To: engi.SessionTerminated, Cause: "request"}}
	r.Ended, r.State = time.Now(), engi.SessionTerminated
	if err := s.Save(w.t.Context(), r); err != nil {
		w.t.Fatal(err)
	}
}

// sessions finds sessions, which is the only function that pages need.
type sessions struct {
	engi.Sessions
	store session.Store
}

func (s sessions) Get(ctx context.Context, viewer engi.Viewer, id string) (engi.Session, error) {
	r, err := s.store.Find(ctx, viewer, id)
	return r.Session, err
}

// A process is a runner of agents and a service.
type process struct {
	*page.Service
	w      *fixture
	agents *agent.Runner
	stop   func() // stops like a node; may be called again
}

func (w *fixture) start() *process {
	w.t.Helper()
	reg, err := llm.New(llm.Options{Providers: map[string]llm.Provider{"openai": {URL: "http://model.invalid"}}, Default: "openai:demo", Client: &http.Client{Transport: stdcmp.Or[http.RoundTripper](w.transport, w.model)}, Backoff: time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	names := []string{}
	for _, x := range w.tools {
		names = append(names, x.Name)
	}
	agents, err := agent.New(agent.Options{
		Agents: []engi.AgentSpec{{Name: "coder"}, {Name: page.Agent, Tools: names}}, Models: reg.Model, Tools: w.tools, MaxRuns: w.runs,
		Store: failingRuns{store.Agents(w.db), w}, Results: store.AgentResults(w.db), Dir: filepath.Join(w.dir, "runs"),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	s := page.New(page.Options{
		Agents: agents, Sessions: sessions{store: store.Sessions(w.db)}, Events: failingLog{store.Events(w.db), w}, Store: failingStore{store.Pages(w.db), w},
		Docs: w.library, Sandbox: w.library != nil, Embedder: docs.BuiltIn(), Backoff: stdcmp.Or(w.backoff, time.Millisecond),
	})
	run := func(run func(context.Context, func()) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- run(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			w.t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		})
	}
	stopAgents := run(agents.Run)
	stopService := run(s.Run)
	p := &process{Service: s, w: w, agents: agents, stop: sync.OnceFunc(func() { stopService(); stopAgents() })}
	w.t.Cleanup(p.stop)
	return p
}

var errCrashed = errors.New("the process is dead")

// write makes a write unless the process is dead.
func (w *fixture) write(f func() error) error {
	n, from := w.writes.Add(1), w.failing.Load()
	if from > 0 && n >= from {
		if n == from && w.half {
			_ = f()
		}
		return engi.Errorf(engi.Internal, "%v", errCrashed)
	}
	return f()
}

func (w *fixture) dead() bool { return w.failing.Load() > 0 && w.writes.Load() >= w.failing.Load() }

type failingStore struct {
	page.Store
	w *fixture
}

func (s failingStore) Change(ctx context.Context, id engi.SessionID, f func(*page.Record, page.Emit) error) (r page.Record, err error) {
	err = s.w.write(func() error { r, err = s.Store.Change(ctx, id, f); return err })
	return r, err
}

type failingLog struct {
	engi.EventLog
	w *fixture
}

func (l failingLog) Append(ctx context.Context, specs ...engi.EventSpec) (events []engi.Event, err error) {
	if l.w.refuses.Load() && slices.ContainsFunc(specs, func(e engi.EventSpec) bool { return e.Type == engi.EventPageStats }) {
		return nil, engi.Errorf(engi.Invalid, "it is refused")
	}
	err = l.w.write(func() error { events, err = l.EventLog.Append(ctx, specs...); return err })
	return events, err
}

type failingRuns struct {
	agent.Store
	w *fixture
}

func (s failingRuns) Put(ctx context.Context, r agent.Record, m []engi.Message) error {
	return s.w.write(func() error { return s.Store.Put(ctx, r, m) })
}

func (s failingRuns) Update(ctx context.Context, r agent.Record, n int, m []engi.Message) error {
	return s.w.write(func() error { return s.Store.Update(ctx, r, n, m) })
}

// act acts in the name of ann.
func (p *process) act(t testing.TB, id engi.SessionID, name, data string) int64 {
	t.Helper()
	seq, err := p.Act(t.Context(), engi.PageAction{Viewer: "ann", Session: string(id), Action: name, Data: json.RawMessage(data)})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// rest waits until no action is unanswered.
func (p *process) rest(t testing.TB, id engi.SessionID) engi.Page {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		ui, err := p.Get(t.Context(), "ann", string(id), 0)
		if err != nil {
			t.Fatal(err)
		}
		if ui.Working == "" && ui.Waiting == 0 {
			return ui
		}
	}
	t.Fatal("the answer does not end")
	return engi.Page{}
}

// working waits until a run is active and has asked its model.
func (p *process) working(t testing.TB, id engi.SessionID) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		ui, err := p.Get(t.Context(), "ann", string(id), 0)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%+v, %v", ui, err)
		}
		if ui.Working != "" && len(p.w.model.Seen()) > 0 {
			return
		}
	}
}

// A client is a viewer of a page, over any number of connections.
type client struct {
	page *markup.Page
	seq  int64
	seen []engi.PageUpdate // updates with sequence numbers
}

// look applies updates to the page until done returns true, or the
// process ends. It returns false in the second case.
func (c *client) look(ctx context.Context, t testing.TB, p engi.Pages, id engi.SessionID, done func(engi.PageUpdate) bool) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for u, err := range p.Watch(ctx, "ann", string(id), c.seq) {
		if err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("watch: %v", err)
			}
			return false
		}
		if u.Seq == 0 {
			continue
		}
		if u.Seq <= c.seq {
			t.Errorf("update %d comes after %d", u.Seq, c.seq)
		}
		c.seq = u.Seq
		c.seen = append(c.seen, u)
		switch u.Kind {
		case engi.PageReplaced:
			c.page = markup.NewPage(u.HTML)
		case engi.PagePatched:
			if _, errs := c.page.Apply(u.Patches); len(errs) > 0 {
				t.Errorf("patches of %d: %v", u.Seq, errs)
			}
		}
		if done(u) {
			return true
		}
	}
	return false
}

// join returns a client with the current page.
func (p *process) join(t testing.TB, id engi.SessionID) *client {
	t.Helper()
	c := &client{}
	if !c.look(t.Context(), t, p, id, func(engi.PageUpdate) bool { return true }) || c.seq == 0 {
		t.Fatal("the page did not come")
	}
	return c
}

// story returns the updates that the client saw, without details that differ between processes.
func (c *client) story() (all []string) {
	for _, u := range c.seen[1:] {
		u.Seq, u.Time, u.Run = 0, time.Time{}, ""
		if u.Call != nil {
			u.Call.ID = ""
		}
		if u.Result != nil {
			u.Result.Call = ""
		}
		raw, _ := json.Marshal(u) // it consists of strings and numbers
		all = append(all, string(raw))
	}
	return all
}

func ended(u engi.PageUpdate) bool { return u.Kind == engi.PageDone }

// counter is a model that draws a counter and increments it by one.
func counter(c scripted.Conversation) scripted.Answer {
	text := c.Last().Text
	_, now, _ := strings.Cut(text, "[NOW] ")
	_, html, _ := strings.Cut(text, `id="count">`)
	n := 0
	fmt.Sscan(html, &n)
	var b strings.Builder
	if !strings.Contains(text, "HTML:") {
		b.WriteString(`{"type":"full","html":"<main><b id=\"count\">0</b><ul></ul></main>"}` + "\n")
	}
	for range strings.Count(now, "Action: increment") {
		n++
		fmt.Fprintf(&b, `{"type":"patches","patches":[{"selector":"#count","text":"%d"},{"selector":"ul","append":"<li>%d</li>"}]}`+"\n", n, n)
	}
	b.WriteString(`{"type":"stats","count":` + fmt.Sprint(n) + `}`)
	return scripted.Answer{Text: b.String()}
}

const counted = `<main><b id="count">%d</b><ul>%s</ul></main>`

func TestActionsChangeThePage(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	looked := make(chan bool)
	go func() {
		n := 0
		looked <- c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool {
			if u.Kind == engi.PageDone {
				n++
			}
			return n == 2
		})
	}()
	first := p.act(t, id, "open", "")
	ui := p.rest(t, id)
	if want := fmt.Sprintf(counted, 0, ""); ui.HTML != want || ui.Session != id || ui.Owner != "ann" {
		t.Errorf("%+v, want %s", ui, want)
	}
	p.act(t, id, "increment", `{ "by": "<1>" }`)
	ui = p.rest(t, id)
	if want := fmt.Sprintf(counted, 1, "<li>1</li>"); ui.HTML != want {
		t.Errorf("%+v, want %s", ui, want)
	}
	if !<-looked || c.page.HTML() != ui.HTML {
		t.Errorf("the client has %s", c.page.HTML())
	}
	var kinds []string
	for _, u := range c.seen {
		kinds = append(kinds, string(u.Kind))
	}
	if got := strings.Join(kinds, " "); got != "html action html stats done action patch stats done" {
		t.Errorf("the client saw %s", got)
	}
	if u := c.seen[len(c.seen)-1]; u.Ended != engi.RunDone || u.Run == "" {
		t.Errorf("the end is %+v", u)
	}
	seen := w.model.Seen()
	want := "HTML:\n" + fmt.Sprintf(counted, 0, "") + "\n[RECENT CHANGES] 1. Action: open Data: {} -> the page was replaced\n[NOW] 1. Action: increment Data: {\"by\":\"<1>\"}"
	if got := seen[1].Last().Text; got != want {
		t.Errorf("the model was asked\n%s\nwant\n%s", got, want)
	}
	if seen[0].Last().Text != "[NOW] 1. Action: open Data: {}" || seen[0].System != seen[1].System || len(seen[0].Tools) > 0 {
		t.Errorf("the model was asked %q, and with %v %q, then %q", seen[0].Last().Text, seen[0].Tools, seen[0].System, seen[1].System)
	}
	// Earlier states can be read and restored.
	before, err := p.Get(t.Context(), "ann", string(id), c.seen[6].Seq-1)
	if err != nil || before.HTML != fmt.Sprintf(counted, 0, "") {
		t.Errorf("%+v, %v", before, err)
	}
	if empty, err := p.Get(t.Context(), "ann", string(id), first); err != nil || empty.HTML != "" {
		t.Errorf("%+v, %v", empty, err)
	}
	// The two answers ended with these events; before the first, the page was empty.
	for at, want := range map[int64]int64{0: c.seen[8].Seq, c.seen[8].Seq - 1: c.seen[4].Seq, c.seen[4].Seq: c.seen[4].Seq, c.seen[3].Seq: first - 1, first: first - 1} {
		if then, err := p.Get(t.Context(), "ann", string(id), at); err != nil || then.Answered != want {
			t.Errorf("at %d: %+v, %v, want %d", at, then, err, want)
		}
	}
	back, err := p.Restore(t.Context(), "ann", string(id), before.Seq)
	if err != nil || back.HTML != before.HTML || back.Seq <= ui.Seq {
		t.Errorf("%+v, %v", back, err)
	}
	if now, err := p.Get(t.Context(), "ann", string(id), 0); err != nil || now != back {
		t.Errorf("%+v, %v, want %+v", now, err, back)
	}
	if !c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool { return u.Kind == engi.PageReplaced }) || c.page.HTML() != back.HTML {
		t.Errorf("the client has %s", c.page.HTML())
	}
}

func TestActionsThatWaitAreAnsweredTogether(t *testing.T) {
	hold := make(chan struct{})
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		if c.N == 1 {
			<-hold
		}
		return counter(c)
	})
	p := w.start()
	id := w.session("ann")
	p.act(t, id, "open", "")
	p.working(t, id)
	for range 3 {
		p.act(t, id, "increment", "")
	}
	if ui, err := p.Get(t.Context(), "ann", string(id), 0); err != nil || ui.Working == "" || ui.Waiting != 3 {
		t.Errorf("%+v, %v", ui, err)
	}
	if _, err := p.Restore(t.Context(), "ann", string(id), 1); !engi.Is(err, engi.Conflict) {
		t.Errorf("restore while a run answers: %v", err)
	}
	close(hold)
	if ui := p.rest(t, id); ui.HTML != fmt.Sprintf(counted, 3, "<li>1</li><li>2</li><li>3</li>") {
		t.Errorf("%+v", ui)
	}
	if n := len(w.model.Seen()); n != 2 {
		t.Errorf("%d runs", n)
	}
}

func TestQueueIsBounded(t *testing.T) {
	hold := make(chan struct{})
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer { <-hold; return counter(c) })
	defer close(hold)
	p := w.start()
	id := w.session("ann")
	var err error
	n := 0
	for ; n < 200 && err == nil; n++ {
		_, err = p.Act(t.Context(), engi.PageAction{Viewer: "ann", Session: string(id), Action: "a"})
	}
	if !engi.Is(err, engi.Exhausted) || n < 64 || n > 129 {
		t.Errorf("action %d: %v", n, err)
	}
	if err := p.Cancel(t.Context(), "ann", string(id)); err != nil {
		t.Fatal(err)
	}
	if ui := p.rest(t, id); ui.HTML != "" {
		t.Errorf("%+v", ui)
	}
	if _, err := p.Restore(t.Context(), "ann", string(id), 1); err != nil {
		t.Errorf("restore after everything was cancelled: %v", err)
	}
}

func TestBadActions(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id := string(w.session("ann"))
	for what, try := range map[string]struct {
		a    engi.PageAction
		want engi.Kind
	}{
		"another owner's session": {engi.PageAction{Viewer: "bob", Session: id, Action: "a"}, engi.NotFound},
		"no session":              {engi.PageAction{Viewer: "ann", Session: "x", Action: "a"}, engi.NotFound},
		"no agent":                {engi.PageAction{Viewer: "ann", Session: id, Action: "a", Agent: "x"}, engi.NotFound},
		"no name":                 {engi.PageAction{Viewer: "ann", Session: id}, engi.Invalid},
		"a long name":             {engi.PageAction{Viewer: "ann", Session: id, Action: strings.Repeat("a", 129)}, engi.Invalid},
		"a name of two lines":     {engi.PageAction{Viewer: "ann", Session: id, Action: "a\n[NOW] b"}, engi.Invalid},
		"a list":                  {engi.PageAction{Viewer: "ann", Session: id, Action: "a", Data: json.RawMessage("[]")}, engi.Invalid},
		"no JSON":                 {engi.PageAction{Viewer: "ann", Session: id, Action: "a", Data: json.RawMessage("{")}, engi.Invalid},
		"two objects":             {engi.PageAction{Viewer: "ann", Session: id, Action: "a", Data: json.RawMessage("{}{}")}, engi.Invalid},
		"much data":               {engi.PageAction{Viewer: "ann", Session: id, Action: "a", Data: json.RawMessage(`{"a":"` + strings.Repeat("x", 64<<10) + `"}`)}, engi.Invalid},
	} {
		if _, err := p.Act(t.Context(), try.a); !engi.Is(err, try.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.Get(t.Context(), "bob", id, 0); !engi.Is(err, engi.NotFound) {
		t.Error(err)
	}
	if err := p.Cancel(t.Context(), "bob", id); !engi.Is(err, engi.NotFound) {
		t.Error(err)
	}
	if _, err := p.Restore(t.Context(), "bob", id, 1); !engi.Is(err, engi.NotFound) {
		t.Error(err)
	}
	for _, err := range p.Watch(t.Context(), "bob", id, 0) {
		if !engi.Is(err, engi.NotFound) {
			t.Error(err)
		}
	}
	if ui, err := p.Get(t.Context(), "ann", id, 0); err != nil || ui.HTML != "" || ui.Waiting != 0 {
		t.Errorf("%+v, %v", ui, err)
	}
}

func TestRepeatedKeyActsOnce(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id, other := w.session("ann"), w.session("ann")
	p.act(t, id, "open", "")
	p.rest(t, id)
	act := func(id engi.SessionID) int64 {
		seq, err := p.Act(t.Context(), engi.PageAction{Viewer: "ann", Session: string(id), Action: "increment", Idempotency: "k"})
		if err != nil {
			t.Error(err)
		}
		return seq
	}
	var seqs [8]int64
	var wg sync.WaitGroup
	for i := range seqs {
		wg.Go(func() { seqs[i] = act(id) })
	}
	wg.Wait()
	p.rest(t, id)
	for _, seq := range append(seqs[:], act(id)) {
		if seq != seqs[0] {
			t.Errorf("%v", seqs)
		}
	}
	if ui := p.rest(t, id); ui.HTML != fmt.Sprintf(counted, 1, "<li>1</li>") {
		t.Errorf("%+v", ui)
	}
	if act(other) == seqs[0] {
		t.Error("the key of one session is that of another")
	}
}

func TestCancelEndsTheRun(t *testing.T) {
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"full","html":"<p>a</p>"}` + "\n" + strings.Repeat(`{"type":"stats","a":1}`+"\n", 10_000), Pace: time.Millisecond}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool { return u.Kind == engi.PageStats })
	p.act(t, id, "b", "")
	if err := p.Cancel(t.Context(), "ann", string(id)); err != nil {
		t.Fatal(err)
	}
	if ui := p.rest(t, id); ui.HTML != "<p>a</p>" {
		t.Errorf("%+v", ui)
	}
	c.look(t.Context(), t, p, id, ended)
	if u := c.seen[len(c.seen)-1]; u.Ended != engi.RunCancelled {
		t.Errorf("%+v", u)
	}
	if err := p.Cancel(t.Context(), "ann", string(id)); err != nil {
		t.Errorf("nothing to cancel: %v", err)
	}
}

func TestModelCorrectsBadLines(t *testing.T) {
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		if strings.HasPrefix(c.Last().Text, "These lines") {
			return scripted.Answer{Text: `{"type":"patches","patches":[{"selector":"p","text":"fixed"}]}`}
		}
		return scripted.Answer{Text: `{"type":"full","html":"<p>x</p>"}` + "\n" + `{"type":"patches","patches":[{"selector":"#none","text":"1"},{"selector":"p","class":{"a":true}}]}` + "\n" + `{"type":"patches","patches":[{"selector":"p","te` + "\n"}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	runs := map[engi.RunID]bool{}
	c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool {
		if u.Kind == engi.PageDone {
			runs[u.Run] = true
		}
		return len(runs) == 2
	})
	if ui := p.rest(t, id); ui.HTML != `<p class="a">fixed</p>` || c.page.HTML() != ui.HTML {
		t.Errorf("%+v", ui)
	}
	told := w.model.Seen()[1].Last().Text
	if !strings.Contains(told, "#none") || len(w.model.Seen()) != 2 || len(w.model.Seen()[1].Turns) != 3 {
		t.Errorf("the model was told %s", told)
	}
	bad := 0
	for _, u := range c.seen {
		if u.Kind == engi.PageBad {
			bad++
		}
	}
	if bad != 2 {
		t.Errorf("%d bad lines in %+v", bad, c.seen)
	}
}

func TestModelHasTwoAttemptsToCorrect(t *testing.T) {
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"patches","patches":[{"selector":"#none","text":"1"}]}`}
	})
	p := w.start()
	id := w.session("ann")
	p.act(t, id, "a", "")
	p.rest(t, id)
	if n := len(w.model.Seen()); n != 3 {
		t.Errorf("%d runs", n)
	}
}

func TestFailedRun(t *testing.T) {
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Status: 400, Text: "no such model"}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, ended)
	n := len(c.seen)
	if c.seen[n-1].Ended != engi.RunFailed || c.seen[n-2].Kind != engi.PageBad || !strings.Contains(c.seen[n-2].Text, "no such model") {
		t.Errorf("%+v", c.seen)
	}
	// A run that cannot begin at all ends in the same way.
	if _, err := p.Act(t.Context(), engi.PageAction{Viewer: "ann", Session: string(id), Action: "a", Model: "nobody:x"}); err != nil {
		t.Fatal(err)
	}
	c.look(t.Context(), t, p, id, ended)
	if n = len(c.seen); c.seen[n-1].Ended != engi.RunFailed || c.seen[n-2].Kind != engi.PageBad {
		t.Errorf("%+v", c.seen[n-2:])
	}
}

// TestMorePagesThanRuns has more pages act than runs may be active.
func TestMorePagesThanRuns(t *testing.T) {
	w := newFixture(t, counter)
	w.runs = 4
	p := w.start()
	var all []engi.SessionID
	for range 20 {
		all = append(all, w.session("ann"))
		p.act(t, all[len(all)-1], "open", "")
	}
	for _, id := range all {
		if ui := p.rest(t, id); ui.HTML != fmt.Sprintf(counted, 0, "") {
			t.Errorf("%+v", ui)
		}
	}
}

// TestModelStartsOver breaks the connection to the model, which then writes
// another answer.
func TestModelStartsOver(t *testing.T) {
	const head = `{"type":"full","html":"<p>a</p><i>b</i>"}` + "\n" + `{"type":"patches","patches":[{"selector":"p","text":"1"}]}` + "\n"
	for name, then := range map[string]string{
		"the same": head + `{"type":"patches","patches":[{"selector":"i","text":"2"}]}` + "\n" + `{"type":"patches","patches":[{"selector":"i","text":"3"}]}` + "\n",
		"more":     head + `{"type":"patches","patches":[{"selector":"i","text":"9"}]}` + "\n",
		"less":     `{"type":"full","html":"<p>a</p><i>b</i>"}` + "\n",
		"other":    `{"type":"full","html":"<b>other</b>"}`,
		"nothing":  "",
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
				if !first {
					return scripted.Answer{Text: then}
				}
				first = false
				text := head + `{"type":"patches","patches":[{"selector":"i","text":"2"}]}` + "\n" + `{"type":"full","html":"<p>tail` + strings.Repeat(" tail", 20)
				return scripted.Answer{Text: text, Cut: len(text)/12 - 2}
			})
			p := w.start()
			id := w.session("ann")
			c := p.join(t, id)
			looked := make(chan bool)
			go func() { looked <- c.look(t.Context(), t, p, id, ended) }()
			p.act(t, id, "a", "")
			ui := p.rest(t, id)
			if !<-looked || c.page.HTML() != ui.HTML {
				t.Errorf("the client has %s, not %s", c.page.HTML(), ui.HTML)
			}
			want := markup.NewPage("")
			var parser markup.Parser
			for _, l := range append(parser.Write(then), parser.Close()...) {
				if l.HTML != nil {
					if err := want.Set(*l.HTML); err != nil {
						t.Fatal(err)
					}
				}
				want.Apply(l.Patches)
			}
			if ui.HTML != want.HTML() {
				t.Errorf("the page is %s, want %s", ui.HTML, want.HTML())
			}
			if len(w.model.Seen()) < 2 {
				t.Error("the model did not start over")
			}
		})
	}
}

// TestPageThatComesAgain breaks the connection after the model has written a page. The model
// writes it again, so late that partial pages would be shown.
func TestPageThatComesAgain(t *testing.T) {
	const head = `{"type":"full","html":"<p>a</p><i>b</i>"}` + "\n" + `{"type":"stats","n":1}` + "\n"
	first := true
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		text := head + `{"type":"stats","n":2}` + "\n"
		if !first {
			time.Sleep(150 * time.Millisecond)
			return scripted.Answer{Text: text}
		}
		first = false
		return scripted.Answer{Text: text, Cut: len(head)/12 + 1}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	looked := make(chan bool)
	go func() { looked <- c.look(t.Context(), t, p, id, ended) }()
	p.act(t, id, "a", "")
	if !<-looked {
		t.Fatal("the answer does not end")
	}
	var kinds []string
	for _, u := range c.seen {
		kinds = append(kinds, string(u.Kind))
	}
	if got := strings.Join(kinds, " "); got != "html action html stats stats done" {
		t.Errorf("the client saw %s", got)
	}
	if len(w.model.Seen()) != 2 {
		t.Errorf("the model was asked %d times", len(w.model.Seen()))
	}
}

// TestCrashes ends the process at every write: to the record, to the log
// and by the run, once before and once after the write takes effect. The next process must end with the
// page of an undisturbed process, and answer no action twice.
func TestCrashes(t *testing.T) {
	double, err := tool.New("double", "Doubles.", func(_ context.Context, c *tool.Call, a struct {
		N int `json:"n"`
	}) (tool.Result, error) {
		c.Out(engi.Stdout, []byte("working"))
		return tool.Result{Text: fmt.Sprint(2 * a.N)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	double.Repeatable = true
	// An answer of two steps: lines, a call, lines, some of which are bad, and a correction.
	play := func(c scripted.Conversation) scripted.Answer {
		last := c.Last()
		switch {
		case last.Role == "tool":
			a := counter(scripted.Conversation{Turns: c.Turns[:1]})
			a.Text = strings.ReplaceAll(a.Text, `"<li>`, `"<li>`+last.Results[0].Text) + "\n" + `{"type":"patches","patches":[{"selector":"#none","text":"1"}]}` + "\n"
			return a
		case strings.HasPrefix(last.Text, "These lines"):
			return scripted.Answer{Text: `{"type":"patches","patches":[{"selector":"#n","text":"corrected"},{"selector":"main","append":"<i>c</i>"}]}`}
		}
		return scripted.Answer{Text: `{"type":"stats","step":1}` + "\n", Calls: []scripted.Call{{Name: "double", Arguments: `{"n":21}`}}}
	}
	act := func(p *process, id engi.SessionID) error {
		for i, name := range []string{"open", "increment", "increment"} {
			// A client without an answer repeats the request.
			if _, err := p.Act(context.Background(), engi.PageAction{Viewer: "ann", Session: string(id), Action: name, Idempotency: fmt.Sprint(i)}); err != nil {
				return err
			}
			for {
				ui, err := p.Get(context.Background(), "ann", string(id), 0)
				if err != nil {
					return err
				}
				if ui.Working == "" && ui.Waiting == 0 {
					break
				}
				if time.Sleep(time.Millisecond); p.w.dead() {
					return errCrashed
				}
			}
		}
		return nil
	}
	undisturbed := func() (html string, story []string, runs int, writes int64) {
		w := newFixture(t, play)
		w.tools = []tool.Tool{double}
		p, id := w.start(), w.session("ann")
		c := p.join(t, id)
		if err := act(p, id); err != nil {
			t.Fatal(err)
		}
		writes = w.writes.Load()
		all, err := p.agents.List(t.Context(), "ann", 100)
		if err != nil {
			t.Fatal(err)
		}
		over := p.act(t, id, "over", "")
		c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool { return u.Seq == over })
		if err := p.Cancel(t.Context(), "ann", string(id)); err != nil {
			t.Error(err)
		}
		return c.page.HTML(), c.story(), len(all), writes
	}
	want, story, runs, writes := undisturbed()
	t.Logf("%d writes, %d runs, %s", writes, runs, want)
	if !strings.Contains(want, `<li>421</li><li>422</li>`) || writes < 30 {
		t.Fatalf("%d writes, %s", writes, want)
	}
	every := int64(1)
	if raceDetector {
		every = 5
	}
	for n := int64(1); n <= writes; n += every {
		for _, half := range []bool{false, true} {
			t.Run(fmt.Sprint(n, half), func(t *testing.T) {
				t.Parallel()
				w := newFixture(t, play)
				w.tools, w.half = []tool.Tool{double}, half
				id := w.session("ann")
				w.failing.Store(n)
				c := crash(t, w, id, act)
				if c == nil {
					if n < writes-2 { // the last writes may come when no client waits for them
						t.Fatal("it did not crash")
					}
					return
				}
				w.failing.Store(0)
				p := w.start()
				looked := make(chan bool)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				go func() {
					looked <- c.look(ctx, t, p, id, func(u engi.PageUpdate) bool { return u.Action == "over" })
				}()
				if err := act(p, id); err != nil {
					t.Fatal(err)
				}
				html := p.rest(t, id).HTML
				if html != want {
					t.Errorf("the page is\n%s\nwant\n%s", html, want)
				}
				all, err := p.agents.List(t.Context(), "ann", 100)
				if err != nil || len(all) != runs {
					t.Errorf("%d runs, want %d (%v)", len(all), runs, err)
				}
				if err := p.Cancel(t.Context(), "ann", string(id)); err != nil {
					t.Error(err)
				}
				p.stop() // stops all processing of the following actions
				if _, err := p.Act(t.Context(), engi.PageAction{Viewer: "ann", Session: string(id), Action: "over"}); err != nil {
					t.Fatal(err)
				}
				if !<-looked || c.page.HTML() != want {
					t.Errorf("the client has\n%s", c.page.HTML())
				}
				if d := cmp.Diff(story, c.story()); d != "" {
					t.Errorf("what the client saw (-want +got):\n%s", d)
				}
			})
		}
	}
}

// crash runs a process until one of its writes fails, with a client that watches. It
// returns nil if no write failed.
func crash(t *testing.T, w *fixture, id engi.SessionID, act func(*process, engi.SessionID) error) *client {
	t.Helper()
	p := w.start()
	c := p.join(t, id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked, acted := make(chan bool), make(chan error)
	go func() { looked <- c.look(ctx, t, p, id, func(engi.PageUpdate) bool { return false }) }()
	go func() { acted <- act(p, id) }()
	err := <-acted
	p.stop()
	cancel()
	<-looked
	if err == nil {
		return nil
	}
	return c
}
