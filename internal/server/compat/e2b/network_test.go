package e2b

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// TestNetworkBecomesPolicy checks how E2B's settings are translated, and that the
// gateway accepts every policy made from them.
func TestNetworkBecomesPolicy(t *testing.T) {
	const open, restricted, isolated, none = engi.NetworkOpen, engi.NetworkRestricted, engi.NetworkIsolated, engi.NetworkNone
	for body, want := range map[string]engi.NetworkPolicy{
		`{}`:                                                                                             {Mode: open},
		`{"allow_internet_access":true}`:                                                                 {Mode: open},
		`{"allow_internet_access":false}`:                                                                {Mode: isolated},
		`{"network":{"denyOut":["0.0.0.0/0"]}}`:                                                          {Mode: isolated},
		`{"network":{"denyOut":["8.8.8.8"]}}`:                                                            {Mode: open, Deny: []string{"8.8.8.8"}},
		`{"network":{"denyOut":["8.8.8.8/8"]}}`:                                                          {Mode: open, Deny: []string{"8.0.0.0/8"}},
		`{"network":{"allowOut":["1.1.1.1"]}}`:                                                           {Mode: open, Allow: []string{"1.1.1.1"}},
		`{"network":{"allowOut":["8.8.8.8"],"denyOut":["8.8.8.8"]}}`:                                     {Mode: open, Allow: []string{"8.8.8.8"}},
		`{"network":{"allowOut":["8.8.8.8"],"denyOut":["8.8.8.0/24"]}}`:                                  {Mode: open, Allow: []string{"8.8.8.8"}, Deny: []string{"8.8.8.0/24"}},
		`{"network":{"allowOut":["8.8.8.8","a.example.com"],"denyOut":["0.0.0.0/0"]}}`:                   {Mode: restricted, Allow: []string{"8.8.8.8", "a.example.com"}},
		`{"network":{"allowOut":["*.example.com"],"denyOut":["1.1.1.1","0.0.0.0/0"]}}`:                   {Mode: restricted, Allow: []string{"*.example.com"}},
		`{"network":{"allowOut":["0.0.0.0/0"],"denyOut":["0.0.0.0/0","1.1.1.1"]}}`:                       {Mode: open},
		`{"allow_internet_access":false,"network":{"allowOut":["1.1.1.1"]}}`:                             {Mode: restricted, Allow: []string{"1.1.1.1"}},
		`{"network":{"egressProxy":{"address":"p.example.com:1080"}}}`:                                   {Mode: open, Proxy: &engi.UpstreamProxy{Address: "p.example.com:1080"}},
		`{"network":{"egressProxy":{"address":"http://p.example.com:1","username":"u","password":"w"}}}`: {Mode: open, Proxy: &engi.UpstreamProxy{Address: "http://p.example.com:1", User: "u", Password: "w"}},
		`{"network":{"egressProxy":null,"rules":null}}`:                                                  {Mode: open},
		`{"network":{"rules":{"a.example.com":[{"transform":{"headers":{"A":"1"}}}]}}}`: {
			Mode: open, Headers: []engi.HeaderRule{{Host: "a.example.com", Headers: map[string]string{"A": "1"}}, {Host: "http://a.example.com", Headers: map[string]string{"A": "1"}}}},
		`{"network":{"rules":{"a.example.com":[{"transform":{"headers":{"A":"1","B":"key ${e2b.secrets.my-key}!"}}},{"transform":{"headers":{"A":"2"}}},{}]}}}`: {
			Mode: open, Headers: []engi.HeaderRule{{Host: "a.example.com", Headers: map[string]string{"A": "2", "B": "key ${secrets.my-key}!"}}}},
	} {
		var q newSandbox
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Fatal(err)
		}
		notes := map[string]string{}
		got, err := q.Network.policy(q.Internet, open, nil, notes)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		got.Detail = nil
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
		for _, widest := range []engi.Network{open, restricted, isolated, none, ""} {
			p, err := q.Network.policy(q.Internet, widest, []string{"mirror.example.com", "1.1.1.0/24"}, notes)
			if err != nil {
				t.Errorf("%s, %s at most: %v", body, widest, err)
			}
			if _, err := policy.Compile(p, policy.Node{}); err != nil {
				t.Errorf("%s, %s at most: the egress gateway refuses %+v: %v", body, widest, p, err)
			}
			if widest != open && p.Mode == open || (widest == none || widest == "") && p.Mode != none || widest == isolated && p.Mode != isolated {
				t.Errorf("%s, %s at most: mode %s", body, widest, p.Mode)
			}
		}
	}
}

