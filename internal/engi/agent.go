package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// An AgentSpec configures an agent: a language model with instructions and
// tools.
type AgentSpec struct {
	Name        string
	Description string
	Model       string   // provider:model; empty means the node's default
	System      string   // system prompt
	Tools       []string // names; * means every tool of the node
	Steps       int      // answers of the model per run; 0 means 10
	Budget      int64    // of a run, in millionths of the price table's currency; 0 means no limit
	Output      json.RawMessage
	MaxTokens   int
	Temperature *float64
	Effort      Effort   // of reasoning; empty means the provider's
	Confirm     []string // names of tools whose calls wait for a decision, see [CallDecider]; * means all
}

// An Effort is how much a model reasons before it answers.
type Effort string

const (
	EffortNone   Effort = "none" // as little as the model can
	EffortLow    Effort = "low"
	EffortMedium Effort = "medium"
	EffortHigh   Effort = "high"
)

// Efforts returns every effort, the least first.
func Efforts() []Effort { return []Effort{EffortNone, EffortLow, EffortMedium, EffortHigh} }

// A RunSpec asks an agent to work.
type RunSpec struct {
	Owner        Owner
	Agent        string        // name; empty means the node's default
	Model        string        // overrides the agent's model
	System       string        // appended to the agent's system prompt
	Context      []ContextPart // what the agent should know, placed before Input; put what changes least first, for the provider's cache
	Input        string        // the user's message
	Images       []Image
	Messages     []Message       // earlier messages, if the caller keeps them; excludes Conversation
	Conversation ConversationID  // continue this one; empty starts a new one
	After        RunID           `json:",omitempty"` // continue its conversation from its end, with Messages after what was said; excludes Conversation
	Sandbox      SandboxID       // the tools work in it; empty for none
	Session      string          // the tools work in it; ID or name; empty for none
	Workspace    string          `json:",omitempty"` // the tools work in it; ID or name; empty for none; excludes the others
	Output       json.RawMessage // JSON schema of the answer, overrides the agent's; nil for prose
	Tools        []Tool          `json:",omitempty"` // the caller's own, beside the agent's; a run that calls some ends with them in Calls
	Choice       string          `json:",omitempty"` // of the tools of the first answer: auto, none, required or a name; none is for all answers; empty means auto
	Results      []ToolResult    `json:",omitempty"` // of all Calls of the last run of Conversation; instead of Input, as is a last message with results
	Sampling     Sampling        `json:",omitzero"`  // overrides the agent's
	Confirm      []string        `json:",omitempty"` // beside the agent's
	Scopes       []Scope         `json:",omitempty"` // of the caller's key, which limit the tools; empty means no limit
	Note         json.RawMessage `json:",omitempty"` // kept with the run, for whoever began it
	Idempotency  string          // a repeated key of the same owner returns the first run
}

// Sampling says how a model writes. Zero fields mean the agent's, and then the
// provider's.
type Sampling struct {
	MaxTokens   int      `json:"max_tokens,omitempty"` // of one answer
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Stop        []string `json:"stop,omitempty"` // texts that end an answer, without being in it
	Effort      Effort   `json:"effort,omitempty"`
	OneCall     bool     `json:"one_call,omitempty"` // an answer calls one tool at most
}

// A ContextPart is background for a run. The model reads one line "[NAME] text"
// per part, in the given order, and then "[NOW]" with the input; without parts
// it reads the input alone.
type ContextPart struct {
	Name string // like RECENT CHANGES; 1 to 64 printable characters without brackets, not NOW
	Text string // UTF-8; a part without text is left out
}

// A RunState is a point in the life of a run.
type RunState string

const (
	RunRunning   RunState = "running"
	RunDone      RunState = "done"      // the agent has finished its answer
	RunStopped   RunState = "stopped"   // by a limit; Reason says which
	RunFailed    RunState = "failed"    // Error says why
	RunCancelled RunState = "cancelled" // on request
)

// A Run is one answer of an agent with all the work behind it. It is a value.
type Run struct {
	ID           RunID
	Owner        Owner
	Agent        string
	Model        string // as requested; a fallback may have answered
	Conversation ConversationID
	Sandbox      SandboxID
	Session      string
	Workspace    string
	State        RunState
	Reason       string // steps, budget, length, filter or malformed, if stopped
	Text         string // the model's last message
	Output       json.RawMessage
	Calls        []ToolCall      // of the caller's tools; the conversation goes on with their results
	Waiting      []ToolCall      // that somebody must decide on
	Error        *Error          // of a failed run; for the reason filter, what the provider said
	Note         json.RawMessage // of whoever began it
	Steps        int
	Tokens       Tokens
	Created      time.Time
	Ended        time.Time // zero while it runs
}

