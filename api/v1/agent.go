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

// An Agent is a language model with instructions and tools.
type Agent struct {
	Name        string          `json:"name" example:"coder"`
	Description string          `json:"description,omitempty"`
	Model       string          `json:"model,omitempty" doc:"provider:model; absent means the node's default" example:"openai:gpt-4o"`
	Tools       []string        `json:"tools" doc:"* means every one the node has"`
	Steps       int             `json:"steps" doc:"maximum of the model's answers per run"`
	Output      json.RawMessage `json:"output,omitempty" doc:"JSON schema of its answers; absent means text"`
	Confirm     []string        `json:"confirm,omitempty" doc:"tools whose calls wait for somebody's decision; * means all"`
}

// A ToolServer is an MCP server whose tools agents may use.
type ToolServer struct {
	Name      string     `json:"name" example:"github"`
	Kind      string     `json:"kind" enum:"url,command" doc:"commands run in sandboxes"`
	State     string     `json:"state" enum:"unused,ready,failed" doc:"unused means that no agent has asked it yet"`
	Tools     []string   `json:"tools" doc:"as models see their names"`
	Left      []string   `json:"left_out,omitempty" doc:"tools that cannot be used, and why"`
	Error     string     `json:"error,omitempty"`
	CheckedAt *time.Time `json:"checked_at,omitempty"`
}

// An Image is an image or a document in a message.
type Image struct {
	MediaType string `json:"media_type" enum:"image/png,image/jpeg,image/webp,image/gif,application/pdf" doc:"documents in PDF are for models of OpenAI, Anthropic and Gemini"`
	Data      []byte `json:"data" doc:"base64"`
	Name      string `json:"name,omitempty" maxLength:"255" doc:"of a document's file"`
}

// A Message is one turn of a conversation.
type Message struct {
	Role    string       `json:"role" enum:"user,assistant,tool"`
	Text    string       `json:"text,omitempty"`
	Thought string       `json:"thought,omitempty" doc:"the model's reasoning"`
	Images  []Image      `json:"images,omitempty"`
	Calls   []ToolCall   `json:"calls,omitempty" doc:"tools that the assistant calls"`
	Results []ToolResult `json:"results,omitempty" doc:"their results"`
}

// A ToolCall is a model's request to call a tool.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name" example:"execute_code"`
	Arguments string `json:"arguments,omitempty" doc:"a JSON object, unless the model made a mistake"`
}

// A ToolResult is the result of a call as the model saw it.
type ToolResult struct {
	CallID string  `json:"call_id"`
	Name   string  `json:"name,omitempty"`
	Text   string  `json:"text"`
	Images []Image `json:"images,omitempty"`
	Failed bool    `json:"failed,omitempty"`
}

// A ContextPart is background that an agent is given with a question.
type ContextPart struct {
	Name string `json:"name" minLength:"1" maxLength:"64" doc:"printable, without brackets, not NOW" example:"RECENT CHANGES"`
	Text string `json:"text" doc:"a part without text is left out"`
}

// A RunRequest asks an agent to work.
type RunRequest struct {
	Input          string          `json:"input,omitempty" doc:"the message to the agent" example:"Write a function that parses CSV and show me that it works."`
	Context        []ContextPart   `json:"context,omitempty" maxItems:"32" doc:"what the agent should know, before the input; what changes least comes first, for providers' caches"`
	Images         []Image         `json:"images,omitempty"`
	Messages       []Message       `json:"messages,omitempty" doc:"the conversation so far, if you keep it yourself"`
	ConversationID string          `json:"conversation_id,omitempty" doc:"continue this one; absent starts a new one"`
	Model          string          `json:"model,omitempty" doc:"instead of the agent's" example:"anthropic:claude-sonnet-4-5"`
	System         string          `json:"system,omitempty" doc:"added to the agent's instructions"`
	SandboxID      string          `json:"sandbox_id,omitempty" doc:"its tools work in this sandbox"`
	Session        string          `json:"session,omitempty" doc:"its tools work in this session, by ID or name"`
	Workspace      string          `json:"workspace,omitempty" doc:"its tools work in this workspace, by ID or name, which is started for them; instead of sandbox_id and session"`
	Output         json.RawMessage `json:"output,omitempty" doc:"JSON schema of the answer; absent means the agent's, or text"`
	Tools          []Tool          `json:"tools,omitempty" maxItems:"128" doc:"your own, beside the agent's: a run that calls some ends, with the calls; go on with their results"`
	ToolChoice     string          `json:"tool_choice,omitempty" doc:"auto, none, required, or the name of one of tools that the first answer must call"`
	Results        []ToolResult    `json:"results,omitempty" doc:"of all calls of the last run of conversation_id, instead of input"`
	MaxTokens      int             `json:"max_tokens,omitempty" minimum:"0" doc:"of each answer of the model; absent means the agent's"`
	Temperature    *float64        `json:"temperature,omitempty" minimum:"0" maximum:"2"`
	TopP           *float64        `json:"top_p,omitempty" minimum:"0" maximum:"1"`
	Stop           []string        `json:"stop,omitempty" maxItems:"4" doc:"texts that end an answer"`
	Confirm        []string        `json:"confirm,omitempty" maxItems:"64" doc:"tools whose calls wait for somebody's decision, beside the agent's; * means all"`
	Effort         string          `json:"effort,omitempty" enum:"none,low,medium,high" doc:"of reasoning, for models that do"`
}

