package app_test

import (
	"slices"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestSandboxDoesNotAnswer interrupts the connection to a sandbox, for a moment and for long. The
// app must return to the same sandbox.
func TestSandboxDoesNotAnswer(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	projected(t, w, s, a)
	w.set(func() { w.gone = 3 })
	if got, err := s.Open(t.Context(), "ann", "shop"); err != nil || got.Sandbox != a.Sandbox || got.State != engi.AppReady {
		t.Errorf("after a moment: %+v, %v", got, err)
	}
	w.set(func() { w.gone = -1 })
	if got, err := s.Open(t.Context(), "ann", "shop"); !engi.Is(err, engi.Unavailable) || got.State != engi.AppFailed || got.Error == nil {
		t.Errorf("for long: %+v, %v", got, err)
	}
	w.set(func() {
		if tries := -1 - w.gone; tries < 3 || tries > 20 {
			t.Errorf("it was tried %d times", tries)
		}
		w.gone = 0
	})
	if got, err := s.Open(t.Context(), "ann", "shop"); err != nil || got.Sandbox != a.Sandbox || got.State != engi.AppReady || w.made != 1 {
		t.Errorf("once it is back: %+v, %v", got, err)
	}
	wantSame(t, w, s, "shop")
}

// TestDiskIsFull fills the disk, for files and for packages. Caches that can be downloaded
// again must be cleared; if that is not enough, nothing must have changed.
func TestDiskIsFull(t *testing.T) {
	for _, text := range []string{file("src/App.tsx", "two\n"), "<package>zustand</package>"} {
		w := newFixture(t)
		s, _ := w.begin(t)
		a := create(t, s, "shop")
		before := recorded(t, s, "shop", 0)
		w.set(func() { w.packed = 1 })
		if _, u := apply(t, s, "shop", engi.ApplySpec{Text: text}); u.Kind != engi.AppApplied {
			t.Errorf("%s ended with %+v", text, u.Error)
		}
		w.change(a.Sandbox, func(b *fakeSandbox) {
			if _, ok := b.files["/root/cleared"]; !ok {
				t.Error("the caches were not cleared")
			}
		})
		if _, err := s.Rollback(t.Context(), "ann", "shop", 1); err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.packed = -1 })
		if _, u := apply(t, s, "shop", engi.ApplySpec{Text: text + file("new.txt", "new\n")}); u.Kind != engi.AppApplyFailed || !slices.Contains([]engi.Kind{engi.Exhausted, engi.Conflict}, u.Error.Kind) {
			t.Errorf("%s ended with %+v", text, u)
		}
		w.set(func() { w.packed = 0 })
		if got, err := s.Open(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
			t.Fatalf("%+v, %v", got, err)
		}
		wantSame(t, w, s, "shop")
		if len(recorded(t, s, "shop", 0)) != len(before) {
			t.Error("something was left")
		}
	}
}
