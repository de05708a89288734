package engi

import "encoding/json"

// A Message is one turn of a conversation with a model. It is a value; what
// it points to is never modified.
type Message struct {
	Role    Role
	Text    string
	Thought string       // reasoning that the model shows; for RoleAssistant only
	Images  []Image      // for RoleUser only
	Calls   []ToolCall   // for RoleAssistant only
	Results []ToolResult // for RoleTool only
	Signed  *SignedParts // for RoleAssistant only; nil if the provider signed nothing
}

// SignedParts is an answer in the order in which its model wrote it, with the data that
// the provider needs to continue the conversation: signatures and
// encrypted reasoning. Only the same model can use it.
type SignedParts struct {
	Model string // provider:model
	Parts []MessagePart
}

// A MessagePart is a piece of text, a thought or a call.
type MessagePart struct {
	Text      string
	Thought   string
	Call      string // ID of one of the message's calls
	Data      string // the provider's encrypted form of a thought
	Signature string // the provider's signature of this part
}

// A Role is the author of a message.
type Role string

const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Roles returns every role.
func Roles() []Role { return []Role{RoleUser, RoleAssistant, RoleTool} }

// An Image is a picture that models can see, or a PDF document, which some models
// see as a picture of each page.
type Image struct {
	MediaType string // one of ImageTypes, or PDF
	Data      []byte
	Name      string `json:",omitempty"` // file name of a document; may be empty
}

// PDF is the media type of documents.
const PDF = "application/pdf"

// ImageTypes returns the media types of pictures that models can see.
func ImageTypes() []string { return []string{"image/png", "image/jpeg", "image/webp", "image/gif"} }

// A ToolCall is a model's request to use a tool. All its fields are hostile input:
// the tool may not exist and the arguments may not be JSON.
type ToolCall struct {
	ID        string // ID from the provider, or a generated one if it gave none
	Name      string
	Arguments string // should be a JSON object
}

// A ToolResult is the result of a tool call, as the model sees it.
type ToolResult struct {
	Call   string // ID
	Name   string
	Text   string
	Images []Image
	Failed bool
}

// A Tool describes a tool to a model.
type Tool struct {
	Name        string // letters, digits, underscores and dashes, 64 at most
	Description string
	Schema      json.RawMessage // JSON schema of the arguments, an object
}

// Tokens counts the tokens that models read and wrote.
type Tokens struct {
	Input      int64 // excludes CacheRead
	Output     int64 // includes Reasoning
	Reasoning  int64
	CacheRead  int64
	CacheWrite int64
	Cost       int64 // millionths of the price table's currency; 0 if the model has no price
	Calls      int   // requests to models, retries included
}

// Add returns the sum of t and o.
func (t Tokens) Add(o Tokens) Tokens {
	return Tokens{
		Input: t.Input + o.Input, Output: t.Output + o.Output, Reasoning: t.Reasoning + o.Reasoning,
		CacheRead: t.CacheRead + o.CacheRead, CacheWrite: t.CacheWrite + o.CacheWrite, Cost: t.Cost + o.Cost, Calls: t.Calls + o.Calls,
	}
}
