package rest_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/mirror"
	"github.com/engi-dev/engi/test/apitest"
)

// TestMirror warms the package mirror, looks at it and clears it.
func TestMirror(t *testing.T) {
	crate := "crate"
	var registry *httptest.Server
	registry = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/config.json":
			fmt.Fprintf(w, `{"dl":"%s/dl"}`, registry.URL)
		case "/so/me/some":
			fmt.Fprintf(w, `{"name":"some","vers":"1.2.3","cksum":"%x"}`, sha256.Sum256([]byte(crate)))
		case "/dl/some/1.2.3/download":
			fmt.Fprint(w, crate)
		default:
			http.NotFound(w, r)
		}
	}))
	defer registry.Close()
	mirror, err := mirror.New(mirror.Options{Dir: t.TempDir(), Upstreams: map[string]string{"crates": registry.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer mirror.Close()
	w := newFixture(t, func(o *apitest.Options) { o.Mirror = mirror })
	admin := []string{"Authorization", "Bearer " + w.Admin}
	lock := `name = \"some\"\nversion = \"1.2.3\"\nsource = \"registry+x\"\nname = \"gone\"\nsource = \"registry+x\"\n`
	rec := ask(t, w, "POST", "/v1/mirror/warm", `{"files":[{"name":"Cargo.lock","content":"`+lock+`"}]}`, admin...)
	lines := strings.Split(strings.TrimSpace(rec.Body.String()), "\n")
	if rec.Code != 200 || len(lines) != 3 || !strings.Contains(rec.Body.String(), `"package":"https://static.crates.io/crates/gone/1.2.3/download"`) || !strings.Contains(rec.Body.String(), `"problem":{`) ||
		!strings.HasPrefix(lines[2], `{"type":"result","done":2,"total":2,"failed":1,"bytes":5`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "POST", "/v1/mirror/warm", `{"files":[{"name":"Cargo.lock","content":""}]}`, admin...), 400, engi.Invalid)
	about := read[v1.Mirror](t, ask(t, w, "GET", "/v1/mirror", "", admin...), 200)
	if about.Files < 3 || about.Bytes == 0 || len(about.Ecosystems) != 6 || about.Ecosystems[0].Name != "crates" || about.Ecosystems[0].Fetched < 3 || about.Ecosystems[0].Upstream != registry.URL {
		t.Errorf("%+v", about)
	}
	if rec := ask(t, w, "DELETE", "/v1/mirror", "", admin...); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if now := read[v1.Mirror](t, ask(t, w, "GET", "/v1/mirror", "", admin...), 200); now.Files != 0 || now.Bytes != 0 {
		t.Errorf("%+v", now)
	}
	for _, x := range []struct{ method, path, body string }{{"GET", "/v1/mirror", ""}, {"DELETE", "/v1/mirror", ""}, {"POST", "/v1/mirror/warm", `{"files":[{"name":"x","content":"x"}]}`}} {
		refused(t, ask(t, w, x.method, x.path, x.body, "Authorization", "Bearer "+w.User), 403, engi.Denied)
	}
	none := newFixture(t, func(o *apitest.Options) { o.Mirror = nil })
	refused(t, ask(t, none, "GET", "/v1/mirror", "", "Authorization", "Bearer "+none.Admin), 501, engi.Unsupported)
}
