package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/engi-dev/engi/api/v1"
)

func ExampleClient_RunCode() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s, err := c.CreateSession(ctx, v1.SessionRequest{Name: "chat-42"})
	if err != nil {
		log.Fatal(err)
	}
	// The packages of the node's configuration can be imported.
	x, err := c.RunCode(ctx, s.ID, v1.CodeRequest{Code: "throw new TypeError('m')"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Success, x.Error)
	// Output: false TypeError: m (line 2, column 3)
}

func ExampleClient_StreamCode() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "chat-42"}))
	for e, err := range c.StreamCode(ctx, "chat-42", v1.CodeRequest{Code: "hello"}) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case v1.EventStdout:
			fmt.Print(e.Data)
		case v1.EventResult:
			fmt.Printf("\n%s\n", e.Result.Result)
		}
	}
	// Output:
	// hello
	// 5
}

func ExampleClient_CreateSession() {
	c, stop := connect()
	defer stop()
	s, err := c.CreateSession(context.Background(), v1.SessionRequest{
		Name: "chat-42", Memory: 1 << 30, Network: &v1.NetworkPolicy{Allow: []string{"api.example.com"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Name, s.State, s.Network.Mode)
	// Output: chat-42 idle restricted
}

func ExampleClient_Sessions() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	all, err := c.Sessions(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range all {
		fmt.Println(s.Name, s.State)
	}
	// Output: one idle
}

func ExampleClient_Session() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	s, err := c.Session(ctx, "one")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Mode, s.Persistence, s.TTL)
	// Output: lazy session 30m0s
}

func ExampleClient_ReleaseSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	must(c.RunCode(ctx, "one", v1.CodeRequest{Code: "1"}))
	s, err := c.ReleaseSession(ctx, "one") // its volume stays
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State, s.SandboxID == "")
	// Output: idle true
}

func ExampleClient_AttachSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	s, err := c.AttachSession(ctx, "one", "laptop") // boots its sandbox, or resumes it
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State, s.Attached[0].Client)
	// Output: running laptop
}

func ExampleClient_DetachSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	must(c.AttachSession(ctx, "one", "laptop"))
	s, err := c.DetachSession(ctx, "one", "laptop") // what runs goes on
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State, len(s.Attached))
	// Output: running 0
}

func ExampleClient_SuspendSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	must(c.ResumeSession(ctx, "one"))
	s, err := c.SuspendSession(ctx, "one") // in memory
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State)
	// Output: suspended
}

func ExampleClient_HibernateSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	must(c.ResumeSession(ctx, "one"))
	s, err := c.HibernateSession(ctx, "one") // on disk
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State)
	// Output: hibernated
}

func ExampleClient_ResumeSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	s, err := c.ResumeSession(ctx, "one")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State)
	// Output: running
}

func ExampleClient_SaveSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "notebook", Persistence: "workspace"}))
	x, err := c.SaveSession(ctx, "notebook")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Files, x.Bytes)
	// Output: 3 2KiB
}

func ExampleClient_PushSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "fix", Git: &v1.Git{URL: "https://github.com/owner/repository.git", Secret: "github", Push: &v1.GitPush{}}}))
	x, err := c.PushSession(ctx, "fix", v1.GitPush{Author: "Ann <ann@example.com>", Message: "Fix the login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Branch, x.Conflict)
	// Output: engi/fix false
}

func ExampleClient_TerminateSession() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSession(ctx, v1.SessionRequest{Name: "one"}))
	if err := c.TerminateSession(ctx, "one"); err != nil {
		log.Fatal(err)
	}
	s := must(c.Session(ctx, "one"))
	fmt.Println(s.State)
	// Output: terminated
}

func ExampleClient_Dependencies() {
	c, stop := connect()
	defer stop()
	d, err := c.Dependencies(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range d.Packages {
		fmt.Println(p.Package, p.Version, p.SecretEnv, d.State)
	}
	// Output: @acme/sdk 1.2.0 ACME_KEY ready
}
