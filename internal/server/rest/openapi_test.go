package rest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

var update = flag.Bool("update", false, "write golden files anew")

const golden = "testdata/openapi.json"

func TestOpenAPIIsAsAgreed(t *testing.T) {
	var got bytes.Buffer
	if err := json.Indent(&got, ask(t, newFixture(t, nil), "GET", "/openapi.json", "").Body.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); d != "" {
		t.Errorf("the surface has changed; if that is meant, run 'go test ./internal/server/rest -update' (-want +got):\n%s", d)
	}
}

// A contract checks answers against the description.
type contract struct {
	t    *testing.T
	spec map[string]any
	used map[string]bool // "METHOD path status" that was checked
}

func newContract(t *testing.T, w *apitest.Fixture) *contract {
	c := &contract{t: t, used: map[string]bool{}}
	if err := json.Unmarshal(ask(t, w, "GET", "/openapi.json", "").Body.Bytes(), &c.spec); err != nil {
		t.Fatal(err)
	}
	if servers, ok := c.spec["servers"].([]any); !ok || len(servers) != 1 || servers[0].(map[string]any)["url"] != "/" {
		t.Errorf("servers %v: clients that are made of the description need one", c.spec["servers"])
	}
	if c.spec["openapi"] != "3.1.0" {
		t.Errorf("openapi %v", c.spec["openapi"])
	}
	return c
}

// operation finds the description of method at path.
func (c *contract) operation(method, path string) (string, map[string]any) {
	path, _, _ = strings.Cut(path, "?")
	paths := c.spec["paths"].(map[string]any)
	for _, pattern := range slices.Sorted(maps.Keys(paths)) { // names come before parameters
		item := paths[pattern]
		form := regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(pattern), `[^/]+`)
		if op, ok := item.(map[string]any)[strings.ToLower(method)]; ok && regexp.MustCompile("^"+form+"$").MatchString(path) {
			return method + " " + pattern, op.(map[string]any)
		}
	}
	c.t.Fatalf("%s %s is not described", method, path)
	return "", nil
}

// check holds an answer to its description.
func (c *contract) check(method, path string, rec *httptest.ResponseRecorder) {
	c.t.Helper()
	name, op := c.operation(method, path)
	responses := op["responses"].(map[string]any)
	status := strconv.Itoa(rec.Code)
	resp, ok := responses[status].(map[string]any)
	if !ok {
		if rec.Code < 400 {
			c.t.Errorf("%s: status %s is not described", name, status)
			return
		}
		status = "default"
		resp = responses[status].(map[string]any)
	}
	for header := range section(resp, "headers") {
		if rec.Header().Get(header) == "" {
			c.t.Errorf("%s %s: no header %s", name, status, header)
		}
	}
	kind := rec.Header().Get("Content-Type")
	c.used[name+" "+status+" "+kind] = true
	content := section(resp, "content")
	if len(content) == 0 {
		if rec.Body.Len() > 0 {
			c.t.Errorf("%s %s: a body that is not described", name, status)
		}
		return
	}
	media, ok := content[kind].(map[string]any)
	if !ok {
		c.t.Errorf("%s %s: type %q is not described", name, status, kind)
		return
	}
	switch kind {
	case "application/octet-stream", "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/x-tar", "application/gzip", "application/zip", "application/x-asciicast", "image/png", "application/x-git-upload-pack-advertisement", "application/x-git-upload-pack-result", "application/x-git-receive-pack-advertisement", "application/x-git-receive-pack-result":
	case "application/x-ndjson":
		for sc := bufio.NewScanner(rec.Body); sc.Scan(); {
			c.value(name, media["schema"], sc.Bytes())
		}
	case "text/event-stream":
		for sc := bufio.NewScanner(rec.Body); sc.Scan(); {
			if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
				c.value(name, media["schema"], []byte(data))
			}
		}
	default:
		c.value(name, media["schema"], rec.Body.Bytes())
	}
}

func section(m map[string]any, name string) map[string]any {
	s, _ := m[name].(map[string]any)
	return s
}

func (c *contract) value(where string, schema any, body []byte) {
	c.t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		c.t.Errorf("%s: %v in %q", where, err, body)
		return
	}
	for _, fault := range c.match(schema.(map[string]any), v, "$") {
		c.t.Errorf("%s: %s", where, fault)
	}
}

