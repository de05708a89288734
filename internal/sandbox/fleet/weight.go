package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// Short programs overtake long ones: each begins with a large weight, and when it has used
// freshTime of processor time it gets the ordinary weight, as in the feedback queues of
// CTSS (Corbató, Merwin-Daggett and Daley, "An experimental time-sharing system",
// 1962). Programs that an owner starts at the same time begin with decreasing weights, so
// that the first of many ends early instead of all of them late, and another owner's
// program is ahead of most of them. A machine for which a caller waits boots with half the
// weight of a program of the same owner, which takes less time, and other boots leave the
// processors to all programs and boots above.
const (
	freshWeight    = 100
	ordinaryWeight = 1
	freshTime      = 150 * time.Millisecond
	freshMost      = 2 * time.Second // the ordinary weight follows after this time even with less processor time
	halveEvery     = 8               // number of an owner's fresh programs for each halving of the weight
	lookEvery      = 100 * time.Millisecond
)

// weights tracks the weights of running programs. It is safe for concurrent use.
type weights struct {
	none atomic.Bool // this host does not support weights
	work atomic.Bool // a weight has been set successfully

	mu    sync.Mutex
	fresh map[engi.Owner]int // number of fresh programs by owner; guarded by mu
}

func newWeights() *weights { return &weights{fresh: map[engi.Owner]int{}} }

// add changes the number of an owner's fresh programs, and returns the previous number.
func (w *weights) add(owner engi.Owner, n int) (before int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before = w.fresh[owner]
	if w.fresh[owner] += n; w.fresh[owner] == 0 {
		delete(w.fresh, owner)
	}
	return before
}

// ofBoot returns the weight of a boot for which a caller waits.
func (w *weights) ofBoot(b pool.Boot) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := 0
	if b.Wanted {
		fresh = w.fresh[b.Owner]
	}
	return max(ordinaryWeight, freshWeight/2>>min(fresh/halveEvery, 16))
}

// begin gives the instance the weight of a starting program. Call end when the
// program has ended.
func (p *pools) begin(inst *instance, owner engi.Owner) (end func()) {
	w := p.weights
	if w.none.Load() {
		return func() {}
	}
	if weight := max(ordinaryWeight, freshWeight>>min(w.add(owner, 1)/halveEvery, 16)); weight != freshWeight {
		p.weigh(inst, weight)
	}
	var mu sync.Mutex // guards the variables below
	fresh := true
	age := func() {
		if fresh {
			fresh = false
			w.add(owner, -1)
		}
	}
	began := time.Now()
	var timer *time.Timer
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if !fresh {
			return
		}
		if time.Since(began) < freshMost && inst.processorTime()-inst.bootCPU < freshTime {
			timer.Reset(lookEvery)
			return
		}
		age()
		p.weigh(inst, ordinaryWeight)
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(lookEvery, look)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		age()
	}
}

// weigh changes the weight of an instance, if the host supports weights.
func (p *pools) weigh(inst *instance, weight int) { p.weighMachine(inst.machine, inst.rec.ID, weight) }

func (p *pools) weighMachine(machine provider.Machine, id engi.SandboxID, weight int) {
	m, ok := machine.(provider.Weigher)
	if !ok {
		return
	}
	err := m.SetWeight(weight)
	switch {
	case err == nil:
		p.weights.work.Store(true)
	case engi.Is(err, engi.Unavailable): // the machine has just died, which its watcher reports
	case engi.Is(err, engi.Unsupported):
		p.weights.none.Store(true)
	default:
		p.log.Warn("weigh sandbox", "sandbox", id, "error", err)
	}
}

// processorTime returns the processor time that the instance's machine has used, or 0 if it is unknown.
func (i *instance) processorTime() time.Duration {
	m, ok := i.machine.(provider.Meter)
	if !ok {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
	defer cancel()
	u, err := m.Usage(ctx)
	if err != nil {
		return 0
	}
	return u.CPU
}
