package node

import (
	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/api/mcp"
)

// mcpPath is where agents of other programs find their tools.
const mcpPath = "/mcp"

// openMCP makes the surface for agents of other programs.
func (n *Node) openMCP(keys engi.Keys) (*mcp.Surface, error) {
	places := tool.Places{Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes()}
	if s := n.Sessions(); s != nil {
		places.Sessions = s
	}
	return mcp.New(mcp.Options{Places: places, Keys: keys, URL: n.previews.URL, Version: n.version, Log: n.log.With("room", "mcp")})
}