// match is as much of JSON Schema as the description uses. An unknown keyword
// is a fault, so that nothing goes unchecked.
func (c *contract) match(schema map[string]any, v any, at string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, at+": "+fmt.Sprintf(format, args...)) }
	for _, keyword := range slices.Sorted(maps.Keys(schema)) {
		arg := schema[keyword]
		text, isText := v.(string)
		number, isNumber := v.(float64)
		object, isObject := v.(map[string]any)
		list, isList := v.([]any)
		switch keyword {
		case "description", "examples", "default", "contentEncoding":
			if keyword == "contentEncoding" && isText {
				if _, err := base64.StdEncoding.DecodeString(text); err != nil {
					fault("%v", err)
				}
			}
		case "$ref":
			name := strings.TrimPrefix(arg.(string), "#/components/schemas/")
			target, ok := section(section(c.spec, "components"), "schemas")[name].(map[string]any)
			if !ok {
				fault("no schema %q", name)
				continue
			}
			faults = append(faults, c.match(target, v, at)...)
		case "type":
			types, ok := arg.([]any)
			if !ok {
				types = []any{arg}
			}
			is := map[string]bool{
				"string": isText, "number": isNumber, "integer": isNumber && number == float64(int64(number)), "object": isObject, "array": isList,
				"boolean": v == true || v == false, "null": v == nil,
			}
			if !slices.ContainsFunc(types, func(name any) bool { return is[name.(string)] }) {
				fault("%v is not of type %v", v, arg)
			}
		case "enum":
			if !slices.Contains(arg.([]any), v) {
				fault("%v is not one of %v", v, arg)
			}
		case "pattern":
			if isText && !regexp.MustCompile(arg.(string)).MatchString(text) {
				fault("%q does not match %s", text, arg)
			}
		case "format":
			if _, err := time.Parse(time.RFC3339, text); arg == "date-time" && isText && (err != nil || !strings.HasSuffix(text, "Z")) {
				fault("%q is not a time in UTC", text)
			}
		case "minimum":
			if isNumber && number < arg.(float64) {
				fault("%v is less than %v", v, arg)
			}
		case "maximum":
			if isNumber && number > arg.(float64) {
				fault("%v is more than %v", v, arg)
			}
		case "minLength":
			if isText && len(text) < int(arg.(float64)) {
				fault("%q is too short", v)
			}
		case "maxLength":
			if isText && len(text) > int(arg.(float64)) {
				fault("%q is too long", v)
			}
		case "minItems":
			if isList && len(list) < int(arg.(float64)) {
				fault("%d items are too few", len(list))
			}
		case "maxItems":
			if isList && len(list) > int(arg.(float64)) {
				fault("%d items are too many", len(list))
			}
		case "oneOf":
			hits := 0
			for _, one := range arg.([]any) {
				if len(c.match(one.(map[string]any), v, at)) == 0 {
					hits++
				}
			}
			if hits != 1 {
				fault("%v matches %d of the alternatives", v, hits)
			}
		case "items":
			for i, item := range list {
				faults = append(faults, c.match(arg.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		case "properties":
			for name, value := range object {
				if p, ok := arg.(map[string]any)[name]; ok {
					faults = append(faults, c.match(p.(map[string]any), value, at+"."+name)...)
				} else if schema["additionalProperties"] == nil {
					fault("%q is not described", name) // readers may ignore it, but we must not forget it
				}
			}
		case "additionalProperties":
			for name, value := range object {
				if _, known := section(schema, "properties")[name]; known {
					continue
				}
				if sub, ok := arg.(map[string]any); ok {
					faults = append(faults, c.match(sub, value, at+"."+name)...)
				} else if arg == false {
					fault("%q is not allowed", name)
				}
			}
		case "required":
			for _, name := range arg.([]any) {
				if _, ok := object[name.(string)]; isObject && !ok {
					fault("%q is missing", name)
				}
			}
		default:
			fault("this test does not know the keyword %q", keyword)
		}
	}
	return faults
}

// TestAnswersAreAsDescribed asks for everything that is described and holds
// each answer to the description.
func TestAnswersAreAsDescribed(t *testing.T) {
	w := newFixture(t, nil)
	c := newContract(t, w)
	do := func(method, path, body string, header ...string) *httptest.ResponseRecorder {
		t.Helper()
		rec := ask(t, w, method, path, body, append([]string{"Authorization", "Bearer " + w.Admin}, header...)...)
		copied := *rec
		copied.Body = bytes.NewBuffer(bytes.Clone(rec.Body.Bytes()))
		c.check(method, path, &copied)
		return rec
	}
	const sse, ndjson = "text/event-stream", "application/x-ndjson"
	const x = "/v1/executions"

	rich := `{"language":"python","code":"echo a; put \"\\xff\"; puterr \"e\"; save f.bin data; exit 3","env":{"A":"b"},"memory":"1GiB","timeout":"1m"}`
	id := read[v1.Execution](t, do("POST", x, rich), 200).ID
	do("POST", x, rich, "Accept", sse)
	do("POST", x, rich, "Accept", ndjson)
	do("POST", x, `{"language":"bash","code":"sleep 1ms","timeout":"1ns"}`)
	live := read[v1.Execution](t, do("POST", x, `{"language":"bash","code":"sleep 1m","async":true}`), 202)
	do("GET", x, "")
	do("GET", x+"?limit=1&state=done", "")
	do("GET", x+"/"+id, "")
	do("GET", x+"/"+live.ID, "")
	do("GET", x+"/"+id+"/events", "")
	do("GET", x+"/"+id+"/events", "", "Accept", sse)
	do("GET", x+"/"+id+"/artifacts/f.bin", "")
	do("GET", "/v1/sandboxes", "")
	do("GET", "/v1/sandboxes/"+live.SandboxID, "")
	do("DELETE", "/v1/sandboxes/"+live.SandboxID, "")
	do("DELETE", x+"/"+live.ID, "")
	do("GET", "/v1/templates", "")
	do("GET", "/v1/templates/base", "")
	for _, form := range []string{"application/json", sse, ndjson} {
		do("POST", "/v1/templates", `{"name":"mine","definition":"good"}`, "Accept", form)
		do("POST", "/v1/templates", `{"name":"mine","definition":"bad"}`, "Accept", form)
	}
	build := "/v1/operations/" + read[v1.Operation](t, do("POST", "/v1/templates", `{"name":"mine","definition":"good","async":true}`), 202).ID
	do("GET", build+"?wait=10s", "")
	do("GET", build+"/events", "", "Accept", sse)
	do("GET", build+"/events", "", "Accept", ndjson)
	do("DELETE", build, "")
	do("GET", "/v1/operations", "")
	do("GET", "/v1/operations?state=failed&limit=1", "")
	do("DELETE", "/v1/templates/mine", "")
	do("POST", "/v1/templates/prune", "")
	do("GET", "/v1/pools", "")
	do("GET", "/v1/node", "")
	if found := read[v1.List[v1.Check]](t, do("GET", "/v1/doctor", ""), 200); len(found.Items) != 1 || found.Items[0].Fix == "" {
		t.Errorf("the doctor says %+v", found)
	}
	key := read[v1.Key](t, do("POST", "/v1/keys", `{"name":"x","expires_in":"30d"}`), 201)
	do("DELETE", "/v1/keys/"+key.ID, "")
	do("GET", "/v1/keys", "")

	do("GET", "/healthz", "")
	do("GET", "/readyz", "")
	w.Pools.SetCold(true)
	do("GET", "/readyz", "")

	insideSandboxes(t, w, c, do)
	do("POST", "/v1/scripts", `{"language":"javascript","code":"6*7"}`)
	do("GET", "/v1/scripts/apis", "")

	session := "/v1/sessions/" + read[v1.Session](t, do("POST", "/v1/sessions", `{"name":"s","network":{"mode":"none"}}`), 201).ID
	do("GET", "/v1/sessions", "")
	do("GET", session, "")
	for _, form := range []string{"application/json", sse, ndjson} {
		do("POST", session+"/run_code", `{"code":"6*7"}`, "Accept", form)
		do("POST", session+"/run_code", `{"code":"throw 1"}`, "Accept", form)
	}
	for _, act := range []string{"attach", "suspend", "hibernate", "resume", "detach", "release"} {
		do("POST", session+"/"+act, "")
	}
	for _, action := range []string{"demo-counter", "add", "tools", "stats", "bad", "fail"} {
		do("POST", session+"/page/actions", `{"action":"`+action+`","data":{"a":1}}`)
	}
	do("POST", session+"/page/actions", `{"action":"add"}`, "Accept", sse)
	do("POST", session+"/page/actions", `{"action":"add"}`, "Accept", ndjson)
	page := read[v1.Page](t, do("GET", session+"/page", "", "Accept", "application/json"), 200)
	do("GET", session+"/page", "")
	for _, form := range []string{sse, ndjson} {
		// The page, or all that has happened to it.
		for after, want := range map[string]int{"0": 1, "1": 26} {
			updates := func(rec *httptest.ResponseRecorder) int { return strings.Count(rec.Body.String(), `"type"`) }
			rec := askUntil(t, w, func(rec *httptest.ResponseRecorder) bool { return updates(rec) >= want }, w.Admin, "GET", session+"/page/stream?after="+after, "", "Accept", form)
			if n := updates(rec); n < want {
				t.Errorf("%d updates of a page, want %d: %s", n, want, rec.Body)
			}
			c.check("GET", session+"/page/stream", rec)
		}
	}
	do("POST", session+"/page/restore", fmt.Sprintf(`{"seq":%d}`, page.Seq))
	do("POST", session+"/page/cancel", "")
	do("DELETE", session, "")
	answersOfApps(t, w, c, do)
	answersOfWorkspaces(t, do)
	answersOfWorkflows(t, do)
	do("POST", "/v1/sessions", `{"name":"s2"}`)
	do("POST", "/v1/sessions", `{"name":"s3","git":{"url":"https://git.example/o/r","push":{}}}`)
	do("POST", "/v1/sessions/s3/git/push", "")
	do("POST", "/v1/sessions", `{"name":"s4","persistence":"workspace"}`)
	do("POST", "/v1/sessions/s4/save", "")
	do("GET", "/v1/dependencies", "")

	do("GET", "/v1/agents", "")
	do("GET", "/v1/mcp-servers", "")
	for _, form := range []string{"application/json", sse, ndjson} {
		do("POST", "/v1/agents/echo/runs", `{"input":"hello"}`, "Accept", form)
		do("POST", "/v1/chat", `{"message":"hello"}`, "Accept", form)
	}
	do("POST", "/v1/chat/completions", `{"model":"echo","messages":[{"role":"user","content":"hello"}]}`)
	do("POST", "/v1/messages", `{"model":"echo","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`)
	do("POST", "/v1/messages/count_tokens", `{"model":"echo","messages":[]}`)
	answered := "/v1/responses/" + read[struct{ ID string }](t, do("POST", "/v1/responses", `{"model":"echo","input":"hello","background":true}`), 200).ID
	do("GET", answered, "")
	do("POST", answered+"/cancel", "")
	do("DELETE", answered, "")
	do("POST", "/v1/embeddings", `{"model":"demo:lengths","input":"hello"}`)
	do("GET", "/v1/models", "")
	do("GET", "/v1/models/echo", "")
	run := "/v1/runs/" + read[v1.List[v1.AgentRun]](t, do("GET", "/v1/runs", ""), 200).Items[0].ID
	do("GET", run, "")
	do("GET", run+"/messages", "")
	do("GET", run+"/events", "", "Accept", sse)
	do("GET", run+"/events", "", "Accept", ndjson)
	do("GET", run+"/results/c1", "")
	do("DELETE", run, "")

	document := "/v1/docs/" + read[v1.Document](t, do("POST", "/v1/docs", `{"package":"@acme/sdk","text":"# SDK\n\n## Issues\n\nMake one."}`), 201).ID
	do("GET", "/v1/docs", "")
	do("GET", document, "")
	do("GET", "/v1/docs/packages", "")
	do("POST", "/v1/sessions/s2/modules", `{"modules":[{"path":"lib/a.ts","description":"makes issues","exports":["f"],"usage":"import { f } from './lib/a.ts'","scope":"user"}]}`)
	do("GET", "/v1/docs/search?query=issues&mode=hybrid&limit=3&session=s2", "")
	do("GET", "/v1/sessions/s2/modules", "")
	do("GET", "/v1/modules", "")
	do("POST", document+"/refresh", "")
	do("POST", "/v1/docs/refresh", "")
	do("DELETE", document, "")

	do("GET", "/v1/mirror", "")
	for _, form := range []string{sse, ndjson} {
		do("POST", "/v1/mirror/warm", `{"files":[{"name":"requirements.txt","content":"six==1.16.0"}]}`, "Accept", form)
	}
	do("DELETE", "/v1/mirror", "")

	sent := read[v1.Event](t, do("POST", "/v1/events", `{"name":"engi/debug/echo","data":{"a":1}}`), 202)
	do("POST", "/v1/events", `{"name":"engi/debug/fail"}`)
	do("GET", "/v1/events", "")
	for _, form := range []string{sse, ndjson} {
		do("GET", "/v1/events?after=0&limit=3", "", "Accept", form)
	}
	do("GET", "/v1/events/"+sent.ID, "")
	do("POST", "/v1/events/"+sent.ID+"/replay", "")
	hook := "/v1/webhooks/" + read[v1.Webhook](t, do("POST", "/v1/webhooks", `{"url":"http://127.0.0.1:1/","name":"n","types":["never"]}`), 201).ID
	do("GET", "/v1/webhooks", "")
	do("GET", hook, "")
	do("PATCH", hook, `{"secret":"","name":"m"}`)
	do("POST", hook+"/deliveries", `{"event_id":"`+sent.ID+`"}`)
	do("GET", hook+"/deliveries", "")
	do("DELETE", hook, "")
	do("GET", "/v1/ssh-server", "")
	for noun, o := range simple(w) {
		one := "/v1/" + noun + "/" + read[struct{ ID string }](t, do("POST", "/v1/"+noun, o.body), 201).ID
		do("GET", "/v1/"+noun, "")
		do("GET", one, "")
		do("DELETE", one, "")
	}
	waits, _ := w.Hold("ann", "/v1/x")
	held := "/v1/approvals/" + string(waits.ID)
	do("GET", "/v1/approvals?state=pending", "")
	do("GET", held, "")
	do("GET", "/v1/approvals/key", "")
	do("POST", "/v1/dashboard/links", "")
	do("GET", "/v1/approvals/events", "")
	for _, form := range []string{sse, ndjson} {
		do("GET", "/v1/approvals/events?after=0&limit=1", "", "Accept", form)
	}
	root := []string{"Authorization", "Bearer " + w.Admin}
	do("POST", held+"/decision", `{"allow":true,"remember":{"for":"1h"}}`, root...)
	do("DELETE", held+"/remembered", "", root...)
	do("GET", "/v1/functions", "")
	do("GET", "/v1/functions/runs?state=failed", "")
	do("GET", "/v1/functions/runs/"+sent.RunIDs[0]+"?wait=1s", "")
	do("DELETE", "/v1/functions/runs/"+sent.RunIDs[0], "")

	// Every operation also refuses in the way that is described.
	do("POST", x, `{"language":"x"}`)
	w.Executions.SetCapacity(0)
	do("POST", x, rich)
	for path, item := range c.spec["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			path := regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(path, "x")
			do(strings.ToUpper(method), path, "", "Authorization", "")
			do(strings.ToUpper(method), path+"?nonsense=1", "")
		}
	}
	do("GET", x+"/"+string(engi.NewExecutionID()), "")

	for path, item := range c.spec["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for status, resp := range op.(map[string]any)["responses"].(map[string]any) {
				for kind := range section(resp.(map[string]any), "content") {
					if name := strings.ToUpper(method) + " " + path + " " + status + " " + kind; !c.used[name] {
						t.Errorf("%s is described, but nothing here answers so", name)
					}
				}
			}
		}
	}
}

