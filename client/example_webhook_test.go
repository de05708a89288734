package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/engi-dev/engi/api/v1"
)

// hook is a request for a webhook that gets nothing by itself.
var hook = v1.WebhookRequest{URL: "http://127.0.0.1:1/hooks/engi", Name: "deploys", Types: []string{"deploy/*"}}

func ExampleClient_CreateWebhook() {
	c, stop := connect()
	defer stop()
	w := must(c.CreateWebhook(context.Background(), hook))
	fmt.Println(w.Name, w.Types, w.Enabled, len(w.Secret) > 30)
	// Output: deploys [deploy/*] true true
}

func ExampleClient_Webhooks() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateWebhook(ctx, hook))
	for _, w := range must(c.Webhooks(ctx)) {
		fmt.Println(w.Name, w.URL)
	}
	// Output: deploys http://127.0.0.1:1/hooks/engi
}

func ExampleClient_Webhook() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.Webhook(ctx, must(c.CreateWebhook(ctx, hook)).ID))
	fmt.Printf("%s %q\n", w.Name, w.Secret)
	// Output: deploys ""
}

func ExampleClient_UpdateWebhook() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	off := false
	w := must(c.UpdateWebhook(ctx, must(c.CreateWebhook(ctx, hook)).ID, v1.WebhookUpdate{Enabled: &off}))
	fmt.Println(w.Name, w.Enabled)
	// Output: deploys false
}

func ExampleClient_RemoveWebhook() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	if err := c.RemoveWebhook(ctx, must(c.CreateWebhook(ctx, hook)).ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.Webhooks(ctx))))
	// Output: 0
}

func ExampleClient_Redeliver() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.CreateWebhook(ctx, hook))
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "orders/paid"}, ""))
	d := must(c.Redeliver(ctx, w.ID, e.ID))
	fmt.Println(d.EventID == e.ID, d.WebhookID == w.ID)
	// Output: true true
}

func ExampleClient_WebhookDeliveries() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	w := must(c.CreateWebhook(ctx, hook))
	e := must(c.SendEvent(ctx, v1.EventRequest{Type: "orders/paid"}, ""))
	must(c.Redeliver(ctx, w.ID, e.ID))
	for _, d := range must(c.WebhookDeliveries(ctx, w.ID, 10)) {
		fmt.Println(d.EventID == e.ID)
	}
	// Output: true
}
