package rest

import (
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

func (s *server) serveScripts() {
	handle(s, s.opRunScript(), s.runScript)
	handle(s, s.opListScriptAPIs(), s.listScriptAPIs)
}

var errNoScripts = engi.Errorf(engi.Unsupported, "this node runs no scripts").
	WithRemedy("send the program to /v1/executions; 'engi doctor' says why the script tier is off")

func (s *server) runScript(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.scripts == nil {
		return errNoScripts
	}
	q, err := decode[v1.ScriptRequest](s, w, r)
	if err != nil {
		return err
	}
	c := callOf(r.Context())
	x, err := s.scripts.Run(r.Context(), engi.ScriptSpec{
		Owner: c.key.Owner, Language: engi.Language(q.Language), Code: q.Code, Timeout: q.Timeout.Std(), Hints: q.Hints, Session: q.Session,
	})
	if err != nil {
		return err
	}
	out := v1.ScriptResult{
		Success: x.OK, Result: x.Value, Stdout: list(x.Stdout), Stderr: list(x.Stderr), Warnings: list(x.Warnings),
		Duration: v1.Duration(x.Duration),
		Environment: v1.ScriptEnvironment{
			Engine: x.Environment.Engine, Tier: string(x.Environment.Tier), Timeout: v1.Duration(x.Environment.Timeout),
			Memory: v1.Bytes(x.Environment.Memory), APIs: list(x.Environment.APIs), Session: string(x.Environment.Session),
		},
	}
	if e := x.Error; e != nil {
		out.Error = &v1.ScriptError{Kind: string(e.Kind), Name: e.Name, Message: e.Message, Line: e.Line, Column: e.Column, Stack: e.Stack}
	}
	return s.reply(w, http.StatusOK, out)
}

// list is xs as JSON has lists: never null.
func list[X any](xs []X) []X {
	if xs == nil {
		return []X{}
	}
	return xs
}

func (s *server) listScriptAPIs(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	if s.scripts == nil {
		return errNoScripts
	}
	out := v1.ScriptAPIs{Items: []v1.ScriptAPI{}, Declarations: s.scripts.Declarations()}
	for _, a := range s.scripts.APIs() {
		out.Items = append(out.Items, v1.ScriptAPI{Name: a.Name, Signature: a.Signature, Description: a.Description, Schema: a.Schema, Session: a.Session})
	}
	return s.reply(w, http.StatusOK, out)
}

func (s *server) opRunScript() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/scripts", "run-script", "scripts", "Run a script",
		"Runs a small program in JavaScript or TypeScript in the script tier, where it answers in about a millisecond. "+
			"A program that fails is an answer with success false. It has no modules, files or network but the functions that GET /v1/scripts/apis lists.", http.StatusOK)
	accepts[v1.ScriptRequest](s, &op, map[string]*huma.Example{
		"typescript": {Summary: "a value", Value: json.RawMessage(`{"language": "typescript", "code": "const n: number = 6; n * 7"}`)},
	})
	answers[v1.ScriptResult](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opListScriptAPIs() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/scripts/apis", "list-script-apis", "scripts", "List the functions that scripts have",
		"They are below api, and each is awaited. The declarations are for editors and for prompts.", http.StatusOK)
	answers[v1.ScriptAPIs](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}
