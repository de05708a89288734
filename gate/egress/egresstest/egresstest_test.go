package egresstest_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/gate/egress"
	"github.com/engi-dev/engi/gate/egress/egresstest"
)

func TestMemoryKeepsThePromises(t *testing.T) {
	egresstest.Run(t, func(_ *testing.T, keep int, age time.Duration) egress.Store {
		return &egresstest.Memory{Keep: keep, Age: age}
	})
}
