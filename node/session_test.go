package node

import (
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/config"
)

func configWithPackages() config.Config {
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

func TestNetworkOfSessions(t *testing.T) {
	c := configWithPackages()
	p, g := sessionNetwork(c)
	if p.Mode != engi.NetworkRestricted || len(p.Allow) != 2 || p.Allow[0] != "*.docs.example" || p.Allow[1] != "plain.example" {
		t.Errorf("%+v", p)
	}
	if len(g) != 1 || g[0].Secret != "sandbox.ACME_KEY" || g[0].Env != "ACME_KEY" || g[0].As != engi.GrantPlaceholder || len(g[0].Hosts) != 2 {
		t.Errorf("%+v", g)
	}
	c.Sessions.Allow, c.Sessions.Dependencies = nil, c.Sessions.Dependencies[2:]
	if p, _ := sessionNetwork(c); p.Mode != engi.NetworkNone {
		t.Errorf("packages that talk to nobody: %+v", p)
	}
}

func TestSecretsOfPackages(t *testing.T) {
	t.Setenv("ACME_KEY", "value")
	c := configWithPackages()
	if all := packageSecrets(c); len(all) != 1 || all[0].Variable != "ACME_KEY" || all[0].Value != "value" || len(all[0].Hosts) != 2 {
		t.Errorf("%+v", all)
	}
	c.Sessions.Enabled = false
	if all := packageSecrets(c); len(all) != 0 {
		t.Errorf("without the section: %+v", all)
	}
}
