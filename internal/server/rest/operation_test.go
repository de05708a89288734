package rest_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// TestBuildsInTheBackground follows a build that nobody waits for.
func TestBuildsInTheBackground(t *testing.T) {
	w := newFixture(t, nil)
	admin := []string{"Authorization", "Bearer " + w.Admin}
	for name, c := range map[string]struct {
		body   string
		header []string
	}{
		"field":  {`{"name":"mine","definition":"good","async":true}`, nil},
		"header": {`{"name":"mine","definition":"good"}`, []string{"Prefer", "wait=5, Respond-Async"}},
	} {
		rec := ask(t, w, "POST", "/v1/templates", c.body, append(c.header, admin...)...)
		op := read[v1.Operation](t, rec, 202)
		path := rec.Header().Get("Location")
		if path != "/v1/operations/"+op.ID || op.Type != engi.OperationBuildTemplate || op.Subject != "mine" {
			t.Errorf("%s: %s at %q", name, rec.Body, path)
		}
		end := read[v1.Operation](t, ask(t, w, "GET", path+"?wait=10s", "", admin...), 200)
		if end.State != v1.OperationDone || end.Result != "/v1/templates/mine" || end.EndedAt == nil {
			t.Errorf("%s: %+v", name, end)
		}
		read[v1.Template](t, ask(t, w, "GET", end.Result, "", admin...), 200)

		// The second half is what is heard from the middle.
		all := strings.Split(strings.TrimSpace(ask(t, w, "GET", path+"/events", "", admin...).Body.String()), "\n")
		if len(all) != 7 || !strings.Contains(all[0], `"type":"progress","offset"`) || !strings.Contains(all[1], `"log":"log of fetch"`) || !strings.Contains(all[6], `"type":"result"`) {
			t.Fatalf("%s: %q", name, all)
		}
		_, offset, _ := strings.Cut(all[2], `"offset":`)
		offset, _, _ = strings.Cut(offset, ",")
		for _, rec := range []*httptest.ResponseRecorder{
			ask(t, w, "GET", path+"/events?offset="+offset, "", admin...),
			ask(t, w, "GET", path+"/events", "", append([]string{"Last-Event-ID", offset}, admin...)...),
		} {
			if got := strings.Split(strings.TrimSpace(rec.Body.String()), "\n"); strings.Join(got, "\n") != strings.Join(all[3:], "\n") {
				t.Errorf("%s: from %s: %q", name, offset, got)
			}
		}
	}
}

// TestBuildsThatFail holds that a failure is told to whoever waits, and kept.
func TestBuildsThatFail(t *testing.T) {
	w := newFixture(t, nil)
	admin := []string{"Authorization", "Bearer " + w.Admin}
	refused(t, ask(t, w, "POST", "/v1/templates", `{"name":"mine","definition":"bad"}`, admin...), 400, engi.Invalid)
	all := read[v1.List[v1.Operation]](t, ask(t, w, "GET", "/v1/operations?state=failed", "", admin...), 200).Items
	if len(all) != 1 || all[0].Error == nil || !strings.Contains(all[0].Error.Detail, "no such suite") || all[0].Result != "" {
		t.Errorf("%+v", all)
	}
}

// TestBuildsAreCancelled ends one by its operation, and one by leaving; one
// with a key goes on.
func TestBuildsAreCancelled(t *testing.T) {
	w := newFixture(t, nil)
	admin := []string{"Authorization", "Bearer " + w.Admin}
	op := read[v1.Operation](t, ask(t, w, "POST", "/v1/templates", `{"name":"mine","definition":"slow","async":true}`, admin...), 202)
	if rec := ask(t, w, "DELETE", "/v1/operations/"+op.ID, "", admin...); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if got := read[v1.Operation](t, ask(t, w, "GET", "/v1/operations/"+op.ID, "", admin...), 200); got.State != v1.OperationCancelled {
		t.Errorf("%+v", got)
	}
	newest := func() v1.Operation {
		return read[v1.List[v1.Operation]](t, ask(t, w, "GET", "/v1/operations?limit=1", "", admin...), 200).Items[0]
	}
	for key, want := range map[string]string{"": v1.OperationCancelled, "k": v1.OperationRunning} {
		for _, form := range []string{"application/json", "application/x-ndjson"} {
			ctx, leave := context.WithCancel(t.Context())
			before := newest().ID
			r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/templates", strings.NewReader(`{"name":"mine","definition":"slow"}`))
			r.Header.Set("Authorization", "Bearer "+w.Admin)
			r.Header.Set("Accept", form)
			if key != "" {
				r.Header.Set("Idempotency-Key", key+form)
			}
			var request sync.WaitGroup
			request.Go(func() { w.Handler.ServeHTTP(httptest.NewRecorder(), r) })
			until(t, "the build has begun", func() bool { return newest().ID != before && newest().State == v1.OperationRunning })
			leave()
			request.Wait()
			if last := newest(); last.State != want {
				t.Errorf("key %q, %s: %s, want %s", key, form, last.State, want)
			}
		}
	}
}
