package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// A pageStream is a connection to the stream of a page.
type pageStream struct {
	*http.Response
	lines *bufio.Scanner
	stop  context.CancelFunc
}

func watchPage(t *testing.T, srv *httptest.Server, secret, path string, header ...string) *pageStream {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); resp.Body.Close() })
	return &pageStream{resp, bufio.NewScanner(resp.Body), stop}
}

// next returns the next lines up to the empty one.
func (s *pageStream) next() map[string]string {
	event := map[string]string{}
	for s.lines.Scan() && s.lines.Text() != "" {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		event[name] = value
	}
	return event
}

// until returns updates of format engi, up to and with one of that type.
func (s *pageStream) until(t *testing.T, kind string) (all []v1.PageUpdate) {
	t.Helper()
	for {
		e := s.next()
		if len(e) == 0 {
			t.Fatalf("the stream ended before %s: %+v", kind, all)
		}
		var u v1.PageUpdate
		if err := json.Unmarshal([]byte(e["data"]), &u); err != nil {
			t.Fatalf("%v in %v", err, e)
		}
		if e["event"] != u.Type || (e["id"] == "") != (u.Seq == 0) || u.Seq != 0 && e["id"] != fmt.Sprint(u.Seq) {
			t.Errorf("event %v", e)
		}
		if all = append(all, u); u.Type == kind {
			return all
		}
	}
}

