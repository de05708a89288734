package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A recorder records which part started and stopped when.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, s)
}

func (r *recorder) part(name string, stop time.Duration, life func(ctx context.Context) error) part {
	return part{name, func(ctx context.Context, ready func()) error {
		r.note(name + " up")
		ready()
		err := life(ctx)
		r.note(name + " down")
		return err
	}, stop}
}

func untilCanceled(ctx context.Context) error { <-ctx.Done(); return nil }

var quietLog = slog.New(slog.DiscardHandler)

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var r recorder
		err := runParts(ctx, quietLog, func() { r.note("ready"); cancel() },
			r.part("a", time.Second, untilCanceled), r.part("b", time.Second, untilCanceled), r.part("c", time.Second, untilCanceled))
		want := []string{"a up", "b up", "c up", "ready", "c down", "b down", "a down"}
		if err != nil || !slices.Equal(r.lines, want) {
			t.Errorf("%v, %v; want %v", r.lines, err, want)
		}
	})
}

func TestFailingPartStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		broken := errors.New("disk on fire")
		err := runParts(t.Context(), quietLog, func() { r.note("ready") },
			r.part("a", time.Second, untilCanceled),
			r.part("b", time.Second, func(ctx context.Context) error { time.Sleep(time.Minute); return broken }),
			r.part("c", time.Second, untilCanceled))
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "b stopped unexpectedly") {
			t.Errorf("error %v, want that of b", err)
		}
		if want := []string{"a up", "b up", "c up", "ready", "b down", "c down", "a down"}; !slices.Equal(r.lines, want) {
			t.Errorf("%v, want %v", r.lines, want)
		}
	})
}

func TestPartThatStopsByItselfIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		err := runParts(t.Context(), quietLog, func() {}, r.part("a", time.Second, func(context.Context) error { return nil }))
		if !errors.Is(err, errNoReason) {
			t.Errorf("error %v", err)
		}
	})
}

func TestPartThatIsNeverReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var r recorder
		err := runParts(ctx, quietLog, func() { r.note("ready") },
			r.part("a", time.Second, untilCanceled),
			part{"b", func(ctx context.Context, ready func()) error { <-ctx.Done(); return nil }, time.Second},
			r.part("c", time.Second, untilCanceled))
		if want := []string{"a up", "a down"}; err != nil || !slices.Equal(r.lines, want) {
			t.Errorf("%v, %v; want %v", r.lines, err, want)
		}
	})
}

func TestPartThatDoesNotStopIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		var r recorder
		began := time.Now()
		err := runParts(ctx, slog.New(slog.NewTextHandler(&log, nil)), cancel,
			r.part("slow", 7*time.Second, func(ctx context.Context) error { time.Sleep(time.Hour); return nil }))
		if err != nil || time.Since(began) != 7*time.Second {
			t.Errorf("left after %v, %v", time.Since(began), err)
		}
		if !strings.Contains(log.String(), "part=slow") {
			t.Errorf("the log does not name it: %s", log.String())
		}
		synctest.Wait()
		time.Sleep(2 * time.Hour)
	})
}
