package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/internal/store"
)

// e2bOperations says for each operation of E2B's control plane which route of REST
// does the same. An operation without an entry fails the test.
var e2bOperations = map[string]string{
	"POST /sandboxes":                           "POST /v1/sandboxes",
	"POST /v2/sandboxes":                        "POST /v1/sandboxes",
	"GET /sandboxes":                            "GET /v1/sandboxes",
	"GET /v2/sandboxes":                         "GET /v1/sandboxes",
	"GET /sandboxes/metrics":                    "GET /v1/sandboxes/{id}",
	"GET /sandboxes/{id}":                       "GET /v1/sandboxes/{id}",
	"DELETE /sandboxes/{id}":                    "DELETE /v1/sandboxes/{id}",
	"POST /sandboxes/{id}/resume":               "POST /v1/sandboxes/{id}/resume",
	"POST /sandboxes/{id}/connect":              "POST /v1/sandboxes/{id}/resume",
	"POST /v2/sandboxes/{id}/connect":           "POST /v1/sandboxes/{id}/resume",
	"POST /sandboxes/{id}/timeout":              "PATCH /v1/sandboxes/{id}",
	"POST /sandboxes/{id}/refreshes":            "PATCH /v1/sandboxes/{id}",
	"POST /sandboxes/{id}/pause":                "POST /v1/sandboxes/{id}/hibernate",
	"POST /sandboxes/{id}/fork":                 "POST /v1/sandboxes/{id}/fork",
	"PUT /sandboxes/{id}/network":               "PUT /v1/sandboxes/{id}/network",
	"GET /sandboxes/{id}/metrics":               "GET /v1/sandboxes/{id}",
	"GET /v2/sandboxes/{id}/logs":               "GET /v1/sandboxes/{id}",
	"GET /sandboxes/{id}/logs":                  "GET /v1/sandboxes/{id}",
	"POST /sandboxes/{id}/snapshots":            "POST /v1/sandboxes/{id}/snapshot",
	"GET /snapshots":                            "GET /v1/snapshots",
	"POST /v3/templates":                        "POST /v1/templates",
	"POST /v2/templates/{id}/builds/{build}":    "POST /v1/templates",
	"GET /templates/{id}/builds/{build}/status": "GET /v1/templates",
	"GET /templates/{id}/builds/{build}/logs":   "GET /v1/templates",
	"GET /templates/{id}/files/{hash}":          "GET /v1/templates",
	"POST /templates/tags":                      "POST /v1/templates",
	"DELETE /templates/tags":                    "DELETE /v1/templates/{name}",
	"GET /templates/{id}":                       "GET /v1/templates/{name}",
	"DELETE /templates/{id}":                    "DELETE /v1/templates/{name}",
	"GET /templates/{id}/{what}":                "GET /v1/templates/{name}",
	"GET /v2/templates":                         "GET /v1/templates",
	"GET /templates":                            "GET /v1/templates",
	"PATCH /templates/{id}":                     "POST /v1/templates",
	"PATCH /v2/templates/{id}":                  "POST /v1/templates",
	"GET /teams":                                "GET /v1/node",
	"GET /default-templates":                    "GET /v1/templates",
	"POST /volumes":                             "POST /v1/volumes",
	"GET /volumes":                              "GET /v1/volumes",
	"GET /volumes/{id}":                         "GET /v1/volumes/{name}",
	"DELETE /volumes/{id}":                      "DELETE /v1/volumes/{name}",
	"POST /secrets":                             "POST /v1/secrets",
	"GET /secrets":                              "GET /v1/secrets",
	"GET /secrets/{id}":                         "GET /v1/secrets/{name}",
	"POST /secrets/{id}":                        "PUT /v1/secrets/{name}",
	"DELETE /secrets/{id}":                      "DELETE /v1/secrets/{name}",
	"GET /events/sandboxes":                     "GET /v1/events",
	"GET /events/sandboxes/{id}":                "GET /v1/events",
	"POST /events/webhooks":                     "POST /v1/webhooks",
	"GET /events/webhooks":                      "GET /v1/webhooks",
	"GET /events/webhooks/{id}":                 "GET /v1/webhooks/{id}",
	"PATCH /events/webhooks/{id}":               "PATCH /v1/webhooks/{id}",
	"DELETE /events/webhooks/{id}":              "DELETE /v1/webhooks/{id}",
}

