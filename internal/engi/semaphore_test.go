package engi_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/engi-dev/engi/internal/engi"
)

func TestKeyedSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := engi.NewKeyedSemaphore[string](2)
		acquire := func(key string) func() {
			t.Helper()
			release, err := s.Acquire(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return release
		}
		first, second := acquire("a"), acquire("a")
		acquire("b")()
		third := false
		go func() {
			acquire("a")()
			third = true
		}()
		synctest.Wait()
		if third {
			t.Fatal("three have two slots")
		}
		left := errors.New("left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(left)
		if _, err := s.Acquire(ctx, "a"); !engi.Is(err, engi.Expired) {
			t.Errorf("%v, want Expired", err)
		}
		first()
		synctest.Wait()
		if !third {
			t.Error("the third waits for a slot that is free")
		}
		second()
		if n := s.Len(); n != 0 {
			t.Errorf("%d keys are kept", n)
		}
	})
}
