package fleet_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestPartialTemplate: programs run in the first part of a template, and callers
// that need more of it are asked to retry.
func TestPartialTemplate(t *testing.T) {
	w := newFixture(t)
	part := base(t, "d0")
	part.Partial = true
	w.fakes.Set(part)
	n := w.start(pools(warmBash)).warm()
	wantAnswer(t, n.execute(script("echo part")), 0, engi.CauseExited, "part\n")

	inGo := script("x")
	inGo.Program.Language = engi.Go
	_, err := n.x.Start(t.Context(), inGo)
	wantKind(t, "Start", err, engi.Unavailable)
	_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "ann", Template: "base"})
	wantKind(t, "Create", err, engi.Unavailable)

	w.fakes.Set(base(t, "d1"))
	_, err = n.x.Start(t.Context(), inGo)
	wantKind(t, "Start", err, engi.Unsupported)
	if _, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "ann", Template: "base"}); err != nil {
		t.Error(err)
	}
}
