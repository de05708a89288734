package app_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// TestAppOfWorkspace puts apps into the network of a workspace.
func TestAppOfWorkspace(t *testing.T) {
	w := newFixture(t)
	all := &apitest.Workspaces{}
	x, err := all.Create(t.Context(), engi.WorkspaceSpec{Owner: "ann", Name: "shop", Collaborators: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}}})
	if err != nil {
		t.Fatal(err)
	}
	w.shared = all
	s, _ := w.begin(t)
	group := func(a engi.App) string {
		t.Helper()
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.boxes[a.Sandbox].Network.Group
	}
	for _, name := range []string{"shop", string(x.ID)} {
		a, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann", Workspace: name})
		if err != nil || a.Workspace != x.ID || group(a) != x.ID.Group() {
			t.Fatalf("%+v, %v", a, err)
		}
		b, err := s.Branch(t.Context(), engi.BranchSpec{Viewer: "ann", App: string(a.ID)})
		if err != nil || b.Workspace != x.ID || group(b) != x.ID.Group() {
			t.Errorf("its branch: %+v, %v", b, err)
		}
		if a, err = s.Get(t.Context(), "ann", string(a.ID)); err != nil || a.Workspace != x.ID {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if a, err := s.Create(t.Context(), engi.AppSpec{Owner: "ann"}); err != nil || a.Workspace != "" || group(a) != "" {
		t.Errorf("an app without a workspace: %+v, %v", a, err)
	}
	for what, c := range map[string]struct {
		spec engi.AppSpec
		want engi.Kind
	}{
		"a stranger": {engi.AppSpec{Owner: "eve", Workspace: string(x.ID)}, engi.NotFound},
		"an editor":  {engi.AppSpec{Owner: "bob", Workspace: string(x.ID)}, engi.Denied},
		"the node":   {engi.AppSpec{Workspace: string(x.ID)}, engi.NotFound},
		"nothing":    {engi.AppSpec{Owner: "ann", Workspace: "none"}, engi.NotFound},
		"two groups": {engi.AppSpec{Owner: "ann", Workspace: "shop", Network: engi.NetworkPolicy{Group: "mine"}}, engi.Invalid},
	} {
		if _, err := s.Create(t.Context(), c.spec); !engi.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
