package intercept

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"

	"github.com/engi-dev/engi"
)

const (
	maxGrants  = 256
	maxHosts   = 1000 // of all grants and header rules
	maxHeaders = 64   // of one header rule
	maxFormat  = 4 << 10
)

// A Host is where a grant or a header rule holds.
type Host struct {
	Name  string // lower case, in ASCII; the part behind *. if Below
	Below bool   // every name below Name, but not Name
	Port  uint16 // 0 means every port; only if TLS
	TLS   bool
}

// ParseHost reads [http://|https://]NAME|*.SUFFIX[:PORT]. It reports Invalid.
func ParseHost(text string) (h Host, err error) {
	bad := func(why string) (Host, error) {
		return Host{}, engi.Errorf(engi.Invalid, "host %.80q %s", text, why).
			WithRemedy("write api.example.com or *.example.com, with :PORT if others are not meant; http:// in front sends the secret without encryption")
	}
	name := text
	h.TLS = true
	switch scheme, rest, ok := strings.Cut(text, "://"); {
	case ok && strings.EqualFold(scheme, "http"):
		name, h.TLS, h.Port = rest, false, 80
	case ok && strings.EqualFold(scheme, "https"):
		name = rest
	case ok:
		return bad("begins with another scheme than http and https")
	}
	if rest, port, ok := strings.Cut(name, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return bad("has a port that is no number from 1 to 65535")
		}
		name, h.Port = rest, uint16(n)
	}
	name, h.Below = strings.CutPrefix(name, "*.")
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil {
		return bad("is an address: only names can be granted")
	}
	ascii, err := idna.Lookup.ToASCII(name)
	if err != nil || ascii == "" || len(ascii) > 253 {
		return bad("is no host name")
	}
	for label := range strings.SplitSeq(ascii, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return bad("is no host name")
		}
	}
	if h.Below && !strings.Contains(ascii, ".") {
		return bad("covers a whole top-level domain")
	}
	if last := ascii[strings.LastIndexByte(ascii, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return bad("ends in a number, as addresses do")
	}
	h.Name = ascii
	return h, nil
}

// Covers reports whether a connection is to h.
func (h Host) Covers(name string, port uint16, tls bool) bool {
	if h.Port != port && h.Port != 0 || h.TLS != tls {
		return false
	}
	if !h.Below {
		return name == h.Name
	}
	rest, ok := strings.CutSuffix(name, h.Name)
	return ok && len(rest) > 1 && strings.HasSuffix(rest, ".")
}

// A rule is a grant or a header rule at one of its hosts.
type rule struct {
	host    Host
	grant   engi.Grant        // Secret is empty for a header rule
	headers map[string]string // of a header rule
	holder  string            // placeholder of the grant; empty for none
}

// rulesOf returns the rules of a policy: general ones first, so that what is
// more exact has the last word. It reports Invalid.
func rulesOf(p engi.NetworkPolicy) ([]rule, error) {
	if len(p.Grants) > maxGrants {
		return nil, engi.Errorf(engi.Invalid, "there are %d grants, %d at most", len(p.Grants), maxGrants)
	}
	var rules []rule
	envs := map[string]bool{}
	for i, g := range p.Grants {
		if err := checkGrant(&g); err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "grant %d: %w", i+1, err).WithRemedy("%s", engi.RemedyOf(err))
		}
		if g.Env != "" && envs[g.Env] {
			return nil, engi.Errorf(engi.Invalid, "grant %d: another one has the variable %s already", i+1, g.Env).WithRemedy("give each grant a variable of its own")
		}
		envs[g.Env] = true
		for _, text := range g.Hosts {
			h, err := ParseHost(text)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "grant %d: %w", i+1, err).WithRemedy("%s", engi.RemedyOf(err))
			}
			rules = append(rules, rule{host: h, grant: g})
		}
	}
	for i, r := range p.Headers {
		h, err := ParseHost(r.Host)
		if err == nil {
			err = checkHeaders(h, r.Headers)
		}
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "header rule %d: %w", i+1, err).WithRemedy("%s", engi.RemedyOf(err))
		}
		rules = append(rules, rule{host: h, headers: r.Headers})
	}
	if len(rules) > maxHosts {
		return nil, engi.Errorf(engi.Invalid, "grants and header rules have %d hosts, %d at most", len(rules), maxHosts)
	}
	slices.SortStableFunc(rules, func(a, b rule) int {
		if a.host.Below != b.host.Below {
			if a.host.Below {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(a.host.Name), len(b.host.Name)), cmp.Compare(min(a.host.Port, 1), min(b.host.Port, 1)))
	})
	for i, a := range rules {
		for _, b := range rules[i+1:] {
			if a.host == b.host && a.grant.Secret != "" && b.grant.Secret != "" && a.sets() != "" && a.sets() == b.sets() {
				return nil, engi.Errorf(engi.Invalid, "secrets %.40q and %.40q are both granted as %s to %s", a.grant.Secret, b.grant.Secret, a.sets(), a.host.Name).
					WithRemedy("grant one of them to this host")
			}
		}
	}
	return rules, nil
}

