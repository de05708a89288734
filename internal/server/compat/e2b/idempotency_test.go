package e2b

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/store"
)

// recordedVolumes keeps records of volumes only.
type recordedVolumes struct {
	engi.Volumes // panics: not used

	mu  sync.Mutex
	all []engi.Volume
}

func (v *recordedVolumes) Create(_ context.Context, s engi.VolumeSpec) (engi.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s.ID == "" {
		s.ID = engi.NewVolumeID()
	}
	x := engi.Volume{ID: s.ID, Owner: s.Owner, Name: s.Name}
	v.all = append(v.all, x)
	return x, nil
}

func (v *recordedVolumes) Get(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range v.all {
		if viewer.Sees(x.Owner) && (string(x.ID) == idOrName || x.Name == idOrName) {
			return x, nil
		}
	}
	return engi.Volume{}, engi.Errorf(engi.NotFound, "there is no such volume")
}

// killed is the store of a server that is killed right before or after the work of a request.
type killed struct {
	idempotency.Reservations
	after bool
}

func (k killed) Reserve(ctx context.Context, r idempotency.Reservation) (idempotency.Reservation, bool, error) {
	r, fresh, err := k.Reservations.Reserve(ctx, r)
	if !k.after {
		panic(http.ErrAbortHandler)
	}
	return r, fresh, err
}

func (k killed) Finish(context.Context, idempotency.Reservation) error { panic(http.ErrAbortHandler) }

// TestCrashKeepsKeys kills a server between a reservation and its end: the request can be repeated with
// its key, and creates one object.
func TestCrashKeepsKeys(t *testing.T) {
	for name, after := range map[string]bool{"before the work": false, "after the work": true} {
		t.Run(name, func(t *testing.T) {
			db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			volumes := &recordedVolumes{}
			serve := func(r idempotency.Reservations) *fixture {
				return newFixture(t, func(o *Options) { o.Volumes, o.Reservations = volumes, r })
			}
			w := serve(killed{store.Idempotency(db), after})
			r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/volumes", strings.NewReader(`{"name":"data"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-API-KEY", "ann")
			r.Header.Set(idempotency.Header, "k")
			if resp, err := http.DefaultClient.Do(r); err == nil {
				resp.Body.Close()
				t.Fatalf("a killed server answered %d", resp.StatusCode)
			}

			w = serve(store.Idempotency(db))
			ids := make([]any, 4)
			var all sync.WaitGroup
			for i := range ids {
				all.Go(func() {
					status, _, m := w.call("ann", "POST", "/volumes", `{"name":"data"}`, idempotency.Header, "k")
					if ids[i] = m["volumeID"]; status != 201 {
						t.Errorf("the same request: %d %v", status, m)
					}
				})
			}
			all.Wait()
			for _, id := range ids {
				if id != ids[0] || len(volumes.all) != 1 {
					t.Errorf("volumes %v of %v, want one", ids, volumes.all)
				}
			}
			w.want(409, "ann", "POST", "/volumes", `{"name":"other"}`, idempotency.Header, "k")
			w.want(400, "ann", "POST", "/volumes", `{"name":"other"}`, idempotency.Header, strings.Repeat("k", 256))
			w.want(201, "ben", "POST", "/volumes", `{"name":"other"}`, idempotency.Header, "k")
		})
	}
}
