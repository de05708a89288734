// Package agent puts language models to work: a run asks a model, makes the
// calls of tools that it wishes, shows it what came of them and asks again,
// until the model has said all or a limit is reached. Every answer and every
// result is recorded before the next step, so that a run goes on after a crash
// without doing again what it has done. What happens is told while it happens.
//
// It is not for talking to providers (package llm) nor for what tools do
// (package tool).
package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/agent/tool"
)

// A Record is a run as it is kept.
type Record struct {
	engi.Run
	Spec        engi.RunSpec // without Messages and Images, which are kept as messages
	Fingerprint string       // of the request, to tell a repetition from a mistake
	Seq         int64        // of the last event that was told when it was kept
}

// A Store keeps runs. It is safe for concurrent use; what it has said is kept
// survives a crash.
type Store interface {
	// Put keeps a new run with its first messages. It reports Conflict if the
	// owner has a run of the same idempotency key; see Repeated.
	Put(ctx context.Context, r Record, messages []engi.Message) error
	// Repeated returns the run of an idempotency key, or NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// Update keeps a run's state, and messages from number n on, instead of
	// those that were there from n on.
	Update(ctx context.Context, r Record, n int, messages []engi.Message) error
	// Get returns a run, or NotFound.
	Get(ctx context.Context, owner engi.Owner, id engi.RunID) (Record, error)
	// List returns runs, the newest first.
	List(ctx context.Context, owner engi.Owner, f Filter) ([]Record, error)
	// Messages returns what was said in a run.
	Messages(ctx context.Context, id engi.RunID) ([]engi.Message, error)
	// Forget removes runs that ended before a time, with all that is theirs.
	Forget(ctx context.Context, before time.Time) error
}

// A Filter selects runs. Zero fields select all.
type Filter struct {
	Conversation engi.ConversationID
	Running      bool // only those that have not ended
	Limit        int  // 0 means all
}

// Results keeps results of tools that are too long for the model, as long as
// their runs. It is safe for concurrent use.
type Results interface {
	PutResult(ctx context.Context, id engi.RunID, call string, data []byte) error
	// Kept reports NotFound for what was not kept.
	GetResult(ctx context.Context, id engi.RunID, call string) ([]byte, error)
}

// Options configure a Runner.
type Options struct {
	Agents    []engi.AgentSpec // at least one; the first is the default
	Models    func(ref string) (llm.Model, error)
	Tools     []tool.Tool
	Sources   []tool.Source // of more tools; agents choose them by name, or by *
	Store     Store
	Results   Results
	Dir       string        // absolute, of what is told of runs
	Log       *slog.Logger  // nil discards
	MaxRuns   int           // at once; 0 means 64
	Timeout   time.Duration // of a run, from start or restart; 0 means 1 h
	Retention time.Duration // ended runs are kept; 0 means 30 days

	// Check reports NotFound for a sandbox or a session that owner has not;
	// nil means everything is there.
	CheckTarget func(ctx context.Context, owner engi.Owner, sandbox engi.SandboxID, session string) error
	// Afford reports Exhausted for an owner that has spent what it may; runs
	// are then not begun. Models refuse by themselves. nil means all may go on.
	CheckBudget func(ctx context.Context, owner engi.Owner) error
	// Inject returns what the tools of a run find in their Deps: clients,
	// passwords, whatever a model must not see. It is asked when the run
	// begins and when it goes on after a restart; what it reports fails the
	// run. nil means there is nothing.
	Deps func(ctx context.Context, r engi.Run) (any, error)
	// Ended is told of a run that has ended, before its followers are; nil if
	// nobody wants to know. It must be quick, and cannot fail the run.
	OnEnd func(ctx context.Context, r engi.Run)
}

