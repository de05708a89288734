package engi

import (
	"context"
	"encoding/json"
	"time"
)

// A ScriptSpec is a small program in JavaScript or TypeScript that runs in the
// script tier: an interpreter in a locked-down process, with no files, no
// network and no modules, and host functions below the name api.
type ScriptSpec struct {
	Owner    Owner
	Language Language // JavaScript or TypeScript; empty means JavaScript
	Code     string
	Timeout  time.Duration     // clamped to what the node allows; 0 means its default
	Hints    map[string]string // what host functions may fill in: latitude, longitude, city, country
	Session  string            // ID or name of a session whose sandbox, scratch and network it gets; empty for none
}

// A ScriptResult is the answer of a script.
type ScriptResult struct {
	OK          bool            // it came to its end
	Value       json.RawMessage // of the last expression or return, made fit for JSON; nil if there is none
	Stdout      []string        // lines of console.log, info and debug
	Stderr      []string        // lines of console.warn and error
	Warnings    []string        // what was cut or changed on the way, for people
	Error       *ScriptError    // nil if OK
	Duration    time.Duration   // of the program
	Environment ScriptEnvironment
}

// A ScriptError says why a script did not come to its end. It is an answer.
type ScriptError struct {
	Kind    ScriptErrorKind
	Name    string // of the exception: "TypeError"
	Message string
	Line    int    // 1-based, in the caller's own source; 0 if unknown
	Column  int    // 1-based; 0 if unknown
	Stack   string // one frame a line, in the caller's own source
}

// A ScriptErrorKind tells errors of scripts apart.
type ScriptErrorKind string

const (
	ScriptSyntax  ScriptErrorKind = "syntax"    // it is not a program
	ScriptThrown  ScriptErrorKind = "exception" // it threw and nobody caught
	ScriptTimeout ScriptErrorKind = "timeout"   // it ran longer than it may
	ScriptMemory  ScriptErrorKind = "memory"    // it used more than it may
	ScriptStalled ScriptErrorKind = "stalled"   // it waits for something that never comes
	ScriptLost    ScriptErrorKind = "lost"      // its interpreter died under it
)

// A ScriptEnvironment is where a script ran.
type ScriptEnvironment struct {
	Engine  string
	Tier    Tier
	Timeout time.Duration // in force
	Memory  int64         // bytes it may use
	APIs    []string      // names of host functions it had
	Session SessionID     // empty for none
}

// A ScriptAPI describes a host function.
type ScriptAPI struct {
	Name        string          // below api, like getWeather or kv.get
	Signature   string          // of TypeScript: (url: string) => Promise<string>
	Description string          // a sentence or two
	Types       string          // declarations the signature needs; may be empty
	Schema      json.RawMessage // JSON schema of the list of arguments; nil accepts any
	Session     bool            // only scripts of a session have it
}

// Scripts runs scripts. It is safe for concurrent use.
type Scripts interface {
	// Run runs a script and returns its answer. It reports Invalid for a
	// spec that makes no sense or is too long, NotFound for a session,
	// Unsupported for one where there are none, Exhausted when too many run.
	Run(ctx context.Context, spec ScriptSpec) (ScriptResult, error)
	// APIs returns the host functions by name.
	APIs() []ScriptAPI
	// Declarations returns the same in TypeScript, for editors and models.
	Declarations() string
}
