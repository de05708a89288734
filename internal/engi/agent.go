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
	Tools       []string // names of tools; * means every tool of the node
	Steps       int      // maximum number of model answers per run; 0 means 10
	Budget      int64    // cost limit of a run, in millionths of the price table's currency; 0 means no limit
	Output      json.RawMessage
	MaxTokens   int
	Temperature *float64
	Effort      Effort   // reasoning effort; empty means the provider's default
	Confirm     []string // names of tools whose calls wait for a decision (see [CallDecider]); * means all
}

// An Effort is how much a model reasons before it answers.
type Effort string

const (
	EffortNone   Effort = "none" // as little reasoning as the model allows
	EffortLow    Effort = "low"
	EffortMedium Effort = "medium"
	EffortHigh   Effort = "high"
)

// Efforts returns every effort, lowest first.
func Efforts() []Effort { return []Effort{EffortNone, EffortLow, EffortMedium, EffortHigh} }

// A RunSpec asks an agent to work.
type RunSpec struct {
	Owner        Owner
	Agent        string        // name; empty means the node's default
	Model        string        // overrides the agent's model
	System       string        // appended to the agent's system prompt
	Context      []ContextPart // background for the model, placed before Input; put the part that changes least first, for the provider's cache
	Input        string        // the user's message
	Images       []Image
	Messages     []Message       // earlier messages, if the caller stores the conversation; excludes Conversation
	Conversation ConversationID  // conversation to continue; empty starts a new one
	After        RunID           `json:",omitempty"` // run whose conversation is continued from its end, followed by Messages; excludes Conversation
	Sandbox      SandboxID       // sandbox for the tools; empty for none
	Session      string          // ID or name of the session for the tools; empty for none
	Workspace    string          `json:",omitempty"` // ID or name of the workspace for the tools; empty for none; excludes Sandbox and Session
	Output       json.RawMessage // JSON schema of the answer, overrides the agent's; nil means prose
	Tools        []Tool          `json:",omitempty"` // tools of the caller, in addition to the agent's; a run that calls some of them ends, with the calls in Calls
	Choice       string          `json:",omitempty"` // tool choice of the first answer: auto, none, required or the name of a tool; none holds for all answers; empty means auto
	Results      []ToolResult    `json:",omitempty"` // results of all Calls of the last run of Conversation; replaces Input, as does a last message with results
	Sampling     Sampling        `json:",omitzero"`  // overrides the agent's
	Confirm      []string        `json:",omitempty"` // tools whose calls wait for a decision, in addition to the agent's
	Scopes       []Scope         `json:",omitempty"` // scopes of the caller's key, which restrict the tools; empty means no restriction
	Reviews      bool            `json:",omitempty"` // the run reviews the workspace: its tools read, change files and query databases without changes, and run no programs
	Note         json.RawMessage `json:",omitempty"` // stored with the run for its caller; not interpreted
	Idempotency  string          // a repeated key of the same owner returns the first run
}

// Sampling holds the sampling parameters of a model. Zero fields mean the agent's
// value, and then the provider's.
type Sampling struct {
	MaxTokens   int      `json:"max_tokens,omitempty"` // maximum number of tokens in one answer
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Stop        []string `json:"stop,omitempty"` // texts that end an answer; they are not part of it
	Effort      Effort   `json:"effort,omitempty"`
	OneCall     bool     `json:"one_call,omitempty"` // an answer has at most one tool call
}

// A ContextPart is background for a run. The model reads one line "[NAME] text"
// for each part, in the given order, and then "[NOW]" with the input; without parts
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
	RunStopped   RunState = "stopped"   // a limit ended the run; Reason names it
	RunFailed    RunState = "failed"    // Error says why
	RunCancelled RunState = "cancelled" // the caller cancelled the run
)

// A Run is one answer of an agent and all the work done for it. It is a value.
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
	Calls        []ToolCall      // calls of the caller's tools; the conversation continues with their results
	Waiting      []ToolCall      // calls that wait for a decision
	Error        *Error          // error of a failed run; for the reason filter, the provider's message
	Note         json.RawMessage // Note of the RunSpec
	Steps        int
	Tokens       Tokens
	Created      time.Time
	Ended        time.Time // zero while it runs
}

// ModelUsage is one owner's use of one model on one day.
type ModelUsage struct {
	Owner  Owner
	Day    time.Time // any moment of the day, in UTC
	Model  string    // provider:model
	Tokens Tokens
}

