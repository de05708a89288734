package v1

import "encoding/json"

// A ScriptRequest is a small program in JavaScript or TypeScript for the
// script tier: no files, no modules, no network but the functions below api.
type ScriptRequest struct {
	Code     string            `json:"code" minLength:"1" doc:"the program; its result is its last expression, or what it returns" example:"const n: number = 6; n * 7"`
	Language string            `json:"language,omitempty" enum:"javascript,typescript" doc:"absent means javascript"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"clamped to what the node allows, 250ms to 5s if not configured; absent means its default, 3s" example:"3s"`
	Hints    map[string]string `json:"hints,omitempty" doc:"what api functions may fill in, like latitude and longitude"`
	Session  string            `json:"session,omitempty" doc:"ID or name of a session: the script gets its sandbox as api.sandbox, its scratch as api.kv, and fetches within its network policy"`
}

// A ScriptResult is the answer of a script.
type ScriptResult struct {
	Success     bool              `json:"success" doc:"it came to its end"`
	Result      json.RawMessage   `json:"result,omitempty" doc:"the value of the last expression, or what was returned, made fit for JSON; absent if there is none"`
	Stdout      []string          `json:"stdout" doc:"lines of console.log, info and debug"`
	Stderr      []string          `json:"stderr" doc:"lines of console.warn and error"`
	Warnings    []string          `json:"warnings" doc:"what was cut or changed on the way"`
	Error       *ScriptError      `json:"error,omitempty" doc:"why it did not come to its end"`
	Duration    Duration          `json:"duration" doc:"of the program"`
	Environment ScriptEnvironment `json:"environment"`
}

// A ScriptError says why a script did not come to its end.
type ScriptError struct {
	Kind    string `json:"kind" enum:"syntax,exception,timeout,memory,stalled,lost"`
	Name    string `json:"name,omitempty" doc:"of the exception" example:"TypeError"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty" doc:"in the code that was sent, from 1"`
	Column  int    `json:"column,omitempty" doc:"from 1"`
	Stack   string `json:"stack,omitempty" doc:"one frame a line"`
}

// A ScriptEnvironment is where a script ran.
type ScriptEnvironment struct {
	Engine  string   `json:"engine" example:"quickjs"`
	Tier    string   `json:"tier" example:"script"`
	Timeout Duration `json:"timeout" doc:"in force"`
	Memory  Bytes    `json:"memory" doc:"what it may use"`
	APIs    []string `json:"apis" doc:"functions it has below api"`
	Session string   `json:"session,omitempty" doc:"ID of the session it was part of"`
}

// A ScriptAPI describes a function that scripts have below api.
type ScriptAPI struct {
	Name        string          `json:"name" example:"kv.get"`
	Signature   string          `json:"signature" example:"(key: string) => Promise<any>"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema,omitempty" doc:"JSON schema of the list of arguments"`
	Session     bool            `json:"session,omitempty" doc:"only scripts that name a session have it"`
}

// ScriptAPIs is all that scripts have, for people, models and editors.
type ScriptAPIs struct {
	Items        []ScriptAPI `json:"items"`
	Declarations string      `json:"declarations" doc:"the same as TypeScript declarations"`
}
