package bench

import (
	"context"
	"math"
	"sync"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// ScriptProgram is the program of the benchmark of scripts.
const ScriptProgram = "1 + 1"

// A ScriptTiming is the result of the benchmark of scripts.
type ScriptTiming struct {
	Bench       string  `json:"bench"`
	Lang        string  `json:"lang"`
	N           int     `json:"n"`
	Concurrency int     `json:"concurrency"`
	Ms          Millis  `json:"ms"`
	PerSecond   float64 `json:"per_second"`
	Failures    int     `json:"failures"`
	Failure     string  `json:"failure,omitempty"` // the first failure
	Host        Host    `json:"host"`
}

// Scripts times n scripts, concurrency at a time.
func Scripts(ctx context.Context, run func(context.Context, v1.ScriptRequest) (v1.ScriptResult, error), lang engi.Language, n, concurrency int) ScriptTiming {
	t := ScriptTiming{Lang: string(lang), N: n, Concurrency: concurrency}
	var mu sync.Mutex
	var all []time.Duration
	var workers sync.WaitGroup
	next := make(chan struct{})
	req := v1.ScriptRequest{Code: ScriptProgram, Language: string(lang)}
	for range concurrency {
		workers.Go(func() {
			for range next {
				began := time.Now()
				x, err := run(ctx, req)
				took := time.Since(began)
				if err == nil && string(x.Result) != "2" {
					err = engi.Errorf(engi.Internal, "the script answered %s, %+v", x.Result, x.Error)
				}
				mu.Lock()
				if all = append(all, took); err != nil {
					if t.Failures++; t.Failure == "" {
						t.Failure = err.Error()
					}
				}
				mu.Unlock()
			}
		})
	}
	began := time.Now()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- struct{}{}
	}
	close(next)
	workers.Wait()
	t.PerSecond = math.Round(float64(len(all)) / time.Since(began).Seconds())
	t.Ms = Summarize(all)
	return t
}
