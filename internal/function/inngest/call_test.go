package inngest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

const (
	testKey  = "0123456789abcdef"
	callPath = "/api/inngest?fnId=engi-run&stepId=step"
)

// server returns the address of a server that accepts everything.
func server(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func engine(t *testing.T, signing string) *Engine {
	t.Helper()
	e, err := New(Options{URL: server(t), ServeURL: "http://127.0.0.1:1/api/inngest", SigningKey: signing})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// An executor executes runs of one step, which is do.
type executor struct {
	do func(ctx context.Context) (json.RawMessage, error)
}

func (x executor) Execute(ctx context.Context, _ engi.FunctionRunID, s function.Stepper) function.Outcome {
	out, err := s.Step(ctx, "only", x.do)
	switch {
	case err == function.ErrYield:
		return function.Outcome{Next: function.Yielded}
	case ctx.Err() != nil:
		return function.Outcome{Next: function.Stopped}
	case err != nil:
		return function.Outcome{Next: function.Ended, Error: engi.Errorf(engi.KindOf(err), "%v", err)}
	}
	return function.Outcome{Next: function.Ended, Output: out}
}

// runEngine runs the engine until the end of the test, or until end is called.
func runEngine(t *testing.T, e *Engine, do func(context.Context) (json.RawMessage, error)) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, gone := make(chan struct{}), make(chan error, 1)
	go func() { gone <- e.Run(ctx, executor{do}, func() { close(ready) }) }()
	<-ready
	ended := false
	end = func() {
		cancel()
		if !ended {
			ended = true
			if err := <-gone; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(end)
	return end
}

func body(run engi.FunctionRunID, steps string) string {
	return fmt.Sprintf(`{"event":{"name":"engi/function.run","data":{"run":%q,"function":"f"}},"steps":%s,"ctx":{"run_id":"01ABC"},"version":1}`, run, steps)
}

func request(ctx context.Context, method, target, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:7777"+target, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:40000"
	return r
}

func sign(r *http.Request, key, body string, at time.Time) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body + stamp))
	r.Header.Set("X-Inngest-Signature", "t="+stamp+"&s="+hex.EncodeToString(mac.Sum(nil)))
}

func serve(e *Engine, r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, r)
	return rec
}

// TestWakeKeepsResults loses the response to the only step of a run, and wakes the run before the server calls
// again. The step is not done twice.
func TestWakeKeepsResults(t *testing.T) {
	e := engine(t, "")
	var done atomic.Int32
	runEngine(t, e, func(context.Context) (json.RawMessage, error) {
		return json.RawMessage(strconv.Itoa(int(done.Add(1)))), nil
	})
	id := engi.NewFunctionRunID()
	first := serve(e, request(t.Context(), http.MethodPost, callPath, body(id, "{}")))
	if err := e.Wake(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	again := serve(e, request(t.Context(), http.MethodPost, callPath, body(id, "{}")))
	if first.Code != http.StatusPartialContent || again.Body.String() != first.Body.String() || done.Load() != 1 {
		t.Errorf("the step was done %d times: %d %s and %d %s", done.Load(), first.Code, first.Body, again.Code, again.Body)
	}
}

func TestSignatures(t *testing.T) {
	e := engine(t, "signkey-prod-"+testKey)
	runEngine(t, e, func(context.Context) (json.RawMessage, error) { return json.RawMessage("1"), nil })
	text := body(engi.NewFunctionRunID(), "{}")
	for name, c := range map[string]struct {
		sign func(*http.Request)
		want int
	}{
		"good":              {func(r *http.Request) { sign(r, testKey, text, time.Now()) }, 206},
		"unsigned":          {func(*http.Request) {}, 401},
		"with another key":  {func(r *http.Request) { sign(r, "fedcba9876543210", text, time.Now()) }, 401},
		"with an empty key": {func(r *http.Request) { sign(r, "", text, time.Now()) }, 401},
		"with the prefix":   {func(r *http.Request) { sign(r, "signkey-prod-"+testKey, text, time.Now()) }, 401},
		"of another body":   {func(r *http.Request) { sign(r, testKey, text+" ", time.Now()) }, 401},
		"old":               {func(r *http.Request) { sign(r, testKey, text, time.Now().Add(-6*time.Minute)) }, 401},
		"of the future":     {func(r *http.Request) { sign(r, testKey, text, time.Now().Add(6*time.Minute)) }, 401},
		"nonsense":          {func(r *http.Request) { r.Header.Set("X-Inngest-Signature", "t=1&s=zz&;%") }, 401},
		"cut": {func(r *http.Request) {
			sign(r, testKey, text, time.Now())
			r.Header.Set("X-Inngest-Signature", r.Header.Get("X-Inngest-Signature")[:40])
		}, 401},
	} {
		r := request(t.Context(), "POST", callPath, text)
		c.sign(r)
		if rec := serve(e, r); rec.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, rec.Code, rec.Body, c.want)
		} else if rec.Header().Get("X-Inngest-SDK") == "" || strings.Contains(rec.Body.String(), testKey) {
			t.Errorf("%s: %v %s", name, rec.Header(), rec.Body)
		}
	}
}

