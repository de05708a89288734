package intercept_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
)

// TestPinnedSecretsStay sends requests with a secret that was pinned after it was
// granted: it is sent only to its hosts, and is masked in their answers.
func TestPinnedSecretsStay(t *testing.T) {
	hosts, shared := []string(nil), false
	for name, p := range map[string]engi.NetworkPolicy{
		"bearer":      grant(engi.GrantBearer),
		"basic":       grant(engi.GrantBasic, func(g *engi.Grant) { g.Name = "bot" }),
		"placeholder": grant(engi.GrantPlaceholder, func(g *engi.Grant) { g.Env = "KEY" }),
		"header rule": {Mode: engi.NetworkRestricted, Headers: []engi.HeaderRule{{Host: host, Headers: map[string]string{"X-Key": "${secrets." + secret + "}"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, p, func(o *intercept.Options) {
				reveal := o.Reveal
				o.Use = func(ctx context.Context, viewer engi.Viewer, name string) (string, []string, bool, error) {
					v, err := reveal(ctx, viewer, name)
					return v, hosts, shared, err
				}
			})
			calls := 0
			f.upstream(host, false, func(w http.ResponseWriter, r *http.Request) {
				calls++
				fmt.Fprint(w, "the header was ", r.Header)
			})
			c := f.client(false)
			get := func() (int, string) {
				r, err := http.NewRequest("GET", "https://"+host+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, body := f.do(c, r)
				return resp.StatusCode, body
			}
			hosts = []string{"other.example.com", "http://" + host, host + ":8443"}
			if status, body := get(); status != http.StatusForbidden || calls != 0 || !strings.Contains(body, "may not be sent to "+host) || strings.Contains(body, value) {
				t.Errorf("pinned elsewhere: %d %s, %d calls", status, body, calls)
			}
			hosts, shared = []string{host}, true
			status, body := get()
			if status != http.StatusOK || calls != 1 || strings.Contains(body, value) {
				t.Errorf("pinned here: %d %s", status, body)
			}
			if shared = false; name != "basic" && name != "placeholder" { // these contain the value in another form, or not at all
				if _, body := get(); !strings.Contains(body, value) {
					t.Errorf("the host did not echo it: %s", body)
				}
			}
		})
	}
}
