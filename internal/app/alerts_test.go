package app_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// told returns the raised and ended alerts of an app, in order.
func (w *fixture) told(t *testing.T, id engi.AppID) (all []string) {
	t.Helper()
	events, err := store.Events(w.db).List(t.Context(), "ann", engi.EventFilter{Subject: string(id), Types: []string{engi.EventAppAlert, engi.EventAppAlertResolved}, Oldest: true, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	seqs := map[int64]bool{0: true}
	for _, e := range events {
		var d struct {
			Metric, Action, Text string
			Alert                int64
		}
		if err := json.Unmarshal(e.Data, &d); err != nil || !seqs[d.Alert] || (d.Text == "") != (e.Type == engi.EventAppAlertResolved) || (d.Alert == 0) != (e.Type == engi.EventAppAlert) {
			t.Errorf("%s has %s (%v)", e.Type, e.Data, err)
		}
		seqs[e.Seq] = true
		all = append(all, strings.TrimSpace(strings.TrimPrefix(e.Type, "app.alert")+" "+d.Metric+" "+d.Action))
	}
	return all
}

// passes waits for n more checks of an app.
func (w *fixture) passes(t *testing.T, n int) {
	t.Helper()
	w.mu.Lock()
	want := w.enter + n
	w.mu.Unlock()
	wait(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.enter >= want
	})
}

func (w *fixture) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// watched is a fixture with an app that is in use and is checked all the time.
func watched(t *testing.T, change func(o *app.Settings)) (*fixture, *app.Service, engi.App, func()) {
	w := newFixture(t)
	w.health, w.busy, w.alerts = 5*time.Millisecond, true, app.DefaultSettings()
	w.alerts.After = 0
	if change != nil {
		change(&w.alerts)
	}
	s, stop := w.begin(t)
	a := create(t, s, "shop")
	wait(t, func() (done bool) { // its git repository is written in the background, which also counts as a use
		w.change(a.Sandbox, func(b *fakeSandbox) { done = len(b.commits) > 0 })
		return done
	})
	return w, s, a, stop
}

// TestOneAlert makes an app use too much memory, across a restart of the node. There must be
// one event for the alert, one action, and one event for its end.
func TestOneAlert(t *testing.T) {
	w, s, a, stop := watched(t, nil)
	w.passes(t, 3)
	if got := w.told(t, a.ID); got != nil {
		t.Fatalf("it told %v", got)
	}
	w.set(func() { w.memory = 19 << 30 / 10 })
	wait(t, func() bool { return w.told(t, a.ID) != nil })
	w.passes(t, 5)
	st, err := s.Status(t.Context(), "ann", "shop")
	if err != nil || len(st.Alerts) != 1 || st.FileTime <= 0 {
		t.Fatalf("the status is %+v (%v)", st, err)
	}
	if x := st.Alerts[0]; x.Metric != "memory" || x.Limit != 0.8 || x.Value < 0.94 || x.Value > 0.96 || !x.Acted || x.Seq == 0 || x.Text != "the sandbox uses 95 % of its memory, more than 80 %" || x.Since.IsZero() {
		t.Errorf("the alert is %+v", x)
	}
	stop()
	s, _ = w.begin(t)
	w.passes(t, 5)
	if got := w.told(t, a.ID); !slices.Equal(got, []string{"memory restart_server"}) {
		t.Errorf("it told %v", got)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) {
		if b.starts != 1 || w.cold != 0 {
			t.Errorf("the server was started %d times", b.starts)
		}
	})
	w.set(func() { w.memory = 0 })
	wait(t, func() bool { return len(w.told(t, a.ID)) > 1 })
	w.passes(t, 3)
	if got := w.told(t, a.ID); !slices.Equal(got, []string{"memory restart_server", "_resolved memory"}) {
		t.Errorf("it told %v", got)
	}
	if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.State != engi.AppReady {
		t.Errorf("the app is %+v (%v)", got, err)
	}
}

// TestAlertsDoNotFlap crosses a threshold at every other check, never for long enough.
func TestAlertsDoNotFlap(t *testing.T) {
	w, s, a, _ := watched(t, func(o *app.Settings) { o.After = app.Span(time.Hour) })
	for range 5 {
		w.set(func() { w.memory = 2 << 30 })
		w.passes(t, 1)
		w.set(func() { w.memory = 0 })
		w.passes(t, 1)
	}
	if got := w.told(t, a.ID); got != nil {
		t.Errorf("it told %v", got)
	}
	// A server that keeps failing is restarted each time, with a single alert.
	for range 3 {
		w.change(a.Sandbox, func(b *fakeSandbox) { b.server = false })
		wait(t, func() (is bool) {
			w.change(a.Sandbox, func(b *fakeSandbox) { is = b.server })
			got, err := s.Get(t.Context(), "ann", "shop")
			return err == nil && is && got.State == engi.AppReady
		})
	}
	w.passes(t, 2)
	if got := w.told(t, a.ID); !slices.Equal(got, []string{"server restart_server"}) {
		t.Errorf("it told %v", got)
	}
}

