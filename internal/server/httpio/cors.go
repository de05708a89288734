package httpio

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// CheckAllowedOrigin reports Invalid unless origin is the origin of a page as browsers
// write it, such as https://app.example.
func CheckAllowedOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != origin || strings.ToLower(origin) != origin || strings.ContainsAny(u.Host, "*@, ") ||
		u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80" || strings.HasSuffix(u.Host, ":") {
		return engi.Errorf(engi.Invalid, "%.80q is not the origin of pages", origin).
			WithRemedy("name each as browsers write it, like https://app.example or http://localhost:3000; there are no wildcards")
	}
	return nil
}

// AllowOrigin allows browsers to show the response to the page that made the request, if its
// origin is one of allowed. The browser's cookies and other credentials are never
// allowed. It answers preflight requests, and then returns true.
func AllowOrigin(w http.ResponseWriter, r *http.Request, allowed []string) (done bool) {
	if len(allowed) == 0 {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	h.Add("Vary", "Origin")
	if !slices.Contains(allowed, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", "Location, Retry-After, WWW-Authenticate, X-Request-Id")
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, *") // * does not include Authorization
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
