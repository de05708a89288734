package store

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	refusalBeat = 10 * time.Second // time between two events about one owner's quota
	maxRefusals = 10_000           // maximum number of owners and quotas counted between two events
)

// Refusals counts the refusals of quotas and appends the sums to the event log: a
// client that retries all the time must not fill the log. It is safe for
// concurrent use.
type Refusals struct {
	db *DB

	mu     sync.Mutex
	counts map[refusal]int // guarded by mu
}

type refusal struct {
	owner engi.Owner
	quota string
}

// NewRefusals returns refusals without counts. Run appends them.
func NewRefusals(db *DB) *Refusals { return &Refusals{db: db, counts: map[refusal]int{}} }

// Add counts one refusal of the named quota.
func (r *Refusals) Add(owner engi.Owner, quota string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := (refusal{owner, quota}); r.counts[key] > 0 || len(r.counts) < maxRefusals {
		r.counts[key]++
	}
}

// Run appends the counts at intervals, and once more when ctx ends.
func (r *Refusals) Run(ctx context.Context, ready func()) error {
	ready()
	for range clock.Later(ctx, refusalBeat) {
		if err := r.Flush(ctx); err != nil && ctx.Err() == nil && r.db.Log != nil {
			r.db.Log.WarnContext(ctx, "append what quotas refused", "error", err)
		}
	}
	return r.Flush(context.WithoutCancel(ctx))
}

// Flush appends the counts.
func (r *Refusals) Flush(ctx context.Context) error {
	r.mu.Lock()
	counts := r.counts
	r.counts = map[refusal]int{}
	r.mu.Unlock()
	var specs []engi.EventSpec
	for key, n := range counts {
		data, err := json.Marshal(map[string]any{"quota": key.quota, "count": n})
		if err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		specs = append(specs, engi.EventSpec{Owner: key.owner, Subject: "quota", Type: engi.EventQuotaRefused, Data: data})
	}
	if len(specs) == 0 {
		return nil
	}
	_, err := Events(r.db).Append(ctx, specs...)
	return err
}
