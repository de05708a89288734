package rest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// twice are two bodies of each route that creates something.
var twice = map[string][2]string{
	"POST /v1/executions":                                {`{"language":"python","code":"print(6*7)"}`, `{"language":"python","code":"print(43)"}`},
	"POST /v1/sandboxes":                                 {`{}`, `{"timeout":"1m"}`},
	"POST /v1/sandboxes/{id}/fork":                       {`{"count":2}`, `{"count":1}`},
	"POST /v1/sandboxes/{id}/snapshot":                   {``, `{"name":"other"}`},
	"POST /v1/sandboxes/{id}/processes":                  {`{"args":["true"],"detach":true}`, `{"args":["false"],"detach":true}`},
	"POST /v1/sessions/{id}/page/actions":                {`{"action":"x"}`, `{"action":"y"}`},
	"POST /v1/volumes":                                   {`{"name":"new"}`, `{"name":"newer"}`},
	"POST /v1/secrets":                                   {`{"name":"new","value":"x"}`, `{"name":"new","value":"y"}`},
	"POST /v1/sessions":                                  {``, `{"ttl":"1h"}`},
	"POST /v1/apps":                                      {`{"name":"new"}`, `{"name":"newer"}`},
	"POST /v1/apps/{id}/edit":                            {`{"prompt":"<file path=\"a\">a</file>"}`, `{"prompt":"<file path=\"a\">b</file>"}`},
	"POST /v1/apps/{id}/apply":                           {`{"text":"<file path=\"a\">a</file>"}`, `{"text":"<file path=\"a\">b</file>"}`},
	"POST /v1/apps/{id}/branch":                          {`{}`, `{"revision":1}`},
	"POST /v1/workspaces":                                {`{"name":"new"}`, `{"name":"newer"}`},
	"POST /v1/workspaces/{id}/services":                  {`{"type":"mysql","name":"new"}`, `{"type":"mysql","name":"newer"}`},
	"POST /v1/workflows":                                 {`{"workspace":"WORKSPACE","name":"new"}`, `{"workspace":"WORKSPACE","name":"newer"}`},
	"POST /v1/docs":                                      {`{"title":"a","text":"# a"}`, `{"title":"a","text":"# b"}`},
	"POST /v1/agents/{name}/runs":                        {`{"input":"x"}`, `{"input":"y"}`},
	"POST /v1/chat":                                      {`{"message":"x"}`, `{"message":"y"}`},
	"POST /v1/chat/completions":                          {`{"model":"echo","messages":[{"role":"user","content":"x"}]}`, `{"model":"echo","messages":[{"role":"user","content":"y"}]}`},
	"POST /v1/responses":                                 {`{"model":"echo","input":"x","background":true}`, `{"model":"echo","input":"y","background":true}`},
	"POST /v1/messages":                                  {`{"model":"echo","max_tokens":9,"messages":[{"role":"user","content":"x"}]}`, `{"model":"echo","max_tokens":9,"messages":[{"role":"user","content":"y"}]}`},
	"POST /v1/events":                                    {`{"name":"a"}`, `{"name":"b"}`},
	"POST /v1/events/{id}/replay":                        {``, `{"function":"wait"}`},
	"POST /v1/templates":                                 {`{"name":"base","async":true}`, `{"name":"host","async":true}`},
	"POST /v1/webhooks":                                  {`{"url":"http://127.0.0.1:1/","types":["never"]}`, `{"url":"http://127.0.0.1:1/"}`},
	"POST /v1/webhooks/{id}/deliveries":                  {`{"event_id":"EVENT"}`, `{"event_id":"evt_u2dmwmlezjgprkqrgppgcz2mgu"}`},
	"POST /v1/ssh-keys":                                  {`{"public_key":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINsjISchHak3ZlyPKCIF6c2hXl1qofeQUNc0Ph55h6Fx"}`, `{"public_key":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBA16/M6O35iiEl0hC6j2Vw67ycJUxNrot9cVFh5mTTs"}`},
	"POST /v1/sessions/{id}/terminals":                   {`{"args":["/bin/sh"]}`, `{"args":["/bin/cat"]}`},
	"POST /v1/sandboxes/{id}/terminals":                  {`{"args":["/bin/sh"]}`, `{"args":["/bin/cat"]}`},
	"POST /v1/sessions/{id}/terminals/{terminal}/links":  {``, `{"write":true}`},
	"POST /v1/sandboxes/{id}/terminals/{terminal}/links": {``, `{"write":true}`},
	"POST /v1/keys":                                      {`{"name":"a"}`, `{"name":"b"}`},
}

