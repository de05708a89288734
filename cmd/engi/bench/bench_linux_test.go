package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func TestSummarize(t *testing.T) {
	var sample []time.Duration
	for i := 100; i >= 1; i-- {
		sample = append(sample, time.Duration(i)*time.Millisecond)
	}
	if got, want := Summarize(sample), (Millis{50, 95, 99, 100}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := Summarize(sample[:1]), (Millis{100, 100, 100, 100}); got != want {
		t.Errorf("one: %+v, want %+v", got, want)
	}
	if got := Summarize(nil); got != (Millis{}) {
		t.Errorf("none: %+v", got)
	}
}

// pools is a pool that is full after a while.
type pools struct{ asked atomic.Int64 }

func (p *pools) Pools(context.Context) []engi.PoolStatus {
	n := p.asked.Add(1)
	s := engi.PoolStatus{Target: 2, Ready: 2}
	if n%5 != 0 {
		s.Booting = 1
	}
	return []engi.PoolStatus{s}
}

func (p *pools) Warm(context.Context) error { return nil }

func TestSamplesCountFailuresAndWrongAnswers(t *testing.T) {
	var n atomic.Int64
	run := func(context.Context, v1.ExecutionRequest) (v1.Execution, error) {
		x := v1.Execution{Template: "base", Result: &v1.Result{Stdout: answer, Warm: true, ClaimTime: v1.Duration(time.Millisecond)}}
		switch n.Add(1) {
		case 2:
			return x, engi.Errorf(engi.Exhausted, "full")
		case 3:
			x.Result.Stdout = "41\n"
		case 4:
			x.Result.ExitCode = 1
		case 5:
			x.Result.Warm = false
		}
		return x, nil
	}
	for _, concurrency := range []int{1, 4} {
		n.Store(0)
		p := &pools{}
		got := Rig{Run: run, Pools: p}.Claim(t.Context(), Request(engi.Python, ""), 20, concurrency)
		if got.Failures != 3 || got.Failure == "" || got.Cold != 1 || got.Ms.Max != 1 || got.Template != "base" {
			t.Errorf("concurrency %d: %+v", concurrency, got)
		}
		if waited := p.asked.Load() > 0; waited != (concurrency == 1) {
			t.Errorf("concurrency %d: waited for a quiet node: %t", concurrency, waited)
		}
	}
}

func TestWaitFullGivesUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	never := Rig{Pools: emptyPools{}}
	if err := never.WaitFull(ctx); !engi.Is(err, engi.Expired) {
		t.Errorf("%v, want kind expired", err)
	}
}

type emptyPools struct{}

func (emptyPools) Warm(context.Context) error { return nil }

func (emptyPools) Pools(context.Context) []engi.PoolStatus {
	return []engi.PoolStatus{{Target: 1}}
}

func TestCommandStopsAtAWrongAnswer(t *testing.T) {
	sh := func(text string) func(context.Context) *exec.Cmd {
		return func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "sh", "-c", text) }
	}
	if r := Command(t.Context(), "good", 3, sh("echo 42")); r.N != 3 || r.Failure != "" || r.Ms.P50 <= 0 {
		t.Errorf("%+v", r)
	}
	for _, text := range []string{"echo 41", "echo 42; exit 1"} {
		if r := Command(t.Context(), "bad", 3, sh(text)); r.N != 0 || r.Failure == "" {
			t.Errorf("%s: %+v", text, r)
		}
	}
}

func TestBurstCommandCountsWhatWorked(t *testing.T) {
	var n atomic.Int64
	r := BurstCommand(t.Context(), "some", 8, func(ctx context.Context) *exec.Cmd {
		if n.Add(1) == 3 {
			return exec.CommandContext(ctx, "false")
		}
		return exec.CommandContext(ctx, "sh", "-c", "sleep 0.2; echo 42")
	})
	if r.N != 7 || r.Failure == "" || r.Ms.P50 < 200 {
		t.Errorf("%+v", r)
	}
}

func TestRatiosAreToTheFirst(t *testing.T) {
	c := Comparison{Rivals: []Rival{{Ms: Millis{P50: 10}}, {Ms: Millis{P50: 25}}, {Skipped: "x"}}}
	c.Compare()
	c.Bursts = []Rival{{Ms: Millis{P50: 4}}, {Ms: Millis{P50: 2}}}
	c.Compare()
	if c.Bursts[1].Ratio != 0.5 {
		t.Errorf("bursts: %+v", c.Bursts)
	}
	if c.Rivals[0].Ratio != 1 || c.Rivals[1].Ratio != 2.5 || c.Rivals[2].Ratio != 0 {
		t.Errorf("%+v", c.Rivals)
	}
}

func TestSharesFindsDescendants(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	cmd := exec.Command("sh", "-c", `sleep 60 & touch "$1"; wait`, "sh", ready)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	for range 6000 {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	bytes, processes, err := Shares(dir)
	if err != nil || processes < 2 || bytes <= 0 {
		t.Errorf("%d bytes in %d processes, %v; want those of a shell and its child", bytes, processes, err)
	}
	if _, processes, err := Shares(filepath.Join(dir, "nobody")); err != nil || processes != 0 {
		t.Errorf("%d processes of nobody, %v", processes, err)
	}
}

func TestStamp(t *testing.T) {
	if h := Stamp("v"); h.CPUs < 1 || h.MemoryMiB < 1 || h.Kernel == "" || h.Engi != "v" || h.Time.IsZero() {
		t.Errorf("%+v", h)
	}
}
