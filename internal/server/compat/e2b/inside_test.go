package e2b

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/envd"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/kernel"
)

// A way is a request that the guest program of a sandbox would serve.
type way struct{ port, method, path string }

// ways returns every route of the guest's APIs, at the port that it is meant for and
// at the other one, with each method, and paths that nobody serves.
func ways(t *testing.T) (all []way) {
	t.Helper()
	n := 0
	add := func(pattern, prefix string) {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok || !strings.HasPrefix(path, prefix) {
			t.Fatalf("pattern %q", pattern)
		}
		n++
		path = strings.ReplaceAll(strings.TrimPrefix(path, prefix), "{id}", "default")
		for _, port := range []string{"49983", "49999"} {
			for _, m := range []string{method, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
				if w := (way{port, m, path}); !slices.Contains(all, w) {
					all = append(all, w)
				}
			}
		}
	}
	for pattern := range envd.New(nil).Routes() {
		add(pattern, "")
	}
	for pattern := range kernel.New(nil).Routes() {
		add(pattern, strings.TrimSuffix(kernel.Prefix, "/"))
	}
	if n < 25 {
		t.Fatalf("%d routes are too few to be all", n)
	}
	for _, path := range []string{"/", "/nothing", "//execute", "/contexts/../execute", "/x/../contexts", "/health/../contexts", "/interpreter/contexts", "/CONTEXTS"} {
		for _, port := range []string{"49983", "49999"} {
			all = append(all, way{port, "GET", path}, way{port, "POST", path})
		}
	}
	return all
}

// Whoever has no token of a secure sandbox must not touch or wake it, on any way.
func TestSecureSandboxesNeedTheToken(t *testing.T) {
	w := newFixture(t)
	w.sandboxes.guest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(204) })
	other := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	open := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","secure":false,"autoPause":true,"autoResume":{"enabled":true}}`)
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`)
	access, traffic := made["envdAccessToken"].(string), made["trafficAccessToken"].(string)
	private := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`)
	// enter sends a request and returns its status and whether it got to the guest.
	enter := func(id any, x way, header ...string) (int, bool) {
		t.Helper()
		w.sandboxes.mu.Lock()
		before := w.sandboxes.enters
		w.sandboxes.mu.Unlock()
		status, _, _ := w.call("ann", x.method, x.path, "", append([]string{sandboxHeader, id.(string), portHeader, x.port}, header...)...)
		w.sandboxes.mu.Lock()
		defer w.sandboxes.mu.Unlock()
		return status, w.sandboxes.enters > before
	}
	without := [][]string{
		nil,
		{accessHeader, "wrong"},
		{accessHeader, traffic},
		{accessHeader, other["envdAccessToken"].(string)},
		{accessHeader, "wrong", trafficHeader, traffic},
		{trafficHeader, access},
		{trafficHeader, other["trafficAccessToken"].(string)},
		{"Authorization", "Bearer " + access},
		{"Authorization", "Basic dXNlcjo="},
		{"Cookie", accessHeader + "=" + access},
	}
	for _, state := range []engi.State{engi.Running, engi.Hibernated} {
		w.sandboxes.mu.Lock()
		for i := range w.sandboxes.all {
			w.sandboxes.all[i].State = state
		}
		w.sandboxes.mu.Unlock()
		for _, x := range ways(t) {
			health := x.port == "49983" && x.path == "/health" && (x.method == "GET" || x.method == "HEAD")
			for _, header := range without {
				status, entered := enter(made["sandboxID"], x, header...)
				if entered || status != 401 && !(health && (status == 204 || status == 502)) {
					t.Errorf("%s: %v with %v: status %d, entered: %t", state, x, header, status, entered)
				}
			}
			if health {
				continue
			}
			if status, entered := enter(made["sandboxID"], x, accessHeader, access); !entered || status != 204 {
				t.Errorf("%s: %v with the token: status %d, entered: %t", state, x, status, entered)
			}
			if status, entered := enter(open["sandboxID"], x); !entered || status != 204 {
				t.Errorf("%s: %v of one that is not secure: status %d, entered: %t", state, x, status, entered)
			}
			// Clients send the traffic token, but not the access token, with requests for contexts.
			want := x.port == "49999" && (x.path == "/contexts" || strings.HasPrefix(x.path, "/contexts/"))
			if status, entered := enter(made["sandboxID"], x, trafficHeader, traffic); entered != want || want != (status == 204) {
				t.Errorf("%s: %v with the traffic token: status %d, entered: %t", state, x, status, entered)
			}
			if x.port == "49999" && state == engi.Running {
				if status, entered := enter(private["sandboxID"], x, accessHeader, private["envdAccessToken"].(string)); entered || status != 403 {
					t.Errorf("%v of private ports without the traffic token: status %d, entered: %t", x, status, entered)
				}
			}
		}
	}
}
