package budget

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// TestTracker spends until it is refused, over days and months, and loses
// nothing when the database is opened again.
func TestTracker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	now := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
	limit := func(owner engi.Owner) Limit {
		switch owner {
		case "rich":
			return Limit{}
		case "thrifty":
			return Limit{Day: 1, DayTokens: 10, MonthTokens: 1000}
		}
		return Limit{Day: 1, MonthTokens: 1000}
	}
	var db *store.DB
	open := func() *Tracker {
		t.Helper()
		var err error
		if db, err = store.Open(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		tr := New(Options{Store: store.Spending(db), Limit: limit, Log: slog.New(slog.DiscardHandler)})
		tr.now = func() time.Time { return now }
		return tr
	}
	tracker := open()
	refused := func(owner engi.Owner, words string, wait time.Duration) {
		t.Helper()
		err := tracker.Check(t.Context(), owner)
		if words == "" {
			if err != nil {
				t.Errorf("%s at %v: %v", owner, now, err)
			}
			return
		}
		if !engi.Is(err, engi.Exhausted) || !strings.Contains(err.Error(), words) || engi.RemedyOf(err) == "" {
			t.Errorf("%s at %v: %v", owner, now, err)
		}
		if got := time.Duration(engi.RetryOf(err).AfterMillis) * time.Millisecond; got != wait {
			t.Errorf("%s at %v: to come back after %v, not %v", owner, now, got, wait)
		}
	}
	spend := func(owner engi.Owner, tokens, cost int64) {
		tracker.Record(llm.Call{Owner: owner, Model: "openai:a", Tokens: engi.Tokens{Input: tokens - 1, Output: 1, Cost: cost, Calls: 1}})
	}
	refused("ann", "", 0)
	spend("ann", 100, 999_999)
	refused("ann", "", 0)
	spend("ann", 100, 1)
	refused("ann", "1.00 of 1.00", time.Hour)
	refused("bob", "", 0)
	for _, owner := range []engi.Owner{"rich", ""} {
		spend(owner, 1e6, 1e9)
		refused(owner, "", 0)
	}
	spend("thrifty", 10, 0)
	refused("thrifty", "10 of 10 tokens", time.Hour)

	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	tracker = open()
	refused("ann", "1.00 of 1.00", time.Hour)
	now = now.Add(2 * time.Hour) // the 30th
	refused("ann", "", 0)
	spend("ann", 800, 0)
	refused("ann", "month on models: 1000 of 1000 tokens", 23*time.Hour)
	got, err := tracker.ModelUsage(t.Context(), "ann", now.AddDate(0, 0, -30))
	if err != nil {
		t.Fatal(err)
	}
	date := func(day int) time.Time { return time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC) }
	want := []engi.ModelUsage{
		{Owner: "ann", Day: date(30), Model: "openai:a", Tokens: engi.Tokens{Input: 799, Output: 1, Calls: 1}},
		{Owner: "ann", Day: date(29), Model: "openai:a", Tokens: engi.Tokens{Input: 198, Output: 2, Cost: 1_000_000, Calls: 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if all, err := tracker.ModelUsage(t.Context(), engi.Everyone, date(30)); err != nil || len(all) != 1 {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := tracker.ModelUsage(t.Context(), engi.Everyone, date(1)); err != nil || len(all) != 5 {
		t.Errorf("%+v %v", all, err)
	}
	now = now.Add(24 * time.Hour) // December
	refused("ann", "", 0)

	// Concurrent calls are all counted.
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { spend("many", 2, 3) })
	}
	wg.Wait()
	if total, err := store.Spending(db).Total(context.Background(), "many", now); err != nil || total.Calls != 50 || total.Cost != 150 || total.Input != 50 {
		t.Errorf("%+v %v", total, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
