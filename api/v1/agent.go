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
	Model       string          `json:"model,omitempty" doc:"Model, as provider:model; absent means the node's default model" example:"openai:gpt-4o"`
	Tools       []string        `json:"tools" doc:"Names of the agent's tools; * means all tools of the node"`
	Steps       int             `json:"steps" doc:"Maximum number of answers of the model per run"`
	Output      json.RawMessage `json:"output,omitempty" doc:"JSON schema of the agent's answers; absent means text"`
	Confirm     []string        `json:"confirm,omitempty" doc:"Tools whose calls wait for a decision; * means all"`
}

// A ToolServer is an MCP server whose tools agents may use.
type ToolServer struct {
	Name      string     `json:"name" example:"github"`
	Kind      string     `json:"kind" enum:"url,command" doc:"command: the server is a command that runs in a sandbox"`
	State     string     `json:"state" enum:"unused,ready,failed" doc:"State of the server; unused means that no agent has used it yet"`
	Tools     []string   `json:"tools" doc:"Names of the server's tools, as models see them"`
	Left      []string   `json:"left_out,omitempty" doc:"Tools that cannot be used, with the reasons"`
	Error     string     `json:"error,omitempty"`
	CheckedAt *time.Time `json:"checked_at,omitempty"`
}

// An Image is an image or a document in a message.
type Image struct {
	MediaType string `json:"media_type" enum:"image/png,image/jpeg,image/webp,image/gif,application/pdf" doc:"Media type; PDF documents need models of OpenAI, Anthropic or Gemini"`
	Data      []byte `json:"data" doc:"Content in base64"`
	Name      string `json:"name,omitempty" maxLength:"255" doc:"File name of a document"`
}

// A Message is one turn of a conversation.
type Message struct {
	Role    string       `json:"role" enum:"user,assistant,tool"`
	Text    string       `json:"text,omitempty"`
	Thought string       `json:"thought,omitempty" doc:"Reasoning of the model"`
	Images  []Image      `json:"images,omitempty"`
	Calls   []ToolCall   `json:"calls,omitempty" doc:"Tool calls of the assistant"`
	Results []ToolResult `json:"results,omitempty" doc:"Results of the tool calls"`
}

// A ToolCall is a model's request to call a tool.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name" example:"execute_code"`
	Arguments string `json:"arguments,omitempty" doc:"JSON object with the arguments, unless the model wrote invalid JSON"`
}

// A ToolResult is the result of a call in the form that the model saw.
type ToolResult struct {
	CallID string  `json:"call_id"`
	Name   string  `json:"name,omitempty"`
	Text   string  `json:"text"`
	Images []Image `json:"images,omitempty"`
	Failed bool    `json:"failed,omitempty"`
}

// A ContextPart is background information for an agent, sent with a question.
type ContextPart struct {
	Name string `json:"name" minLength:"1" maxLength:"64" doc:"Name of the part: printable, without brackets, not NOW" example:"RECENT CHANGES"`
	Text string `json:"text" doc:"Text of the part; a part without text is left out"`
}

// A RunRequest starts a run of an agent.
type RunRequest struct {
	Input          string          `json:"input,omitempty" doc:"Message to the agent" example:"Write a function that parses CSV and show me that it works."`
	Context        []ContextPart   `json:"context,omitempty" maxItems:"32" doc:"Context for the agent, placed before the input; put the part that changes least first, for the providers' caches"`
	Images         []Image         `json:"images,omitempty"`
	Messages       []Message       `json:"messages,omitempty" doc:"Conversation so far, if the caller stores it"`
	ConversationID string          `json:"conversation_id,omitempty" doc:"ID of the conversation to continue; absent starts a new one"`
	Model          string          `json:"model,omitempty" doc:"Model, as provider:model; absent means the agent's model" example:"anthropic:claude-sonnet-4-5"`
	System         string          `json:"system,omitempty" doc:"Text that is added to the agent's instructions"`
	SandboxID      string          `json:"sandbox_id,omitempty" doc:"ID of the sandbox for the agent's tools"`
	Session        string          `json:"session,omitempty" doc:"ID or name of the session for the agent's tools"`
	Workspace      string          `json:"workspace,omitempty" doc:"ID or name of the workspace for the agent's tools, which is started if it is stopped; excludes sandbox_id and session"`
	Output         json.RawMessage `json:"output,omitempty" doc:"JSON schema of the answer; absent means the agent's schema, or text"`
	Tools          []Tool          `json:"tools,omitempty" maxItems:"128" doc:"Tools of the caller, in addition to the agent's: when the model calls some of them, the run ends with the calls; continue it with results"`
	ToolChoice     string          `json:"tool_choice,omitempty" doc:"auto, none, required, or the name of a tool in tools that the first answer must call"`
	Results        []ToolResult    `json:"results,omitempty" doc:"Results of all tool calls with which the last run of conversation_id ended; replaces input"`
	MaxTokens      int             `json:"max_tokens,omitempty" minimum:"0" doc:"Maximum number of tokens in each answer of the model; absent means the agent's limit"`
	Temperature    *float64        `json:"temperature,omitempty" minimum:"0" maximum:"2"`
	TopP           *float64        `json:"top_p,omitempty" minimum:"0" maximum:"1"`
	Stop           []string        `json:"stop,omitempty" maxItems:"4" doc:"Texts that end an answer of the model"`
	Confirm        []string        `json:"confirm,omitempty" maxItems:"64" doc:"Tools whose calls wait for a decision, in addition to the agent's; * means all"`
	Effort         string          `json:"effort,omitempty" enum:"none,low,medium,high" doc:"Reasoning effort, for models that support it"`
}

