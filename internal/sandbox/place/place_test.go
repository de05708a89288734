package place_test

import (
	"fmt"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/test/apitest"
)

// A fixture has one place of each kind that belongs to ann.
type fixture struct {
	place.Resolver
	sessions   *apitest.Sessions
	workspaces *apitest.Workspaces
	session    engi.Session
	workspace  engi.Workspace
	sandbox    engi.Sandbox
}

func must[T any](t *testing.T) func(T, error) T {
	return func(x T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func newFixture(t *testing.T) *fixture {
	sandboxes := apitest.NewSandboxes(apitest.NewExecutions())
	w := &fixture{sessions: &apitest.Sessions{Sandboxes: sandboxes}, workspaces: &apitest.Workspaces{Sandboxes: sandboxes}}
	w.Resolver = place.Resolver{Sessions: w.sessions, Workspaces: w.workspaces, Sandboxes: sandboxes}
	ctx := t.Context()
	w.session = must[engi.Session](t)(w.sessions.Create(ctx, engi.SessionSpec{Owner: "ann", Name: "dev"}))
	w.workspace = must[engi.Workspace](t)(w.workspaces.Create(ctx, engi.WorkspaceSpec{Owner: "ann", Name: "shop"}))
	w.sandbox = must[engi.Sandbox](t)(sandboxes.Create(ctx, engi.SandboxSpec{Owner: "ann", Metadata: map[string]string{"name": "box"}}))
	share := engi.WorkspaceChange{Share: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}, {Owner: "eve", Role: engi.RoleViewer}}}
	w.workspace = must[engi.Workspace](t)(w.workspaces.Change(ctx, "ann", "shop", share))
	return w
}

// TestPlaces finds and enters each kind of place as each viewer, before and after it has a sandbox.
func TestPlaces(t *testing.T) {
	w := newFixture(t)
	places := map[string]place.Place{
		"session": {Session: "dev"}, "session by ID": {Session: string(w.session.ID)},
		"workspace": {Workspace: "shop"}, "workspace by ID": {Workspace: string(w.workspace.ID)}, "workspace of an owner": {Workspace: "ann/shop"},
		"sandbox": {Sandbox: w.sandbox.ID},
	}
	for round := range 2 {
		for name, p := range places {
			for _, viewer := range []engi.Viewer{"ann", engi.Everyone, "bob", "eve", "mallory"} {
				want, shared := engi.NotFound, p.Workspace != "" && p.Workspace != "shop"
				switch {
				case viewer == "ann", viewer == engi.Everyone, shared && viewer == "bob":
					want = engi.NoKind
				case shared && viewer == "eve":
					want = engi.Denied
				}
				about := fmt.Sprintf("round %d: %s as %s", round, name, viewer)
				f, err := w.Find(t.Context(), viewer, p)
				if want != engi.NoKind && !engi.Is(err, want) || want == engi.NoKind && err != nil {
					t.Errorf("%s: find: %v, want %v", about, err, want)
				}
				if err == nil && (f.Owner != "ann" || f.Ended() || f.Place() == place.Place{}) {
					t.Errorf("%s: found %+v", about, f)
				}
				if err == nil && round == 1 && (f.Sandbox == "" || f.State != engi.Running) {
					t.Errorf("%s: found no sandbox after it was entered: %+v", about, f)
				}
				if round == 0 {
					continue // the places have no sandbox until they are entered
				}
				g, release, err := w.Enter(t.Context(), viewer, p)
				if want != engi.NoKind && !engi.Is(err, want) || want == engi.NoKind && (err != nil || g == nil) {
					t.Errorf("%s: enter: %v, want %v", about, err, want)
				}
				if err == nil {
					release()
				}
			}
		}
		for name, p := range places {
			_, release, err := w.Enter(t.Context(), "ann", p)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			release()
		}
	}
	// A sandbox that a workspace has lost is replaced.
	old := must[place.Found](t)(w.Find(t.Context(), "ann", places["workspace"]))
	if err := w.Sandboxes.(*apitest.Sandboxes).Stop(t.Context(), "ann", old.Sandbox); err != nil {
		t.Fatal(err)
	}
	_, release, err := w.Enter(t.Context(), "bob", places["workspace by ID"])
	if err != nil {
		t.Fatal(err)
	}
	release()
	if f := must[place.Found](t)(w.Find(t.Context(), "bob", places["workspace by ID"])); f.Sandbox == old.Sandbox || f.Sandbox == "" {
		t.Errorf("the workspace has sandbox %q after it lost %q", f.Sandbox, old.Sandbox)
	}
	// A session that has ended is not found.
	if err := w.sessions.Terminate(t.Context(), "ann", "dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Find(t.Context(), "ann", places["session by ID"]); !engi.Is(err, engi.NotFound) {
		t.Errorf("find a session that has ended: %v", err)
	}
	// What a node does not have, and no place at all.
	for _, p := range []place.Place{{Session: "dev"}, {Workspace: "shop"}, {Sandbox: w.sandbox.ID}, {}} {
		var empty place.Resolver
		if _, err := empty.Find(t.Context(), "ann", p); !engi.Is(err, engi.Unsupported) || engi.RemedyOf(err) == "" {
			t.Errorf("find %+v on a node without it: %v", p, err)
		}
		if _, _, err := empty.Enter(t.Context(), "ann", p); !engi.Is(err, engi.Unsupported) {
			t.Errorf("enter %+v on a node without it: %v", p, err)
		}
	}
}

