// Package seed sets the random numbers of tests: they are the same in every run, unless
// ENGI_SEED requests others.
//
// With ENGI_SEED=random every test draws its own seed, as in "make soak". With ENGI_SEED=N
// every test uses the seed N. A test that uses pgregory.net/rapid imports this package for
// its effect on rapid's flag:
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

	_ "pgregory.net/rapid" // defines the flag rapid.seed, which init sets
)

// Of returns the seed of a test and logs it. It is fixed, unless the environment variable
// name has a number, or ENGI_SEED requests another seed. name may be empty.
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
// goroutines may use it; the order of their draws depends on the scheduler.
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
			return 1 + rand.Uint64N(1<<63), nil // 0 would make rapid draw another seed
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