// ModelUsage is what one owner used of one model on one day.
type ModelUsage struct {
	Owner  Owner
	Day    time.Time // any moment of the day, in UTC
	Model  string    // provider:model
	Tokens Tokens
}

// A UsageReporter reports what models were used and what that cost. It is safe
// for concurrent use.
type UsageReporter interface {
	// ModelUsage returns an owner's usage from a day on, newest first. The
	// empty owner sees all.
	ModelUsage(ctx context.Context, owner Owner, since time.Time) ([]ModelUsage, error)
}

// A RunUpdate is one item in the stream of a run.
type RunUpdate struct {
	Seq    int64 // ascending, with gaps; a reader resumes after the last one it has seen
	Time   time.Time
	Kind   RunUpdateKind
	Step   int
	Text   string          // of text, thought and output
	Stream Stream          // of output
	Call   *ToolCall       // of call and waiting; of output and result, with ID and Name only
	Result *ToolResult     // of result
	Object json.RawMessage // of partial
	Run    *Run            // of done
}

// A RunEventKind tells events of a run apart.
type RunUpdateKind string

const (
	RunText    RunUpdateKind = "text"    // a piece of the answer
	RunThought RunUpdateKind = "thought" // a piece of reasoning
	RunReset   RunUpdateKind = "again"   // discard the text, thoughts and partial objects of this step: it starts over
	RunWaiting RunUpdateKind = "waiting" // a tool call waits for somebody's decision
	RunCall    RunUpdateKind = "call"    // a tool call begins
	RunOutput  RunUpdateKind = "output"  // what a tool prints while it works
	RunResult  RunUpdateKind = "result"  // a tool call has ended
	RunPartial RunUpdateKind = "partial" // the object as far as it has been written
	RunEnd     RunUpdateKind = "done"    // the last event
)

// Agents runs agents. All methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Agents interface {
	// Agents returns the configured agents, the default first.
	Agents() []AgentSpec
	// Start starts a run, which continues after ctx ends and after a restart
	// of the node. It reports Invalid for a bad spec, NotFound for an unknown
	// agent, sandbox, session or conversation, Conflict while another run of
	// the conversation is active, Exhausted when too many runs are.
	Start(ctx context.Context, spec RunSpec) (Run, error)
	// Get returns the current state of a run.
	Get(ctx context.Context, owner Owner, id RunID) (Run, error)
	// List returns up to limit runs, newest first; 0 means 100.
	List(ctx context.Context, owner Owner, limit int) ([]Run, error)
	// Messages returns the messages of a run, its input first.
	Messages(ctx context.Context, owner Owner, id RunID) ([]Message, error)
	// Watch yields the events of a run after seq, each exactly once, then
	// follows it up to and including the event of kind done. It reports Expired
	// if ctx ends first, and Unavailable if the node stops: resume with the last
	// Seq. A day after the end of a run, only whole texts, calls, results and
	// the end are left.
	Watch(ctx context.Context, owner Owner, id RunID, seq int64) iter.Seq2[RunUpdate, error]
	// FullResult returns the complete result of a tool call that was too long
	// for the model.
	FullResult(ctx context.Context, owner Owner, id RunID, call string) ([]byte, error)
	// Cancel ends a run and waits for its end. It does nothing to a run that
	// has ended.
	Cancel(ctx context.Context, owner Owner, id RunID) error
}

// A CallDecision is somebody's answer to a tool call that waits for it.
type CallDecision struct {
	Call    string // ID
	Allowed bool
	Reason  string // told to the model; may be empty
	Decider string // as [ActorOf]
	Time    time.Time
}

// A CallDecider is [Agents] some of whose tool calls wait for a decision, as long as
// their runs may take. Those that wait survive a restart. It is safe for concurrent
// use.
type CallDecider interface {
	// Decide lets a call begin, or refuses it, in the name of [ActorOf] ctx; the model
	// is told reason, up to 500 bytes. Once it returns, the decision outlives the
	// process. It reports Conflict for a call that does not wait.
	Decide(ctx context.Context, owner Owner, id RunID, call string, allow bool, reason string) error
}

// A RunDeleter is [Agents] that can delete runs. It is safe for concurrent use.
type RunDeleter interface {
	// Delete cancels a run if it is active, and deletes it with its messages,
	// results and events. What is in the log of events stays.
	Delete(ctx context.Context, owner Owner, id RunID) error
}
