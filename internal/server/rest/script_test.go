package rest_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// scripts answers with what it was asked.
type scripts struct{ last engi.ScriptSpec }

func (s *scripts) Run(_ context.Context, spec engi.ScriptSpec) (engi.ScriptResult, error) {
	s.last = spec
	if spec.Code == "bad" {
		return engi.ScriptResult{}, engi.Errorf(engi.Invalid, "the script is bad").WithRemedy("be good")
	}
	r := engi.ScriptResult{OK: true, Value: json.RawMessage(`{"a":1}`), Duration: time.Millisecond, Environment: engi.ScriptEnvironment{Engine: "test", Tier: engi.TierScript}}
	if spec.Code == "throw" {
		r.OK, r.Value, r.Error = false, nil, &engi.ScriptError{Kind: engi.ScriptThrown, Name: "TypeError", Message: "m", Line: 2, Column: 3}
	}
	return r, nil
}

func (s *scripts) APIs() []engi.ScriptAPI {
	return []engi.ScriptAPI{{Name: "f", Signature: "() => Promise<void>", Description: "Does."}}
}

func (s *scripts) Declarations() string { return "declare const api: {};\n" }

func TestScripts(t *testing.T) {
	twin := &scripts{}
	w := newFixture(t, func(o *apitest.Options) { o.Scripts = twin })
	post := func(body string) (int, string) {
		t.Helper()
		rec := ask(t, w, http.MethodPost, "/v1/scripts", body)
		return rec.Code, rec.Body.String()
	}
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{"code": "1", "language": "typescript", "timeout": "1s", "hints": {"city": "x"}}`: {200, `"result":{"a":1}`},
		`{"code": "throw"}`:           {200, `"line":2`},
		`{"code": "bad"}`:             {400, `be good`},
		`{"code": "1", "kode": "1"}`:  {400, `kode`},
		`{"code": "1", "timeout": 5}`: {400, `timeout`},
		`{`:                           {400, ``},
	} {
		if status, text := post(body); status != want.status || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s, want %d with %s", body, status, text, want.status, want.text)
		}
	}
	if _, _ = post(`{"code": "1", "timeout": "1s", "session": "s1"}`); twin.last.Timeout != time.Second || twin.last.Owner == "" || twin.last.Session != "s1" {
		t.Errorf("asked for %+v", twin.last)
	}
	if rec := ask(t, w, http.MethodGet, "/v1/scripts/apis", ""); rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), "declare const api") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestNodeWithoutScripts(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Scripts = nil })
	refused(t, ask(t, w, http.MethodPost, "/v1/scripts", `{"code": "1"}`), http.StatusNotImplemented, engi.Unsupported)
}
