package memory_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/memory"
)

func TestPromises(t *testing.T) {
	functiontest.Promises(t, func(*testing.T) func() function.Engine {
		e := &memory.Engine{}
		return func() function.Engine { return e }
	})
}

func TestManyWaits(t *testing.T) {
	e := &memory.Engine{}
	functiontest.ManyWaits(t, func() function.Engine { return e }, 1000)
}
