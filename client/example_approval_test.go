package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// held is connect with a sandbox that waits for a decision.
func held() (c *client.Client, stop func()) {
	w := apitest.New(nil)
	w.Hold("ann", "/v1/payments")
	srv := httptest.NewServer(w.Handler)
	return client.New(srv.URL, w.Admin), func() {
		w.Close()
		srv.CloseClientConnections()
		srv.Close()
	}
}

func ExampleClient_Approvals() {
	c, stop := held()
	defer stop()
	for _, a := range must(c.Approvals(context.Background(), client.ApprovalFilter{State: v1.ApprovalPending})) {
		fmt.Println(a.Method, a.Host, a.Path, a.Secrets, a.Body)
	}
	// Output: POST api.example.com /v1/payments [bank] {"amount": 5}
}

func ExampleClient_Approval() {
	c, stop := held()
	defer stop()
	ctx := context.Background()
	a := must(c.Approvals(ctx, client.ApprovalFilter{}))[0]
	fmt.Println(must(c.Approval(ctx, a.ID)).State)
	// Output: pending
}

func ExampleClient_ApprovalEvents() {
	c, stop := held()
	defer stop()
	for _, e := range must(c.ApprovalEvents(context.Background(), 10)) {
		fmt.Println(e.Type)
	}
	// Output: approval.requested
}

func ExampleClient_ApprovalKey() {
	c, stop := held()
	defer stop()
	k := must(c.ApprovalKey(context.Background()))
	fmt.Println(k.Algorithm, len(k.PublicKey))
	// Output: ed25519 32
}

func ExampleClient_DecideApproval() {
	c, stop := held()
	defer stop()
	ctx := context.Background()
	a := must(c.Approvals(ctx, client.ApprovalFilter{State: v1.ApprovalPending}))[0]
	yes := true
	a = must(c.DecideApproval(ctx, a.ID, v1.ApprovalDecision{Allow: &yes, Reason: "agreed"}))
	fmt.Println(a.State, a.Reason)
	// Output: allowed agreed
}

func ExampleClient_FollowApprovals() {
	c, stop := held()
	defer stop()
	for e, err := range c.FollowApprovals(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Type)
		break
	}
	// Output: approval.requested
}

func ExampleClient_ForgetApproval() {
	c, stop := held()
	defer stop()
	ctx := context.Background()
	a := must(c.Approvals(ctx, client.ApprovalFilter{State: v1.ApprovalPending}))[0]
	no := false
	must(c.DecideApproval(ctx, a.ID, v1.ApprovalDecision{Allow: &no, Remember: &v1.ApprovalRemember{For: v1.Duration(3600e9), WholeRule: true}}))
	if err := c.ForgetApproval(ctx, a.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.Approvals(ctx, client.ApprovalFilter{Remembered: true}))))
	// Output: 0
}

func ExampleVerifyApproval() {
	c, stop := held()
	defer stop()
	ctx := context.Background()
	a := must(c.Approvals(ctx, client.ApprovalFilter{State: v1.ApprovalPending}))[0]
	yes := true
	a = must(c.DecideApproval(ctx, a.ID, v1.ApprovalDecision{Allow: &yes}))
	key := must(c.ApprovalKey(ctx)).PublicKey // keep it elsewhere
	r := must(client.VerifyApproval(a, key))
	fmt.Println(r.Decision, r.Method, r.Host)
	a.Host = "evil.example"
	_, err := client.VerifyApproval(a, key)
	fmt.Println(err)
	// Output:
	// allowed POST api.example.com
	// the approval differs from its record
}
