package inngest_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/inngest"
)

const key = "0123456789abcdef"

// serve returns an address whose requests go to the current engine.
func serve(t *testing.T) (string, *atomic.Pointer[inngest.Engine]) {
	now := &atomic.Pointer[inngest.Engine]{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := now.Load(); e != nil {
			e.ServeHTTP(w, r)
			return
		}
		http.Error(w, "there is no engine", http.StatusBadGateway)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/api/inngest", now
}

func TestPromises(t *testing.T) {
	for _, c := range []struct {
		name, key string
		lose, big bool
	}{
		{name: "plain"},
		{name: "signed", key: key, big: true},
		{name: "lost responses", lose: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			functiontest.Promises(t, func(t *testing.T) func() function.Engine {
				w := newFakeServer(t, c.key)
				w.lose, w.big = c.lose, c.big
				address, now := serve(t)
				return func() function.Engine {
					fix := inngest.Options{URL: w.url, ServeURL: address}
					if c.key != "" {
						fix.SigningKey, fix.EventKey = "signkey-test-"+c.key, "event-key"
					}
					e, err := inngest.New(fix)
					if err != nil {
						t.Fatal(err)
					}
					now.Store(e)
					return e
				}
			})
		})
	}
}
