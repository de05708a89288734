// Package agents assembles the agents of a node from its configuration: which
// models they may ask, which tools they have, what they cost. Only package
// node uses it.
package agents

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent"
	"github.com/engi-dev/engi/agent/budget"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/agent/llm/scripted"
	"github.com/engi-dev/engi/agent/remote"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/gate/fetch"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/store"
)

// Models returns the models of c, whose calls ledger counts; nil where there
// are no agents.
func Models(c config.Config, ledger *budget.Tracker, log *slog.Logger) (*llm.Registry, error) {
	if c.Models.Off {
		return nil, nil
	}
	opt, err := c.LLMOptions(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	opt.Timeout = time.Duration(c.Models.Timeout)
	opt.OnCall, opt.CheckBudget = ledger.Record, ledger.Check
	if _, taken := opt.Providers[config.Demo]; !taken {
		demo := &scripted.Server{Play: scripted.Demo}
		opt.Providers[config.Demo] = llm.Provider{Dialect: llm.OpenAI, URL: "http://demo.invalid/v1", Client: &http.Client{Transport: demo}}
	}
	if opt.Default == "" {
		opt.Default = config.Demo + ":script"
		log.Warn("no language model is configured: agents use the demo model, which understands nothing",
			"remedy", "set models.default and [providers.NAME] with api_key_env")
	}
	return llm.New(opt)
}

// Rooms are those of the node that agents need.
type Options struct {
	Models  *llm.Registry   // nil: there are no agents
	Ledger  *budget.Tracker // that of Models
	Places  tool.Services
	Sources []tool.Source // of more tools
	DB      *store.DB
	Ended   func(ctx context.Context, r engi.Run) // see [agent.Options]
	Log     *slog.Logger
}

// Open makes the office of agents; nil where there are none.
func Open(c config.Config, r Options) (*agent.Runner, error) {
	if r.Models == nil {
		return nil, nil
	}
	tools, err := tool.Builtin(r.Places)
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Options{
		Agents: c.AgentSpecs(), Models: r.Models.Model, Tools: tools, Sources: r.Sources, Store: store.Agents(r.DB), Results: store.AgentResults(r.DB), Dir: filepath.Join(c.DataDir, "runs"),
		Log: r.Log, MaxRuns: c.Models.MaxRuns, CheckTarget: r.Places.CheckTarget, CheckBudget: r.Ledger.Check, OnEnd: r.Ended,
	})
}

// Remote knows the servers of tools of c.
func Remote(c config.Config, places tool.Services, version string, log *slog.Logger) (*remote.Remote, error) {
	servers, err := c.MCP.ToolServers(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	return remote.New(remote.Options{Servers: servers, Sandboxes: places.Sandboxes, Sessions: places.Sessions, Version: version, Log: log})
}

// Fetch returns what the tool fetch_url goes through; nil where agents may
// fetch nothing. It reports Invalid for rules that make no sense.
func Fetch(c config.Models, w fetch.Wall) (func(engi.Owner) http.RoundTripper, error) {
	if len(c.Fetch) == 0 {
		return nil, nil
	}
	client, err := fetch.ForOwners(w, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: c.Fetch}, fetch.Options{})
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "models.fetch: %w", err)
	}
	return func(owner engi.Owner) http.RoundTripper { return client(owner).Transport }, nil
}
