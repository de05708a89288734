package config

import (
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Network configures the network of sandboxes.
type Network struct {
	Mode     string        `toml:"mode" env:"MODE" help:"default mode of sandboxes: none, isolated, restricted or open"`
	Max      string        `toml:"max" env:"MAX" help:"the widest mode that sandboxes may have"`
	Allow    []string      `toml:"allow" env:"ALLOW" help:"default rules of restricted sandboxes, like registry.example.com or *.example.com:443"`
	Private  []string      `toml:"private" env:"PRIVATE" help:"addresses and networks that rules may open although they are private or this machine's, like 10.1.2.0/24"`
	Hosts    []string      `toml:"hosts" env:"HOSTS" help:"fixed addresses of names, like registry.internal=10.1.2.3; a name may have several"`
	Resolver []string      `toml:"resolver" env:"RESOLVER" help:"DNS servers that names of sandboxes are looked up with; empty means those of this machine"`
	Spare    int           `toml:"spare" env:"SPARE" help:"links for sandboxes with network kept ready"`
	Limits   NetworkLimits `toml:"limits" envPrefix:"LIMITS_"`
	Events   int           `toml:"events" env:"EVENTS" help:"entries of the network log kept for one sandbox"`
	KeepAge  Duration      `toml:"keep_age" env:"KEEP_AGE" help:"how long they are kept"`
}

// NetworkLimits limits the traffic of one sandbox. Policies may lower the limits, not
// raise them.
type NetworkLimits struct {
	Up             Bytes `toml:"up" env:"UP" help:"bytes per second out of one sandbox; 0 is no limit"`
	Down           Bytes `toml:"down" env:"DOWN" help:"bytes per second into one sandbox; 0 is no limit"`
	Connections    int   `toml:"connections" env:"CONNECTIONS" help:"connections of one sandbox open at once; 0 is no limit"`
	NewConnections int   `toml:"new_connections" env:"NEW_CONNECTIONS" help:"new connections of one sandbox per second; 0 is no limit"`
	Lookups        int   `toml:"lookups" env:"LOOKUPS" help:"DNS queries of one sandbox per second; 0 is no limit"`
	Total          Bytes `toml:"total" env:"TOTAL" help:"bytes both ways until a sandbox is cut off; 0 is no limit"`
}

// Limits returns l as [engi.NetworkLimits], in which negative numbers mean no limit.
func (l NetworkLimits) Limits() engi.NetworkLimits {
	return engi.NetworkLimits{
		Up: orNone(int64(l.Up)), Down: orNone(int64(l.Down)), Connections: orNone(l.Connections),
		NewConnections: orNone(l.NewConnections), Lookups: orNone(l.Lookups), Total: orNone(int64(l.Total)),
	}
}

// Bound reports Denied for limits of a sandbox that exceed l.
func (l NetworkLimits) Bound(of engi.NetworkLimits) error {
	for _, x := range []struct {
		name        string
		asked, most int64
	}{
		{"up", of.Up, int64(l.Up)}, {"down", of.Down, int64(l.Down)}, {"connections", int64(of.Connections), int64(l.Connections)},
		{"new_connections", int64(of.NewConnections), int64(l.NewConnections)}, {"lookups", int64(of.Lookups), int64(l.Lookups)}, {"total", of.Total, int64(l.Total)},
	} {
		if x.most > 0 && x.asked != 0 && (x.asked < 0 || x.asked > x.most) {
			return engi.Errorf(engi.Denied, "network limit %s of %d is more than sandboxes of this node may have", x.name, x.asked).
				WithRemedy("ask for %d at most, or leave it out; the operator may raise network.limits.%s", x.most, x.name)
		}
	}
	return nil
}

func orNone[T int | int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

// PrivatePrefixes returns the networks of Private, which Validate has checked.
func (n Network) PrivatePrefixes() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range n.Private {
		if p, ok := parsePrefix(text); ok {
			all = append(all, p)
		}
	}
	return all
}

// StaticHosts returns the addresses of Hosts by lower-case name.
func (n Network) StaticHosts() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, text := range n.Hosts {
		if name, a, ok := parseHost(text); ok {
			all[name] = append(all[name], a)
		}
	}
	return all
}

// Resolvers returns the servers of Resolver, with 53 as the default port.
func (n Network) Resolvers() []netip.AddrPort {
	var all []netip.AddrPort
	for _, text := range n.Resolver {
		if a, ok := parseServer(text); ok {
			all = append(all, a)
		}
	}
	return all
}