var (
	secretForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,160}$`)
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// checkGrant fills what a grant left empty.
func checkGrant(g *engi.Grant) error {
	if !secretForm.MatchString(g.Secret) {
		return engi.Errorf(engi.Invalid, "%.40q is neither name nor ID of a secret", g.Secret).WithRemedy("'engi secret ls' shows those that there are")
	}
	if len(g.Hosts) == 0 {
		return engi.Errorf(engi.Invalid, "secret %.40s is granted to no host", g.Secret).WithRemedy("name the hosts it may be sent to")
	}
	if g.Env != "" && !envForm.MatchString(g.Env) {
		return engi.Errorf(engi.Invalid, "%.40q cannot be a variable", g.Env).WithRemedy("use letters, digits and underscores")
	}
	if reservedEnv[strings.ToUpper(g.Env)] {
		return engi.Errorf(engi.Invalid, "the variable %s makes programs trust the wall", g.Env).WithRemedy("use another one")
	}
	if g.As == "" {
		g.As = engi.GrantBearer
		if g.Env != "" {
			g.As = engi.GrantPlaceholder
		}
	}
	if g.Format == "" {
		g.Format = "{}"
	}
	if !strings.Contains(g.Format, "{}") || len(g.Format) > maxFormat || !httpguts.ValidHeaderFieldValue(g.Format) {
		return engi.Errorf(engi.Invalid, "the format of secret %.40s does not show where it stands, or has line breaks", g.Secret).WithRemedy("put {} where the secret belongs")
	}
	if g.Format != "{}" && g.As != engi.GrantHeader {
		return engi.Errorf(engi.Invalid, "secret %.40s has a format, but is applied as %s", g.Secret, g.As).WithRemedy("apply it as a header, or drop the format")
	}
	switch g.As {
	case engi.GrantHeader:
		return checkHeader(g.Name)
	case engi.GrantBearer:
	case engi.GrantBasic:
		if strings.ContainsAny(g.Name, ":") || len(g.Name) > maxFormat || !httpguts.ValidHeaderFieldValue(g.Name) {
			return engi.Errorf(engi.Invalid, "the user of secret %.40s has a colon or line breaks", g.Secret).WithRemedy("use another name")
		}
	case engi.GrantQuery:
		if g.Name == "" || len(g.Name) > maxFormat {
			return engi.Errorf(engi.Invalid, "secret %.40s is to be a query parameter without name", g.Secret).WithRemedy("set the name of the parameter")
		}
	case engi.GrantPlaceholder:
		if g.Env == "" {
			return engi.Errorf(engi.Invalid, "secret %.40s has a placeholder that nobody sees", g.Secret).WithRemedy("set the variable that holds it, or apply it as header, bearer, basic or query")
		}
	default:
		return engi.Errorf(engi.Invalid, "%.40q is no way to apply a secret", string(g.As)).WithRemedy("use header, bearer, basic, query or placeholder")
	}
	if g.Name != "" && (g.As == engi.GrantBearer || g.As == engi.GrantPlaceholder) {
		return engi.Errorf(engi.Invalid, "secret %.40s has the name %.40q, which %s does not use", g.Secret, g.Name, g.As).WithRemedy("drop the name, or apply it as header or query")
	}
	return nil
}

// framing are headers that say where a message ends or who it is for.
var framing = map[string]bool{
	"host": true, "connection": true, "content-length": true, "transfer-encoding": true, "te": true, "trailer": true,
	"upgrade": true, "expect": true, "keep-alive": true, "proxy-connection": true, "http2-settings": true,
}

func checkHeader(name string) error {
	if len(name) > 256 || !httpguts.ValidHeaderFieldName(name) {
		return engi.Errorf(engi.Invalid, "%.40q is no name of a header", name).WithRemedy("use one like X-Api-Key")
	}
	if framing[strings.ToLower(name)] {
		return engi.Errorf(engi.Invalid, "header %s cannot be set: it belongs to the connection", name).WithRemedy("use another header")
	}
	return nil
}

func checkHeaders(h Host, headers map[string]string) error {
	if len(headers) == 0 || len(headers) > maxHeaders {
		return engi.Errorf(engi.Invalid, "%s gets %d headers", h.Name, len(headers)).WithRemedy("set 1 to %d", maxHeaders)
	}
	for name, value := range headers {
		if err := checkHeader(name); err != nil {
			return err
		}
		if len(value) > maxFormat || !httpguts.ValidHeaderFieldValue(value) {
			return engi.Errorf(engi.Invalid, "the value of header %s is too long or has line breaks", name).WithRemedy("use one line of at most %d bytes", maxFormat)
		}
		if rest := reference.ReplaceAllString(value, ""); strings.Contains(rest, "${") {
			return engi.Errorf(engi.Invalid, "the value of header %s has a ${…} that names no secret", name).WithRemedy("write ${secrets.NAME}")
		}
	}
	return nil
}

// reference is how header rules name secrets.
var reference = regexp.MustCompile(`\$\{(?:e2b\.)?secrets\.([A-Za-z0-9._-]{1,128})\}`)

// sets says what of a request a grant decides; empty if others may, too.
func (r rule) sets() string {
	switch r.grant.As {
	case engi.GrantHeader:
		return "header " + strings.ToLower(r.grant.Name)
	case engi.GrantBearer, engi.GrantBasic:
		return "header authorization"
	case engi.GrantQuery:
		return "query parameter " + r.grant.Name
	}
	return ""
}

// secrets returns the names of the secrets that r sends.
func (r rule) secrets() []string {
	if r.grant.Secret != "" {
		return []string{r.grant.Secret}
	}
	var names []string
	for _, v := range r.headers {
		for _, m := range reference.FindAllStringSubmatch(v, -1) {
			if !slices.Contains(names, m[1]) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// describe says what a rule is, for events.
func (r rule) describe() string {
	name := r.host.Name
	if r.host.Below {
		name = "*." + name
	}
	if r.grant.Secret != "" {
		return "grant of " + r.grant.Secret + " to " + name
	}
	return "headers for " + name
}