// A UsageReporter reports the use and the cost of models. It is safe
// for concurrent use.
type UsageReporter interface {
	// ModelUsage returns the usage that viewer sees, from a day on, newest first.
	ModelUsage(ctx context.Context, viewer Viewer, since time.Time) ([]ModelUsage, error)
}

// A RunUpdate is one item in the stream of a run.
type RunUpdate struct {
	Seq    int64 // ascending, with gaps; a reader resumes after the last one it has seen
	Time   time.Time
	Kind   RunUpdateKind
	Step   int
	Text   string          // for kinds text, thought and output
	Stream Stream          // for kind output
	Call   *ToolCall       // for kinds call and waiting; for output and result with ID and Name only
	Result *ToolResult     // for kind result
	Object json.RawMessage // for kind partial
	Run    *Run            // for kind done
}

// A RunUpdateKind is the kind of a [RunUpdate].
type RunUpdateKind string

const (
	RunText    RunUpdateKind = "text"    // a piece of the answer
	RunThought RunUpdateKind = "thought" // a piece of reasoning
	RunReset   RunUpdateKind = "again"   // discard the text, thoughts and partial objects of this step: it starts over
	RunWaiting RunUpdateKind = "waiting" // a tool call waits for a decision
	RunCall    RunUpdateKind = "call"    // a tool call begins
	RunOutput  RunUpdateKind = "output"  // output of a tool while it works
	RunResult  RunUpdateKind = "result"  // a tool call has ended
	RunPartial RunUpdateKind = "partial" // the object as far as it has been written
	RunEnd     RunUpdateKind = "done"    // the last event
)

// Agents runs agents. Methods find only objects that viewer sees and report NotFound for all
// others. It is safe for concurrent use.
type Agents interface {
	// Agents returns the configured agents, the default first.
	Agents() []AgentSpec
	// Start starts a run, which continues after ctx ends and after a restart
	// of the node. It reports Invalid for a bad spec, NotFound for an unknown
	// agent, sandbox, session or conversation, Conflict while another run of
	// the conversation is active, Exhausted when too many runs are.
	Start(ctx context.Context, spec RunSpec) (Run, error)
	// Get returns the current state of a run.
	Get(ctx context.Context, viewer Viewer, id RunID) (Run, error)
	// List returns up to limit runs, newest first; 0 means 100.
	List(ctx context.Context, viewer Viewer, limit int) ([]Run, error)
	// Messages returns the messages of a run, its input first.
	Messages(ctx context.Context, viewer Viewer, id RunID) ([]Message, error)
	// Watch yields the events of a run after seq, each exactly once, then
	// follows it up to and including the event of kind done. It reports Expired
	// if ctx ends first, and Unavailable if the node stops: resume with the last
	// Seq. A day after the end of a run, only whole texts, calls, results and
	// the end are left.
	Watch(ctx context.Context, viewer Viewer, id RunID, seq int64) iter.Seq2[RunUpdate, error]
	// FullResult returns the complete result of a tool call that was too long
	// for the model.
	FullResult(ctx context.Context, viewer Viewer, id RunID, call string) ([]byte, error)
	// Cancel ends a run and waits for its end. It does nothing to a run that
	// has ended.
	Cancel(ctx context.Context, viewer Viewer, id RunID) error
}

// A CallDecision is the decision on a waiting tool call.
type CallDecision struct {
	Call    string // ID
	Allowed bool
	Reason  string // reason, which the model sees; may be empty
	Decider string // ID of the deciding key, as [ActorOf] returns it
	Time    time.Time
}

// A CallDecider is [Agents] whose tool calls can wait for a decision until the run's
// time limit. Waiting calls survive a restart of the node. It is safe for concurrent
// use.
type CallDecider interface {
	// Decide lets a call begin, or refuses it, in the name of [ActorOf] ctx; the model
	// sees reason, at most 500 bytes. Once Decide returns, the decision outlives the
	// process. It reports Conflict for a call that is not waiting.
	Decide(ctx context.Context, viewer Viewer, id RunID, call string, allow bool, reason string) error
}

// A RunDeleter is [Agents] that can delete runs. It is safe for concurrent use.
type RunDeleter interface {
	// Delete cancels a run if it is active, and deletes it with its messages,
	// results and events. Events in the event log stay.
	Delete(ctx context.Context, viewer Viewer, id RunID) error
}
