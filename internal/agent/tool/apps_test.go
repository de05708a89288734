package tool_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// TestApps makes an app, changes it, breaks it, and reads it, as a model would, and as
// somebody else would.
func TestApps(t *testing.T) {
	w := apitest.New(nil)
	t.Cleanup(w.Close)
	s := tool.Services{Apps: w.Apps, Preview: func(id engi.SandboxID, port int) string { return "http://preview.test/" }}
	use := func(owner engi.Owner, name, args string) (tool.Result, string) {
		t.Helper()
		var printed strings.Builder
		r, err := find(t, s, name).Run(t.Context(), &tool.Call{Env: tool.Env{Owner: owner, Run: "run_x"}, Out: func(_ engi.Stream, b []byte) { printed.Write(b) }}, args)
		if err != nil {
			t.Fatal(err)
		}
		return r, printed.String()
	}
	if r, _ := use("ann", "create_app", `{"name":"shop"}`); r.Failed || !strings.Contains(r.Text, "app shop (app_") || !strings.Contains(r.Text, "at http://preview.test/") || !strings.Contains(r.Text, "src/App.jsx (") {
		t.Errorf("%+v", r)
	}
	if r, _ := use("ann", "create_app", `{"template":"broken"}`); !r.Failed || !strings.Contains(r.Text, "its server does not answer") {
		t.Errorf("%+v", r)
	}
	// An app in a directory of the workspace that the run works in.
	x, err := w.Workspaces.Create(t.Context(), engi.WorkspaceSpec{Owner: "ann", Name: "desk"})
	if err != nil {
		t.Fatal(err)
	}
	in := &tool.Call{Env: tool.Env{Owner: "ann", Run: "run_x", Workspace: "desk"}, Out: func(engi.Stream, []byte) {}}
	if r, err := find(t, s, "create_app").Run(t.Context(), in, `{"name":"web","directory":"web","start":"npm start","port":3000}`); err != nil || r.Failed {
		t.Errorf("%+v, %v", r, err)
	}
	if a, err := w.Apps.Get(t.Context(), "ann", "web"); err != nil || a.Workspace != x.ID || a.Directory != "web" || a.Start != "npm start" || a.Port != 3000 {
		t.Errorf("%+v, %v", a, err)
	}
	if r, _ := use("ann", "create_app", `{"directory":"web","start":"npm start","port":3000}`); !r.Failed {
		t.Errorf("without a workspace: %+v", r)
	}
	r, printed := use("ann", "apply_to_app", `{"app":"shop","text":"<package>x</package><file path=\"src/App.jsx\">new</file>"}`)
	if r.Failed || !strings.HasPrefix(r.Text, "revision 2 of app shop is served") || printed != "added 1 package\n" {
		t.Errorf("%+v, %q", r, printed)
	}
	if r, _ := use("ann", "apply_to_app", `{"app":"shop","text":"fail"}`); !r.Failed || !strings.HasPrefix(r.Text, "nothing has changed: src/App.jsx:3: unexpected token (write it again)") {
		t.Errorf("%+v", r)
	}
	if r, _ := use("ann", "read_app", `{"app":"shop","path":"src/App.jsx"}`); r.Text != "new" {
		t.Errorf("%+v", r)
	}
	if r, _ := use("ann", "read_app", `{"app":"shop","path":"none"}`); !r.Failed {
		t.Errorf("%+v", r)
	}
	if all, err := w.Apps.Revisions(t.Context(), "ann", "shop", engi.Paging{}); err != nil || len(all) != 2 || all[0].Actor != "run_x" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, owner := range []engi.Owner{"bob", ""} { // the empty one is the node's own
		for name, args := range map[string]string{"read_app": `{"app":"shop"}`, "apply_to_app": `{"app":"shop","text":"<file path=\"a\">a</file>"}`} {
			if r, _ := use(owner, name, args); !r.Failed || strings.Contains(r.Text, "App.jsx") || strings.Contains(r.Text, "revision") {
				t.Errorf("%q: %+v", owner, r)
			}
		}
	}
}