// A Tool is a function of the caller that a model may request.
type Tool struct {
	Name        string          `json:"name" minLength:"1" maxLength:"64"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema" doc:"JSON schema of the arguments, which must be an object"`
}

// A ChatRequest sends a message to an agent and waits for its answer.
type ChatRequest struct {
	Agent   string `json:"agent,omitempty" doc:"Name; absent means the node's default"`
	Message string `json:"message,omitempty" doc:"Alias of input" example:"What is 6*7? Run it."`
	RunRequest
}

// A ChatAnswer is an agent's answer.
type ChatAnswer struct {
	Response       string          `json:"response"`
	Output         json.RawMessage `json:"output,omitempty" doc:"Answer that follows the requested schema"`
	ConversationID string          `json:"conversation_id"`
	Run            AgentRun        `json:"run"`
}

// An AgentRun is one run of an agent, with all of its steps.
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
	Reason         string          `json:"reason,omitempty" enum:"steps,budget,length,filter,malformed" doc:"Limit that ended the run"`
	Text           string          `json:"text,omitempty" doc:"Last text of the model"`
	Output         json.RawMessage `json:"output,omitempty"`
	Calls          []ToolCall      `json:"calls,omitempty" doc:"Calls of the tools in the request; the conversation continues with their results"`
	Waiting        []ToolCall      `json:"waiting,omitempty" doc:"Calls that wait for a decision"`
	Error          *Problem        `json:"error,omitempty" doc:"Reason of the failure; with the reason filter, the provider's text"`
	Steps          int             `json:"steps"`
	Usage          TokenUsage      `json:"usage"`
	CreatedAt      time.Time       `json:"created_at"`
	EndedAt        *time.Time      `json:"ended_at,omitempty"`
}

// A CallDecision allows or refuses a tool call.
type CallDecision struct {
	Allow  *bool  `json:"allow"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Reason of the decision, one line, which the model sees"`
}

// A TokenUsage counts the tokens that models read and wrote.
type TokenUsage struct {
	InputTokens      int64   `json:"input_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	ReasoningTokens  int64   `json:"reasoning_tokens,omitempty"`
	CacheReadTokens  int64   `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64   `json:"cache_write_tokens,omitempty"`
	ModelCalls       int     `json:"model_calls"`
	Cost             float64 `json:"cost,omitempty" doc:"Cost by the node's prices, in their currency"`
}

// An AgentUpdate is one update of a run of an agent.
type AgentUpdate struct {
	Type   string          `json:"type" enum:"text,thought,again,waiting,call,stdout,stderr,result,partial,done,heartbeat,error" doc:"again: the step is repeated, so discard its text, reasoning and partial objects"`
	Offset int64           `json:"offset" doc:"Offset of the event, to resume the stream"`
	Step   int             `json:"step,omitempty"`
	Text   string          `json:"text,omitempty"`
	Call   *ToolCall       `json:"call,omitempty"`
	Result *ToolResult     `json:"result,omitempty"`
	Object json.RawMessage `json:"object,omitempty" doc:"Object of the answer, as far as it has been received"`
	Run    *AgentRun       `json:"run,omitempty"`
	Error  *Problem        `json:"error,omitempty"`
}
