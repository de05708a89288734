package preview

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestPrivate(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Allow = func(r *http.Request, s engi.Sandbox) error {
			if want := s.Notes["token"]; want != "" && r.Header.Get("E2b-Traffic-Access-Token") == want {
				return nil
			}
			return engi.Errorf(engi.Denied, "no")
		}
	})
	b := f.sandbox(echo)
	b.change(func(s *engi.Sandbox) {
		s.Ports.Private, s.Notes = true, map[string]string{"token": "what-opens-the-ports"}
	})
	secret := map[string]string{}
	for name, k := range map[string]engi.Key{
		"owner": {Owner: "ann"}, "other": {Owner: "bob"}, "admin": {Admin: true}, "scoped": {Owner: "ann", Scopes: []engi.Scope{engi.ScopeVolumes}},
	} {
		_, s, err := f.keys.Create(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		secret[name] = s
	}
	for _, c := range []struct {
		name, header, value string
		status              int
	}{
		{"nothing", "X-Nothing", "1", 403},
		{"owner", "Authorization", "Bearer " + secret["owner"], 200},
		{"owner's other header", "X-Api-Key", secret["owner"], 200},
		{"admin", "Authorization", "bearer " + secret["admin"], 200},
		{"another owner", "Authorization", "Bearer " + secret["other"], 403},
		{"another scope", "Authorization", "Bearer " + secret["scoped"], 403},
		{"unknown key", "Authorization", "Bearer engi_" + strings.Repeat("a", 52), 403},
		{"traffic token", "E2b-Traffic-Access-Token", "what-opens-the-ports", 200},
		{"wrong traffic token", "E2b-Traffic-Access-Token", "tik", 403},
	} {
		r := b.request("GET", "/", nil)
		r.Header.Set(c.header, c.value)
		res, body := do(t, r)
		if res.StatusCode != c.status {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, body)
		}
		if strings.Contains(body, c.value) && c.status == 200 {
			t.Errorf("%s: the credential went inside: %s", c.name, body)
		}
	}
	b.change(func(s *engi.Sandbox) { s.Ports.Private = false })
	look(t, b.request("GET", "/", nil))
	f.proxy.o.Private = true
	if res, _ := do(t, b.request("GET", "/", nil)); res.StatusCode != 403 {
		t.Errorf("private by default: %d", res.StatusCode)
	}
}

func TestRequestsEndWithTheirKey(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Private = true })
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begin")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	k, secret, err := f.keys.Create(t.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := b.request("GET", "/", nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+secret)
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	begin := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, begin); err != nil || res.StatusCode != 200 {
		t.Fatal(res.StatusCode, err)
	}
	if err := f.keys.Revoke(ctx, "ann", k.ID); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(res.Body); err == nil || ctx.Err() != nil {
		t.Errorf("the response goes on with %q, %v", rest, err)
	}
}

