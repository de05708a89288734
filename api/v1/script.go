package v1

import "encoding/json"

// A ScriptRequest runs a small program in JavaScript or TypeScript in the script
// tier: without files, modules or network other than the functions of api.
type ScriptRequest struct {
	Code     string            `json:"code" minLength:"1" doc:"the program; its result is its last expression, or what it returns" example:"const n: number = 6; n * 7"`
	Language string            `json:"language,omitempty" enum:"javascript,typescript" doc:"absent means javascript"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"clamped to what the node allows, 250ms to 5s if not configured; absent means its default, 3s" example:"3s"`
	Hints    map[string]string `json:"hints,omitempty" doc:"defaults for api functions, such as latitude and longitude"`
	Session  string            `json:"session,omitempty" doc:"ID or name of a session: the script gets its sandbox as api.sandbox, its scratch as api.kv, and fetches within its network policy"`
}

// A ScriptResult is how a script ended.
type ScriptResult struct {
	Success     bool              `json:"success" doc:"it ended by itself"`
	Result      json.RawMessage   `json:"result,omitempty" doc:"the value of the last expression, or what was returned, as JSON; absent if there is none"`
	Stdout      []string          `json:"stdout" doc:"lines of console.log, info and debug"`
	Stderr      []string          `json:"stderr" doc:"lines of console.warn and error"`
	Warnings    []string          `json:"warnings" doc:"what was shortened or changed"`
	Error       *ScriptError      `json:"error,omitempty" doc:"why it failed"`
	Duration    Duration          `json:"duration" doc:"of the program"`
	Environment ScriptEnvironment `json:"environment"`
}

// A ScriptError says why a script failed.
type ScriptError struct {
	Kind    string `json:"kind" enum:"syntax,exception,timeout,memory,stalled,lost"`
	Name    string `json:"name,omitempty" doc:"of the exception" example:"TypeError"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty" doc:"in the code that was sent, from 1"`
	Column  int    `json:"column,omitempty" doc:"from 1"`
	Stack   string `json:"stack,omitempty" doc:"one line per frame"`
}

// A ScriptEnvironment describes the engine that ran a script.
type ScriptEnvironment struct {
	Engine  string   `json:"engine" example:"quickjs"`
	Tier    string   `json:"tier" example:"script"`
	Timeout Duration `json:"timeout" doc:"in force"`
	Memory  Bytes    `json:"memory" doc:"what it may use"`
	APIs    []string `json:"apis" doc:"functions of its api object"`
	Session string   `json:"session,omitempty" doc:"ID of the session it was part of"`
}

// A ScriptAPI describes a function of the object api in scripts.
type ScriptAPI struct {
	Name        string          `json:"name" example:"kv.get"`
	Signature   string          `json:"signature" example:"(key: string) => Promise<any>"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema,omitempty" doc:"JSON schema of the list of arguments"`
	Session     bool            `json:"session,omitempty" doc:"only for scripts that name a session"`
}

// ScriptAPIs describes everything that scripts can call, for people, models and
// editors.
type ScriptAPIs struct {
	Items        []ScriptAPI `json:"items"`
	Declarations string      `json:"declarations" doc:"the same as TypeScript declarations"`
}
