package fleet_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// BenchmarkExecution runs bash's ":" warm, one at a time, with records in
// SQLite, and reports the overhead of the fleet: claim is the time to an accepted,
// recorded execution, rest is the remaining time without the program's own
// time.
func BenchmarkExecution(b *testing.B) {
	fx := newFixture(b)
	const instances = 32
	n := fx.start(func(o *fleet.Options) {
		o.Log = slog.New(slog.DiscardHandler)
		o.Pools = []fleet.PoolConfig{{Language: engi.Bash, Target: instances}}
	})
	var claims, rests []time.Duration
	spec := script(":")
	for i := 0; b.Loop(); i++ {
		if i%instances == 0 {
			b.StopTimer()
			n.warm()
			time.Sleep(100 * time.Millisecond) // wait for the last teardowns
			b.StartTimer()
		}
		began := time.Now()
		x := n.execute(spec)
		if !x.Result.Warm {
			b.Fatal("not warm")
		}
		claims = append(claims, x.Result.Claim)
		rests = append(rests, time.Since(began)-x.Result.Duration)
	}
	report(b, map[string][]time.Duration{"claim": claims, "rest": rests})
}
