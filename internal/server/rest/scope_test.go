package rest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/test/apitest"
)

// held is one object of each kind that belongs to one owner.
type held struct {
	execution, sandbox, process, snapshot, volume, secret, key, session, run, event, functionRun, document, operation, approval, response, workspace string
	more                                                                                                                                             map[string]object // by nouns, see simple
	terminal, link                                                                                                                                   map[string]string // by nouns of places
}

// An object is an ID, and the request that made it.
type object struct{ id, body string }

// simple returns the nouns of objects that a test can make, list, get and remove by
// their routes and the example of the first, without a line of its own.
func simple(w *apitest.Fixture) map[string]object {
	routes, all := map[string]*rest.Route{}, map[string]object{}
	for _, r := range w.Handler.Routes() {
		routes[r.Pattern] = r
	}
	for pattern, r := range routes {
		noun, ok := strings.CutPrefix(pattern, "POST /v1/")
		_, listed := routes["GET /v1/"+noun]
		_, removed := routes["DELETE /v1/"+noun+"/{id}"]
		if ok && listed && removed && len(r.Bodies) > 0 && !slices.Contains([]string{"keys", "sandboxes", "sessions", "executions", "workflows"}, noun) {
			all[noun] = object{body: r.Bodies[0].Body}
		}
	}
	return all
}

