package rest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestSessions(t *testing.T) {
	twin := &apitest.Sessions{}
	w := newFixture(t, func(o *apitest.Options) { o.Sessions = twin })
	made := ask(t, w, "POST", "/v1/sessions", `{"name":"chat","memory":"512MiB","network":{"allow":["a.example.com"]},"metadata":{"a":"b"}}`)
	s := read[v1.Session](t, made, 201)
	if made.Header().Get("Location") != "/v1/sessions/"+s.ID || s.Owner != "ann" || s.Size.Memory != 512<<20 || s.Network == nil || s.Network.Mode != "restricted" {
		t.Errorf("%+v at %s", s, made.Header().Get("Location"))
	}
	if x := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201); x.State != "idle" {
		t.Errorf("without a body: %+v", x)
	}
	x := read[v1.CodeResult](t, ask(t, w, "POST", "/v1/sessions/chat/run_code", `{"code":"hello","description":"greets","timeout":"3s","env":{"A":"b"}}`), 200)
	if !x.Success || string(x.Result) != "5" || x.Stdout != "hello" || x.Error != "" {
		t.Errorf("%+v", x)
	}
	if twin.Last.Timeout != 3*time.Second || twin.Last.Env["A"] != "b" {
		t.Errorf("asked for %+v", twin.Last)
	}
	x = read[v1.CodeResult](t, ask(t, w, "POST", "/v1/sessions/chat/run_code", `{"code":"throw"}`), 200)
	if x.Success || x.Error != "TypeError: m (line 2, column 3)" || x.Detail.Line != 2 || x.Result != nil {
		t.Errorf("%+v", x)
	}
	for body, want := range map[string]engi.Kind{
		`{}`: engi.Invalid, `{"code":"x","language":"python"}`: engi.Invalid, `{"code":"x","kode":1}`: engi.Invalid, `{"code":"lost"}`: engi.Unavailable,
	} {
		if rec := ask(t, w, "POST", "/v1/sessions/chat/run_code", body); rec.Code < 400 || !strings.Contains(rec.Body.String(), want.String()) {
			t.Errorf("%s: %d %s, want kind %s", body, rec.Code, rec.Body, want)
		}
	}
	for _, body := range []string{`{"mode":"hot"}`, `{"persistence":"all"}`, `{"network":{"mode":"wide"}}`, `{"metadata":{"":"x"}}`, `{"nmae":"x"}`} {
		refused(t, ask(t, w, "POST", "/v1/sessions", body), 400, engi.Invalid)
	}
	for act, state := range map[string]string{"suspend": "suspended", "hibernate": "hibernated", "resume": "running"} {
		if x := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions/chat/"+act, ""), 200); x.State != state {
			t.Errorf("%s: %+v", act, x)
		}
	}
	if x := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions/chat/attach", `{"client":"laptop"}`), 200); x.State != "running" || len(x.Attached) != 1 || x.Attached[0].Client != "laptop" {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions/chat/detach", `{"client":"laptop"}`), 200); len(x.Attached) != 0 {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions/chat/release", ""), 200); x.State != "idle" || x.SandboxID != "" {
		t.Errorf("%+v", x)
	}
	if list := read[v1.List[v1.Session]](t, ask(t, w, "GET", "/v1/sessions", ""), 200); len(list.Items) != 2 {
		t.Errorf("%+v", list)
	}
	if rec := ask(t, w, "DELETE", "/v1/sessions/chat", ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if d := read[v1.Dependencies](t, ask(t, w, "GET", "/v1/dependencies", ""), 200); d.State != "ready" || d.Packages[0].SecretEnv != "ACME_KEY" {
		t.Errorf("%+v", d)
	}
}

func TestSessionsWithRepositories(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Sessions = &apitest.Sessions{} })
	s := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"fix","git":{"url":"https://git.example/o/r","secret":"s","depth":1,"push":{"on_release":true,"branch":"topic"}}}`), 201)
	if s.Git == nil || s.Git.Secret != "s" || s.Git.Depth != 1 || !s.Git.Push.OnRelease || s.Git.Push.Branch != "topic" {
		t.Errorf("%+v", s.Git)
	}
	if x := read[v1.GitPushed](t, ask(t, w, "POST", "/v1/sessions/fix/git/push", ""), 200); x.Branch != "topic" || len(x.Commit) != 40 {
		t.Errorf("%+v", x)
	}
	if x := read[v1.GitPushed](t, ask(t, w, "POST", "/v1/sessions/fix/git/push", `{"branch":"b","author":"Ann <a@b>","message":"m"}`), 200); x.Branch != "b" {
		t.Errorf("%+v", x)
	}
	refused(t, ask(t, w, "POST", "/v1/sessions/fix/git/push", `{"on_release":true}`), 400, engi.Invalid)
	read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"plain"}`), 201)
	refused(t, ask(t, w, "POST", "/v1/sessions/plain/git/push", ""), 409, engi.Conflict)
}