func TestUnsignedCallsMustBeLocal(t *testing.T) {
	e := engine(t, "")
	runEngine(t, e, func(context.Context) (json.RawMessage, error) { return json.RawMessage("1"), nil })
	for name, change := range map[string]func(*http.Request){
		"from afar":       func(r *http.Request) { r.RemoteAddr = "192.0.2.1:5" },
		"through a proxy": func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.1") },
		"by a page":       func(r *http.Request) { r.Header.Set("Origin", "http://evil.example.com") },
		"by another name": func(r *http.Request) { r.Host = "evil.example.com:7777" },
	} {
		r := request(t.Context(), "POST", callPath, body(engi.NewFunctionRunID(), "{}"))
		change(r)
		if rec := serve(e, r); rec.Code != 401 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	for _, fix := range []Options{
		{URL: "http://inngest.example.com", ServeURL: "http://127.0.0.1:1/x"},
		{URL: "http://127.0.0.1:1", ServeURL: "http://192.0.2.1/x"},
		{URL: "nonsense", ServeURL: "http://127.0.0.1:1/x"},
		{URL: "http://user:pass@127.0.0.1:1", ServeURL: "http://127.0.0.1:1/x"},
		{URL: "http://127.0.0.1:1", ServeURL: "http://127.0.0.1:1/x", SigningKey: "signkey-prod-xyz"},
		{URL: "http://127.0.0.1:1", ServeURL: "http://127.0.0.1:1/x", App: "A b"},
	} {
		if _, err := New(fix); !engi.Is(err, engi.Invalid) || strings.Contains(err.Error(), "pass") || strings.Contains(err.Error(), "xyz") {
			t.Errorf("%+v: %v", fix, err)
		}
	}
}

func TestBadCalls(t *testing.T) {
	e := engine(t, "")
	end := runEngine(t, e, func(context.Context) (json.RawMessage, error) { return json.RawMessage("1"), nil })
	good := body(engi.NewFunctionRunID(), "{}")
	for _, c := range []struct {
		method, target, body string
		want                 int
	}{
		{"GET", callPath, "", 200},
		{"PUT", callPath, "", 200},
		{"DELETE", callPath, "", 405},
		{"POST", "/api/inngest?fnId=other-run", good, 404},
		{"POST", callPath, "", 400},
		{"POST", callPath, "[]", 400},
		{"POST", callPath, `{"event":{"data":{"run":"../x"}}}`, 400},
		{"POST", callPath, `{"event":{"data":{"run":7}}}`, 400},
		{"POST", callPath, strings.Repeat(" ", maxCall+1), 413},
		{"POST", callPath, body(engi.NewFunctionRunID(), `{"`+digest1("only")+`":{"data":7}}`), 500},
		{"POST", callPath, body(engi.NewFunctionRunID(), `{"`+digest1("only")+`":{"data":"{"}}`), 500},
		{"POST", callPath, body(engi.NewFunctionRunID(), `{"`+digest1("only")+`":null}`), 500},
		{"POST", callPath, strings.Replace(good, `"01ABC"`, `"../x","use_api":true`, 1), 400},
		{"POST", callPath, good, 206},
	} {
		if rec := serve(e, request(t.Context(), c.method, c.target, c.body)); rec.Code != c.want || !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%s %s %.100s: %d %s, want %d", c.method, c.target, c.body, rec.Code, rec.Body, c.want)
		}
	}
	end()
	rec := serve(e, request(t.Context(), "POST", callPath, body(engi.NewFunctionRunID(), "{}")))
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" || rec.Header().Get("X-Inngest-No-Retry") != "false" {
		t.Errorf("after the end: %d %v", rec.Code, rec.Header())
	}
}

