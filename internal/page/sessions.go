package page

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/page/markup"
)

const (
	maxWaiting = 64        // maximum number of waiting actions of one page
	maxQueued  = 1 << 20   // maximum bytes of the data of all waiting actions
	maxBatch   = 512 << 10 // maximum bytes of the data of the actions of one run
	eventPage  = 1000      // number of events that are read at a time
	sessionEnd = engi.EventSessionTerminated
)

// pageEvents matches the types of events about pages.
const pageEvents = "page.*"

// An Embedder converts texts to vectors of length 1. The product of two vectors is the similarity of
// their texts. It is safe for concurrent use.
type Embedder interface {
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}

// Options configures a Service. Docs, Embedder and Log may be nil.
type Options struct {
	Agents   engi.Agents
	Sessions engi.Sessions
	Events   engi.EventLog
	Store    Store
	Docs     engi.Docs     // stores the modules that answers announce; nil ignores them
	Embedder Embedder      // finds past actions similar to the current ones; nil shows none
	Sandbox  bool          // runs use the session and its sandbox, if their agent has tools for it
	Backoff  time.Duration // pause before a failed save of modules is repeated; 0 means 1 s
	Log      *slog.Logger
}

// A Service starts runs of agents that answer the actions of users on the pages of sessions. It
// implements [engi.Pages] and is safe for concurrent use.
type Service struct {
	opt     Options
	vectors vectors
	live    live
	keys    *idempotency.Keys

	base context.Context // context of all processors; ends with Run
	stop context.CancelFunc
	wg   sync.WaitGroup // processors and savers

	mu         sync.Mutex
	serving    bool
	processors map[engi.SessionID]*processor // processors of pages with work to do
	savers     map[engi.SessionID]bool       // savers of pages with modules to save; true if the saver must check again
}

var _ engi.Pages = (*Service)(nil)

// New returns a service; it does no work before Run.
func New(opt Options) *Service {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Backoff = cmp.Or(opt.Backoff, time.Second)
	s := &Service{opt: opt, keys: idempotency.NewKeys(nil), processors: map[engi.SessionID]*processor{}, savers: map[engi.SessionID]bool{}}
	s.base, s.stop = context.WithCancel(context.Background())
	return s
}

