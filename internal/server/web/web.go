// Package web serves the dashboard: its pages, which are built from ui and are
// part of the program, and the cookie by which a browser uses the HTTP API with
// the rights of a key. The pages access everything through that API. The package
// also serves ui/runtime, with which any page can show the pages that models write.
//
// A cookie is valid only in requests of the dashboard's own pages;
// see ownPage. Requests without the cookie pass through unchanged.
package web

import (
	"embed"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/access/signin"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// dist holds Vite's build in dist/app, or just a page that says that there is none.
//
//go:embed all:dist
var dist embed.FS

// App returns the script that shows pages in MCP clients; nil if it was not
// built.
func App() []byte {
	script, err := dist.ReadFile("dist/app/ui/app.js")
	if err != nil {
		return nil
	}
	return script
}

// Options configures a [Server]. API, SignIns and Keys are required.
type Options struct {
	API     http.Handler // serves all other paths
	SignIns *signin.Manager
	Keys    engi.Keys
	Hosts   []string     // host names that requests may name, besides loopback names; "*" accepts any
	Port    string       // port of the node, so that cookies of nodes on one machine do not collide
	Frames  []string     // origins of previews, which pages may show in frames, in the syntax of CSP
	Log     *slog.Logger // nil discards
}

// A Server serves the dashboard and the API. It is safe for concurrent use.
type Server struct {
	o      Options
	mux    *http.ServeMux
	files  map[string]*file // files by path below /dashboard/, and the page as ""
	policy string
}

// base is the path prefix of everything except the page itself.
const base = "/dashboard/"

// header is the header that pages add to requests. A page of another origin could send it
// only after a preflight request, which is not answered.
const header = "Engi-Dashboard"

// New returns the dashboard in front of an API.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, mux: http.NewServeMux(), files: load(dist)}
	s.policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; font-src 'self'; media-src blob:; " +
		"frame-src 'self'" + strings.Join(append([]string{""}, o.Frames...), " ") + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	s.mux.HandleFunc("GET /{$}", s.page)
	s.mux.HandleFunc("GET "+base+"{folder}/{name}", s.asset)
	s.mux.HandleFunc("GET "+base+"frame", s.frame)
	s.mux.HandleFunc("GET "+base+"sign-in", s.open)
	s.mux.HandleFunc("GET "+base+"session", s.session)
	s.mux.HandleFunc("POST "+base+"session", s.enter)
	s.mux.HandleFunc("DELETE "+base+"session", s.leave)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead), strings.HasPrefix(r.URL.Path, base):
		if err := httpio.CheckHost(r, s.o.Hosts); err != nil {
			s.fail(w, err)
			return
		}
		s.mux.ServeHTTP(w, r)
	case r.Header.Get("Cookie") != "" && r.Header.Get("Authorization") == "" && r.Header.Get("X-Api-Key") == "" && httpio.CheckHost(r, s.o.Hosts) == nil:
		s.call(w, r)
	default:
		s.o.API.ServeHTTP(w, r)
	}
}

// call forwards a browser's request to the API, with the key of its cookie if it has
// one.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	token := s.token(r)
	if token == "" {
		s.o.API.ServeHTTP(w, r)
		return
	}
	if err := ownPage(r); err != nil {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			s.o.API.ServeHTTP(w, r) // without a key: the description and health are public
			return
		}
		s.fail(w, err)
		return
	}
	ctx, secret, done, err := s.o.SignIns.Use(r.Context(), token)
	if engi.Is(err, engi.Anonymous) {
		s.setCookie(w, r, "", -1)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	defer done()
	r = r.WithContext(ctx)
	r.Header = r.Header.Clone()
	r.Header.Del("Cookie")
	r.Header.Set("Authorization", "Bearer "+secret)
	s.o.API.ServeHTTP(w, r)
}

// cookie returns the name of the cookie, and whether the browser uses HTTPS. If it does,
// no page of a host below ours can set a cookie of that name.
func (s *Server) cookie(r *http.Request) (name string, secure bool) {
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		return "__Host-engi", true
	}
	return "engi-" + s.o.Port, false
}

func (s *Server) token(r *http.Request) string {
	name, _ := s.cookie(r)
	if c, err := r.Cookie(name); err == nil {
		return c.Value
	}
	return ""
}

// ownPage reports Denied unless a page of exactly this origin made the request. Pages
// of previews may be on the same site, so that SameSite is not sufficient. Requests that
// change something also need our header, which forms cannot send.
func ownPage(r *http.Request) error {
	denied := engi.Errorf(engi.Denied, "this request does not come from the dashboard").WithRemedy("send a key in Authorization")
	marked, shown := r.Header.Get(header) != "", false
	for _, page := range []string{r.Header.Get("Origin"), r.Referer()} {
		if page == "" {
			continue
		}
		u, err := url.Parse(page)
		if err != nil || !strings.EqualFold(u.Host, r.Host) || r.TLS != nil && u.Scheme != "https" {
			return denied
		}
		shown = true
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return denied
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		if !marked {
			return denied
		}
	case r.Header.Get("Upgrade") != "":
		if r.Header.Get("Origin") == "" {
			return denied
		}
	case !marked && !shown && r.Header.Get("Sec-Fetch-Site") == "":
		return denied
	}
	return nil
}

func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, token string, age int) {
	name, secure := s.cookie(r)
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: token, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	})
}

