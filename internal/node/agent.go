package node

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/budget"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/remote"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/page"
	"github.com/engi-dev/engi/internal/server/mcp"
	"github.com/engi-dev/engi/internal/server/web"
	"github.com/engi-dev/engi/internal/store"
)

// mcpPath is the path at which agents of other programs find the tools of this node.
const mcpPath = "/mcp"

// openAgents opens the services that tools use, the docs, the tool servers
// and, unless they are off, the agents.
func (n *Node) openAgents(ctx context.Context) (err error) {
	c, log := n.config, n.log.With("component", "agent")
	n.services = tool.Services{Executions: n.fleet.Executions(), Sandboxes: n.workspaces.Shared(n.fleet.Sandboxes())}
	if c.Sessions.Enabled {
		n.services.Sessions = n.Sessions() // set it only then, because models are told about sessions if it is set
	}
	if n.gateway != nil && len(c.Models.Fetch) > 0 {
		client, err := fetch.ForOwners(n.gateway, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: c.Models.Fetch}, fetch.Options{})
		if err != nil {
			return engi.Errorf(engi.KindOf(err), "models.fetch: %w", err)
		}
		n.services.Fetch = func(owner engi.Owner) http.RoundTripper { return client(owner).Transport }
	}
	n.budget = budget.New(budget.Options{
		Store: store.Spending(n.db), Log: log,
		Limit: func(owner engi.Owner) budget.Limit { return budget.Limit(c.Models.Budgets.Of(owner)) },
	})
	if n.models, err = n.openModels(); err != nil {
		return err
	}
	models := n.models
	if err := n.openDocs(ctx, models); err != nil {
		return err
	}
	n.services.Docs, n.services.Workspaces, n.services.Workflows, n.services.WorkspaceURL = n.Docs(), n.Workspaces(), n.workflows, func(id engi.WorkspaceID, service string) string { return n.previews.WorkspaceURL(id, service) }
	n.services.Apps, n.services.Preview = n.Apps(), func(id engi.SandboxID, port int) string { return n.previews.URL(id, port) }
	servers, err := c.MCP.ToolServers(os.LookupEnv)
	if err != nil {
		return err
	}
	n.remote, err = remote.New(remote.Options{
		Servers: servers, Sandboxes: n.services.Sandboxes, Places: n.services.Places(), Version: n.version, Transport: c.MCP.Client().Transport, Log: n.log.With("component", "remote"),
	})
	if err != nil || models == nil {
		return err
	}
	tools, err := tool.Builtin(n.services)
	if err != nil {
		return err
	}
	opt := agent.Options{
		Agents: page.WithTools(c.AgentSpecs(), tools), Models: models.Model, Tools: tools, Sources: n.remote.Sources(),
		Store: store.Agents(n.db), Results: store.AgentResults(n.db), Dir: filepath.Join(c.DataDir, "runs"), Log: log,
		MaxRuns: c.Models.MaxRuns, CheckTarget: n.services.CheckTarget, CheckBudget: n.budget.Check,
	}
	if n.docs != nil {
		opt.OnEnd = func(ctx context.Context, r engi.Run) {
			if !page.Answers(r) {
				n.docs.RunEnded(ctx, r)
			}
		}
	}
	if n.agents, err = agent.New(opt); err != nil {
		return err
	}
	n.workflows.Bind(n.agents)
	n.pages = page.New(page.Options{
		Agents: n.agents, Sessions: n.Sessions(), Events: store.Events(n.db), Store: store.Pages(n.db), Docs: n.Docs(), Embedder: n.embedder,
		Sandbox: n.services.Sessions != nil, Log: n.log.With("component", "genui"),
	})
	return nil
}

// Pages returns the pages of sessions; nil if there are no agents to write them.
func (n *Node) Pages() engi.Pages {
	if n.pages == nil {
		return nil
	}
	return n.pages
}

// openModels returns the configured models, and the demo model if there are
// none; nil if agents are off.
func (n *Node) openModels() (*llm.Registry, error) {
	c := n.config
	if c.Models.Off {
		return nil, nil
	}
	opt, err := c.LLMOptions(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	opt.Timeout = time.Duration(c.Models.Timeout)
	opt.OnCall, opt.CheckBudget = n.budget.Record, n.budget.Check
	if _, taken := opt.Providers[config.Demo]; !taken {
		demo := &scripted.Server{Play: scripted.Demo}
		opt.Providers[config.Demo] = llm.Provider{Dialect: llm.OpenAI, URL: "http://demo.invalid/v1", Client: &http.Client{Transport: demo}}
	}
	if opt.Default == "" {
		opt.Default = config.Demo + ":script"
		n.log.With("component", "agent").Warn("no language model is configured: agents use the demo model, which understands nothing",
			"remedy", "set models.default and [providers.NAME] with api_key_env")
	}
	return llm.New(opt)
}

// Agents returns the agents; nil if they are off.
func (n *Node) Agents() engi.Agents {
	if n.agents == nil {
		return nil
	}
	return n.agents
}

// openMCP returns the MCP server for agents of other programs.
func (n *Node) openMCP(keys engi.Keys) (*mcp.Server, error) {
	opt := mcp.Options{Services: n.services, Keys: keys, Clients: store.ToolClients(n.db), Events: store.Events(n.db), URL: n.previews.URL, Hosts: n.hosts(), Version: n.version, Log: n.log.With("component", "mcp")}
	if n.pages != nil {
		opt.Pages, opt.Sessions, opt.View = n.pages, n.Sessions(), web.App()
	}
	return mcp.New(opt)
}
