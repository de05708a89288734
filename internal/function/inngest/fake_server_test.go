package inngest_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/test/seed"
)

// A fakeServer behaves like an Inngest server towards an application: it starts
// runs, calls for one step after the other, remembers the results, sleeps, and
// repeats failed calls. It reports every deviation from the protocol.
type fakeServer struct {
	t     *testing.T
	key   string // hexadecimal; empty accepts everything
	url   string
	pause time.Duration // before it repeats a failed call
	lose  bool          // drop a third of the responses

	random *mathrand.Rand // decides which responses are dropped
	big    bool           // do not send results of steps with calls

	mu        sync.Mutex
	functions map[string]registered // by event
	runs      map[string]*running
	live      map[string]bool          // active runs, by singleton key
	waiting   map[string]chan struct{} // runs that wait for an event, by its name and the run's key
	seen      []string                 // statuses of the responses
	closed    chan struct{}
	going     sync.WaitGroup
}

type registered struct{ slug, url string }

type running struct {
	id    string
	event map[string]any
	steps map[string]json.RawMessage
	stack []string
}

func newFakeServer(t *testing.T, key string) *fakeServer {
	s := &fakeServer{t: t, key: key, random: seed.New(t), pause: 5 * time.Millisecond, functions: map[string]registered{}, runs: map[string]*running{}, live: map[string]bool{}, waiting: map[string]chan struct{}{}, closed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /fn/register", s.register)
	mux.HandleFunc("POST /e/{key}", s.event)
	mux.HandleFunc("GET /v0/runs/{id}/actions", s.actions)
	srv := httptest.NewServer(mux)
	s.url = srv.URL
	t.Cleanup(func() {
		close(s.closed)
		s.going.Wait()
		srv.Close()
	})
	return s
}

func (s *fakeServer) allowed(rw http.ResponseWriter, r *http.Request) bool {
	if s.key == "" {
		return true
	}
	raw, err := hex.DecodeString(s.key)
	if err != nil {
		s.t.Error(err)
	}
	sum := sha256.Sum256(raw)
	if r.Header.Get("Authorization") != "Bearer signkey-test-"+hex.EncodeToString(sum[:]) {
		http.Error(rw, "who are you?", http.StatusUnauthorized)
		return false
	}
	return true
}

func (s *fakeServer) register(rw http.ResponseWriter, r *http.Request) {
	if !s.allowed(rw, r) {
		return
	}
	var in struct {
		URL, DeployType, SDK, AppName, V string
		Functions                        []struct {
			ID        string
			Triggers  []struct{ Event string }
			Singleton struct{ Key, Mode string }
			Steps     map[string]struct {
				Retries struct{ Attempts int }
				Runtime struct{ Type, URL string }
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.AppName == "" || in.DeployType != "ping" || len(in.Functions) != 1 {
		s.t.Errorf("registered %+v, %v", in, err)
		http.Error(rw, "bad registration", http.StatusBadRequest)
		return
	}
	f := in.Functions[0]
	if f.Singleton.Mode != "skip" || f.Singleton.Key != "event.data.run" || f.Steps["step"].Runtime.Type != "http" || !strings.HasPrefix(f.Steps["step"].Runtime.URL, in.URL+"?") {
		s.t.Errorf("registered %+v", in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.functions[f.Triggers[0].Event] = registered{f.ID, f.Steps["step"].Runtime.URL}
	io.WriteString(rw, `{"ok":true,"modified":true}`)
}

func (s *fakeServer) event(rw http.ResponseWriter, r *http.Request) {
	if s.key != "" && r.PathValue("key") != "event-key" {
		http.Error(rw, "Event key not found", http.StatusUnauthorized)
		return
	}
	var e map[string]any
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.functions[fmt.Sprint(e["name"])]
	key := fmt.Sprint(e["data"].(map[string]any)["run"])
	if wait := s.waiting[fmt.Sprint(e["name"])+" "+key]; wait != nil {
		delete(s.waiting, fmt.Sprint(e["name"])+" "+key)
		close(wait)
	}
	if ok && !s.live[key] {
		s.live[key] = true
		run := &running{id: strings.ToUpper(rand.Text()), event: e, steps: map[string]json.RawMessage{}}
		s.runs[run.id] = run
		s.going.Go(func() {
			s.drive(f, run)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.live, key)
		})
	}
	io.WriteString(rw, `{"ids":["x"],"status":200}`)
}

func (s *fakeServer) actions(rw http.ResponseWriter, r *http.Request) {
	if !s.allowed(rw, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	json.NewEncoder(rw).Encode(s.runs[r.PathValue("id")].steps)
}

// drive calls for a run until it has ended.
func (s *fakeServer) drive(f registered, run *running) {
	failed := 0
	for {
		s.mu.Lock()
		steps := maps.Clone(run.steps)
		s.mu.Unlock()
		if s.big {
			steps = nil
		}
		body, err := json.Marshal(map[string]any{
			"event": run.event, "events": []any{run.event}, "steps": steps, "version": 1, "use_api": s.big,
			"ctx": map[string]any{"run_id": run.id, "fn_id": f.slug, "attempt": failed, "use_api": s.big, "stack": map[string]any{"stack": run.stack, "current": len(run.stack)}},
		})
		if err != nil {
			s.t.Error(err)
			return
		}
		status, header, raw := s.call(f.url, body)
		s.mu.Lock()
		s.seen = append(s.seen, strconv.Itoa(status))
		s.mu.Unlock()
		wait := time.Duration(0)
		var event chan struct{}
		switch {
		case status == 200:
			return
		case status == 206:
			failed = 0
			if wait, event, err = s.op(run, raw); err != nil {
				s.t.Error(err)
				return
			}
		default:
			if header.Get("X-Inngest-No-Retry") == "true" {
				return
			}
			if failed++; failed > 20 {
				s.t.Logf("the server gives up a run after %d calls", failed)
				return
			}
			wait = s.pause
		}
		select {
		case <-time.After(wait):
		case <-event:
		case <-s.closed:
			return
		}
	}
}

// op records a step. It returns the time until the next call, and a channel that ends it early.
func (s *fakeServer) op(run *running, raw []byte) (time.Duration, chan struct{}, error) {
	var ops []struct {
		Op, ID, Name, DisplayName string
		Data                      json.RawMessage
		Opts                      struct{ Duration, Event, If, Timeout string }
	}
	if err := json.Unmarshal(raw, &ops); err != nil || len(ops) != 1 || len(ops[0].ID) != 40 || ops[0].DisplayName == "" {
		return 0, nil, fmt.Errorf("bad answer %s: %w", raw, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fix := ops[0]
	if _, done := run.steps[fix.ID]; done {
		return 0, nil, fmt.Errorf("step %s was completed before", fix.DisplayName)
	}
	run.stack = append(run.stack, fix.ID)
	switch fix.Op {
	case "StepRun":
		kept, err := json.Marshal(map[string]json.RawMessage{"data": fix.Data})
		run.steps[fix.ID] = kept
		return 0, nil, err
	case "Sleep":
		run.steps[fix.ID] = json.RawMessage("null")
		d, err := time.ParseDuration(fix.Opts.Duration)
		return d, nil, err
	case "WaitForEvent":
		if fix.Opts.If != "event.data.run == async.data.run" || fix.Opts.Event == "" {
			return 0, nil, fmt.Errorf("bad wait %s", raw)
		}
		run.steps[fix.ID] = json.RawMessage("null")
		wait := make(chan struct{})
		s.waiting[fix.Opts.Event+" "+fmt.Sprint(run.event["data"].(map[string]any)["run"])] = wait
		d, err := time.ParseDuration(fix.Opts.Timeout)
		return d, wait, err
	}
	return 0, nil, fmt.Errorf("unknown operation %s", fix.Op)
}

// call calls once; the response may be lost.
func (s *fakeServer) call(url string, body []byte) (int, http.Header, []byte) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0, nil, nil
	}
	if s.key != "" {
		at := strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(s.key))
		mac.Write(body)
		mac.Write([]byte(at))
		req.Header.Set("X-Inngest-Signature", "t="+at+"&s="+hex.EncodeToString(mac.Sum(nil)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("X-Inngest-SDK") == "" || s.lose && s.random.IntN(3) == 0 {
		return 0, nil, nil
	}
	return resp.StatusCode, resp.Header, raw
}
