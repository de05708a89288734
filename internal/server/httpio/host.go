package httpio

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// CheckHost reports Denied for a request to a host name that is not in served,
// which protects from DNS rebinding. localhost and IP addresses are always accepted;
// "*" in served accepts every name.
func CheckHost(r *http.Request, served []string) error {
	if name := plain(r.Host); !known(name, served) {
		return engi.Errorf(engi.Denied, "this server does not serve the host name %.80q", name).
			WithRemedy("use the server's address, or add the name to its configured host names")
	}
	return nil
}

// CheckOrigin reports Denied for a request from a page of a host name that is
// not in served. Only browsers send Origin.
func CheckOrigin(r *http.Request, served []string) error {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || !known(plain(u.Host), served) {
		return engi.Errorf(engi.Denied, "this server accepts no requests from pages of %.80q", origin).
			WithRemedy("add the name to the server's configured host names")
	}
	return nil
}

// plain returns a host name in lower case, without port, brackets and final dot.
func plain(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func known(name string, served []string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(name) != nil ||
		slices.ContainsFunc(served, func(s string) bool { return s == "*" || strings.EqualFold(strings.TrimSuffix(s, "."), name) })
}
