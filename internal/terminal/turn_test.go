package terminal

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// slow is a terminal whose history takes a minute.
type slow struct{ engi.TerminalProcess }

func (slow) History(ctx context.Context) (engi.TerminalHistory, error) {
	select {
	case <-time.After(time.Minute):
	case <-ctx.Done():
	}
	return engi.TerminalHistory{}, engi.Errorf(engi.Expired, "it took too long")
}

// TestOwnersWaitForThemselves requests many screens of one owner, and one screen of
// another owner.
func TestOwnersWaitForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m, began := New(Options{}), time.Now()
		for range 10 {
			go func() {
				if _, err := m.emulate(ctx, "ann", slow{}); !engi.Is(err, engi.Expired) {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if _, err := m.emulate(ctx, "bob", slow{}); !engi.Is(err, engi.Expired) || time.Since(began) != time.Minute {
			t.Errorf("another owner waited %s: %v", time.Since(began), err)
		}
		cancel()
		synctest.Wait()
		if n := m.screens.Len(); n != 0 || len(m.emulators) != 0 {
			t.Errorf("%d owners are there still", n)
		}
	})
}
