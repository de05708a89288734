package rest

import (
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

func TestRetryAfterIsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2", time.Minute: "60"} {
		if got := retryAfter(v1.Duration(d)); got != want {
			t.Errorf("retryAfter(%v) = %s, want %s", d, got, want)
		}
	}
}
