package rest

import (
	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Scripts returns the routes that run JavaScript in the script tier; service may be nil.
func Scripts(service engi.Scripts) Resource {
	absent := absentUnless(service != nil, "this node runs no scripts", "send the program to /v1/executions; 'engi doctor' says why the script tier is off")
	return Resource{tag: "scripts", about: "small programs that answer in a millisecond", missing: absent, routes: []Route{
		send(Route{
			Pattern: "POST /v1/scripts", ID: "run-script", Summary: "Run a script", Access: writes(engi.ScopeExecutions), Objects: Owned,
			Text: "Runs a small JavaScript or TypeScript program in the script tier, in about a millisecond. " +
				"If the program fails, the answer has success false. The program has no modules, files or network except the functions that GET /v1/scripts/apis lists.",
			Bodies: []example{{"typescript", "a value", `{"language": "typescript", "code": "const n: number = 6; n * 7"}`}},
		}, func(c *call, _ *none, q v1.ScriptRequest) (v1.ScriptResult, error) {
			return to(scriptOf)(service.Run(c, engi.ScriptSpec{
				Owner: c.owner(), Language: engi.Language(q.Language), Code: q.Code, Timeout: q.Timeout.Std(), Hints: q.Hints, Session: q.Session,
			}))
		}),
		fetch(Route{
			Pattern: "GET /v1/scripts/apis", ID: "list-script-apis", Summary: "List the API functions of scripts", Access: reads(engi.ScopeExecutions), Objects: Shared,
			Text: "The functions are members of the object api, and each returns a promise. The TypeScript declarations are for editors and prompts.",
		}, func(*call, *none) (v1.ScriptAPIs, error) {
			out := v1.ScriptAPIs{Items: []v1.ScriptAPI{}, Declarations: service.Declarations()}
			for _, a := range service.APIs() {
				out.Items = append(out.Items, v1.ScriptAPI{Name: a.Name, Signature: a.Signature, Description: a.Description, Schema: a.Schema, Session: a.Session})
			}
			return out, nil
		}),
	}}
}

func scriptOf(x engi.ScriptResult) v1.ScriptResult {
	out := v1.ScriptResult{
		Success: x.OK, Result: x.Value, Stdout: orEmpty(x.Stdout), Stderr: orEmpty(x.Stderr), Warnings: orEmpty(x.Warnings),
		Duration: v1.Duration(x.Duration),
		Environment: v1.ScriptEnvironment{
			Engine: x.Environment.Engine, Tier: string(x.Environment.Tier), Timeout: v1.Duration(x.Environment.Timeout),
			Memory: v1.Bytes(x.Environment.Memory), APIs: orEmpty(x.Environment.APIs), Session: string(x.Environment.Session),
		},
	}
	if e := x.Error; e != nil {
		out.Error = &v1.ScriptError{Kind: string(e.Kind), Name: e.Name, Message: e.Message, Line: e.Line, Column: e.Column, Stack: e.Stack}
	}
	return out
}