// A Runner runs agents. It implements [engi.Agents] and is safe for
// concurrent use.
type Runner struct {
	opt     Options
	agents  map[string]engi.AgentSpec
	tools   map[string]tool.Tool
	schemas map[string]*llm.Schema // of agents' outputs

	base context.Context // of all runs; ended by Run
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu            sync.Mutex
	active        map[engi.RunID]*activeRun
	closed        bool
	conversations map[engi.ConversationID]bool
}

var _ engi.Agents = (*Runner)(nil)

// New returns a Runner. Nothing runs before Run. It reports Invalid for
// agents that cannot work.
func New(opt Options) (*Runner, error) {
	if !filepath.IsAbs(opt.Dir) {
		return nil, engi.Errorf(engi.Invalid, "agents need an absolute directory, not %.80q", opt.Dir)
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
		active: map[engi.RunID]*activeRun{}, conversations: map[engi.ConversationID]bool{}}
	r.base, r.stop = context.WithCancelCause(context.Background())
	for _, t := range opt.Tools {
		if _, ok := r.tools[t.Name]; ok {
			return nil, engi.Errorf(engi.Invalid, "there are two tools called %s", t.Name)
		}
		r.tools[t.Name] = t
	}
	for _, a := range opt.Agents {
		switch {
		case a.Name == "" || len(a.Name) > 64:
			return nil, engi.Errorf(engi.Invalid, "%.80q is no name for an agent", a.Name)
		case r.agents[a.Name].Name != "":
			return nil, engi.Errorf(engi.Invalid, "there are two agents called %s", a.Name)
		case a.Steps < 0 || a.Steps > maxSteps:
			return nil, engi.Errorf(engi.Invalid, "agent %s: %d steps are not between 1 and %d", a.Name, a.Steps, maxSteps)
		}
		for _, name := range a.Tools {
			if _, ok := r.tools[name]; !ok && name != "*" && !r.hasSource(name) {
				known := slices.Sorted(maps.Keys(r.tools))
				for _, s := range opt.Sources {
					known = append(known, s.Name())
				}
				return nil, engi.Errorf(engi.Invalid, "agent %s: there is no tool %.80s here", a.Name, name).WithRemedy("use some of %v, or *", known)
			}
		}
		if a.Output != nil {
			s, err := llm.ParseSchema(a.Output)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "agent %s: %w", a.Name, err)
			}
			r.schemas[a.Name] = s
		}
		if a.Steps == 0 {
			a.Steps = defaultSteps
		}
		r.agents[a.Name] = a
	}
	return r, nil
}

func (r *Runner) hasSource(name string) bool {
	return slices.ContainsFunc(r.opt.Sources, func(s tool.Source) bool { return s.Name() == name })
}

const (
	defaultSteps = 10
	maxSteps     = 1000

	maxInput    = 1 << 20 // bytes of what a user says, context and instructions included
	maxParts    = 32      // of context
	maxImages   = 16
	maxImage    = 8 << 20
	maxHistory  = 4 << 20 // bytes of earlier messages
	maxMessages = 1000
)

// Agents returns what is configured, the default first.
func (r *Runner) Agents() []engi.AgentSpec {
	all := make([]engi.AgentSpec, len(r.opt.Agents))
	for i, a := range r.opt.Agents {
		all[i] = r.agents[a.Name]
	}
	return all
}

