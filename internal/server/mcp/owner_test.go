package mcp_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/engi"
)

// TestAdministratorsAgentsAreOneOwner has an administrator's client use every
// tool, those of engi's own agents among them, and every resource on and around
// what a tenant has.
func TestAdministratorsAgentsAreOneOwner(t *testing.T) {
	w, services, url := serveAll(t)
	ctx := t.Context()
	b, err := services.Sandboxes.Create(ctx, engi.SandboxSpec{Owner: "ann", Metadata: map[string]string{"of": "ann"}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := services.Sessions.Create(ctx, engi.SessionSpec{Owner: "ann", Name: "atelier"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services.Docs.Add(ctx, engi.DocumentSpec{Owner: "ann", Package: "annlib", Title: "Marmalade", Text: "# Marmalade\n\nOf annlib, frobnicated."}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Apps.Create(ctx, engi.AppSpec{Owner: "ann", Name: "ann-shop"}); err != nil {
		t.Fatal(err)
	}
	desk, err := w.Workspaces.Create(ctx, engi.WorkspaceSpec{Owner: "ann", Name: "ann-desk", Services: []engi.ServiceSpec{{Type: engi.ServicePostgres}, {Type: engi.ServiceMongoDB}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := services.Docs.SaveModules(ctx, "ann", "atelier", []engi.CodeModule{{Path: "lib/ann.ts", Description: "frobnicates for ann", Scope: engi.ModuleUser}}); err != nil {
		t.Fatal(err)
	}
	x, err := services.Executions.Start(ctx, engi.ExecutionSpec{Owner: "ann", Program: engi.Program{Language: "bash", Files: []engi.SourceFile{{Path: "main.sh", Data: []byte("echo marmalade\n")}}, Entry: "main.sh"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services.Executions.Wait(ctx, "ann", x.ID); err != nil {
		t.Fatal(err)
	}

	admin := connect(t, url, w.Admin, showing())
	// By tool: arguments, without a place and with one.
	tools := map[string]struct{ alone, in args }{
		"execute_code":   {alone: args{"language": "bash", "code": "echo hello\n"}},
		"search_docs":    {alone: args{"query": "frobnicated frobnicates marmalade annlib"}, in: args{"query": "frobnicates"}},
		"create_sandbox": {alone: args{}}, "list_sandboxes": {alone: args{}}, "create_session": {alone: args{}}, "list_sessions": {alone: args{}},
		"stop_sandbox": {in: args{}}, "end_session": {in: args{}}, "get_port_url": {in: args{"port": 80}},
		"run_code": {in: args{"code": "1"}}, "run_command": {in: args{"command": "id"}},
		"read_file": {in: args{"path": "/etc/hostname"}}, "write_file": {in: args{"path": "/tmp/x", "content": "x"}}, "edit_file": {in: args{"path": "/tmp/x", "edits": []args{{"old": "a", "new": "b"}}}},
		"list_files": {in: args{"path": "/tmp"}}, "glob": {in: args{"pattern": "*"}}, "grep": {in: args{"pattern": "x", "path": "/etc/hostname"}}, "remove_file": {in: args{"path": "/tmp/x"}},
		"show_page": {in: args{}}, "act_on_page": {in: args{"action": "demo-counter"}}, "watch_page": {in: args{}},
		"create_app": {alone: args{"name": "own"}}, "apply_to_app": {alone: args{"app": "ann-shop", "text": "<file path=\"a\">a</file>"}}, "read_app": {alone: args{"app": "ann-shop"}},
		"create_workspace": {alone: args{"name": "own"}}, "read_workspace": {alone: args{"workspace": "ann-desk"}}, "write_workspace": {alone: args{"workspace": "ann-desk", "files": []args{{"path": "a", "content": "a"}}}},
		"move_workspace_file": {alone: args{"workspace": "ann-desk", "from": "a", "to": "b"}},
		"add_service":         {alone: args{"workspace": "ann-desk", "type": "redis"}}, "run_sql": {alone: args{"workspace": "ann-desk", "query": "select 'Marmalade' as n"}}, "describe_tables": {alone: args{"workspace": "ann-desk"}},
		"enable_preview": {alone: args{"workspace": "ann-desk"}}, "run_redis_command": {alone: args{"workspace": "ann-desk", "command": []string{"PING"}}},
		"submit_for_review": {alone: args{"workspace": "ann-desk"}}, "submit_review": {alone: args{"workspace": "ann-desk", "approved": false}}, "get_review_feedback": {alone: args{"workspace": "ann-desk"}},
		"query_collection": {alone: args{"workspace": "ann-desk", "collection": "orders"}},
		"save_module":      {in: args{"path": "lib/evil.ts", "description": "evil", "exports": []string{}, "usage": ""}},
	}
	call := func(name string, a args) *sdk.CallToolResult {
		t.Helper()
		r, err := admin.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: a})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return r
	}
	places := 0
	for described, err := range admin.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		c, ok := tools[described.Name]
		if !ok {
			t.Errorf("the test lacks the tool %s", described.Name)
			continue
		}
		if c.alone != nil {
			got := text(call(described.Name, c.alone))
			for _, secret := range []string{string(b.ID), string(s.ID), "atelier", "Marmalade", "annlib", "lib/ann.ts"} {
				if strings.Contains(got, secret) {
					t.Errorf("%s shows %s: %s", described.Name, secret, got)
				}
			}
		}
		schema, err := json.Marshal(described.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		for where, targets := range map[string][]string{"sandbox": {string(b.ID)}, "session": {string(s.ID), "atelier"}, "workspace": {string(desk.ID), "ann-desk"}} {
			if !strings.Contains(string(schema), `"`+where+`"`) {
				continue
			}
			if where == "workspace" && c.in == nil {
				c.in = maps.Clone(c.alone) // it says there in which workspace
			}
			for _, target := range targets {
				if places++; c.in == nil {
					t.Errorf("the test lacks arguments for %s in a place", described.Name)
					continue
				}
				c.in[where] = target
				if r := call(described.Name, c.in); !r.IsError || !strings.Contains(text(r), "there is no "+where) {
					t.Errorf("%s in %s %s: %v %s", described.Name, where, target, r.IsError, text(r))
				}
				delete(c.in, where)
			}
		}
	}
	if places < 20 {
		t.Errorf("only %d calls in places of the tenant were tried", places)
	}
	for _, uri := range []string{"engi://sandboxes/" + string(b.ID) + "/files/etc/hostname", "engi://sandboxes/" + string(b.ID) + "/processes/-/log", "engi://executions/" + string(x.ID) + "/output",
		"ui://engi/sessions/" + string(s.ID), "ui://engi/sessions/atelier"} {
		if r, err := admin.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s is shown: %+v", uri, r.Contents)
		}
	}

	// Nothing of the tenant has changed, and the node's own is there.
	if x, err := services.Apps.Get(ctx, "ann", "ann-shop"); err != nil || x.Revision != 1 {
		t.Errorf("the tenant's app is %+v, %v", x, err)
	}
	if x, err := w.Workspaces.Get(ctx, "ann", "ann-desk"); err != nil || x.Revision != 0 || len(x.Services) != 2 {
		t.Errorf("the tenant's workspace is %+v, %v", x, err)
	}
	if b, err := services.Sandboxes.Get(ctx, "ann", b.ID); err != nil || b.State != engi.Running {
		t.Errorf("%s %v", b.State, err)
	}
	if s, err := services.Sessions.Get(ctx, "ann", "atelier"); err != nil || s.State == engi.SessionTerminated {
		t.Errorf("%s %v", s.State, err)
	}
	modules, err := services.Docs.Modules(ctx, "ann", "atelier")
	if err != nil || slices.ContainsFunc(modules, func(m engi.CodeModule) bool { return m.Path == "lib/evil.ts" }) {
		t.Errorf("%+v %v", modules, err)
	}
	if got := text(call("list_sandboxes", nil)); strings.Count(got, `"sandbox":`) != 1 {
		t.Errorf("the administrator's own sandbox is not listed: %s", got)
	}
}
