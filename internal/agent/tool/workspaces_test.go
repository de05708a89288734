package tool_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// TestWorkspaces works in a workspace as a model would, and as somebody else would.
func TestWorkspaces(t *testing.T) {
	all := &apitest.Workspaces{}
	s := tool.Services{Workspaces: all, WorkspaceURL: func(engi.WorkspaceID, string) string { return "http://shop.test/" }}
	use := func(owner engi.Owner, name, args string) tool.Result {
		t.Helper()
		r, err := find(t, s, name).Run(t.Context(), &tool.Call{Env: tool.Env{Owner: owner, Run: "run_x"}, Out: func(engi.Stream, []byte) {}}, args)
		if err != nil {
			t.Fatal(err)
		}
		return r
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
		{"read_workspace", `{"workspace":"shop"}`, false, "is stopped, revision 2\nservice postgres"},
		{"read_workspace", `{"workspace":"shop","path":"a.txt"}`, false, "new"},
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
	if list, err := all.Revisions(t.Context(), "ann", "shop", engi.Paging{}); err != nil || len(list) != 2 || list[1].Actor != "run_x" || list[1].Message != "Begin" {
		t.Errorf("%+v, %v", list, err)
	}
	// A run works in its sandbox, which starts for it, and again when it is lost.
	in := tool.Env{Owner: "ann", Run: "run_x", Workspace: "shop"}
	w := apitest.New(nil)
	defer w.Close()
	boxes := w.Sandboxes
	all.Sandboxes, s.Sandboxes = boxes, boxes
	for _, what := range []string{"stopped", "running", "lost"} {
		r, err := find(t, s, "run_command").Run(t.Context(), &tool.Call{Env: in, Out: func(engi.Stream, []byte) {}}, `{"command":"echo here"}`)
		if err != nil || r.Failed || !strings.Contains(r.Text, "here") {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		if x, err := all.Get(t.Context(), "ann", "shop"); err != nil || x.State != engi.WorkspaceRunning {
			t.Errorf("%s: %+v, %v", what, x, err)
		} else if what == "running" {
			if err := boxes.Stop(t.Context(), "ann", x.Sandbox); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.CheckTarget(t.Context(), in); err != nil {
		t.Error(err)
	}
	if _, err := all.Change(t.Context(), "ann", "shop", engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "carl", Role: engi.RoleReviewer}}}); err != nil {
		t.Fatal(err)
	}
	x, err := all.Get(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
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
				"read_workspace": `}`, "write_workspace": `,"files":[{"path":"c","content":"c"}]}`, "add_service": `,"type":"mysql"}`, "run_sql": `,"query":"select 42 as n"}`, "describe_tables": `}`, "run_redis_command": `,"command":["PING"]}`, "enable_preview": `}`,
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