// Run answers waiting actions, continues the answers that the last
// process has begun, calls ready, and blocks until ctx ends. Unfinished answers
// are left to the next process.
func (s *Service) Run(ctx context.Context, ready func()) error {
	defer func() {
		s.mu.Lock() // no new work starts
		s.serving = false
		s.mu.Unlock()
		s.stop()
		s.wg.Wait()
	}()
	busy, err := s.opt.Store.Busy(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.serving = true
	s.mu.Unlock()
	for _, id := range busy {
		s.wake(id)
		s.save(id)
	}
	last, err := s.opt.Events.Last(ctx)
	if err != nil {
		return err
	}
	ready()
	for ctx.Err() == nil {
		for e, err := range s.opt.Events.Follow(ctx, engi.Everyone, engi.EventFilter{Types: []string{sessionEnd}, After: last}) {
			if err != nil {
				break
			}
			last = e.Seq
			s.ended(engi.SessionID(e.Subject))
		}
		_ = clock.Sleep(ctx, time.Second)
	}
	return nil
}

// ended stops work for a session that has ended and whose record is gone.
func (s *Service) ended(id engi.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processors[id]; p != nil {
		p.leave()
	}
}

// session returns a session that has not ended.
func (s *Service) session(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	x, err := s.opt.Sessions.Get(ctx, viewer, idOrName)
	if err == nil && x.State == engi.SessionTerminated {
		err = engi.Errorf(engi.NotFound, "session %s has ended, and its page with it", x.ID).WithRemedy("create a new session")
	}
	return x, err
}

// Act implements [engi.Pages].
func (s *Service) Act(ctx context.Context, a engi.PageAction) (seq int64, err error) {
	defer engi.Annotate(&err, "act on the page of session %.140s", a.Session)
	if a, err = checkAction(a); err != nil {
		return 0, err
	}
	x, err := s.session(ctx, a.Viewer, a.Session)
	if err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(s.opt.Agents.Agents(), func(g engi.AgentSpec) bool { return g.Name == a.Agent }) {
		return 0, engi.Errorf(engi.NotFound, "there is no agent %.80q", a.Agent).WithRemedy("'engi agent list' shows the agents of this node")
	}
	data, err := eventData{Action: a.Action, Data: a.Data, Agent: a.Agent, Model: a.Model}.encode()
	if err != nil {
		return 0, err
	}
	request := idempotency.Request{Owner: x.Owner, Key: a.Idempotency}
	about := a
	about.Viewer, about.Session, about.Scopes, about.Idempotency = x.Owner.Viewer(), string(x.ID), nil, ""
	request.Fingerprint = idempotency.Fingerprint(about)
	find := func(ctx context.Context, owner engi.Owner, key string) (idempotency.Event, error) {
		return s.opt.Store.EventByIdempotencyKey(ctx, owner, x.ID, key)
	}
	e, repeated, err := idempotency.Once(ctx, s.keys, request, find, func() (e idempotency.Event, err error) {
		e.Seq, err = s.put(ctx, x.ID, a, data, request)
		return e, err
	})
	if err == nil && !repeated {
		s.wake(x.ID)
	}
	return e.Seq, err
}

// put records an action that waits for its answer.
func (s *Service) put(ctx context.Context, id engi.SessionID, a engi.PageAction, data json.RawMessage, q idempotency.Request) (seq int64, err error) {
	_, err = s.opt.Store.Change(ctx, id, func(r *Record, emit Emit) (err error) {
		size := len(a.Data)
		for _, w := range r.Waiting {
			size += len(w.Data)
		}
		if len(r.Waiting) >= maxWaiting || size > maxQueued {
			return engi.Errorf(engi.Exhausted, "%d actions wait to be answered", len(r.Waiting)).
				WithRemedy("wait until they are, or cancel them").WithRetry(engi.Retry{AfterMillis: 1000})
		}
		if seq, err = emit(engi.EventPageActed, data, q); err != nil {
			return err
		}
		if r.First == 0 {
			r.First = seq
		}
		r.Waiting = append(r.Waiting, Action{Seq: seq, Name: a.Action, Data: a.Data, Agent: a.Agent, Model: a.Model, Scopes: a.Scopes})
		return nil
	})
	return seq, err
}

// checkAction validates an action and returns it with defaults set.
func checkAction(a engi.PageAction) (engi.PageAction, error) {
	if err := a.Faults().Err(); err != nil {
		return a, err
	}
	if len(a.Data) == 0 {
		a.Data = json.RawMessage("{}")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, a.Data); err != nil {
		return a, engi.Errorf(engi.Internal, "compact the data of an action: %v", err) // unreachable: it was checked
	}
	a.Data = b.Bytes()
	a.Agent = cmp.Or(a.Agent, Agent)
	return a, nil
}

// record returns the record of a session's page; an empty record if there is none yet.
func (s *Service) record(ctx context.Context, x engi.Session) (Record, error) {
	r, err := s.opt.Store.Get(ctx, x.ID)
	if engi.Is(err, engi.NotFound) {
		return Record{Session: x.ID, Owner: x.Owner, Updated: x.Created}, nil
	}
	return r, err
}

// Get implements [engi.Pages].
func (s *Service) Get(ctx context.Context, viewer engi.Viewer, session string, at int64) (ui engi.Page, err error) {
	defer engi.Annotate(&err, "page of session %.140s", session)
	x, err := s.session(ctx, viewer, session)
	if err != nil {
		return ui, err
	}
	return s.get(ctx, x, at)
}

func (s *Service) get(ctx context.Context, x engi.Session, at int64) (ui engi.Page, err error) {
	r, err := s.record(ctx, x)
	if err != nil {
		return ui, err
	}
	p, err := s.pageAt(ctx, r, at)
	if err != nil {
		return ui, err
	}
	ui = engi.Page{Session: x.ID, Owner: x.Owner, HTML: p.HTML(), Seq: p.seq, Waiting: len(r.Waiting), Updated: r.Updated, Answered: max(r.First-1, 0)}
	f := engi.EventFilter{Subject: string(x.ID), Types: []string{engi.EventPageDone}, Limit: 1}
	if at != 0 {
		f.Before = at + 1
	}
	done, err := s.opt.Events.List(ctx, engi.Everyone, f)
	if err != nil {
		return ui, err
	}
	if len(done) > 0 {
		ui.Answered = done[0].Seq
	}
	if p.time.After(ui.Updated) || at != 0 && !p.time.IsZero() {
		ui.Updated = p.time
	}
	if b := r.Batch; b != nil {
		if ui.Working = b.Run; b.Run == "" {
			ui.Waiting += len(b.Actions)
		}
	}
	return ui, nil
}

// A pageAt is the state of a page at a point of the log.
type pageAt struct {
	*markup.Page
	seq  int64 // sequence number of the last event about the page so far
	time time.Time
}

// pageAt returns the page of a record after the event `at`, or its current
// state if at is 0.
func (s *Service) pageAt(ctx context.Context, r Record, at int64) (p pageAt, err error) {
	exact := at != 0
	if exact {
		last, err := s.opt.Events.Last(ctx)
		if err != nil {
			return p, err
		}
		if at > last {
			return p, engi.Errorf(engi.Invalid, "event %d has not happened yet", at).WithRemedy("use a Seq of this page, from its stream or its events")
		}
	}
	switch {
	case at < 0:
		return p, engi.Errorf(engi.Invalid, "%d is not the number of an event", at)
	case at == 0 || at >= r.Seq && r.Seq > 0:
		p.Page, p.seq = markup.NewPage(r.HTML), r.Seq
	default:
		if p, err = s.pageBefore(ctx, r, at); err != nil {
			return p, err
		}
	}
	for after := p.seq; ; {
		events, err := s.opt.Events.List(ctx, engi.Everyone, engi.EventFilter{Subject: string(r.Session), After: after, Oldest: true, Limit: eventPage})
		if err != nil || len(events) == 0 {
			return p, err
		}
		for _, e := range events {
			if exact && e.Seq > at {
				return p, nil
			}
			if exact && after > 0 && e.Prev > after {
				return p, errTooOld
			}
			after = e.Seq
			if !strings.HasPrefix(e.Type, "page.") {
				continue
			}
			if err := applyEvent(p.Page, e); err != nil {
				return p, err
			}
			p.seq, p.time = e.Seq, e.Time
		}
	}
}

var errTooOld = engi.Errorf(engi.Expired, "the log of events does not reach back so far").WithRemedy("ask for a later state; the operator says with events.log_keep how long events are kept")

// pageBefore returns the page after its last replacement up to the event `at`,
// or an empty page if there was none.
func (s *Service) pageBefore(ctx context.Context, r Record, at int64) (p pageAt, err error) {
	f := engi.EventFilter{Subject: string(r.Session), Types: []string{engi.EventPageReplaced, engi.EventPageRestored}, Before: at + 1, Limit: 1}
	events, err := s.opt.Events.List(ctx, engi.Everyone, f)
	if err != nil {
		return p, err
	}
	if len(events) > 0 {
		p = pageAt{markup.NewPage(""), events[0].Seq, events[0].Time}
		return p, applyEvent(p.Page, events[0])
	}
	if r.First > 0 {
		f = engi.EventFilter{Subject: string(r.Session), After: r.First - 1, Before: r.First + 1, Limit: 1}
		if events, err = s.opt.Events.List(ctx, engi.Everyone, f); err != nil {
			return p, err
		}
		if len(events) == 0 {
			return p, errTooOld
		}
	}
	return pageAt{Page: markup.NewPage(""), seq: max(r.First-1, 0)}, nil
}

// applyEvent applies the change in an event to a page.
func applyEvent(p *markup.Page, e engi.Event) error {
	switch e.Type {
	case engi.EventPagePatched, engi.EventPageReplaced, engi.EventPageRestored:
	default:
		return nil
	}
	d, err := decodeEvent(e)
	if err != nil {
		return err
	}
	if d.HTML != nil {
		return p.Set(*d.HTML)
	}
	p.Apply(d.Patches) // errors were reported when the patches were first applied
	return nil
}

// Cancel implements [engi.Pages].
func (s *Service) Cancel(ctx context.Context, viewer engi.Viewer, session string) (err error) {
	defer engi.Annotate(&err, "cancel answers on the page of session %.140s", session)
	x, err := s.session(ctx, viewer, session)
	if err != nil {
		return err
	}
	if r, err := s.record(ctx, x); err != nil || len(r.Waiting) == 0 && r.Batch == nil {
		return err
	}
	r, err := s.opt.Store.Change(ctx, x.ID, func(r *Record, emit Emit) error {
		if r.Batch != nil {
			b := *r.Batch
			b.Cancelled = true
			r.Batch = &b
		} else if len(r.Waiting) > 0 {
			data, err := eventData{State: engi.RunCancelled}.encode()
			if err != nil {
				return err
			}
			if _, err := emit(engi.EventPageDone, data, idempotency.Request{}); err != nil {
				return err
			}
		}
		r.Waiting = nil
		return nil
	})
	if err != nil {
		return err
	}
	s.wake(x.ID)
	if r.Batch == nil || r.Batch.Run == "" {
		return nil
	}
	err = s.opt.Agents.Cancel(ctx, x.Owner.Viewer(), r.Batch.Run)
	if engi.Is(err, engi.NotFound) {
		return nil // the run was deleted in the meantime
	}
	return err
}

// Restore implements [engi.Pages].
func (s *Service) Restore(ctx context.Context, viewer engi.Viewer, session string, at int64) (ui engi.Page, err error) {
	defer engi.Annotate(&err, "restore the page of session %.140s", session)
	x, err := s.session(ctx, viewer, session)
	if err != nil {
		return ui, err
	}
	if at <= 0 {
		return ui, engi.Errorf(engi.Invalid, "%d is not the number of an event", at).WithRemedy("send the seq of an event about the page")
	}
	r, err := s.record(ctx, x)
	if err != nil {
		return ui, err
	}
	p, err := s.pageAt(ctx, r, at)
	if err != nil {
		return ui, err
	}
	html := p.HTML()
	data, err := eventData{HTML: &html, At: at}.encode()
	if err != nil {
		return ui, err
	}
	if _, err := s.opt.Store.Change(ctx, x.ID, func(r *Record, emit Emit) (err error) {
		if r.Batch != nil || len(r.Waiting) > 0 {
			return engi.Errorf(engi.Conflict, "actions are being answered").WithRemedy("wait for the answer, or cancel it")
		}
		r.HTML = html
		if r.Seq, err = emit(engi.EventPageRestored, data, idempotency.Request{}); r.First == 0 {
			r.First = r.Seq
		}
		return err
	}); err != nil {
		return ui, err
	}
	return s.get(ctx, x, 0)
}

// Watch implements [engi.Pages].
func (s *Service) Watch(ctx context.Context, viewer engi.Viewer, session string, seq int64) iter.Seq2[engi.PageUpdate, error] {
	return func(yield func(engi.PageUpdate, error) bool) {
		x, err := s.session(ctx, viewer, session)
		if err != nil {
			yield(engi.PageUpdate{}, err)
			return
		}
		w := s.live.join(x.ID)
		defer s.live.leave(x.ID, w)
		// whole yields the current page.
		whole := func() bool {
			// Events of other pages may be newer than the last event of this page, and are older than the state read below.
			last, err := s.opt.Events.Last(ctx)
			var ui engi.Page
			if err == nil {
				ui, err = s.get(ctx, x, 0)
			}
			if err != nil {
				yield(engi.PageUpdate{}, err)
				return false
			}
			seq = max(last, ui.Seq)
			return yield(engi.PageUpdate{Seq: seq, Time: ui.Updated, Kind: engi.PageReplaced, HTML: ui.HTML}, nil)
		}
		// A sequence number from the future comes from the log of another node, or from a lost log.
		last, err := s.opt.Events.Last(ctx)
		if err != nil {
			yield(engi.PageUpdate{}, err)
			return
		}
		if (seq <= 0 || seq > last) && !whole() {
			return
		}
		following, cancel := context.WithCancel(ctx)
		events := make(chan event)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { s.follow(following, x, seq, events) })

		var held []liveUpdate // updates that wait until the events before them have been yielded
		changed := seq        // Seq of the last yielded event that changed the page
		for {
			for len(held) > 0 && held[0].after <= seq {
				u := held[0]
				held = held[1:]
				if u.Partial && u.after < changed {
					continue // the complete page was already yielded
				}
				if !yield(u.PageUpdate, nil) {
					return
				}
			}
			select {
			case e, more := <-events:
				switch {
				case !more:
					yield(engi.PageUpdate{}, engi.Errorf(engi.Expired, "watch a page: %v", context.Cause(ctx)))
					return
				case e.err != nil:
					yield(engi.PageUpdate{}, e.err)
					return
				case e.Type == sessionEnd:
					return
				case e.Type == engi.EventsDropped:
					if !whole() {
						return
					}
					changed = seq
					continue
				case e.Seq <= seq:
					continue
				}
				u, ok, err := updateOf(e.Event)
				if err != nil || ok && !yield(u, nil) {
					if err != nil {
						yield(engi.PageUpdate{}, err)
					}
					return
				}
				if seq = e.Seq; u.Kind == engi.PageReplaced || u.Kind == engi.PagePatched || u.Kind == engi.PageDone {
					changed = seq
				}
			case u := <-w:
				if len(held) < liveBuffer {
					held = append(held, u)
				}
			}
		}
	}
}