// harden sets the security headers of every answer.
func harden(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	harden(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	if engi.Is(err, engi.Internal) {
		s.o.Log.Error("sign-in", "error", err)
	}
	p := httpio.Describe(err, "")
	_ = httpio.WriteJSON(w, p.Status, "application/problem+json", p) // the caller may have left
}

// page shows the dashboard without authentication: the page itself has no data.
func (s *Server) page(w http.ResponseWriter, r *http.Request) { s.show(w, r, http.StatusOK) }

func (s *Server) show(w http.ResponseWriter, r *http.Request, status int) {
	h := w.Header()
	harden(h)
	h.Set("Content-Security-Policy", s.policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-cache")
	s.files[""].serve(w, r, status)
}

func (s *Server) asset(w http.ResponseWriter, r *http.Request) {
	folder := r.PathValue("folder")
	f := s.files[folder+"/"+r.PathValue("name")]
	if f == nil {
		s.fail(w, engi.Errorf(engi.NotFound, "%.200q does not exist", r.URL.Path))
		return
	}
	h := w.Header()
	harden(h)
	if folder == "ui" { // other sites import the runtime under this fixed name
		h.Set("Cache-Control", "no-cache")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	} else {
		h.Set("Cache-Control", "public, max-age=31536000, immutable") // names contain hashes
	}
	f.serve(w, r, http.StatusOK)
}

// frame serves a page that shows HTML of programs, with scripts but without
// an origin and a network. The framing page sends the HTML in a message.
func (s *Server) frame(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	harden(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "+
		"img-src data: blob:; font-src data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write([]byte(`<!doctype html><html lang="en"><title>Artifact</title><script>
addEventListener('message', (e) => { if (e.source === parent) { document.open(); document.write(e.data); document.close() } }, { once: true })
</script></html>`)) // the caller may have left
}

// open signs in a browser that opens a link.
func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || strings.Contains(r.Header.Get("Sec-Purpose")+r.Header.Get("Purpose"), "prefetch") {
		s.fail(w, engi.Errorf(engi.Invalid, "no browser shows this page").WithRemedy("open the link"))
		return
	}
	token, k, err := s.o.SignIns.Open(r.Context(), r.URL.Query().Get("code"))
	switch {
	case engi.Is(err, engi.Anonymous):
		s.show(w, r, http.StatusUnauthorized) // the page tells the user how to sign in
		return
	case err != nil:
		s.fail(w, err)
		return
	}
	s.signedIn(w, r, k, token, "link")
	w.Header().Set("Location", "/")
	w.WriteHeader(http.StatusSeeOther)
}

func (s *Server) signedIn(w http.ResponseWriter, r *http.Request, k engi.Key, token, by string) {
	s.o.Log.Info("a browser signed in", "key", k.ID, "by", by)
	s.setCookie(w, r, token, int(signin.Life/time.Second))
	harden(w.Header())
	w.Header().Set("Cache-Control", "no-store")
}

// state is the session state that pages read.
type state struct {
	SignedIn bool         `json:"signed_in"`
	Key      string       `json:"key,omitempty"`
	Name     string       `json:"name,omitempty"`
	Owner    engi.Owner   `json:"owner,omitempty"`
	Admin    bool         `json:"admin,omitempty"`
	Scopes   []engi.Scope `json:"scopes,omitempty"`
	Expires  *time.Time   `json:"expires_at,omitempty"`
}

// session answers with the signed-in key, or with nothing if no key is signed in.
func (s *Server) session(w http.ResponseWriter, r *http.Request) {
	var st state
	if token := s.token(r); token != "" && ownPage(r) == nil {
		_, secret, done, err := s.o.SignIns.Use(r.Context(), token)
		if err == nil {
			done()
			var k engi.Key
			if k, err = s.o.Keys.Authenticate(r.Context(), secret); err == nil {
				st = stateOf(k)
			}
		}
		if err != nil && !engi.Is(err, engi.Anonymous) {
			s.fail(w, err)
			return
		}
	}
	s.answer(w, st)
}

func stateOf(k engi.Key) state {
	st := state{SignedIn: true, Key: k.ID, Name: k.Name, Owner: k.Owner, Admin: k.Admin, Scopes: k.Scopes}
	if !k.Expires.IsZero() {
		st.Expires = &k.Expires
	}
	return st
}

func (s *Server) answer(w http.ResponseWriter, st state) {
	harden(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	_ = httpio.WriteJSON(w, http.StatusOK, string(httpio.JSON), st) // the caller may have left
}

// enter signs in with a key.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Key string `json:"key"`
	}
	err := ownPage(r)
	if err == nil {
		err = json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&q)
		if over, ok := errors.AsType[*http.MaxBytesError](err); ok {
			err = httpio.TooLarge(over.Limit)
		} else if err != nil {
			err = engi.Errorf(engi.Invalid, "this is not a request to sign in").WithRemedy(`send {"key": "engi_…"}`)
		}
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	token, k, err := s.o.SignIns.Enter(r.Context(), strings.TrimSpace(q.Key))
	if err != nil {
		s.fail(w, err)
		return
	}
	s.signedIn(w, r, k, token, "key")
	s.answer(w, stateOf(k))
}

// leave signs out.
func (s *Server) leave(w http.ResponseWriter, r *http.Request) {
	if err := ownPage(r); err != nil {
		s.fail(w, err)
		return
	}
	if token := s.token(r); token != "" {
		if err := s.o.SignIns.Leave(r.Context(), token); err != nil {
			s.fail(w, err)
			return
		}
	}
	s.setCookie(w, r, "", -1)
	s.answer(w, state{})
}
