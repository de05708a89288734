package client_test

import (
	"context"
	"fmt"
	"log"

	v1 "github.com/engi-dev/engi/api/v1"
)

func ExampleClient_Agents() {
	c, stop := connect()
	defer stop()
	for _, a := range must(c.Agents(context.Background())) {
		fmt.Println(a.Name, a.Tools)
	}
	// Output: echo [*]
}

func ExampleClient_ToolServers() {
	c, stop := connect()
	defer stop()
	for _, s := range must(c.ToolServers(context.Background())) {
		fmt.Println(s.Name, s.Kind, s.State, s.Tools)
	}
	// Output: search url ready [search_find]
}

func ExampleClient_Chat() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	a := must(c.Chat(ctx, v1.ChatRequest{Message: "hello"}))
	fmt.Println(a.Response)
	// The conversation goes on.
	b := must(c.Chat(ctx, v1.ChatRequest{Message: "and now?", RunRequest: v1.RunRequest{ConversationID: a.ConversationID}}))
	fmt.Println(b.Response, b.ConversationID == a.ConversationID)
	// Output:
	// hello
	// and now? true
}

func ExampleClient_StartRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "hello"}))
	fmt.Println(must(c.AgentRun(ctx, x.ID)).State)
	// Output: done
}

func ExampleClient_WatchRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "hello"}))
	for e, err := range c.WatchRun(ctx, x.ID, 0) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case "call":
			fmt.Println("uses", e.Call.Name)
		case "stdout":
			fmt.Println("prints", e.Text)
		case "done":
			fmt.Println(e.Run.State)
		}
	}
	// Output:
	// uses execute_code
	// prints hi
	// done
}

func ExampleClient_AgentRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "hello"}))
	x = must(c.AgentRun(ctx, x.ID))
	fmt.Println(x.Text, x.Usage.ModelCalls)
	// Output: hello 2
}

func ExampleClient_Runs() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "hello"}))
	for _, x := range must(c.Runs(ctx, 10)) {
		fmt.Println(x.Agent, x.State)
	}
	// Output: echo done
}

func ExampleClient_RunMessages() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "hello"}))
	for _, m := range must(c.RunMessages(ctx, x.ID)) {
		fmt.Println(m.Role)
	}
	// Output:
	// user
	// assistant
	// tool
	// assistant
}

func ExampleClient_DecideCall() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "wait", Confirm: []string{"*"}}))
	for e := range c.WatchRun(ctx, x.ID, 0) {
		if e.Type == "waiting" {
			fmt.Println(e.Call.Name, e.Call.Arguments)
			if err := c.DecideCall(ctx, x.ID, e.Call.ID, v1.CallDecision{Allow: new(true)}); err != nil {
				log.Fatal(err)
			}
			break
		}
	}
	// Output: execute_code {"language":"bash","code":"echo hi"}
}

func ExampleClient_CancelRun() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.StartRun(ctx, "echo", v1.RunRequest{Input: "wait"}))
	if err := c.CancelRun(ctx, x.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.AgentRun(ctx, x.ID)).State)
	// Output: cancelled
}
