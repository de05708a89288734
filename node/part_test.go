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

// A diary records who did what.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, s)
}

func (d *diary) part(name string, stop time.Duration, life func(ctx context.Context) error) part {
	return part{name, func(ctx context.Context, ready func()) error {
		d.note(name + " up")
		ready()
		err := life(ctx)
		d.note(name + " down")
		return err
	}, stop}
}

func untilAsked(ctx context.Context) error { <-ctx.Done(); return nil }

var quietLog = slog.New(slog.DiscardHandler)

func TestPartsStartInOrderAndLeaveInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var d diary
		err := runParts(ctx, quietLog, func() { d.note("ready"); cancel() },
			d.part("a", time.Second, untilAsked), d.part("b", time.Second, untilAsked), d.part("c", time.Second, untilAsked))
		want := []string{"a up", "b up", "c up", "ready", "c down", "b down", "a down"}
		if err != nil || !slices.Equal(d.lines, want) {
			t.Errorf("%v, %v; want %v", d.lines, err, want)
		}
	})
}

func TestFailingPartStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		broken := errors.New("disk on fire")
		err := runParts(t.Context(), quietLog, func() { d.note("ready") },
			d.part("a", time.Second, untilAsked),
			d.part("b", time.Second, func(ctx context.Context) error { time.Sleep(time.Minute); return broken }),
			d.part("c", time.Second, untilAsked))
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "b ended early") {
			t.Errorf("error %v, want that of b", err)
		}
		if want := []string{"a up", "b up", "c up", "ready", "b down", "c down", "a down"}; !slices.Equal(d.lines, want) {
			t.Errorf("%v, want %v", d.lines, want)
		}
	})
}

func TestPartThatLeavesWithoutReasonIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		err := runParts(t.Context(), quietLog, func() {}, d.part("a", time.Second, func(context.Context) error { return nil }))
		if !errors.Is(err, errNoReason) {
			t.Errorf("error %v", err)
		}
	})
}

func TestPartThatIsNeverReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var d diary
		err := runParts(ctx, quietLog, func() { d.note("ready") },
			d.part("a", time.Second, untilAsked),
			part{"b", func(ctx context.Context, ready func()) error { <-ctx.Done(); return nil }, time.Second},
			d.part("c", time.Second, untilAsked))
		if want := []string{"a up", "a down"}; err != nil || !slices.Equal(d.lines, want) {
			t.Errorf("%v, %v; want %v", d.lines, err, want)
		}
	})
}

func TestPartThatOverstaysIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		var d diary
		began := time.Now()
		err := runParts(ctx, slog.New(slog.NewTextHandler(&log, nil)), cancel,
			d.part("slow", 7*time.Second, func(ctx context.Context) error { time.Sleep(time.Hour); return nil }))
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
