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

// A hostIndex finds which of some things apply to a host.
type hostIndex struct {
	labels []string // of each thing, for events
	hosts  map[string][]place
	under  map[string][]place
}

// A place is where a thing applies at a host.
type place struct {
	index int32  // of the thing
	port  uint16 // 0 means every port
	clear bool   // plain HTTP, which nothing opens by applying to it
}

func newHostIndex() *hostIndex {
	return &hostIndex{hosts: map[string][]place{}, under: map[string][]place{}}
}

func (x *hostIndex) add(pattern string, at place) {
	m := x.hosts
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		m, pattern = x.under, suffix
	}
	if !slices.Contains(m[pattern], at) {
		m[pattern] = append(m[pattern], at)
	}
}

func (x *hostIndex) empty() bool { return len(x.labels) == 0 }

// opens returns the label of a thing that opens TLS to a canonical name on a
// port; port 0 means any.
func (x *hostIndex) opens(name string, port uint16) (string, bool) {
	for at := range x.at(name) {
		if !at.clear && (at.port == 0 || port == 0 || at.port == port) {
			return x.labels[at.index], true
		}
	}
	return "", false
}

// at yields the places of a canonical name.
func (x *hostIndex) at(name string) iter.Seq[place] {
	return func(yield func(place) bool) {
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
				for _, at := range x.under[name[i+1:]] {
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
	for range x.at(name) {
		return true
	}
	return false
}

// all returns the indexes of what applies to a canonical name, in order.
func (x *hostIndex) all(name string) []int32 {
	var found []int32
	for at := range x.at(name) {
		found = append(found, at.index)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Intercepts reports whether connections to host are to be intercepted,
// because a grant or a header rule names it.
func (p *Policy) Intercepts(host string) bool {
	name, problem := canonical(host)
	if problem != "" {
		return false
	}
	return p.grants.applies(name) || p.headers.applies(name)
}

// Intercepting reports whether there is any host that is intercepted.
func (p *Policy) Intercepting() bool { return !p.grants.empty() || !p.headers.empty() }

// Grants returns the grants that apply to host, in their order, with As filled
// in.
func (p *Policy) Grants(host string) []engi.Grant {
	name, problem := canonical(host)
	if problem != "" {
		return nil
	}
	var all []engi.Grant
	for _, i := range p.grants.all(name) {
		g := p.source.Grants[i]
		g.As = useOf(g)
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
	for _, i := range p.headers.all(name) {
		all = append(all, p.source.Headers[i])
	}
	return all
}

func useOf(g engi.Grant) engi.GrantUse {
	switch {
	case g.As != "":
		return g.As
	case g.Env != "":
		return engi.GrantPlaceholder
	default:
		return engi.GrantBearer
	}
}

// checkPattern reads [http://|https://]NAME|*.SUFFIX[:PORT] and returns the
// canonical form of the name or *.SUFFIX, and the place. What is told to such
// a host must not be told to strangers, so the suffix cannot be one under
// which anybody gets a name.
func checkPattern(pattern string) (string, place, *engi.Error) {
	const form = "write a name such as api.example.com or *.example.com, with :PORT if others are not meant"
	host, at := pattern, place{}
	if rest, ok := strings.CutPrefix(pattern, "http://"); ok {
		host, at.clear, at.port = rest, true, portHTTP
	} else if rest, ok := strings.CutPrefix(pattern, "https://"); ok {
		host = rest
	}
	if rest, port, ok := strings.Cut(host, ":"); ok {
		n, valid := parsePort(port)
		if !valid {
			return "", at, engi.Errorf(engi.Invalid, "host %q has a bad port", short(pattern)).WithRemedy(form)
		}
		host, at.port = rest, n
	}
	name, wild := strings.CutPrefix(host, "*.")
	if name == "" || strings.Contains(name, "*") {
		return "", at, engi.Errorf(engi.Invalid, "host %q is neither a name nor *.SUFFIX", short(pattern)).WithRemedy(form)
	}
	c, err := CheckName(name)
	if err != nil {
		return "", at, engi.Errorf(engi.Invalid, "%w", err).WithRemedy(form)
	}
	if !wild {
		return c, at, nil
	}
	if public, _ := publicsuffix.PublicSuffix(c); public == c {
		return "", at, engi.Errorf(engi.Invalid, "host %q means everybody's names below %s", pattern, c).
			WithRemedy("name the hosts themselves, or the domain that is yours, such as *.example.%s", c)
	}
	return "*." + c, at, nil
}

func (p *Policy) addGrants(grants []engi.Grant) *engi.Error {
	p.grants = newHostIndex()
	type use struct {
		host, where, name string
		at                place
	}
	taken := map[use]string{}
	envs := map[string]string{}
	for i, g := range grants {
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "grant of secret %q %s", short(g.Secret), fmt.Sprintf(format, args...))
		}
		as := useOf(g)
		switch {
		case g.Secret == "":
			return engi.Errorf(engi.Invalid, "grant %d names no secret", i+1).WithRemedy("give the ID or the name of one of your secrets")
		case len(g.Secret) > 128 || strings.ContainsFunc(g.Secret, isControl):
			return bad("has a name that no secret has").WithRemedy("give the ID or the name of one of your secrets")
		case len(g.Hosts) == 0:
			return bad("names no hosts").WithRemedy("list the hosts that may get it")
		case g.Format != "" && (strings.Count(g.Format, "{}") != 1 || len(g.Format) > 1024 || strings.ContainsFunc(g.Format, isControl)):
			return bad("has a bad format %q", short(g.Format)).WithRemedy("write the header's value with {} once where the secret goes")
		case g.Env != "" && !isVariable(g.Env):
			return bad("has a bad variable %q", short(g.Env)).WithRemedy("a variable is letters, digits and underscores, no digit first")
		case g.Env != "" && envs[g.Env] != "":
			return bad("has the variable %s, and so has that of %q", g.Env, short(envs[g.Env])).WithRemedy("give each its own")
		case as != engi.GrantPlaceholder && g.Env != "":
			return bad("is applied as %s, and has a variable for a placeholder too", as).WithRemedy("leave out one of the two")
		}
		where, name := string(as), strings.ToLower(g.Name)
		switch as {
		case engi.GrantHeader:
			if !isToken(g.Name) || reservedHeader(g.Name) {
				return bad("cannot be put into the header %q", short(g.Name)).WithRemedy("name a header such as X-Api-Key; those that belong to the connection cannot be set")
			}
		case engi.GrantQuery:
			if g.Name == "" || len(g.Name) > 256 || strings.ContainsFunc(g.Name, isControl) {
				return bad("names no query parameter").WithRemedy("name it, such as key")
			}
			name = g.Name
		case engi.GrantBearer, engi.GrantBasic:
			if as == engi.GrantBasic && (strings.Contains(g.Name, ":") || strings.ContainsFunc(g.Name, isControl) || len(g.Name) > 256) {
				return bad("has a bad user %q", short(g.Name)).WithRemedy("a user has no colon and no control characters")
			}
			where, name = string(engi.GrantHeader), "authorization"
		case engi.GrantPlaceholder:
			if g.Env == "" {
				return bad("replaces a placeholder, and no variable holds one").WithRemedy("name the variable that programs inside read")
			}
			name = g.Env
		default:
			return bad("is applied in the unknown way %q", short(string(as))).WithRemedy("the ways are header, bearer, basic, query and placeholder")
		}
		if g.Env != "" {
			envs[g.Env] = g.Secret
		}
		for _, h := range g.Hosts {
			c, at, err := checkPattern(h)
			if err != nil {
				return bad("names a bad host: %v", err).WithRemedy("%s", err.Remedy)
			}
			wants := use{c, where, name, at}
			if other, ok := taken[wants]; ok && other != g.Secret {
				return bad("and that of %q want the same %s %q in requests to %s", short(other), where, name, c).WithRemedy("keep one of the two")
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
		c, at, err := checkPattern(r.Host)
		if err != nil {
			return engi.Errorf(engi.Invalid, "header rule %d has a bad host: %v", i+1, err).WithRemedy("%s", err.Remedy)
		}
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "header rule for %s %s", c, fmt.Sprintf(format, args...))
		}
		if len(r.Headers) == 0 {
			return bad("sets nothing").WithRemedy("give it headers, or leave it out")
		}
		if len(r.Headers) > 100 {
			return bad("sets %d headers", len(r.Headers)).WithRemedy("set 100 at most")
		}
		for name, value := range r.Headers {
			switch {
			case !isToken(name):
				return bad("has the bad header %q", short(name)).WithRemedy("a header's name is letters, digits and dashes")
			case reservedHeader(name):
				return bad("sets %s, which belongs to the connection", name).WithRemedy("leave it out")
			case len(value) > 8<<10 || strings.ContainsFunc(value, isControl):
				return bad("has a bad value for %s", name).WithRemedy("a value is one line of 8 KiB at most")
			}
		}
		at.index = int32(i)
		p.headers.add(c, at)
		p.headers.labels = append(p.headers.labels, "headers "+c)
	}
	return nil
}

// parseProxy checks an upstream proxy. Errors never show its password.
func parseProxy(u *engi.UpstreamProxy) (*Proxy, *engi.Error) {
	const remedy = "write socks5://HOST:PORT, http://HOST:PORT or https://HOST:PORT, user and password apart"
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
		return nil, bad(fmt.Sprintf("has the unknown protocol %q", short(scheme)))
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

// isControl reports whether a character could end a header's line or worse.
func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// isToken reports whether s is a proper name of a header.
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

// reservedHeader reports whether a header is the connection's, or says where
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
