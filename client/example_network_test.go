package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"net/netip"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// busySandbox returns a client and a sandbox whose programs have tried to reach
// two hosts.
func busySandbox() (*client.Client, string, func()) {
	w := apitest.New(nil)
	srv := httptest.NewServer(w.Handler)
	c := client.New(srv.URL, w.Admin)
	ctx := context.Background()
	b, err := c.CreateSandbox(ctx, v1.SandboxRequest{})
	if err == nil {
		err = w.Networks.Add(ctx, engi.SandboxID(b.ID),
			engi.NetworkRecord{Kind: engi.NetworkLookup, Host: "registry.example.com", Allowed: true, Rule: "registry.example.com"},
			engi.NetworkRecord{Kind: engi.NetworkConnect, Protocol: "tcp", Address: netip.MustParseAddrPort("169.254.169.254:80"), Reason: "it is a metadata address"})
	}
	if err != nil {
		log.Fatal(err)
	}
	return c, b.ID, func() {
		w.Close()
		srv.CloseClientConnections()
		srv.Close()
	}
}

func ExampleClient_SetNetwork() {
	c, box, stop := sandbox()
	defer stop()
	p, err := c.SetNetwork(context.Background(), box, v1.NetworkPolicy{
		Mode:  v1.NetworkRestricted,
		Allow: []string{"registry.example.com", "*.example.com:443"},
		// The value of the secret never enters the sandbox.
		Grants: []v1.Grant{{Secret: "github", Hosts: []string{"api.github.com"}, As: "bearer"}},
		// Nothing else passes to that host.
		Requests: []v1.RequestRule{{Host: "api.github.com", Methods: []string{"GET"}, Path: "/repos/**"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Mode, p.Allow, p.Grants[0].Hosts, p.Requests[0].Path)
	// Output: restricted [registry.example.com *.example.com:443] [api.github.com] /repos/**
}

func ExampleClient_Network() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.SetNetwork(ctx, box, v1.NetworkPolicy{Mode: v1.NetworkOpen, Deny: []string{"203.0.113.0/24"}}))
	p, err := c.Network(ctx, box)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Mode, p.Deny)
	// Output: open [203.0.113.0/24]
}

func ExampleClient_NetworkLog() {
	c, box, stop := busySandbox()
	defer stop()
	for e, err := range c.NetworkLog(context.Background(), box, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Seq, e.Type, e.Allowed, e.Host+e.Address)
	}
	// Output:
	// 1 lookup true registry.example.com
	// 2 connect false 169.254.169.254:80
}

func ExampleClient_WatchNetwork() {
	c, box, stop := busySandbox()
	defer stop()
	ctx := context.Background()
	check(c.StopSandbox(ctx, box)) // else the loop waits for more
	for e, err := range c.WatchNetwork(ctx, box, 1) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Seq, e.Type, e.Allowed)
	}
	// Output: 2 connect false
}