// notRepeated are routes that answer 201 or 202 and take no key.
var notRepeated = map[string]string{
	"POST /v1/dashboard/links":                  "a link is short-lived, and works once",
	"POST /v1/sandboxes/{id}/files/mkdir":       "a path names itself: a second one is a conflict",
	"POST /v1/volumes/{name}/files/mkdir":       "a path names itself: a second one is a conflict",
	"POST /v1/apps/{id}/snapshot":               "a revision has one: the second takes the place of the first",
	"POST /v1/apps/{id}/link":                   "a link is signed, not kept: two are as good as one",
	"POST /v1/apps/{id}/publish/link":           "a link is signed, not kept: two are as good as one",
	"POST /v1/workspaces/{id}/link":             "a link is signed, not kept: two are as good as one",
	"POST /v1/sandboxes/{id}/ports/{port}/link": "a link is signed, not kept: two are as good as one",
}

// made returns what an answer says was made, without what changes.
func made(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var v struct {
		ID    string `json:"id"`
		Name  string
		Seq   int64
		Run   v1.AgentRun
		Items []v1.Fork
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, rec.Body)
	}
	all := v.ID + v.Run.ID
	for _, f := range v.Items {
		all += " " + f.Sandbox.ID
	}
	if all == "" && v.Seq > 0 {
		return fmt.Sprint(v.Seq)
	}
	if all = cmp.Or(all, v.Name); all == "" { // what has no ID has a name
		t.Fatalf("nothing was made: %s", rec.Body)
	}
	return all
}

// TestRepeatedRequestsMakeOneThing tries every route that creates something:
// the same request again, at the same time, and another one of the same key.
func TestRepeatedRequestsMakeOneThing(t *testing.T) {
	w := newFixture(t, nil)
	mine := hold(t, w)
	tried := 0
	for _, route := range w.Handler.Routes() {
		pattern := route.Pattern
		creates := strings.HasPrefix(pattern, "POST ") && (route.Status == 201 || route.Status == 202)
		if _, ok := notRepeated[pattern]; route.Creates == "" {
			if creates && !ok {
				t.Errorf("%s takes no Idempotency-Key", pattern)
			}
			continue
		}
		tried++
		bodies, ok := twice[pattern]
		if !ok {
			t.Errorf("%s: this test has no body for it", pattern)
			continue
		}
		method, path, _ := mine.requestFor(pattern)
		for i := range bodies {
			bodies[i] = strings.NewReplacer("EVENT", mine.event, "WORKSPACE", mine.workspace).Replace(bodies[i])
		}
		send := func(key, body string) *httptest.ResponseRecorder {
			key += strings.ReplaceAll(pattern, " ", "")
			secret := w.User
			if route.Access.Admin {
				secret = w.Admin
			}
			return ask(t, w, method, path, body, "Authorization", "Bearer "+secret, "Idempotency-Key", key)
		}
		first := send("first", bodies[0])
		if first.Code >= 300 {
			t.Errorf("%s: %d %s", pattern, first.Code, first.Body)
			continue
		}
		if pattern == "POST /v1/keys" { // its secret cannot be shown again
			refused(t, send("first", bodies[0]), 409, engi.Conflict)
			refused(t, send("first", bodies[1]), 409, engi.Conflict)
			continue
		}
		again := send("first", strings.Replace(bodies[0], "{", "{ ", 1))
		if again.Code != first.Code || made(t, again) != made(t, first) || again.Header().Get("Location") != first.Header().Get("Location") {
			t.Errorf("%s: the second answer is %d %s, the first %d %s", pattern, again.Code, again.Body, first.Code, first.Body)
		}
		if other := send("first", bodies[1]); other.Code != 409 {
			t.Errorf("%s: another request with the same key is %d %s", pattern, other.Code, other.Body)
		}
		if other := ask(t, w, method, path, bodies[0], "Authorization", "Bearer "+w.Other, "Idempotency-Key", "first"+strings.ReplaceAll(pattern, " ", "")); other.Code == first.Code && made(t, other) == made(t, first) {
			t.Errorf("%s: another owner gets %s", pattern, other.Body)
		}

		// Names that are taken are conflicts, or mean what is there.
		bodies[0] = strings.NewReplacer(`"name":"new"`, `"name":"at-once"`, `"title":"a"`, `"title":"b"`, "AAAAC3NzaC1lZDI1NTE5AAAAINsjISchHak3ZlyPKCIF6c2hXl1qofeQUNc0Ph55h6Fx", "AAAAC3NzaC1lZDI1NTE5AAAAIE4PCQVsw5LM6QV5oRFcsTFmXy8k2M5YHQftuRMsWLVa").Replace(bodies[0])
		var wg sync.WaitGroup
		answers := make([]*httptest.ResponseRecorder, 8)
		for i := range answers {
			wg.Go(func() { answers[i] = send("second", bodies[0]) })
		}
		wg.Wait()
		for _, rec := range answers {
			if rec.Code != first.Code || made(t, rec) != made(t, answers[0]) || made(t, rec) == made(t, first) {
				t.Errorf("%s: at the same time: %d %s", pattern, rec.Code, rec.Body)
			}
		}
	}
	if tried != len(twice) {
		t.Errorf("%d routes take an Idempotency-Key, %d have bodies here", tried, len(twice))
	}
}

