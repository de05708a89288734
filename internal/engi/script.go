package engi

import (
	"context"
	"encoding/json"
	"time"
)

// A ScriptSpec is a small JavaScript or TypeScript program for the script tier:
// an interpreter in a locked-down process, without files, network or modules,
// whose host functions are properties of the global api.
type ScriptSpec struct {
	Owner    Owner
	Language Language // JavaScript or TypeScript; empty means JavaScript
	Code     string
	Timeout  time.Duration     // clamped to the node's limits; 0 means the node's default
	Hints    map[string]string // defaults for host functions: latitude, longitude, city, country
	Session  string            // ID or name of a session whose sandbox, files and network its host functions use; empty for none
}

// A ScriptResult is the outcome of a script.
type ScriptResult struct {
	OK          bool            // the program completed without an error
	Value       json.RawMessage // value of the last expression or of return, converted to JSON; nil if there is none
	Stdout      []string        // lines of console.log, info and debug
	Stderr      []string        // lines of console.warn and error
	Warnings    []string        // remarks on truncated and converted values, for people
	Error       *ScriptError    // nil if OK
	Duration    time.Duration   // run time of the program alone
	Environment ScriptEnvironment
}

// A ScriptError is the error that ended a script. It is a result, not a
// failure of the call.
type ScriptError struct {
	Kind    ScriptErrorKind
	Name    string // name of the exception, such as "TypeError"
	Message string
	Line    int    // line in the submitted source, from 1; 0 if unknown
	Column  int    // column, from 1; 0 if unknown
	Stack   string // one frame per line, in the submitted source
}

// A ScriptErrorKind is the kind of a [ScriptError].
type ScriptErrorKind string

const (
	ScriptSyntax  ScriptErrorKind = "syntax"    // the program does not parse
	ScriptThrown  ScriptErrorKind = "exception" // the program threw an uncaught exception
	ScriptTimeout ScriptErrorKind = "timeout"   // the program exceeded its timeout
	ScriptMemory  ScriptErrorKind = "memory"    // the program exceeded its memory limit
	ScriptStalled ScriptErrorKind = "stalled"   // the program awaits a promise that cannot settle
	ScriptLost    ScriptErrorKind = "lost"      // the interpreter died
)

// A ScriptEnvironment describes the environment of a script.
type ScriptEnvironment struct {
	Engine  string
	Tier    Tier
	Timeout time.Duration // in force
	Memory  int64         // limit in bytes
	APIs    []string      // names of the host functions
	Session SessionID     // empty for none
}

// A ScriptAPI describes a host function.
type ScriptAPI struct {
	Name        string          // name below api, like getWeather or kv.get
	Signature   string          // of TypeScript: (url: string) => Promise<string>
	Description string          // a sentence or two
	Types       string          // TypeScript declarations that the signature needs; may be empty
	Schema      json.RawMessage // JSON schema of the list of arguments; nil accepts any
	Session     bool            // available only in a session
}

// Scripts runs scripts. It is safe for concurrent use.
type Scripts interface {
	// Run runs a script and returns its result. It reports Invalid for a bad
	// or too long spec, NotFound for an unknown session, Unsupported for a
	// session on a node without any, Exhausted when too many scripts run.
	Run(ctx context.Context, spec ScriptSpec) (ScriptResult, error)
	// APIs returns the host functions, ordered by name.
	APIs() []ScriptAPI
	// Declarations returns the TypeScript declarations of the host functions, for editors and
	// models.
	Declarations() string
}
