package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
)

// An AgentTiming is the result of the benchmark of agents.
type AgentTiming struct {
	Bench    string      `json:"bench"`
	Steps    int         `json:"steps"`
	Ms       Millis      `json:"ms"`      // time from the end of an answer to the next request to the model
	Bare     Millis      `json:"bare_ms"` // the same time for a client that only reads and asks again
	Ratio    float64     `json:"ratio"`   // ratio of the medians
	Search   *SearchTime `json:"search,omitempty"`
	Failures int         `json:"failures"`
	Failure  string      `json:"failure,omitempty"` // the first failure
	Host     Host        `json:"host"`
}

// A SearchTime is the time of searches in indexed documentation.
type SearchTime struct {
	Chunks   int    `json:"chunks"`
	Embedder string `json:"embedder"`
	N        int    `json:"n"`
	Ms       Millis `json:"ms"`
}

// A Model follows a script: it requests a tool call until a run has used up its steps.
// It measures the time between an answer and the next request. The caller must
// close it.
type Model struct {
	URL string
	web *http.Server

	mu    sync.Mutex
	ended time.Time // time at which the last answer ended
	gaps  []time.Duration
}

// NewModel listens on loopback.
func NewModel() (*Model, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "listen: %v", err)
	}
	m := &Model{URL: "http://" + l.Addr().String()}
	s := &scripted.Server{Play: func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: "I read on.", Calls: []scripted.Call{{Name: "read_result", Arguments: `{"call":"none"}`}}}
	}}
	m.web = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		if !m.ended.IsZero() {
			m.gaps = append(m.gaps, time.Since(m.ended))
		}
		m.mu.Unlock()
		s.ServeHTTP(&stamped{w, m}, r)
	})}
	go m.web.Serve(l)
	return m, nil
}

// stamped records the end of an answer before its last bytes are sent, because the
// caller does not wait for the end of the connection.
type stamped struct {
	http.ResponseWriter
	m *Model
}

// Write implements io.Writer.
func (s *stamped) Write(b []byte) (int, error) {
	s.m.mu.Lock()
	s.m.ended = time.Now()
	s.m.mu.Unlock()
	return s.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController flush.
func (s *stamped) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Close stops the model.
func (m *Model) Close() { m.web.Close() }

// take returns the measured times and resets them.
func (m *Model) take() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	gaps := m.gaps
	m.gaps, m.ended = nil, time.Time{}
	return gaps
}

// Agents times n runs of an agent with model m, one after another.
func Agents(ctx context.Context, m *Model, agents engi.Agents, n int) AgentTiming {
	var t AgentTiming
	var all []time.Duration
	m.take()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		r, err := follow(ctx, agents)
		gaps := m.take()
		if err == nil && len(gaps) != r.Steps-1 {
			err = engi.Errorf(engi.Internal, "%d requests in %d steps", len(gaps)+1, r.Steps)
		}
		if err != nil {
			if t.Failures++; t.Failure == "" {
				t.Failure = err.Error()
			}
			continue
		}
		all = append(all, gaps...)
	}
	t.Steps, t.Ms = len(all), Summarize(all)
	bare, err := m.bare(ctx, max(len(all), 1))
	if err != nil && t.Failure == "" {
		t.Failures, t.Failure = t.Failures+1, err.Error()
	}
	if t.Bare = Summarize(bare); t.Bare.P50 > 0 {
		t.Ratio = math.Round(t.Ms.P50/t.Bare.P50*100) / 100
	}
	return t
}

func follow(ctx context.Context, agents engi.Agents) (r engi.Run, err error) {
	const owner = "bench"
	if r, err = agents.Start(ctx, engi.RunSpec{Owner: owner, Input: "go"}); err != nil {
		return r, err
	}
	for e, err := range agents.Watch(ctx, owner, r.ID, 0) {
		switch {
		case err != nil:
			return r, err
		case e.Kind != engi.RunEnd:
		case e.Run.State != engi.RunStopped || e.Run.Reason != "steps":
			return *e.Run, engi.Errorf(engi.Internal, "run %s: %s %v", r.ID, e.Run.State, e.Run.Error)
		default:
			return *e.Run, nil
		}
	}
	return r, engi.Errorf(engi.Internal, "run %s did not end", r.ID)
}

// bare asks the model n times for a stream and reads it.
func (m *Model) bare(ctx context.Context, n int) ([]time.Duration, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": []map[string]string{{"role": "user", "content": "go"}}})
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	for range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+"/v1/chat/completions", bytes.NewReader(body))
		if err != nil {
			return nil, engi.Errorf(engi.Internal, "%v", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, engi.Errorf(engi.Unavailable, "ask the model: %v", err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return nil, engi.Errorf(engi.Unavailable, "ask the model: %v", err)
		}
	}
	return m.take(), nil
}

// Search fills an index with pieces of documentation and times n questions.
func Search(ctx context.Context, l engi.Docs, chunks, n int) (*SearchTime, error) {
	const owner = "bench"
	rnd := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 5000)
	for i := range words {
		for range 2 + rnd.IntN(3) {
			words[i] += string("bcdfghklmnprstvz"[rnd.IntN(16)]) + string("aeiou"[rnd.IntN(5)])
		}
	}
	// A few words are frequent, as in any language.
	word := func() string { return words[int(float64(len(words))*math.Pow(rnd.Float64(), 3))] }
	sentence := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(word() + " ")
		}
		return strings.TrimSpace(b.String()) + "."
	}
	out := &SearchTime{}
	for i := 0; out.Chunks < chunks; i++ {
		var b strings.Builder
		fmt.Fprintf(&b, "# %s\n\n", sentence(3))
		for range 100 {
			fmt.Fprintf(&b, "## %s\n\n%s %s %s\n\n", sentence(3), sentence(20), sentence(30), sentence(25))
		}
		d, err := l.Add(ctx, engi.DocumentSpec{Owner: owner, Package: fmt.Sprintf("package-%d", i%20), Title: fmt.Sprintf("document %d", i), Text: b.String()})
		if err != nil {
			return nil, err
		}
		out.Chunks += d.Chunks
	}
	var all []time.Duration
	for range n {
		q := engi.SearchSpec{Viewer: owner, Text: sentence(6)}
		began := time.Now()
		f, err := l.Search(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, time.Since(began))
		if len(f.Hits) == 0 {
			return nil, engi.Errorf(engi.Internal, "no result for %q", q.Text)
		}
		out.Embedder = f.Embedder
	}
	out.N, out.Ms = n, Summarize(all)
	return out, nil
}
