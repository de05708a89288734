package script_test

import (
	"context"
	"fmt"
	"log"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script"
)

// stock is the data of the example.
var stock = map[string]int{"nuts": 12, "bolts": 0}

// inStock is a host function that scripts call as api.stock.count. Its declaration
// and schema for callers are defined here, too.
var inStock = script.API{
	ScriptAPI: engi.ScriptAPI{
		Name:        "stock.count",
		Signature:   "(article: string) => Promise<number>",
		Description: "Counts what is in stock of an article.",
		Schema:      []byte(`{"type": "array", "prefixItems": [{"type": "string"}], "minItems": 1}`),
	},
	Most: 8, // maximum number of concurrent calls of all scripts
	Call: func(ctx context.Context, c script.Call) (any, error) {
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
}

// A program that embeds the script tier adds its own functions.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runner, err := script.New(script.Options{
		Helper: "/usr/local/lib/engi/engi-js", // path of the program built from cmd/engi-js
		Dir:    "/var/lib/shop/scripts",
		APIs:   append(script.KV(), inStock),
	})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- runner.Run(ctx, func() {}) }()

	result, err := runner.Scripts().Run(ctx, engi.ScriptSpec{
		Owner: "ann",
		Code:  `const [nuts, bolts] = await Promise.all(["nuts", "bolts"].map(a => api.stock.count(a))); nuts + bolts`,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(result.Value))
	cancel()
	<-ended
}

func ExampleDeclarations() {
	fmt.Print(script.Declarations([]engi.ScriptAPI{inStock.ScriptAPI}))
	// Output:
	// declare const api: {
	//   stock: {
	//     /** Counts what is in stock of an article. */
	//     count: (article: string) => Promise<number>;
	//   };
	// };
}
