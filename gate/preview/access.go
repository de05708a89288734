package preview

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

const (
	tokenParameter = "engi_token"     // of a signed link
	tokenCookie    = "engi_preview"   // what a signed link leaves behind
	keyPrefix      = "engi_"          // of every secret of an API key
	hexPrefix      = "e2b_656e67695f" // of the same as E2B's older clients want keys to look

	// LongestLink is how long a signed link may be good.
	LongestLink = 30 * 24 * time.Hour

	maxCookies = 64 // of ours that are tried: neighbours may have set some in a browser
)

// Sign returns an address that lets everybody who has it visit a port of a
// private sandbox until it expires. It reports Invalid for a time that is not
// between a second and [LongestLink].
func (p *Proxy) Sign(id engi.SandboxID, port int, good time.Duration) (address string, expires time.Time, err error) {
	if good < time.Second || good > LongestLink {
		return "", time.Time{}, engi.Errorf(engi.Invalid, "a link cannot be good for %s", good).
			WithRemedy("choose a time between 1s and %s", LongestLink)
	}
	if port < 1 || port > 65535 {
		return "", time.Time{}, engi.Errorf(engi.Invalid, "%d is not a port", port)
	}
	expires = time.Now().Add(good).UTC().Truncate(time.Second)
	return p.URL(id, port) + "?" + tokenParameter + "=" + p.token(id, port, expires), expires, nil
}

func (p *Proxy) token(id engi.SandboxID, port int, expires time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(b, p.mac(id, port, b)...))
}

func (p *Proxy) mac(id engi.SandboxID, port int, expires []byte) []byte {
	h := hmac.New(sha256.New, p.o.LinkKey)
	fmt.Fprintf(h, "preview\x00%s\x00%d\x00%x", id, port, expires)
	return h.Sum(nil)
}

// good reports when a token expires, if it is one of ours, for that port, and
// has not yet.
func (p *Proxy) good(token string, id engi.SandboxID, port int) (time.Time, bool) {
	if len(token) > 128 {
		return time.Time{}, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 8+sha256.Size || !hmac.Equal(b[8:], p.mac(id, port, b[:8])) {
		return time.Time{}, false
	}
	expires := time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	return expires, time.Now().Before(expires)
}

// admit lets a request in, or answers it and says so.
func (p *Proxy) admit(w http.ResponseWriter, r *http.Request, t target, s engi.Sandbox) (done bool) {
	if !p.o.Private && !s.Ports.Private {
		return false
	}
	if secret := secretOf(r.Header); secret != "" {
		k, err := p.o.Keys.Authenticate(r.Context(), secret)
		if err == nil && !k.Admin && k.Owner != s.Owner {
			err = engi.Errorf(engi.Denied, "the key is not the owner's")
		}
		if err == nil {
			err = k.May(engi.ScopeSandboxes, true)
		}
		if err == nil {
			return false
		}
		if k := engi.KindOf(err); k != engi.Denied && k != engi.Anonymous {
			p.fail(w, r, t, err)
			return true
		}
		p.refuse(w, r, t, http.StatusForbidden, "The key does not open this sandbox")
		return true
	}
	if token := tokenIn(r.URL.RawQuery); token != "" {
		if expires, ok := p.good(token, t.id, t.port); ok {
			if !navigation(r) {
				return false
			}
			p.remember(w, r, t, token, expires)
			return true
		}
	}
	tried := 0
	for _, c := range r.CookiesNamed(tokenCookie) {
		if tried++; tried > maxCookies || !p.ownOrigin(r, t) {
			break
		}
		if _, ok := p.good(c.Value, t.id, t.port); ok {
			return false
		}
	}
	if p.o.Allow != nil {
		err := p.o.Allow(r, s, t.port)
		if err == nil {
			return false
		}
		if k := engi.KindOf(err); k != engi.Denied && k != engi.Anonymous {
			p.fail(w, r, t, err)
			return true
		}
	}
	p.refuse(w, r, t, http.StatusForbidden, private)
	return true
}

// ownOrigin reports whether a request that a browser adds cookies to was made
// by a page of the same sandbox, or by no page. Pages of other sandboxes are
// neighbours on the same site, so that cookies alone prove nothing.
func (p *Proxy) ownOrigin(r *http.Request, t target) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || sameHost(origin, r.Host) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	from, ok := p.byName(plainHost(u.Host))
	return ok && from.id == t.id
}

