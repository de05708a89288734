package session

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestSessionsPerOwner exceeds the quotas of sessions: those alive and those created in a day,
// also with concurrent requests.
func TestSessionsPerOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		o := options(w)
		refusals := map[string]int{}
		o.Quota = func(owner engi.Owner) engi.Quota {
			if owner == "ann" {
				return engi.Quota{Sessions: 3, SessionsPerDay: 5}
			}
			return engi.Quota{}
		}
		var mu sync.Mutex
		o.Refused = func(_ engi.Owner, name string) {
			mu.Lock()
			defer mu.Unlock()
			refusals[name]++
		}
		m, stop := startWith(t, o)
		defer stop()
		var made atomic.Int32
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if _, err := m.Create(t.Context(), engi.SessionSpec{Owner: "ann"}); err == nil {
					made.Add(1)
				}
			})
		}
		all.Wait()
		if made.Load() != 3 {
			t.Errorf("%d sessions of 10 at once, want 3", made.Load())
		}
		refused := func(want string) {
			t.Helper()
			_, err := m.Create(t.Context(), engi.SessionSpec{Owner: "ann"})
			if !engi.Is(err, engi.Exhausted) || !strings.Contains(engi.RemedyOf(err), want) {
				t.Errorf("%v, remedy %q, want %q", err, engi.RemedyOf(err), want)
			}
		}
		refused("terminate an unused one")
		list, err := m.List(t.Context(), "ann", engi.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if err := m.Terminate(t.Context(), "ann", string(s.ID)); err != nil {
				t.Fatal(err)
			}
		}
		create(t, m, engi.SessionSpec{Owner: "ann", TTL: 48 * time.Hour})
		create(t, m, engi.SessionSpec{Owner: "ann", TTL: 48 * time.Hour})
		refused("use the sessions you have for longer")
		for range 8 {
			create(t, m, engi.SessionSpec{Owner: "bob"})
		}
		time.Sleep(25 * time.Hour)
		create(t, m, engi.SessionSpec{Owner: "ann"})
		mu.Lock()
		defer mu.Unlock()
		if refusals["sessions"] != 8 || refusals["sessions per day"] != 1 {
			t.Errorf("%v", refusals)
		}
	})
}

// TestForgottenSessionsCountForTheDay ends sessions that are removed soon after.
func TestForgottenSessionsCountForTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(newFixture())
		o.Quota = func(engi.Owner) engi.Quota { return engi.Quota{SessionsPerDay: 2} }
		o.Retention = time.Hour
		m, stop := startWith(t, o)
		defer stop()
		for range 2 {
			s := create(t, m, engi.SessionSpec{Owner: "ann"})
			if err := m.Terminate(t.Context(), "ann", string(s.ID)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Hour)
			if _, err := m.Get(t.Context(), "ann", string(s.ID)); !engi.Is(err, engi.NotFound) {
				t.Fatalf("it is remembered: %v", err)
			}
		}
		if _, err := m.Create(t.Context(), engi.SessionSpec{Owner: "ann"}); !engi.Is(err, engi.Exhausted) {
			t.Errorf("a third one on one day: %v", err)
		}
		time.Sleep(22 * time.Hour)
		last := create(t, m, engi.SessionSpec{Owner: "ann", TTL: 48 * time.Hour})
		time.Sleep(25 * time.Hour)
		if err := m.checkQuota("ann"); err != nil {
			t.Error(err)
		}
		if err := m.Terminate(t.Context(), "ann", string(last.ID)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour) // the owner is forgotten when no session of the last day is left
		create(t, m, engi.SessionSpec{Owner: "ann"})
	})
}

// TestSessionsInPages lists sessions of two owners, page by page, while some end.
func TestSessionsInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := start(t, newFixture())
		defer stop()
		var bobs engi.SessionID
		for i := range 30 {
			s := create(t, m, engi.SessionSpec{Owner: []engi.Owner{"ann", "bob", "ann"}[i%3]})
			if s.Owner == "bob" {
				bobs = s.ID
			}
			if i%5 == 0 { // several in the same millisecond
				time.Sleep(time.Minute)
			}
			if i%7 == 0 {
				if err := m.Terminate(t.Context(), engi.Everyone, string(s.ID)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, viewer := range []engi.Viewer{engi.Everyone, "ann", "bob", "eve", ""} {
			all, err := m.List(t.Context(), viewer, engi.Paging{})
			if err != nil || len(all) == 0 && viewer != "eve" && viewer != "" {
				t.Fatal(len(all), err)
			}
			for i, s := range all {
				if i > 0 && all[i-1].Created.Before(s.Created) || !viewer.Sees(s.Owner) {
					t.Errorf("%q has %s of %s after a newer one", viewer, s.ID, s.Owner)
				}
				page, err := m.List(t.Context(), viewer, engi.Paging{After: string(s.ID), Limit: 3})
				want := all[i+1 : min(i+4, len(all))]
				if err != nil || !slices.EqualFunc(page, want, func(a, b engi.Session) bool { return a.ID == b.ID }) {
					t.Errorf("%q after %s: %d sessions, want %d; %v", viewer, s.ID, len(page), len(want), err)
				}
			}
			for _, after := range []string{"x", string(bobs), string(engi.NewSessionID())} {
				_, err := m.List(t.Context(), viewer, engi.Paging{After: after})
				if after == string(bobs) && (viewer == engi.Everyone || viewer == "bob") {
					continue
				}
				if !engi.Is(err, engi.Invalid) {
					t.Errorf("%q after %s: %v", viewer, after, err)
				}
			}
		}
	})
}

