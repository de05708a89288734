package app_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestHungServersDelayOnlyTheirOwner makes ten servers of one owner accept connections without
// answering. Another owner's server that has ended must be restarted without delay.
func TestHungServersDelayOnlyTheirOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.health, w.busy = 30*time.Second, true
		s, stop := w.begin(t)
		var other engi.App
		for i := range 11 {
			a, err := s.Create(t.Context(), engi.AppSpec{Owner: engi.Owner(fmt.Sprint("owner-", min(i, 1))), Name: fmt.Sprint("app-", i)})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				other = a
			} else {
				w.change(a.Sandbox, func(b *fakeSandbox) { b.mute = true })
			}
		}
		time.Sleep(35 * time.Second)
		w.change(other.Sandbox, func(b *fakeSandbox) { b.server = false })
		began := time.Now()
		for up := false; !up && time.Since(began) < time.Hour; time.Sleep(time.Second) {
			w.change(other.Sandbox, func(b *fakeSandbox) { up = b.server })
		}
		if took := time.Since(began); took > 35*time.Second {
			t.Errorf("it was started again after %v", took)
		}
		stop()
		w.end()
	})
}

// TestPlacesOfEditsAreGivenBack makes the store fail whenever an edit begins.
func TestPlacesOfEditsAreGivenBack(t *testing.T) {
	w := newFixture(t)
	w.models = &writer{answers: []string{file("src/App.tsx", "export default 1\n")}}
	s, _ := w.begin(t)
	create(t, s, "shop")
	fail := func(f func(op string, b *fakeSandbox) error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fault = f
	}
	spec := engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"}
	fail(func(op string, _ *fakeSandbox) error {
		if op == "change" {
			return engi.Errorf(engi.Unavailable, "the disk is full")
		}
		return nil
	})
	for i := range 150 {
		if _, err := s.Edit(t.Context(), spec); !engi.Is(err, engi.Unavailable) {
			t.Fatalf("edit %d: %v", i, err)
		}
	}
	fail(nil)
	if _, err := s.Edit(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

// TestOneThatStaysKeepsNothingElse makes the removal of an obsolete snapshot fail
// for a while.
func TestOneThatStaysKeepsNothingElse(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	for range 8 { // three of them are too many
		if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("a.ts", fmt.Sprint(time.Now().UnixNano())), Snapshot: true}); last.Kind != engi.AppApplied {
			t.Fatalf("it ended with %+v", last)
		}
	}
	settled(t, w)
	removed := 0
	w.mu.Lock()
	w.fault = func(op string, _ *fakeSandbox) error {
		if op != "remove" {
			return nil
		}
		if removed++; removed == 1 || removed > 5 { // the first removal fails, also when it is repeated in the background
			return engi.Errorf(engi.Unavailable, "it is in use")
		}
		return nil
	}
	before := len(w.copies)
	w.mu.Unlock()
	if err := s.Remove(t.Context(), "ann", "shop"); err == nil {
		t.Error("an app with a snapshot that cannot be removed was removed")
	}
	w.mu.Lock()
	left := len(w.copies)
	w.fault = nil
	w.mu.Unlock()
	if before != 5 || left != 1 {
		t.Errorf("of %d snapshots, %d are left", before, left)
	}
	if err := s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Error(err)
	}
	settled(t, w)
}
