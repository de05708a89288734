package rest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestEvents(t *testing.T) {
	w := newFixture(t, nil)
	sent := ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/echo","data":{"a":[1,{"b":2}]}}`, "Idempotency-Key", "k1")
	x := read[v1.Event](t, sent, 202)
	if sent.Header().Get("Location") != "/v1/events/"+x.ID || x.Owner != "ann" || len(x.RunIDs) != 1 || string(x.Data) != `{"a":[1,{"b":2}]}` {
		t.Errorf("%+v at %s", x, sent.Header().Get("Location"))
	}
	again := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/echo","data":{"a":[1,{"b":2}]}}`, "Idempotency-Key", "k1"), 202)
	if again.ID != x.ID {
		t.Errorf("the same key made %s, then %s", x.ID, again.ID)
	}
	refused(t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/echo"}`, "Idempotency-Key", "k1"), 409, engi.Conflict)
	run := read[v1.FunctionRun](t, ask(t, w, "GET", "/v1/functions/runs/"+x.RunIDs[0]+"?wait=30s", ""), 200)
	if run.State != v1.FunctionDone || string(run.Output) != string(x.Data) || len(run.Steps) != 1 || run.Steps[0].EndedAt == nil || run.EventID != x.ID || !run.Over() {
		t.Errorf("%+v", run)
	}
	replay := read[v1.Event](t, ask(t, w, "POST", "/v1/events/"+x.ID+"/replay", `{"function":"echo"}`), 202)
	if replay.ReplayOf != x.ID || replay.ID == x.ID || len(replay.RunIDs) != 1 {
		t.Errorf("%+v", replay)
	}
	failed := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/fail"}`), 202)
	if run := read[v1.FunctionRun](t, ask(t, w, "GET", "/v1/functions/runs/"+failed.RunIDs[0]+"?wait=30s", ""), 200); run.Error == nil || run.Error.Kind != v1.NotFound || run.Error.Remedy == "" {
		t.Errorf("%+v", run)
	}
	if idle := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"nobody/cares"}`), 202); len(idle.RunIDs) != 0 || string(idle.Data) != "{}" {
		t.Errorf("%+v", idle)
	}
	for query, want := range map[string][]string{
		"?name=engi/debug/echo":         {replay.ID, x.ID},
		"?limit=1&name=engi/debug/fail": {failed.ID},
	} {
		var got []string
		for _, e := range read[v1.List[v1.Event]](t, ask(t, w, "GET", "/v1/events"+query, ""), 200).Items {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	for query, want := range map[string][]string{
		"?state=failed": failed.RunIDs, "?function=echo": {replay.RunIDs[0], x.RunIDs[0]}, "?event=" + x.ID: x.RunIDs, "?name=engi/debug/fail": failed.RunIDs, "?state=queued": nil,
	} {
		var got []string
		for _, e := range read[v1.List[v1.FunctionRun]](t, ask(t, w, "GET", "/v1/functions/runs"+query, ""), 200).Items {
			got = append(got, e.ID)
			if e.Steps != nil {
				t.Errorf("%s: steps in a list", query)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	if all := read[v1.List[v1.Function]](t, ask(t, w, "GET", "/v1/functions", ""), 200).Items; len(all) != 3 || all[1].PerOwner != 1 || all[1].Timeout.Std() != time.Minute || all[2].Cron == "" {
		t.Errorf("%+v", all)
	}
}

func TestBadEvents(t *testing.T) {
	w := newFixture(t, nil)
	x := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/echo"}`), 202)
	for _, body := range []string{
		`{}`, `{"name":""}`, `{"name":"a b"}`, `{"name":"x","data":[]}`, `{"name":"x","data":"y"}`, `{"name":"x","nonsense":1}`, `{"name":7}`, `[]`,
	} {
		refused(t, ask(t, w, "POST", "/v1/events", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", "/v1/events", `{"name":"x","data":{"long":"`+strings.Repeat("x", 256<<10)+`"}}`), 413, engi.Invalid)
	refused(t, ask(t, w, "POST", "/v1/events", `{"name":"x"}`, "Idempotency-Key", "a b"), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", "/v1/events/"+x.ID+"/replay", `{"function":"other"}`), 404, engi.NotFound)
	for _, path := range []string{"/v1/events/x", "/v1/functions/runs/x", "/v1/functions/runs?event=x", "/v1/functions/runs/" + x.RunIDs[0] + "?wait=soon"} {
		refused(t, ask(t, w, "GET", path, ""), 400, engi.Invalid)
	}
}

func TestWaitingForAFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaving, leave := context.WithCancel(t.Context())
		defer leave()
		w := newFixture(t, func(o *apitest.Options) { o.Leave = leaving })
		id := read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/wait"}`), 202).RunIDs[0]
		wait := func(d string) (*httptest.ResponseRecorder, time.Duration) {
			began := time.Now()
			rec := ask(t, w, http.MethodGet, "/v1/functions/runs/"+id+"?wait="+d, "")
			return rec, time.Since(began)
		}
		rec, took := wait("10m")
		if x := read[v1.FunctionRun](t, rec, 200); x.State != v1.FunctionRunning || took != time.Minute {
			t.Errorf("%s after %v, want a minute", x.State, took)
		}
		go func() {
			time.Sleep(3 * time.Second)
			ask(t, w, http.MethodDelete, "/v1/functions/runs/"+id, "")
		}()
		rec, took = wait("30s")
		if x := read[v1.FunctionRun](t, rec, 200); x.State != v1.FunctionCancelled || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("%s after %v", x.State, took)
		}
		if rec := ask(t, w, http.MethodDelete, "/v1/functions/runs/"+id, ""); rec.Code != 204 {
			t.Errorf("ending twice: %d %s", rec.Code, rec.Body)
		}
		id = read[v1.Event](t, ask(t, w, "POST", "/v1/events", `{"name":"engi/debug/wait"}`), 202).RunIDs[0]
		time.AfterFunc(time.Second, leave)
		rec, _ = wait("30s")
		refused(t, rec, 503, engi.Unavailable)
	})
}