// answersOfApps asks for everything about apps.
func answersOfApps(t *testing.T, w *apitest.Fixture, c *contract, do func(method, path, body string, header ...string) *httptest.ResponseRecorder) {
	app := "/v1/apps/" + read[v1.App](t, do("POST", "/v1/apps", `{"metadata":{"a":"b"},"env":{"A":"b"},"network":{"mode":"none"}}`), 201).ID
	do("POST", "/v1/apps", `{"template":"broken"}`)
	do("POST", app+"/apply", `{"text":"<file path=\"a.js\">a</file>","message":"m","keep":true}`)
	for _, form := range []string{"text/event-stream", "application/x-ndjson"} {
		do("POST", app+"/apply", newApp, "Accept", form, "Content-Type", "text/plain")
		do("POST", app+"/apply", "fail", "Accept", form, "Content-Type", "text/plain")
		do("POST", app+"/edit", `{"prompt":"fail","model":"m","max_rounds":1,"max_cost":1,"element":{"selector":"h1","text":"t","html":"<h1>","path":"a.js","line":1},"attempts":2,"judge":{"model":"m","criteria":"c"},"keep_attempts":true}`, "Accept", form)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost"+app+"/stream?after=0", nil)
		r.Header.Set("Authorization", "Bearer "+w.Admin)
		r.Header.Set("Accept", form)
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		c.check("GET", app+"/stream", rec)
	}
	do("POST", app+"/edit", `{"prompt":"<file path=\"a.js\">b</file>"}`)
	do("POST", app+"/apply", `{"text":"wait"}`)
	do("GET", app, "")
	do("POST", app+"/cancel", "")
	do("POST", app+"/rollback", "")
	do("POST", app+"/snapshot", "")
	do("POST", app+"/check", "")
	do("POST", app+"/screenshot", `{"path":"/","width":390,"height":844}`)
	do("POST", app+"/publish", `{"private":true}`)
	do("POST", app+"/publish/link", `{"ttl":"1m"}`)
	do("POST", app+"/link", `{"ttl":"1m"}`)
	do("GET", app, "")
	branch := read[v1.App](t, do("POST", app+"/branch", `{"revision":2}`), 201)
	do("GET", "/v1/apps/"+branch.ID+"/revisions", "")
	do("POST", app+"/unpublish", "")
	do("GET", app+"/revisions", "")
	do("GET", app+"/diff?from=1&to=2", "")
	do("GET", app+"/files/list?path=src&extensions=.jsx&content=true", "")
	do("GET", app+"/files?path=package.json", "")
	do("GET", app+"/files?path=package.json", "", "Range", "bytes=1-3")
	do("GET", app+"/manifest", "")
	do("GET", app+"/zip", "")
	do("GET", app+"/logs", "")
	do("GET", app+"/status", "")
	do("POST", app+"/stop", "")
	do("POST", app+"/open", "")
	do("DELETE", app, "")
}

