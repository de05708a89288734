package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// connect returns a client of a small world in this process, in whose
// language the programs of these examples are written. With a real server it
// is client.New("http://127.0.0.1:7777", key).
func connect() (c *client.Client, stop func()) {
	w := apitest.New(nil)
	var asked sync.WaitGroup
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		defer asked.Done()
		w.Handler.ServeHTTP(rw, r)
	}))
	return client.New(srv.URL, w.Admin), func() {
		w.Close()
		srv.CloseClientConnections()
		srv.Close()
		asked.Wait() // Close does not wait for WebSockets
	}
}

func ExampleClient_Run() {
	c, stop := connect()
	defer stop()
	x, err := c.Run(context.Background(), v1.ExecutionRequest{
		Language: "python",
		Code:     "print(6*7)",
		Timeout:  v1.Duration(30 * time.Second),
		Memory:   512 << 20,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(x.Result.Stdout)
	fmt.Println(x.Result.ExitCode, x.Result.Cause)
	// Output:
	// 42
	// 0 exited
}

func ExampleClient_Stream() {
	c, stop := connect()
	defer stop()
	for e, err := range c.Stream(context.Background(), v1.ExecutionRequest{Language: "bash", Code: "echo one; echo two >&2; exit 3"}) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case v1.EventStdout, v1.EventStderr:
			fmt.Printf("%s: %s", e.Type, e.Data)
		case v1.EventResult:
			fmt.Println("exit code", e.Execution.Result.ExitCode)
		}
	}
	// Output:
	// stdout: one
	// stderr: two
	// exit code 3
}

func ExampleClient_Start() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 10ms; echo done"})
	if err != nil {
		log.Fatal(err)
	}
	// Do something else, and then:
	x, err = c.Wait(ctx, x.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(x.Result.Stdout)
	// Output: done
}

func ExampleClient_Wait() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 1m", Timeout: v1.Duration(10 * time.Millisecond)})
	if err != nil {
		log.Fatal(err)
	}
	if x, err = c.Wait(ctx, x.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Result.Cause)
	fmt.Println(x.Result.Remedy)
	// Output:
	// timeout
	// the program ran longer than its timeout: raise 'timeout' or make it do less
}

func ExampleClient_Watch() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "echo one; echo two"})
	if err != nil {
		log.Fatal(err)
	}
	for e, err := range c.Watch(ctx, x.ID, 4) { // 4 bytes were seen already
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Type, e.Data)
	}
	// Output:
	// stdout two
	//
	// result
}

func ExampleClient_Execution() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Run(ctx, v1.ExecutionRequest{Language: "bash", Code: "echo hi"})
	if err != nil {
		log.Fatal(err)
	}
	x, err = c.Execution(ctx, x.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.State, x.Language, x.Template)
	// Output: done bash base
}

func ExampleClient_Executions() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	for _, code := range []string{"exit 0", "exit 1", "exit 2"} {
		if _, err := c.Run(ctx, v1.ExecutionRequest{Language: "bash", Code: code}); err != nil {
			log.Fatal(err)
		}
	}
	for x, err := range c.Executions(ctx, v1.Done) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(x.State, *x.ExitCode)
	}
	// Output:
	// done 2
	// done 1
	// done 0
}

func ExampleClient_Cancel() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 1m"})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Cancel(ctx, x.ID); err != nil {
		log.Fatal(err)
	}
	x, err = c.Wait(ctx, x.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Result.Cause)
	// Output: cancelled
}

func ExampleClient_Artifact() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Run(ctx, v1.ExecutionRequest{Language: "bash", Code: "save report.txt all is well"})
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range x.Result.Artifacts {
		f, err := c.Artifact(ctx, x.ID, a.Path)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, %s: ", a.Path, a.Size)
		if _, err := io.Copy(os.Stdout, f); err != nil {
			log.Fatal(err)
		}
		f.Close()
	}
	// Output: report.txt, 11B: all is well
}

func ExampleClient_Sandboxes() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	if _, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 1m"}); err != nil {
		log.Fatal(err)
	}
	all, err := c.Sandboxes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range all {
		fmt.Println(s.State, s.Template, s.Size.Memory)
	}
	// Output: running base 512MiB
}

func ExampleClient_Sandbox() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 1m"})
	if err != nil {
		log.Fatal(err)
	}
	s, err := c.Sandbox(ctx, x.SandboxID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.State, s.ExecutionID == x.ID)
	// Output: running true
}

