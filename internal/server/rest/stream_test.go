package rest

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func FuzzLastEvent(f *testing.F) {
	for _, s := range []string{"", "0", "17", "-1", "9223372036854775807", "9223372036854775808", "1e3", " 1", "+1", "0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		n, err := lastEvent(id, 5)
		switch {
		case err != nil && !engi.Is(err, engi.Invalid):
			t.Errorf("%q: %v", id, err)
		case err == nil && (n < 0 || id == "" && n != 5):
			t.Errorf("lastEvent(%q) = %d", id, n)
		}
	})
}
