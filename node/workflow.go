package node

import (
	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/workflows"
	"github.com/engi-dev/engi/store"
)

// openWorkflows makes durable functions, or none where they are off.
func (n *Node) openWorkflows() (err error) {
	n.workflows, err = workflows.Open(n.config, workflows.Options{
		DB: n.db, Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Agents: n.Agents(),
		URL: n.Endpoint().URL, Log: n.log.With("room", "workflow"),
	})
	return err
}

// Functions are the node's durable functions; nil if it has none.
func (n *Node) Functions() engi.Functions { return n.workflows.Functions() }

// Events is the log of what has happened on the node.
func (n *Node) Events() engi.Events { return store.Events(n.db) }