// Default returns the policy of sandboxes without one.
func (n Network) Default() engi.NetworkPolicy {
	p := engi.NetworkPolicy{Mode: engi.Network(n.Mode)}
	if p.Mode == engi.NetworkRestricted {
		p.Allow = n.Allow
	}
	return p
}

// Allows reports whether sandboxes may have a mode.
func (n Network) Allows(mode engi.Network) bool {
	all := engi.Networks()
	return slices.Index(all, mode) <= slices.Index(all, engi.Network(n.Max))
}

func parsePrefix(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, a.BitLen()), true
}

func parseHost(text string) (string, netip.Addr, bool) {
	name, address, ok := strings.Cut(text, "=")
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(name), "."))
	a, err := netip.ParseAddr(strings.TrimSpace(address))
	return name, a, ok && err == nil && a.Zone() == "" && name != "" && len(name) <= 253 && !strings.ContainsAny(name, " */:\x00")
}

func parseServer(text string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a, a.Port() != 0
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return netip.AddrPortFrom(a, 53), err == nil
}

func (n Network) validate() error {
	for key, mode := range map[string]string{"network.mode": n.Mode, "network.max": n.Max} {
		if !slices.Contains(engi.Networks(), engi.Network(mode)) {
			return engi.Errorf(engi.Invalid, "%s is %.40q", key, mode).WithRemedy("use none, isolated, restricted or open")
		}
	}
	if !n.Allows(engi.Network(n.Mode)) {
		return engi.Errorf(engi.Invalid, "network.mode %s is wider than network.max %s", n.Mode, n.Max).WithRemedy("make them equal, or raise network.max")
	}
	for _, text := range n.Private {
		if _, ok := parsePrefix(text); !ok {
			return engi.Errorf(engi.Invalid, "network.private: %.60q is not an address or a network", text).WithRemedy("write it like 10.1.2.0/24")
		}
	}
	for _, text := range n.Hosts {
		if _, _, ok := parseHost(text); !ok {
			return engi.Errorf(engi.Invalid, "network.hosts: %.80q is not a name and an address", text).WithRemedy("write it like registry.internal=10.1.2.3")
		}
	}
	for _, text := range n.Resolver {
		if _, ok := parseServer(text); !ok {
			return engi.Errorf(engi.Invalid, "network.resolver: %.60q is not the address of a server", text).WithRemedy("write it like 10.1.2.3 or 10.1.2.3:53")
		}
	}
	l := n.Limits
	if min(l.Up, l.Down, l.Total) < 0 || min(l.Connections, l.NewConnections, l.Lookups) < 0 {
		return engi.Errorf(engi.Invalid, "[network.limits] has a negative number").WithRemedy("say 0 for no limit")
	}
	if n.Spare < 0 || n.Events < 1 || n.KeepAge < 0 {
		return engi.Errorf(engi.Invalid, "[network]: spare and keep_age are at least 0, events at least 1")
	}
	return nil
}

// Secrets configures the operator's secrets for requests of sandboxes.
type Secrets struct {
	Environment []string `toml:"environment" env:"ENVIRONMENT" help:"variables of the server that grants may use as secrets, like github=GITHUB_TOKEN for every owner or ann/npm=NPM_TOKEN for one; with @HOST[+HOST] they may be sent to these hosts and nowhere else"`
}

// An EnvSecret is a secret whose value is in the environment of the server.
type EnvSecret struct {
	Owner    engi.Owner // owner that may use the secret; empty means all
	Name     string     // name of the secret in grants
	Variable string     // environment variable with the value
	Hosts    string     // hosts joined by +, as in [engi.Secret]
}

// HostList returns Hosts as a list.
func (x EnvSecret) HostList() []string {
	return strings.FieldsFunc(x.Hosts, func(r rune) bool { return r == '+' || r == ' ' })
}

// List returns the secrets with values from the environment.
func (s Secrets) List() []EnvSecret {
	var all []EnvSecret
	for _, text := range s.Environment {
		if x, ok := parseSecret(text); ok {
			all = append(all, x)
		}
	}
	return all
}

