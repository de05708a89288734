package node

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// An apiClient asks a node with a key.
type apiClient struct {
	t        *testing.T
	url, key string
}

func (a apiClient) ask(method, path, body string) (int, string) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(a.t.Context()), method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// make creates something and returns the field of the answer.
func (a apiClient) make(path, body, field string) string {
	a.t.Helper()
	code, answer := a.ask("POST", path, body)
	var m map[string]any
	if err := json.Unmarshal([]byte(answer), &m); err != nil || code/100 != 2 {
		a.t.Fatalf("POST %s: %d %s", path, code, answer)
	}
	s, ok := m[field].(string)
	if !ok || s == "" {
		a.t.Fatalf("POST %s: no %s in %s", path, field, answer)
	}
	return s
}

// objectFields returns the fields and parameters of requests whose name says that
// they name an object, as "operation field". What is an object comes from the paths,
// so a new resource brings its own.
func objectFields(t *testing.T, openapi string) []string {
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ In, Name string }
			RequestBody struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal([]byte(openapi), &doc); err != nil {
		t.Fatal(err)
	}
	nouns := []string{"conversation", "cursor", "document", "owner", "subject"}
	for path := range doc.Paths {
		if parts := strings.Split(path, "/"); len(parts) > 2 && parts[1] == "v1" {
			nouns = append(nouns, strings.TrimSuffix(strings.Replace(parts[2], "sandboxes", "sandbox", 1), "s"))
		}
	}
	found := map[string]bool{}
	add := func(operation, name, path string) {
		if slices.Contains(nouns, strings.TrimSuffix(name, "_id")) {
			found[operation+" "+path] = true
		}
	}
	var walk func(operation, path string, schema map[string]any, depth int)
	walk = func(operation, path string, schema map[string]any, depth int) {
		if ref, ok := schema["$ref"].(string); ok {
			schema = doc.Components.Schemas[ref[strings.LastIndex(ref, "/")+1:]]
		}
		if depth > 8 {
			return
		}
		for _, key := range []string{"anyOf", "oneOf", "allOf"} {
			some, _ := schema[key].([]any)
			for _, s := range some {
				walk(operation, path, s.(map[string]any), depth+1)
			}
		}
		if items, ok := schema["items"].(map[string]any); ok {
			walk(operation, path, items, depth+1)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, s := range properties {
			at := strings.TrimPrefix(path+"."+name, ".")
			add(operation, name, at)
			walk(operation, at, s.(map[string]any), depth+1)
		}
	}
	for _, operations := range doc.Paths {
		for _, o := range operations {
			for _, p := range o.Parameters {
				if p.In == "query" {
					add(o.OperationID, p.Name, "?"+p.Name)
				}
			}
			for _, c := range o.RequestBody.Content {
				walk(o.OperationID, "", c.Schema, 0)
			}
		}
	}
	var all []string
	for f := range found {
		all = append(all, f)
	}
	slices.Sort(all)
	return all
}

