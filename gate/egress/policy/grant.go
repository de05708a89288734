package policy

import (
	"fmt"
	"iter"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/engi-dev/engi"
)

// A hostIndex finds the grants, or the header rules, that apply to a host.
type hostIndex struct {
	labels   []string // of each grant or header rule, for events
	hosts    map[string][]hostEntry
	suffixes map[string][]hostEntry
}

// A hostEntry says where a grant or header rule applies at a host.
type hostEntry struct {
	index     int32  // of the grant or header rule
	port      uint16 // 0 means every port
	plainHTTP bool   // it applies to plain HTTP, and does not make the host reachable
}

func newHostIndex() *hostIndex {
	return &hostIndex{hosts: map[string][]hostEntry{}, suffixes: map[string][]hostEntry{}}
}

func (x *hostIndex) add(pattern string, at hostEntry) {
	m := x.hosts
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		m, pattern = x.suffixes, suffix
	}
	if !slices.Contains(m[pattern], at) {
		m[pattern] = append(m[pattern], at)
	}
}

func (x *hostIndex) empty() bool { return len(x.labels) == 0 }

// granting returns the label of an entry that makes a canonical name reachable
// over TLS on a port; port 0 means any.
func (x *hostIndex) granting(name string, port uint16) (string, bool) {
	for at := range x.entries(name) {
		if !at.plainHTTP && (at.port == 0 || port == 0 || at.port == port) {
			return x.labels[at.index], true
		}
	}
	return "", false
}

// entries yields the entries for a canonical name.
func (x *hostIndex) entries(name string) iter.Seq[hostEntry] {
	return func(yield func(hostEntry) bool) {
		if x.empty() {
			return
		}
		for _, at := range x.hosts[name] {
			if !yield(at) {
				return
			}
		}
		for i := range len(name) {
			if name[i] == '.' {
				for _, at := range x.suffixes[name[i+1:]] {
					if !yield(at) {
						return
					}
				}
			}
		}
	}
}

// applies reports whether anything applies to a canonical name.
func (x *hostIndex) applies(name string) bool {
	for range x.entries(name) {
		return true
	}
	return false
}