// TestNamed looks up names as people write them.
func TestNamed(t *testing.T) {
	w := newFixture(t)
	named := func(viewer engi.Viewer, own bool, name string) (place.Place, error) {
		f, err := w.Named(t.Context(), viewer, own, name)
		return f.Place(), err
	}
	session, workspace, sandbox := place.Place{Session: string(w.session.ID)}, place.Place{Workspace: string(w.workspace.ID)}, place.Place{Sandbox: w.sandbox.ID}
	for _, own := range []bool{false, true} {
		for name, want := range map[string]place.Place{
			"dev": session, string(w.session.ID): session, "shop": workspace, "ann/shop": workspace, string(w.workspace.ID): workspace, "box": sandbox, string(w.sandbox.ID): sandbox,
		} {
			if p, err := named("ann", own, name); p != want || err != nil {
				t.Errorf("%s of ann: %+v, %v", name, p, err)
			}
			// Everyone sees them all, but none is its own. An editor of a workspace could stay in
			// it after losing the role.
			if _, err := named(engi.Everyone, own, name); own != engi.Is(err, engi.NotFound) {
				t.Errorf("%s as everyone, own %v: %v", name, own, err)
			}
			for _, viewer := range []engi.Viewer{"bob", "eve", "mallory"} {
				refused := engi.NotFound
				if want == workspace && name != "shop" && viewer == "eve" || want == workspace && name != "shop" && viewer == "bob" && !own {
					refused = engi.Denied
				}
				if p, err := named(viewer, own, name); !engi.Is(err, refused) {
					t.Errorf("%s as %s: %+v, %v", name, viewer, p, err)
				}
			}
		}
	}
	for _, name := range []string{"", "nothing", "a\x1b[2J", string(engi.NewSandboxID())} {
		if p, err := named("ann", false, name); !engi.Is(err, engi.NotFound) {
			t.Errorf("%q: %+v, %v", name, p, err)
		}
	}
	boxes := w.Sandboxes.(*apitest.Sandboxes)
	// Names that exist twice: a session comes first, a sandbox before a workspace.
	for _, name := range []string{"dev", "shop", "box"} {
		must[engi.Sandbox](t)(boxes.Create(t.Context(), engi.SandboxSpec{Owner: "ann", Metadata: map[string]string{"name": name}}))
	}
	if p, err := named("ann", false, "dev"); p != session || err != nil {
		t.Errorf("a session and a sandbox: %+v, %v", p, err)
	}
	if p, err := named("ann", false, "shop"); p.Sandbox == "" || err != nil {
		t.Errorf("a sandbox and a workspace: %+v, %v", p, err)
	}
	if p, err := named("ann", false, "box"); !engi.Is(err, engi.Conflict) {
		t.Errorf("two sandboxes: %+v, %v", p, err)
	}
	if err := boxes.Stop(t.Context(), "ann", w.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	if p, err := named("ann", false, string(w.sandbox.ID)); !engi.Is(err, engi.NotFound) {
		t.Errorf("a sandbox that has ended: %+v, %v", p, err)
	}
}