// ownersBuild says that REST keeps builds of templates for administrators, and E2B's
// API has owners build behind the egress gateway, within their quota: the scope still counts.
func ownersBuild(route string) bool {
	return strings.HasSuffix(route, " /v1/templates") || strings.HasSuffix(route, " /v1/templates/{name}")
}

// toolOperations says for each tool of agents which route of REST does the same.
var toolOperations = map[string]string{
	"execute_code": "POST /v1/executions", "run_command": "POST /v1/sandboxes/{id}/processes",
	"read_file": "GET /v1/sandboxes/{id}/files", "list_files": "GET /v1/sandboxes/{id}/files/list", "glob": "GET /v1/sandboxes/{id}/files/list", "grep": "GET /v1/sandboxes/{id}/files",
	"write_file": "PUT /v1/sandboxes/{id}/files", "edit_file": "PUT /v1/sandboxes/{id}/files", "remove_file": "DELETE /v1/sandboxes/{id}/files",
	"search_docs": "GET /v1/docs/search", "read_result": "GET /v1/runs/{id}", "fetch_url": "POST /v1/agents/{name}/runs", "save_module": "POST /v1/sessions/{id}/modules",
	"create_app": "POST /v1/apps", "apply_to_app": "POST /v1/apps/{id}/apply", "read_app": "GET /v1/apps/{id}/files/list",
	"create_workspace": "POST /v1/workspaces", "read_workspace": "GET /v1/workspaces/{id}/files/list", "write_workspace": "POST /v1/workspaces/{id}/files", "move_workspace_file": "POST /v1/workspaces/{id}/files/move", "add_service": "POST /v1/workspaces/{id}/services",
	"enable_preview": "PATCH /v1/workspaces/{id}", "run_sql": "POST /v1/workspaces/{id}/query", "describe_tables": "GET /v1/workspaces/{id}/tables", "query_collection": "POST /v1/workspaces/{id}/documents", "run_redis_command": "POST /v1/workspaces/{id}/services/{service}/command",
	"submit_for_review": "POST /v1/workflows/{id}/submit", "submit_review": "POST /v1/workflows/{id}/review", "get_review_feedback": "GET /v1/workflows/{id}/feedback",
}

// mcpOperations says the same of MCP's tools, where they are others.
var mcpOperations = map[string]string{
	"create_sandbox": "POST /v1/sandboxes", "stop_sandbox": "DELETE /v1/sandboxes/{id}", "list_sandboxes": "GET /v1/sandboxes", "list_sessions": "GET /v1/sessions",
	"get_port_url": "POST /v1/sandboxes/{id}/ports/{port}/link", "create_session": "POST /v1/sessions", "end_session": "DELETE /v1/sessions/{id}",
	"show_page": "GET /v1/sessions/{id}/page", "act_on_page": "POST /v1/sessions/{id}/page/actions", "watch_page": "GET /v1/sessions/{id}/page/stream",
}

// functionOperations says for each function which route of REST does the same.
var functionOperations = map[string]string{
	"engi/debug/echo": "POST /v1/events", "engi/sandbox/create": "POST /v1/sandboxes", "engi/sandbox/stop": "DELETE /v1/sandboxes/{id}",
	"engi/agents/explore": "POST /v1/agents/{name}/runs", "engi/agents/code": "POST /v1/agents/{name}/runs",
}