// Run goes on with the runs that a crash or a stop has left, calls ready, and
// blocks until ctx ends; then it lets go of what runs, to be gone on with
// later, and waits.
func (r *Runner) Run(ctx context.Context, ready func()) error {
	left, err := r.opt.Store.List(ctx, "", Filter{Running: true})
	if err != nil {
		return err
	}
	for _, rec := range left {
		messages, err := r.opt.Store.Messages(ctx, rec.ID)
		if err != nil {
			return err
		}
		r.opt.Log.InfoContext(ctx, "go on with a run", "run", rec.ID, "step", rec.Steps)
		if _, err := r.launch(rec, messages, true); err != nil {
			return err
		}
	}
	ready()
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		if err := r.opt.Store.Forget(ctx, time.Now().Add(-r.opt.Retention)); err != nil && ctx.Err() == nil {
			r.opt.Log.WarnContext(ctx, "forget runs", "error", err)
		}
		if err := r.removeOldEvents(); err != nil {
			r.opt.Log.WarnContext(ctx, "forget what was told of runs", "error", err)
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop(errStopping)
	r.wg.Wait()
	return nil
}

// errStopping ends runs without ending them for good.
var errStopping = engi.Errorf(engi.Unavailable, "the node stops")

// errCancelled ends a run on request.
var errCancelled = engi.Errorf(engi.Expired, "the run was cancelled")

// Start begins a run.
func (r *Runner) Start(ctx context.Context, spec engi.RunSpec) (engi.Run, error) {
	rec, messages, err := r.prepare(ctx, spec)
	if err != nil {
		return engi.Run{}, err
	}
	if spec.Idempotency != "" {
		switch old, err := r.opt.Store.ByIdempotencyKey(ctx, spec.Owner, spec.Idempotency); {
		case err == nil && old.Fingerprint == rec.Fingerprint:
			return old.Run, nil
		case err == nil:
			return engi.Run{}, engi.Errorf(engi.Conflict, "the idempotency key was used for another run, %s", old.ID).WithRemedy("use a fresh key for each run")
		case engi.KindOf(err) != engi.NotFound:
			return engi.Run{}, err
		}
	}
	if r.opt.CheckBudget != nil {
		if err := r.opt.CheckBudget(ctx, spec.Owner); err != nil {
			return engi.Run{}, err
		}
	}
	a, err := r.launch(rec, messages, false)
	if err != nil {
		return engi.Run{}, err
	}
	if err := r.opt.Store.Put(ctx, rec, messages); err != nil {
		a.discard()
		// Somebody else may have come with the same key meanwhile.
		if old, again := r.opt.Store.ByIdempotencyKey(ctx, spec.Owner, spec.Idempotency); engi.KindOf(err) == engi.Conflict && again == nil && old.Fingerprint == rec.Fingerprint {
			return old.Run, nil
		}
		return engi.Run{}, err
	}
	close(a.recorded)
	return rec.Run, nil
}

// admit checks spec and returns the record and the messages of its run.
func (r *Runner) prepare(ctx context.Context, spec engi.RunSpec) (rec Record, messages []engi.Message, err error) {
	name := spec.Agent
	if name == "" && len(r.opt.Agents) > 0 {
		name = r.opt.Agents[0].Name
	}
	def, ok := r.agents[name]
	if !ok {
		return rec, nil, engi.Errorf(engi.NotFound, "there is no agent %.80q", name).WithRemedy("'engi agent list' shows those there are")
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
	if spec.Conversation != "" && len(spec.Messages) > 0 {
		return rec, nil, engi.Errorf(engi.Invalid, "a run goes on with a conversation or with messages, not both")
	}
	if err := checkHistory(spec.Messages); err != nil {
		return rec, nil, err
	}
	if r.opt.CheckTarget != nil && (spec.Sandbox != "" || spec.Session != "") {
		if err := r.opt.CheckTarget(ctx, spec.Owner, spec.Sandbox, spec.Session); err != nil {
			return rec, nil, err
		}
	}
	messages = slices.Clone(spec.Messages)
	conversation := spec.Conversation
	if conversation == "" {
		conversation = engi.NewConversationID()
	} else if messages, err = r.history(ctx, spec.Owner, conversation); err != nil {
		return rec, nil, err
	}
	messages = append(messages, engi.Message{Role: engi.RoleUser, Text: userText(spec.Context, spec.Input), Images: spec.Images})

	raw, err := json.Marshal(spec)
	if err != nil {
		return rec, nil, engi.Errorf(engi.Invalid, "the request cannot be written down: %v", err)
	}
	rec = Record{Fingerprint: fingerprint(raw), Spec: spec, Run: engi.Run{
		ID: engi.NewRunID(), Owner: spec.Owner, Agent: name, Model: m.Name(), Conversation: conversation,
		Sandbox: spec.Sandbox, Session: spec.Session, State: engi.RunRunning, Created: time.Now().UTC(),
	}}
	rec.Spec.Messages, rec.Spec.Images, rec.Spec.Context = nil, nil, nil
	return rec, messages, nil
}

// layout is what the user says. Parts without text leave no trace: what comes
// first changes least, and stays in the provider's cache.
func userText(parts []engi.ContextPart, input string) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Text != "" {
			fmt.Fprintf(&b, "[%s] %s\n", p.Name, p.Text)
		}
	}
	if b.Len() == 0 {
		return input
	}
	return b.String() + "[NOW] " + input
}