// TestPages acts on a page, looks at it, comes back to its stream and undoes.
func TestPagesOfSessions(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	session := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"page"}`), 201).ID + "/page"
	act := func(action string) int64 {
		t.Helper()
		return read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"`+action+`"}`), 202).Seq
	}
	live := watchPage(t, srv, w.User, "/v1/sessions/page/page/stream")
	if first := live.until(t, v1.PageReplaced)[0]; first.HTML == nil || *first.HTML != "" || first.Seq != 0 {
		t.Errorf("the page is %+v before anything", first)
	}
	act("demo-counter")
	seen := live.until(t, v1.PageDone)
	var kinds []string
	for _, u := range seen {
		kinds = append(kinds, fmt.Sprint(u.Type, u.Partial))
	}
	if want := []string{"actionfalse", "htmltrue", "htmltrue", "htmlfalse", "donefalse"}; !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
	act("add")
	counted := live.until(t, v1.PageDone)
	if p := counted[1].Patches; len(p) != 2 || *p[0].Text != "1" || p[1].Attr["title"] != nil || len(p[1].Attr) != 1 {
		t.Errorf("patches %+v", p)
	}
	// Somebody who comes back gets each event that is kept, once.
	for _, header := range []string{"", "Last-Event-ID"} {
		path := session + "/stream?after=" + fmt.Sprint(seen[0].Seq)
		var back *pageStream
		if header != "" {
			back = watchPage(t, srv, w.User, session+"/stream?after=1", header, fmt.Sprint(seen[0].Seq))
		} else {
			back = watchPage(t, srv, w.User, path)
		}
		got := append(back.until(t, v1.PageDone), back.until(t, v1.PageDone)...)
		want := append(slices.DeleteFunc(slices.Clone(seen[1:]), func(u v1.PageUpdate) bool { return u.Seq == 0 }), counted...)
		if fmt.Sprint(seqs(got)) != fmt.Sprint(seqs(want)) {
			t.Errorf("%s: %v, want %v", header, seqs(got), seqs(want))
		}
	}

	page := ask(t, w, "GET", session, "", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	if !strings.Contains(page.Body.String(), `<h1 id="count">1</h1>`) || !strings.HasPrefix(page.Body.String(), "<!DOCTYPE html>") {
		t.Errorf("the page is %s", page.Body)
	}
	for name, want := range map[string]string{"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"} {
		if got := page.Header().Get(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	policy := page.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "sandbox; default-src 'none'") || strings.Contains(policy, "allow-") || strings.Contains(policy, "script-src") {
		t.Errorf("policy %q", policy)
	}
	now := read[v1.Page](t, ask(t, w, "GET", session, "", "Accept", "application/json"), 200)
	then := read[v1.Page](t, ask(t, w, "GET", session+"?at="+fmt.Sprint(seen[len(seen)-1].Seq), "", "Accept", "application/json"), 200)
	if now.Seq <= then.Seq || !strings.Contains(then.HTML, ">0<") || now.Owner != "ann" || now.UpdatedAt == nil {
		t.Errorf("now %+v, then %+v", now, then)
	}
	back := read[v1.Page](t, ask(t, w, "POST", session+"/restore", fmt.Sprintf(`{"seq":%d}`, then.Seq)), 200)
	if back.HTML != then.HTML || back.Seq <= now.Seq {
		t.Errorf("restored %+v", back)
	}
	if u := live.until(t, v1.PageReplaced); *u[len(u)-1].HTML != then.HTML {
		t.Errorf("the stream has %+v", u)
	}
	act("wait")
	refused(t, ask(t, w, "POST", session+"/restore", fmt.Sprintf(`{"seq":%d}`, then.Seq)), 409, engi.Conflict)
	act("add")
	if x := read[v1.Page](t, ask(t, w, "GET", session, "", "Accept", "application/json"), 200); x.Working == "" || x.Waiting != 1 {
		t.Errorf("%+v", x)
	}
	for range 2 {
		if rec := ask(t, w, "POST", session+"/cancel", ""); rec.Code != 204 {
			t.Errorf("cancel: %d %s", rec.Code, rec.Body)
		}
	}
	if u := live.until(t, v1.PageDone); u[len(u)-1].State != string(engi.RunCancelled) {
		t.Errorf("ended %+v", u[len(u)-1])
	}
}

// TestAnswersToActions has streams as answers, also while another answer is given.
func TestAnswersToActions(t *testing.T) {
	w := newFixture(t, nil)
	session := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID
	act := func(query, body string, header ...string) *httptest.ResponseRecorder {
		return ask(t, w, "POST", session+"/page/actions"+query, body, header...)
	}
	for _, test := range []struct {
		query, accept, kind string
		want                []string
	}{
		{"", "text/event-stream", "text/event-stream", []string{"event: html", "event: done"}},
		{"", "application/x-ndjson", "application/x-ndjson", []string{`{"type":"html"`, `{"type":"done"`}},
		{"?format=engi", "*/*", "text/event-stream", []string{"event: html", "event: done"}},
		{"?format=ai-sdk", "", "text/event-stream", []string{`"type":"start"`, "data: [DONE]"}},
		{"?format=ag-ui", "text/event-stream", "text/event-stream", []string{`"type":"RUN_STARTED"`, `"type":"RUN_FINISHED"`}},
		{"?format=json-render", "*/*", "application/x-ndjson", []string{`"path":"/root"`, `"type":"button"`}},
		{"?format=json-render", "text/event-stream", "text/event-stream", []string{"event: patch", `"type":"button"`}},
		{"?format=a2ui", "*/*", "application/x-ndjson", []string{`"createSurface":{`, `"component":"Button"`}},
		{"?format=a2ui", "text/event-stream", "text/event-stream", []string{"data: {", `"component":"Button"`}},
	} {
		rec := act(test.query, `{"action":"demo-counter"}`, "Accept", test.accept)
		if rec.Code != 200 || rec.Header().Get("Content-Type") != test.kind || (rec.Header().Get("X-Vercel-Ai-Ui-Message-Stream") == "v1") != (test.query == "?format=ai-sdk") {
			t.Errorf("%s: %d %v", test.query, rec.Code, rec.Header())
		}
		for _, want := range test.want {
			if !strings.Contains(rec.Body.String(), want) {
				t.Errorf("%s: no %s in %s", test.query, want, rec.Body)
			}
		}
	}
	refused(t, act("?format=ag-ui", `{"action":"x"}`, "Accept", "application/x-ndjson"), 406, engi.Invalid)

	for _, format := range []string{"engi", "ai-sdk", "ag-ui", "json-render", "a2ui"} {
		read[v1.PageAction](t, act("", `{"action":"wait"}`), 202)
		answer := make(chan string)
		go func() { answer <- act("?format="+format, `{"action":"add"}`).Body.String() }()
		for read[v1.Page](t, ask(t, w, "GET", session+"/page", "", "Accept", "application/json"), 200).Waiting == 0 {
			time.Sleep(time.Millisecond)
		}
		theirs := read[v1.Page](t, ask(t, w, "GET", session+"/page", "", "Accept", "application/json"), 200).Working
		ours := string(engi.NewRunID())
		if err := w.Pages.Happen(t.Context(), engi.SessionID(strings.TrimPrefix(session, "/v1/sessions/")),
			engi.PageUpdate{Kind: engi.PageDone, Run: engi.RunID(theirs), Ended: engi.RunDone},
			engi.PageUpdate{Kind: engi.PageReplaced, Run: engi.RunID(ours), HTML: "<p>ours</p>"}, engi.PageUpdate{Kind: engi.PageDone, Run: engi.RunID(ours), Ended: engi.RunDone},
		); err != nil {
			t.Fatal(err)
		}
		got := <-answer
		if !strings.Contains(got, "ours") || format != "json-render" && format != "a2ui" && !strings.Contains(got, ours) || (format == "ai-sdk" || format == "ag-ui") && strings.Contains(got, theirs) {
			t.Errorf("%s: %s", format, got)
		}
	}
}

// TestResumeAsHooksDo comes back to answers as hooks of the AI SDK do: they forget what
// they have seen, and do not wait for an answer that nobody is giving.
func TestResumeAsHooksDo(t *testing.T) {
	w := newFixture(t, nil)
	id := read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID
	session := "/v1/sessions/" + id + "/page"
	resume := func(after int64) (code int, kinds []string) {
		t.Helper()
		rec := ask(t, w, "GET", session+"/stream?format=ai-sdk&after="+fmt.Sprint(after), "")
		for line := range strings.Lines(rec.Body.String()) {
			if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
				var e struct{ Type string }
				if json.Unmarshal([]byte(data), &e) != nil {
					e.Type = data
				}
				kinds = append(kinds, e.Type)
			}
		}
		return rec.Code, kinds
	}
	is := func(what string, after int64, code int, want string) {
		t.Helper()
		if got, kinds := resume(after); got != code || strings.Join(kinds, " ") != want {
			t.Errorf("%s: %d %q, want %d %s", what, got, kinds, code, want)
		}
	}
	is("nothing has happened", 0, 200, "data-html [DONE]")
	act := func(action string) int64 {
		t.Helper()
		return read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"`+action+`"}`), 202).Seq
	}
	begun := act("demo-counter")
	ended := begun + 6
	is("nothing was seen of what is over", 0, 200, "data-html [DONE]")
	is("the action was seen", begun, 200, "data-action start data-html data-html finish-step finish [DONE]")
	is("all was seen", ended, 204, "")
	is("another log's", 1000, 200, "data-html [DONE]")
	said := act("stats")
	is("the end of the answer before was seen", ended, 200, "data-action start start-step data-html data-stats finish-step finish [DONE]")
	is("half of it was seen", said+3, 200, "data-action start data-html data-stats finish-step finish [DONE]")
	waits := act("wait")
	got := make(chan string, 3)
	for _, after := range []int64{0, waits, waits + 3} {
		go func() {
			_, kinds := resume(after)
			got <- strings.Join(kinds, " ")
		}()
	}
	select {
	case kinds := <-got:
		t.Errorf("it ended before the answer: %s", kinds)
	case <-time.After(100 * time.Millisecond):
	}
	if rec := ask(t, w, "POST", session+"/cancel", ""); rec.Code != 204 {
		t.Fatal(rec.Code)
	}
	for range cap(got) {
		if kinds := <-got; !strings.HasPrefix(kinds, "data-action start ") || !strings.HasSuffix(kinds, "data-html data-stats abort [DONE]") {
			t.Errorf("cancelled: %s", kinds)
		}
	}
}

// TestRepeatedActionShowsItsAnswer comes back to an answer with the same key.
func TestRepeatedActionShowsItsAnswer(t *testing.T) {
	w := newFixture(t, nil)
	session := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID + "/page"
	read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"wait"}`, "Idempotency-Key", "k"), 202)
	answer := make(chan string)
	go func() {
		answer <- ask(t, w, "POST", session+"/actions?format=ai-sdk", `{"action":"wait"}`, "Idempotency-Key", "k").Body.String()
	}()
	for i := 0; ; i++ {
		select {
		case got := <-answer:
			if !strings.Contains(got, `"type":"abort"`) || i == 0 {
				t.Errorf("%s", got)
			}
			return
		case <-time.After(200 * time.Millisecond):
			if rec := ask(t, w, "POST", session+"/cancel", ""); rec.Code != 204 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		case <-t.Context().Done():
			t.Fatal("it does not end")
		}
	}
}

