package tool_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

var ids = regexp.MustCompile(`(wsp|sbx|vol)_\w+`)

// TestWorkspaces works in a workspace as a model would, and as somebody else would.
func TestWorkspaces(t *testing.T) {
	all := &apitest.Workspaces{}
	s := tool.Services{Workspaces: all, WorkspaceURL: func(engi.WorkspaceID, string) string { return "http://shop.test/" }}
	in := func(e tool.Env, name, args string) tool.Result {
		t.Helper()
		r, err := find(t, s, name).Run(t.Context(), &tool.Call{Env: e, Out: func(engi.Stream, []byte) {}}, args)
		if err != nil {
			t.Fatal(err)
		}
		if id := ids.FindString(r.Text); id != "" {
			t.Errorf("%s %s shows the model %s: %s", name, args, id, r.Text)
		}
		return r
	}
	use := func(owner engi.Owner, name, args string) tool.Result {
		t.Helper()
		return in(tool.Env{Owner: owner, Run: "run_x"}, name, args)
	}
	for _, step := range []struct {
		name, args string
		failed     bool
		want       string
	}{
		{"create_workspace", `{"name":"shop","services":["postgres"]}`, false, "service postgres, PostgreSQL 15: healthy at postgres.workspace.internal:5432"},
		{"create_workspace", `{"name":"shop"}`, true, "already"},
		{"write_workspace", `{"workspace":"shop","files":[{"path":"a.txt","content":"new"},{"path":"b.txt"}],"message":"Begin"}`, false, "revision 1\ncreate a.txt (3 bytes)\ncreate b.txt (0 bytes)"},
		{"write_workspace", `{"workspace":"shop","files":[{"path":"b.txt","delete":true}]}`, false, "revision 2\nremove b.txt"},
		{"write_workspace", `{"workspace":"shop","files":[{"path":"a.txt","content":"x","delete":true}]}`, true, "is deleted, and has content"},
		{"write_workspace", `{"workspace":"shop","files":[]}`, true, "there are no files"},
		{"write_workspace", `{"workspace":"shop","files":[{"path":"/a","content":"x"}]}`, true, "use a relative path"},
		{"move_workspace_file", `{"workspace":"shop","from":"a.txt","to":"docs/a.txt"}`, false, "revision 3\ncreate docs/a.txt (3 bytes)\nremove a.txt"},
		{"move_workspace_file", `{"workspace":"shop","from":"a.txt","to":"b.txt"}`, true, "no file"},
		{"move_workspace_file", `{"workspace":"shop","from":"docs","to":"docs"}`, true, "exists"},
		{"read_workspace", `{"workspace":"shop"}`, false, "workspace shop from base is stopped, revision 3\nservice postgres"},
		{"read_workspace", `{"workspace":"shop","path":"docs/a.txt"}`, false, "new"},
		{"read_workspace", `{"workspace":"shop","path":"none"}`, true, "no file"},
		{"add_service", `{"workspace":"shop","type":"redis"}`, false, "service redis, Redis 7 7.0.15, is healthy; programs in the workspace reach it at redis://engi:secret@redis.workspace.internal/engi"},
		{"add_service", `{"workspace":"shop","type":"nginx","version":"broken"}`, true, "nginx 1.22 has ended with exit code 1 (see its logs)"},
		{"run_sql", `{"workspace":"shop","query":"select 42 as n"}`, false, "[\"n\"]\n[42]\n(1 rows)"},
		{"run_sql", `{"workspace":"shop","query":"select $1 as n","args":[9007199254740993]}`, false, "[9007199254740993]"},
		{"run_sql", `{"workspace":"shop","query":"insert"}`, false, "1 rows affected"},
		{"run_sql", `{"workspace":"shop","query":"insert","read_only":true}`, true, "error 25006: cannot"},
		{"run_sql", `{"workspace":"shop","query":"fail"}`, true, "error 42601: syntax error at or near \"fail\" at character 1\nwrite something else"},
		{"run_sql", `{"workspace":"shop","query":"select 42 as n","explain":true}`, false, "Result  (cost"},
		{"describe_tables", `{"workspace":"shop"}`, false, "table public.orders, about 3 rows\nview public.paid\n"},
		{"describe_tables", `{"workspace":"shop","table":"orders"}`, false, "column id integer not null default nextval"},
		{"describe_tables", `{"workspace":"shop","table":"none"}`, true, "no table"},
		{"query_collection", `{"workspace":"shop","collection":"orders"}`, true, "no service"},
		{"add_service", `{"workspace":"shop","type":"mongodb"}`, false, "service mongodb, FerretDB 1.24 1.24.0, is healthy"},
		{"query_collection", `{"workspace":"shop","collection":"orders","filter":" {\"total\": {\"$gt\": 5}}"}`, false, "{\"_id\":{\"$oid\":\"665f1c2b9d3e4a0001000000\"},\"total\":7}\n(1 documents)"},
		{"query_collection", `{"workspace":"shop","collection":"empty","service":"mongodb"}`, false, "(0 documents)"},
		{"query_collection", `{"workspace":"shop","pipeline":"[{\"$fail\": {}}]"}`, true, "error BadValue: unknown operator: $fail"},
		{"query_collection", `{"workspace":"shop","collection":"orders","sort":"total"}`, true, "sort: it does not begin with {"},
		{"query_collection", `{"workspace":"shop"}`, true, "collection: it is missing"},
		{"query_collection", `{"workspace":"shop","collection":"orders","service":"redis"}`, true, "service redis has no documents"},
		{"run_redis_command", `{"workspace":"shop","command":["PING"]}`, false, `"PONG"`},
		{"run_redis_command", `{"workspace":"shop","command":[]}`, true, "no command"},
		{"enable_preview", `{"workspace":"shop"}`, false, "preview http://shop.test/\nIt is for who works in the workspace.\n"},
		{"enable_preview", `{"workspace":"shop","type":"static","root":"/dist/","public":true}`, false, "It is for everybody."},
		{"enable_preview", `{"workspace":"shop","type":"websocket","port":3000}`, false, "preview ws://shop.test/\nIt is for who works in the workspace.\nThe workspace is not running"},
		{"enable_preview", `{"workspace":"shop","type":"none"}`, false, "shows nothing any more"},
		{"enable_preview", `{"workspace":"none"}`, true, "no workspace"},
	} {
		if r := use("ann", step.name, step.args); r.Failed != step.failed || !strings.Contains(r.Text, step.want) {
			t.Errorf("%s %s: failed %v, %q; want %v, %q", step.name, step.args, r.Failed, r.Text, step.failed, step.want)
		}
	}
	if list, err := all.Revisions(t.Context(), "ann", "shop", engi.Paging{}); err != nil || len(list) != 3 || list[0].Actor != "run_x" || list[2].Actor != "run_x" || list[2].Message != "Begin" {
		t.Errorf("%+v, %v", list, err)
	}
	// A run works in its sandbox, which starts for it, and again when it is lost.
	here := tool.Env{Owner: "ann", Run: "run_x", Workspace: "shop"}
	w := apitest.New(nil)
	defer w.Close()
	boxes := w.Sandboxes
	all.Sandboxes, s.Sandboxes = boxes, boxes
	for _, what := range []string{"stopped", "running", "lost"} {
		if r := in(here, "run_command", `{"command":"echo here"}`); r.Failed || !strings.Contains(r.Text, "here") {
			t.Errorf("%s: %+v", what, r)
		}
		if x, err := all.Get(t.Context(), "ann", "shop"); err != nil || x.State != engi.WorkspaceRunning {
			t.Errorf("%s: %+v, %v", what, x, err)
		} else if what == "running" {
			if err := boxes.Stop(t.Context(), "ann", x.Sandbox); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.CheckTarget(t.Context(), here); err != nil {
		t.Error(err)
	}
	if _, err := all.Change(t.Context(), "ann", "shop", engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "carl", Role: engi.RoleReviewer}}}); err != nil {
		t.Fatal(err)
	}
	x, err := all.Get(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	// A workspace with a failed service is told as a failure. The workspace of the run is the default, and one that is shared has its owner's name before its own.
	for _, step := range []struct {
		env        tool.Env
		name, args string
		failed     bool
		want       string
	}{
		{here, "read_workspace", `{}`, true, "workspace shop from base is running, revision 3\nservice"},
		{here, "run_sql", `{"query":"select 42 as n"}`, false, "[42]"},
		{here, "read_workspace", `{"workspace":"none"}`, true, "no workspace"},
		{here, "read_workspace", `{"workspace":"ann/shop"}`, true, "workspace shop from base is running"},
		{tool.Env{Owner: "ann"}, "read_workspace", `{}`, true, "no workspace is named"},
		{tool.Env{Owner: "carl"}, "read_workspace", `{"workspace":"ann/shop"}`, true, "workspace ann/shop from base is running"},
		{tool.Env{Owner: "carl"}, "read_workspace", `{"workspace":"shop"}`, true, "no workspace"},
		{tool.Env{Owner: "carl", Workspace: string(x.ID)}, "read_workspace", `{}`, true, "workspace ann/shop from base is running"},
		{tool.Env{Owner: "carl", Workspace: "ann/shop"}, "run_sql", `{"query":"insert"}`, true, "a reviewer of workspace may not do this"},
		{tool.Env{Owner: "carl", Workspace: "ann/shop"}, "query_collection", `{"collection":"orders"}`, false, "(1 documents)"},
		{tool.Env{Owner: "carl", Workspace: "ann/shop"}, "query_collection", `{"collection":"orders","pipeline":"[{\"$out\": \"copy\"}]"}`, true, "a reviewer of workspace may not do this"},
		{tool.Env{Owner: "eve"}, "read_workspace", `{"workspace":"ann/shop"}`, true, "no workspace"},
		{tool.Env{Owner: "eve", Workspace: string(x.ID)}, "run_command", `{"command":"id"}`, true, "no workspace"},
	} {
		if r := in(step.env, step.name, step.args); r.Failed != step.failed || !strings.Contains(r.Text, step.want) {
			t.Errorf("%s %s of %+v: failed %v, %q; want %v, %q", step.name, step.args, step.env, r.Failed, r.Text, step.failed, step.want)
		}
	}
	for owner, want := range map[engi.Owner]engi.Kind{"bob": engi.NotFound, "": engi.NotFound, "carl": engi.Denied} {
		if err := s.CheckTarget(t.Context(), tool.Env{Owner: owner, Workspace: string(x.ID)}); !engi.Is(err, want) {
			t.Errorf("a run of %q: %v, want %v", owner, err, want)
		}
	}
	x, err = all.Get(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []engi.Owner{"bob", ""} { // the empty one is the node's own
		for _, workspace := range []string{"shop", string(x.ID)} {
			for name, args := range map[string]string{
				"read_workspace": `}`, "write_workspace": `,"files":[{"path":"c","content":"c"}]}`, "move_workspace_file": `,"from":"docs","to":"doc"}`, "add_service": `,"type":"mysql"}`, "run_sql": `,"query":"select 42 as n"}`, "describe_tables": `}`, "query_collection": `,"collection":"orders"}`, "run_redis_command": `,"command":["PING"]}`, "enable_preview": `}`,
			} {
				if r := use(owner, name, `{"workspace":"`+workspace+`"`+args); !r.Failed || !strings.Contains(r.Text, "no workspace") {
					t.Errorf("%s as %q: %+v", name, owner, r)
				}
			}
			if r := use(owner, "run_sql", `{"workspace":"`+workspace+`","query":"select 42 as n","explain":true}`); !r.Failed || !strings.Contains(r.Text, "no workspace") {
				t.Errorf("explain as %q: %+v", owner, r)
			}
		}
	}
}
