package clock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestSleep(t *testing.T) {
	if err := Sleep(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(engi.Errorf(engi.Unavailable, "the server stops"))
	if err := Sleep(ctx, time.Hour); !engi.Is(err, engi.Expired) || !strings.Contains(err.Error(), "the server stops") {
		t.Error(err)
	}
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		begin, count := time.Now(), 0
		for at := range Every(ctx, time.Second) {
			if at.Sub(begin) != time.Duration(count)*time.Second {
				t.Errorf("the time with number %d comes after %v", count, at.Sub(begin))
			}
			count++
		}
		if count != 3 || ctx.Err() == nil {
			t.Errorf("%d times in 2.5 s", count)
		}
		for range Every(ctx, time.Second) {
			t.Error("a time after the end")
		}
		for range Later(t.Context(), time.Hour) {
			break
		}
		if time.Since(begin) != 2500*time.Millisecond+time.Hour {
			t.Errorf("the first one comes after %v", time.Since(begin))
		}
	})
}