// hold makes one of each for the owner of the world's User.
func hold(t *testing.T, w *apitest.Fixture) held {
	t.Helper()
	var h held
	h.execution = read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", program("save f.txt data")), 200).ID
	h.sandbox = read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
	b := "/v1/sandboxes/" + h.sandbox
	h.process = read[v1.Process](t, ask(t, w, "POST", b+"/processes", `{"args":["cat"],"stdin":true,"detach":true}`), 201).ID
	read[v1.Written](t, ask(t, w, "PUT", b+"/files?path=/workspace/f", "mine"), 200)
	h.snapshot = read[v1.Snapshot](t, ask(t, w, "POST", b+"/snapshot", ""), 201).ID
	h.volume = read[v1.Volume](t, ask(t, w, "POST", "/v1/volumes", `{"name":"v"}`), 201).ID
	read[v1.Written](t, ask(t, w, "PUT", "/v1/volumes/v/files?path=/f", "mine"), 200)
	h.secret = read[v1.Secret](t, ask(t, w, "POST", "/v1/secrets", `{"name":"s","value":"hunter2"}`), 201).ID
	h.session = read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID
	h.terminal, h.link = map[string]string{}, map[string]string{}
	for noun, id := range map[string]string{"sandboxes": h.sandbox, "sessions": h.session} {
		path := "/v1/" + noun + "/" + id + "/terminals"
		h.terminal[noun] = read[v1.Terminal](t, ask(t, w, "POST", path, `{"args":["/bin/sh"]}`), 201).ID
		h.link[noun] = read[v1.TerminalLink](t, ask(t, w, "POST", path+"/"+h.terminal[noun]+"/links", ""), 201).ID
	}
	h.run = read[v1.AgentRun](t, ask(t, w, "POST", "/v1/agents/echo/runs", `{"input":"wait"}`), 202).ID
	h.response = read[struct{ ID string }](t, ask(t, w, "POST", "/v1/responses", `{"model":"echo","input":"wait","background":true}`), 200).ID
	sent := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/wait"}`), 202)
	h.event, h.functionRun = sent.ID, sent.RunIDs[0]
	waits, _ := w.Hold("ann", "/v1/x")
	h.approval = string(waits.ID)
	h.document = read[v1.Document](t, ask(t, w, "POST", "/v1/docs", `{"title":"mine","text":"# mine"}`), 201).ID
	build, err := w.Operations.Start(t.Context(), engi.OperationSpec{Owner: "ann", Type: engi.OperationBuildTemplate, Subject: "slow", Input: json.RawMessage(`{"definition":"slow"}`)})
	if err != nil {
		t.Fatal(err)
	}
	h.operation = string(build.ID)
	h.more = simple(w)
	for noun, o := range h.more {
		h.more[noun] = object{read[struct{ ID string }](t, ask(t, w, "POST", "/v1/"+noun, o.body), 201).ID, o.body}
	}
	h.workspace = read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"of-workflows","files":[{"path":"a","content":"a"}]}`), 201).ID
	in := `{"workspace":"` + h.workspace + `"}`
	h.more["workflows"] = object{read[v1.Workflow](t, ask(t, w, "POST", "/v1/workflows", in), 201).ID, in}
	for _, k := range read[v1.List[v1.Key]](t, ask(t, w, "GET", "/v1/keys", ""), 200).Items {
		h.key = k.ID
	}
	return h
}

// requestFor fills in a route with what h has.
func (h held) requestFor(pattern string) (method, path, body string) {
	method, path, _ = strings.Cut(pattern, " ")
	noun := strings.Split(path, "/")[min(2, strings.Count(path, "/"))]
	id := map[string]string{"executions": h.execution, "sandboxes": h.sandbox, "keys": h.key, "sessions": h.session, "runs": h.run, "events": h.event, "functions": h.functionRun, "docs": h.document, "operations": h.operation, "approvals": h.approval, "responses": h.response}[noun]
	id = cmp.Or(id, h.more[noun].id)
	name := map[string]string{"volumes": h.volume, "secrets": h.secret, "snapshots": h.snapshot, "templates": "base", "agents": "echo", "models": "echo"}[noun]
	path = strings.NewReplacer("{id}", id, "{name}", name, "{process}", h.process, "{port}", "8080", "{path...}", "f.txt", "{call}", "c1", "{terminal}", h.terminal[noun], "{link}", h.link[noun], "{service}", "postgres", "{table}", "orders").Replace(path)
	switch {
	case pattern == "POST /v1/workspaces/{id}/files":
	case strings.HasSuffix(path, "/files"), strings.HasSuffix(path, "/stat"):
		path += "?path=/workspace/f"
		switch noun {
		case "volumes":
			path = strings.Replace(path, "/workspace/f", "/f", 1)
		case "workspaces":
			path = strings.Replace(path, "/workspace/f", "README.md", 1)
		}
	case strings.HasSuffix(path, "/info/refs"):
		path += "?service=git-upload-pack"
	case strings.HasSuffix(path, "/blame"):
		path += "?path=README.md"
	case strings.HasSuffix(path, "/list"), strings.HasSuffix(path, "/watch"), strings.HasSuffix(path, "/archive"):
		path += "?path=/"
	}
	if strings.HasSuffix(path, "/search") {
		path += "?query=mine"
	}
	if method == "POST" || method == "PUT" || method == "PATCH" {
		last := strings.SplitN(path[strings.LastIndex(strings.SplitN(path, "?", 2)[0], "/")+1:], "?", 2)[0]
		body = cmp.Or(map[string]string{
			"POST workspaces files": `{"files":[{"path":"a","content":"a"}]}`, "POST workspaces restore": `{"revision":1}`, "POST workspaces move": `{"from":"README.md","to":"README.md"}`, "POST workspaces documents": `{"collection":"orders"}`, "POST workspaces services": `{"type":"redis"}`, "POST workspaces query": `{"text":"select 42 as n"}`, "POST workspaces explain": `{"text":"select 42 as n"}`,
			"POST workflows submit": `{}`, "POST workflows review": `{"decision":"send_back"}`, "POST workflows cancel": `{}`, "POST workflows escalate": `{}`,
			"POST workspaces command": `{"args":["PING"]}`, "PATCH workspaces " + id: `{"metadata":{}}`,
		}[method+" "+noun+" "+last], map[string]string{
			"mkdir": `{"path":"/workspace/new"}`, "move": `{"from":"/workspace/f","to":"/workspace/g"}`, "signal": `{"signal":"KILL"}`, "resize": `{"cols":1,"rows":1}`,
			"extend": `{"timeout":"1m"}`, "network": `{"mode":"none"}`, "processes": `{"args":["true"]}`, "executions": program("echo"), "sandboxes": `{}`, "keys": `{}`,
			"secrets": `{"name":"other","value":"x"}`, "volumes": `{"name":"other"}`, "templates": `{"name":"mine","definition":"good"}`,
			"scripts": `{"language":"javascript","code":"1"}`, "files": "content", "sessions": `{}`, "events": `{"name":"x"}`, "replay": `{}`, "docs": `{"text":"x"}`, "modules": `{"modules":[{"path":"a.ts","description":"x"}]}`, "run_code": `{"code":"1"}`, "actions": `{"action":"x"}`, "restore": `{"seq":1}`, "apply": `{"text":"x"}`, "edit": `{"prompt":"x"}`, "rollback": `{"revision":1}`, "publish": `{}`, "screenshot": `{}`, "branch": `{}`, "link": `{}`, "runs": `{"input":"x"}`, "chat": `{"message":"x"}`, "decision": `{"allow":false}`, "completions": `{"model":"echo","messages":[{"role":"user","content":"x"}]}`, "responses": `{"model":"echo","input":"x"}`, "embeddings": `{"model":"demo:lengths","input":"x"}`, "deliveries": `{"event_id":"` + h.event + `"}`, h.more["webhooks"].id: `{"name":"x"}`, h.secret: `{"value":"x"}`, h.sandbox: `{"metadata":{}}`,
		}[last])
	}
	if method == "POST" && body == "" {
		body = h.more[noun].body
	}
	return method, path, body
}

// askSoon is ask for answers that may never end: the client leaves when it has the
// status.
func askSoon(t *testing.T, w *apitest.Fixture, secret, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	return askUntil(t, w, func(*httptest.ResponseRecorder) bool { return true }, secret, method, path, body)
}

// askWithin is ask for answers that should end within a minute.
func askWithin(t *testing.T, w *apitest.Fixture, secret, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	return askUntil(t, w, func(*httptest.ResponseRecorder) bool { return false }, secret, method, path, body)
}

// askUntil asks with a client that leaves when enough has come, or after a minute.
func askUntil(t *testing.T, w *apitest.Fixture, enough func(*httptest.ResponseRecorder) bool, secret, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.Handler.ServeHTTP(leaver{rec, func() {
		if enough(rec) {
			cancel()
		}
	}}, r)
	return rec
}

// A leaver calls wrote after each piece of a response.
type leaver struct {
	*httptest.ResponseRecorder
	wrote func()
}

func (l leaver) WriteHeader(code int) {
	l.ResponseRecorder.WriteHeader(code)
	l.wrote()
}

func (l leaver) Write(b []byte) (int, error) {
	defer l.wrote()
	return l.ResponseRecorder.Write(b)
}

func (l leaver) Flush() {
	l.ResponseRecorder.Flush()
	l.wrote()
}

// TestEveryRouteKeepsOwnersApart tries every route that names an object with
// the keys of others, and holds that nothing changed.
func TestEveryRouteKeepsOwnersApart(t *testing.T) {
	w := newFixture(t, nil)
	mine := hold(t, w)
	deciders := map[engi.Owner]string{}
	for _, owner := range []engi.Owner{"ann", "bob"} {
		_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: owner, Scopes: []engi.Scope{engi.ScopeApprovals}})
		if err != nil {
			t.Fatal(err)
		}
		deciders[owner] = secret
	}
	named, owner := regexp.MustCompile(`\{(id|name)\}`), regexp.MustCompile(`\bann\b`) // which IDs may have in them
	tried := 0
	for _, route := range w.Handler.Routes() {
		pattern := route.Pattern
		if !named.MatchString(pattern) || route.Objects == rest.Shared || strings.Contains(pattern, "/v1/agents") {
			continue // agents are everybody's, but their runs are not
		}
		tried++
		user, other := w.User, w.Other
		if route.Access.Scope == engi.ScopeApprovals {
			user, other = deciders["ann"], deciders["bob"]
		}
		method, path, body := mine.requestFor(pattern)
		rec := askWithin(t, w, other, method, path, body)
		if rec.Code == http.StatusUpgradeRequired {
			continue // a terminal looks for its sandbox when it is one; see TestTerminals
		}
		if rec.Code != 404 {
			t.Errorf("%s as somebody else: status %d, want 404: %s", pattern, rec.Code, rec.Body)
		}
		var p v1.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Kind != v1.NotFound || owner.MatchString(p.Detail) {
			t.Errorf("%s as somebody else: %s", pattern, rec.Body)
		}
		// What never was looks the same.
		never := map[string]object{}
		for noun, o := range mine.more {
			never[noun] = object{o.id[:4] + strings.Repeat("a", len(o.id)-4), o.body}
		}
		strangers := map[string]string{"sandboxes": string(engi.NewTerminalID()), "sessions": string(engi.NewTerminalID())}
		links := map[string]string{"sandboxes": string(engi.NewTerminalLinkID()), "sessions": string(engi.NewTerminalLinkID())}
		absent := held{string(engi.NewExecutionID()), string(engi.NewSandboxID()), "p1", string(engi.NewSnapshotID()), string(engi.NewVolumeID()), string(engi.NewSecretID()), "key_x", string(engi.NewSessionID()), string(engi.NewRunID()), string(engi.NewEventID()), string(engi.NewFunctionRunID()), string(engi.NewDocumentID()), string(engi.NewOperationID()), string(engi.NewApprovalID()), "resp_" + string(engi.NewRunID())[4:], string(engi.NewWorkspaceID()), never, strangers, links}
		method, path, body = absent.requestFor(pattern)
		if rec := askWithin(t, w, user, method, path, body); rec.Code != 404 {
			t.Errorf("%s of what never was: status %d: %s", pattern, rec.Code, rec.Body)
		}
	}
	if tried < 40 {
		t.Errorf("only %d routes", tried)
	}
	for _, list := range slices.AppendSeq([]string{"executions", "sandboxes", "snapshots", "volumes", "secrets", "sessions", "runs", "docs", "modules", "events", "functions/runs", "operations", "approvals", "approvals/events", "sandboxes?state=stopped"}, maps.Keys(mine.more)) {
		items := read[v1.List[map[string]any]](t, ask(t, w, "GET", "/v1/"+list, "", "Authorization", "Bearer "+w.Other), 200).Items
		items = slices.DeleteFunc(items, func(x map[string]any) bool { return x["owner"] == "bob" }) // the event of the key
		if len(items) != 0 {
			t.Errorf("somebody else sees %s %v", list, items)
		}
	}
	// All is as it was.
	if got := ask(t, w, "GET", "/v1/sandboxes/"+mine.sandbox+"/files?path=/workspace/f", "").Body.String(); got != "mine" {
		t.Errorf("the file is %q", got)
	}
	if b := read[v1.Sandbox](t, ask(t, w, "GET", "/v1/sandboxes/"+mine.sandbox, ""), 200); b.State != v1.SandboxRunning {
		t.Errorf("the sandbox is %s", b.State)
	}
	if s := read[v1.Secret](t, ask(t, w, "GET", "/v1/secrets/"+mine.secret, ""), 200); s.Version != 1 {
		t.Errorf("the secret has version %d", s.Version)
	}
}

// TestEveryRouteAsksForItsScope tries every route with a key for each scope.
func TestEveryRouteAsksForItsScope(t *testing.T) {
	for _, scope := range engi.Scopes() {
		w := newFixture(t, nil)
		mine := hold(t, w)
		key, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{scope}})
		if err != nil {
			t.Fatal(err)
		}
		allowed := 0
		for _, route := range w.Handler.Routes() {
			pattern := route.Pattern
			if route.Access.Open || strings.HasPrefix(pattern, "DELETE /v1/sandboxes/{id}") || pattern == "GET /metrics" {
				continue // what follows needs them
			}
			method, path, body := mine.requestFor(pattern)
			rec := askSoon(t, w, secret, method, path, body)
			want := route.Allows(key)
			switch {
			case want != nil && rec.Code != 403:
				t.Errorf("scope %s: %s: status %d, want 403: %s", scope, pattern, rec.Code, rec.Body)
			case want != nil:
				if p := read[v1.Problem](t, rec, 403); p.Remedy == "" || !strings.Contains(p.Remedy, "scope") && !strings.Contains(p.Remedy, "admin") {
					t.Errorf("scope %s: %s: remedy %q", scope, pattern, p.Remedy)
				}
			case rec.Code == 403:
				t.Errorf("scope %s: %s: %s", scope, pattern, rec.Body)
			default:
				allowed++
			}
			// A link gives a browser what the key may do already, and git asks with a body.
			if scope == engi.ScopeRead && want == nil && method != "GET" && path != "/v1/dashboard/links" && !strings.HasSuffix(path, "/git-upload-pack") {
				t.Errorf("%s may be used by who only reads", pattern)
			}
		}
		if allowed < 4 {
			t.Errorf("scope %s allows %d routes only", scope, allowed)
		}
	}
}

// TestOpenRoutes holds that strangers get to pages and probes only.
func TestOpenRoutes(t *testing.T) {
	for _, route := range newFixture(t, nil).Handler.Routes() {
		if route.Access.Open && (!strings.HasPrefix(route.Pattern, "GET /") || strings.Contains(route.Pattern, "/v1/")) {
			t.Errorf("%s is open to everybody", route.Pattern)
		}
	}
}

func TestScopesOfKeys(t *testing.T) {
	w := newFixture(t, nil)
	root := []string{"Authorization", "Bearer " + w.Admin}
	k := read[v1.Key](t, ask(t, w, "POST", "/v1/keys", `{"owner":"ann","scopes":["volumes","read","volumes"]}`, root...), 201)
	if !slices.Equal(k.Scopes, []string{"read", "volumes"}) {
		t.Errorf("scopes %v", k.Scopes)
	}
	as := []string{"Authorization", "Bearer " + k.Secret}
	read[v1.Volume](t, ask(t, w, "POST", "/v1/volumes", `{"name":"x"}`, as...), 201)
	read[v1.List[v1.Sandbox]](t, ask(t, w, "GET", "/v1/sandboxes", "", as...), 200)
	if p := refused(t, ask(t, w, "POST", "/v1/sandboxes", `{}`, as...), 403, engi.Denied); !strings.Contains(p.Remedy, "scope sandboxes") {
		t.Errorf("remedy %q", p.Remedy)
	}
	refused(t, ask(t, w, "POST", "/v1/keys", `{"scopes":["volume"]}`, root...), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", "/v1/keys", `{"admin":true,"scopes":["read"]}`, root...), 400, engi.Invalid)

	// Keys that have ended open nothing, whatever they were for.
	old, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Expires: time.Now().Add(30 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(old.Expires))
	if p := refused(t, ask(t, w, "GET", "/v1/sandboxes", "", "Authorization", "Bearer "+secret), 401, engi.Anonymous); !strings.Contains(p.Detail, "expired") {
		t.Errorf("expired %s: %s", old.ID, p.Detail)
	}
	ask(t, w, "DELETE", "/v1/keys/"+k.ID, "", root...)
	if p := refused(t, ask(t, w, "GET", "/v1/volumes", "", as...), 401, engi.Anonymous); !strings.Contains(p.Detail, "revoked") {
		t.Errorf("revoked: %s", p.Detail)
	}
}

// TestTemplatesOfOthers lists and gets templates, of which one is ann's.
func TestTemplatesOfOthers(t *testing.T) {
	w := newFixture(t, nil)
	w.Templates.Add(engi.Template{Name: "hers", Digest: "sha256:4e25", Owner: "ann", Root: "/", Built: time.Now()})
	for secret, want := range map[string]bool{w.User: true, w.Other: false, w.Admin: true} {
		auth := []string{"Authorization", "Bearer " + secret}
		seen := slices.ContainsFunc(read[v1.List[v1.Template]](t, ask(t, w, "GET", "/v1/templates", "", auth...), 200).Items, func(x v1.Template) bool { return x.Name == "hers" })
		code := ask(t, w, "GET", "/v1/templates/hers", "", auth...).Code
		if seen != want || (code == 200) != want || !want && code != 404 {
			t.Errorf("listed %v, status %d; want %v", seen, code, want)
		}
	}
}
