package client_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// terminal returns a client and a terminal in a sandbox, which says ready and
// repeats each line.
func terminal() (c *client.Client, box, id string, stop func()) {
	c, box, stop = sandbox()
	x := must(c.CreateTerminal(context.Background(), box, v1.TerminalRequest{
		Args: []string{"/bin/sh", "-c", "stty -echo; echo ready; while read x; do echo got $x; done"},
	}))
	return c, box, x.ID, stop
}

// until reads what a terminal shows until that contains text.
func until(ctx context.Context, a *client.Attachment, text string) string {
	shown := ""
	for data, err := range a.Output(ctx) {
		check(err)
		if shown += string(data); strings.Contains(shown, text) {
			break
		}
	}
	return strings.ReplaceAll(shown, "\r\n", "\n")
}

func ExampleClient_CreateTerminal() {
	c, box, stop := sandbox()
	defer stop()
	x := must(c.CreateTerminal(context.Background(), box, v1.TerminalRequest{Args: []string{"/bin/cat"}, Cols: 100, Rows: 30}))
	fmt.Println(x.Running, x.Args[0])
	// Output: true /bin/cat
}

func ExampleClient_AttachTerminal() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	a := must(c.AttachTerminal(ctx, box, id, client.AttachOptions{}))
	defer a.Close()
	for shown, err := range a.Output(ctx) {
		check(err)
		fmt.Print(strings.ReplaceAll(string(shown), "\r", ""))
		if strings.Contains(string(shown), "ready") {
			must(a.Write([]byte("a line\n")))
		}
		if strings.Contains(string(shown), "a line") {
			break
		}
	}
	// Output:
	// ready
	// got a line
}

func ExampleClient_FollowTerminal() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	link := must(c.ShareTerminal(ctx, box, id, v1.TerminalLinkRequest{Name: "guest"}))
	// Who has the secret needs no key.
	a := must(c.FollowTerminal(ctx, link.Secret, client.AttachOptions{}))
	defer a.Close()
	fmt.Print(until(ctx, a, "ready\r\n"))
	// Output: ready
}

func ExampleClient_ShareTerminal() {
	c, box, id, stop := terminal()
	defer stop()
	link := must(c.ShareTerminal(context.Background(), box, id, v1.TerminalLinkRequest{Write: true, TTL: v1.Duration(time.Minute)}))
	fmt.Println(link.Write, link.ExpiresAt.Sub(link.CreatedAt))
	// Output: true 1m0s
}

func ExampleClient_TerminalLinks() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	must(c.ShareTerminal(ctx, box, id, v1.TerminalLinkRequest{Name: "guest"}))
	for _, l := range must(c.TerminalLinks(ctx, box, id)) {
		fmt.Println(l.Name, l.Secret == "")
	}
	// Output: guest true
}

func ExampleClient_UnshareTerminal() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	link := must(c.ShareTerminal(ctx, box, id, v1.TerminalLinkRequest{}))
	check(c.UnshareTerminal(ctx, box, id, link.ID))
	_, err := c.FollowTerminal(ctx, link.Secret, client.AttachOptions{})
	fmt.Println(client.IsKind(err, v1.Anonymous))
	// Output: true
}

func ExampleClient_Terminal() {
	c, box, id, stop := terminal()
	defer stop()
	x := must(c.Terminal(context.Background(), box, id))
	fmt.Println(x.Cols, x.Rows, x.Running)
	// Output: 80 24 true
}

func ExampleClient_Terminals() {
	c, box, id, stop := terminal()
	defer stop()
	for _, x := range must(c.Terminals(context.Background(), box)) {
		fmt.Println(x.ID == id)
	}
	// Output: true
}

func ExampleClient_TerminalScreen() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	a := must(c.AttachTerminal(ctx, box, id, client.AttachOptions{}))
	defer a.Close()
	until(ctx, a, "ready\r\n")
	screen := must(c.TerminalScreen(ctx, box, id))
	fmt.Println(strings.TrimSpace(screen.Text), screen.Cursor.Row)
	// Output: ready 1
}

func ExampleClient_TerminalRecording() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	a := must(c.AttachTerminal(ctx, box, id, client.AttachOptions{}))
	defer a.Close()
	until(ctx, a, "ready\r\n")
	recording := must(c.TerminalRecording(ctx, box, id, 3))
	defer recording.Close()
	text := string(must(io.ReadAll(recording)))
	fmt.Println(strings.HasPrefix(text, `{"version":3,`), strings.Contains(text, `"o","ready\r\n"]`))
	// Output: true true
}

func ExampleClient_EndTerminal() {
	c, box, id, stop := terminal()
	defer stop()
	ctx := context.Background()
	check(c.EndTerminal(ctx, box, id))
	fmt.Println(len(must(c.Terminals(ctx, box))))
	// Output: 0
}