func seqs(all []v1.PageUpdate) (n []int64) {
	for _, u := range all {
		n = append(n, u.Seq)
	}
	return n
}

func TestBadRequestsAboutPages(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	session := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID + "/page"
	for _, body := range []string{
		`{}`, `{"action":""}`, `{"action":"` + strings.Repeat("x", 129) + `"}`, `{"action":"a\nb"}`, `{"action":"a","data":[]}`, `{"action":"a","data":"x"}`,
		`{"action":"a","more":1}`, `{"action":7}`, `[]`,
	} {
		refused(t, ask(t, w, "POST", session+"/actions", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", session+"/actions", `{"action":"a","data":{"x":"`+strings.Repeat("x", 64<<10)+`"}}`), 413, engi.Invalid)
	read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"a","data":null}`), 202)
	refused(t, ask(t, w, "POST", session+"/actions", `{"action":"a","agent":"nobody"}`), 404, engi.NotFound)
	refused(t, ask(t, w, "GET", "/v1/sessions/"+strings.Repeat("x", 129)+"/page", ""), 400, engi.Invalid)
	for _, query := range []string{"?at=x", "?at=-1", "?at=1000000", "/stream?after=-1", "/stream?format=xml", "/stream?format=", "/stream?nonsense=1"} {
		rec := askSoon(t, w, w.User, "GET", session+query, "")
		if query == "/stream?format=" { // as if it were absent
			if rec.Code != 200 {
				t.Errorf("%s: %d", query, rec.Code)
			}
			continue
		}
		refused(t, rec, 400, engi.Invalid)
	}
	refused(t, ask(t, w, "GET", session+"/stream", "", "Last-Event-ID", "x"), 400, engi.Invalid)
	for _, accept := range []string{"application/json", "application/x-ndjson"} {
		refused(t, ask(t, w, "GET", session+"/stream?format=ag-ui", "", "Accept", accept), 406, engi.Invalid)
	}
	refused(t, ask(t, w, "GET", session, "", "Accept", "image/png"), 406, engi.Invalid)
	for _, body := range []string{`{}`, `{"seq":-1}`, `{"seq":1000000}`} {
		refused(t, ask(t, w, "POST", session+"/restore", body), 400, engi.Invalid)
	}

	// A stream from beyond the end begins with the page, and has nothing of what was.
	far := watchPage(t, srv, w.User, session+"/stream?after=1000000")
	if u := far.until(t, v1.PageReplaced); len(u) != 1 {
		t.Errorf("%+v", u)
	}
	read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"demo-counter"}`), 202)
	if u := far.until(t, v1.PageActed); len(u) != 1 || u[0].Action != "demo-counter" {
		t.Errorf("%+v", u)
	}
}

