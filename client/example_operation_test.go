package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

var mine = v1.TemplateRequest{Name: "mine", Definition: "base: host\n"}

func ExampleClient_StartBuild() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	op := must(c.StartBuild(ctx, mine))
	fmt.Println(op.Type, op.Subject)
	fmt.Println(must(c.WaitOperation(ctx, op.ID)).Result)
	// Output:
	// template.build mine
	// /v1/templates/mine
}

func ExampleClient_Operations() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.WaitOperation(ctx, must(c.StartBuild(ctx, mine)).ID))
	for _, op := range must(c.Operations(ctx, client.OperationFilter{State: v1.OperationDone, Limit: 10})) {
		fmt.Println(op.Type, op.Subject, op.State)
	}
	// Output: template.build mine done
}

func ExampleClient_Operation() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	op := must(c.Operation(ctx, must(c.StartBuild(ctx, v1.TemplateRequest{Name: "mine", Definition: "slow"})).ID))
	fmt.Println(op.State, op.Over())
	// Output: running false
}

func ExampleClient_WaitOperation() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	op := must(c.WaitOperation(ctx, must(c.StartBuild(ctx, v1.TemplateRequest{Name: "mine", Definition: "bad"})).ID))
	fmt.Println(op.State, op.Error.Kind)
	// Output: failed invalid
}

func ExampleClient_WatchOperation() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	for e, err := range c.WatchOperation(ctx, must(c.StartBuild(ctx, mine)).ID, 0) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case "progress":
			fmt.Printf("%d/%d %s\n", e.Step, e.Steps, e.Name)
		case v1.EventResult:
			fmt.Println(e.Operation.State)
		}
	}
	// Output:
	// 1/3 fetch
	// 2/3 unpack
	// 3/3 seal
	// done
}

func ExampleClient_CancelOperation() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	op := must(c.StartBuild(ctx, v1.TemplateRequest{Name: "mine", Definition: "slow"}))
	if err := c.CancelOperation(ctx, op.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(must(c.Operation(ctx, op.ID)).State)
	// Output: cancelled
}