// TestMaximumDuration checks that a session ends in time although it is in use all
// the time, and that its files are saved first.
func TestMaximumDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "nb", Persistence: engi.PersistWorkspace, MaxDuration: 2 * time.Hour})
		if s.MaxDuration != 2*time.Hour {
			t.Errorf("%+v", s)
		}
		runCode(t, m, s.ID, "set k 1")
		_, release, err := m.Enter(t.Context(), "ann", "nb")
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		time.Sleep(119 * time.Minute)
		x, err := m.Get(t.Context(), "ann", "nb")
		if err != nil || x.State != engi.SessionRunning || x.Expires.Sub(x.Created) != 2*time.Hour {
			t.Fatalf("%+v, %v", x, err)
		}
		time.Sleep(2 * time.Minute)
		if x, err := m.Get(t.Context(), "ann", string(s.ID)); err != nil || x.State != engi.SessionTerminated {
			t.Fatalf("%+v, %v", x, err)
		}
		_, _, err = m.Enter(t.Context(), "ann", string(s.ID))
		if !engi.Is(err, engi.NotFound) || !strings.Contains(err.Error(), "maximum duration of 2h0m0s") {
			t.Errorf("%v", err)
		}
		if c, _ := w.copyOf("nb"); c["k"] != "1" {
			t.Errorf("saved: %v", c)
		}
		if sandboxes, volumes, _, _ := w.count(); sandboxes+volumes != 0 {
			t.Errorf("%d sandboxes and %d volumes are left", sandboxes, volumes)
		}
		o := options(w)
		o.Defaults.Longest = time.Hour
		o.CheckNetwork = func(p engi.NetworkPolicy) error {
			if p.Limits.Up > 100 {
				return engi.Errorf(engi.Denied, "too wide").WithRemedy("ask for 100 at most")
			}
			return nil
		}
		o.Defaults.CPUQuota = engi.CPUQuota{VCPUs: 0.5, Window: time.Minute}
		bounded, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bounded.validate(engi.SessionSpec{MaxDuration: 2 * time.Hour}); !engi.Is(err, engi.Invalid) || !strings.Contains(engi.RemedyOf(err), "sandbox.max_duration") {
			t.Errorf("more than the node's: %v", err)
		}
		if _, err := bounded.validate(engi.SessionSpec{CPUQuota: 1}); !engi.Is(err, engi.Invalid) || !strings.Contains(engi.RemedyOf(err), "sandbox.cpu_quota") {
			t.Errorf("more processor time than the node's: %v", err)
		}
		network := engi.NetworkPolicy{Mode: engi.NetworkOpen, Limits: engi.NetworkLimits{Up: 100}}
		if _, err := bounded.validate(engi.SessionSpec{Network: network}); err != nil {
			t.Error(err)
		}
		network.Limits.Up++
		if _, err := bounded.validate(engi.SessionSpec{Network: network}); !engi.Is(err, engi.Denied) {
			t.Errorf("a wider network than the node's: %v", err)
		}
		if s, err := bounded.validate(engi.SessionSpec{CPUQuota: 0.25}); err != nil || s.CPUQuota != 0.25 {
			t.Errorf("less processor time than the node's: %+v, %v", s, err)
		}
		if s, err := bounded.validate(engi.SessionSpec{}); err != nil || s.MaxDuration != time.Hour {
			t.Errorf("the node's: %+v, %v", s, err)
		}
	})
}

// TestProcessorTimeIsNotRenewed checks that a session with a new sandbox only has the
// CPU time that it has saved.
func TestProcessorTimeIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		o := options(w)
		o.Defaults.CPUQuota = engi.CPUQuota{VCPUs: 0.5, Window: time.Minute}
		m, stop := startWith(t, o)
		defer stop()
		s := create(t, m, engi.SessionSpec{TTL: time.Hour})
		for _, x := range []struct{ pause, least, most time.Duration }{
			{0, 30 * time.Second, 30 * time.Second}, {0, 0, 0}, {20 * time.Second, 10 * time.Second, 10 * time.Second}, {10 * time.Minute, 30 * time.Second, 30 * time.Second},
		} {
			time.Sleep(x.pause)
			if _, err := m.Resume(t.Context(), engi.Everyone, string(s.ID)); err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			for _, b := range w.sandboxes {
				if c := b.CPUQuota.Credit; c < x.least || c > x.most+time.Second {
					t.Errorf("after %v: %v, want %v", x.pause, c, x.most)
				}
			}
			w.mu.Unlock()
			if err := m.Release(t.Context(), engi.Everyone, string(s.ID)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
