package engi

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// An AgentSpec is a language model with a purpose and with tools, as configured.
type AgentSpec struct {
	Name        string
	Description string
	Model       string   // provider:model; empty means the node's default
	System      string   // its instructions
	Tools       []string // names; * means all that this node has
	Steps       int      // answers of the model per run; 0 means 10
	Budget      int64    // of a run, in millionths of the price table's currency; 0 means none
	Output      json.RawMessage
	MaxTokens   int
	Temperature *float64
}

// A RunSpec asks an agent to work.
type RunSpec struct {
	Owner        Owner
	Agent        string        // name; empty means the node's default
	Model        string        // instead of the agent's
	System       string        // added to the agent's instructions
	Context      []ContextPart // what the agent should know, before Input; what changes least first, for providers' caches
	Input        string        // what the user says
	Images       []Image
	Messages     []Message       // what was said before, if the caller keeps it; excludes Conversation
	Conversation ConversationID  // go on with this one; empty begins a new one
	Sandbox      SandboxID       // its tools work in; empty for none
	Session      string          // its tools work in; ID or name; empty for none
	Output       json.RawMessage // JSON schema of the answer, instead of the agent's; nil for prose
	Idempotency  string          // a repeated key of the same owner returns the first run
}

// A ContextPart is something an agent should know when it is asked. The model
// reads "[NAME] text" for each part, in the order given, and "[NOW]" with the
// input after them; without parts the input alone. Seed S0, section 7.
type ContextPart struct {
	Name string // like RECENT CHANGES; 1 to 64 printable characters without brackets, not NOW
	Text string // UTF-8; a part without text is left out
}

// A RunState is a point in the life of a run.
type RunState string

const (
	RunRunning   RunState = "running"
	RunDone      RunState = "done"      // the agent had said all
	RunStopped   RunState = "stopped"   // by a limit; Reason says which
	RunFailed    RunState = "failed"    // Error says why
	RunCancelled RunState = "cancelled" // on request
)

// A Run is one answer of an agent, with all it did for it. It is a value.
type Run struct {
	ID           RunID
	Owner        Owner
	Agent        string
	Model        string // that was asked for
	Conversation ConversationID
	Sandbox      SandboxID
	Session      string
	State        RunState
	Reason       string // steps, budget, length or filter, if stopped
	Text         string // the last words of the model
	Output       json.RawMessage
	Error        *Error // of a failed run
	Steps        int
	Tokens       Tokens
	Created      time.Time
	Ended        time.Time // zero while it runs
}

// A Spend is what one owner spent on one model on one day.
type Spend struct {
	Owner  Owner
	Day    time.Time // any moment of it, in UTC
	Model  string    // provider:model
	Tokens Tokens
}

// Spending knows what was spent on models. It is safe for concurrent use.
type Spending interface {
	// Spent returns what owner spent from a day on, the newest first. The
	// empty owner sees all.
	Spent(ctx context.Context, owner Owner, since time.Time) ([]Spend, error)
}

// A RunEvent is something that happened in a run.
type RunEvent struct {
	Seq    int64 // where the run's log goes on after it: ascending, but not one by one; a reader comes back with the last it saw
	Time   time.Time
	Kind   RunEventKind
	Step   int
	Text   string          // of text, thought and output
	Stream Stream          // of output
	Call   *ToolCall       // of call; of output and result, with its ID and Name
	Result *ToolResult     // of result
	Object json.RawMessage // of partial
	Run    *Run            // of done
}

// A RunEventKind tells events apart.
type RunEventKind string

const (
	RunText    RunEventKind = "text"    // a piece of the answer
	RunThought RunEventKind = "thought" // a piece of reasoning
	RunAgain   RunEventKind = "again"   // text, thoughts and partial objects of this step are void
	RunCall    RunEventKind = "call"    // a tool begins
	RunOutput  RunEventKind = "output"  // what a tool prints while it works
	RunResult  RunEventKind = "result"  // a tool has ended
	RunPartial RunEventKind = "partial" // the object as far as it is known
	RunEnd     RunEventKind = "done"    // the last one
)

// Agents puts agents to work. All methods see only what owner owns; the rest
// is NotFound. The empty owner sees all. It is safe for concurrent use.
type Agents interface {
	// Agents returns what is configured, the default first.
	Agents() []AgentSpec
	// Start begins a run, which goes on after ctx ends and after a restart of
	// the node. It reports Invalid for a bad spec, NotFound for an agent, a
	// sandbox, a session or a conversation, Conflict while another run of the
	// conversation goes on, Exhausted when too many run.
	Start(ctx context.Context, spec RunSpec) (Run, error)
	// Get returns a run as it is now.
	Get(ctx context.Context, owner Owner, id RunID) (Run, error)
	// List returns up to limit runs, the newest first; 0 means 100.
	List(ctx context.Context, owner Owner, limit int) ([]Run, error)
	// Messages returns all that was said in a run, by its user first.
	Messages(ctx context.Context, owner Owner, id RunID) ([]Message, error)
	// Watch yields what happened after seq, each once, and then what happens, up
	// to and including the event of kind done. It reports Expired if ctx ends
	// before, and Unavailable if the node stops: come back with the last Seq.
	// Of runs that ended a while ago only whole texts, calls, results and the
	// end are left.
	Watch(ctx context.Context, owner Owner, id RunID, seq int64) iter.Seq2[RunEvent, error]
	// Kept returns a result that was too long for the model.
	Kept(ctx context.Context, owner Owner, id RunID, call string) ([]byte, error)
	// Cancel ends a run. Ending twice is no error.
	Cancel(ctx context.Context, owner Owner, id RunID) error
}