// answersOfWorkspaces asks for everything about workspaces.
func answersOfWorkspaces(t *testing.T, do func(method, path, body string, header ...string) *httptest.ResponseRecorder) {
	b := "/v1/workspaces/" + read[v1.Workspace](t, do("POST", "/v1/workspaces", `{"name":"shop","services":[{"type":"postgres"},{"type":"nginx","name":"web","version":"broken","needs":["postgres"],"env":{"A":"b"}}],
		"files":[{"path":"README.md","content":"# Shop\n"}],"collaborators":[{"owner":"bob","role":"viewer"}],"metadata":{"a":"b"}}`), 201).ID
	do("GET", "/v1/workspaces", "")
	do("PATCH", b, `{"preview":{"type":"static","root":"dist"}}`)
	do("POST", b+"/link", `{"ttl":"1m"}`)
	do("PATCH", b, `{"collaborators":[{"owner":"bob","role":"editor"}],"metadata":{}}`)
	do("POST", b+"/start", "")
	do("GET", b, "")
	do("PUT", b+"/files?path=run.sh&mode=0755&message=m", "echo\n", "Content-Type", "application/octet-stream")
	do("POST", b+"/files", `{"files":[{"path":"a.bin","content_base64":"/w=="},{"path":"run.sh","removed":true}],"message":"m","base":2}`)
	do("DELETE", b+"/files?path=a.bin", "")
	do("POST", b+"/files/move", `{"from":"README.md","to":"docs/README.md","message":"m","base":4}`)
	do("POST", b+"/files/move", `{"from":"docs","to":"doc"}`)
	do("POST", b+"/files/move", `{"from":"doc/README.md","to":"README.md"}`)
	do("GET", b+"/files/list", "")
	do("GET", b+"/files?path=README.md", "")
	do("GET", b+"/files?path=README.md", "", "Range", "bytes=1-3")
	do("GET", b+"/revisions", "")
	do("GET", b+"/diff?from=1&to=2", "")
	do("POST", b+"/restore", `{"revision":1,"path":"README.md"}`)
	do("GET", b+"/blame?path=README.md", "")
	do("GET", b+"/git/info/refs?service=git-receive-pack", "")
	_, head, _ := strings.Cut(do("GET", b+"/git/info/refs?service=git-upload-pack", "").Body.String(), "\n0000")
	for _, want := range []string{head[4:44], strings.Repeat("a", 40)} {
		do("POST", b+"/git/git-upload-pack", "0032want "+want+"\n00000009done\n", "Content-Type", "application/x-git-upload-pack-request")
	}
	do("POST", b+"/git/git-upload-pack", "0032", "Content-Type", "application/x-git-upload-pack-request")
	for _, body := range []string{"0000", "0032"} {
		do("POST", b+"/git/git-receive-pack", body, "Content-Type", "application/x-git-receive-pack-request")
	}
	do("GET", b+"/services", "")
	do("POST", b+"/services", `{"type":"redis","version":"7","exposed":true}`)
	do("POST", b+"/services/web/restart", "")
	do("GET", b+"/services/postgres/connection", "")
	do("GET", b+"/services/postgres/logs", "")
	do("POST", b+"/query", `{"text":"select null as n","args":[1,"a",null],"max_rows":1,"max_bytes":"1KiB","timeout":"1s"}`)
	do("POST", b+"/query", `{"text":"fail"}`)
	do("POST", b+"/explain", `{"text":"select 42 as n"}`)
	do("GET", b+"/tables", "")
	do("GET", b+"/tables/public.orders", "")
	do("POST", b+"/services", `{"type":"mongodb"}`)
	do("POST", b+"/documents", `{"collection":"orders","filter":{"total":7},"sort":{"total":1},"skip":1,"max_rows":1,"max_bytes":"1KiB","timeout":"1s"}`)
	do("POST", b+"/documents", `{"pipeline":[{"$fail":{}}]}`)
	do("POST", b+"/services/redis/command", `{"args":["SET","a","b"]}`)
	do("DELETE", b+"/services/redis", "")
	do("POST", b+"/stop", "")
	do("DELETE", b, "")
}

