package node

import (
	"context"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/budget"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/api/mcp"
	"github.com/engi-dev/engi/node/agents"
	"github.com/engi-dev/engi/node/library"
	"github.com/engi-dev/engi/store"
)

// mcpPath is where agents of other programs find their tools.
const mcpPath = "/mcp"

// openAgents makes what agents, ours and others', work with, and our own.
func (n *Node) openAgents(ctx context.Context) (err error) {
	n.places = tool.Services{Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes(), Sessions: n.Sessions()}
	if n.wall != nil {
		if n.places.Fetch, err = agents.Fetch(n.config.Models, n.wall); err != nil {
			return err
		}
	}
	log := n.log.With("room", "agent")
	n.budget = budget.New(budget.Options{
		Store: store.Spending(n.db), Log: log,
		Limit: func(owner engi.Owner) budget.Limit { return budget.Limit(n.config.Models.Budgets.Of(owner)) },
	})
	models, err := agents.Models(n.config, n.budget, log)
	if err != nil {
		return err
	}
	n.library, err = library.Open(ctx, n.config, library.Options{DB: n.db, Sessions: n.Sessions(), Models: models, Wall: n.wall, Log: n.log.With("room", "library")})
	if err != nil {
		return err
	}
	n.places.Library = n.Library()
	if n.remote, err = agents.Remote(n.config, n.places, n.version, n.log.With("room", "remote")); err != nil {
		return err
	}
	n.agents, err = agents.Open(n.config, agents.Options{Models: models, Ledger: n.budget, Places: n.places, Sources: n.remote.Sources(), DB: n.db, Ended: n.libraryRunEnded(), Log: log})
	return err
}

// libraryRunEnded is what the library does with a run that has ended; nil if
// there is no library.
func (n *Node) libraryRunEnded() func(context.Context, engi.Run) {
	if n.library == nil {
		return nil
	}
	return n.library.RunEnded
}

// Agents is the node's front desk of agents; nil if it has none.
func (n *Node) Agents() engi.Agents {
	if n.agents == nil {
		return nil
	}
	return n.agents
}

// openMCP makes the surface for agents of other programs.
func (n *Node) openMCP(keys engi.Keys) (*mcp.Server, error) {
	return mcp.New(mcp.Options{Services: n.places, Keys: keys, Events: store.Events(n.db), URL: n.previews.URL, Hosts: n.hosts(), Version: n.version, Log: n.log.With("room", "mcp")})
}