func ExampleClient_StopSandbox() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	x, err := c.Start(ctx, v1.ExecutionRequest{Language: "bash", Code: "sleep 1m"})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.StopSandbox(ctx, x.SandboxID); err != nil {
		log.Fatal(err)
	}
	_, err = c.Sandbox(ctx, x.SandboxID)
	fmt.Println(client.IsKind(err, v1.NotFound))
	// Output: true
}

func ExampleClient_Templates() {
	c, stop := connect()
	defer stop()
	all, err := c.Templates(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range all {
		fmt.Println(t.Name, t.Built)
	}
	// Output:
	// base true
	// host true
	// unbuilt false
}

func ExampleClient_Template() {
	c, stop := connect()
	defer stop()
	t, err := c.Template(context.Background(), "base")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.Shell, t.Languages["python"].Path)
	// Output: /bin/bash /usr/bin/python3
}

func ExampleClient_BuildTemplate() {
	c, stop := connect()
	defer stop()
	for e, err := range c.BuildTemplate(context.Background(), v1.TemplateRequest{Name: "mine", Definition: "base: host\n"}) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case "progress":
			fmt.Printf("%d/%d %s\n", e.Step, e.Steps, e.Name)
		case v1.EventResult:
			fmt.Println("built", e.Template.Name)
		}
	}
	// Output:
	// 1/3 fetch
	// 2/3 unpack
	// 3/3 seal
	// built mine
}

func ExampleClient_RemoveTemplate() {
	c, stop := connect()
	defer stop()
	err := c.RemoveTemplate(context.Background(), "base")
	if e, ok := errors.AsType[*client.Error](err); ok {
		fmt.Println(e.Kind, e)
	}
	// Output: conflict template base is in use
}

func ExampleClient_PruneTemplates() {
	c, stop := connect()
	defer stop()
	freed, err := c.PruneTemplates(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("freed", freed)
	// Output: freed 1MiB
}

func ExampleClient_Pools() {
	c, stop := connect()
	defer stop()
	all, err := c.Pools(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range all {
		fmt.Println(p.Template, p.Language, p.Ready, "of", p.Target)
	}
	// Output: base python 3 of 4
}

func ExampleClient_Node() {
	c, stop := connect()
	defer stop()
	n, err := c.Node(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n.API, n.Tier, n.Languages)
	// Output: v1 memory [python javascript typescript go bash]
}

func ExampleClient_Examine() {
	c, stop := connect()
	defer stop()
	checks, err := c.Examine(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, x := range checks {
		if !x.OK {
			fmt.Printf("%s: %s (%s)\n", x.Name, x.Detail, x.Fix)
		}
	}
	// Output: memory limits: this fake has none (use a real machine)
}

func ExampleClient_Ready() {
	c, stop := connect()
	defer stop()
	r, err := c.Ready(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Ready)
	// Output: true
}

func ExampleClient_CreateKey() {
	c, stop := connect()
	defer stop()
	k, err := c.CreateKey(context.Background(), v1.KeyRequest{Name: "ci", Owner: "team-a", ExpiresIn: v1.Duration(720 * time.Hour)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(k.Owner, k.ExpiresAt.Sub(k.CreatedAt).Round(time.Hour), len(k.Secret))
	// Output: team-a 720h0m0s 57
}

func ExampleClient_Keys() {
	c, stop := connect()
	defer stop()
	all, err := c.Keys(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, k := range all {
		fmt.Printf("%q admin=%t\n", k.Owner, k.Admin)
	}
	// Output:
	// "bob" admin=false
	// "ann" admin=false
	// "" admin=true
}

func ExampleClient_DashboardLink() {
	c, stop := connect()
	defer stop()
	l, err := c.DashboardLink(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	path, code, _ := strings.Cut(l.Path, "?code=")
	fmt.Println(path, len(code), l.ExpiresAt.After(time.Now()))
	// Output: /dashboard/sign-in 52 true
}

func ExampleClient_RevokeKey() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	k, err := c.CreateKey(ctx, v1.KeyRequest{Name: "lost"})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.RevokeKey(ctx, k.ID); err != nil {
		log.Fatal(err)
	}
	all, err := c.Keys(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(all[0].Name, all[0].RevokedAt != nil)
	// Output: lost true
}
