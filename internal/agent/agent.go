// Package agent runs agents: a run asks a model, makes the tool calls that it
// requests, shows it the results and asks again, until the model has finished
// or a limit is reached. Every answer and every result is stored before the
// next step, so that a run continues after a crash without repeating completed
// work. Its events are streamed as they happen.
//
// It does not talk to providers (package llm) and has no tools of its own
// (package tool).
package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A Record is a stored run.
type Record struct {
	engi.Run
	Spec        engi.RunSpec // without Messages, Images and Context, which are in the stored messages
	Fingerprint string       // fingerprint of the request, to tell a retry from a reused idempotency key
	Seq         int64        // Seq of the last event emitted before the record was stored

	Decided []engi.CallDecision // decisions on calls of the current step
}

// Requested implements [idempotency.Record].
func (r Record) Requested() (id, fingerprint string) { return "run " + string(r.ID), r.Fingerprint }

// A Store stores runs durably. It is safe for concurrent use.
type Store interface {
	// Put stores a new run with its first messages. It reports Conflict if the
	// owner has a run with the same idempotency key; see ByIdempotencyKey.
	Put(ctx context.Context, r Record, messages []engi.Message) error
	// ByIdempotencyKey returns the run with an idempotency key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// Update stores a run's state and replaces its messages from number n on.
	Update(ctx context.Context, r Record, n int, messages []engi.Message) error
	// Get returns a run, or NotFound.
	Get(ctx context.Context, viewer engi.Viewer, id engi.RunID) (Record, error)
	// List returns runs, newest first.
	List(ctx context.Context, viewer engi.Viewer, f Filter) ([]Record, error)
	// Messages returns the messages of a run.
	Messages(ctx context.Context, id engi.RunID) ([]engi.Message, error)
	// Delete deletes a run with its messages and results. It does nothing if
	// there is none.
	Delete(ctx context.Context, id engi.RunID) error
	// Forget deletes runs that ended before a time, with their messages and
	// results.
	Forget(ctx context.Context, before time.Time) error
}

// A Filter selects runs. Zero fields select all runs.
type Filter struct {
	Conversation engi.ConversationID
	Running      bool // select only runs that have not ended
	Limit        int  // maximum number of runs; 0 means all
}

// Results stores tool results that are too long for the model, for as long as
// their runs. It is safe for concurrent use.
type Results interface {
	PutResult(ctx context.Context, id engi.RunID, call string, data []byte) error
	// GetResult reports NotFound for a result that was not stored.
	GetResult(ctx context.Context, id engi.RunID, call string) ([]byte, error)
}

// Options configures a Runner.
type Options struct {
	Agents    []engi.AgentSpec // at least one; the first is the default
	Models    func(ref string) (llm.Model, error)
	Tools     []tool.Tool
	Sources   []tool.Source // sources of further tools; agents select them by name, or by *
	Store     Store
	Results   Results
	Dir       string        // directory for the event files of runs; absolute
	Log       *slog.Logger  // nil discards
	MaxRuns   int           // maximum number of runs at once; 0 means 64
	Timeout   time.Duration // maximum time of a run, since its start or the last restart; 0 means 1 h
	Retention time.Duration // time for which ended runs are kept; 0 means 30 days

	// CheckTarget reports NotFound for a sandbox, session or workspace that the owner does not
	// have; nil accepts all.
	CheckTarget func(ctx context.Context, e tool.Env) error
	// CheckBudget reports Exhausted for an owner whose budget is used up, which
	// may then start no runs. Models check their budget themselves during a run. nil
	// means no limit.
	CheckBudget func(ctx context.Context, owner engi.Owner) error
	// Deps returns the dependencies of a run's tools, see [tool.Env]: clients,
	// passwords and other values that the model must not see. It is called when the run
	// starts and when it is resumed; an error fails the run. nil means none.
	Deps func(ctx context.Context, r engi.Run) (any, error)
	// OnEnd, if not nil, is called with each run that has ended, before its
	// watchers see the end. It must return quickly.
	OnEnd func(ctx context.Context, r engi.Run)
}

