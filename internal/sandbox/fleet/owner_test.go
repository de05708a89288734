package fleet_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestPrivatePortsOfATemplate: sandboxes of a private template are private, for all specs with which they
// were created.
func TestPrivatePortsOfATemplate(t *testing.T) {
	fx := newFixture(t)
	lab := base(t, "d1")
	lab.Name, lab.Private = "lab", true
	fx.fakes.Set(lab)
	n := fx.start(nil)
	for template, want := range map[string]bool{"lab": true, "base": false} {
		if got := n.create(engi.SandboxSpec{Template: template}).Ports.Private; got != want {
			t.Errorf("previews of a sandbox of %s: private %v", template, got)
		}
	}
}

// TestTemplatesHaveOwners starts programs and sandboxes from a template of
// another owner, by its name and by its digest.
func TestTemplatesHaveOwners(t *testing.T) {
	fx := newFixture(t)
	private := base(t, "d1")
	private.Name, private.Owner = "hers", "ann"
	fx.fakes.Set(private)
	byDigest := private
	byDigest.Name, byDigest.Owner, byDigest.Owners = "", "", []engi.Owner{"ann"}
	n := fx.start(pools(warmBash)).warm()
	fx.fakes.Alias("d1", byDigest)
	for _, name := range []string{"hers", "d1"} {
		for owner, want := range map[engi.Owner]bool{"ann": true, "bob": false, "": true} {
			spec := script("true")
			spec.Owner, spec.Template = owner, name
			_, err := n.x.Start(t.Context(), spec)
			if got := err == nil; got != want || !want && !engi.Is(err, engi.NotFound) {
				t.Errorf("%q starts %s: %v", owner, name, err)
			}
			if owner == "" {
				continue // this service has only executions
			}
			_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: owner, Template: name})
			if got := err == nil; got != want || !want && !engi.Is(err, engi.NotFound) {
				t.Errorf("%q makes a sandbox of %s: %v", owner, name, err)
			}
		}
	}
}
