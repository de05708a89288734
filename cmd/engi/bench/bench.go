// Package bench measures a node from the view of its users: whole requests over HTTP on
// loopback, each in a new sandbox. Results have the number of samples and a
// description of the machine. It prints nothing itself.
package bench

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Millis are percentiles of a sample, in milliseconds.
type Millis struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A Timing is the result of a benchmark that repeats one operation.
type Timing struct {
	Bench       string `json:"bench"`
	Lang        string `json:"lang"`
	Template    string `json:"template"`
	N           int    `json:"n"`
	Concurrency int    `json:"concurrency"`
	Ms          Millis `json:"ms"`
	Failures    int    `json:"failures"`
	Failure     string `json:"failure,omitempty"` // the first failure
	Cold        int    `json:"cold,omitempty"`    // number of answers from sandboxes that were not warm
	Host        Host   `json:"host"`
}

// A Density is the result of the benchmark of memory.
type Density struct {
	Bench         string  `json:"bench"`
	Lang          string  `json:"lang"`
	Template      string  `json:"template"`
	N             int     `json:"n"`
	MiBPerSandbox float64 `json:"mib_per_sandbox"` // proportional share, for the last half of the pool
	Processes     float64 `json:"processes_per_sandbox"`
	Host          Host    `json:"host"`
}

// A Rate is the result of the benchmark of replenishment.
type Rate struct {
	Bench     string  `json:"bench"`
	Lang      string  `json:"lang"`
	Template  string  `json:"template"`
	N         int     `json:"n"`
	PerSecond float64 `json:"per_second"`
	Seconds   float64 `json:"seconds"`
	Failures  int     `json:"failures"`
	Failure   string  `json:"failure,omitempty"`
	Host      Host    `json:"host"`
}

// Summarize returns the percentiles of a sample by the nearest rank.
func Summarize(sample []time.Duration) Millis {
	if len(sample) == 0 {
		return Millis{}
	}
	s := slices.Sorted(slices.Values(sample))
	at := func(p float64) float64 {
		i := int(math.Ceil(p*float64(len(s)))) - 1
		return math.Round(float64(s[max(i, 0)].Microseconds())) / 1000
	}
	return Millis{at(0.50), at(0.95), at(0.99), at(1)}
}

// A Run runs one program and returns its record.
type Run func(ctx context.Context, req v1.ExecutionRequest) (v1.Execution, error)

// A Rig is a node to measure.
type Rig struct {
	Run   Run        // runs a program over HTTP
	Pools engi.Pools // pools of the same node
	Span  Span       // may be nil
}

// A Span is called when a request starts, and returns a function to call when it has ended.
// Both are safe for concurrent use.
type Span func() (ended func())

// Programs are equivalent small programs in each language.
var Programs = map[engi.Language]string{
	engi.Python:     "print(6*7)",
	engi.JavaScript: "console.log(6*7)",
	engi.TypeScript: "const n: number = 6*7; console.log(n)",
	engi.Go:         "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(6 * 7) }\n",
	engi.Bash:       "echo $((6*7))",
}

const answer = "42\n"

// Request returns the program as a request.
func Request(lang engi.Language, template string) v1.ExecutionRequest {
	return v1.ExecutionRequest{Language: string(lang), Code: Programs[lang], Template: template}
}

// once runs the program and checks its output.
func (r Rig) once(ctx context.Context, req v1.ExecutionRequest) (time.Duration, v1.Execution, error) {
	ended := func() {}
	if r.Span != nil {
		ended = r.Span()
	}
	began := time.Now()
	x, err := r.Run(ctx, req)
	took := time.Since(began)
	ended()
	if err == nil && (x.Result == nil || x.Result.Stdout != answer || x.Result.ExitCode != 0) {
		err = engi.Errorf(engi.Internal, "the program did not print %q: %+v", answer, x.Result)
	}
	return took, x, err
}

// Exec times n whole requests, concurrency at a time. One at a time it waits
// before each until the pool is full again, so that the node is idle; with more it
// never waits.
func (r Rig) Exec(ctx context.Context, req v1.ExecutionRequest, n, concurrency int) (t Timing) {
	return r.sample(ctx, req, n, concurrency, func(took time.Duration, _ v1.Execution) time.Duration { return took })
}

// Claim measures the wait of n requests for a warm sandbox.
func (r Rig) Claim(ctx context.Context, req v1.ExecutionRequest, n, concurrency int) Timing {
	return r.sample(ctx, req, n, concurrency, func(_ time.Duration, x v1.Execution) time.Duration { return x.Result.ClaimTime.Std() })
}

func (r Rig) sample(ctx context.Context, req v1.ExecutionRequest, n, concurrency int, pick func(time.Duration, v1.Execution) time.Duration) Timing {
	t := Timing{Lang: req.Language, N: n, Concurrency: concurrency}
	var mu sync.Mutex
	var all []time.Duration
	var workers sync.WaitGroup
	next := make(chan struct{})
	for range concurrency {
		workers.Go(func() {
			for range next {
				if concurrency == 1 {
					if err := r.WaitFull(ctx); err != nil {
						mu.Lock()
						t.fail(err)
						mu.Unlock()
						continue
					}
				}
				took, x, err := r.once(ctx, req)
				mu.Lock()
				if err != nil {
					t.fail(err)
				} else {
					all = append(all, pick(took, x))
					t.Template = x.Template
					if !x.Result.Warm {
						t.Cold++
					}
				}
				mu.Unlock()
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	workers.Wait()
	t.Ms = Summarize(all)
	return t
}

func (t *Timing) fail(err error) {
	t.Failures++
	if t.Failure == "" {
		t.Failure = err.Error()
	}
}

// Burst times n requests that are sent at the same moment to a full pool.
func (r Rig) Burst(ctx context.Context, req v1.ExecutionRequest, n int) Timing {
	if err := r.WaitFull(ctx); err != nil {
		return Timing{Lang: req.Language, N: n, Concurrency: n, Failures: n, Failure: err.Error()}
	}
	return r.sample(ctx, req, n, max(n, 2), func(took time.Duration, _ v1.Execution) time.Duration { return took })
}

// Replenish empties a full pool of n at once and measures the time until it is full
// again: running, destroying and booting n sandboxes.
func (r Rig) Replenish(ctx context.Context, req v1.ExecutionRequest, n int) Rate {
	rate := Rate{Lang: req.Language, N: n}
	if err := r.WaitFull(ctx); err != nil {
		rate.Failures, rate.Failure = n, err.Error()
		return rate
	}
	began := time.Now()
	t := r.sample(ctx, req, n, max(n, 2), func(took time.Duration, _ v1.Execution) time.Duration { return took })
	rate.Failures, rate.Failure, rate.Template = t.Failures, t.Failure, t.Template
	if err := r.WaitFull(ctx); err != nil {
		rate.Failures++
		rate.Failure = err.Error()
	}
	took := time.Since(began)
	rate.Seconds = math.Round(took.Seconds()*1000) / 1000
	rate.PerSecond = math.Round(float64(n)/took.Seconds()*100) / 100
	return rate
}

// WaitFull waits until every pool has all of its warm sandboxes and none
// is booting.
func (r Rig) WaitFull(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		full := true
		for _, p := range r.Pools.Pools(ctx) {
			full = full && p.Ready >= p.Target && p.Booting == 0 && p.Used == 0
		}
		if full {
			return nil
		}
		select {
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "wait for full pools %+v: %v", r.Pools.Pools(context.WithoutCancel(ctx)), context.Cause(ctx))
		case <-tick.C:
		}
	}
}
