package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// A Sustained is the result of the benchmark of sustained load.
type Sustained struct {
	Bench     string  `json:"bench"`
	Lang      string  `json:"lang"`
	Template  string  `json:"template"`
	Seed      uint64  `json:"seed"`
	Seconds   float64 `json:"seconds"`    // duration of the arrivals for each point
	PerSecond float64 `json:"per_second"` // throughput of the node, from a short calibration
	Parts     Parts   `json:"parts"`
	Points    []Point `json:"points"`
	Host      Host    `json:"host"`
}

// Parts is the processor time of one execution in milliseconds, by purpose. The
// first three are measured while the node does nothing else. The remaining time of the sandboxes
// under load belongs to the run. All but Node are 0 without control groups.
type Parts struct {
	Boot     float64 `json:"boot"`
	WarmUp   float64 `json:"warm_up"` // start of the interpreter
	Run      float64 `json:"run"`
	Teardown float64 `json:"teardown"`
	Node     float64 `json:"node"` // node and the benchmark's client
}

// A Point holds the measurements of one rival at one rate of arrivals.
type Point struct {
	Means     string  `json:"means"`
	Percent   int     `json:"percent"` // percentage of PerSecond
	Rate      float64 `json:"rate"`    // offered rate per second
	N         int     `json:"n"`
	Done      int     `json:"done"`
	Cold      int     `json:"cold"`    // number of Done in sandboxes that were not warm
	Refused   int     `json:"refused"` // refused with a time to retry
	Failures  int     `json:"failures"`
	Failure   string  `json:"failure,omitempty"`
	Ms        Millis  `json:"ms"`                  // latency of Done, from the planned start of each
	RefusalMs Millis  `json:"refusal_ms,omitzero"` // latency of Refused
	Processor float64 `json:"processor_ms"`        // processor time for each done execution
	Node      float64 `json:"node_ms,omitempty"`
}

// Arrivals are the times at which requests of a Poisson process with the given rate
// per second arrive within a duration. The same seed gives the same.
func Arrivals(seed uint64, rate float64, within time.Duration) (at []time.Duration) {
	r := rand.New(rand.NewPCG(seed, math.Float64bits(rate)))
	for t := 0.0; ; {
		if t += r.ExpFloat64() / rate; t >= within.Seconds() {
			return at
		}
		at = append(at, time.Duration(t*float64(time.Second)))
	}
}

// An outcome is the result of one request of an open loop.
type outcome struct {
	cold, refused bool
	err           error
}

// openLoop makes a request at each of the times, whether or not earlier ones have ended, and
// waits for all. Latencies count from those times.
func openLoop(ctx context.Context, at []time.Duration, do func(ctx context.Context) outcome) (p Point) {
	var mu sync.Mutex
	var all, refused []time.Duration
	var running sync.WaitGroup
	began := time.Now()
	for _, due := range at {
		_ = clock.Sleep(ctx, time.Until(began.Add(due)))
		running.Go(func() {
			o := do(ctx)
			took := time.Since(began) - due
			mu.Lock()
			defer mu.Unlock()
			switch {
			case o.refused:
				refused = append(refused, took)
			case o.err != nil:
				if p.Failures++; p.Failure == "" {
					p.Failure = o.err.Error()
				}
			default:
				all = append(all, took)
				if o.cold {
					p.Cold++
				}
			}
		})
	}
	running.Wait()
	p.N, p.Done, p.Refused, p.Ms, p.RefusalMs = len(at), len(all), len(refused), Summarize(all), Summarize(refused)
	return p
}

// Sustain sends requests to the node at the given times.
func (r Rig) Sustain(ctx context.Context, req v1.ExecutionRequest, at []time.Duration) Point {
	return openLoop(ctx, at, func(ctx context.Context) outcome {
		_, x, err := r.once(ctx, req)
		var refusal *Refusal
		if errors.As(err, &refusal) {
			return outcome{refused: true}
		}
		return outcome{cold: err == nil && !x.Result.Warm, err: err}
	})
}

// SustainCommand starts a command at the given times.
func SustainCommand(ctx context.Context, at []time.Duration, make func(ctx context.Context) *exec.Cmd) Point {
	return openLoop(ctx, at, func(ctx context.Context) outcome {
		_, err := runCommand(ctx, answer, make)
		return outcome{err: err}
	})
}