func checkContext(parts []engi.ContextPart) (size int, err error) {
	if len(parts) > maxParts {
		return 0, engi.Errorf(engi.Invalid, "%d parts of context, %d at most", len(parts), maxParts).WithRemedy("put some of them together")
	}
	for i, p := range parts {
		if n := utf8.RuneCountInString(p.Name); n == 0 || n > 64 || p.Name == "NOW" ||
			strings.ContainsFunc(p.Name, func(r rune) bool { return !unicode.IsPrint(r) || r == '[' || r == ']' || r == utf8.RuneError }) {
			return 0, engi.Errorf(engi.Invalid, "part %d of the context is called %.80q", i, p.Name).
				WithRemedy("use 1 to 64 printable characters without brackets, and not NOW, which is the input")
		}
		if !utf8.ValidString(p.Text) {
			return 0, engi.Errorf(engi.Invalid, "part %d of the context, %s, is no UTF-8", i, p.Name)
		}
		size += len(p.Name) + len(p.Text)
	}
	return size, nil
}

func checkInput(spec engi.RunSpec) error {
	size, err := checkContext(spec.Context)
	if err != nil {
		return err
	}
	size += len(spec.Input) + len(spec.System)
	images := spec.Images
	switch {
	case spec.Input == "" && len(images) == 0:
		return engi.Errorf(engi.Invalid, "nothing is said to the agent").WithRemedy("give it an input")
	case size > maxInput:
		return engi.Errorf(engi.Invalid, "the input has %d bytes, %d at most", size, maxInput).WithRemedy("put long texts into files of a sandbox")
	case len(images) > maxImages:
		return engi.Errorf(engi.Invalid, "%d images, %d at most", len(images), maxImages)
	}
	for i, img := range images {
		if !slices.Contains(engi.ImageTypes(), img.MediaType) {
			return engi.Errorf(engi.Invalid, "image %d is of type %.40q", i, img.MediaType).WithRemedy("use PNG, JPEG, WebP or GIF")
		}
		if len(img.Data) == 0 || len(img.Data) > maxImage {
			return engi.Errorf(engi.Invalid, "image %d has %d bytes, 1 to %d can be shown", i, len(img.Data), maxImage)
		}
	}
	return nil
}

func checkHistory(messages []engi.Message) error {
	if len(messages) > maxMessages {
		return engi.Errorf(engi.Invalid, "%d messages, %d at most", len(messages), maxMessages)
	}
	size := 0
	for i, m := range messages {
		if !slices.Contains(engi.Roles(), m.Role) {
			return engi.Errorf(engi.Invalid, "message %d is by %.40q, who is nobody", i, m.Role).WithRemedy("use user, assistant or tool")
		}
		if size += messageSize(m); size > maxHistory {
			return engi.Errorf(engi.Invalid, "the messages have more than %d bytes", maxHistory).WithRemedy("leave the oldest out")
		}
	}
	return nil
}

// weight is about how many bytes a message has.
func messageSize(m engi.Message) int {
	n := len(m.Text) + len(m.Thought)
	for _, img := range m.Images {
		n += len(img.Data)
	}
	for _, c := range m.Calls {
		n += len(c.Arguments)
	}
	for _, r := range m.Results {
		n += len(r.Text)
		for _, img := range r.Images {
			n += len(img.Data)
		}
	}
	return n
}

