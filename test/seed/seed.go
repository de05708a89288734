// Package seed decides which random numbers tests use: the same in every run, unless
// somebody asks for others.
//
// ENGI_SEED=random has every test draw its own seed, as "make soak" does. ENGI_SEED=N has
// every test use the seed N. A test that uses pgregory.net/rapid imports this package for
// its effect on rapid's flag, and takes part as well:
//
//	import _ "github.com/engi-dev/engi/test/seed"
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	_ "pgregory.net/rapid" // has the flag rapid.seed, which init sets
)

// Of returns the seed of a test and logs it. It is fixed, unless the environment variable
// name has a number, or ENGI_SEED asks for another seed. name may be empty.
func Of(t testing.TB, name string, fixed uint64) uint64 {
	t.Helper()
	seed, err := of(os.Getenv, name, fixed)
	if err != nil {
		t.Fatal(err)
	}
	if name == "" {
		name = "ENGI_SEED"
	}
	t.Logf("%s=%d", name, seed)
	return seed
}

// New returns a generator of random numbers with the seed Of(t, "", 1). Any number of
// goroutines may use it: which of them draws which number is then up to the scheduler.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(&source{pcg: rand.NewPCG(Of(t, "", 1), 0)})
}

// A source is a PCG that goroutines share.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG // guarded by mu
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

func of(env func(string) string, name string, fixed uint64) (uint64, error) {
	for _, name := range []string{name, "ENGI_SEED"} {
		switch v := env(name); {
		case name == "" || v == "":
		case v == "random":
			return 1 + rand.Uint64N(1<<63), nil // 0 would have rapid draw another one
		default:
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s is %q, which is neither a number nor random", name, v)
			}
			return n, nil
		}
	}
	return fixed, nil
}
