package policy

import (
	"bytes"
	"net/netip"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A Request is the target named in the head of an HTTP/1 request.
type Request struct {
	Method string
	Host   string // canonical name, or an address; empty only for HTTP/1.0 without Host
	Port   uint16 // port in the request; 0 if it names none
}

// HTTPHost parses the head of the HTTP/1 request at the start of b. Need and err
// are the same as in [ClientHello]. A head that parsers could interpret differently is
// an error: two Host fields, a Host that differs from an absolute target, folded
// lines, spaces before a colon, user information, bare line feeds or carriage
// returns, NULs.
func HTTPHost(b []byte) (r Request, need int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		problem := ""
		switch lf := bytes.IndexByte(b, '\n'); {
		case len(b) >= MaxHead:
			problem = "its head is too long"
		case lf >= 0 && (lf == 0 || b[lf-1] != '\r'):
			problem = "a line ends in a bare line feed"
		case len(b) > 1 && b[0] == '\r' && b[1] == '\n':
			problem = "an empty line goes before it"
		default:
			return Request{}, len(b) + 1, nil
		}
		return Request{}, 0, badHead(problem)
	}
	if end+4 > MaxHead {
		return Request{}, 0, badHead("its head is too long")
	}
	r, problem := parseHead(string(b[:end]))
	if problem != "" {
		return Request{}, 0, badHead(problem)
	}
	return r, 0, nil
}

func badHead(problem string) *engi.Error {
	return engi.Errorf(engi.Invalid, "read the client's HTTP request: %s", problem)
}

func parseHead(head string) (r Request, problem string) {
	line, fields, _ := strings.Cut(head, "\r\n")
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	switch {
	case !ok || !ok2 || !isToken(method):
		return Request{}, "its first line is malformed"
	case version != "HTTP/1.1" && version != "HTTP/1.0":
		return Request{}, "its version is not HTTP/1"
	case target == "" || strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return Request{}, "its target is malformed"
	}
	host, hosts := "", 0
	for fields != "" {
		line, fields, _ = strings.Cut(fields, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) { // also for folded lines and spaces before the colon
			return Request{}, "a field is malformed"
		}
		if strings.ContainsFunc(value, isControl) {
			return Request{}, "a field has control characters"
		}
		if strings.EqualFold(name, "Host") {
			host = strings.Trim(value, " \t")
			hosts++
		}
	}
	switch {
	case hosts > 1:
		return Request{}, "it has Host twice"
	case hosts == 0 && version == "HTTP/1.1":
		return Request{}, "it has no Host"
	}
	r.Method = method
	if hosts == 1 {
		if r.Host, r.Port, problem = parseAuthority(host); problem != "" {
			return Request{}, "its Host " + problem
		}
	}
	authority := ""
	switch {
	case method == "CONNECT":
		authority = target
	case target[0] == '/', target == "*" && method == "OPTIONS":
		return r, ""
	default:
		scheme, after, ok := strings.Cut(target, "://")
		if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
			return Request{}, "its target is malformed"
		}
		if i := strings.IndexAny(after, "/?#\\"); i >= 0 {
			after = after[:i]
		}
		authority = after
	}
	h, p, problem := parseAuthority(authority)
	if problem != "" {
		return Request{}, "its target " + problem
	}
	if hosts == 1 && (h != r.Host || p != r.Port) {
		return Request{}, "its target and its Host differ"
	}
	r.Host, r.Port = h, p
	return r, ""
}

// parseAuthority parses HOST[:PORT].
func parseAuthority(s string) (host string, port uint16, problem string) {
	if strings.Contains(s, "@") {
		return "", 0, "has a user in it"
	}
	host, rest := s, ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if host, rest, ok = strings.Cut(inner, "]"); !ok {
			return "", 0, "lacks a ]"
		}
		a, err := netip.ParseAddr(host)
		if err != nil || !a.Is6() || a.Zone() != "" {
			return "", 0, "has a bad address"
		}
		host = a.Unmap().String()
	} else {
		if i := strings.IndexByte(s, ':'); i >= 0 {
			host, rest = s[:i], s[i:]
		}
		if a, err := netip.ParseAddr(host); err == nil {
			host = a.String()
		} else if host, problem = canonical(host); problem != "" {
			return "", 0, problem
		}
	}
	if rest == "" {
		return host, 0, ""
	}
	digits, ok := strings.CutPrefix(rest, ":")
	if !ok {
		return "", 0, "has something after its ]"
	}
	if port, ok = parsePort(digits); !ok {
		return "", 0, "has a bad port"
	}
	return host, port, ""
}