// answersOfWorkflows asks for everything about workflows.
func answersOfWorkflows(t *testing.T, do func(method, path, body string, header ...string) *httptest.ResponseRecorder) {
	b := "/v1/workflows/" + newWorkflow(t, do).ID
	do("GET", "/v1/workflow-templates", "")
	do("GET", "/v1/workflows?workspace=flows&stage=creation", "")
	do("GET", b+"/feedback", "")
	do("POST", b+"/submit", `{"notes":"done"}`)
	do("POST", b+"/review", `{"decision":"approve","revision":1}`)
	do("POST", b+"/review", `{"decision":"send_back","grade":"C","feedback":"no","suggestions":["shorter"]}`)
	do("GET", b+"?wait=1s&stage=revision", "")
	do("GET", b+"/feedback", "")
	do("GET", b+"/history?limit=2", "")
	do("POST", b+"/escalate", `{"reason":"late"}`)
	do("POST", b+"/cancel", "")
	do("DELETE", b, "")
}

// newWorkflow returns a workflow in a workspace with a file.
func newWorkflow(t *testing.T, do func(method, path, body string, header ...string) *httptest.ResponseRecorder) v1.Workflow {
	t.Helper()
	space := read[v1.Workspace](t, do("POST", "/v1/workspaces", `{"name":"flows","files":[{"path":"README.md","content":"# Shop\n"}]}`), 201)
	return read[v1.Workflow](t, do("POST", "/v1/workflows", `{"workspace":"`+space.ID+`","task":"a page","limits":{"review":"1h"},"metadata":{"a":[1]}}`), 201)
}