// lossy are volumes that fail as a test says, and remember what was asked.
type lossy struct {
	*apitest.Volumes
	before, after error
	ids           []engi.VolumeID
}

func (l *lossy) Create(ctx context.Context, spec engi.VolumeSpec) (engi.Volume, error) {
	l.ids = append(l.ids, spec.ID)
	if l.before != nil {
		return engi.Volume{}, l.before
	}
	x, err := l.Volumes.Create(ctx, spec)
	if l.after != nil {
		return engi.Volume{}, l.after
	}
	return x, err
}

// TestRequestsSurviveAKill holds that a request whose server died in the
// middle is finished by the next one, under the same ID.
func TestRequestsSurviveAKill(t *testing.T) {
	volumes := &lossy{}
	w := newFixture(t, func(o *apitest.Options) { volumes.Volumes = o.Volumes.(*apitest.Volumes); o.Volumes = volumes })
	create := func(body string) *httptest.ResponseRecorder {
		return ask(t, w, "POST", "/v1/volumes", body, "Idempotency-Key", "k")
	}
	killed := engi.Errorf(engi.Unavailable, "the server was killed")

	volumes.before = killed // before anything was made
	refused(t, create(`{"name":"a"}`), 503, engi.Unavailable)
	refused(t, create(`{"name":"b"}`), 409, engi.Conflict)
	volumes.before, volumes.after = nil, killed // after all was made, before it was told
	refused(t, create(`{"name":"a"}`), 503, engi.Unavailable)
	volumes.after = nil
	x := read[v1.Volume](t, create(`{"name":"a"}`), 201)
	if len(volumes.ids) != 2 || volumes.ids[0] != volumes.ids[1] || x.ID != string(volumes.ids[0]) {
		t.Errorf("%v were asked for, and %s was made", volumes.ids, x.ID)
	}

	// What is gone is not made again.
	ask(t, w, "DELETE", "/v1/volumes/a", "")
	if p := refused(t, create(`{"name":"a"}`), 409, engi.Conflict); !strings.Contains(p.Detail, x.ID) {
		t.Errorf("detail %q", p.Detail)
	}

	// A request that could never succeed leaves its key free.
	volumes.before = engi.Errorf(engi.Invalid, "never")
	refused(t, ask(t, w, "POST", "/v1/volumes", `{"name":"c"}`, "Idempotency-Key", "l"), 400, engi.Invalid)
	volumes.before = nil
	read[v1.Volume](t, ask(t, w, "POST", "/v1/volumes", `{"name":"d"}`, "Idempotency-Key", "l"), 201)
}

// TestForksAreCompleted holds that copies which a kill prevented are started
// by the repetition, and no others.
func TestForksAreCompleted(t *testing.T) {
	var half *halfway
	w := newFixture(t, func(o *apitest.Options) { half = &halfway{Lifecycle: o.Lifecycle}; o.Lifecycle = half })
	box := aSandbox(t, w)
	fork := func() *httptest.ResponseRecorder {
		return ask(t, w, "POST", box+"/fork", `{"count":2}`, "Idempotency-Key", "k")
	}
	half.die = true
	refused(t, fork(), 503, engi.Unavailable)
	half.die = false
	first := read[v1.List[v1.Fork]](t, fork(), 201).Items
	if len(first) != 2 || first[0].Sandbox.ID != string(half.made) || first[1].Sandbox == nil {
		t.Fatalf("%+v, and %s was there", first, half.made)
	}
	again := read[v1.List[v1.Fork]](t, fork(), 201).Items
	if !slices.EqualFunc(first, again, func(a, b v1.Fork) bool { return a.Sandbox.ID == b.Sandbox.ID }) {
		t.Errorf("%+v, then %+v", first, again)
	}
}

// halfway dies after the first of several copies.
type halfway struct {
	engi.Lifecycle
	die  bool
	made engi.SandboxID
}

func (h *halfway) Fork(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, spec engi.ForkSpec) ([]engi.Forked, error) {
	if !h.die {
		return h.Lifecycle.Fork(ctx, viewer, id, spec)
	}
	h.made = spec.IDs[0]
	if _, err := h.Lifecycle.Fork(ctx, viewer, id, engi.ForkSpec{Count: 1, IDs: spec.IDs[:1]}); err != nil {
		return nil, err
	}
	return nil, engi.Errorf(engi.Unavailable, "the server was killed")
}
