package engi

import "encoding/json"

// A Message is one turn of a conversation with a model. It is a value; what
// it points to is never written.
type Message struct {
	Role    Role
	Text    string
	Thought string       // reasoning the model showed; of RoleAssistant only
	Images  []Image      // of RoleUser only
	Calls   []ToolCall   // of RoleAssistant only
	Results []ToolResult // of RoleTool only
}

// A Role says who speaks.
type Role string

const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// An Image is something to look at.
type Image struct {
	MediaType string // image/png, image/jpeg, image/webp or image/gif
	Data      []byte
}

// A ToolCall is a model's wish to use a tool. Everything in it is hostile
// input: the name may be of no tool, the arguments may be no JSON.
type ToolCall struct {
	ID        string // the model's, or ours if it gave none
	Name      string
	Arguments string // meant to be a JSON object
}

// A ToolResult is what the model gets to see of a call.
type ToolResult struct {
	Call   string // ID
	Name   string
	Text   string
	Images []Image
	Failed bool
}

// A Tool is what a model is told about one.
type Tool struct {
	Name        string // letters, digits, underscores and dashes, 64 at most
	Description string
	Schema      json.RawMessage // JSON schema of the arguments, an object
}

// Tokens counts what models read and wrote.
type Tokens struct {
	Input      int64 // without what the cache served
	Output     int64 // reasoning included
	Reasoning  int64
	CacheRead  int64
	CacheWrite int64
	Cost       int64 // millionths of the price table's currency; 0 if the model has no price
	Calls      int   // to models, repetitions included
}

// Plus returns the sum.
func (t Tokens) Plus(o Tokens) Tokens {
	return Tokens{
		t.Input + o.Input, t.Output + o.Output, t.Reasoning + o.Reasoning,
		t.CacheRead + o.CacheRead, t.CacheWrite + o.CacheWrite, t.Cost + o.Cost, t.Calls + o.Calls,
	}
}
