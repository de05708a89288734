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