// TestWhatRESTDeniesAllDeny tries every operation of E2B's control plane, every tool
// of MCP's and every function, and looks at every tool of agents, with a key for each
// scope: what REST denies, they deny.
func TestWhatRESTDeniesAllDeny(t *testing.T) {
	c, o := fakeNode(t)
	p, err := OpenPrivate(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	n := p.Node
	tools, err := tool.Builtin(n.services)
	if err != nil || len(tools) < 8 {
		t.Fatal(tools, err)
	}
	keys := key.New(store.Keys(n.db))
	routes := map[string]*rest.Route{}
	for _, r := range n.api(rest.Options{Keys: keys}, rest.NodeInfo{}).Routes() {
		routes[r.Pattern] = r
	}
	control := n.e2b.Control()
	mcp := func(key, method, params string) string {
		header := []string{"Authorization", "Bearer " + key}
		begun := n.answer("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, header...)
		header = append(header, "Mcp-Session-Id", begun.Header().Get("Mcp-Session-Id"))
		n.answer("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header...)
		answer := n.answer("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params), header...).Body.String()
		n.answer("DELETE", "/mcp", "", header...)
		_, data, _ := strings.Cut(answer, "data: ")
		return cmp.Or(data, answer)
	}
	var offered struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(mcp(n.AdminKey(), "tools/list", "{}")), &offered); err != nil || len(offered.Result.Tools) < 8 {
		t.Fatal(offered, err)
	}
	offered.Result.Tools = append(offered.Result.Tools, struct{ Name string }{"watch_page"}) // who declares apps is offered it, too
	tried := map[string]bool{}
	for _, scope := range engi.Scopes() {
		k, secret, err := keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{scope}})
		if err != nil {
			t.Fatal(err)
		}
		for _, pattern := range n.e2b.Patterns() {
			route := routes[e2bOperations[pattern]]
			if route == nil {
				t.Errorf("%s has no route of REST that does the same: %q", pattern, e2bOperations[pattern])
				continue
			}
			denied := route.Allows(k) != nil
			if route.Access.Admin && ownersBuild(route.Pattern) {
				denied = k.May(engi.ScopeTemplates, true) != nil
			}
			method, path, _ := strings.Cut(pattern, " ")
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, method, strings.NewReplacer("{id}", "x", "{build}", "x", "{hash}", "x", "{what}", "builds").Replace(path), strings.NewReader("not JSON"))
			r.Host = "127.0.0.1"
			r.Header.Set("X-API-Key", secret)
			rec := httptest.NewRecorder()
			control.ServeHTTP(rec, r)
			cancel()
			if got := rec.Code == http.StatusForbidden || rec.Code == http.StatusUnauthorized; denied && !got {
				t.Errorf("scope %s: REST denies %s, E2B's %s answers %d %s", scope, route.Pattern, pattern, rec.Code, rec.Body)
			}
			tried[pattern] = true
		}
		for _, x := range offered.Result.Tools {
			route := routes[cmp.Or(mcpOperations[x.Name], toolOperations[x.Name])]
			if route == nil {
				t.Errorf("MCP's tool %s has no route of REST that does the same", x.Name)
				continue
			}
			answer := mcp(secret, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{}}`, x.Name))
			if denied := strings.Contains(answer, "does not have the scope") || strings.Contains(answer, "may only read") || strings.Contains(answer, "unknown tool"); route.Allows(k) != nil && !denied {
				t.Errorf("scope %s: REST denies %s, MCP's %s answers %s", scope, route.Pattern, x.Name, answer)
			}
		}
		if scope == engi.ScopeEvents || k.May(engi.ScopeEvents, true) == nil {
			for _, f := range n.Functions().Functions() {
				route := routes[functionOperations[f.Name]]
				if route == nil {
					t.Errorf("the function %s has no route of REST that does the same", f.Name)
				} else if answer := n.answer("POST", "/v1/events", fmt.Sprintf(`{"type":%q}`, f.Event), "Authorization", "Bearer "+secret); route.Allows(k) != nil && answer.Code != http.StatusForbidden {
					t.Errorf("scope %s: REST denies %s, the function %s answers %d %s", scope, route.Pattern, f.Name, answer.Code, answer.Body)
				}
			}
		}
		for _, x := range tools {
			route := routes[toolOperations[x.Name]]
			if route == nil {
				t.Errorf("the tool %s has no route of REST that does the same: %q", x.Name, toolOperations[x.Name])
			} else if route.Allows(k) != nil && k.May(x.Scope()) == nil {
				t.Errorf("scope %s: REST denies %s, the tool %s does not", scope, route.Pattern, x.Name)
			}
		}
	}
	for pattern := range e2bOperations {
		if !slices.Contains(n.e2b.Patterns(), pattern) {
			t.Errorf("there is no %s", pattern)
		}
	}
	if len(tried) != len(n.e2b.Patterns()) || len(tried) < 30 {
		t.Errorf("%d operations tried", len(tried))
	}
}
