package preview

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/access/strip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	tokenParameter = "engi_token"     // query parameter of a signed link
	tokenCookie    = "engi_preview"   // cookie that a signed link sets
	keyPrefix      = "engi_"          // prefix of the secrets of all keys
	accessHeader   = "X-Access-Token" // header with the token of E2B's clients
	hexPrefix      = "e2b_656e67695f" // keyPrefix in the form that E2B's older clients require

	// LongestLink is the maximum validity of a signed link.
	LongestLink = 30 * 24 * time.Hour

	maxCookies = 64 // maximum number of cookies tried; other previews may have set some in a browser
)

// Sign returns a URL that gives all its holders access to a port of a private
// sandbox until the URL expires. It returns Invalid unless ttl is between a second and
// [LongestLink].
func (p *Proxy) Sign(id engi.SandboxID, port int, ttl time.Duration) (address string, expires time.Time, err error) {
	if expires, err = until(ttl); err != nil {
		return "", time.Time{}, err
	}
	if port < 1 || port > 65535 {
		return "", time.Time{}, engi.Errorf(engi.Invalid, "%d is not a port", port)
	}
	return p.URL(id, port) + p.query(target{id: id, port: port}, expires), expires, nil
}

// SignApp is like Sign for a port of an app. The link follows the app: it stays valid when the
// sandbox of the app is replaced.
func (p *Proxy) SignApp(id engi.AppID, port int, ttl time.Duration) (address string, expires time.Time, err error) {
	if expires, err = until(ttl); err != nil {
		return "", time.Time{}, err
	}
	if port < 1 || port > 65535 {
		return "", time.Time{}, engi.Errorf(engi.Invalid, "%d is not a port", port)
	}
	return p.AppURL(id, port) + p.query(target{of: id, port: port}, expires), expires, nil
}

// PrivateApp reports whether the ports of an app refuse requests that have neither its owner's key
// nor a link.
func (p *Proxy) PrivateApp(ctx context.Context, a engi.App) (bool, error) {
	if p.o.Private || a.Sandbox == "" {
		return p.o.Private, nil
	}
	s, err := p.o.Sandboxes.Get(ctx, engi.Everyone, a.Sandbox)
	if engi.Is(err, engi.NotFound) {
		return false, nil // the sandbox is lost, and the app has no page now
	}
	return s.Ports.Private, err
}

// SignPage is like Sign for the published page of an app.
func (p *Proxy) SignPage(id engi.AppID, ttl time.Duration) (address string, expires time.Time, err error) {
	if expires, err = until(ttl); err != nil {
		return "", time.Time{}, err
	}
	return p.PageURL(id) + p.query(target{app: id}, expires), expires, nil
}

// until returns the time at which a link expires.
func until(ttl time.Duration) (time.Time, error) {
	if ttl < time.Second || ttl > LongestLink {
		return time.Time{}, engi.Errorf(engi.Invalid, "a link cannot be valid for %s", ttl).WithRemedy("choose a time between 1s and %s", LongestLink)
	}
	return time.Now().Add(ttl).UTC().Truncate(time.Second), nil
}

// query returns the query that turns an address into a signed link.
func (p *Proxy) query(t target, expires time.Time) string {
	return "?" + tokenParameter + "=" + p.token(t, expires)
}

func (p *Proxy) token(t target, expires time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(b, p.mac(t, b)...))
}

func (p *Proxy) mac(t target, expires []byte) []byte {
	h := hmac.New(sha256.New, p.o.LinkKey)
	switch {
	case t.workspace: // valid for all targets that the preview shows
		fmt.Fprintf(h, "workspace\x00%s\x00%s\x00%x", t.site, t.service, expires)
	case t.app != "":
		fmt.Fprintf(h, "published\x00%s\x00%x", t.app, expires)
	case t.of != "": // valid for every sandbox of the app
		fmt.Fprintf(h, "app\x00%s\x00%d\x00%x", t.of, t.port, expires)
	default:
		fmt.Fprintf(h, "preview\x00%s\x00%d\x00%x", t.id, t.port, expires)
	}
	return h.Sum(nil)
}

