package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// trimmed lets the suite drop events.
type trimmed struct {
	engi.EventLog
	db *store.DB
}

func (l trimmed) Trim(ctx context.Context, count int64) (int64, error) {
	return store.TrimEvents(ctx, l.db, store.EventBounds{Count: count})
}

func open(t *testing.T, target string) (*store.DB, trimmableLog) {
	t.Helper()
	db, err := store.Open(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	return db, trimmed{store.Events(db), db}
}

func TestEvents(t *testing.T) { testEvents(t, func(t *testing.T) string { return t.TempDir() }) }

// TestEventsInMemory has the database in a file system that is in memory.
func TestEventsInMemory(t *testing.T) {
	testEvents(t, func(t *testing.T) string {
		dir, err := os.MkdirTemp("/dev/shm", "engi-events-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return dir
	})
}

func testEvents(t *testing.T, dir func(*testing.T) string) {
	eventPromises(t, func(t *testing.T) (trimmableLog, func() trimmableLog) {
		file := filepath.Join(dir(t), "engi.db")
		db, log := open(t, file)
		t.Cleanup(func() { db.Close() })
		return log, func() trimmableLog {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			var log trimmableLog
			db, log = open(t, file)
			return log
		}
	})
}

// BenchmarkEvents appends batches while a thousand follow, each an owner's or a
// subject's, and waits until all have seen all that is theirs.
func BenchmarkEvents(b *testing.B) {
	for _, followers := range []int{0, 1000} {
		b.Run(fmt.Sprintf("followers=%d", followers), func(b *testing.B) {
			db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "engi.db"))
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			log := store.Events(db)
			const batch, owners = 100, 50
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			var seen atomic.Int64
			for i := range followers {
				f := engi.EventFilter{Subject: fmt.Sprintf("s%d", i%500)}
				if i%2 == 0 {
					f = engi.EventFilter{Owner: engi.Owner(fmt.Sprintf("o%d", i%owners))}
				}
				wg.Go(func() {
					for _, err := range log.Follow(ctx, engi.Everyone, f) {
						if err == nil {
							seen.Add(1)
						}
					}
				})
			}
			n := 0
			for b.Loop() {
				specs := make([]engi.EventSpec, batch)
				for i := range specs {
					specs[i] = engi.EventSpec{Owner: engi.Owner(fmt.Sprintf("o%d", n%owners)), Subject: fmt.Sprintf("s%d", n%500), Type: "bench", Data: json.RawMessage(`{"n":1}`)}
					n++
				}
				if _, err := log.Append(ctx, specs...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(seen.Load())/b.Elapsed().Seconds(), "seen/s")
			cancel()
			wg.Wait()
		})
	}
}
