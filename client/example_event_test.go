package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

func ExampleClient_SendEvent() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	q := v1.EventRequest{Type: "engi/debug/echo", Data: json.RawMessage(`{"hello":"world"}`)}
	e := must(c.SendEvent(ctx, q, "order-42"))
	for _, id := range e.RunIDs {
		fmt.Println(string(must(c.WaitFunctionRun(ctx, id)).Output))
	}
	// The same key is the same event.
	fmt.Println(must(c.SendEvent(ctx, q, "order-42")).ID == e.ID)
	// Output:
	// {"hello":"world"}
	// true
}

func ExampleClient_Events() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.SendEvent(ctx, v1.EventRequest{Type: "a/b"}, ""))
	must(c.SendEvent(ctx, v1.EventRequest{Type: "c/d"}, ""))
	for _, e := range must(c.Events(ctx, client.EventFilter{Types: []string{"a/b"}, Limit: 10})) {
		fmt.Println(e.Type, string(e.Data))
	}
	// Output: a/b {}
}

func ExampleClient_FollowEvents() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	first := must(c.SendEvent(ctx, v1.EventRequest{Type: "orders/paid", Data: json.RawMessage(`{"n":1}`)}, ""))
	must(c.SendEvent(ctx, v1.EventRequest{Type: "orders/shipped"}, ""))
	must(c.SendEvent(ctx, v1.EventRequest{Type: "orders/paid", Data: json.RawMessage(`{"n":2}`)}, ""))
	for e, err := range c.FollowEvents(ctx, first.Seq-1, client.EventFilter{Types: []string{"orders/paid"}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(e.Type, string(e.Data))
		if e.ID != first.ID {
			return
		}
	}
	// Output:
	// orders/paid {"n":1}
	// orders/paid {"n":2}
}

func ExampleClient_Event() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/echo"}, ""))
	fmt.Println(len(must(c.Event(ctx, e.ID)).RunIDs))
	// Output: 1
}

func ExampleClient_ReplayEvent() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/echo", Data: json.RawMessage(`{"n":1}`)}, ""))
	again := must(c.ReplayEvent(ctx, e.ID, "echo"))
	fmt.Println(again.ReplayOf == e.ID, string(again.Data))
	// Output: true {"n":1}
}

func ExampleClient_Functions() {
	c, stop := connect()
	defer stop()
	for _, f := range must(c.Functions(context.Background())) {
		fmt.Println(f.Name, f.Event)
	}
	// Output:
	// echo engi/debug/echo
	// fail engi/debug/fail
	// wait engi/debug/wait
}

func ExampleClient_FunctionRuns() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/echo"}, ""))
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/fail"}, ""))
	must(c.WaitFunctionRun(ctx, e.RunIDs[0]))
	for _, x := range must(c.FunctionRuns(ctx, client.FunctionFilter{State: v1.FunctionFailed})) {
		fmt.Println(x.Function, x.Error.Detail)
	}
	// Output: fail there is no sandbox
}

func ExampleClient_FunctionRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/echo"}, ""))
	must(c.WaitFunctionRun(ctx, e.RunIDs[0]))
	x := must(c.FunctionRun(ctx, e.RunIDs[0]))
	for _, step := range x.Steps {
		fmt.Println(step.Name, step.Attempts, x.State)
	}
	// Output: echo 1 done
}

func ExampleClient_WaitFunctionRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/fail"}, ""))
	x := must(c.WaitFunctionRun(ctx, e.RunIDs[0]))
	fmt.Println(x.State, x.Error.Kind)
	// Output: failed not_found
}

func ExampleClient_CancelFunctionRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "engi/debug/wait"}, ""))
	if err := c.CancelFunctionRun(ctx, e.RunIDs[0]); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.WaitFunctionRun(ctx, e.RunIDs[0])).State)
	// Output: cancelled
}