// TestLostResponsesAreRepeated checks that a step is not repeated because its
// response was lost.
func TestLostResponsesAreRepeated(t *testing.T) {
	e := engine(t, "")
	var done atomic.Int32
	begun, goOn := make(chan struct{}, 2), make(chan struct{})
	runEngine(t, e, func(context.Context) (json.RawMessage, error) {
		begun <- struct{}{}
		<-goOn
		return json.RawMessage(fmt.Sprint(done.Add(1))), nil
	})
	id := engi.NewFunctionRunID()
	ctx, hangUp := context.WithCancel(t.Context())
	left := make(chan int)
	go func() { left <- serve(e, request(ctx, "POST", callPath, body(id, "{}"))).Code }()
	<-begun
	hangUp()
	if code := <-left; code != 503 { // if the response arrives, it must not look like the end of the run
		t.Errorf("told %d", code)
	}
	close(goOn)
	first := serve(e, request(t.Context(), "POST", callPath, body(id, "{}")))
	if first.Code != 206 || !strings.Contains(first.Body.String(), `"data":"1"`) || done.Load() != 1 {
		t.Fatalf("%d %s, done %d times", first.Code, first.Body, done.Load())
	}
	steps := fmt.Sprintf(`{%q:{"data":"1"}}`, digest1("only"))
	if last := serve(e, request(t.Context(), "POST", callPath, body(id, steps))); last.Code != 200 || last.Body.String() != "1" || done.Load() != 1 {
		t.Errorf("%d %s, done %d times", last.Code, last.Body, done.Load())
	}
}

// TestNoKeyInErrors checks that errors, which are logged, contain no keys.
func TestNoKeyInErrors(t *testing.T) {
	const secret = "event-key-nobody-may-see"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no such path: "+r.URL.Path+" "+r.Header.Get("Authorization"), http.StatusTeapot)
	}))
	gone := httptest.NewServer(nil)
	gone.Close()
	defer srv.Close()
	for _, address := range []string{srv.URL, gone.URL} {
		e, err := New(Options{URL: address, ServeURL: "http://127.0.0.1:1/x", EventKey: secret, SigningKey: testKey})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{e.Start(t.Context(), engi.NewFunctionRunID(), "f"), e.register(t.Context())} {
			if !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), testKey) || strings.Contains(err.Error(), e.bearer) {
				t.Errorf("%v", err)
			}
		}
	}
}

func FuzzParseCall(f *testing.F) {
	id := engi.NewFunctionRunID()
	f.Add([]byte(body(id, "{}")))
	f.Add([]byte(body(id, `{"a":{"data":"1"},"b":null}`)))
	f.Add([]byte(`{"event":{"data":{"run":"x"}},"use_api":true}`))
	f.Add([]byte(`{"ctx":{"run_id":"..","use_api":true}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseCall(raw)
		if err != nil {
			if !engi.Is(err, engi.Invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := engi.ParseFunctionRunID(string(c.run)); err != nil || c.fetchSteps && !serverRun.MatchString(c.server) {
			t.Errorf("%+v", c)
		}
		// For all remembered data, a step returns a result, is executed, or fails.
		s := &stepper{done: c.steps}
		for _, name := range []string{"a", "b"} {
			out, err := s.Step(t.Context(), name, func(context.Context) (json.RawMessage, error) { return json.RawMessage("1"), nil })
			if err == nil && !json.Valid(out) || err != nil && s.op == nil && s.err == nil {
				t.Errorf("%s %v", out, err)
			}
		}
	})
}
