package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestNetworkSection(t *testing.T) {
	file := write(t, `
[network]
mode = "restricted"
max = "restricted"
allow = ["registry.example.com"]
private = ["10.1.2.3/24", "192.0.2.7", "fd00::/64"]
hosts = ["Registry.Internal.=10.1.2.9", "registry.internal=fd00::9"]
resolver = ["10.1.2.1", "[fd00::1]:5353", "fd00::2"]
[network.limits]
up = "10MB"
[secrets]
environment = ["github=GITHUB_TOKEN@api.github.com+*.ghe.example", "ann/npm=NPM_TOKEN"]
[registries]
npm = "https://npm.example.com/"
go = "https://go.example.com,direct"
[registries.template.py]
pip = "http://127.0.0.1:3141/simple"
npm = "-"
`)
	c, _, err := Load(From{File: file, Env: []string{"ENGI_NETWORK_LIMITS_LOOKUPS=7"}})
	if err != nil {
		t.Fatal(err)
	}
	n := c.Network
	if d := cmp.Diff([]string{"10.1.2.0/24", "192.0.2.7/32", "fd00::/64"}, texts(n.PrivatePrefixes())); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"10.1.2.1:53", "[fd00::1]:5353", "[fd00::2]:53"}, texts(n.Resolvers())); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"10.1.2.9", "fd00::9"}, texts(n.StaticHosts()["registry.internal"])); d != "" {
		t.Error(d)
	}
	want := engi.NetworkLimits{Up: 10e6, Down: -1, Connections: 512, NewConnections: 100, Lookups: 7, Total: -1}
	if got := n.Limits.Limits(); got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
	for asked, ok := range map[engi.NetworkLimits]bool{
		{}: true, {Up: 10e6, Down: 1 << 60, Total: -1}: true, {Connections: 512}: true,
		{Up: 10e6 + 1}: false, {Up: -1}: false, {Connections: 513}: false, {NewConnections: -1}: false, {Lookups: 8}: false,
	} {
		if err := n.Limits.Bound(asked); (err == nil) != ok || err != nil && !engi.Is(err, engi.Denied) {
			t.Errorf("limits %+v: %v", asked, err)
		}
	}
	if p := n.Default(); p.Mode != engi.NetworkRestricted || len(p.Allow) != 1 {
		t.Errorf("default policy %+v", p)
	}
	if n.Allows(engi.NetworkOpen) || !n.Allows(engi.NetworkNone) || !n.Allows(engi.NetworkRestricted) {
		t.Error("network.max does not bound the modes")
	}
	if d := cmp.Diff([]EnvSecret{{"", "github", "GITHUB_TOKEN", "api.github.com+*.ghe.example"}, {"ann", "npm", "NPM_TOKEN", ""}}, c.Secrets.List()); d != "" {
		t.Error(d)
	}
	py, other := c.Registries.Of("py").Env(), c.Registries.Of("base").Env()
	if py["PIP_INDEX_URL"] != "http://127.0.0.1:3141/simple" || py["NPM_CONFIG_REGISTRY"] != "" || py["GOPROXY"] != "https://go.example.com,direct" ||
		other["NPM_CONFIG_REGISTRY"] != "https://npm.example.com/" || other["PIP_INDEX_URL"] != "" {
		t.Errorf("mirrors %v and %v", py, other)
	}
}

func texts[T interface{ String() string }](xs []T) []string {
	var all []string
	for _, x := range xs {
		all = append(all, x.String())
	}
	return all
}

func TestNetworkSectionRefusesWhatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"[network]\nmode = 'opne'":                                        "network.mode is",
		"[network]\nmode = 'open'\nmax = 'isolated'":                      "wider than network.max",
		"[network]\nprivate = ['10.0.0.0/33']":                            "network.private",
		"[network]\nprivate = ['fe80::1%eth0']":                           "network.private",
		"[network]\nhosts = ['a.b']":                                      "network.hosts",
		"[network]\nhosts = ['*.b=10.0.0.1']":                             "network.hosts",
		"[network]\nresolver = ['dns.example.com']":                       "network.resolver",
		"[network]\nevents = 0":                                           "events at least 1",
		"[network]\nprivat = []":                                          "did you mean network.private?",
		"[network.limits]\nconection = 1":                                 "unknown key network.limits.conection",
		"[network.limits]\nconnections = -1":                              "negative",
		"[secrets]\nenvironment = ['ghp_abcdef']":                         "NAME=VARIABLE",
		"[secrets]\nenvironment = ['a=A', 'a=B']":                         "twice",
		"[registries]\nnpm = 'registry.example.com'":                      "registries.npm",
		"[registries]\npip = 'https://user:word@pypi.example.com/simple'": "secret",
		"[registries]\ngo = 'off,ftp://x'":                                "registries.go",
		"[registries.template.x]\nnpm = 'x y'":                            "registries.template.x.npm",
		"[registries.template.x]\nnmp = 'https://x'":                      "did you mean registries.template.x.npm?",
	} {
		_, _, err := Load(From{File: write(t, text)})
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error()+" "+engi.RemedyOf(err), want) {
			t.Errorf("%q: %v (%s), want %q", text, err, engi.RemedyOf(err), want)
		}
		if err != nil && strings.Contains(err.Error(), "ghp_") {
			t.Errorf("%q: the error shows the text: %v", text, err)
		}
	}
}