func TestSavedSessions(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Sessions = &apitest.Sessions{} })
	if s := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"s","persistence":"workspace","max_duration":"8h"}`), 201); s.Persistence != "workspace" || s.MaxDuration.Std() != 8*time.Hour || s.SavedAt != nil {
		t.Errorf("%+v", s)
	}
	if x := read[v1.WorkspaceCopy](t, ask(t, w, "POST", "/v1/sessions/s/save", ""), 200); x != (v1.WorkspaceCopy{Files: 3, Bytes: 2048, Uploaded: 1024, Skipped: 1}) {
		t.Errorf("%+v", x)
	}
	if s := read[v1.Session](t, ask(t, w, "GET", "/v1/sessions/s", ""), 200); s.SavedAt == nil {
		t.Errorf("%+v", s)
	}
	read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"plain"}`), 201)
	refused(t, ask(t, w, "POST", "/v1/sessions/plain/save", ""), 409, engi.Conflict)
}

// TestCodeAsAStream checks that output comes in whole characters and the result
// last, in both forms, and that a caller that leaves ends the run.
func TestCodeAsAStream(t *testing.T) {
	twin := &apitest.Sessions{}
	w := newFixture(t, func(o *apitest.Options) { o.Sessions = twin })
	read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"s"}`), 201)
	for form, want := range map[string][]string{
		"application/x-ndjson": {`{"type":"stdout","offset":0,"data":"\u00e4\u00f6"}`, `{"type":"stdout","offset":4,"data":"\u00fc"}`, `"type":"result"`},
		"text/event-stream":    {"event: stdout\ndata: {", "event: result\ndata: {"},
	} {
		rec := ask(t, w, "POST", "/v1/sessions/s/run_code", `{"code":"äöü"}`, "Accept", form)
		if rec.Code != 200 || rec.Header().Get("Content-Type") != form {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		text := rec.Body.String()
		for _, part := range want[len(want)-1:] {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %s in %s", form, part, text)
			}
		}
		if strings.Contains(text, "data_base64") || strings.Index(text, "result") < strings.Index(text, "stdout") {
			t.Errorf("%s: %s", form, text)
		}
	}
	if rec := ask(t, w, "POST", "/v1/sessions/s/run_code", `{"code":"lost"}`, "Accept", "application/x-ndjson"); !strings.Contains(rec.Body.String(), `"kind":"unavailable"`) {
		t.Errorf("%s", rec.Body)
	}
	if rec := ask(t, w, "POST", "/v1/sessions/none/run_code", `{"code":"1"}`, "Accept", "text/event-stream"); rec.Code != 404 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/sessions/s/run_code", strings.NewReader(`{"code":"wait"}`))
	r.Header.Set("Authorization", "Bearer "+w.User)
	r.Header.Set("Accept", "text/event-stream")
	done := make(chan struct{})
	go func() {
		defer close(done)
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(leaver{rec, func() {
			if strings.Contains(rec.Body.String(), "stdout") {
				leave()
			}
		}}, r)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the run goes on without its caller")
	}
}

// TestS0_1_NodeWithoutSessions checks that every route of sessions says what to
// do where a node has none.
func TestS0_1_NodeWithoutSessions(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Sessions = nil })
	for _, route := range []string{
		"POST /v1/sessions", "GET /v1/sessions", "GET /v1/sessions/x", "DELETE /v1/sessions/x", "POST /v1/sessions/x/run_code", "POST /v1/sessions/x/release", "POST /v1/sessions/x/git/push", "POST /v1/sessions/x/save", "GET /v1/dependencies",
	} {
		method, path, _ := strings.Cut(route, " ")
		if p := refused(t, ask(t, w, method, path, `{"code":"1"}`), 501, engi.Unsupported); !strings.Contains(p.Remedy, "/v1/sandboxes") {
			t.Errorf("%s: remedy %q", route, p.Remedy)
		}
	}
}