// history returns what was said in a conversation. Each run has kept all that
// came before it, so the last one that ended knows everything.
func (r *Runner) history(ctx context.Context, owner engi.Owner, id engi.ConversationID) ([]engi.Message, error) {
	runs, err := r.opt.Store.List(ctx, owner, Filter{Conversation: id, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(runs) == 0 {
		return nil, engi.Errorf(engi.NotFound, "there is no conversation %.60s", id).WithRemedy("leave it out to begin one")
	}
	last := runs[0]
	if last.State == engi.RunRunning {
		return nil, engi.Errorf(engi.Conflict, "run %s of the conversation goes on", last.ID).WithRemedy("wait for it, or cancel it")
	}
	messages, err := r.opt.Store.Messages(ctx, last.ID)
	if err != nil {
		return nil, err
	}
	messages = withoutPendingCalls(messages)
	size := 0
	for i, m := range slices.Backward(messages) {
		if size += messageSize(m); size > maxHistory {
			// The oldest are forgotten, up to where somebody asks something.
			i++
			for i < len(messages) && messages[i].Role != engi.RoleUser {
				i++
			}
			return messages[i:], nil
		}
	}
	return messages, nil
}

// closed returns messages without calls that were never all answered:
// providers refuse conversations with such.
func withoutPendingCalls(messages []engi.Message) []engi.Message {
	if len(pendingCalls(messages)) == 0 {
		return slices.Clone(messages)
	}
	n := len(messages) - 1
	for messages[n].Role != engi.RoleAssistant {
		n--
	}
	return slices.Clone(messages[:n])
}

// open returns the calls at the end of messages that have no result yet.
func pendingCalls(messages []engi.Message) []engi.ToolCall {
	done := map[string]bool{}
	for _, m := range slices.Backward(messages) {
		switch m.Role {
		case engi.RoleTool:
			for _, r := range m.Results {
				done[r.Call] = true
			}
			continue
		case engi.RoleAssistant:
			var left []engi.ToolCall
			for _, c := range m.Calls {
				if !done[c.ID] {
					left = append(left, c)
				}
			}
			return left
		}
		break
	}
	return nil
}

// Get returns a run.
func (r *Runner) Get(ctx context.Context, owner engi.Owner, id engi.RunID) (engi.Run, error) {
	rec, err := r.opt.Store.Get(ctx, owner, id)
	return rec.Run, err
}

// List returns the newest runs first.
func (r *Runner) List(ctx context.Context, owner engi.Owner, limit int) ([]engi.Run, error) {
	if limit <= 0 {
		limit = 100
	}
	all, err := r.opt.Store.List(ctx, owner, Filter{Limit: min(limit, 1000)})
	if err != nil {
		return nil, err
	}
	runs := make([]engi.Run, len(all))
	for i, rec := range all {
		runs[i] = rec.Run
	}
	return runs, nil
}

// Messages returns all that was said in a run.
func (r *Runner) Messages(ctx context.Context, owner engi.Owner, id engi.RunID) ([]engi.Message, error) {
	if _, err := r.opt.Store.Get(ctx, owner, id); err != nil {
		return nil, err
	}
	return r.opt.Store.Messages(ctx, id)
}

// Kept returns a result that was too long for the model.
func (r *Runner) FullResult(ctx context.Context, owner engi.Owner, id engi.RunID, call string) ([]byte, error) {
	if _, err := r.opt.Store.Get(ctx, owner, id); err != nil {
		return nil, err
	}
	return r.opt.Results.GetResult(ctx, id, call)
}

// Cancel ends a run.
func (r *Runner) Cancel(ctx context.Context, owner engi.Owner, id engi.RunID) error {
	if _, err := r.opt.Store.Get(ctx, owner, id); err != nil {
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
