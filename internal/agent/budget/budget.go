// Package budget counts what owners spend on language models and refuses
// further calls once a limit of the day or the month is reached.
package budget

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// A Limit is the maximum spending of an owner. Zero fields mean no limit.
type Limit struct {
	Day         float64 // maximum cost of a UTC day, in the currency of the price table
	Month       float64 // maximum cost of a calendar month
	DayTokens   int64
	MonthTokens int64
}

// A Store stores the spending of owners, by owner, UTC day and model.
type Store interface {
	engi.UsageReporter
	Add(ctx context.Context, u engi.ModelUsage) error
	// Total returns the spending of owner since the given day.
	Total(ctx context.Context, owner engi.Owner, since time.Time) (engi.Tokens, error)
}

// Options configures a [Tracker]. All fields are required.
type Options struct {
	Store Store
	Limit func(engi.Owner) Limit
	Log   *slog.Logger
}

// A Tracker records the spending of owners and enforces their limits. It is safe for
// concurrent use.
type Tracker struct {
	Store
	opt Options
	now func() time.Time
}

// New returns a tracker.
func New(o Options) *Tracker { return &Tracker{Store: o.Store, opt: o, now: time.Now} }

// Record adds a call to its owner's spending. It takes no context, because
// a call costs money even if its caller has left. A failure is
// only logged.
func (t *Tracker) Record(c llm.Call) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := t.Add(ctx, engi.ModelUsage{Owner: c.Owner, Day: t.now().UTC(), Model: c.Model, Tokens: c.Tokens}); err != nil {
		t.opt.Log.Error("a model call was not counted", "owner", c.Owner, "model", c.Model, "tokens", c.Tokens, "error", err)
	}
}

// Check reports Exhausted if owner has reached one of its limits, with the time
// until the period ends. The empty owner, which is the node and its admins, has
// no limits. Calls in flight are not counted yet, so an owner can exceed its
// limit by their cost.
func (t *Tracker) Check(ctx context.Context, owner engi.Owner) error {
	limit := t.opt.Limit(owner)
	if owner == "" || limit == (Limit{}) {
		return nil
	}
	now := t.now().UTC()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for _, period := range []struct {
		name   string
		since  time.Time
		until  time.Time
		cost   float64
		tokens int64
	}{
		{"month", month, month.AddDate(0, 1, 0), limit.Month, limit.MonthTokens},
		{"day", today, today.AddDate(0, 0, 1), limit.Day, limit.DayTokens},
	} {
		if period.cost == 0 && period.tokens == 0 {
			continue
		}
		total, err := t.Total(ctx, owner, period.since)
		if err != nil {
			return err
		}
		cost := float64(total.Cost) / 1e6
		used := total.Input + total.Output + total.CacheRead + total.CacheWrite
		what := ""
		switch {
		case period.cost > 0 && cost >= period.cost:
			what = fmt.Sprintf("%.2f of %.2f", cost, period.cost)
		case period.tokens > 0 && used >= period.tokens:
			what = fmt.Sprintf("%d of %d tokens", used, period.tokens)
		default:
			continue
		}
		return engi.Errorf(engi.Exhausted, "%s has spent its budget of this %s on models: %s", owner, period.name, what).
			WithRemedy("wait for the next %s (UTC), or have the operator raise models.budgets", period.name).
			WithRetry(engi.Retry{AfterMillis: period.until.Sub(now).Milliseconds()})
	}
	return nil
}
