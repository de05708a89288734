package fleet

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestCPUBudget computes at will for as long as the budget lasts, then at the quota,
// which leaves nothing, and again after a while of less.
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
		{1000, 0.5, false}, // for ever
		{19, 2, false},     // 30 s of time, which grow by half of a second in each
		{1, 2, true},
		{100, 0.5, true},
		{5, 0, true}, // a tenth is there after six
		{1, 0, false},
		{3, 2, true},
		{1000, 0, false},
		{19, 2, false}, // no more than the window is saved
		{2, 2, true},
	} {
		if run(step.seconds, step.rate); throttled != step.want {
			t.Errorf("after %d s of %v: throttled %t, %v left", step.seconds, step.rate, throttled, b.left)
		}
	}
	// A machine that was started again counts from zero.
	left := b.left
	inst, used, now = &instance{}, time.Second, now.Add(10*time.Second)
	if throttled = b.spend(q, inst, used, now, true); b.left != left+4*time.Second {
		t.Errorf("%v left, want %v", b.left, left+4*time.Second)
	}
	// The next server does not give it the budget anew.
	var next cpuBudget
	if !next.spend(q, inst, used, now, true) || next.left != 0 {
		t.Errorf("%v left", next.left)
	}
}