// remember moves a token from the address, where it would be seen, copied and
// sent on, into a cookie that only this preview gets back.
func (p *Proxy) remember(w http.ResponseWriter, r *http.Request, t target, token string, expires time.Time) {
	path := t.prefix + "/"
	http.SetCookie(w, &http.Cookie{
		Name: tokenCookie, Value: token, Path: path, Expires: expires, MaxAge: max(1, int(time.Until(expires).Seconds())),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil || p.o.Scheme == "https",
	})
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", local(r.URL.EscapedPath(), withoutToken(r.URL.RawQuery)))
	w.WriteHeader(http.StatusSeeOther)
}

// navigation reports whether a browser is about to show what r gets. Other
// clients may keep no cookies.
func navigation(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return wantsHTML(r)
}

// secretOf returns the secret of an engi key in r; empty if there is none.
func secretOf(h http.Header) string {
	if scheme, secret, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		if secret = strings.TrimSpace(secret); strings.HasPrefix(secret, keyPrefix) {
			return secret
		}
	}
	if secret := h.Get("X-Api-Key"); strings.HasPrefix(secret, keyPrefix) {
		return secret
	}
	return ""
}

// stripCredentials takes out of h what opens engi, and nothing else.
func stripCredentials(h http.Header, byHeader bool) {
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		for _, v := range h[name] {
			if holdsKey(v) {
				h.Del(name)
				break
			}
		}
	}
	h.Del("E2b-Traffic-Access-Token")
	h.Del(protocolHeader)
	if byHeader {
		h.Del("E2b-Sandbox-Id")
		h.Del("E2b-Sandbox-Port")
	}
	if cookies, ok := h["Cookie"]; ok {
		var kept []string
		for _, line := range cookies {
			for c := range strings.SplitSeq(line, ";") {
				c = strings.TrimSpace(c)
				if name, _, _ := strings.Cut(c, "="); c != "" && strings.TrimSpace(name) != tokenCookie {
					kept = append(kept, c)
				}
			}
		}
		if h.Del("Cookie"); len(kept) > 0 {
			h.Set("Cookie", strings.Join(kept, "; "))
		}
	}
}

// holdsKey reports whether the value of a header carries the secret of a key,
// also as the password or name of the Basic scheme.
func holdsKey(v string) bool {
	if strings.Contains(v, keyPrefix) || strings.Contains(strings.ToLower(v), hexPrefix) {
		return true
	}
	scheme, rest, _ := strings.Cut(v, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	return err == nil && strings.Contains(string(b), keyPrefix)
}

// tokenIn returns the token in a query; empty if there is none.
func tokenIn(rawQuery string) string {
	for pair := range strings.SplitSeq(rawQuery, "&") {
		if name, value, _ := strings.Cut(pair, "="); isToken(name) {
			return value
		}
	}
	return ""
}

// withoutToken is a query without our parameter, and otherwise to the letter.
func withoutToken(rawQuery string) string {
	if !strings.Contains(rawQuery, "engi") && !strings.Contains(rawQuery, "%") {
		return rawQuery
	}
	var kept []string
	for pair := range strings.SplitSeq(rawQuery, "&") {
		if name, _, _ := strings.Cut(pair, "="); !isToken(name) {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

func isToken(name string) bool {
	plain, err := url.QueryUnescape(name)
	return err == nil && plain == tokenParameter
}