// An event is an event of the log, or the error that ended it.
type event struct {
	engi.Event
	err error
}

// follow sends the events about a session's page after seq to events until ctx
// ends, and then closes events.
func (s *Service) follow(ctx context.Context, x engi.Session, seq int64, events chan<- event) {
	defer close(events)
	for e, err := range s.opt.Events.Follow(ctx, x.Owner.Viewer(), engi.EventFilter{Subject: string(x.ID), Types: []string{pageEvents, sessionEnd}, After: seq}) {
		select {
		case events <- event{e, err}:
		case <-ctx.Done():
			return
		}
	}
}

// updateOf converts an event to an update for watchers; ok is false if watchers do not see the event.
func updateOf(e engi.Event) (u engi.PageUpdate, ok bool, err error) {
	d, err := decodeEvent(e)
	if err != nil {
		return u, false, err
	}
	u = engi.PageUpdate{Seq: e.Seq, Time: e.Time, Run: d.Run}
	switch e.Type {
	case engi.EventPageActed:
		u.Kind, u.Action, u.Data = engi.PageActed, d.Action, d.Data
	case engi.EventPagePatched:
		u.Kind, u.Patches = engi.PagePatched, d.Patches
	case engi.EventPageReplaced, engi.EventPageRestored:
		if u.Kind = engi.PageReplaced; d.HTML != nil {
			u.HTML = *d.HTML
		}
	case engi.EventPageStats:
		u.Kind, u.Data = engi.PageStats, d.Stats
	case engi.EventPageTool:
		if u.Kind = engi.PageTool; d.Call != nil {
			u.Call = &engi.ToolCall{ID: d.Call.ID, Name: d.Call.Name, Arguments: d.Call.Arguments}
		}
		if d.Call != nil && d.Result != nil {
			u.Result = &engi.ToolResult{Call: d.Call.ID, Name: d.Call.Name, Text: d.Result.Text, Failed: d.Result.Failed}
		}
	case engi.EventPageFailed:
		if u.Kind, u.Text = engi.PageBad, d.Text; d.Remedy != "" {
			u.Text += " (" + d.Remedy + ")"
		}
	case engi.EventPageDone:
		u.Kind, u.Ended = engi.PageDone, d.State
	default:
		return u, false, nil
	}
	return u, true, nil
}
