package node

import (
	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/workflows"
)

// openWorkflows makes durable functions, or none where they are off.
func (n *Node) openWorkflows() (err error) {
	n.workflows, err = workflows.Open(n.config, workflows.Options{
		DB: n.db, Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Agents: n.Agents(),
		URL: n.Endpoint().URL, Log: n.log.With("room", "workflow"),
	})
	return err
}

// Events is the node's front desk of events; nil if it has none.
func (n *Node) Events() engi.Events { return n.workflows.Desk() }