// indexes returns the sorted indexes of what applies to a canonical name.
func (x *hostIndex) indexes(name string) []int32 {
	var found []int32
	for at := range x.entries(name) {
		found = append(found, at.index)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Intercepts reports whether connections to host are intercepted because of a
// grant or a header rule.
func (p *Policy) Intercepts(host string) bool {
	name, problem := canonical(host)
	if problem != "" {
		return false
	}
	return p.grants.applies(name) || p.headers.applies(name)
}

// Intercepting reports whether any host is intercepted.
func (p *Policy) Intercepting() bool { return !p.grants.empty() || !p.headers.empty() }

// Grants returns the grants that apply to host, in their order, with As filled
// in.
func (p *Policy) Grants(host string) []engi.Grant {
	name, problem := canonical(host)
	if problem != "" {
		return nil
	}
	var all []engi.Grant
	for _, i := range p.grants.indexes(name) {
		g := p.source.Grants[i]
		g.As = grantUse(g)
		all = append(all, g)
	}
	return all
}

// Headers returns the header rules that apply to host, in their order.
func (p *Policy) Headers(host string) []engi.HeaderRule {
	name, problem := canonical(host)
	if problem != "" {
		return nil
	}
	var all []engi.HeaderRule
	for _, i := range p.headers.indexes(name) {
		all = append(all, p.source.Headers[i])
	}
	return all
}

func grantUse(g engi.Grant) engi.GrantUse {
	switch {
	case g.As != "":
		return g.As
	case g.Env != "":
		return engi.GrantPlaceholder
	default:
		return engi.GrantBearer
	}
}

// parsePattern parses [http://|https://]NAME|*.SUFFIX[:PORT] and returns the
// canonical form of the name or *.SUFFIX, and its entry. The suffix cannot be one
// under which anybody can register a name, since hosts receive secrets.
func parsePattern(pattern string) (string, hostEntry, *engi.Error) {
	const form = "write a name such as api.example.com or *.example.com, with :PORT if others are not meant"
	host, at := pattern, hostEntry{}
	if rest, ok := strings.CutPrefix(pattern, "http://"); ok {
		host, at.plainHTTP, at.port = rest, true, portHTTP
	} else if rest, ok := strings.CutPrefix(pattern, "https://"); ok {
		host = rest
	}
	if rest, port, ok := strings.Cut(host, ":"); ok {
		n, valid := parsePort(port)
		if !valid {
			return "", at, engi.Errorf(engi.Invalid, "host %q has a bad port", truncate(pattern)).WithRemedy(form)
		}
		host, at.port = rest, n
	}
	name, wild := strings.CutPrefix(host, "*.")
	if name == "" || strings.Contains(name, "*") {
		return "", at, engi.Errorf(engi.Invalid, "host %q is neither a name nor *.SUFFIX", truncate(pattern)).WithRemedy(form)
	}
	c, err := CheckName(name)
	if err != nil {
		return "", at, engi.Errorf(engi.Invalid, "%w", err).WithRemedy(form)
	}
	if !wild {
		return c, at, nil
	}
	if public, _ := publicsuffix.PublicSuffix(c); public == c {
		return "", at, engi.Errorf(engi.Invalid, "host %q includes everybody's names below %s", pattern, c).
			WithRemedy("name the hosts themselves or your own domain, such as *.example.%s", c)
	}
	return "*." + c, at, nil
}

func (p *Policy) addGrants(grants []engi.Grant) *engi.Error {
	p.grants = newHostIndex()
	type use struct {
		host, where, name string
		at                hostEntry
	}
	taken := map[use]string{}
	envs := map[string]string{}
	for i, g := range grants {
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "grant of secret %q %s", truncate(g.Secret), fmt.Sprintf(format, args...))
		}
		as := grantUse(g)
		switch {
		case g.Secret == "":
			return engi.Errorf(engi.Invalid, "grant %d names no secret", i+1).WithRemedy("give the ID or the name of one of your secrets")
		case len(g.Secret) > 128 || strings.ContainsFunc(g.Secret, isControl):
			return bad("has an invalid name").WithRemedy("give the ID or the name of one of your secrets")
		case len(g.Hosts) == 0:
			return bad("names no hosts").WithRemedy("list the hosts that may receive it")
		case g.Format != "" && (strings.Count(g.Format, "{}") != 1 || len(g.Format) > 1024 || strings.ContainsFunc(g.Format, isControl)):
			return bad("has a bad format %q", truncate(g.Format)).WithRemedy("write the header's value with {} once where the secret goes")
		case g.Env != "" && !isVariable(g.Env):
			return bad("has a bad variable %q", truncate(g.Env)).WithRemedy("a variable is letters, digits and underscores, no digit first")
		case g.Env != "" && envs[g.Env] != "":
			return bad("has the variable %s, which that of %q has, too", g.Env, truncate(envs[g.Env])).WithRemedy("give each its own variable")
		case as != engi.GrantPlaceholder && g.Env != "":
			return bad("is applied as %s, but has a variable for a placeholder", as).WithRemedy("leave out one of the two")
		}
		where, name := string(as), strings.ToLower(g.Name)
		switch as {
		case engi.GrantHeader:
			if !isToken(g.Name) || reservedHeader(g.Name) {
				return bad("cannot be put into the header %q", truncate(g.Name)).WithRemedy("name a header such as X-Api-Key; those that belong to the connection cannot be set")
			}
		case engi.GrantQuery:
			if g.Name == "" || len(g.Name) > 256 || strings.ContainsFunc(g.Name, isControl) {
				return bad("names no query parameter").WithRemedy("name it, such as key")
			}
			name = g.Name
		case engi.GrantBearer, engi.GrantBasic:
			if as == engi.GrantBasic && (strings.Contains(g.Name, ":") || strings.ContainsFunc(g.Name, isControl) || len(g.Name) > 256) {
				return bad("has a bad user %q", truncate(g.Name)).WithRemedy("a user has no colon and no control characters")
			}
			where, name = string(engi.GrantHeader), "authorization"
		case engi.GrantPlaceholder:
			if g.Env == "" {
				return bad("replaces a placeholder, but has no variable for it").WithRemedy("name the environment variable that programs in the sandbox read")
			}
			name = g.Env
		default:
			return bad("has the unknown use %q", truncate(string(as))).WithRemedy("use header, bearer, basic, query or placeholder")
		}
		if g.Env != "" {
			envs[g.Env] = g.Secret
		}
		for _, h := range g.Hosts {
			c, at, err := parsePattern(h)
			if err != nil {
				return bad("names a bad host: %v", err).WithRemedy("%s", err.Remedy)
			}
			wants := use{c, where, name, at}
			if other, ok := taken[wants]; ok && other != g.Secret {
				return bad("and that of %q set the same %s %q in requests to %s", truncate(other), where, name, c).WithRemedy("keep one of the two")
			}
			taken[wants] = g.Secret
			at.index = int32(i)
			p.grants.add(c, at)
		}
		p.grants.labels = append(p.grants.labels, "grant "+g.Secret)
	}
	return nil
}

