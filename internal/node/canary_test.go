package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/node/config"
)

// Canaries are values that must not be told to anybody, by what they are.
type canaries map[string]string

// plant returns a fresh value.
func (c canaries) plant(what string) string {
	sum := sha256.Sum256([]byte(what))
	c[what] = "canary" + hex.EncodeToString(sum[:10])
	return c[what]
}

// in returns which of the values text has, as they are or encoded.
func (c canaries) in(text []byte) (found []string) {
	for what, value := range c {
		forms := []string{value, hex.EncodeToString([]byte(value))}
		for skip := range 3 { // wherever base64 begins
			whole := (len(value) - skip) / 3 * 3
			forms = append(forms, base64.StdEncoding.EncodeToString([]byte(value[skip:skip+whole])))
		}
		for _, form := range forms {
			if bytes.Contains(text, []byte(form)) {
				found = append(found, what)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// hiddenFields are the fields of requests whose values nobody is told. Those of a
// network policy are refused by a node without an egress gateway, which must not repeat them.
var hiddenFields = regexp.MustCompile(`(^|\.)(env|value|password|secret|headers)$`)

// hidden are requests with a value in each of these fields, by operation and field.
// A field without a request fails the test, unless it has nothing to hide.
var hidden = map[string]string{
	"create-execution env":                     `POST /v1/executions {"language":"bash","code":":","env":{"T":"CANARY"}}`,
	"create-execution network.headers.headers": `POST /v1/executions {"language":"bash","code":":","network":{"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}}`,
	"create-execution network.proxy.password":  `POST /v1/executions {"language":"bash","code":":","network":{"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}}`,
	"create-sandbox env":                       `POST /v1/sandboxes {"env":{"T":"CANARY"}}`,
	"create-sandbox network.headers.headers":   `POST /v1/sandboxes {"network":{"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}}`,
	"create-sandbox network.proxy.password":    `POST /v1/sandboxes {"network":{"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}}`,
	"create-session env":                       `POST /v1/sessions {"env":{"T":"CANARY"}}`,
	"create-session network.headers.headers":   `POST /v1/sessions {"network":{"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}}`,
	"create-session network.proxy.password":    `POST /v1/sessions {"network":{"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}}`,
	"create-app env":                           `POST /v1/apps {"env":{"T":"CANARY"}}`,
	"create-app network.headers.headers":       `POST /v1/apps {"network":{"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}}`,
	"create-app network.proxy.password":        `POST /v1/apps {"network":{"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}}`,
	// Their servers would be built; TestRecordsAreSealed has what is recorded of them.
	"create-workspace services.env":          `POST /v1/workspaces {"services":[{"type":"redis","env":{"T":"CANARY"},"needs":["nobody"]}]}`,
	"add-service env":                        `POST /v1/workspaces/WORKSPACE/services {"type":"redis","env":{"T":"CANARY"},"needs":["nobody"]}`,
	"set-network headers.headers":            `PUT /v1/sandboxes/SANDBOX/network {"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}`,
	"set-network proxy.password":             `PUT /v1/sandboxes/SANDBOX/network {"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}`,
	"update-sandbox network.headers.headers": `PATCH /v1/sandboxes/SANDBOX {"network":{"mode":"restricted","allow":["x.test"],"headers":[{"hosts":["x.test"],"headers":{"X-T":"CANARY"}}]}}`,
	"update-sandbox network.proxy.password":  `PATCH /v1/sandboxes/SANDBOX {"network":{"mode":"restricted","allow":["x.test"],"proxy":{"address":"x.test:1080","user":"u","password":"CANARY"}}}`,
	"start-process env":                      `POST /v1/sandboxes/SANDBOX/processes {"args":["sleep","60"],"detach":true,"env":{"T":"CANARY"}}`,
	"create-sandbox-terminal env":            `POST /v1/sandboxes/SANDBOX/terminals {"args":["/bin/sleep","60"],"env":{"T":"CANARY"}}`,
	"create-session-terminal env":            `POST /v1/sessions/SESSION/terminals {"args":["/bin/sleep","60"],"env":{"T":"CANARY"}}`,
	"run-code env":                           `POST /v1/sessions/SESSION/run_code {"code":"1","language":"bash","env":{"T":"CANARY"}}`,
	"create-secret value":                    `POST /v1/secrets {"name":"first","value":"CANARY"}`,
	"update-secret value":                    `PUT /v1/secrets/first {"value":"CANARY"}`,
	"create-webhook secret":                  `POST /v1/webhooks {"url":"http://127.0.0.1:1/","secret":"whsec_BASE64"}`,
	"update-webhook secret":                  `PATCH /v1/webhooks/WEBHOOK {"secret":"whsec_BASE64"}`,
}

// nothingToHide says why fields with such names are shown.
var nothingToHide = map[string]string{
	"network.grants.env": "the name of a variable", "network.grants.secret": "the name of a secret", "grants.env": "the name of a variable", "grants.secret": "the name of a secret", "git.secret": "the name of a secret",
	"network.headers": "has the field headers", "headers": "has the field headers",
}

// TestNobodyIsToldSecrets puts a value into every field that has something to hide,
// into what the operator configures, and into requests that fail. Then it asks every
// route of every surface, as an administrator, as its owner and as another one: no
// answer, no event, no delivery, no line of the log and no file of the node has one.
func TestNobodyIsToldSecrets(t *testing.T) {
	planted := canaries{}
	control := canaries{} // what is told, to see that this test would notice
	var log, delivered lockedBuffer
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest) // and says what it was sent
		fmt.Fprintf(w, `{"error":{"message":"wrong key: %s"}}`, r.Header.Get("Authorization"))
	}))
	defer model.Close()
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Fprint(&delivered, r.Header)
		_, _ = io.Copy(&delivered, r.Body)
	}))
	defer receiver.Close()
	t.Setenv("CANARY_MODEL", planted.plant("the key of a provider"))
	t.Setenv("CANARY_SECRET", planted.plant("a secret of the operator's"))
	t.Setenv("CANARY_HOOK", "whsec_"+base64.StdEncoding.EncodeToString([]byte(planted.plant("the secret of the operator's webhook")+"12345678")))

	c, o := fakeNode(t)
	o.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.Sessions.Enabled, c.Sessions.Template = true, "host"
	c.Webhooks.Private = []string{"127.0.0.0/8"}
	c.Webhooks.To = map[string]config.Webhook{"audit": {URL: receiver.URL, SecretEnv: "CANARY_HOOK"}}
	c.Secrets.Environment = []string{"operators=CANARY_SECRET"}
	c.Providers = map[string]config.Provider{"openai": {URL: model.URL, KeyEnv: "CANARY_MODEL"}}
	c.Models.Default = "openai:x"
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, n)
	admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
	planted["the administrator's key"] = n.AdminKey()
	owner := func(name string) apiClient {
		key := admin.make("/v1/keys", fmt.Sprintf(`{"name":%q,"owner":%q}`, name, name), "secret")
		planted["the key of "+name] = key
		return apiClient{t, admin.url, key}
	}
	ann, bob := owner("ann"), owner("bob")
	told := func(who, what string, answer string) {
		t.Helper()
		if found := planted.in([]byte(answer)); len(found) > 0 {
			at := strings.Index(answer, planted[found[0]])
			t.Errorf("%s is told %v by %s: %.200s", who, found, what, answer[max(0, at-100):])
		}
	}

	names := map[string]string{
		"sandboxes": ann.make("/v1/sandboxes", `{"metadata":{"m":"`+control.plant("metadata")+`"}}`, "id"), "sessions": ann.make("/v1/sessions", `{}`, "id"), "executions": ann.make("/v1/executions", `{"language":"bash","code":":"}`, "id"),
		"secrets": ann.make("/v1/secrets", `{"name":"first","value":"`+planted.plant("ann's secret")+`"}`, "name"), "volumes": ann.make("/v1/volumes", `{"name":"v"}`, "id"),
		"webhooks": ann.make("/v1/webhooks", `{"url":"`+receiver.URL+`"}`, "id"), "agents": n.Agents().Agents()[0].Name,
		"workspaces": ann.make("/v1/workspaces", `{"template":"host"}`, "id"),
	}
	t.Cleanup(func() { // before the node ends: volumes stay mounted
		for _, kind := range []string{"sessions", "sandboxes", "volumes"} {
			var list struct{ Items []struct{ ID string } }
			_, answer := admin.ask("GET", "/v1/"+kind, "")
			if err := json.Unmarshal([]byte(answer), &list); err != nil {
				t.Error(err)
			}
			for _, x := range list.Items {
				admin.ask("DELETE", "/v1/"+kind+"/"+x.ID, "")
			}
		}
		stop()
		seen := false
		for _, dir := range []string{c.DataDir, c.CacheDir} {
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() || d.Name() == "admin.key" {
					return err
				}
				b, err := os.ReadFile(path)
				told("whoever reads the disk", path, string(b))
				seen = seen || control.in(b) != nil
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		told("whoever reads the log", "a line", log.String())
		told("a webhook", "a delivery", delivered.String())
		if !seen || !strings.Contains(log.String(), "/v1/chat") || !strings.Contains(delivered.String(), names["sandboxes"]) {
			t.Error("the disk, the log or what was delivered has not what it should")
		}
	})

	// All fields that hide something.
	_, openapi := admin.ask("GET", "/openapi.json", "")
	for _, f := range requestFields(t, openapi, hiddenFields) {
		_, field, _ := strings.Cut(f, " ")
		if hidden[f] == "" && nothingToHide[field] == "" {
			t.Errorf("nobody tries what %q hides", f)
		}
	}
	replace := strings.NewReplacer("SANDBOX", names["sandboxes"], "SESSION", names["sessions"], "WEBHOOK", names["webhooks"], "WORKSPACE", names["workspaces"])
	for f, request := range hidden {
		value := planted.plant(f)
		method, rest, _ := strings.Cut(replace.Replace(request), " ")
		path, body, _ := strings.Cut(rest, " ")
		good := strings.NewReplacer("CANARY", value, "BASE64", base64.StdEncoding.EncodeToString([]byte(value+"123456789"))).Replace(body)
		for what, body := range map[string]string{ // and what is wrong with it
			"": good, "another member": strings.TrimSuffix(good, "}") + `,"unknown":1}`, "no end": strings.TrimSuffix(good, "}"),
			"a number": strings.Replace(good, `"`+value+`"`, `1`+hex.EncodeToString([]byte(value)), 1), "a list": strings.Replace(good, `"`+value+`"`, `["`+value+`"]`, 1),
			"a long value": strings.Replace(good, value, strings.Repeat(value, 10_000), 1), "a control character": strings.Replace(good, value, value+`\u0000`, 1),
			"a member": strings.Replace(good, `"`+value+`"`, `{"`+value+`":"`+value+`"}`, 1),
		} {
			if what != "" && body == good {
				continue
			}
			_, answer := ann.ask(method, path, body)
			if strings.HasSuffix(f, "-webhook secret") && what == "" {
				continue // its owner is told once
			}
			told("ann", f+" with "+what, answer)
		}
	}
	for f, request := range map[string]string{ // of E2B's
		"E2B's secret": `POST /secrets {"name":"e2b","value":"CANARY"}`, "E2B's variable": `POST /sandboxes {"templateID":"host","envVars":{"T":"CANARY"}}`,
		"E2B's webhook": `POST /events/webhooks {"name":"x","url":"` + receiver.URL + `","events":["sandbox.lifecycle.created"],"signatureSecret":"CANARY"}`,
	} {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		_, answer := ann.ask(method, path, strings.ReplaceAll(body, "CANARY", planted.plant(f)))
		told("ann", f, answer)
	}
	_, answer := ann.ask("POST", "/v1/chat", `{"message":"x"}`)
	told("ann", "a provider's error", answer)
	if !strings.Contains(answer, "wrong key") {
		t.Errorf("the provider was not asked: %s", answer)
	}

	var asked, noticed atomic.Int64
	ask := func(who, key, body string, r stallRoute) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		q := httptest.NewRequestWithContext(ctx, r.method, "http://localhost"+r.path, strings.NewReader(body))
		for line := range strings.SplitSeq(strings.ReplaceAll(r.head, admin.key, key), "\r\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				q.Header.Set(name, value)
			}
		}
		rec := httptest.NewRecorder()
		func() {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler { // as servers do
					panic(p)
				}
			}()
			n.handler.ServeHTTP(rec, q)
		}()
		told(who, r.method+" "+r.path, fmt.Sprint(rec.Header())+rec.Body.String())
		asked.Add(1)
		if control.in(rec.Body.Bytes()) != nil {
			noticed.Add(1)
		}
	}
	var all sync.WaitGroup
	for _, r := range stallRoutes(t, n, names, strings.TrimPrefix(names["sandboxes"], "sbx_"), "", "") {
		for who, key := range map[string]string{"an administrator": admin.key, "ann": ann.key, "bob": bob.key, "nobody": "none"} {
			for _, body := range []string{"", "{}", `{"x":`} {
				if r.method == "GET" && body != "" || r.method == "DELETE" && who != "nobody" || strings.HasPrefix(r.path, "/v1/shutdown") {
					continue
				}
				all.Go(func() { ask(who, key, body, r) })
			}
		}
		all.Wait()
	}
	if asked.Load() < 1500 || noticed.Load() < 4 {
		t.Errorf("asked %d times, and told %d times what may be told", asked.Load(), noticed.Load())
	}
}

// requestFields are the fields of requests whose path matches, as "operation path".
func requestFields(t *testing.T, openapi string, match *regexp.Regexp) (all []string) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string
			RequestBody struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal([]byte(openapi), &doc); err != nil {
		t.Fatal(err)
	}
	walker := schemaWalker{doc.Components.Schemas}
	var walk func(operation, path string, schema map[string]any, depth int)
	walk = func(operation, path string, schema map[string]any, depth int) {
		if schema = walker.resolve(schema); depth > 8 {
			return
		}
		if match.MatchString(path) {
			all = append(all, operation+" "+path)
		}
		if items, ok := schema["items"].(map[string]any); ok {
			walk(operation, path, items, depth+1)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, s := range properties {
			walk(operation, strings.TrimPrefix(path+"."+name, "."), s.(map[string]any), depth+1)
		}
	}
	for _, operations := range doc.Paths {
		for _, o := range operations {
			for _, c := range o.RequestBody.Content {
				walk(o.OperationID, "", c.Schema, 0)
			}
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) < 10 {
		t.Errorf("%d fields", len(all))
	}
	return all
}

// A lockedBuffer may be written to at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