// TestExamplesAreTrue sends every example of a request, and holds those of
// answers to their schemas.
func TestExamplesAreTrue(t *testing.T) {
	w := newFixture(t, nil)
	c := newContract(t, w)
	found := 0
	box, err := w.Sandboxes.Create(t.Context(), engi.SandboxSpec{})
	if err != nil {
		t.Fatal(err)
	}
	session := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201)
	read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"shop"}`, "Authorization", "Bearer "+w.Admin), 201)
	for path, item := range c.spec["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for name, example := range section(section(section(section(op.(map[string]any), "requestBody"), "content"), "application/json"), "examples") {
				found++
				value, err := json.Marshal(section(example.(map[string]any), "value"))
				if err != nil {
					t.Fatal(err)
				}
				schema := section(section(section(op.(map[string]any), "requestBody"), "content"), "application/json")["schema"]
				c.value(path+" "+name, schema, value)
				id := string(box.ID)
				if strings.HasPrefix(path, "/v1/sessions/") {
					id = session.ID
				}
				if strings.HasPrefix(path, "/v1/apps/") {
					id = read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{}`), 201).ID
				}
				if strings.HasPrefix(path, "/v1/workspaces/") {
					id = read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"services":[{"type":"postgres"},{"type":"redis","name":"cache"},{"type":"mongodb"}],"files":[{"path":"notes.md","content":""}]}`), 201).ID
				}
				if strings.HasPrefix(path, "/v1/workflows/") {
					admin := func(method, path, body string, _ ...string) *httptest.ResponseRecorder {
						return ask(t, w, method, path, body, "Authorization", "Bearer "+w.Admin)
					}
					id = newWorkflow(t, admin).ID
					read[v1.Workflow](t, admin("POST", "/v1/workflows/"+id+"/submit", ""), 200)
				}
				if strings.HasPrefix(path, "/v1/approvals/") {
					waits, _ := w.Hold("ann", "/v1/x")
					id = string(waits.ID)
				}
				if strings.HasPrefix(path, "/v1/runs/") {
					id = read[v1.AgentRun](t, ask(t, w, "POST", "/v1/agents/echo/runs", `{"input":"wait"}`), 202).ID
				}
				path := strings.NewReplacer("{id}", id, "{call}", "c1", "{service}", "cache").Replace(path)
				if rec := ask(t, w, strings.ToUpper(method), path, string(value), "Authorization", "Bearer "+w.Admin); rec.Code >= 300 {
					t.Errorf("%s, example %q: %s", path, name, rec.Body)
				}
			}
			for _, resp := range op.(map[string]any)["responses"].(map[string]any) {
				for kind, media := range section(resp.(map[string]any), "content") {
					if example, ok := media.(map[string]any)["example"]; ok {
						found++
						value, _ := json.Marshal(example)
						c.value(path+" "+kind, media.(map[string]any)["schema"], value)
					}
				}
			}
		}
	}
	for name, schema := range section(section(c.spec, "components"), "schemas") {
		for field, p := range section(schema.(map[string]any), "properties") {
			examples, _ := p.(map[string]any)["examples"].([]any)
			for _, e := range examples {
				found++
				for _, fault := range c.match(p.(map[string]any), e, name+"."+field) {
					t.Error(fault)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d examples", found)
	}
}

// insideSandboxes asks for everything about sandboxes.
func insideSandboxes(t *testing.T, w *apitest.Fixture, c *contract, do func(method, path, body string, header ...string) *httptest.ResponseRecorder) {
	const sse, ndjson, plain = "text/event-stream", "application/x-ndjson", "application/json"
	id := read[v1.Sandbox](t, do("POST", "/v1/sandboxes", `{"timeout":"1h","idle_timeout":"10m","metadata":{"a":"b"},"network":{"mode":"none"},"ports":{"private":true}}`, "Idempotency-Key", "k"), 201).ID
	b := "/v1/sandboxes/" + id
	do("GET", "/v1/sandboxes?owned=true&state=running,paused&metadata=a%3Db&template=base&since=2020-01-01T00:00:00Z&oldest=true&limit=5", "")
	do("PATCH", b, `{"timeout":"30m","on_timeout":"hibernate","idle_timeout":"0s","metadata":{"c":"d"}}`)
	do("POST", b+"/extend", `{"timeout":"2h"}`)
	do("GET", b+"/metrics", "")
	do("GET", b+"/ports", "")
	do("GET", b+"/ports/8080", "")
	do("POST", b+"/ports/8080/link", `{"ttl":"1m"}`)
	do("PUT", b+"/network", `{"mode":"open","deny":["203.0.113.0/24"],"grants":[{"secret":"s","hosts":["h.example.com"]}],"headers":[{"host":"h.example.com","headers":{"A":"b"}}],
		"proxy":{"address":"p.example.com:1080","user":"u","password":"hidden"},"group":"g","name":"n","limits":{"up":"1MiB","connections":5}}`)
	do("GET", b+"/network", "")
	if err := w.Networks.Add(t.Context(), engi.SandboxID(id), engi.NetworkRecord{Kind: engi.NetworkLookup, Host: "a.example.com", Reason: "no rule allows it"},
		engi.NetworkRecord{Kind: engi.NetworkClose, Protocol: "tcp", Address: netip.MustParseAddrPort("192.0.2.7:443"), Allowed: true, Up: 7, Down: 8}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{sse, ndjson, plain} {
		do("GET", b+"/network/events?after=0&limit=10", "", "Accept", form)
	}

	for _, form := range []string{sse, ndjson, plain} {
		do("POST", b+"/processes", `{"command":"echo a; printf '\\377'; echo e >&2; exit 3"}`, "Accept", form)
	}
	p := read[v1.Process](t, do("POST", b+"/processes", `{"args":["cat"],"stdin":true,"detach":true,"tag":"cat"}`), 201)
	do("GET", b+"/processes", "")
	do("GET", b+"/processes/cat", "")
	do("POST", b+"/processes/cat/input", "hello\n", "Content-Type", "application/octet-stream")
	do("POST", b+"/processes/cat/close-input", "")
	do("GET", b+"/processes/"+p.ID+"/events", "")
	do("GET", b+"/processes/"+p.ID+"/events?offset=2", "", "Accept", sse)
	do("POST", b+"/processes", `{"args":["sleep","60"],"terminal":{"cols":80,"rows":24},"detach":true,"tag":"tty"}`)
	do("POST", b+"/processes/tty/resize", `{"cols":100,"rows":30}`)
	do("GET", b+"/processes/tty/terminal", "")
	do("POST", b+"/processes/tty/signal", `{"signal":"SIGKILL"}`)

	inSession := read[v1.Session](t, do("POST", "/v1/sessions", ""), 201)
	for _, place := range []string{b, "/v1/sessions/" + inSession.ID} {
		x := read[v1.Terminal](t, do("POST", place+"/terminals", `{"args":["/bin/sh"],"dir":"/workspace"}`), 201)
		do("GET", place+"/terminals", "")
		one := place + "/terminals/" + x.ID
		do("GET", one, "")
		do("GET", one+"/attach", "")
		do("GET", one+"/screen", "")
		do("GET", one+"/recording", "")
		l := read[v1.TerminalLink](t, do("POST", one+"/links", ""), 201)
		do("GET", one+"/links", "")
		do("DELETE", one+"/links/"+l.ID, "")
		do("DELETE", one, "")
	}
	do("GET", "/shared/terminal", "")

	do("PUT", b+"/files?path=/workspace/a.txt&mode=0600", "hello", "Content-Type", "application/octet-stream")
	do("GET", b+"/files?path=/workspace/a.txt", "")
	do("GET", b+"/files?path=/workspace/a.txt", "", "Range", "bytes=1-3")
	do("GET", b+"/files?path=/workspace/a.txt", "", "TE", "trailers")
	do("GET", b+"/files/stat?path=/workspace/a.txt", "")
	do("POST", b+"/files/mkdir", `{"path":"/workspace/d/e"}`)
	do("POST", b+"/files/move", `{"from":"/workspace/a.txt","to":"/workspace/d/b.txt"}`)
	do("GET", b+"/files/list?path=/workspace&depth=3", "")
	for _, f := range []string{"tar", "tar.gz", "zip"} {
		archive := do("GET", b+"/files/archive?path=/workspace/d&format="+f, "").Body.String()
		if f != "zip" {
			do("PUT", b+"/files/archive?path=/workspace/"+f, archive, "Content-Type", "application/x-tar")
		}
	}
	for _, form := range []string{sse, ndjson} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost"+b+"/files/watch?path=/workspace", nil)
		r.Header.Set("Authorization", "Bearer "+w.Admin)
		r.Header.Set("Accept", form)
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		c.check("GET", b+"/files/watch", rec)
	}
	do("DELETE", b+"/files?path=/workspace/d", "")

	snap := read[v1.Snapshot](t, do("POST", b+"/snapshot", `{"name":"s","ttl":"1d"}`), 201)
	do("GET", "/v1/snapshots?sandbox="+id, "")
	do("GET", "/v1/snapshots/s", "")
	do("POST", "/v1/sandboxes", `{"snapshot":"s"}`)
	do("DELETE", "/v1/snapshots/"+snap.ID, "")
	do("POST", b+"/fork", `{"count":3}`)
	do("POST", b+"/pause", "")
	do("POST", b+"/resume", "")
	do("POST", b+"/hibernate", `{"disk_only":true}`)
	do("POST", b+"/resume", `{"timeout":"1m"}`)

	do("POST", "/v1/volumes", `{"name":"data","capacity":"1GiB"}`)
	do("GET", "/v1/volumes", "")
	do("GET", "/v1/volumes/data", "")
	v := "/v1/volumes/data/files"
	do("PUT", v+"?path=/x/a.txt", "hello", "Content-Type", "application/octet-stream")
	do("GET", v+"?path=/x/a.txt", "")
	do("GET", v+"?path=/x/a.txt", "", "Range", "bytes=-2")
	do("GET", v+"/stat?path=/x/a.txt", "")
	do("POST", v+"/mkdir", `{"path":"/d"}`)
	do("GET", v+"/list?path=/&depth=2", "")
	do("DELETE", v+"?path=/x", "")
	do("DELETE", "/v1/volumes/data", "")

	do("POST", "/v1/secrets", `{"name":"token","value":"hunter2","metadata":{"a":"b"}}`)
	do("PUT", "/v1/secrets/token", `{"value":"hunter3"}`)
	do("GET", "/v1/secrets", "")
	do("GET", "/v1/secrets/token", "")
	do("DELETE", "/v1/secrets/token", "")
	do("GET", "/v1/usage", "")
	do("DELETE", b, "")
}
