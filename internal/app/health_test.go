package app_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestServerIsStartedAgain ends the server of an app, which a check must notice.
func TestServerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.health = 10 * time.Millisecond
		s, _ := w.begin(t)
		a := create(t, s, "shop")
		time.Sleep(1100 * time.Millisecond) // a check does not count itself as a use
		w.change(a.Sandbox, func(b *fakeSandbox) { b.server, b.Active = false, time.Now() })
		wait(t, func() (is bool) {
			w.change(a.Sandbox, func(b *fakeSandbox) { is = b.server && b.starts == 1 })
			return is
		})
		told := ""
		for u, err := range s.Watch(t.Context(), "ann", "shop", 0) {
			if err != nil {
				t.Fatal(err)
			}
			if u.Kind == engi.AppAlerted {
				told += u.Text
			}
			if told != "" && u.State == engi.AppReady {
				break
			}
		}
		if !strings.Contains(told, "started again") {
			t.Errorf("it told %q", told)
		}
		if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
			t.Errorf("the app is %+v (%v)", got, err)
		}
	})
}

// TestSleepIsNotDisturbed checks a hibernated app, and an unused app.
func TestSleepIsNotDisturbed(t *testing.T) {
	for _, state := range []engi.State{engi.Hibernated, engi.Running} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			w.health = 5 * time.Millisecond
			s, _ := w.begin(t)
			a := create(t, s, "shop")
			projected(t, w, s, a)
			w.change(a.Sandbox, func(b *fakeSandbox) { b.State = state })
			time.Sleep(50 * time.Millisecond)
			w.mu.Lock()
			before := w.enter
			w.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			w.mu.Lock()
			n := w.enter - before
			w.mu.Unlock()
			if n != 0 {
				t.Errorf("while it was %s and unused, the sandbox was entered %d times", state, n)
			}
		})
	}
}

// TestLossIsNoticed removes the sandbox of an app. The app must be stopped then, and open again.
func TestLossIsNoticed(t *testing.T) {
	w := newFixture(t)
	w.health = 5 * time.Millisecond
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	w.mu.Lock()
	w.lose(w.boxes[a.Sandbox])
	w.mu.Unlock()
	wait(t, func() bool {
		got, err := s.Get(t.Context(), "ann", "shop")
		return err == nil && got.State == engi.AppStopped && got.Sandbox == ""
	})
	if got, err := s.Open(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
		t.Errorf("opened again: %+v, %v", got, err)
	}
	wantSame(t, w, s, "shop")
}

// TestLogs reads the output of the server, and continues after it.
func TestLogs(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	logs := func(after string, most int) engi.AppLogs {
		t.Helper()
		l, err := s.Logs(t.Context(), "ann", "shop", after, most)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := logs("", 100)
	if first.Text != "ready\n" || first.Truncated || first.Faults != nil {
		t.Errorf("the server printed %+v", first)
	}
	if l := logs("", 3); l.Text != "dy\n" || !l.Truncated || l.Mark != first.Mark {
		t.Errorf("the end of it is %+v", l)
	}
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("src/App.tsx", "CRASH")}); last.Kind != engi.AppApplied {
		t.Errorf("it ended with %+v", last)
	}
	l := logs(first.Mark, 0)
	if len(l.Faults) != 1 || l.Faults[0].Source != "browser" || l.Faults[0].Path != "src/App.tsx" || l.Faults[0].Line != 1 || strings.Contains(l.Text, "ready") || l.Mark == first.Mark {
		t.Errorf("since then it has printed %+v", l)
	}
	if again := logs(l.Mark, 0); again.Text != "" || again.Faults != nil {
		t.Errorf("after that it has printed %+v", again)
	}
	for _, other := range []string{"x", "3.other", "-1." + first.Mark[2:], "99999999999999999999.1"} {
		if l := logs(other, 0); !strings.HasPrefix(l.Text, "ready\n") {
			t.Errorf("after %s it has printed %+v", other, l)
		}
	}
}

// TestWatchEndsWithTheApp watches an app from its beginning to its end, and reconnects in
// the middle.
func TestWatchEndsWithTheApp(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	begun, all := make(chan struct{}), make(chan []engi.AppUpdate)
	go func() {
		var seen []engi.AppUpdate
		for u, err := range s.Watch(t.Context(), "ann", string(a.ID), 0) {
			if err != nil {
				t.Error(err)
			}
			if len(seen) == 0 {
				close(begun)
			}
			seen = append(seen, u)
		}
		all <- seen
	}()
	<-begun // a watch that begins after the end finds no app
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("a.txt", "a\n")}); last.Kind != engi.AppApplied {
		t.Errorf("it ended with %+v", last)
	}
	if err := s.Remove(t.Context(), "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	seen := <-all
	for i, u := range seen {
		if i > 0 && u.Seq <= seen[i-1].Seq {
			t.Errorf("%+v comes after %+v", u, seen[i-1])
		}
	}
	if n := len(seen); n < 6 || seen[0].State != engi.AppStarting || seen[n-1].State != engi.AppRemoved || seen[n-2].State != engi.AppStopped {
		t.Errorf("it told %+v", seen)
	}
}
