package app

import (
	"context"
	"encoding/json"
	"iter"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// eventData is the data of events about apps. The type determines which fields are set;
// see docs/events.md.
type eventData struct {
	Kind     engi.AppUpdateKind `json:"kind,omitempty"` // set in app.progress
	Apply    int64              `json:"apply,omitempty"`
	Edit     int64              `json:"edit,omitempty"`
	From     engi.AppState      `json:"from,omitempty"`
	State    engi.AppState      `json:"state,omitempty"`
	Sandbox  engi.SandboxID     `json:"sandbox_id,omitempty"`
	Step     string             `json:"step,omitempty"`
	Text     string             `json:"text,omitempty"`
	Path     string             `json:"path,omitempty"`
	Op       engi.FileOp        `json:"op,omitempty"`
	Line     int                `json:"line,omitempty"`
	Name     string             `json:"name,omitempty"`
	Code     int                `json:"code,omitempty"`
	Revision int64              `json:"revision,omitempty"`
	Of       int64              `json:"of,omitempty"`
	Commit   string             `json:"commit,omitempty"`
	Snapshot engi.SnapshotID    `json:"snapshot_id,omitempty"`
	Actor    string             `json:"actor,omitempty"`
	Round    int                `json:"round,omitempty"`
	Source   string             `json:"source,omitempty"`
	Model    string             `json:"model,omitempty"`
	Attempt  int                `json:"attempt,omitempty"`
	Branch   engi.AppID         `json:"branch,omitempty"`
	Port     int                `json:"port,omitempty"`
	Cost     int64              `json:"cost,omitempty"` // in millionths
	Files    int                `json:"files,omitempty"`
	Bytes    int64              `json:"bytes,omitempty"`
	Error    *errorData         `json:"error,omitempty"`
	Metric   string             `json:"metric,omitempty"`
	Value    float64            `json:"value,omitempty"`
	Limit    float64            `json:"limit,omitempty"`
	Action   engi.AppAction     `json:"action,omitempty"`
	Alert    int64              `json:"alert,omitempty"` // sequence number of the alert that has ended
}

type errorData struct {
	Kind   string `json:"kind"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

func errorOf(e *engi.Error) *errorData {
	if e == nil {
		return nil
	}
	return &errorData{e.Kind.String(), e.Text, e.Remedy}
}

func (e *errorData) error() *engi.Error {
	if e == nil {
		return nil
	}
	return &engi.Error{Kind: engi.ParseKind(e.Kind), Text: e.Text, Remedy: e.Remedy}
}

// updateKinds maps types of events to kinds of updates.
var updateKinds = map[string]engi.AppUpdateKind{
	engi.EventAppCreated:     engi.AppStateChanged,
	engi.EventAppState:       engi.AppStateChanged,
	engi.EventAppApplying:    engi.AppApplyBegun,
	engi.EventAppApplied:     engi.AppApplied,
	engi.EventAppApplyFailed: engi.AppApplyFailed,
	engi.EventAppRolledBack:  engi.AppRolledBack,
	engi.EventAppEditing:     engi.AppEditBegun,
	engi.EventAppEdited:      engi.AppEdited,
	engi.EventAppPublished:   engi.AppPublished,
	engi.EventAppUnpublished: engi.AppUnpublished,
	engi.EventAppSnapshotted: engi.AppSnapshotted,
	engi.EventAppRemoved:     engi.AppStateChanged,

	engi.EventAppAlert:         engi.AppAlerted,
	engi.EventAppAlertResolved: engi.AppCalmed,
}

// updateOf converts an event to an update; ok is false if the event is not an update.
func updateOf(e engi.Event) (u engi.AppUpdate, ok bool, err error) {
	var d eventData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return u, false, engi.Errorf(engi.Internal, "event %s is damaged: %v", e.ID, err)
	}
	kind, ok := updateKinds[e.Type]
	if e.Type == engi.EventAppProgress {
		kind, ok = d.Kind, true
	}
	u = engi.AppUpdate{
		Seq: e.Seq, Time: e.Time, Kind: kind, Apply: d.Apply, Edit: d.Edit, Step: d.Step, Text: d.Text, Path: d.Path, Op: d.Op, Name: d.Name, Code: d.Code, Line: d.Line,
		State: d.State, Revision: d.Revision, Round: d.Round, Source: d.Source, Cost: d.Cost, Error: d.Error.error(),
		Attempt: d.Attempt, Branch: d.Branch, Port: d.Port,
	}
	switch e.Type {
	case engi.EventAppCreated:
		u.State, u.Name = engi.AppStarting, d.Name
	case engi.EventAppApplying:
		u.Apply = e.Seq
	case engi.EventAppAlert, engi.EventAppAlertResolved:
		u.Name = d.Metric
	case engi.EventAppEditing:
		u.Edit = e.Seq
	case engi.EventAppProgress:
		u.Model = d.Model
	case engi.EventAppRemoved:
		u.State = engi.AppRemoved
	}
	return u, ok, nil
}

// Watch implements [engi.Apps].
func (s *Service) Watch(ctx context.Context, viewer engi.Viewer, idOrName string, seq int64) iter.Seq2[engi.AppUpdate, error] {
	return func(yield func(engi.AppUpdate, error) bool) {
		r, err := s.opt.Store.Find(ctx, viewer, idOrName)
		if err != nil {
			yield(engi.AppUpdate{}, err)
			return
		}
		lines, stop := s.live(r.ID).live.listen()
		defer stop()
		ctx, cancel := context.WithCancel(ctx)
		type item struct {
			e   engi.Event
			err error
		}
		events, done := make(chan item), make(chan struct{})
		go func() {
			defer close(done)
			defer close(events)
			for e, err := range s.opt.Events.Follow(ctx, engi.Everyone, engi.EventFilter{Subject: string(r.ID), After: seq}) {
				select {
				case events <- item{e, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		}()
		defer func() {
			cancel()
			<-done
		}()
		for {
			select {
			case line := <-lines:
				if !yield(line, nil) {
					return
				}
			case x, ok := <-events:
				if !ok {
					return
				}
				if x.err != nil {
					yield(engi.AppUpdate{}, x.err)
					return
				}
				u, ok, err := updateOf(x.e)
				if err != nil || ok {
					if !yield(u, err) || err != nil || x.e.Type == engi.EventAppRemoved {
						return
					}
				}
			}
		}
	}
}

// A hub passes lines of output to the current watchers. A slow watcher misses lines. The
// zero hub is ready to use; it is safe for concurrent use.
type hub struct {
	mu   sync.Mutex
	subs map[chan engi.AppUpdate]bool // guarded by mu
}

func (h *hub) listen() (<-chan engi.AppUpdate, func()) {
	c := make(chan engi.AppUpdate, 256)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[chan engi.AppUpdate]bool{}
	}
	h.subs[c] = true
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs, c)
	}
}

func (h *hub) send(u engi.AppUpdate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.subs {
		select {
		case c <- u:
		default:
		}
	}
}

// A reporter reports the progress of an apply. It is used by one goroutine, except for
// line.
type reporter struct {
	s    *Service
	ctx  context.Context
	u    *use
	seq  int64 // sequence number of the event that started the apply; 0 for none
	edit int64 // sequence number of the event that started the edit; 0 for none
	err  error // first error of appending events
	now  string
	told []eventData // warnings reported so far
}

func (s *Service) reporter(ctx context.Context, u *use, seq int64) *reporter {
	return &reporter{s: s, ctx: ctx, u: u, seq: seq}
}

// tell appends events of progress.
func (t *reporter) tell(all ...eventData) error {
	if len(all) == 0 || t.err != nil {
		return t.err
	}
	specs := make([]engi.EventSpec, len(all))
	for i, d := range all {
		d.Apply, d.Edit = t.seq, t.edit
		if d.Kind == engi.AppWarning {
			t.told = append(t.told, d)
		}
		raw, err := json.Marshal(d)
		if err != nil {
			return engi.Errorf(engi.Internal, "encode event: %v", err)
		}
		specs[i] = engi.EventSpec{Owner: t.u.rec.Owner, Subject: string(t.u.rec.ID), Type: engi.EventAppProgress, Data: raw}
	}
	_, t.err = t.s.opt.Events.Append(t.ctx, specs...)
	return t.err
}

// step reports the beginning of a step.
func (t *reporter) step(name, text string) error {
	t.now = name
	return t.tell(eventData{Kind: engi.AppProgress, Step: name, Text: firstLine(text)})
}

// warn reports a part of the apply without effect. The next step returns an error of the event log.
func (t *reporter) warn(path string, line int, text string) {
	_ = t.tell(eventData{Kind: engi.AppWarning, Step: t.now, Path: clip.Bytes(path, maxPath), Line: line, Text: clip.Bytes(text, maxLine)})
}

// fault reports a fault of the app.
func (t *reporter) fault(f fault) {
	_ = t.tell(eventData{Kind: engi.AppWarning, Step: t.now, Path: clip.Bytes(f.path, maxPath), Line: f.line, Text: clip.Bytes(f.text, maxLine)})
}

// line passes a line of output to the watchers.
func (t *reporter) line(text string) {
	t.u.app.live.send(engi.AppUpdate{Time: time.Now().UTC(), Kind: engi.AppLog, Apply: t.seq, Edit: t.edit, Text: clip.Bytes(text, maxLine)})
}

func (t *reporter) packages(names []string) error {
	var all []eventData
	for _, name := range names {
		all = append(all, eventData{Kind: engi.AppPackage, Step: t.now, Name: name})
	}
	return t.tell(all...)
}

func (t *reporter) files(p plan, before map[string]known) error {
	var all []eventData
	for _, c := range p.put {
		op := engi.FileCreated
		if _, ok := before[c.path]; ok {
			op = engi.FileWritten
		}
		all = append(all, eventData{Kind: engi.AppFileWritten, Step: t.now, Path: c.path, Op: op})
	}
	for _, path := range p.removed {
		all = append(all, eventData{Kind: engi.AppFileWritten, Step: t.now, Path: path, Op: engi.FileRemoved})
	}
	return t.tell(all...)
}

func (t *reporter) command(name string, code int) error {
	return t.tell(eventData{Kind: engi.AppCommand, Step: t.now, Name: firstLine(name), Code: code})
}
