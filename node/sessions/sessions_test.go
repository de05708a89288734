package sessions

import (
	"context"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/config"
)

// open is a wall that lets everything through.
type open struct{ asked []engi.NetworkPolicy }

func (*open) Check(engi.NetworkPolicy) error                         { return nil }
func (*open) Attach(context.Context, engi.SandboxID) (string, error) { return "", nil }
func (*open) Shut(engi.SandboxID)                                    {}
func (*open) Detach(context.Context, engi.SandboxID) error           { return nil }
func (*open) Adopt(context.Context, []engi.SandboxID) error          { return nil }
func (o *open) Open(_ context.Context, _ engi.SandboxID, _ engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error) {
	o.asked = append(o.asked, p)
	return engi.NetworkSetup{}, nil
}

func section() config.Config {
	c := config.Defaults()
	c.Sessions.Enabled = true
	c.Sessions.Allow = []string{"*.docs.example"}
	c.Sessions.Dependencies = []config.Dependency{
		{Package: "@acme/sdk", SecretEnv: "ACME_KEY", Hosts: []string{"api.acme.example", "eu.acme.example"}},
		{Package: "plain", Hosts: []string{"plain.example"}},
		{Package: "quiet"},
	}
	return c
}

// TestS0_5_SecretsGoToTheirHosts checks that no policy sends the secret of a
// package elsewhere, whoever wrote it.
func TestS0_5_SecretsGoToTheirHosts(t *testing.T) {
	c := section()
	inner := &open{}
	w := Wall(c, inner)
	grant := func(secret string, hosts ...string) engi.NetworkPolicy {
		return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: secret, Hosts: hosts}}}
	}
	for name, x := range map[string]struct {
		p  engi.NetworkPolicy
		ok bool
	}{
		"its own":         {grant("sandbox.ACME_KEY", "api.acme.example"), true},
		"both":            {grant("sandbox.ACME_KEY", "eu.acme.example", "api.acme.example"), true},
		"another host":    {grant("sandbox.ACME_KEY", "evil.example"), false},
		"one more":        {grant("sandbox.ACME_KEY", "api.acme.example", "evil.example"), false},
		"wider":           {grant("sandbox.ACME_KEY", "*.acme.example"), false},
		"other port":      {grant("sandbox.ACME_KEY", "api.acme.example:8443"), false},
		"no such package": {grant("sandbox.OTHER", "api.acme.example"), false},
		"the owner's":     {grant("ACME_KEY", "evil.example"), true}, // that is none of the node's
		"header":          {engi.NetworkPolicy{Headers: []engi.HeaderRule{{Host: "evil.example", Headers: map[string]string{"X": "a ${secrets.sandbox.ACME_KEY}"}}}}, false},
		"nothing":         {engi.NetworkPolicy{}, true},
	} {
		err := w.Check(x.p)
		if (err == nil) != x.ok || err != nil && (engi.KindOf(err) != engi.Denied || engi.RemedyOf(err) == "") {
			t.Errorf("%s: %v", name, err)
		}
		before := len(inner.asked)
		_, err = w.Open(t.Context(), "", "ann", x.p)
		if (err == nil) != x.ok || len(inner.asked) > before != x.ok {
			t.Errorf("%s: open: %v", name, err)
		}
	}
	if Wall(c, nil) != nil {
		t.Error("no wall becomes one")
	}
	c.Sessions.Enabled = false
	if err := Wall(c, inner).Check(grant("sandbox.ACME_KEY", "api.acme.example")); engi.KindOf(err) != engi.Denied || err == nil {
		t.Errorf("without the section: %v", err)
	}
}

func TestReveal(t *testing.T) {
	t.Setenv("ACME_KEY", "value")
	t.Setenv("HOME_KEY", "not yours")
	c := section()
	reveal := Reveal(c, func(_ context.Context, owner engi.Owner, name string) (string, error) {
		return "", engi.Errorf(engi.NotFound, "%s has no %s", owner, name)
	})
	if v, err := reveal(t.Context(), "ann", "sandbox.ACME_KEY"); v != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, name := range []string{"ACME_KEY", "sandbox.HOME_KEY", "sandbox.", "sandbox.PATH"} {
		if v, err := reveal(t.Context(), "ann", name); engi.KindOf(err) != engi.NotFound || v != "" {
			t.Errorf("%s: %q, %v", name, v, err)
		}
	}
}

func TestNetworkOfSessions(t *testing.T) {
	c := section()
	p, g := network(c.Sessions), grants(c.Sessions)
	if p.Mode != engi.NetworkRestricted || len(p.Allow) != 2 || p.Allow[0] != "*.docs.example" || p.Allow[1] != "plain.example" {
		t.Errorf("%+v", p)
	}
	if len(g) != 1 || g[0].Secret != "sandbox.ACME_KEY" || g[0].Env != "ACME_KEY" || g[0].As != engi.GrantPlaceholder || len(g[0].Hosts) != 2 {
		t.Errorf("%+v", g)
	}
	c.Sessions.Allow, c.Sessions.Dependencies = nil, c.Sessions.Dependencies[2:]
	if p := network(c.Sessions); p.Mode != engi.NetworkNone {
		t.Errorf("packages that talk to nobody: %+v", p)
	}
}
