package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/engi-dev/engi/api/v1"
)

func ExampleClient_Act() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	q := v1.PageActionRequest{Action: "demo-counter", Data: json.RawMessage(`{"from":0}`)}
	seq := must(c.Act(ctx, s.ID, q, "click-1"))
	// The same key is the same action.
	fmt.Println(must(c.Act(ctx, s.ID, q, "click-1")) == seq)
	// Output: true
}

func ExampleClient_Page() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "demo-counter"}, ""))
	fmt.Println(must(c.Page(ctx, s.ID, 0)).HTML)
	// Output: <main><h1 id="count">0</h1><button data-action="add">+</button></main>
}

func ExampleClient_WatchPage() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "demo-counter"}, ""))
	seq := must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "add"}, ""))
	for e, err := range c.WatchPage(ctx, s.ID, seq) {
		if err != nil {
			log.Fatal(err)
		}
		for _, p := range e.Patches {
			if p.Text != nil {
				fmt.Println(p.Selector, *p.Text)
			}
		}
		if e.Type == v1.PageDone {
			break
		}
	}
	// Output: #count 1
}

func ExampleClient_StreamPage() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	seq := must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "demo-counter"}, ""))
	r := must(c.StreamPage(ctx, s.ID, "ai-sdk", seq))
	defer r.Close()
	text := string(must(io.ReadAll(r))) // up to the end of the run
	fmt.Println(strings.Count(text, "data: "), strings.HasSuffix(text, "data: [DONE]\n\n"))
	// Output: 7 true
}

func ExampleClient_CancelPage() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "wait"}, ""))
	fmt.Println(must(c.Page(ctx, s.ID, 0)).Working != "")
	if err := c.CancelPage(ctx, s.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.Page(ctx, s.ID, 0)).Working != "")
	// Output:
	// true
	// false
}

func ExampleClient_RestorePage() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s := must(c.CreateSession(ctx, v1.SessionRequest{}))
	must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "demo-counter"}, ""))
	before := must(c.Page(ctx, s.ID, 0))
	must(c.Act(ctx, s.ID, v1.PageActionRequest{Action: "add"}, ""))
	fmt.Println(must(c.RestorePage(ctx, s.ID, before.Seq)).HTML == before.HTML)
	// Output: true
}