// TestRulesOfTheNode checks what sandboxes reach on a node that restricts them all.
func TestRulesOfTheNode(t *testing.T) {
	rules := []string{"packages", "mirror.example.com:443", "1.1.1.0/24"}
	for body, want := range map[string]engi.NetworkPolicy{
		`{}`:                              {Mode: engi.NetworkRestricted, Allow: rules},
		`{"allow_internet_access":true}`:  {Mode: engi.NetworkRestricted, Allow: rules},
		`{"allow_internet_access":false}`: {Mode: engi.NetworkIsolated},
		`{"network":{"allowPublicTraffic":false,"allowOut":["8.8.8.8","1.1.1.7/24"]}}`: {Mode: engi.NetworkRestricted, Allow: append(slices.Clone(rules), "8.8.8.8")},
		`{"network":{"denyOut":["1.1.1.1"]}}`:                                          {Mode: engi.NetworkRestricted, Allow: rules[:2]},
		`{"network":{"denyOut":["0.0.0.0/0"]}}`:                                        {Mode: engi.NetworkIsolated},
		`{"network":{"denyOut":["0.0.0.0/0"],"allowOut":["a.example.com"]}}`:           {Mode: engi.NetworkRestricted, Allow: []string{"a.example.com"}},
		`{"network":{"denyOut":["0.0.0.0/0"],"allowOut":["0.0.0.0/0","8.8.8.8"]}}`:     {Mode: engi.NetworkRestricted, Allow: append(slices.Clone(rules), "8.8.8.8")},
	} {
		var q newSandbox
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Fatal(err)
		}
		got, err := q.Network.policy(q.Internet, engi.NetworkRestricted, rules, map[string]string{})
		if got.Detail = nil; err != nil {
			t.Errorf("%s: %v", body, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
	}
}

// TestNetworkIsShownAsWritten stores a policy and reads it back.
func TestNetworkIsShownAsWritten(t *testing.T) {
	const body = `{"allowOut":["0.0.0.0/0","1.1.1.1/8"],"denyOut":["8.8.8.8"],"egressProxy":{"address":"p:1","username":"u","password":"shh"},
		"rules":{"a.example.com":[{"transform":{"headers":{"A":"${e2b.secrets.x}"}}}]},"httpsPorts":[8443],"dnsServers":["1.1.1.1"]}`
	var n network
	if err := json.Unmarshal([]byte(body), &n); err != nil {
		t.Fatal(err)
	}
	p, err := n.policy(nil, engi.NetworkOpen, nil, map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	var stored map[string]any
	recode(p.Detail, &stored)
	p.Detail = stored
	got := shown(engi.Sandbox{Network: p})
	n.EgressProxy.Password, n.AllowPublicTraffic = "", new(true)
	if d := cmp.Diff(&n, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRulesRefuse(t *testing.T) {
	for _, body := range []string{
		`{"rules":{"a b":[]}}`,
		`{"rules":{"a.example.com":[{"transform":{"headers":{"A":"${e2b.identity.tokens.x}"}}}]}}`,
		`{"egressProxy":{"address":"socks5://nowhere"}}`,
		`{"egressProxy":{"address":":1"}}`,
		`{"denyOut":["fe80::1%eth0"]}`,
	} {
		var n network
		if err := json.Unmarshal([]byte(body), &n); err != nil {
			t.Fatal(err)
		}
		if _, err := n.policy(nil, engi.NetworkOpen, nil, map[string]string{}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
