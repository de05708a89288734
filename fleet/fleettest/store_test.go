package fleettest

import (
	"testing"

	"github.com/engi-dev/engi/fleet"
)

func TestTwinKeepsPromises(t *testing.T) {
	RunStore(t, func(*testing.T) fleet.Store { return NewStore() })
}
