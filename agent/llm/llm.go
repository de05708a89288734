// Package llm is the seam to language models: a [Model] answers a request, as
// a whole or while it speaks, with text, with calls of tools or with an object
// of a given schema; an [Embedder] turns texts into vectors. A [Registry] makes
// them from a configuration by names such as "openai:gpt-4o", repeats what
// fails for a moment, falls back to other models and counts what is spent.
//
// It is not for loops over tools and their results (package agent) nor for
// searching (package library). Vendors' own packages are not used: they bring
// clients for whole clouds. Each wire format is one file here.
package llm

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi"
)

// A Model answers requests. It is safe for concurrent use.
type Model interface {
	// Name returns how the model is chosen: provider:model.
	Name() string
	// Generate answers a request. If out is not nil it gets the answer
	// while it is made, from the calling goroutine; an error of out ends the
	// answer and is returned. It reports Invalid for what the provider
	// refuses, Exhausted for rates and budgets, Unavailable for what may work
	// later, Denied for a key the provider does not take.
	Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error)
}

// A Request is a conversation to be continued.
type Request struct {
	Owner    engi.Owner // who pays
	System   string
	Messages []engi.Message
	Tools    []engi.Tool
	Choice   Choice // empty means auto

	// Object asks for a JSON value of this schema instead of prose. Tools
	// are then left out. The reply's text is the value; whether it keeps to
	// the schema is for the caller to check, see [Object].
	Object     json.RawMessage
	ObjectName string // of the schema, for the model; empty means answer

	MaxTokens   int      // of the answer; 0 means the provider's
	Temperature *float64 // nil means the provider's
}

// A Choice says whether tools must be used: auto, none, required, or the name
// of the one that must.
type Choice string

const (
	ChoiceAuto     Choice = "auto"
	ChoiceNone     Choice = "none"
	ChoiceRequired Choice = "required"
)

// A Delta is a part of an answer on its way. Exactly one group of fields is
// set.
type Delta struct {
	Text    string
	Thought string

	Call      string // ID of a tool call that is being written
	Name      string // of its tool; with the first delta of a call
	Arguments string // the next piece

	Object any // the object as far as it is known, as of encoding/json

	Again bool // the attempt failed; what came so far is void, another begins
}

// A Reply is a whole answer.
type Reply struct {
	Model   string // that answered, provider:model
	Message engi.Message
	Stop    Stop
	Tokens  engi.Tokens
	Took    time.Duration // attempts that failed included
}

// A Stop says why an answer ended.
type Stop string

const (
	StopEnd    Stop = "end"    // the model had said all
	StopTools  Stop = "tools"  // it waits for tools
	StopLength Stop = "length" // it ran into MaxTokens
	StopFilter Stop = "filter" // the provider held it back
	StopOther  Stop = "other"
)

// An Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Name tells vectors apart: those of different names cannot be compared.
	Name() string
	// Embed returns one vector of length 1 per text, all of one dimension.
	// The error kinds are those of Generate.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}
