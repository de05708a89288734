package rest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/test/apitest"
)

// TestPagesOfOtherOrigins has pages of several origins ask as browsers do.
func TestPagesOfOtherOrigins(t *testing.T) {
	const ours = "https://app.example"
	send := func(w *apitest.Fixture, method, path, origin string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
		r.Header.Set("Origin", origin)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		for name := range rec.Header() {
			if strings.HasPrefix(name, "Access-Control-") && strings.Contains(rec.Header().Get(name), "*") && name != "Access-Control-Allow-Headers" || name == "Access-Control-Allow-Credentials" {
				t.Errorf("%s %s for %s: %s: %s", method, path, origin, name, rec.Header().Get(name))
			}
		}
		return rec
	}
	preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,x-stainless-lang"}
	open, shut := newFixture(t, func(o *apitest.Options) { o.Origins = []string{ours} }), newFixture(t, nil)
	key := []string{"Authorization", "Bearer " + open.User}
	for _, c := range []struct {
		w            *apitest.Fixture
		method, path string
		origin       string
		header       []string
		status       int
		allowed      bool
	}{
		{open, "OPTIONS", "/v1/messages", ours, preflight, 204, true},
		{open, "OPTIONS", "/v1/messages", "https://evil.example", preflight, 405, false},
		{open, "OPTIONS", "/v1/messages", "https://app.example.evil.example", preflight, 405, false},
		{open, "OPTIONS", "/v1/messages", "http://app.example", preflight, 405, false},
		{open, "OPTIONS", "/v1/messages", "null", preflight, 405, false},
		{open, "OPTIONS", "/v1/messages", ours, nil, 405, true}, // none without the method
		{open, "OPTIONS", "/healthz", ours, preflight, 405, false},
		{open, "GET", "/v1/models", ours, key, 200, true},
		{open, "GET", "/v1/models", ours, nil, 401, true}, // pages can read why
		{open, "GET", "/v1/models", ours, []string{"Cookie", "key=" + open.User}, 401, true},
		{open, "GET", "/v1/models", "https://evil.example", key, 200, false},
		{open, "GET", "/v1/nothing", ours, key, 404, true},
		{open, "GET", "/healthz", ours, nil, 200, false},
		{shut, "OPTIONS", "/v1/messages", ours, preflight, 405, false},
		{shut, "GET", "/v1/models", ours, []string{"Authorization", "Bearer " + shut.User}, 200, false},
	} {
		rec := send(c.w, c.method, c.path, c.origin, c.header...)
		h := rec.Header()
		if got := h.Get("Access-Control-Allow-Origin"); rec.Code != c.status || (got == ours) != c.allowed || got != "" && got != c.origin {
			t.Errorf("%s %s for %s: %d %v", c.method, c.path, c.origin, rec.Code, h)
		}
		if c.w == open && strings.HasPrefix(c.path, "/v1/") && h.Get("Vary") != "Origin" {
			t.Errorf("%s %s for %s: a cache could give it to others: %v", c.method, c.path, c.origin, h)
		}
		if c.status == 204 && (!strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST")) {
			t.Errorf("%v", h)
		}
	}
	// A page cannot ask a server by a name that is not its.
	r := httptest.NewRequestWithContext(t.Context(), http.MethodOptions, "http://rebound.example/v1/messages", nil)
	r.Header.Set("Origin", ours)
	r.Header.Set("Access-Control-Request-Method", "POST")
	rec := httptest.NewRecorder()
	if open.Handler.ServeHTTP(rec, r); rec.Code != 403 || rec.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
}