func parseSecret(text string) (x EnvSecret, ok bool) {
	name, variable, ok := strings.Cut(text, "=")
	if owner, rest, owned := strings.Cut(name, "/"); owned {
		x.Owner, name = engi.Owner(strings.TrimSpace(owner)), rest
		ok = ok && x.Owner != ""
	}
	variable, hosts, pinned := strings.Cut(variable, "@")
	x.Name, x.Variable, x.Hosts = strings.TrimSpace(name), strings.TrimSpace(variable), strings.TrimSpace(hosts)
	return x, ok && pinned == (x.Hosts != "") && x.Name != "" && len(x.Name) <= 128 && x.Variable != "" && !strings.ContainsFunc(x.Name, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func (s Secrets) validate() error {
	seen := map[EnvSecret]bool{}
	for _, text := range s.Environment {
		x, ok := parseSecret(text)
		if !ok {
			// The error omits the text, because users put values here by mistake.
			return engi.Errorf(engi.Invalid, "secrets.environment: one of the entries is not NAME=VARIABLE or OWNER/NAME=VARIABLE, each with @HOST[+HOST] or without").
				WithRemedy("write it like github=GITHUB_TOKEN; the value itself is never in the configuration")
		}
		x.Variable, x.Hosts = "", ""
		if seen[x] {
			return engi.Errorf(engi.Invalid, "secrets.environment has %s twice", x.Name)
		}
		seen[x] = true
	}
	return nil
}

// Registries configures the package registries that programs in sandboxes use in place of
// their default ones.
type Registries struct {
	Apt      string                        `toml:"apt" env:"APT" help:"Debian's archive that templates are built from and install packages from, like https://deb.example.com/debian, unless a definition names its own; existing builds stay as they are"`
	NPM      string                        `toml:"npm" env:"NPM" help:"registry of npm, pnpm, yarn, bun and deno"`
	Pip      string                        `toml:"pip" env:"PIP" help:"index of pip and uv, like https://pypi.example.com/simple"`
	Go       string                        `toml:"go" env:"GO" help:"module proxies of go, like https://goproxy.example.com,direct"`
	Template map[string]TemplateRegistries `toml:"template" env:"-" help:"overrides for single templates: tables [registries.template.NAME] with npm, pip and go; - is none"`
}

// TemplateRegistries overrides Registries for one template. An empty field overrides nothing; -
// means the default registry.
type TemplateRegistries struct {
	NPM string `toml:"npm"`
	Pip string `toml:"pip"`
	Go  string `toml:"go"`
}

// Of returns the registries of one template.
func (m Registries) Of(template string) TemplateRegistries {
	t := m.Template[template]
	or := func(own, all string) string {
		switch own {
		case "":
			return all
		case "-":
			return ""
		}
		return own
	}
	return TemplateRegistries{NPM: or(t.NPM, m.NPM), Pip: or(t.Pip, m.Pip), Go: or(t.Go, m.Go)}
}

// Env returns the environment variables that make programs use the registries.
func (m TemplateRegistries) Env() map[string]string {
	env := map[string]string{}
	set := func(value string, names ...string) {
		if value == "" {
			return
		}
		for _, n := range names {
			env[n] = value
		}
	}
	set(m.NPM, "NPM_CONFIG_REGISTRY", "npm_config_registry", "YARN_REGISTRY", "YARN_NPM_REGISTRY_SERVER", "BUN_CONFIG_REGISTRY")
	set(m.Pip, "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
	set(m.Go, "GOPROXY")
	return env
}

func (m Registries) validate() error {
	check := func(key, text string) error {
		u, err := url.Parse(text)
		if text == "" || text == "-" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil {
			return nil
		}
		if err == nil && u.User != nil {
			return engi.Errorf(engi.Invalid, "%s has a user or a password, which every program in a sandbox could read", key).
				WithRemedy("store it as a secret and grant it to the mirror's host; see docs/secrets.md")
		}
		return engi.Errorf(engi.Invalid, "%s: %.80q is not a URL", key, text).WithRemedy("write it like https://mirror.example.com/path")
	}
	if err := check("registries.apt", m.Apt); err != nil {
		return err
	}
	all := map[string]TemplateRegistries{"registries.": {m.NPM, m.Pip, m.Go}}
	for name, t := range m.Template {
		all["registries.template."+name+"."] = t
	}
	for _, prefix := range slices.Sorted(maps.Keys(all)) {
		t := all[prefix]
		if err := check(prefix+"npm", t.NPM); err != nil {
			return err
		}
		if err := check(prefix+"pip", t.Pip); err != nil {
			return err
		}
		for _, p := range strings.FieldsFunc(t.Go, func(r rune) bool { return r == ',' || r == '|' }) {
			if p == "direct" || p == "off" || p == "-" {
				continue
			}
			if err := check(prefix+"go", p); err != nil {
				return err
			}
		}
	}
	return nil
}
