package agents

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/store"
)

// A Ledger knows what owners spent on models, and says when it is enough. It
// is safe for concurrent use.
type Ledger struct {
	shelf   store.SpendStore
	budgets config.Budgets
	log     *slog.Logger
	now     func() time.Time
}

var _ engi.UsageReporter = (*Ledger)(nil)

// NewLedger returns the ledger of a node.
func NewLedger(c config.Config, db *store.DB, log *slog.Logger) *Ledger {
	return &Ledger{shelf: store.Spending(db), budgets: c.Models.Budgets, log: log, now: time.Now}
}

// Spend records a call. A call that nobody could count is told in the log: it
// has been paid for.
func (l *Ledger) Spend(c llm.Call) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.shelf.Add(ctx, engi.ModelUsage{Owner: c.Owner, Day: l.now().UTC(), Model: c.Model, Tokens: c.Tokens}); err != nil {
		l.log.Error("a call of a model was not counted", "owner", c.Owner, "model", c.Model, "tokens", c.Tokens, "err", err)
	}
}

// Afford reports Exhausted when an owner has spent what it may, until the day
// or the month is over. The node itself and its admins, who have no owner, may
// go on. Calls that are on their way are not counted yet: an owner may come
// out above its budget by those.
func (l *Ledger) Afford(ctx context.Context, owner engi.Owner) error {
	b := l.budgets.Of(owner)
	if owner == "" || b == (config.Budget{}) {
		return nil
	}
	now := l.now().UTC()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for _, span := range []struct {
		name   string
		since  time.Time
		until  time.Time
		cost   float64
		tokens int64
	}{
		{"month", month, month.AddDate(0, 1, 0), b.Month, b.MonthTokens},
		{"day", today, today.AddDate(0, 0, 1), b.Day, b.DayTokens},
	} {
		if span.cost == 0 && span.tokens == 0 {
			continue
		}
		t, err := l.shelf.Total(ctx, owner, span.since)
		if err != nil {
			return err
		}
		what := ""
		used := t.Input + t.Output + t.CacheRead + t.CacheWrite
		switch {
		case span.cost > 0 && float64(t.Cost)/1e6 >= span.cost:
			what = fmt.Sprintf("%.2f of %.2f", float64(t.Cost)/1e6, span.cost)
		case span.tokens > 0 && used >= span.tokens:
			what = fmt.Sprintf("%d of %d tokens", used, span.tokens)
		default:
			continue
		}
		return engi.Errorf(engi.Exhausted, "%s has spent its budget of this %s on models: %s", owner, span.name, what).
			WithRemedy("wait for the next %s (UTC), or have the operator raise models.budgets", span.name).
			WithRetry(engi.Retry{AfterMillis: span.until.Sub(now).Milliseconds()})
	}
	return nil
}

// Spent returns what was spent from a day on, the newest first.
func (l *Ledger) ModelUsage(ctx context.Context, owner engi.Owner, since time.Time) ([]engi.ModelUsage, error) {
	return l.shelf.ModelUsage(ctx, owner, since)
}
