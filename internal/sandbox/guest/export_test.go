package guest

import "time"

// SetStalled changes how long guests may read nothing, until the function it returns
// is called. Clients that are opened meanwhile have it.
func SetStalled(d time.Duration) (restore func()) {
	before := stalled
	stalled = d
	return func() { stalled = before }
}
