package policy

import (
	"cmp"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A proto is a set of protocols.
type proto uint8

const (
	tcp proto = 1 << iota
	udp
	icmp
	protocols = 3
)

func (p proto) index() int { return bits.TrailingZeros8(uint8(p)) }

func protoNamed(name string) proto {
	switch name {
	case "tcp":
		return tcp
	case "udp":
		return udp
	case "icmp":
		return icmp
	}
	return 0
}

// A rule is a parsed rule. Its target is exactly one of all, suffix, host and net.
type rule struct {
	text       string
	proto      proto
	protoGiven bool   // the rule names a protocol
	host       string // canonical name
	suffix     string // SUFFIX of *.SUFFIX, canonical
	net        netip.Prefix
	all        bool
	lo, hi     uint16 // first and last port; 0 to 65535 if the rule names no ports
	hasPorts   bool
	packages   string // ecosystem of a rule for packages, or allEcosystems
}

func (r *rule) isName() bool { return r.host != "" || r.suffix != "" }

// covers reports whether r includes every connection that o includes, where * means all public
// addresses.
func (r *rule) covers(o *rule) bool {
	if o.proto&^r.proto != 0 || o.lo < r.lo || o.hi > r.hi {
		return false
	}
	switch {
	case r.all:
		return true
	case r.host != "":
		return r.host == o.host
	case r.suffix != "":
		return o.host != r.suffix && o.host != "" && isBelow(o.host, r.suffix) || o.suffix != "" && isBelow(o.suffix, r.suffix)
	default:
		return o.net.IsValid() && r.net.Bits() <= o.net.Bits() && r.net.Contains(o.net.Addr())
	}
}

const maxRuleText = 400 // bytes; longer than any name with protocol and ports

// allIPv4 is a common notation for *, also used in E2B's documentation.
const allIPv4 = "0.0.0.0/0"

// parseRule parses one rule. The caller adds the position of the rule to errors.
func parseRule(text string) (rule, *engi.Error) {
	bad := func(format string, args ...any) *engi.Error {
		return engi.Errorf(engi.Invalid, "network rule %q "+format, append([]any{clip.Text(text, maxShown)}, args...)...)
	}
	const forms = "a rule is [PROTOCOL://]TARGET[:PORT[-PORT]], the target a name, *.SUFFIX, an address, a network or *"
	switch {
	case strings.TrimSpace(text) == "":
		return rule{}, engi.Errorf(engi.Invalid, "a network rule is empty").WithRemedy("leave it out; " + forms)
	case len(text) > maxRuleText:
		return rule{}, bad("is longer than %d characters", maxRuleText).WithRemedy(forms)
	case strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\ufffd' }):
		return rule{}, bad("contains spaces or control characters").WithRemedy("one rule is one string; " + forms)
	}
	r := rule{text: text, proto: tcp | udp, hi: 65535}
	if text == packagesRule {
		r.packages = allEcosystems
		return r, nil
	} else if ecosystem, ok := strings.CutPrefix(text, packagesRule+":"); ok {
		r.packages = cmp.Or(ecosystem, "none")
		return r, nil
	}
	target := text
	if name, rest, ok := strings.Cut(text, "://"); ok {
		if r.proto = protoNamed(name); r.proto == 0 {
			if name == "http" || name == "https" {
				return rule{}, bad("is a URL").WithRemedy("a rule names a host, not a page: write %q", hostOfURL(rest))
			}
			return rule{}, bad("has the unknown protocol %q", clip.Text(name, maxShown)).WithRemedy("the protocols are tcp, udp and icmp; leave it out for tcp and udp")
		}
		r.protoGiven, target = true, rest
	}
	target, port, problem := splitPort(target)
	if problem != "" {
		return rule{}, bad("%s", problem).WithRemedy("put an IPv6 address into brackets if a port follows, as in [2001:db8::1]:443")
	}
	if port != "" {
		if r.proto == icmp {
			return rule{}, bad("has a port, but icmp has none").WithRemedy("write %q", "icmp://"+target)
		}
		var ok bool
		if r.lo, r.hi, ok = parsePorts(port); !ok {
			return rule{}, bad("has a bad port %q", clip.Text(port, maxShown)).WithRemedy("a port is a number from 1 to 65535, a range two of them with a dash, the smaller first")
		}
		r.hasPorts = true
	}
	if err := r.parseTarget(target, bad); err != nil {
		return rule{}, err
	}
	return r, nil
}

func (r *rule) parseTarget(target string, bad func(string, ...any) *engi.Error) *engi.Error {
	switch {
	case target == "":
		return bad("has no target").WithRemedy("put a name, an address, a network or * before the port")
	case target == "*" || target == allIPv4:
		r.all = true
		return nil
	case strings.Contains(target, "%"):
		return bad("has a zone in its address").WithRemedy("leave out the %% and what follows")
	}
	if a, err := netip.ParseAddr(target); err == nil {
		a = a.Unmap()
		r.net = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	if strings.Contains(target, "/") {
		n, err := netip.ParsePrefix(target)
		if err != nil {
			return bad("is neither a network nor a host").WithRemedy("a network is ADDRESS/BITS, such as 192.0.2.0/24; a rule for a host has no path")
		}
		if n.Addr().Is4In6() {
			if n.Bits() < 96 {
				return bad("mixes IPv4 and IPv6").WithRemedy("write the IPv4 network, such as 192.0.2.0/24")
			}
			n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
		}
		if n != n.Masked() {
			return bad("has an address that is not the start of its network").WithRemedy("write %s for the network, or leave out the /%d for the address", n.Masked(), n.Bits())
		}
		if n.Bits() == 0 && n.Addr().Is4() {
			r.all = true
			return nil
		}
		r.net = n
		return nil
	}
	name, wild := strings.CutPrefix(target, "*.")
	if strings.Contains(name, "*") {
		return bad("has a * in the wrong place").WithRemedy("use * alone for all public hosts, or *. in front of a name for all names below it, as in *.example.com")
	}
	c, err := CheckName(name)
	if err != nil {
		e := bad("names no valid host: %v", err)
		if last := name[strings.LastIndexByte(name, '.')+1:]; last != "" && isNumber(last) {
			return e.WithRemedy("write an IPv4 address as four decimal numbers without leading zeros")
		}
		return e.WithRemedy("write a name such as example.com or *.example.com, or an address")
	}
	if wild {
		r.suffix = c
	} else {
		r.host = c
	}
	return nil
}

// splitPort splits TARGET[:PORT].
func splitPort(s string) (target, port, problem string) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		target, rest, ok := strings.Cut(inner, "]")
		if !ok {
			return "", "", "lacks a ]"
		}
		if !strings.Contains(target, ":") {
			return "", "", "has brackets around something other than an IPv6 address"
		}
		if bits, ok := strings.CutPrefix(rest, "/"); ok { // [ADDRESS]/BITS:PORT is also valid
			bits, rest, ok = strings.Cut(bits, ":")
			target += "/" + bits
			if !ok {
				return target, "", ""
			}
			rest = ":" + rest
		}
		if rest == "" {
			return target, "", ""
		}
		port, ok = strings.CutPrefix(rest, ":")
		if !ok || port == "" {
			return "", "", "has something other than a port after the ]"
		}
		return target, port, ""
	}
	if strings.Count(s, ":") != 1 {
		return s, "", ""
	}
	target, port, _ = strings.Cut(s, ":")
	if port == "" {
		return "", "", "ends in a colon"
	}
	return target, port, ""
}

func parsePorts(s string) (lo, hi uint16, ok bool) {
	a, b, isRange := strings.Cut(s, "-")
	lo, ok = parsePort(a)
	if !ok || !isRange {
		return lo, lo, ok
	}
	hi, ok = parsePort(b)
	return lo, hi, ok && lo <= hi
}

// parsePort parses a port strictly: no sign, no leading zero, not 0.
func parsePort(s string) (uint16, bool) {
	if s == "" || len(s) > 5 || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

func hostOfURL(rest string) string {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return clip.Text(rest, maxShown)
}
