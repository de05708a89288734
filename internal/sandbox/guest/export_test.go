package guest

import "time"

// SetStalled changes the time for which guests may read nothing, until the returned function
// is called. It applies to clients opened meanwhile.
func SetStalled(d time.Duration) (restore func()) {
	before := stalled
	stalled = d
	return func() { stalled = before }
}
