package bench

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func TestArrivalsArePoisson(t *testing.T) {
	at := Arrivals(7, 100, 100*time.Second)
	if !slices.Equal(at, Arrivals(7, 100, 100*time.Second)) || slices.Equal(at, Arrivals(8, 100, 100*time.Second)) {
		t.Error("the seed does not decide")
	}
	if n := float64(len(at)); math.Abs(n-10_000) > 500 { // five standard deviations
		t.Errorf("%.0f arrivals in 100 s at 100 per second", n)
	}
	if !slices.IsSorted(at) || at[0] <= 0 || at[len(at)-1] >= 100*time.Second {
		t.Errorf("from %s to %s", at[0], at[len(at)-1])
	}
	// Gaps of a Poisson process vary as much as they last.
	var gaps, squares float64
	for i := range at[1:] {
		gap := (at[i+1] - at[i]).Seconds()
		gaps, squares = gaps+gap, squares+gap*gap
	}
	n := float64(len(at) - 1)
	mean := gaps / n
	if spread := math.Sqrt(squares/n-mean*mean) / mean; spread < 0.9 || spread > 1.1 {
		t.Errorf("the standard deviation of gaps is %.2f of their mean", spread)
	}
}

// TestOpenLoopDoesNotWait: nobody is answered before the last has arrived, and each
// waited since its own arrival.
func TestOpenLoopDoesNotWait(t *testing.T) {
	at := []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond}
	var all sync.WaitGroup
	all.Add(len(at))
	p := openLoop(t.Context(), at, func(context.Context) outcome {
		all.Done()
		all.Wait()
		return outcome{}
	})
	if p.N != 3 || p.Done != 3 || p.Ms.Max < 100 || p.Ms.Max-p.Ms.P50 < 25 {
		t.Errorf("%+v", p)
	}
}

func TestSustainTellsRefusalsFromFailures(t *testing.T) {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n++; n {
		case 1:
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			w.WriteHeader(http.StatusTooManyRequests) // and for how long?
		case 3:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 4:
			w.Write([]byte(`{"result":{"stdout":"42\n","warm":true}}`))
		default:
			w.Write([]byte(`{"result":{"stdout":"42\n"}}`))
		}
	}))
	defer server.Close()
	rig := Rig{Run: Post(server.URL, "key")}
	var p Point
	for range 5 {
		one := rig.Sustain(t.Context(), Request(engi.Bash, ""), make([]time.Duration, 1))
		p.Done, p.Refused, p.Failures, p.Cold = p.Done+one.Done, p.Refused+one.Refused, p.Failures+one.Failures, p.Cold+one.Cold
	}
	if p.Done != 2 || p.Refused != 2 || p.Failures != 1 || p.Cold != 1 {
		t.Errorf("%+v", p)
	}
}

func TestSustainCommandCountsFailures(t *testing.T) {
	p := SustainCommand(t.Context(), make([]time.Duration, 3), func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo 42")
	})
	if p.Done != 3 || p.Failures != 0 || p.Ms.P50 <= 0 {
		t.Errorf("%+v", p)
	}
	if p = SustainCommand(t.Context(), make([]time.Duration, 2), func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "false")
	}); p.Failures != 2 || p.Failure == "" {
		t.Errorf("%+v", p)
	}
}

func TestCapacityIsPerSecond(t *testing.T) {
	rig := Rig{Run: func(context.Context, v1.ExecutionRequest) (v1.Execution, error) {
		time.Sleep(10 * time.Millisecond)
		return v1.Execution{Result: &v1.Result{Stdout: answer}}, nil
	}}
	if perSecond, timing := rig.Capacity(t.Context(), Request(engi.Bash, ""), 2, 10, 3); perSecond <= 0 || perSecond > 200 || timing.Failures > 0 {
		t.Errorf("%.1f per second by two that take 10 ms: %+v", perSecond, timing)
	}
}

func TestUsageIsReadFromBothVersions(t *testing.T) {
	for groups, want := range map[string]string{
		"5:memory:/engi-12/sbx_a\n3:cpu,cpuacct:/engi-12/sbx_a\n": "/sys/fs/cgroup/cpuacct/engi-12/cpuacct.usage",
		"0::/engi-12/sbx_a\n":         "/sys/fs/cgroup/engi-12/cpu.stat",
		"3:cpuacct:/user.slice/one\n": "",
		"":                            "",
	} {
		if got := groupFile(groups); got != want {
			t.Errorf("%q: %q, want %q", groups, got, want)
		}
	}
	for text, want := range map[string]time.Duration{"1500\n": 1500, "usage_usec 3\nuser_usec 2\n": 3000, "usage 3": 0, "": 0} {
		if got, err := parseUsage(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	m := Meter{}
	before, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	for x := 0.0; ; x++ {
		after, err := m.Read()
		if err != nil {
			t.Fatal(err)
		}
		if used := after.Sub(before); used.Self > 10*time.Millisecond {
			break
		} else if used.Self < 0 || used.Group != 0 {
			t.Fatalf("%+v", used)
		}
		math.Sqrt(x)
	}
	if MillisEach(time.Second, 8) != 125 || MillisEach(time.Second, 0) != 0 {
		t.Error("milliseconds for each are wrong")
	}
}

func TestParsePercents(t *testing.T) {
	if all, err := ParsePercents("10, 150%"); err != nil || !slices.Equal(all, []int{10, 150}) {
		t.Errorf("%v, %v", all, err)
	}
	for _, text := range []string{"", "0", "x", "10,", "1001"} {
		if _, err := ParsePercents(text); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v, want kind invalid", text, err)
		}
	}
}
