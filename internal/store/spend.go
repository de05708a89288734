package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A SpendStore implements the store of package internal/agent/budget. It is safe for concurrent use.
type SpendStore struct{ db *DB }

// Spending returns the store for owners' spending on language models.
func Spending(db *DB) SpendStore { return SpendStore{db} }

const day = 24 * time.Hour

func dayOf(t time.Time) int64 { return t.Unix() / int64(day/time.Second) }

// Add adds u to its owner's spending of that day. It is durable when Add returns.
func (s SpendStore) Add(ctx context.Context, u engi.ModelUsage) (err error) {
	defer engi.Annotate(&err, "record what %s cost", u.Model)
	t := u.Tokens
	return s.db.tx(ctx, func(tx *tx) error {
		if _, err := tx.exec(ctx, `INSERT INTO spend (owner, day, model, calls, input, output, reasoning, cache_read, cache_write, cost)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, day, model) DO UPDATE SET
			calls = calls + excluded.calls, input = input + excluded.input, output = output + excluded.output, reasoning = reasoning + excluded.reasoning,
			cache_read = cache_read + excluded.cache_read, cache_write = cache_write + excluded.cache_write, cost = cost + excluded.cost`,
			u.Owner, dayOf(u.Day), u.Model, t.Calls, t.Input, t.Output, t.Reasoning, t.CacheRead, t.CacheWrite, t.Cost); err != nil {
			return err
		}
		return tx.record(ctx, u.Owner, "", engi.EventModelCharge, struct {
			Model string `json:"model"`
			agentTokens
		}{u.Model, agentTokens(t)})
	})
}

// Total returns the spending of owner since the given day.
func (s SpendStore) Total(ctx context.Context, owner engi.Owner, since time.Time) (t engi.Tokens, err error) {
	defer engi.Annotate(&err, "sum up what %s spent", owner)
	err = s.db.read.QueryRowContext(ctx, `SELECT coalesce(sum(calls), 0), coalesce(sum(input), 0), coalesce(sum(output), 0), coalesce(sum(reasoning), 0),
		coalesce(sum(cache_read), 0), coalesce(sum(cache_write), 0), coalesce(sum(cost), 0) FROM spend WHERE owner = ? AND day >= ?`, string(owner), dayOf(since)).
		Scan(&t.Calls, &t.Input, &t.Output, &t.Reasoning, &t.CacheRead, &t.CacheWrite, &t.Cost)
	if err != nil {
		return t, fault(ctx, err)
	}
	return t, nil
}

// ModelUsage implements [engi.UsageReporter].
func (s SpendStore) ModelUsage(ctx context.Context, viewer engi.Viewer, since time.Time) (_ []engi.ModelUsage, err error) {
	defer engi.Annotate(&err, "list what was spent")
	return list(ctx, s.db.read, func(row scanner) (x engi.ModelUsage, err error) {
		var n int64
		t := &x.Tokens
		err = row.Scan(&x.Owner, &n, &x.Model, &t.Calls, &t.Input, &t.Output, &t.Reasoning, &t.CacheRead, &t.CacheWrite, &t.Cost)
		x.Day = time.Unix(n*int64(day/time.Second), 0).UTC()
		return x, err
	}, `SELECT owner, day, model, calls, input, output, reasoning, cache_read, cache_write, cost
		FROM spend WHERE (? = '*' OR owner = ?) AND day >= ? ORDER BY day DESC, owner, model LIMIT 10000`, viewer, viewer, dayOf(since))
}
