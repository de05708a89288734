// Package llm is the interface to language models. A [Model] answers a request
// with text, tool calls or an object of a given schema, at once or as a stream;
// an [Embedder] turns texts into vectors, a [Reranker] ranks texts. A [Registry]
// makes them from a configuration by names such as "openai:gpt-4o", retries
// temporary failures, falls back to other models and reports what calls cost.
//
// It does not run tools (package agent) and does not search (package docs).
// Vendors' own packages are not used, because they bring clients for whole
// clouds; each wire format is one file here.
package llm

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Model answers requests. It is safe for concurrent use.
type Model interface {
	// Name returns provider:model.
	Name() string
	// Generate answers a request. If out is not nil, the answer is streamed to
	// it from the calling goroutine; an error of out ends the answer and is
	// returned. It reports Invalid for a request that the provider refuses,
	// Exhausted for rate limits and budgets, Unavailable for what may work
	// later, Denied for a key that the provider does not accept. With an error,
	// the reply has nothing but tokens: what the attempts cost, as the provider
	// counts it, or estimated where it has not.
	Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error)
}

// A Request is a conversation that the model continues.
type Request struct {
	Owner    engi.Owner // whose budget pays for it
	System   string
	Messages []engi.Message
	Tools    []engi.Tool
	Choice   Choice // empty means auto
	OneCall  bool   // the answer calls one tool at most

	// Object asks for a JSON value of this schema instead of prose, and without
	// Tools. The reply's text is the value, which may break the schema; see
	// [GenerateJSON].
	Object     json.RawMessage
	ObjectName string // of the schema, for the model; empty means answer

	MaxTokens   int         // of the answer; 0 means the model's, as far as it is known
	Temperature *float64    // nil means the provider's
	TopP        *float64    // nil means the provider's
	Stop        []string    // texts that end the answer
	Effort      engi.Effort // ignored by models that do not reason; empty means the provider's

	// Interrupted says that the same request may have been under way when the
	// node stopped: its cost is estimated and charged as that of an attempt.
	Interrupted bool
}

// A Choice says whether the model must call tools: auto, none, required, or the
// name of the tool that it must call.
type Choice string

const (
	ChoiceAuto     Choice = "auto"
	ChoiceNone     Choice = "none"
	ChoiceRequired Choice = "required"
)

// A Delta is a part of a streamed answer. Exactly one group of fields is set.
type Delta struct {
	Text    string
	Thought string

	Call      string // ID of a tool call that is being written
	Name      string // of its tool; with the first delta of a call
	Arguments string // the next piece

	Object any // the object as far as it has been written, as encoding/json decodes it

	Reset bool // the attempt failed: discard what came so far, the answer starts over
}

// A Reply is a complete answer.
type Reply struct {
	Model   string // that answered, provider:model
	Message engi.Message
	Stop    Stop
	Reason  string // for StopFilter, StopMalformed and StopOther, in the provider's words; may be empty
	Dropped int    // calls left out because Stop says that they may lack their end
	Tokens  engi.Tokens
	Took    time.Duration // including failed attempts
}

// A Stop says why an answer ended.
type Stop string

const (
	StopEnd       Stop = "end"       // it is complete
	StopTools     Stop = "tools"     // it calls tools
	StopLength    Stop = "length"    // it reached MaxTokens
	StopFilter    Stop = "filter"    // the provider withheld it, or the model refuses; Reason may say why
	StopMalformed Stop = "malformed" // the model wrote what the provider could not read, such as a broken call
	StopOther     Stop = "other"
)

// An Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Name identifies the vectors: those of different names cannot be compared.
	Name() string
	// Embed returns one vector of length 1 per text, all of one dimension.
	// The error kinds are those of Generate.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}
