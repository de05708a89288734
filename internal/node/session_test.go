package node

import (
	"slices"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
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

// TestSessionsWithoutASection checks that people may use sessions of any node, and
// that models are told of them only where the section is enabled.
func TestSessionsWithoutASection(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		c, o := fakeNode(t)
		c.Sessions.Enabled, c.Sessions.Template = enabled, "host"
		n, err := Open(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, n)
		admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
		id := admin.make("/v1/sessions", `{"persistence":"none"}`, "id")
		_, release, err := n.Sessions().Enter(t.Context(), engi.Everyone, id)
		if err != nil {
			t.Fatalf("enabled %t: %v", enabled, err)
		}
		release()
		if d, err := n.Sessions().Dependencies(t.Context()); err != nil || d.State != engi.DependenciesReady {
			t.Errorf("enabled %t: %+v, %v", enabled, d, err)
		}
		tools, err := tool.Builtin(n.services)
		if err != nil {
			t.Fatal(err)
		}
		if told := slices.ContainsFunc(tools, func(x tool.Tool) bool { return x.Name == "run_code" || x.Name == "save_module" }); told != enabled {
			t.Errorf("enabled %t: models are told of sessions: %t", enabled, told)
		}
		admin.ask("DELETE", "/v1/sessions/"+id, "")
		stop()
	}
}
