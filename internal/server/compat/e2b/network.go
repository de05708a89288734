package e2b

import (
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// everything is the network that contains all addresses.
const everything = "0.0.0.0/0"

type network struct {
	AllowOut           []string          `json:"allowOut,omitempty"`
	DenyOut            []string          `json:"denyOut,omitempty"`
	AllowPublicTraffic *bool             `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    string            `json:"maskRequestHost,omitempty"`
	EgressProxy        *egressProxy      `json:"egressProxy,omitempty"`
	Rules              map[string][]rule `json:"rules,omitempty"`
	HTTPSPorts         []int             `json:"httpsPorts,omitempty"`
	DNSServers         []string          `json:"dnsServers,omitempty"`
	Internet           *bool             `json:"allow_internet_access,omitempty"` // in updates only
}

type egressProxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// A rule changes requests to a host.
type rule struct {
	Transform *transform `json:"transform,omitempty"`
}

type transform struct {
	Headers map[string]string `json:"headers,omitempty"`
}

// policy converts n to a policy no wider than widest, and adds the settings
// that a policy cannot express to notes. Sandboxes of E2B can reach the internet by
// default; if widest is restricted, rules are the default instead.
// It reports Invalid.
func (n *network) policy(internet *bool, widest engi.Network, rules []string, notes map[string]string) (engi.NetworkPolicy, error) {
	delete(notes, noteInternet)
	if internet != nil {
		notes[noteInternet] = map[bool]string{true: "true", false: "false"}[*internet]
	}
	if n == nil {
		n = &network{}
	}
	p := engi.NetworkPolicy{Mode: engi.NetworkOpen}
	if err := n.check(); err != nil {
		return p, err
	}
	var err error
	if p.Headers, err = n.headers(); err != nil {
		return p, err
	}
	if e := n.EgressProxy; e != nil {
		p.Proxy = &engi.UpstreamProxy{Address: e.Address, User: e.Username, Password: e.Password}
	}
	p.Detail = n.detail()

	all := slices.Contains(n.AllowOut, everything)
	if (slices.Contains(n.DenyOut, everything) || internet != nil && !*internet) && !all {
		p.Mode = engi.NetworkRestricted
	}
	if widest == engi.NetworkRestricted && p.Mode == engi.NetworkOpen {
		p.Mode = engi.NetworkRestricted
		for _, r := range rules {
			if all || !slices.ContainsFunc(n.DenyOut, func(d string) bool { return prefix(d).Overlaps(prefix(r)) }) {
				p.Allow = append(p.Allow, r)
			}
		}
	}
	for _, a := range n.AllowOut {
		if r := ruleOf(a); a != everything && !slices.Contains(p.Allow, r) {
			p.Allow = append(p.Allow, r)
		}
	}
	for _, d := range n.DenyOut {
		// Allowed networks take precedence over denied ones, and an address that is not allowed
		// anyway need not be denied.
		if p.Mode == engi.NetworkOpen && !all && !covered(d, n.AllowOut) {
			p.Deny = append(p.Deny, ruleOf(d))
		}
	}
	if p.Mode == engi.NetworkRestricted && len(p.Allow) == 0 {
		p.Mode = engi.NetworkIsolated // no traffic, until an update allows some
	}
	switch widest {
	case engi.NetworkIsolated:
		p.Mode = engi.NetworkIsolated
	case engi.NetworkNone, "":
		p.Mode = engi.NetworkNone
	}
	if p.Mode == engi.NetworkIsolated || p.Mode == engi.NetworkNone {
		p.Allow, p.Deny, p.Headers, p.Proxy = nil, nil, nil, nil
	}
	return p, nil
}

// check reports Invalid for settings that E2B refuses too.
func (n *network) check() error {
	names := false
	for _, a := range n.AllowOut {
		if !address(a) {
			names = true
			if !hostName(a) {
				return engi.Errorf(engi.Invalid, "allowOut: %.80q is not an address, a network or a name", a)
			}
		}
	}
	for _, a := range n.DenyOut {
		if !address(a) {
			return engi.Errorf(engi.Invalid, "denyOut: %.80q is not an address or a network", a)
		}
	}
	if names && !slices.Contains(n.DenyOut, everything) {
		return engi.Errorf(engi.Invalid, "names in allowOut need %s in denyOut: without it, all other hosts are allowed too", everything)
	}
	if e := n.EgressProxy; e != nil {
		_, at, ok := strings.Cut(e.Address, "://")
		if !ok {
			at = e.Address
		}
		if host, port, err := net.SplitHostPort(at); err != nil || host == "" || port == "" {
			return engi.Errorf(engi.Invalid, "egressProxy: %.80q is not an address with a port", e.Address)
		}
	}
	if slices.Contains(n.HTTPSPorts, EnvdPort) {
		return engi.Errorf(engi.Invalid, "httpsPorts: %d is the port of envd", EnvdPort)
	}
	return nil
}

// detail returns the settings of n that cannot be derived from a policy, which
// reads of the sandbox return.
func (n *network) detail() map[string]any {
	d := map[string]any{}
	for name, list := range map[string][]string{"allowOut": n.AllowOut, "denyOut": n.DenyOut, "dnsServers": n.DNSServers} {
		if len(list) > 0 {
			d[name] = list
		}
	}
	if len(n.HTTPSPorts) > 0 {
		d["httpsPorts"] = n.HTTPSPorts
	}
	if e := n.EgressProxy; e != nil {
		d["egressProxy"] = map[string]any{"address": e.Address, "username": e.Username}
	}
	if len(n.Rules) > 0 {
		var rules map[string]any
		recode(n.Rules, &rules)
		d["rules"] = rules
	}
	return d
}

var (
	secretPlace   = regexp.MustCompile(`\$\{e2b\.secrets\.([A-Za-z0-9._-]+)\}`)
	identityPlace = regexp.MustCompile(`\$\{e2b\.identity\.[^}]*\}`)
)

// headers converts rules. Those for the same host keep their order, in which the last
// takes precedence.
func (n *network) headers() ([]engi.HeaderRule, error) {
	var all []engi.HeaderRule
	for _, host := range slices.Sorted(maps.Keys(n.Rules)) {
		if !hostName(host) {
			return nil, engi.Errorf(engi.Invalid, "rules: %.80q is not a host name", host)
		}
		set, secret := map[string]string{}, false
		for _, r := range n.Rules[host] {
			if r.Transform == nil {
				continue
			}
			for name, value := range r.Transform.Headers {
				if identityPlace.MatchString(value) {
					return nil, engi.Errorf(engi.Invalid, "rules: %s of %s needs an identity token, which engi does not issue: store a token as a secret, and write ${e2b.secrets.NAME}", name, host)
				}
				secret = secret || secretPlace.MatchString(value)
				set[name] = secretPlace.ReplaceAllString(value, "$${secrets.$1}")
			}
		}
		if len(set) > 0 {
			all = append(all, engi.HeaderRule{Host: host, Headers: set})
			if !secret { // secrets are never sent unencrypted
				all = append(all, engi.HeaderRule{Host: "http://" + host, Headers: set})
			}
		}
	}
	return all, nil
}

// ruleOf returns the rule for an address, network or name.
func ruleOf(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked().String()
	}
	return s
}

// covered reports whether one of allow contains all of d.
func covered(d string, allow []string) bool {
	n := prefix(d)
	return n.IsValid() && slices.ContainsFunc(allow, func(a string) bool {
		p := prefix(a)
		return p.IsValid() && p.Bits() <= n.Bits() && p.Contains(n.Addr())
	})
}

// prefix parses an address or a network; for other texts the result is not valid.
func prefix(s string) netip.Prefix {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked()
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.Prefix{}
}

func address(s string) bool { return prefix(s).IsValid() }

func hostName(s string) bool {
	s = strings.TrimPrefix(s, "*.")
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(c rune) bool {
		return c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
}

// shown returns a sandbox's network as its owner specified it, without passwords.
func shown(sandbox engi.Sandbox) *network {
	n := network{MaskRequestHost: sandbox.Ports.Host}
	public := !sandbox.Ports.Private
	n.AllowPublicTraffic = &public
	d := sandbox.Network.Detail
	if d == nil { // another API set the network
		n.AllowOut, n.DenyOut = sandbox.Network.Allow, sandbox.Network.Deny
	}
	recode(d["allowOut"], &n.AllowOut)
	recode(d["denyOut"], &n.DenyOut)
	recode(d["egressProxy"], &n.EgressProxy)
	recode(d["httpsPorts"], &n.HTTPSPorts)
	recode(d["dnsServers"], &n.DNSServers)
	recode(d["rules"], &n.Rules)
	return &n
}

// encode encodes values that were decoded from JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "null"
	}
	return string(b)
}

// recode converts v, a value from a store, to a typed variable. It does not change the
// variable if v has another shape.
func recode(v, into any) {
	if v != nil {
		_ = json.Unmarshal([]byte(encode(v)), into)
	}
}