// checkToken returns the time at which a token expires; ok is false unless the token is valid for
// t now.
func (p *Proxy) checkToken(token string, t target) (time.Time, bool) {
	if len(token) > 128 {
		return time.Time{}, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 8+sha256.Size || !hmac.Equal(b[8:], p.mac(t, b[:8])) {
		return time.Time{}, false
	}
	expires := time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	return expires, time.Now().Before(expires)
}

// An access holds the rules for access to a preview or page.
type access struct {
	owner   engi.Owner
	others  []engi.Collaborator // collaborators, whose keys give the same access as the owner's
	private bool
	allow   func() error // called for requests without key and link; nil refuses them
	while   func() (context.Context, context.CancelFunc)
}

// authorize checks access. It returns true if it has responded to the request, which
// must not be served in that case.
func (p *Proxy) authorize(w http.ResponseWriter, r *http.Request, t target, a access) (done bool) {
	if !p.o.Private && !a.private {
		return false
	}
	if secret := secretOf(r.Header); secret != "" {
		k, err := p.o.Keys.Authenticate(r.Context(), secret)
		if err == nil && !k.Admin && k.Owner != a.owner && !slices.ContainsFunc(a.others, func(c engi.Collaborator) bool { return c.Owner == k.Owner }) {
			err = engi.Errorf(engi.Denied, "the key is not the owner's")
		}
		if err == nil {
			err = k.May(engi.ScopeSandboxes, true)
		}
		if err == nil {
			return false
		}
		if !engi.Is(err, engi.Denied, engi.Anonymous) {
			p.respondError(w, r, t, err)
			return true
		}
		p.refuse(w, r, t, http.StatusForbidden, t.texts().noAccess)
		return true
	}
	if token := tokenIn(r.URL.RawQuery); token != "" {
		if expires, ok := p.checkToken(token, t); ok {
			if !navigation(r) {
				return false
			}
			p.setTokenCookie(w, r, t, token, expires)
			return true
		}
	}
	tried := 0
	for _, c := range r.CookiesNamed(tokenCookie) {
		if tried++; tried > maxCookies || !p.ownPage(r, t) {
			break
		}
		if _, ok := p.checkToken(c.Value, t); ok {
			return false
		}
	}
	if a.allow != nil {
		err := a.allow()
		if err == nil {
			return false
		}
		if !engi.Is(err, engi.Denied, engi.Anonymous) {
			p.respondError(w, r, t, err)
			return true
		}
	}
	p.refuse(w, r, t, http.StatusForbidden, t.texts().needsAccess)
	return true
}

// whileValid returns a request whose context ends when the key that gave access becomes invalid.
func (p *Proxy) whileValid(r *http.Request, a access) (*http.Request, func()) {
	if !p.o.Private && !a.private {
		return r, func() {}
	}
	if secret := secretOf(r.Header); secret != "" {
		ctx, release := p.o.Keys.Valid(r.Context(), secret)
		return r.WithContext(ctx), release
	}
	if a.while == nil {
		return r, func() {}
	}
	ctx, release := a.while()
	return r.WithContext(ctx), release
}

// ownPage reports whether a request was made by a page of the same sandbox or app, by no
// page, or by a page that only shows this one. Browsers send cookies with requests
// from pages of other sandboxes, too, since these pages are on the same site. Over plain
// HTTP, except to localhost, browsers do not tell that a page made a simple request.
func (p *Proxy) ownPage(r *http.Request, t target) bool {
	page, shows := r.Header.Get("Origin"), false
	if page == "" {
		switch site := r.Header.Get("Sec-Fetch-Site"); {
		case site == "" || site == "none" || site == "same-origin":
			return true
		case navigation(r) && r.Header.Get("Sec-Fetch-Dest") == "document":
			return true // the user followed a link
		}
		page, shows = r.Referer(), navigation(r)
	}
	u, err := url.Parse(page)
	if err != nil || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) {
		return true
	}
	if from, ok := p.byName(plainHost(u.Host)); ok {
		if t.of != "" || t.workspace { // from.id is not known
			return from.of == t.of && from.site == t.site && from.service == t.service
		}
		return from.id == t.id && from.app == t.app
	}
	return shows // in a frame, for example of an editor
}

// setTokenCookie moves a token from the URL, where it could be seen, copied and
// passed on, to a cookie for this preview only.
func (p *Proxy) setTokenCookie(w http.ResponseWriter, r *http.Request, t target, token string, expires time.Time) {
	path := t.prefix + "/"
	c := &http.Cookie{
		Name: tokenCookie, Value: token, Path: path, Expires: expires, MaxAge: max(1, int(time.Until(expires).Seconds())),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil || p.o.Scheme == "https",
	}
	if dest := r.Header.Get("Sec-Fetch-Dest"); r.Header.Get("Sec-Fetch-Site") == "cross-site" && (dest == "iframe" || dest == "frame") {
		// Frames on another site, such as the dashboard on localhost, get no other cookies,
		// and get this cookie only within that site. Browsers that report a frame have a secure context.
		c.SameSite, c.Secure, c.Partitioned = http.SameSiteNoneMode, true, true
	}
	http.SetCookie(w, c)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "strict-origin") // ownPage needs it; the referrer never contains this URL
	h.Set("Location", localRef(r.URL.EscapedPath(), withoutToken(r.URL.RawQuery)))
	w.WriteHeader(http.StatusSeeOther)
}

// navigation reports whether a browser will display the response. Other clients
// may not store cookies.
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

// stripCredentials removes credentials for engi from h, and nothing else.
func stripCredentials(h http.Header, byHeader bool) {
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		if slices.ContainsFunc(h[name], containsKey) {
			h.Del(name) // also if the key is incomplete
		}
	}
	strip.Keys(h)
	if slices.ContainsFunc(h[accessHeader], accessToken) {
		h.Del(accessHeader)
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

// accessToken reports whether the value of a header has the form of a token for
// envd. Services may use the same header for their own tokens.
func accessToken(v string) bool {
	b, err := hex.DecodeString(v)
	return err == nil && len(b) == sha256.Size
}

// containsKey reports whether the value of a header contains the secret of a key,
// also as Basic credentials.
func containsKey(v string) bool {
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
		if name, value, _ := strings.Cut(pair, "="); isTokenParameter(name) {
			return value
		}
	}
	return ""
}

// withoutToken returns a query without the token parameter and otherwise unchanged.
func withoutToken(rawQuery string) string {
	if !strings.Contains(rawQuery, "engi") && !strings.Contains(rawQuery, "%") {
		return rawQuery
	}
	var kept []string
	for pair := range strings.SplitSeq(rawQuery, "&") {
		if name, _, _ := strings.Cut(pair, "="); !isTokenParameter(name) {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

func isTokenParameter(name string) bool {
	plain, err := url.QueryUnescape(name)
	return err == nil && plain == tokenParameter
}
