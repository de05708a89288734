package transfer

import "testing"

// SetMaxWork changes the limit of unpacked bytes until the test ends.
func SetMaxWork(t *testing.T, n int64) {
	old := maxWork
	maxWork = n
	t.Cleanup(func() { maxWork = old })
}
