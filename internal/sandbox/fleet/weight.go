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

// Short programs pass long ones: each begins with a large weight, and when it has had
// freshTime of the processors it gets the ordinary one, which delays nobody, as in the feedback queues of
// CTSS (Corbató, Merwin-Daggett and Daley, "An experimental time-sharing system",
// 1962). What an owner starts at the same time begins with ever smaller weights, so
// that the first of many ends early instead of all of them late, and another owner's
// program is ahead of most of them. A machine that somebody waits for boots with half the
// weight of a program of that owner, which takes less time, and others leave the
// processors to all of these.
const (
	freshWeight    = 100
	ordinaryWeight = 1
	freshTime      = 150 * time.Millisecond
	freshMost      = 2 * time.Second // even if it has had less
	halveEvery     = 8               // fresh programs of an owner
	lookEvery      = 100 * time.Millisecond
)

// weights are those of running programs. They are safe for concurrent use.
type weights struct {
	none atomic.Bool // this host has none
	work atomic.Bool // one has been set

	mu    sync.Mutex
	fresh map[engi.Owner]int // programs; guarded by mu
}

func newWeights() *weights { return &weights{fresh: map[engi.Owner]int{}} }

// add changes the number of an owner's fresh programs, and returns what it was.
func (w *weights) add(owner engi.Owner, n int) (before int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before = w.fresh[owner]
	if w.fresh[owner] += n; w.fresh[owner] == 0 {
		delete(w.fresh, owner)
	}
	return before
}

// ofBoot is the weight of a boot that somebody waits for.
func (w *weights) ofBoot(b pool.Boot) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := 0
	if b.Wanted {
		fresh = w.fresh[b.Owner]
	}
	return max(ordinaryWeight, freshWeight/2>>min(fresh/halveEvery, 16))
}

// begin gives the instance the weight of a program that begins. Call end when the
// program has ended.
func (p *pools) begin(inst *instance, owner engi.Owner) (end func()) {
	w := p.weights
	if w.none.Load() {
		return func() {}
	}
	if weight := max(ordinaryWeight, freshWeight>>min(w.add(owner, 1)/halveEvery, 16)); weight != freshWeight {
		p.weigh(inst, weight)
	}
	var mu sync.Mutex // guards what follows
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

// weigh changes the weight of an instance, where the host can.
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
	case engi.Is(err, engi.Unavailable): // it has just died, which others see
	case engi.Is(err, engi.Unsupported):
		p.weights.none.Store(true)
	default:
		p.log.Warn("weigh sandbox", "sandbox", id, "error", err)
	}
}

// processorTime is what the instance's machine has used, or 0 if that is not known.
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