func (p *Policy) addHeaders(rules []engi.HeaderRule) *engi.Error {
	p.headers = newHostIndex()
	for i, r := range rules {
		c, at, err := parsePattern(r.Host)
		if err != nil {
			return engi.Errorf(engi.Invalid, "header rule %d has a bad host: %v", i+1, err).WithRemedy("%s", err.Remedy)
		}
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "header rule for %s %s", c, fmt.Sprintf(format, args...))
		}
		if len(r.Headers) == 0 {
			return bad("sets no headers").WithRemedy("add headers, or leave it out")
		}
		if len(r.Headers) > 100 {
			return bad("sets %d headers", len(r.Headers)).WithRemedy("set at most 100")
		}
		for name, value := range r.Headers {
			switch {
			case !isToken(name):
				return bad("has the bad header %q", truncate(name)).WithRemedy("use letters, digits and dashes")
			case reservedHeader(name):
				return bad("sets %s, which belongs to the connection", name).WithRemedy("leave it out")
			case len(value) > 8<<10 || strings.ContainsFunc(value, isControl):
				return bad("has a bad value for %s", name).WithRemedy("use one line of at most 8 KiB")
			}
		}
		at.index = int32(i)
		p.headers.add(c, at)
		p.headers.labels = append(p.headers.labels, "headers "+c)
	}
	return nil
}

// parseProxy validates an upstream proxy. Errors never contain its password.
func parseProxy(u *engi.UpstreamProxy) (*Proxy, *engi.Error) {
	const remedy = "write socks5://HOST:PORT, http://HOST:PORT or https://HOST:PORT, and user and password in fields of their own"
	bad := func(problem string) *engi.Error {
		return engi.Errorf(engi.Invalid, "upstream proxy %s", problem).WithRemedy(remedy)
	}
	scheme, rest, ok := strings.Cut(u.Address, "://")
	if !ok {
		scheme, rest = "socks5", u.Address
	}
	scheme = strings.ToLower(scheme)
	rest = strings.TrimSuffix(rest, "/")
	switch {
	case u.Address == "":
		return nil, bad("has no address")
	case scheme != "socks5" && scheme != "socks5h" && scheme != "http" && scheme != "https":
		return nil, bad(fmt.Sprintf("has the unknown protocol %q", truncate(scheme)))
	case strings.Contains(rest, "@"):
		return nil, bad("has user and password in its address")
	case len(u.User) > 255 || len(u.Password) > 255:
		return nil, bad("has a user or a password longer than 255 bytes")
	case strings.ContainsFunc(u.User, isControl) || strings.ContainsFunc(u.Password, isControl) || scheme != "socks5" && strings.Contains(u.User, ":"):
		return nil, bad("has a user or a password that cannot be sent")
	}
	if scheme == "socks5h" {
		scheme = "socks5"
	}
	parsed, err := url.Parse("//" + rest)
	if err != nil || parsed.Path != "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, bad("has a bad address")
	}
	port, ok := parsePort(parsed.Port())
	if !ok {
		return nil, bad("has no port, or a bad one")
	}
	p := &Proxy{Scheme: scheme, Host: parsed.Hostname(), Port: port, User: u.User, Password: u.Password}
	if a, err := netip.ParseAddr(p.Host); err == nil {
		if a.Zone() != "" {
			return nil, bad("has a zone in its address")
		}
		p.Host = a.Unmap().String()
		return p, nil
	}
	if p.Host, err = CheckName(p.Host); err != nil {
		return nil, bad("has a bad host")
	}
	return p, nil
}

// isControl reports whether a character must not be in a header's value.
func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// isToken reports whether s is a valid header name.
func isToken(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return true
}

func tokenByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// reservedHeader reports whether a header belongs to the connection or says where
// the request goes.
func reservedHeader(name string) bool {
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer",
		"proxy-connection", "proxy-authorization", "proxy-authenticate", "expect":
		return true
	}
	return false
}

func isVariable(s string) bool {
	for i := range len(s) {
		b := s[i]
		if !(b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || i > 0 && b >= '0' && b <= '9') {
			return false
		}
	}
	return s != "" && len(s) <= 256
}
