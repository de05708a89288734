package node

import (
	"context"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/api/mcp"
	"github.com/engi-dev/engi/node/agents"
)

// mcpPath is where agents of other programs find their tools.
const mcpPath = "/mcp"

// openAgents makes what agents, ours and others', work with, and our own.
func (n *Node) openAgents(ctx context.Context) (err error) {
	n.places = tool.Places{Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes(), Sessions: n.Sessions()}
	if n.wall != nil {
		if n.places.Fetch, err = agents.Fetch(n.config.Models, n.wall); err != nil {
			return err
		}
	}
	log := n.log.With("room", "agent")
	models, err := agents.Models(n.config, log)
	if err != nil {
		return err
	}
	if err := n.openLibrary(ctx, models); err != nil {
		return err
	}
	rooms := agents.Rooms{Models: models, DB: n.db, Log: log}
	if n.library != nil {
		n.places.Library, rooms.Ended = n.library, n.library.Ended
	}
	rooms.Places = n.places
	n.agents, err = agents.Open(n.config, rooms)
	return err
}

// Agents is the node's front desk of agents; nil if it has none.
func (n *Node) Agents() engi.Agents {
	if n.agents == nil {
		return nil
	}
	return n.agents
}

// openMCP makes the surface for agents of other programs.
func (n *Node) openMCP(keys engi.Keys) (*mcp.Surface, error) {
	return mcp.New(mcp.Options{Places: n.places, Keys: keys, URL: n.previews.URL, Version: n.version, Log: n.log.With("room", "mcp")})
}
