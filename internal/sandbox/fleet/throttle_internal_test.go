package fleet

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestCPUBudget uses processor time without a limit until the budget is used up, then at the quota,
// which leaves nothing, and without a limit again after a time of lower usage.
func TestCPUBudget(t *testing.T) {
	q := engi.CPUQuota{VCPUs: 0.5, Window: time.Minute, Credit: time.Hour}
	inst, now, used := &instance{}, time.Unix(1000, 0), time.Hour
	var b cpuBudget
	throttled := b.spend(q, inst, used, now, false)
	run := func(seconds int, rate float64) {
		for range seconds {
			now, used = now.Add(time.Second), used+time.Duration(rate*float64(time.Second))
			b.inst = inst
			throttled = b.spend(q, inst, used, now, throttled)
		}
	}
	for _, step := range []struct {
		seconds int
		rate    float64
		want    bool
	}{
		{0, 0, false},
		{1000, 0.5, false}, // usage at the quota is never throttled
		{19, 2, false},     // a budget of 30 s, which grows by half a second per second
		{1, 2, true},
		{100, 0.5, true},
		{5, 0, true}, // a tenth of the budget is available after six seconds
		{1, 0, false},
		{3, 2, true},
		{1000, 0, false},
		{19, 2, false}, // the budget never exceeds the window
		{2, 2, true},
	} {
		if run(step.seconds, step.rate); throttled != step.want {
			t.Errorf("after %d s of %v: throttled %t, %v left", step.seconds, step.rate, throttled, b.left)
		}
	}
	// A restarted machine counts from zero.
	left := b.left
	inst, used, now = &instance{}, time.Second, now.Add(10*time.Second)
	if throttled = b.spend(q, inst, used, now, true); b.left != left+4*time.Second {
		t.Errorf("%v left, want %v", b.left, left+4*time.Second)
	}
	// The next server does not grant the budget again.
	var next cpuBudget
	if !next.spend(q, inst, used, now, true) || next.left != 0 {
		t.Errorf("%v left", next.left)
	}
}