func TestNodeWithoutFunctions(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Functions = nil })
	for _, route := range []string{
		"POST /v1/events", "POST /v1/events/x/replay",
		"GET /v1/functions", "GET /v1/functions/runs", "GET /v1/functions/runs/x", "DELETE /v1/functions/runs/x",
	} {
		method, path, _ := strings.Cut(route, " ")
		if p := refused(t, ask(t, w, method, path, `{"name":"x"}`), 501, engi.Unsupported); !strings.Contains(p.Remedy, "[events]") {
			t.Errorf("%s: remedy %q", route, p.Remedy)
		}
	}
}

// TestEventsOfSharedWorkspace lets a collaborator see the events of a workspace, as long as it is shared.
func TestEventsOfSharedWorkspace(t *testing.T) {
	w := newFixture(t, nil)
	id := read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"shop"}`), 201).ID
	other := read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"other"}`), 201).ID
	happen := func(subject, kind string) {
		t.Helper()
		if _, err := w.Apps.Log.Append(t.Context(), engi.EventSpec{Owner: "ann", Subject: subject, Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	happen(id, engi.EventWorkspaceUpdated)
	happen(other, engi.EventWorkspaceUpdated)
	list := func(secret, query string) []v1.Event {
		t.Helper()
		return read[v1.List[v1.Event]](t, ask(t, w, "GET", "/v1/events"+query, "", "Authorization", "Bearer "+secret), 200).Items
	}
	if all := list(w.Other, "?subject="+id); len(all) != 0 {
		t.Errorf("a stranger sees %+v", all)
	}
	share := func(people string) {
		t.Helper()
		read[v1.Workspace](t, ask(t, w, "PATCH", "/v1/workspaces/"+id, `{"collaborators":[`+people+`]}`), 200)
	}
	share(`{"owner":"bob","role":"viewer"}`)
	if all := list(w.Other, "?subject="+id); len(all) != 1 || all[0].Subject != id {
		t.Errorf("a collaborator sees %+v", all)
	}
	for _, query := range []string{"", "?subject=" + other, "?owner=ann", "?type=workspace.*"} {
		if all := list(w.Other, query); slices.ContainsFunc(all, func(e v1.Event) bool { return e.Owner == "ann" }) {
			t.Errorf("%q: a collaborator sees %+v", query, all)
		}
	}
	server := httptest.NewServer(w.Handler)
	defer server.Close()
	c := client.New(server.URL, w.Other)
	kinds := []string{engi.EventWorkspaceUpdated, engi.EventWorkspaceState, "lost"}
	seen := 0
	for e, err := range c.FollowEvents(t.Context(), 0, client.EventFilter{Subject: id}) {
		switch {
		case seen == len(kinds)-1:
			if !client.IsKind(err, v1.NotFound) {
				t.Errorf("after the end of the role: %+v, %v", e, err)
			}
		case err != nil || e.Type != kinds[seen]:
			t.Errorf("%+v, %v; want %s", e, err, kinds[seen])
		}
		switch seen++; seen {
		case 1:
			happen(id, engi.EventWorkspaceState)
		case 2:
			share("")
			happen(id, engi.EventWorkspaceState)
		}
		if err != nil {
			break
		}
	}
	if seen != len(kinds) {
		t.Errorf("%d events", seen)
	}
}
