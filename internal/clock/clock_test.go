package clock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestSleep(t *testing.T) {
	if err := Sleep(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(engi.Errorf(engi.Unavailable, "the server stops"))
	if err := Sleep(ctx, time.Hour); err == nil || engi.KindOf(err) != engi.Expired || !strings.Contains(err.Error(), "the server stops") {
		t.Error(err)
	}
}