// TestEveryFieldKeepsOwnersApart names ann's objects in every field of every
// request that names one, as bob and as ann herself.
func TestEveryFieldKeepsOwnersApart(t *testing.T) {
	c, o := fakeNode(t)
	c.Sessions.Enabled = true
	c.Webhooks.Private = []string{"127.0.0.0/8"}
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
	owner := func(name string) apiClient {
		return apiClient{t, admin.url, admin.make("/v1/keys", fmt.Sprintf(`{"name":%q,"owner":%q}`, name, name), "secret")}
	}
	ann, bob := owner("ann"), owner("bob")
	t.Cleanup(func() { // volumes stay mounted when a node ends
		for _, path := range []string{"/v1/sessions", "/v1/sandboxes", "/v1/volumes"} {
			var list struct{ Items []struct{ ID string } }
			_, answer := admin.ask("GET", path, "")
			if err := json.Unmarshal([]byte(answer), &list); err != nil {
				t.Error(err)
			}
			for _, x := range list.Items {
				admin.ask("DELETE", path+"/"+x.ID, "")
			}
		}
	})
	hers := annsTemplate(t, n)
	ids := map[string]string{
		"HERS":     hers,
		"SANDBOX":  ann.make("/v1/sandboxes", `{}`, "id"),
		"VOLUME":   ann.make("/v1/volumes", `{"name":"v"}`, "id"),
		"SECRET":   ann.make("/v1/secrets", `{"name":"s","value":"hunter2hunter2"}`, "name"),
		"SESSION":  ann.make("/v1/sessions", `{}`, "id"),
		"CHAT":     ann.make("/v1/chat", `{"message":"x"}`, "conversation_id"),
		"EVENT":    ann.make("/v1/events", `{"name":"engi/debug/echo","data":{}}`, "id"),
		"RUNS":     ann.make("/v1/executions", `{"language":"bash","code":":"}`, "id"),
		"HOOK-ann": ann.make("/v1/webhooks", `{"url":"http://127.0.0.1:1/","types":["never"]}`, "id"),
		"HOOK-bob": bob.make("/v1/webhooks", `{"url":"http://127.0.0.1:1/","types":["never"]}`, "id"),
		"SBX-bob":  bob.make("/v1/sandboxes", `{}`, "id"),
		"SES-bob":  bob.make("/v1/sessions", `{}`, "id"),
		"EVT-bob":  bob.make("/v1/events", `{"name":"engi/debug/echo","data":{}}`, "id"),
	}
	ids["SBX-ann"], ids["SES-ann"], ids["EVT-ann"] = ids["SANDBOX"], ids["SESSION"], ids["EVENT"]
	ids["RESPONSE"] = ann.make("/v1/responses", `{"model":"`+n.Agents().Agents()[0].Name+`","input":"x"}`, "id")
	ids["SNAPSHOT"] = ann.make("/v1/sandboxes/"+ids["SANDBOX"]+"/snapshot", "", "id")

	first := func(path string) string {
		_, answer := ann.ask("GET", path, "")
		var list struct{ Items []struct{ ID string } }
		if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list.Items) == 0 {
			t.Fatalf("%s: %v %s", path, err, answer)
		}
		return list.Items[0].ID
	}
	ids["SECID"], ids["KEYID"] = first("/v1/secrets"), first("/v1/keys")
	ids["DOCID"] = ann.make("/v1/docs", `{"title":"x","text":"y"}`, "id")
	ids["SSHID"] = ann.make("/v1/ssh-keys", `{"public_key":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUjdSPwLd7uFGXbsMNEZJ8nZ2pVqVn0n6h5xk9yq3mQ"}`, "id")

	app := app.Record{App: engi.App{ID: engi.NewAppID(), Owner: "ann", Name: "shop", State: engi.AppStopped, Created: time.Now().UTC(), Used: time.Now().UTC()}}
	if err := store.Apps(n.db).Put(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	ids["APPID"] = string(app.ID)
	ids["WSPID"] = ann.make("/v1/workspaces", `{"name":"desk","template":"host"}`, "id")
	ids["WFLID"] = ann.make("/v1/workflows", `{"workspace":"desk"}`, "id")

	const program = `"language":"bash","code":":"`
	grants := func(method, path, rest string) string {
		return method + " " + path + ` {"network":{"mode":"restricted","allow":["x.test"],"grants":[{"secret":"SECRET","hosts":["x.test"],"env":"A"}]}` + rest + `}`
	}
	// What is asked: the answer is not_found for bob, and anything else for ann;
	// or with a GET, a list in which bob finds nothing.
	asked := map[string]string{
		"create-execution template": `POST /v1/executions {` + program + `,"template":"HERS"}`,
		"create-sandbox template":   `POST /v1/sandboxes {"template":"HERS"}`,
		"create-session template":   `POST /v1/sessions {"template":"HERS"}`,
		"create-app template":       `POST /v1/apps {"template":"HERS"}`,
		"create-app workspace":      `POST /v1/apps {"workspace":"WSPID","directory":"web","start":"true","port":3000}`,
		"create-session workspace":  `POST /v1/sessions {"workspace":"WSPID"}`,
		"create-workspace template": `POST /v1/workspaces {"template":"HERS"}`,
		"list-workspaces ?cursor":   `GET /v1/workspaces?cursor=WSPID`,
		"create-workflow workspace": `POST /v1/workflows {"workspace":"WSPID"}`,
		"list-workflows ?cursor":    `GET /v1/workflows?cursor=WFLID`,
		"list-workflows ?workspace": `GET /v1/workflows?workspace=WSPID`,
		"create-session git.secret": `POST /v1/sessions {"template":"host","git":{"url":"https://x.test/o/r","secret":"SECRET"}}`,
		"create-sandbox snapshot":   `POST /v1/sandboxes {"snapshot":"SNAPSHOT"}`,

		"create-sandbox volumes.volume": `POST /v1/sandboxes {"volumes":[{"volume":"VOLUME","path":"/v"}]}`,

		"create-execution network.grants.secret": grants("POST", "/v1/executions", ","+program),
		"create-sandbox network.grants.secret":   grants("POST", "/v1/sandboxes", ""),
		"create-session network.grants.secret":   grants("POST", "/v1/sessions", `,"template":"host"`),
		"update-sandbox network.grants.secret":   grants("PATCH", "/v1/sandboxes/SBX-ME", ""),
		"set-network grants.secret":              `PUT /v1/sandboxes/SBX-ME/network {"mode":"restricted","allow":["x.test"],"grants":[{"secret":"SECRET","hosts":["x.test"],"env":"A"}]}`,

		"chat conversation_id":      `POST /v1/chat {"message":"x","conversation_id":"CHAT"}`,
		"start-run conversation_id": `POST /v1/agents/AGENT/runs {"input":"x","conversation_id":"CHAT"}`,
		"chat sandbox_id":           `POST /v1/chat {"message":"x","sandbox_id":"SANDBOX"}`,
		"start-run sandbox_id":      `POST /v1/agents/AGENT/runs {"input":"x","sandbox_id":"SANDBOX"}`,
		"chat session":              `POST /v1/chat {"message":"x","session":"SESSION"}`,
		"start-run session":         `POST /v1/agents/AGENT/runs {"input":"x","session":"SESSION"}`,
		"chat workspace":            `POST /v1/chat {"message":"x","workspace":"WSPID"}`,
		"start-run workspace":       `POST /v1/agents/AGENT/runs {"input":"x","workspace":"WSPID"}`,
		"run-script session":        `POST /v1/scripts {"language":"javascript","code":"1","session":"SESSION"}`,
		"redeliver-event event_id":  `POST /v1/webhooks/HOOK-ME/deliveries {"event_id":"EVENT"}`,

		"list-snapshots ?sandbox":   `GET /v1/snapshots?sandbox=SANDBOX`,
		"search-documents ?session": `GET /v1/docs/search?query=x&session=SESSION`,
		"list-events ?subject":      `GET /v1/events?subject=SANDBOX`,
		"list-function-runs ?event": `GET /v1/functions/runs?event=EVENT`,
		"list-executions ?cursor":   `GET /v1/executions?cursor=RUNS`,
		"list-apps ?cursor":         `GET /v1/apps?cursor=APPID`,
		"list-documents ?cursor":    `GET /v1/docs?cursor=DOCID`,
		"list-keys ?cursor":         `GET /v1/keys?cursor=KEYID`,
		"list-secrets ?cursor":      `GET /v1/secrets?cursor=SECID`,
		"list-sessions ?cursor":     `GET /v1/sessions?cursor=SESSION`,
		"list-snapshots ?cursor":    `GET /v1/snapshots?cursor=SNAPSHOT`,
		"list-ssh-keys ?cursor":     `GET /v1/ssh-keys?cursor=SSHID`,
		"list-volumes ?cursor":      `GET /v1/volumes?cursor=VOLUME`,
		"list-webhooks ?cursor":     `GET /v1/webhooks?cursor=HOOK-ann`,
		"list-sandboxes ?template":  `GET /v1/sandboxes?template=HERS`,
		"list-events ?owner":        `GET /v1/events?owner=ann`,
	}
	// These name no object of an owner's.
	shared := map[string]string{
		"create-workflow template": "templates of workflows are everybody's",
		"chat agent":               "agents are everybody's", "chat model": "models are everybody's", "start-run model": "models are everybody's",
		"act-on-ui agent": "agents are everybody's", "act-on-ui model": "models are everybody's", "edit-app model": "models are everybody's", "edit-app judge.model": "models are everybody's",
		"list-function-runs ?function": "functions are everybody's", "replay-event function": "functions are everybody's",
		"add-document package": "a name in the owner's documents", "search-documents ?package": "a name in the owner's documents",
		"list-workflow-events ?cursor": "a number", "list-workspace-revisions ?cursor": "a number", "change-workspace collaborators.owner": "who may work in it, if there is somebody of that name", "change-workspace share.owner": "the same", "create-workspace collaborators.owner": "the same",
		"put-workspace-file ?message": "a text", "remove-workspace-file ?message": "a text", "write-workspace-files message": "a text", "move-workspace-file message": "a text",
		"list-app-revisions ?cursor": "a number", "create-app network.grants.secret": "the app's sandbox looks for it, as in create-sandbox", "apply-to-app message": "a text",
		"apply-to-app snapshot": "yes or no", "branch-app snapshot": "yes or no, of the app's own", "roll-back-app snapshot": "yes or no, of the app's own",
		"list-sandboxes ?cursor": "made by the server; it holds a time",
		"create-webhook secret":  "a value", "update-webhook secret": "a value",
		"create-key owner":           "owners make keys for themselves only; see below",
		"save-modules modules.usage": "a text", "chat message": "a text", "create-session git.push.message": "a text", "push-session message": "a text",
	}
	// These need what a node with fake sandboxes does not have: an egress gateway, a script engine.
	elsewhere := map[string]string{
		"create-execution network.grants.secret": "TestLifeOfASecret", "create-sandbox network.grants.secret": "TestLifeOfASecret",
		"create-session network.grants.secret": "TestLifeOfASecret", "update-sandbox network.grants.secret": "TestLifeOfASecret",
		"set-network grants.secret": "TestLifeOfASecret", "run-script session": "TestSessionsOfScripts", "create-session git.secret": "TestLifeOfASecret",
	}
	code, openapi := admin.ask("GET", "/openapi.json", "")
	fields := objectFields(t, openapi)
	if code != 200 || len(fields) < 20 {
		t.Fatalf("%d, %d fields", code, len(fields))
	}
	for f := range asked {
		if !slices.Contains(fields, f) {
			t.Errorf("there is no field %q", f)
		}
	}
	// The description does not have bodies of other servers' formats.
	for format, request := range map[string]string{
		"create-chat-completion": `POST /v1/chat/completions {"model":"AGENT","messages":[{"role":"user","content":"x"}],`,
		"create-response":        `POST /v1/responses {"model":"AGENT","input":"x",`,
		"create-message":         `POST /v1/messages {"model":"AGENT","max_tokens":9,"messages":[{"role":"user","content":"x"}],`,
	} {
		asked[format+" sandbox"] = request + `"sandbox":"SANDBOX"}`
		asked[format+" session"] = request + `"session":"SESSION"}`
		asked[format+" workspace"] = request + `"workspace":"WSPID"}`
		fields = append(fields, format+" sandbox", format+" session", format+" workspace")
	}
	asked["create-response previous_response_id"] = `POST /v1/responses {"model":"AGENT","input":"x","previous_response_id":"RESPONSE"}`
	fields = append(fields, "create-response previous_response_id")
	for _, f := range fields {
		request, ok := asked[f]
		if why := shared[f]; !ok && why == "" {
			t.Errorf("nobody tries the objects of others in %q", f)
		}
		if !ok {
			continue
		}
		for name, who := range map[string]apiClient{"ann": ann, "bob": bob} {
			method, rest, _ := strings.Cut(request, " ")
			path, body, _ := strings.Cut(strings.NewReplacer("-ME", "-"+name, "AGENT", n.Agents().Agents()[0].Name).Replace(rest), " ")
			for placeholder, id := range ids {
				path, body = strings.ReplaceAll(path, placeholder, id), strings.ReplaceAll(body, placeholder, id)
			}
			code, answer := who.ask(method, path, body)
			var session struct{ ID string }
			if strings.HasPrefix(f, "create-session ") && json.Unmarshal([]byte(answer), &session) == nil && session.ID != "" {
				// It looks for what it needs when it starts a sandbox.
				code, answer = who.ask("POST", "/v1/sessions/"+session.ID+"/run_code", `{"code":"1"}`)
			}
			if code == http.StatusNotImplemented && elsewhere[f] != "" {
				continue
			}
			found := !strings.Contains(answer, `"kind":"not_found"`)
			if strings.HasSuffix(f, "?cursor") { // they are refused like those of nobody
				found = code != http.StatusBadRequest
				if name == "ann" && code != http.StatusOK {
					t.Errorf("%s: ann's %s: %d %s", f, path, code, answer)
				}
			}
			if method == "GET" && code == 200 {
				var list struct{ Items, Results, Hits []json.RawMessage }
				if err := json.Unmarshal([]byte(answer), &list); err != nil {
					t.Fatal(err)
				}
				found = len(list.Items)+len(list.Results)+len(list.Hits) > 0
			}
			if name == "bob" && found {
				t.Errorf("%s: bob's %s %s finds ann's: %d %s", f, method, path, code, answer)
			}
			if name == "ann" && !found && method != "GET" {
				t.Errorf("%s: ann's %s %s does not find hers: %d %s", f, method, path, code, answer)
			}
		}
	}
	if code, answer := bob.ask("POST", "/v1/keys", `{"owner":"ann"}`); code/100 == 2 {
		t.Errorf("bob's key for ann: %d %s", code, answer)
	}
}

// annsTemplate builds a template of ann's and returns its name.
func annsTemplate(t *testing.T, n *Node) string {
	t.Helper()
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "bin/sh", Mode: 0o755, Size: 1},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "etc/passwd", Mode: 0o644},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(templatesDir(n.config), "sources")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "root.tar"), root.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.templates.Build(t.Context(), "low", []byte("base: tar:root.tar\n"), nil); err != nil {
		t.Fatal(err)
	}
	x, err := n.templates.BuildSteps(t.Context(), engi.BuildSpec{Name: "hers", Owner: "ann", FromTemplate: "low", Steps: []engi.BuildStep{{Type: engi.StepEnv, Args: []string{"A", "1"}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 6000 { // the fleet notices
		if _, err := n.templates.Get(t.Context(), x.Name); err == nil {
			return x.Name
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the template is not there")
	return ""
}