// TestAlertsAct crosses every threshold, and checks the configured action.
func TestAlertsAct(t *testing.T) {
	t.Run("errors boot the sandbox on its disk", func(t *testing.T) {
		w, s, a, _ := watched(t, nil)
		w.change(a.Sandbox, func(b *fakeSandbox) { b.put("src/hand.ts", "mine\n") })
		for cold := 0; cold == 0; { // each check finds that the server does not answer, and restarts it
			var before, now int
			w.set(func() { w.deaf, before = 1, w.boxes[a.Sandbox].starts })
			wait(t, func() bool { w.set(func() { now, cold = w.boxes[a.Sandbox].starts, w.cold }); return now > before })
			wait(t, func() bool { // the start also sends a request to the server, and must not get that error
				got, err := s.Get(t.Context(), "ann", "shop")
				return err == nil && got.State == engi.AppReady
			})
			if now > 20 {
				t.Fatalf("it told %v", w.told(t, a.ID))
			}
		}
		wait(t, func() bool {
			got, err := s.Status(t.Context(), "ann", "shop")
			return err == nil && got.App.State == engi.AppReady && got.Healthy && !slices.ContainsFunc(got.Alerts, func(x engi.AppAlert) bool { return !x.Acted })
		})
		if got, err := s.Get(t.Context(), "ann", "shop"); err != nil || got.Sandbox != a.Sandbox || w.tracked(a.Sandbox)["src/hand.ts"] != "mine\n" {
			t.Errorf("the app is %+v (%v)", got, err)
		}
		if got := w.told(t, a.ID); !slices.Contains(got, "errors restart_sandbox") {
			t.Errorf("it told %v", got)
		}
	})
	t.Run("sleep ends alerts", func(t *testing.T) {
		w, s, a, _ := watched(t, func(o *app.Settings) { o.OnMemory = engi.AppActHibernate })
		w.set(func() { w.memory = 2 << 30 })
		wait(t, func() bool { return len(w.told(t, a.ID)) == 2 })
		w.change(a.Sandbox, func(b *fakeSandbox) {
			if b.State != engi.Hibernated || w.cold != 0 || b.starts != 0 {
				t.Errorf("the sandbox is %s", b.State)
			}
		})
		if st, err := s.Status(t.Context(), "ann", "shop"); err != nil || len(st.Alerts) != 0 || st.Healthy {
			t.Errorf("the status is %+v (%v)", st, err)
		}
	})
	t.Run("a slow answer says who is slow", func(t *testing.T) {
		w, s, a, _ := watched(t, func(o *app.Settings) { o.Latency, o.Startup = 1, 1 })
		wait(t, func() bool { return len(w.told(t, a.ID)) == 2 })
		st, err := s.Status(t.Context(), "ann", "shop")
		if err != nil || len(st.Alerts) != 2 || st.Alerts[0].Metric != "latency" || !strings.Contains(st.Alerts[0].Text, "its sandbox answers within") || st.Alerts[1].Metric != "startup" {
			t.Errorf("the status is %+v (%v)", st, err)
		}
		if err := s.Stop(t.Context(), "ann", "shop"); err != nil {
			t.Fatal(err)
		}
		if got := w.told(t, a.ID); len(got) != 4 || got[3] != "_resolved startup" {
			t.Errorf("it told %v", got)
		}
	})
	t.Run("files that are always young are read again", func(t *testing.T) {
		w, s, a, _ := watched(t, nil)
		for i := range 6 {
			w.change(a.Sandbox, func(b *fakeSandbox) {
				for p, n := range b.files {
					n.modified = time.Now()
					b.files[p] = n
				}
			})
			if _, u := apply(t, s, "shop", engi.ApplySpec{Text: file("a.txt", fmt.Sprint(i, "\n"))}); u.Kind != engi.AppApplied {
				t.Fatalf("it ended with %+v", u)
			}
		}
		wait(t, func() bool {
			st, err := s.Status(t.Context(), "ann", "shop")
			return err == nil && len(st.Alerts) == 1 && st.Alerts[0].Metric == "cache" && st.Alerts[0].Action == engi.AppActRefreshFiles && st.Alerts[0].Acted
		})
	})
}

// TestFaultsOfModelsAreNoErrors applies faulty code, which must not count against the sandbox.
func TestFaultsOfModelsAreNoErrors(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	for range 6 {
		if _, u := apply(t, s, "shop", engi.ApplySpec{Text: file("index.html", "BROKEN\n")}); u.Kind != engi.AppApplyFailed {
			t.Fatalf("it ended with %+v", u)
		}
	}
	if st, err := s.Status(t.Context(), "ann", "shop"); err != nil || st.Errors != 0 {
		t.Errorf("the status is %+v (%v)", st, err)
	}
}

func TestSettings(t *testing.T) {
	if err := app.DefaultSettings().Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*app.Settings){
		"health": func(s *app.Settings) { s.Health = 1 }, "after": func(s *app.Settings) { s.After = -1 }, "memory": func(s *app.Settings) { s.Memory = 80 },
		"cache": func(s *app.Settings) { s.Cache = -1 }, "action": func(s *app.Settings) { s.OnErrors = "reboot" },
	} {
		o := app.DefaultSettings()
		if change(&o); !engi.Is(o.Validate(), engi.Invalid) {
			t.Errorf("%s is accepted", what)
		}
	}
}
