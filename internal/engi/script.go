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
	Timeout  time.Duration     // clamped to what the node allows; 0 means its default
	Hints    map[string]string // defaults for host functions: latitude, longitude, city, country
	Session  string            // ID or name of a session whose sandbox, files and network its host functions use; empty for none
}

// A ScriptResult is the outcome of a script.
type ScriptResult struct {
	OK          bool            // it completed without an error
	Value       json.RawMessage // of the last expression or return, converted to JSON; nil if there is none
	Stdout      []string        // lines of console.log, info and debug
	Stderr      []string        // lines of console.warn and error
	Warnings    []string        // what was truncated or converted, for people
	Error       *ScriptError    // nil if OK
	Duration    time.Duration   // of the program alone
	Environment ScriptEnvironment
}

// A ScriptError says why a script did not complete. It is a result, not a
// failure of the call.
type ScriptError struct {
	Kind    ScriptErrorKind
	Name    string // of the exception: "TypeError"
	Message string
	Line    int    // 1-based, in the submitted source; 0 if unknown
	Column  int    // 1-based; 0 if unknown
	Stack   string // one frame per line, in the submitted source
}

// A ScriptErrorKind tells errors of scripts apart.
type ScriptErrorKind string

const (
	ScriptSyntax  ScriptErrorKind = "syntax"    // it does not parse
	ScriptThrown  ScriptErrorKind = "exception" // it threw an uncaught exception
	ScriptTimeout ScriptErrorKind = "timeout"   // it exceeded its timeout
	ScriptMemory  ScriptErrorKind = "memory"    // it exceeded its memory limit
	ScriptStalled ScriptErrorKind = "stalled"   // it awaits a promise that cannot settle
	ScriptLost    ScriptErrorKind = "lost"      // its interpreter died
)

// A ScriptEnvironment says where a script ran.
type ScriptEnvironment struct {
	Engine  string
	Tier    Tier
	Timeout time.Duration // in force
	Memory  int64         // limit in bytes
	APIs    []string      // names of the host functions it had
	Session SessionID     // empty for none
}

// A ScriptAPI describes a host function.
type ScriptAPI struct {
	Name        string          // below api, like getWeather or kv.get
	Signature   string          // of TypeScript: (url: string) => Promise<string>
	Description string          // a sentence or two
	Types       string          // declarations the signature needs; may be empty
	Schema      json.RawMessage // JSON schema of the list of arguments; nil accepts any
	Session     bool            // available only in a session
}

// Scripts runs scripts. It is safe for concurrent use.
type Scripts interface {
	// Run runs a script and returns its result. It reports Invalid for a bad
	// or too long spec, NotFound for an unknown session, Unsupported for a
	// session on a node without any, Exhausted when too many scripts run.
	Run(ctx context.Context, spec ScriptSpec) (ScriptResult, error)
	// APIs returns the host functions, sorted by name.
	APIs() []ScriptAPI
	// Declarations returns their TypeScript declarations, for editors and
	// models.
	Declarations() string
}
