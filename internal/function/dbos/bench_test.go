package dbos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/dbos"
	"github.com/engi-dev/engi/internal/function/functiontest"
)

// BenchmarkTwoSteps measures the time from Send to the end of a run of two empty
// steps: one after the other, and many at once.
func BenchmarkTwoSteps(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			file := b.TempDir() + "/functions.db"
			ended := sync.Map{} // run to chan struct{}
			ch := func(id engi.FunctionRunID) chan struct{} {
				c, _ := ended.LoadOrStore(id, make(chan struct{}))
				return c.(chan struct{})
			}
			fix := functiontest.Open(b, func() function.Engine {
				e, err := dbos.New(dbos.Options{File: file})
				if err != nil {
					b.Fatal(err)
				}
				return e
			}, functiontest.On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
				for _, name := range []string{"a", "b"} {
					if _, err := function.Step(ctx, r, name, func(context.Context) (int, error) { return 1, nil }); err != nil {
						return nil, err
					}
				}
				defer close(ch(r.ID))
				return nil, nil
			}))
			var wg sync.WaitGroup
			work := make(chan struct{})
			for range clients {
				wg.Go(func() {
					for range work {
						_, runs, err := fix.Runner.Send(b.Context(), engi.EventSpec{Owner: "anna", Type: "f", Data: json.RawMessage(`{}`)})
						if err != nil {
							b.Error(err)
							return
						}
						<-ch(runs[0])
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}
