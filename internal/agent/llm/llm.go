// Package llm is the interface to language models. A [Model] answers a request
// with text, tool calls or an object of a given schema, at once or as a stream;
// an [Embedder] turns texts into vectors, a [Reranker] ranks texts. A [Registry]
// builds them from a configuration by names such as "openai:gpt-4o", retries
// temporary failures, falls back to other models and reports the cost of calls.
//
// It does not run tools (package agent) and does not search (package docs).
// It uses no packages of vendors, because they include clients for whole
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
	// Exhausted for rate limits and budgets, Unavailable for errors that may be
	// temporary, and Denied for a key that the provider does not accept. With an error,
	// the reply has only tokens: the cost of the attempts, as the provider
	// counts it, or an estimate if the provider sent no counts.
	Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error)
}

// A Request is a conversation that the model continues.
type Request struct {
	Owner    engi.Owner // owner whose budget pays for the request
	System   string
	Messages []engi.Message
	Tools    []engi.Tool
	Choice   Choice // empty means auto
	OneCall  bool   // the answer has at most one tool call

	// Object asks for a JSON value of this schema instead of prose, and without
	// Tools. The reply's text is the value, which may break the schema; see
	// [GenerateJSON].
	Object     json.RawMessage
	ObjectName string // name of the schema, for the model; empty means answer

	MaxTokens   int         // maximum tokens of the answer; 0 means the model's limit, if it is known
	Temperature *float64    // nil means the provider's default
	TopP        *float64    // nil means the provider's default
	Stop        []string    // texts that end the answer
	Effort      engi.Effort // reasoning effort; ignored by models that do not reason; empty means the provider's default

	// Interrupted says that the same request may have been running when the
	// node stopped: its cost is estimated and charged like that of an attempt.
	Interrupted bool
}

// A Choice says whether the model must call tools: auto, none, required, or the
// name of a tool that it must call.
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

	Call      string // ID of the unfinished tool call
	Name      string // name of the call's tool; only in the first delta of a call
	Arguments string // next piece of the arguments

	Object any // the unfinished object, as encoding/json decodes it

	Reset bool // the attempt failed: discard all earlier deltas, the answer starts over
}

// A Reply is a complete answer.
type Reply struct {
	Model   string // provider:model that answered
	Message engi.Message
	Stop    Stop
	Reason  string // for StopFilter, StopMalformed and StopOther, the provider's text; may be empty
	Dropped int    // number of omitted calls, which Stop says may be incomplete
	Tokens  engi.Tokens
	Took    time.Duration // time of the request, including failed attempts
}

// A Stop says why an answer ended.
type Stop string

const (
	StopEnd       Stop = "end"       // the answer is complete
	StopTools     Stop = "tools"     // the answer calls tools
	StopLength    Stop = "length"    // the answer reached MaxTokens
	StopFilter    Stop = "filter"    // the provider withheld the answer, or the model refused; Reason may say why
	StopMalformed Stop = "malformed" // the provider could not parse the model's output, such as a broken call
	StopOther     Stop = "other"
)

// An Embedder converts texts to vectors. It is safe for concurrent use.
type Embedder interface {
	// Name identifies the vectors: only vectors with the same name are comparable.
	Name() string
	// Embed returns one vector of length 1 per text, all with the same dimension.
	// The error kinds are those of Generate.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}
