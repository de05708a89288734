package config

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func TestBudgetsOfOwners(t *testing.T) {
	b := Budgets{Day: 1, MonthTokens: 1000, Owner: map[string]Budget{"rich": {Day: -1, MonthTokens: -1}, "thrifty": {DayTokens: 10}}}
	for owner, want := range map[engi.Owner]Budget{
		"ann":     {Day: 1, MonthTokens: 1000},
		"rich":    {},
		"thrifty": {Day: 1, DayTokens: 10, MonthTokens: 1000},
	} {
		if got := b.Of(owner); got != want {
			t.Errorf("%s: %+v, want %+v", owner, got, want)
		}
	}
}
