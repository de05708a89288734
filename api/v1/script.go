package v1

import "encoding/json"

// A ScriptRequest runs a small program in JavaScript or TypeScript in the script
// tier: without files, modules or network other than the functions of api.
type ScriptRequest struct {
	Code     string            `json:"code" minLength:"1" doc:"Program; its result is its last expression, or its return value" example:"const n: number = 6; n * 7"`
	Language string            `json:"language,omitempty" enum:"javascript,typescript" doc:"Language; absent means javascript"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"Maximum run time, clamped to the node's limits, 250ms to 5s by default; absent means the node's default, 3s" example:"3s"`
	Hints    map[string]string `json:"hints,omitempty" doc:"Default arguments of api functions, such as latitude and longitude"`
	Session  string            `json:"session,omitempty" doc:"ID or name of a session: the script gets the session's sandbox as api.sandbox, a key-value store as api.kv, and fetches within the session's network policy"`
}

// A ScriptResult is the result of a script.
type ScriptResult struct {
	Success     bool              `json:"success" doc:"The program ended without an error"`
	Result      json.RawMessage   `json:"result,omitempty" doc:"Value of the last expression, or return value, as JSON; absent if there is none"`
	Stdout      []string          `json:"stdout" doc:"Lines of console.log, info and debug"`
	Stderr      []string          `json:"stderr" doc:"Lines of console.warn and error"`
	Warnings    []string          `json:"warnings" doc:"Remarks on shortened or changed values"`
	Error       *ScriptError      `json:"error,omitempty" doc:"Error that ended the program"`
	Duration    Duration          `json:"duration" doc:"Run time of the program"`
	Environment ScriptEnvironment `json:"environment"`
}

// A ScriptError is the error of a failed script.
type ScriptError struct {
	Kind    string `json:"kind" enum:"syntax,exception,timeout,memory,stalled,lost"`
	Name    string `json:"name,omitempty" doc:"Name of the exception" example:"TypeError"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty" doc:"Line in the request's code, from 1"`
	Column  int    `json:"column,omitempty" doc:"Column, from 1"`
	Stack   string `json:"stack,omitempty" doc:"Stack, one line per frame"`
}

// A ScriptEnvironment describes the engine that ran a script.
type ScriptEnvironment struct {
	Engine  string   `json:"engine" example:"quickjs"`
	Tier    string   `json:"tier" example:"script"`
	Timeout Duration `json:"timeout" doc:"Time limit in force"`
	Memory  Bytes    `json:"memory" doc:"Memory limit, in bytes"`
	APIs    []string `json:"apis" doc:"Functions of the object api"`
	Session string   `json:"session,omitempty" doc:"ID of the session"`
}

// A ScriptAPI describes a function of the object api in scripts.
type ScriptAPI struct {
	Name        string          `json:"name" example:"kv.get"`
	Signature   string          `json:"signature" example:"(key: string) => Promise<any>"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema,omitempty" doc:"JSON schema of the list of arguments"`
	Session     bool            `json:"session,omitempty" doc:"The function needs a session"`
}

// ScriptAPIs describes all functions that scripts can call, for users, models and
// editors.
type ScriptAPIs struct {
	Items        []ScriptAPI `json:"items"`
	Declarations string      `json:"declarations" doc:"The functions as TypeScript declarations"`
}