// TestUIStreamsEndWithTheirKey revokes a key while its streams are open.
func TestUIStreamsEndWithTheirKey(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	session := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", ""), 201).ID + "/page"
	k, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeAgents}})
	if err != nil {
		t.Fatal(err)
	}
	read[v1.PageAction](t, ask(t, w, "POST", session+"/actions", `{"action":"wait"}`), 202)
	open := map[string]*pageStream{}
	for _, format := range []string{"engi", "ai-sdk", "ag-ui"} {
		open[format] = watchPage(t, srv, secret, session+"/stream?format="+format)
		open[format].next()
	}
	if rec := ask(t, w, "DELETE", "/v1/keys/"+k.ID, "", "Authorization", "Bearer "+w.Admin); rec.Code != 204 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	for format, s := range open {
		last := ""
		for e := s.next(); len(e) > 0; e = s.next() {
			last = e["data"]
		}
		if !strings.HasPrefix(last, `{"`) || !strings.Contains(last, "revoked") || !strings.Contains(strings.ToLower(last), "error") {
			t.Errorf("%s ends with %q", format, last)
		}
	}
}

func TestNodeWithoutUIs(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Pages = nil })
	for _, route := range []string{"GET /v1/sessions/x/page", "GET /v1/sessions/x/page/stream", "POST /v1/sessions/x/page/actions", "POST /v1/sessions/x/page/cancel", "POST /v1/sessions/x/page/restore"} {
		method, path, _ := strings.Cut(route, " ")
		if p := refused(t, ask(t, w, method, path, `{"action":"x"}`), 501, engi.Unsupported); !strings.Contains(p.Remedy, "[models]") {
			t.Errorf("%s: remedy %q", route, p.Remedy)
		}
	}
}
