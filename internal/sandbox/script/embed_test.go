package script

import (
	"context"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestEmbeddersFunction runs the worked example of a function in Go.
func TestEmbeddersFunction(t *testing.T) {
	stock := map[string]int{"nuts": 12, "bolts": 0}
	r := runner(t, func(o *Options) {
		o.APIs = []API{{
			ScriptAPI: engi.ScriptAPI{Name: "stock.count", Signature: "(article: string) => Promise<number>", Description: "Counts what is in stock of an article."},
			Most:      2,
			Call: func(ctx context.Context, c Call) (any, error) {
				var article string
				if err := c.Into(&article); err != nil {
					return nil, err
				}
				n, ok := stock[article]
				if !ok {
					return nil, engi.Errorf(engi.NotFound, "there is no article %.40q", article)
				}
				return n, nil
			},
		}}
	})
	for code, want := range map[string]string{
		`const [a, b] = await Promise.all(["nuts", "bolts"].map(x => api.stock.count(x))); a + b`: "12",
		`await api.stock.count("rust").catch(e => e.name + ": " + e.message)`:                     `"NotFoundError: there is no article \"rust\""`,
		`await api.stock.count().catch(e => e.message)`:                                           `"there is no article \"\""`,
		`await api.stock.count({}).catch(e => e.name)`:                                            `"TypeError"`,
	} {
		if x := mustRun(t, r, "ann", code); string(x.Value) != want {
			t.Errorf("%s: got %s, %+v, want %s", code, x.Value, x.Error, want)
		}
	}
	// Calls over the limit fail one by one.
	busy := runner(t, func(o *Options) {
		o.APIs = []API{{
			ScriptAPI: engi.ScriptAPI{Name: "wait", Signature: "() => Promise<void>", Description: "Waits."},
			Most:      2,
			Call:      func(ctx context.Context, c Call) (any, error) { <-ctx.Done(); return nil, nil },
		}}
	})
	x := mustRun(t, busy, "ann", `const all = Array.from({length: 5}, () => api.wait().then(() => "done", e => e.name)); await Promise.race(all.slice(2))`)
	if string(x.Value) != `"RangeError"` {
		t.Errorf("got %s, %+v", x.Value, x.Error)
	}
}
