package policy

import (
	"fmt"
	"iter"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Host is a host to which a grant or a header rule applies.
type Host struct {
	Name  string // canonical name; the SUFFIX of *.SUFFIX if Below is set
	Below bool   // the host stands for every name below Name, but not for Name itself
	Port  uint16 // port; 0 means every port; never 0 for plain HTTP
	TLS   bool   // TLS, otherwise plain HTTP
}

// ParseHost parses [http://|https://]NAME|*.SUFFIX[:PORT]. It reports Invalid,
// also for a SUFFIX under which anyone can register a name, since hosts receive
// secrets.
func ParseHost(text string) (Host, error) {
	h, err := parseHost(text)
	if err != nil {
		return Host{}, err
	}
	return h, nil
}

func parseHost(text string) (Host, *engi.Error) {
	bad := func(problem string) (Host, *engi.Error) {
		return Host{}, engi.Errorf(engi.Invalid, "host %q %s", clip.Text(text, maxShown), problem).
			WithRemedy("write a name such as api.example.com or *.example.com, with :PORT if others are not meant")
	}
	h, name := Host{TLS: true}, text
	if rest, ok := strings.CutPrefix(name, "http://"); ok {
		name, h.TLS, h.Port = rest, false, portHTTP
	} else {
		name = strings.TrimPrefix(name, "https://")
	}
	if rest, port, ok := strings.Cut(name, ":"); ok {
		if h.Port, ok = parsePort(port); !ok {
			return bad("has a bad port")
		}
		name = rest
	}
	name, h.Below = strings.CutPrefix(name, "*.")
	if name == "" || strings.Contains(name, "*") {
		return bad("is neither a name nor *.SUFFIX")
	}
	var err error
	if h.Name, err = CheckName(name); err != nil {
		return bad("has a bad name: " + err.Error())
	}
	if public, _ := publicsuffix.PublicSuffix(h.Name); h.Below && public == h.Name {
		return Host{}, engi.Errorf(engi.Invalid, "host %q includes everybody's names below %s", clip.Text(text, maxShown), h.Name).
			WithRemedy("name the hosts themselves or your own domain, such as *.example.%s", h.Name)
	}
	return h, nil
}

// Covers reports whether h includes connections to a canonical name.
func (h Host) Covers(name string, port uint16, tls bool) bool {
	if h.Port != port && h.Port != 0 || h.TLS != tls {
		return false
	}
	if !h.Below {
		return name == h.Name
	}
	return len(name) > len(h.Name)+1 && isBelow(name, h.Name)
}

// Includes reports whether h covers every connection that other covers.
func (h Host) Includes(other Host) bool {
	if !other.Below {
		return h.Covers(other.Name, other.Port, other.TLS)
	}
	return h.Below && h.TLS == other.TLS && (h.Port == 0 || h.Port == other.Port) && (h.Name == other.Name || isBelow(other.Name, h.Name))
}

// String returns the name or *.SUFFIX.
func (h Host) String() string {
	if h.Below {
		return "*." + h.Name
	}
	return h.Name
}

// A hostIndex finds the grants, or the header rules, that apply to a host.
type hostIndex struct {
	labels   []string // label of each grant or header rule, for events
	hosts    map[string][]hostEntry
	suffixes map[string][]hostEntry
}

// A hostEntry is a grant or header rule that applies to a host.
type hostEntry struct {
	index int32  // index of the grant or header rule
	port  uint16 // 0 means every port
	tls   bool   // TLS, otherwise plain HTTP, which grants do not make reachable
}

func newHostIndex() *hostIndex {
	return &hostIndex{hosts: map[string][]hostEntry{}, suffixes: map[string][]hostEntry{}}
}

func (x *hostIndex) add(h Host, index int) {
	m := x.hosts
	if h.Below {
		m = x.suffixes
	}
	if e := (hostEntry{int32(index), h.Port, h.TLS}); !slices.Contains(m[h.Name], e) {
		m[h.Name] = append(m[h.Name], e)
	}
}

func (x *hostIndex) empty() bool { return len(x.labels) == 0 }

// granting returns the label of an entry that makes a canonical name reachable
// over TLS on a port; port 0 means any port.
func (x *hostIndex) granting(name string, port uint16) (string, bool) {
	for at := range x.entries(name) {
		if at.tls && (at.port == 0 || port == 0 || at.port == port) {
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

// applies reports whether a grant or rule applies to a canonical name.
func (x *hostIndex) applies(name string) bool {
	for range x.entries(name) {
		return true
	}
	return false
}

// Intercepts reports whether connections to host are intercepted because of a
// grant, a header rule or a request rule.
func (p *Policy) Intercepts(host string) bool {
	name, problem := canonical(host)
	if problem != "" {
		return false
	}
	return p.grants.applies(name) || p.headers.applies(name) || p.requests.judged.applies(name)
}

// Bounds of the grants and header rules of one policy.
const (
	maxGrants     = 256
	maxGrantHosts = 1000 // maximum number of hosts of all grants and header rules
	maxSetHeaders = 64   // maximum number of headers of one header rule
	maxFormat     = 1 << 10
	maxValue      = 4 << 10 // bytes; maximum length of a header in a header rule
)

var (
	secretForm   = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

	// SecretReference matches references to secrets in values of header rules. Its
	// submatch is the name.
	SecretReference = regexp.MustCompile(`\$\{(?:e2b\.)?secrets\.([A-Za-z0-9._-]{1,128})\}`)
)

// reservedVariables lists variables that cannot hold placeholders: programs need them to run, or to
// trust the authority of intercepted connections.
var reservedVariables = setOf(
	"PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH",
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
	"NODE_EXTRA_CA_CERTS", "DENO_CERT",
)

// GrantUse returns the use of a grant's secret, with As filled in.
func GrantUse(g engi.Grant) engi.GrantUse {
	switch {
	case g.As != "":
		return g.As
	case g.Env != "":
		return engi.GrantPlaceholder
	default:
		return engi.GrantBearer
	}
}

// checkGrant validates a grant except for its hosts. It returns the part of a
// request that the grant sets, which no other grant may set at the same host. It is empty for
// placeholders.
func checkGrant(g engi.Grant) (sets string, _ *engi.Error) {
	bad := func(format string, args ...any) *engi.Error {
		return engi.Errorf(engi.Invalid, "grant of secret %q %s", clip.Text(g.Secret, maxShown), fmt.Sprintf(format, args...))
	}
	as := GrantUse(g)
	switch {
	case !secretForm.MatchString(g.Secret):
		return "", bad("has an invalid name").WithRemedy("give the ID or the name of a secret; 'engi secret ls' lists them")
	case len(g.Hosts) == 0:
		return "", bad("names no hosts").WithRemedy("list the hosts that may receive it")
	case g.Format != "" && (strings.Count(g.Format, "{}") != 1 || len(g.Format) > maxFormat || strings.ContainsFunc(g.Format, isControl)):
		return "", bad("has a bad format %q", clip.Text(g.Format, maxShown)).WithRemedy("write the header's value with {} once where the secret goes")
	case g.Format != "" && g.Format != "{}" && as != engi.GrantHeader:
		return "", bad("has a format, but is applied as %s", as).WithRemedy("apply it as a header, or leave out the format")
	case g.Env != "" && !variableForm.MatchString(g.Env):
		return "", bad("has a bad variable %q", clip.Text(g.Env, maxShown)).WithRemedy("use letters, digits and underscores, no digit first")
	case reservedVariables[strings.ToUpper(g.Env)]:
		return "", bad("has the variable %s, which programs need for other things", g.Env).WithRemedy("use another variable")
	case as != engi.GrantPlaceholder && g.Env != "":
		return "", bad("is applied as %s, but has a variable for a placeholder", as).WithRemedy("leave out one of the two")
	case g.Name != "" && (as == engi.GrantBearer || as == engi.GrantPlaceholder):
		return "", bad("has the name %q, which %s does not use", clip.Text(g.Name, maxShown), as).WithRemedy("leave out the name, or apply it as header or query")
	}
	switch as {
	case engi.GrantHeader:
		if !isToken(g.Name) || reservedHeader(g.Name) {
			return "", bad("cannot be put into the header %q", clip.Text(g.Name, maxShown)).WithRemedy("name a header such as X-Api-Key; headers of the connection cannot be set")
		}
		return "header " + strings.ToLower(g.Name), nil
	case engi.GrantQuery:
		if g.Name == "" || len(g.Name) > 256 || strings.ContainsFunc(g.Name, isControl) {
			return "", bad("names no query parameter").WithRemedy("name the parameter, such as key")
		}
		return "query parameter " + g.Name, nil
	case engi.GrantBearer, engi.GrantBasic:
		if strings.Contains(g.Name, ":") || strings.ContainsFunc(g.Name, isControl) || len(g.Name) > 256 {
			return "", bad("has a bad user %q", clip.Text(g.Name, maxShown)).WithRemedy("a user has no colon and no control characters")
		}
		return "header authorization", nil
	case engi.GrantPlaceholder:
		if g.Env == "" {
			return "", bad("replaces a placeholder, but has no variable for it").WithRemedy("name the environment variable that programs in the sandbox read")
		}
		return "", nil
	}
	return "", bad("has the unknown use %q", clip.Text(string(as), maxShown)).WithRemedy("use header, bearer, basic, query or placeholder")
}

func (p *Policy) addGrants(grants []engi.Grant) *engi.Error {
	p.grants = newHostIndex()
	if len(grants) > maxGrants {
		return engi.Errorf(engi.Invalid, "there are %d grants", len(grants)).WithRemedy("use at most %d", maxGrants)
	}
	type use struct {
		host Host
		sets string
	}
	users, envs := map[use]string{}, map[string]string{} // secrets by use, and secrets by variable
	for i, g := range grants {
		if g.Secret == "" {
			return engi.Errorf(engi.Invalid, "grant %d names no secret", i+1).WithRemedy("give the ID or the name of a secret; 'engi secret ls' lists them")
		}
		sets, err := checkGrant(g)
		if err != nil {
			return err
		}
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "grant of secret %q %s", g.Secret, fmt.Sprintf(format, args...))
		}
		if other, ok := envs[g.Env]; ok && g.Env != "" {
			return bad("has the variable %s, which that of %q has, too", g.Env, other).WithRemedy("give each its own variable")
		}
		envs[g.Env] = g.Secret
		for _, text := range g.Hosts {
			h, err := parseHost(text)
			if err != nil {
				return bad("names a bad host: %v", err).WithRemedy("%s", err.Remedy)
			}
			if other, ok := users[use{h, sets}]; ok && sets != "" {
				return bad("and that of %q set the same %s in requests to %s", other, sets, h).WithRemedy("keep one of the two")
			}
			users[use{h, sets}] = g.Secret
			p.grants.add(h, i)
		}
		p.grants.labels = append(p.grants.labels, "grant "+g.Secret)
	}
	return nil
}

func (p *Policy) addHeaders(rules []engi.HeaderRule) *engi.Error {
	p.headers = newHostIndex()
	for i, r := range rules {
		h, err := parseHost(r.Host)
		if err != nil {
			return engi.Errorf(engi.Invalid, "header rule %d has a bad host: %v", i+1, err).WithRemedy("%s", err.Remedy)
		}
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "header rule for %s %s", h, fmt.Sprintf(format, args...))
		}
		if n := len(r.Headers); n == 0 || n > maxSetHeaders {
			return bad("sets %d headers", n).WithRemedy("set 1 to %d headers, or leave it out", maxSetHeaders)
		}
		for name, value := range r.Headers {
			switch {
			case !isToken(name):
				return bad("has the bad header %q", clip.Text(name, maxShown)).WithRemedy("use letters, digits and dashes")
			case reservedHeader(name):
				return bad("sets %s, which belongs to the connection", name).WithRemedy("leave it out")
			case len(value) > maxValue || strings.ContainsFunc(value, isControl):
				return bad("has a bad value for %s", name).WithRemedy("use one line of at most %d bytes", maxValue)
			case strings.Contains(SecretReference.ReplaceAllString(value, ""), "${"):
				return bad("has a ${…} for %s that names no secret", name).WithRemedy("write ${secrets.NAME}")
			}
		}
		p.headers.add(h, i)
		p.headers.labels = append(p.headers.labels, "headers "+h.String())
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
		return nil, bad(fmt.Sprintf("has the unknown protocol %q", clip.Text(scheme, maxShown)))
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

// reservedHeader reports whether a header belongs to the connection or determines where
// the request goes.
func reservedHeader(name string) bool {
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer",
		"proxy-connection", "proxy-authorization", "proxy-authenticate", "expect", "http2-settings":
		return true
	}
	return false
}
