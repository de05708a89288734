package v1

import (
	"encoding/json"
	"time"
)

// States of a run.
const (
	AgentRunning   = "running"
	AgentDone      = "done"
	AgentStopped   = "stopped"
	AgentFailed    = "failed"
	AgentCancelled = "cancelled"
)

// An Agent is a language model with a purpose and with tools.
type Agent struct {
	Name        string          `json:"name" example:"coder"`
	Description string          `json:"description,omitempty"`
	Model       string          `json:"model,omitempty" doc:"provider:model; absent means the node's default" example:"openai:gpt-4o"`
	Tools       []string        `json:"tools" doc:"* means all that the node has"`
	Steps       int             `json:"steps" doc:"answers of the model per run at most"`
	Output      json.RawMessage `json:"output,omitempty" doc:"JSON schema of its answers; absent means prose"`
}

// A ToolServer is a server of tools elsewhere that agents may use.
type ToolServer struct {
	Name      string     `json:"name" example:"github"`
	Kind      string     `json:"kind" enum:"url,command" doc:"commands run in sandboxes"`
	State     string     `json:"state" enum:"unused,ready,failed" doc:"unused means that no agent has asked it yet"`
	Tools     []string   `json:"tools" doc:"by the names that models see"`
	Left      []string   `json:"left_out,omitempty" doc:"tools that cannot be offered, and why"`
	Error     string     `json:"error,omitempty"`
	CheckedAt *time.Time `json:"checked_at,omitempty"`
}

// An Image is something to look at.
type Image struct {
	MediaType string `json:"media_type" enum:"image/png,image/jpeg,image/webp,image/gif"`
	Data      []byte `json:"data" doc:"base64"`
}

// A Message is one turn of a conversation.
type Message struct {
	Role    string       `json:"role" enum:"user,assistant,tool"`
	Text    string       `json:"text,omitempty"`
	Thought string       `json:"thought,omitempty" doc:"reasoning the model showed"`
	Images  []Image      `json:"images,omitempty"`
	Calls   []ToolCall   `json:"calls,omitempty" doc:"tools that the assistant wants to use"`
	Results []ToolResult `json:"results,omitempty" doc:"what came of them"`
}

// A ToolCall is a model's wish to use a tool.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name" example:"execute_code"`
	Arguments string `json:"arguments,omitempty" doc:"a JSON object, if the model did well"`
}

// A ToolResult is what the model saw of a call.
type ToolResult struct {
	CallID string  `json:"call_id"`
	Name   string  `json:"name,omitempty"`
	Text   string  `json:"text"`
	Images []Image `json:"images,omitempty"`
	Failed bool    `json:"failed,omitempty"`
}

// A ContextPart is something an agent should know when it is asked.
type ContextPart struct {
	Name string `json:"name" minLength:"1" maxLength:"64" doc:"printable, without brackets, not NOW" example:"RECENT CHANGES"`
	Text string `json:"text" doc:"a part without text is left out"`
}

// A RunRequest asks an agent to work.
type RunRequest struct {
	Input          string          `json:"input,omitempty" doc:"what you say to the agent" example:"Write a function that parses CSV and show me that it works."`
	Context        []ContextPart   `json:"context,omitempty" maxItems:"32" doc:"what the agent should know, before the input; what changes least comes first, for providers' caches"`
	Images         []Image         `json:"images,omitempty"`
	Messages       []Message       `json:"messages,omitempty" doc:"what was said before, if you keep it yourself"`
	ConversationID string          `json:"conversation_id,omitempty" doc:"go on with this one; absent begins a new one"`
	Model          string          `json:"model,omitempty" doc:"instead of the agent's" example:"anthropic:claude-sonnet-4-5"`
	System         string          `json:"system,omitempty" doc:"added to the agent's instructions"`
	SandboxID      string          `json:"sandbox_id,omitempty" doc:"its tools work in this sandbox"`
	Session        string          `json:"session,omitempty" doc:"its tools work in this session, by ID or name"`
	Output         json.RawMessage `json:"output,omitempty" doc:"JSON schema of the answer; absent means the agent's, or prose"`
}

// A ChatRequest says something to an agent and waits for the answer.
type ChatRequest struct {
	Agent   string `json:"agent,omitempty" doc:"absent means the node's default"`
	Message string `json:"message,omitempty" doc:"the same as input" example:"What is 6*7? Run it."`
	RunRequest
}

// A ChatAnswer is what an agent said.
type ChatAnswer struct {
	Response       string          `json:"response"`
	Output         json.RawMessage `json:"output,omitempty" doc:"if an answer of a schema was asked for"`
	ConversationID string          `json:"conversation_id"`
	Run            AgentRun        `json:"run"`
}

// An AgentRun is one answer of an agent, with all it did for it.
type AgentRun struct {
	ID             string          `json:"id" example:"run_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner          string          `json:"owner,omitempty"`
	Agent          string          `json:"agent"`
	Model          string          `json:"model"`
	ConversationID string          `json:"conversation_id"`
	SandboxID      string          `json:"sandbox_id,omitempty"`
	Session        string          `json:"session,omitempty"`
	State          string          `json:"state" enum:"running,done,stopped,failed,cancelled"`
	Reason         string          `json:"reason,omitempty" enum:"steps,budget,length,filter" doc:"the limit that stopped it"`
	Text           string          `json:"text,omitempty" doc:"the last words of the model"`
	Output         json.RawMessage `json:"output,omitempty"`
	Error          *Problem        `json:"error,omitempty" doc:"why it failed"`
	Steps          int             `json:"steps"`
	Usage          TokenUsage      `json:"usage"`
	CreatedAt      time.Time       `json:"created_at"`
	EndedAt        *time.Time      `json:"ended_at,omitempty"`
}

// A TokenUsage is what models read and wrote.
type TokenUsage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	ReasoningTokens  int64   `json:"reasoning_tokens,omitempty"`
	CacheReadTokens  int64   `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64   `json:"cache_write_tokens,omitempty"`
	ModelCalls       int     `json:"model_calls"`
	Cost             float64 `json:"cost,omitempty" doc:"by the node's price table, in its currency"`
}

// An AgentEvent is something that happened in a run.
type AgentEvent struct {
	Type   string          `json:"type" enum:"text,thought,again,call,stdout,stderr,result,partial,done,heartbeat,error" doc:"again: text, thoughts and partial objects of this step are void"`
	Offset int64           `json:"offset" doc:"to come back with"`
	Step   int             `json:"step,omitempty"`
	Text   string          `json:"text,omitempty"`
	Call   *ToolCall       `json:"call,omitempty"`
	Result *ToolResult     `json:"result,omitempty"`
	Object json.RawMessage `json:"object,omitempty" doc:"as far as it is known"`
	Run    *AgentRun       `json:"run,omitempty"`
	Error  *Problem        `json:"error,omitempty"`
}
