package pool

import (
	"testing"
	"time"

	"github.com/engi-dev/engi"
)

// TestReservedPlaces books places for members that their takers make.
func TestReservedPlaces(t *testing.T) {
	o := options()
	o.Max = 3
	w := newWorld(t, o)
	w.s.Ensure(python, Config{Target: 2}, "d1", w.now)
	w.settle(time.Second)
	reserve := func(what string, want engi.Kind) {
		t.Helper()
		err := w.s.Reserve(w.now)
		if (err != nil) != (want != engi.Internal) || err != nil && engi.KindOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	const fine = engi.Internal // no error has it here
	reserve("the last free place", fine)
	reserve("at the cost of a ready member", fine)
	reserve("at the cost of the other", fine)
	reserve("beyond the maximum", engi.Exhausted)
	w.settle(time.Second)
	if alive, _ := w.s.Counts(); alive != 3 {
		t.Errorf("%d members, want 3", alive)
	}
	sized := bash
	sized.Size = engi.Size{Disk: 1}
	w.s.Enroll(sized, Config{Demand: true}, "d1", w.now)
	w.s.Enroll(python, Config{Target: 2}, "d1", w.now)
	w.s.Unreserve()
	w.s.Dismiss(sized)
	w.s.Dismiss(python)
	w.settle(time.Second)
	if alive, _ := w.s.Counts(); alive != 2 {
		t.Errorf("%d members, want the pool's 2 again", alive)
	}
	for _, p := range w.s.Status() {
		if p.Used != 0 {
			t.Errorf("%+v: want none in use", p)
		}
	}
}
