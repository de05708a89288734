package script

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
)

// fetchRunner returns a runner with api.fetch, api.getWeather, api.kv and a configured
// function, which may all access srv.
func fetchRunner(t *testing.T, h http.Handler) (*Runner, *httptest.Server) {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	client := func(host string) *http.Client {
		c := fetch.New(fetch.Options{Hosts: []string{host}, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	weather, err := Weather(srv.URL+"/v1/forecast", client)
	if err != nil {
		t.Fatal(err)
	}
	price, err := HTTPFunction{Name: "prices.get", Description: "Returns a price.", URL: srv.URL + "/price/{0}?in={1}", Headers: map[string]string{"Authorization": "Bearer s3cret"}}.API(client)
	if err != nil {
		t.Fatal(err)
	}
	return runner(t, func(o *Options) {
		o.APIs = append(KV(), Fetch(client(host), nil), weather, price)
		o.Limits.Timeout, o.Limits.MaxTimeout = 30*time.Second, 30*time.Second // long enough for a slow machine
	}), srv
}

func TestFunctions(t *testing.T) {
	r, srv := fetchRunner(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/price/"):
			json.NewEncoder(w).Encode(map[string]any{"path": r.URL.EscapedPath(), "in": r.URL.Query().Get("in"), "auth": r.Header.Get("Authorization") != ""})
		case r.URL.Path == "/v1/forecast":
			json.NewEncoder(w).Encode(map[string]any{"latitude": r.URL.Query().Get("latitude"), "longitude": r.URL.Query().Get("longitude")})
		case r.URL.Path == "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case r.URL.Path == "/big":
			w.Write([]byte(strings.Repeat("x", 3<<20)))
		default:
			w.Header().Set("X-Method", r.Method)
			w.WriteHeader(http.StatusTeapot)
			w.Write([]byte("short and stout"))
		}
	}))
	for code, want := range map[string]string{
		"const r = await api.fetch(URL + '/x', {method: 'post', body: 'b'}); [r.status, r.ok, r.headers['x-method'], r.body]": `[418,false,"POST","short and stout"]`,
		"(await api.fetch(URL + '/big')).truncated":                                                            "true",
		"await api.fetch(URL + '/away').catch(e => e.name)":                                                    `"DeniedError"`,
		"await api.fetch('http://169.254.169.254/').catch(e => e.name)":                                        `"DeniedError"`,
		"await api.fetch('file:///etc/passwd').catch(e => e.name)":                                             `"DeniedError"`,
		"await api.fetch('nonsense').catch(e => e.name)":                                                       `"DeniedError"`,
		"await api.fetch(URL, {method: 'CONNECT'}).catch(e => e.name)":                                         `"TypeError"`,
		"await api.fetch(1).catch(e => e.name)":                                                                `"TypeError"`,
		"await api.prices.get('a b/../c', 3)":                                                                  `{"auth":true,"in":"3","path":"/price/a%20b%2F..%2Fc"}`,
		"await api.prices.get('..', 3).catch(e => e.name)":                                                     `"TypeError"`,
		"await api.prices.get({}, 3).catch(e => e.name)":                                                       `"TypeError"`,
		"await api.getWeather({latitude: 48.2, longitude: 16.37})":                                             `{"latitude":"48.2","longitude":"16.37"}`,
		"await api.getWeather()":                                                                               `{"latitude":"1.5","longitude":"-2"}`,
		"await api.getWeather({latitude: 91}).catch(e => e.message)":                                           `"latitude must be between -90 and 90"`,
		"await api.kv.set('a', {b: [1]}); [await api.kv.get('a'), await api.kv.get('z'), await api.kv.keys()]": `[{"b":[1]},null,["a"]]`,
		"await api.kv.set('big', 'x'.repeat(2e6)).catch(e => e.name)":                                          `"RangeError"`,
		"await api.kv.set('', 1).catch(e => e.name)":                                                           `"TypeError"`,
	} {
		code = strings.ReplaceAll(code, "URL", "'"+srv.URL+"'")
		res, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "ann", Code: code, Hints: map[string]string{"latitude": "1.5", "longitude": "-2"}})
		if err != nil || !res.OK || string(res.Value) != want {
			t.Errorf("%s: got %s, %+v, %v, want %s", code, res.Value, res.Error, err, want)
		}
	}
	if res := mustRun(t, r, "bob", "await api.kv.get('a')"); string(res.Value) != "null" {
		t.Errorf("bob sees what ann keeps: %s", res.Value)
	}
}
