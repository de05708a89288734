package transfer

import "testing"

// SetMaxWork changes how much packs may unpack to, until the test ends.
func SetMaxWork(t *testing.T, n int64) {
	old := maxWork
	maxWork = n
	t.Cleanup(func() { maxWork = old })
}
