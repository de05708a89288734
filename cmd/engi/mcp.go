package main

import (
	"cmp"
	"context"
	"os"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type mcpCommand struct {
	Serve   mcpServe    `cmd:"" default:"withargs" help:"Serve sandboxes to agents of other programs on standard input and output."`
	Servers listCommand `cmd:"" help:"List the MCP servers that this node's agents can use."`
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
	return `Serves the Model Context Protocol on standard input and output, for programs that start their tools
themselves. Calls go to the server of the data directory or of ENGI_URL; if none is running, the
command starts a node, whose sandboxes end with the command. While the server restarts, calls wait.
Programs that speak HTTP use the server's URL with /mcp instead, with the key as bearer token.

Examples:
  engi mcp
  claude mcp add engi -- engi mcp
  ENGI_URL=https://engi.example.com ENGI_KEY=engi_... engi mcp`
}

func (mcpServe) Run(ctx context.Context, g *globals) error {
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	return passOn(ctx, d.url+"/mcp", d.secret, os.Stdin, os.Stdout)
}