// A Runner runs agents. It implements [engi.Agents] and is safe for
// concurrent use.
type Runner struct {
	opt     Options
	agents  map[string]engi.AgentSpec
	tools   map[string]tool.Tool
	schemas map[string]*llm.Schema // schemas of outputs by agent
	keys    *idempotency.Keys

	base context.Context // parent context of all runs; cancelled by Run
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // active runs

	mu            sync.Mutex
	slots         *engi.Shares // for active runs
	active        map[engi.RunID]*activeRun
	conversations map[engi.ConversationID]bool // conversations that have an active run
	closed        bool
}

var (
	_ engi.Agents     = (*Runner)(nil)
	_ engi.RunDeleter = (*Runner)(nil)
)

// New returns a Runner; call Run. It reports Invalid for an unusable
// agent.
func New(opt Options) (*Runner, error) {
	if !filepath.IsAbs(opt.Dir) {
		return nil, engi.Errorf(engi.Invalid, "the directory for runs of agents, %.80q, is not absolute", opt.Dir)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.MaxRuns == 0 {
		opt.MaxRuns = 64
	}
	if opt.Timeout == 0 {
		opt.Timeout = time.Hour
	}
	if opt.Retention == 0 {
		opt.Retention = 30 * 24 * time.Hour
	}
	r := &Runner{opt: opt, agents: map[string]engi.AgentSpec{}, tools: map[string]tool.Tool{}, schemas: map[string]*llm.Schema{},
		keys: idempotency.NewKeys(nil), slots: engi.NewShares(int64(opt.MaxRuns)), active: map[engi.RunID]*activeRun{}, conversations: map[engi.ConversationID]bool{}}
	r.base, r.stop = context.WithCancelCause(context.Background())
	for _, t := range opt.Tools {
		if _, ok := r.tools[t.Name]; ok {
			return nil, engi.Errorf(engi.Invalid, "there are two tools named %s", t.Name)
		}
		r.tools[t.Name] = t
	}
	for _, a := range opt.Agents {
		if err := r.addAgent(a); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Runner) addAgent(a engi.AgentSpec) (err error) {
	switch {
	case a.Name == "" || len(a.Name) > 64:
		return engi.Errorf(engi.Invalid, "%.80q is not a name for an agent", a.Name).WithRemedy("use 1 to 64 characters")
	case r.agents[a.Name].Name != "":
		return engi.Errorf(engi.Invalid, "there are two agents named %s", a.Name)
	case a.Steps < 0 || a.Steps > maxSteps:
		return engi.Errorf(engi.Invalid, "agent %s: %d steps are not between 1 and %d", a.Name, a.Steps, maxSteps)
	case a.Effort != "" && !slices.Contains(engi.Efforts(), a.Effort):
		return engi.Errorf(engi.Invalid, "agent %s: there is no effort %.40q", a.Name, a.Effort).WithRemedy("use none, low, medium or high")
	}
	for _, name := range a.Tools {
		if _, ok := r.tools[name]; !ok && name != "*" && !r.hasSource(name) {
			known := slices.Sorted(maps.Keys(r.tools))
			for _, s := range r.opt.Sources {
				known = append(known, s.Name())
			}
			return engi.Errorf(engi.Invalid, "agent %s: there is no tool %.80s", a.Name, name).WithRemedy("use some of %v, or *", known)
		}
	}
	if err := checkConfirm(a.Confirm); err != nil {
		return engi.Errorf(engi.Invalid, "agent %s: %w", a.Name, err)
	}
	if a.Output != nil {
		if r.schemas[a.Name], err = llm.ParseSchema(a.Output); err != nil {
			return engi.Errorf(engi.Invalid, "agent %s: %w", a.Name, err)
		}
	}
	if a.Steps == 0 {
		a.Steps = defaultSteps
	}
	r.agents[a.Name] = a
	return nil
}

func (r *Runner) hasSource(name string) bool {
	return slices.ContainsFunc(r.opt.Sources, func(s tool.Source) bool { return s.Name() == name })
}

const (
	defaultSteps = 10
	maxSteps     = 1000
)

// Agents implements [engi.Agents].
func (r *Runner) Agents() []engi.AgentSpec {
	all := make([]engi.AgentSpec, len(r.opt.Agents))
	for i, a := range r.opt.Agents {
		all[i] = r.agents[a.Name]
	}
	return all
}

// Run resumes the runs that were active when the last process ended, calls
// ready, and blocks until ctx ends. It then interrupts all runs, for the next
// process to resume, and waits for them.
func (r *Runner) Run(ctx context.Context, ready func()) error {
	interrupted, err := r.opt.Store.List(ctx, engi.Everyone, Filter{Running: true})
	if err != nil {
		return err
	}
	for _, rec := range interrupted {
		messages, err := r.opt.Store.Messages(ctx, rec.ID)
		if err != nil {
			return err
		}
		r.opt.Log.InfoContext(ctx, "resume a run", "run", rec.ID, "step", rec.Steps)
		if _, err := r.launch(rec, messages, true); err != nil {
			return err
		}
	}
	ready()
	for range clock.Every(ctx, time.Hour) {
		if err := r.opt.Store.Forget(ctx, time.Now().Add(-r.opt.Retention)); err != nil && ctx.Err() == nil {
			r.opt.Log.WarnContext(ctx, "delete old runs", "error", err)
		}
		if err := r.removeOldEvents(); err != nil {
			r.opt.Log.WarnContext(ctx, "delete old events of runs", "error", err)
		}
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop(errStopping)
	r.wg.Wait()
	return nil
}

// errStopping interrupts runs, which the next process resumes.
var errStopping = engi.Errorf(engi.Unavailable, "the node is stopping")

// errCancelled is the error of a run that the caller cancelled.
var errCancelled = engi.Errorf(engi.Expired, "the run was cancelled")

// Start implements [engi.Agents].
func (r *Runner) Start(ctx context.Context, spec engi.RunSpec) (engi.Run, error) {
	rec, messages, err := r.prepare(ctx, spec)
	if err != nil {
		return engi.Run{}, err
	}
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency, Fingerprint: rec.Fingerprint}
	rec, _, err = idempotency.Once(ctx, r.keys, request, r.opt.Store.ByIdempotencyKey, func() (Record, error) { return rec, r.start(ctx, rec, messages) })
	return rec.Run, err
}

// start records a run and starts it.
func (r *Runner) start(ctx context.Context, rec Record, messages []engi.Message) error {
	if r.opt.CheckBudget != nil {
		if err := r.opt.CheckBudget(ctx, rec.Owner); err != nil {
			return err
		}
	}
	a, err := r.launch(rec, messages, false)
	if err != nil {
		return err
	}
	if err := r.opt.Store.Put(ctx, rec, messages); err != nil {
		a.discard()
		return err
	}
	close(a.recorded)
	return nil
}

// prepare validates spec and returns the record and the messages of its run.
func (r *Runner) prepare(ctx context.Context, spec engi.RunSpec) (rec Record, messages []engi.Message, err error) {
	name := spec.Agent
	if name == "" && len(r.opt.Agents) > 0 {
		name = r.opt.Agents[0].Name
	}
	def, ok := r.agents[name]
	if !ok {
		return rec, nil, engi.Errorf(engi.NotFound, "there is no agent %.80q", name).WithRemedy("'engi agent list' shows the agents of this node")
	}
	if err := checkInput(spec); err != nil {
		return rec, nil, err
	}
	model := spec.Model
	if model == "" {
		model = def.Model
	}
	m, err := r.opt.Models(model)
	if err != nil {
		return rec, nil, err
	}
	if spec.Output != nil {
		if _, err := llm.ParseSchema(spec.Output); err != nil {
			return rec, nil, err
		}
	}
	if spec.Conversation != "" && (len(spec.Messages) > 0 || spec.After != "") {
		return rec, nil, engi.Errorf(engi.Invalid, "a run continues a conversation or has messages, not both")
	}
	if spec.Workspace != "" && (spec.Sandbox != "" || spec.Session != "") {
		return rec, nil, engi.Errorf(engi.Invalid, "tools work in a workspace, or in a sandbox or session").WithRemedy("name one of them")
	}
	if target := (tool.Env{Owner: spec.Owner, Sandbox: spec.Sandbox, Session: spec.Session, Workspace: spec.Workspace}); r.opt.CheckTarget != nil && target.Has(tool.NeedGuest) {
		if err := r.opt.CheckTarget(ctx, target); err != nil {
			return rec, nil, err
		}
	}
	if err := checkTools(spec); err != nil {
		return rec, nil, err
	}
	if err := checkConfirm(spec.Confirm); err != nil {
		return rec, nil, err
	}
	if err := checkMessages(spec.Messages); err != nil {
		return rec, nil, err
	}
	messages = slices.Clone(spec.Messages)
	conversation := spec.Conversation
	switch {
	case spec.After != "":
		if conversation, messages, err = r.after(ctx, spec); err != nil {
			return rec, nil, err
		}
	case conversation == "":
		conversation = engi.NewConversationID()
	default:
		if messages, err = r.history(ctx, spec.Owner, conversation); err != nil {
			return rec, nil, err
		}
	}
	if spec.Conversation == "" {
		if err := checkCalls(messages); err != nil {
			return rec, nil, err
		}
	}
	switch {
	case len(spec.Results) > 0:
		if messages, err = withResults(messages, spec.Results); err != nil {
			return rec, nil, err
		}
	case spec.Conversation != "":
		messages = withoutPendingCalls(messages)
	}
	if left := pendingCalls(messages); len(left) > 0 {
		return rec, nil, engi.Errorf(engi.Invalid, "call %.80q of %.80s has no result", left[0].ID, left[0].Name).WithRemedy("send the results of all calls, and an error for each failed call")
	}
	if spec.Input != "" || len(spec.Images) > 0 {
		messages = append(messages, engi.Message{Role: engi.RoleUser, Text: userText(spec.Context, spec.Input), Images: spec.Images})
	}

	rec = Record{Fingerprint: idempotency.Fingerprint(spec), Spec: spec, Run: engi.Run{
		ID: engi.NewRunID(), Owner: spec.Owner, Agent: name, Model: m.Name(), Conversation: conversation,
		Sandbox: spec.Sandbox, Session: spec.Session, Workspace: spec.Workspace, State: engi.RunRunning, Created: time.Now().UTC(), Note: spec.Note,
	}}
	rec.Spec.Messages, rec.Spec.Images, rec.Spec.Context, rec.Spec.Results, rec.Spec.Note = nil, nil, nil, nil, nil
	return rec, messages, nil
}

// Get implements [engi.Agents].
func (r *Runner) Get(ctx context.Context, viewer engi.Viewer, id engi.RunID) (engi.Run, error) {
	rec, err := r.opt.Store.Get(ctx, viewer, id)
	return rec.Run, err
}

// List implements [engi.Agents].
func (r *Runner) List(ctx context.Context, viewer engi.Viewer, limit int) ([]engi.Run, error) {
	if limit <= 0 {
		limit = 100
	}
	all, err := r.opt.Store.List(ctx, viewer, Filter{Limit: min(limit, 1000)})
	if err != nil {
		return nil, err
	}
	runs := make([]engi.Run, len(all))
	for i, rec := range all {
		runs[i] = rec.Run
	}
	return runs, nil
}

// Messages implements [engi.Agents].
func (r *Runner) Messages(ctx context.Context, viewer engi.Viewer, id engi.RunID) ([]engi.Message, error) {
	if _, err := r.opt.Store.Get(ctx, viewer, id); err != nil {
		return nil, err
	}
	return r.opt.Store.Messages(ctx, id)
}

// FullResult implements [engi.Agents].
func (r *Runner) FullResult(ctx context.Context, viewer engi.Viewer, id engi.RunID, call string) ([]byte, error) {
	if _, err := r.opt.Store.Get(ctx, viewer, id); err != nil {
		return nil, err
	}
	return r.opt.Results.GetResult(ctx, id, call)
}

// Cancel implements [engi.Agents].
func (r *Runner) Cancel(ctx context.Context, viewer engi.Viewer, id engi.RunID) error {
	if _, err := r.opt.Store.Get(ctx, viewer, id); err != nil {
		return err
	}
	r.mu.Lock()
	a := r.active[id]
	r.mu.Unlock()
	if a == nil {
		return nil
	}
	a.cancel(errCancelled)
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delete implements [engi.RunDeleter].
func (r *Runner) Delete(ctx context.Context, viewer engi.Viewer, id engi.RunID) error {
	if err := r.Cancel(ctx, viewer, id); err != nil {
		return err
	}
	if err := r.opt.Store.Delete(ctx, id); err != nil {
		return err
	}
	if err := os.Remove(r.eventFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return engi.Errorf(engi.Internal, "delete the events of run %s: %v", id, err) // removeOldEvents tries again
	}
	return nil
}
