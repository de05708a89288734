package client_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

const written = `Here is the page:
<file path="src/App.jsx">
export default function App() { return <h1>Shop</h1> }
</file>`

// apply applies a text to an app and waits for the end of that.
func apply(ctx context.Context, c *client.Client, app, text string) {
	seq := must(c.ApplyToApp(ctx, app, v1.ApplyRequest{Text: text}, ""))
	for e, err := range c.WatchApp(ctx, app, seq) {
		if err != nil {
			log.Fatal(err)
		}
		if e.Type == v1.AppDone || e.Type == v1.AppError {
			return
		}
	}
}

func ExampleClient_EditApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	// The model of this example answers with what it is told.
	seq := must(c.EditApp(ctx, "shop", v1.EditRequest{Prompt: written, MaxRounds: 5}, ""))
	for e, err := range c.WatchApp(ctx, "shop", seq) {
		if err != nil {
			log.Fatal(err)
		}
		if e.Type == v1.AppEdited {
			fmt.Println(e.Revision, e.Rounds, e.Error == nil)
			break
		}
	}
	// Output: 2 1 true
}

func ExampleClient_CreateApp() {
	c, stop := connect()
	defer stop()
	x := must(c.CreateApp(context.Background(), v1.AppRequest{Name: "shop"}))
	fmt.Println(x.Name, x.Template, x.State, x.PreviewURL != "")
	// Output: shop vite-react ready true
}

func ExampleClient_Apps() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.CreateApp(ctx, v1.AppRequest{Name: "api", Template: "node-api"}))
	for _, x := range must(c.Apps(ctx)) {
		fmt.Println(x.Name)
	}
	// Output:
	// api
	// shop
}

func ExampleClient_App() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	fmt.Println(must(c.App(ctx, "shop")).Revision)
	// Output: 1
}

func ExampleClient_RemoveApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	if err := c.RemoveApp(ctx, "shop"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.Apps(ctx))))
	// Output: 0
}

func ExampleClient_OpenApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.StopApp(ctx, "shop"))
	fmt.Println(must(c.OpenApp(ctx, "shop")).State)
	// Output: ready
}

func ExampleClient_StopApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	fmt.Println(must(c.StopApp(ctx, "shop")).State)
	// Output: stopped
}

func ExampleClient_ApplyToApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	seq := must(c.ApplyToApp(ctx, "shop", v1.ApplyRequest{Text: written}, "answer-1"))
	// The same key is the same apply.
	fmt.Println(must(c.ApplyToApp(ctx, "shop", v1.ApplyRequest{Text: written}, "answer-1")) == seq)
	// Output: true
}

func ExampleClient_WatchApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	seq := must(c.ApplyToApp(ctx, "shop", v1.ApplyRequest{Text: written}, ""))
	for e, err := range c.WatchApp(ctx, "shop", seq) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case v1.AppWritten:
			fmt.Println(e.Op, e.Path)
		case v1.AppDone:
			fmt.Println("revision", e.Revision)
			return
		case v1.AppError:
			log.Fatal(e.Error.Detail)
		}
	}
	// Output:
	// write src/App.jsx
	// revision 2
}

func ExampleClient_CancelApply() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.ApplyToApp(ctx, "shop", v1.ApplyRequest{Text: "wait"}, ""))
	if err := c.CancelApply(ctx, "shop"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.App(ctx, "shop")).Applying)
	// Output: 0
}

func ExampleClient_RollbackApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	apply(ctx, c, "shop", written)
	x := must(c.RollbackApp(ctx, "shop", 0))
	fmt.Println(x.Number, "is", x.Of, "again")
	// Output: 3 is 1 again
}

func ExampleClient_SnapshotApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	x := must(c.SnapshotApp(ctx, "shop"))
	fmt.Println(x.Number, x.Snapshot.Size)
	// Output: 1 100MiB
}

func ExampleClient_RestoreApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.SnapshotApp(ctx, "shop"))
	apply(ctx, c, "shop", written)
	x := must(c.RestoreApp(ctx, "shop", 0)) // its databases, too
	fmt.Println(x.Number, "is", x.Of, "again")
	// Output: 3 is 1 again
}

func ExampleClient_AppRevisions() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	apply(ctx, c, "shop", written)
	for _, x := range must(c.AppRevisions(ctx, "shop")) {
		fmt.Println(x.Number, x.Message)
	}
	// Output:
	// 2 Changed src/App.jsx
	// 1 Created from vite-react
}

func ExampleClient_AppDiff() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	apply(ctx, c, "shop", written)
	fmt.Print(must(c.AppDiff(ctx, "shop", 1, 2)))
	// Output:
	// --- a/src/App.jsx
	// +++ b/src/App.jsx
	// -export default function App() { return <h1>New</h1> }
	// +export default function App() { return <h1>Shop</h1> }
}

func ExampleClient_AppFiles() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	for _, f := range must(c.AppFiles(ctx, "shop", client.AppFileFilter{Extensions: []string{".jsx", ".html"}, Content: true})).Items {
		fmt.Println(f.Path, f.Size, len(*f.Content))
	}
	// Output:
	// index.html 22B 22
	// src/App.jsx 54B 54
}

func ExampleClient_AppFile() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	f := must(c.AppFile(ctx, "shop", "src/App.jsx", 0))
	defer f.Close()
	fmt.Print(string(must(io.ReadAll(f))))
	// Output: export default function App() { return <h1>New</h1> }
}

func ExampleClient_AppManifest() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	m := must(c.AppManifest(ctx, "shop", 0))
	fmt.Println("begins with", m.Entry)
	for _, x := range m.Components {
		fmt.Printf("%s at %s:%d\n", x.Name, x.File, x.Line)
	}
	// Output:
	// begins with src/App.jsx
	// App at src/App.jsx:1
}

func ExampleClient_AppZip() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	z := must(c.AppZip(ctx, "shop", 0))
	defer z.Close()
	fmt.Printf("%q\n", must(io.ReadAll(z))[:2])
	// Output: "PK"
}

func ExampleClient_AppLogs() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	fmt.Print(must(c.AppLogs(ctx, "shop", 0)).Text)
	// Output: VITE ready in 100 ms
}

func ExampleClient_AppStatus() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	x := must(c.AppStatus(ctx, "shop"))
	fmt.Println(x.Healthy, x.Latency, x.Files)
	// Output: true 2ms 3
}
