package main

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type mcpCommand struct {
	Serve   mcpServe    `cmd:"" default:"withargs" help:"Offer sandboxes to agents of other programs on standard input and output."`
	Servers listCommand `cmd:"" help:"List the MCP servers that agents of this node may use."`
}

var mcpCommands = mcpCommand{
	Servers: lists(`They come from [[mcp.servers]] in the configuration. What is known about each is from the
last time that an agent used it.

`+example("engi mcp servers", "engi mcp servers --json"), table[v1.ToolServer]{"NAME\tKIND\tSTATE\tTOOLS", func(s v1.ToolServer) []any {
		return []any{s.Name, s.Kind, s.State, cmp.Or(s.Error, strings.Join(s.Tools, ","))}
	}, nil}, (*client.Client).ToolServers),
}

type mcpServe struct{}

func (mcpServe) Help() string {
	return `Speaks the Model Context Protocol on standard input and output, for programs that start
their tools themselves. Calls go to the server of the data directory, or of ENGI_URL; if
none runs, to a node of its own, whose sandboxes end with this command. Programs that
speak HTTP use the server's address with /mcp instead, with the key as bearer token.

Examples:
  engi mcp
  claude mcp add engi -- engi mcp
  ENGI_URL=https://engi.example.com ENGI_KEY=engi_... engi mcp`
}

// Run implements the command.
func (mcpServe) Run(ctx context.Context, g *globals) error {
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	return passOn(ctx, d.url+"/mcp", d.secret, &sdk.StdioTransport{})
}

// bearing adds a key to requests.
type bearing struct{ secret string }

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.secret)
	return http.DefaultTransport.RoundTrip(r)
}

// passOn serves the tools and resources of the server at url on near, until the
// client closes it or ctx ends. Protocol versions are negotiated separately on both
// sides.
func passOn(ctx context.Context, url, secret string, near sdk.Transport) error {
	told := make(chan *sdk.ServerSession, 1)
	client := sdk.NewClient(&sdk.Implementation{Name: "engi mcp", Version: version}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(ctx context.Context, n *sdk.ProgressNotificationClientRequest) {
			s := <-told
			told <- s
			// The client may have gone.
			_ = s.NotifyProgress(ctx, n.Params)
		},
	})
	far, err := client.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearing{secret}}}, nil)
	if err != nil {
		return engi.Errorf(engi.Unavailable, "reach %s: %v", url, err).WithRemedy("check that the server runs and is of this version: engi status")
	}
	defer far.Close()
	about := far.InitializeResult()
	server := sdk.NewServer(about.ServerInfo, &sdk.ServerOptions{Instructions: about.Instructions, Capabilities: &sdk.ServerCapabilities{}})
	for t, err := range far.Tools(ctx, nil) {
		if err != nil {
			return engi.Errorf(engi.Unavailable, "list the tools of %s: %v", url, err)
		}
		server.AddTool(t, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			p := &sdk.CallToolParams{Meta: req.Params.Meta, Name: req.Params.Name, Arguments: req.Params.Arguments}
			return far.CallTool(ctx, p)
		})
	}
	for t, err := range far.ResourceTemplates(ctx, nil) {
		if err != nil {
			return engi.Errorf(engi.Unavailable, "list the resources of %s: %v", url, err)
		}
		server.AddResourceTemplate(t, func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return far.ReadResource(ctx, &sdk.ReadResourceParams{URI: req.Params.URI})
		})
	}
	s, err := server.Connect(ctx, near, nil)
	if err != nil {
		return engi.Errorf(engi.Unavailable, "serve: %v", err)
	}
	told <- s
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// It does not matter how the client disconnected.
		_ = s.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.Close()
		<-ended
	}
	return nil
}