// Capacity returns the number of executions per second that the node ends when concurrency
// executions are always running, after warm executions to warm up.
func (r Rig) Capacity(ctx context.Context, req v1.ExecutionRequest, concurrency, n, warm int) (perSecond float64, t Timing) {
	took := func(took time.Duration, _ v1.Execution) time.Duration { return took }
	if t = r.sample(ctx, req, warm, max(concurrency, 2), took); t.Failures > 0 {
		return 0, t
	}
	began := time.Now()
	t = r.sample(ctx, req, n, max(concurrency, 2), took)
	return float64(n-t.Failures) / time.Since(began).Seconds(), t
}

// A Usage is the processor time used up to a moment.
type Usage struct {
	Self, Children time.Duration // time of this process, and of children that it has waited for
	Group          time.Duration // time of the node's sandboxes; 0 without control groups
}

// A Meter reads the processor time used for a node.
type Meter struct{ group string } // file of the control group; empty without control groups

// NewMeter returns a meter for the node with directory dir. It finds the control
// group through one of the node's sandboxes, and finds none without a sandbox.
func NewMeter(dir string) Meter {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return Meter{} // unreachable: the pattern is valid
	}
	for _, line := range lines {
		if text, err := os.ReadFile(line); err != nil || !strings.Contains(string(text), dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		groups, err := os.ReadFile(filepath.Join(filepath.Dir(line), "cgroup"))
		if err != nil {
			continue
		}
		if file := groupFile(string(groups)); file != "" {
			return Meter{file}
		}
	}
	return Meter{}
}

// groupFile returns the file with the usage of the parent of a process's group,
// which outlives the group; the kernel counts usage in both.
func groupFile(groups string) string {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.Contains(parts[2], "/engi-") {
			continue
		}
		parent := filepath.Dir(parts[2])
		if parts[0] == "0" {
			return filepath.Join("/sys/fs/cgroup", parent, "cpu.stat")
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if controller == "cpuacct" {
				return filepath.Join("/sys/fs/cgroup/cpuacct", parent, "cpuacct.usage")
			}
		}
	}
	return ""
}

// Read returns the usage until now.
func (m Meter) Read() (u Usage, err error) {
	for who, to := range map[int]*time.Duration{unix.RUSAGE_SELF: &u.Self, unix.RUSAGE_CHILDREN: &u.Children} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return u, engi.Errorf(engi.Internal, "%v", err)
		}
		*to = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	if m.group == "" {
		return u, nil
	}
	text, err := os.ReadFile(m.group)
	if err != nil {
		return u, engi.Errorf(engi.Unavailable, "%v", err)
	}
	u.Group, err = parseUsage(string(text))
	return u, err
}

// parseUsage parses cpuacct.usage, which is a number of nanoseconds, or cpu.stat, whose
// first line has a number of microseconds.
func parseUsage(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	digits, stat := strings.CutPrefix(line, "usage_usec ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, engi.Errorf(engi.Internal, "%.40q is no processor time", line)
	}
	if stat {
		n *= 1000
	}
	return time.Duration(n), nil
}

// Last reads repeatedly until stop is called, or the group is gone, and returns
// the last usage.
func (m Meter) Last() (stop func() Usage) {
	end, last := make(chan struct{}), make(chan Usage)
	go func() {
		var u Usage
		for {
			if now, err := m.Read(); err == nil {
				u = now
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-end:
				last <- u
				return
			}
		}
	}()
	return func() Usage { close(end); return <-last }
}

// Sub returns the usage since an earlier one.
func (u Usage) Sub(since Usage) Usage {
	return Usage{u.Self - since.Self, u.Children - since.Children, u.Group - since.Group}
}

// MillisEach returns a duration divided by n, in milliseconds.
func MillisEach(d time.Duration, n int) float64 {
	if n == 0 {
		return 0
	}
	return math.Round(d.Seconds()*1e5/float64(n)) / 100
}

// ParsePercents parses percentages separated by commas.
func ParsePercents(text string) (all []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(part), "%"))
		if err != nil || n < 1 || n > 1000 {
			return nil, engi.Errorf(engi.Invalid, "%.40q is not a percentage from 1 to 1000", part)
		}
		all = append(all, n)
	}
	return all, nil
}
