package fleet

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A weighed machine records its weights, and reports the processor time that the test
// sets.
type weighed struct {
	provider.Machine
	mu      sync.Mutex
	weights []int
	cpu     time.Duration
}

func (w *weighed) SetWeight(weight int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.weights = append(w.weights, weight)
	return nil
}

func (w *weighed) Usage(context.Context) (engi.Usage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return engi.Usage{CPU: w.cpu}, nil
}

func (w *weighed) use(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cpu += d
}

func (w *weighed) got() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.weights)
}

func TestWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pools{weights: newWeights()}
		begin := func(owner engi.Owner) (*weighed, func()) {
			m := &weighed{cpu: time.Hour}
			return m, p.begin(&instance{machine: m, bootCPU: time.Hour}, owner)
		}
		wantWeights := func(m *weighed, want ...int) {
			t.Helper()
			if got := m.got(); !slices.Equal(got, want) {
				t.Errorf("got weights %v, want %v", got, want)
			}
		}
		// The more programs of an owner begin at once, the lower are the weights of the later ones.
		var ends []func()
		for i := range 100 {
			m, end := begin("mallory")
			ends = append(ends, end)
			switch {
			case i < halveEvery:
				wantWeights(m) // the weight of the boot
			case i < 2*halveEvery:
				wantWeights(m, freshWeight/2)
			case i >= 7*halveEvery:
				wantWeights(m, ordinaryWeight)
			}
		}
		// The same holds for boots for which they wait.
		for owner, want := range map[engi.Owner]int{"ann": freshWeight / 2, "mallory": ordinaryWeight} {
			if got := p.weights.ofBoot(pool.Boot{Wanted: true, Owner: owner}); got != want {
				t.Errorf("a boot that %s waits for weighs %d, want %d", owner, got, want)
			}
		}
		ann, endAnn := begin("ann")
		wantWeights(ann)
		for _, end := range ends {
			end()
		}
		first, end := begin("mallory") // all programs of mallory have ended
		wantWeights(first)

		// A program that computes soon has the ordinary weight; a waiting program stays fresh for a while.
		ann.use(freshTime)
		time.Sleep(lookEvery + time.Millisecond)
		synctest.Wait()
		wantWeights(ann, ordinaryWeight)
		wantWeights(first)
		time.Sleep(freshMost)
		synctest.Wait()
		wantWeights(first, ordinaryWeight)
		end()
		endAnn()
		time.Sleep(time.Minute)
		wantWeights(first, ordinaryWeight)
		if p.weights.fresh["ann"]+p.weights.fresh["mallory"] != 0 {
			t.Errorf("%v are still fresh", p.weights.fresh)
		}
	})
}