// A Tool is a function that a model may ask its caller to call.
type Tool struct {
	Name        string          `json:"name" minLength:"1" maxLength:"64"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema" doc:"JSON schema of the arguments, an object"`
}

// A ChatRequest sends a message to an agent and waits for its answer.
type ChatRequest struct {
	Agent   string `json:"agent,omitempty" doc:"absent means the node's default"`
	Message string `json:"message,omitempty" doc:"the same as input" example:"What is 6*7? Run it."`
	RunRequest
}

// A ChatAnswer is an agent's answer.
type ChatAnswer struct {
	Response       string          `json:"response"`
	Output         json.RawMessage `json:"output,omitempty" doc:"if the request has a schema"`
	ConversationID string          `json:"conversation_id"`
	Run            AgentRun        `json:"run"`
}

// An AgentRun is one run of an agent, with every step it took.
type AgentRun struct {
	ID             string          `json:"id" example:"run_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner          string          `json:"owner,omitempty"`
	Agent          string          `json:"agent"`
	Model          string          `json:"model"`
	ConversationID string          `json:"conversation_id"`
	SandboxID      string          `json:"sandbox_id,omitempty"`
	Session        string          `json:"session,omitempty"`
	Workspace      string          `json:"workspace,omitempty"`
	State          string          `json:"state" enum:"running,done,stopped,failed,cancelled"`
	Reason         string          `json:"reason,omitempty" enum:"steps,budget,length,filter,malformed" doc:"the limit that ended it"`
	Text           string          `json:"text,omitempty" doc:"the last text of the model"`
	Output         json.RawMessage `json:"output,omitempty"`
	Calls          []ToolCall      `json:"calls,omitempty" doc:"of the request's tools: the conversation goes on with their results"`
	Waiting        []ToolCall      `json:"waiting,omitempty" doc:"calls that wait for somebody's decision"`
	Error          *Problem        `json:"error,omitempty" doc:"why it failed; with the reason filter, what the provider said"`
	Steps          int             `json:"steps"`
	Usage          TokenUsage      `json:"usage"`
	CreatedAt      time.Time       `json:"created_at"`
	EndedAt        *time.Time      `json:"ended_at,omitempty"`
}

// A CallDecision lets a tool call begin, or refuses it.
type CallDecision struct {
	Allow  *bool  `json:"allow"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"one line, told to the model"`
}

// A TokenUsage counts the tokens that models read and wrote.
type TokenUsage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	ReasoningTokens  int64   `json:"reasoning_tokens,omitempty"`
	CacheReadTokens  int64   `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64   `json:"cache_write_tokens,omitempty"`
	ModelCalls       int     `json:"model_calls"`
	Cost             float64 `json:"cost,omitempty" doc:"by the node's prices, in their currency"`
}

// An AgentUpdate is something that happened in a run of an agent.
type AgentUpdate struct {
	Type   string          `json:"type" enum:"text,thought,again,waiting,call,stdout,stderr,result,partial,done,heartbeat,error" doc:"the step is tried again: discard its text, reasoning and partial objects"`
	Offset int64           `json:"offset" doc:"to resume with"`
	Step   int             `json:"step,omitempty"`
	Text   string          `json:"text,omitempty"`
	Call   *ToolCall       `json:"call,omitempty"`
	Result *ToolResult     `json:"result,omitempty"`
	Object json.RawMessage `json:"object,omitempty" doc:"as far as known"`
	Run    *AgentRun       `json:"run,omitempty"`
	Error  *Problem        `json:"error,omitempty"`
}
