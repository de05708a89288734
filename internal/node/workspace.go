package node

import (
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workflow/template"
	"github.com/engi-dev/engi/internal/workspace"
)

// openWorkspaces opens the services of workspaces and of workflows in them. The sandboxes reach the registries of
// packages and each other.
func (n *Node) openWorkspaces() error {
	n.workspaces = workspace.New(workspace.Options{
		Store: store.Workspaces(n.db), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Volumes: n.volumes, Log: n.log.With("component", "workspaces"),
		Network: n.packagesOnly(), Mongod: n.config.Workspaces.Mongod, MaxAwake: time.Duration(n.config.Sandboxes.Max),
	})
	templates, err := template.Load(n.config.Workspaces.Workflows)
	n.workflows = workflow.New(workflow.Options{Store: store.Workflows(n.db), Workspaces: n.workspaces, Templates: templates, Events: n.Events(), Log: n.log.With("component", "workflows")})
	return err
}

// packagesOnly returns the policy of sandboxes that reach registries of packages only; on a
// node without a network, it allows nothing.
func (n *Node) packagesOnly() engi.NetworkPolicy {
	if most := engi.Network(n.config.Network.Max); n.gateway == nil || most == engi.NetworkNone || most == engi.NetworkIsolated {
		return engi.NetworkPolicy{Mode: engi.NetworkNone}
	}
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"packages"}}
}

// Workspaces returns the service of workspaces.
func (n *Node) Workspaces() engi.Workspaces { return n.workspaces }

// Workflows returns the service of workflows.
func (n *Node) Workflows() engi.Workflows { return n.workflows }