// TestRequestsEndWithWhatAllowedThem: a request without a key ends when its permission ends.
func TestRequestsEndWithWhatAllowedThem(t *testing.T) {
	ended := errors.New("what allowed it has ended")
	var mu sync.Mutex
	var end context.CancelCauseFunc
	f := newFixture(t, func(o *Options) {
		o.Allow = func(*http.Request, engi.Sandbox) error { return nil }
		o.While = func(r *http.Request, _ engi.Sandbox) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(r.Context())
			mu.Lock()
			defer mu.Unlock()
			end = cancel
			return ctx, func() { cancel(nil) }
		}
	})
	b := f.sandbox(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		end(ended)
		<-r.Context().Done()
	}))
	b.change(func(s *engi.Sandbox) { s.Ports.Private = true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := client.Do(b.request("GET", "/", nil).WithContext(ctx))
	if err == nil {
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
	}
	if ctx.Err() != nil {
		t.Errorf("the request goes on: %v", err)
	}
}

func TestSignedLinks(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Private = true })
	b, other := f.sandbox(echo), f.sandbox(echo)
	b.ports[3001] = b.ports[3000]
	link, expires, err := f.proxy.Sign(b.record.ID, 3000, time.Hour)
	if err != nil || time.Until(expires) > time.Hour || time.Until(expires) < 59*time.Minute {
		t.Fatal(err, expires)
	}
	u, err := url.Parse(link)
	if err != nil || u.Host != b.host(3000) {
		t.Fatal(link, err)
	}
	token := u.Query().Get("engi_token")

	// Programs use the link directly.
	if s := look(t, b.request("GET", "/?a=1&"+u.RawQuery, nil)); s.URI != "/?a=1" {
		t.Errorf("the service saw %s", s.URI)
	}
	// Browsers are redirected with a cookie.
	r := b.request("GET", "//evil.test/p?"+u.RawQuery+"&a=1", nil)
	r.Header.Set("Accept", "text/html")
	res, _ := do(t, r)
	if res.StatusCode != 303 || res.Header.Get("Location") != "/.//evil.test/p?a=1" || res.Header.Get("Referrer-Policy") != "strict-origin" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	cookies := res.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteLaxMode || cookies[0].Domain != "" || cookies[0].Path != "/" || cookies[0].MaxAge < 3500 {
		t.Fatalf("cookies %v", cookies)
	}
	r = b.request("GET", "/", nil)
	r.AddCookie(&http.Cookie{Name: tokenCookie, Value: "first-try"})
	r.AddCookie(cookies[0])
	if s := look(t, r); s.Header.Get("Cookie") != "" {
		t.Errorf("the cookie went inside: %v", s.Header)
	}

	for origin, want := range map[string]int{
		"http://" + b.host(3000): 200, "https://" + b.host(3000): 200, "http://" + b.host(3001): 200,
		"http://" + other.host(3000): 403, "https://else.where": 403, "null": 403,
	} {
		r := b.request("POST", "/", nil)
		r.AddCookie(cookies[0])
		r.Header.Set("Origin", origin)
		if res, body := do(t, r); res.StatusCode != want {
			t.Errorf("a page of %s with the cookie: %d %s", origin, res.StatusCode, body)
		}
	}

	// Pages of other sandboxes are on the same site, so their requests have the cookie.
	own, sibling, app := "http://"+b.host(3001)+"/", "http://"+other.host(3000)+"/", "https://app.sbx.test/"
	for _, dest := range []string{"document", "iframe", "frame", "embed", "object", "script", "style", "image", "font", "audio", "video", "track", "worker",
		"serviceworker", "manifest", "empty", "report", "xslt", "json", ""} {
		mode := "no-cors"
		switch dest {
		case "document", "iframe", "frame", "embed", "object":
			mode = "navigate"
		}
		for _, c := range []struct {
			method, site, from string
			want               bool
		}{
			{"GET", "none", "", true},
			{"GET", "same-origin", "", true},
			{"POST", "same-origin", "", true},
			{"GET", "same-site", own, true},
			{"GET", "same-site", sibling, dest == "document"},
			{"POST", "same-site", sibling, false},
			{"GET", "same-site", "", dest == "document"},
			{"POST", "same-site", "", false},
			{"GET", "cross-site", "", dest == "document"},
			{"GET", "same-site", "https://3000-" + other.record.ID.Label() + "-engi.sbx.test./", dest == "document"},
			{"GET", "same-site", "http://3000-nosuch.localhost/", dest == "document"},
			{"GET", "same-site", app, mode == "navigate"},
			{"POST", "same-site", app, false},
		} {
			r := b.request(c.method, "/", nil)
			r.AddCookie(cookies[0])
			for name, v := range map[string]string{"Sec-Fetch-Site": c.site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest, "Referer": c.from, "Accept": "text/html,*/*"} {
				if v != "" {
					r.Header.Set(name, v)
				}
			}
			if res, body := do(t, r); c.want != (res.StatusCode == 200) || !c.want && res.StatusCode != 403 {
				t.Errorf("%+v for %q with the cookie: %d %s", c, dest, res.StatusCode, body)
			}
		}
	}

	for name, change := range map[string]func(*http.Request){
		"another port":    func(r *http.Request) { r.Host = b.host(3001) },
		"another sandbox": func(r *http.Request) { r.Host = other.host(3000) },
		"flipped bit":     func(r *http.Request) { r.URL.RawQuery = "engi_token=B" + token[1:] },
		"cut short":       func(r *http.Request) { r.URL.RawQuery = "engi_token=" + token[:20] },
		"empty":           func(r *http.Request) { r.URL.RawQuery = "engi_token=" },
		"padded":          func(r *http.Request) { r.URL.RawQuery += "%3D" },
	} {
		r := b.request("GET", "/?"+u.RawQuery, nil)
		change(r)
		if res, body := do(t, r); res.StatusCode != 403 {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	for _, d := range []time.Duration{0, -time.Hour, LongestLink + 1} {
		if _, _, err := f.proxy.Sign(b.record.ID, 3000, d); !engi.Is(err, engi.Invalid) {
			t.Errorf("a link for %s: %v", d, err)
		}
	}
	if _, _, err := f.proxy.Sign(b.record.ID, 0, time.Hour); !engi.Is(err, engi.Invalid) {
		t.Errorf("port 0: %v", err)
	}
}

func TestLinksExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Sandboxes: new(fixture), Keys: new(fixture).keys, LinkKey: make([]byte, 32)})
		id := engi.NewSandboxID()
		link, _, err := p.Sign(id, 80, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		_, token, _ := strings.Cut(link, "engi_token=")
		if _, ok := p.checkToken(token, target{id: id, port: 80}); !ok {
			t.Error("it is not good from the start")
		}
		time.Sleep(time.Minute + time.Second)
		if _, ok := p.checkToken(token, target{id: id, port: 80}); ok {
			t.Error("it is good for ever")
		}
	})
}

func FuzzToken(f *testing.F) {
	p := New(Options{Sandboxes: new(fixture), Keys: new(fixture).keys, LinkKey: make([]byte, 32)})
	id := engi.NewSandboxID()
	f.Add(p.token(target{id: id, port: 81}, time.Unix(1<<40, 0)), "a=b&engi_token=x;")
	f.Add("", "%65ngi_token=1&%zz")
	f.Fuzz(func(t *testing.T, token, query string) {
		if _, ok := p.checkToken(token, target{id: id, port: 80}); ok {
			t.Errorf("%q opens", token)
		}
		if tokenIn(withoutToken(query)) != "" {
			t.Errorf("%q still has a token after %q", withoutToken(query), query)
		}
	})
}
