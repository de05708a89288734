package client_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

func ExampleClient_BranchApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	x := must(c.BranchApp(ctx, "shop", v1.BranchRequest{Name: "blue"}))
	fmt.Println(x.Name, must(c.AppRevisions(ctx, "blue"))[0].Message)
	// Output: blue Branch from shop at revision 1
}

func ExampleClient_PublishApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	x := must(c.PublishApp(ctx, "shop", v1.PublishRequest{}))
	fmt.Println(x.Published.Revision, x.Published.Files, x.Published.URL != "")
	// Output: 1 1 true
}

func ExampleClient_UnpublishApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.PublishApp(ctx, "shop", v1.PublishRequest{}))
	fmt.Println(must(c.UnpublishApp(ctx, "shop")).Published == nil)
	// Output: true
}

func ExampleClient_LinkApp() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x := must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	l := must(c.LinkApp(ctx, "shop", 10*time.Minute))
	fmt.Println(strings.HasPrefix(l.URL, x.PreviewURL+"?"), l.Private)
	// Output: true false
}

func ExampleClient_LinkPublication() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateApp(ctx, v1.AppRequest{Name: "shop"}))
	must(c.PublishApp(ctx, "shop", v1.PublishRequest{Private: true}))
	l := must(c.LinkPublication(ctx, "shop", 10*time.Minute))
	fmt.Println(time.Until(l.ExpiresAt) > 9*time.Minute)
	// Output: true
}
