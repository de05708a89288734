package node

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/builtin"
	"github.com/engi-dev/engi/internal/function/dbos"
	"github.com/engi-dev/engi/internal/function/inngest"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/webhook"
)

// openFunctions opens webhooks and durable functions, built-in and declared ones,
// unless they are off. It reports Invalid for an invalid declaration.
func (n *Node) openFunctions(ctx context.Context) error {
	c, log := n.config, n.log.With("component", "functions")
	if c.Events.Off {
		return nil
	}
	client, err := c.Webhooks.Client()
	if err != nil {
		return err
	}
	n.webhooks, err = webhook.Open(ctx, webhook.Options{
		Store: store.Webhooks(n.db), Events: store.Events(n.db), Client: client, Seal: n.secrets, Fixed: c.Webhooks.Fixed(),
		Formats: map[string]engi.WebhookFormat{e2b.WebhookFormat: e2b.NewWebhookFormat(), engi.WebhookApproval: webhook.NewApprovalFormat(n.approvals)},
		Log:     n.log.With("component", "webhook"),
	})
	if err != nil {
		return err
	}
	services := builtin.Services{
		Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Executions: n.fleet.Executions(), Agents: n.Agents(), Runtimes: c.Events.RuntimeTemplates(),
	}
	functions := builtin.Functions(services)
	declared, err := c.DeclaredFunctions(os.ReadFile)
	if err != nil {
		return err
	}
	for _, d := range declared {
		f, err := services.Declare(d)
		if err != nil {
			return err
		}
		functions = append(functions, f)
	}
	var engine function.Engine
	if c.Events.Engine == config.EngineInngest {
		opt, err := c.Events.Inngest.Options(n.Endpoint().URL, os.LookupEnv)
		if err != nil {
			return err
		}
		opt.Log = log
		e, err := inngest.New(opt)
		if err != nil {
			return err
		}
		engine, n.inngest = e, e
	} else if engine, err = dbos.New(dbos.Options{File: filepath.Join(c.DataDir, datadir.FunctionsName), Log: log}); err != nil {
		return err
	}
	n.functions, err = function.New(function.Options{
		Functions: functions, Source: n.webhooks, Store: store.Functions(n.db), Events: store.Events(n.db), Engine: engine, Log: log, MaxQueue: c.Events.MaxQueue, MaxRuns: c.Events.MaxRuns,
		Retention: time.Duration(c.Events.Keep), RetainCount: c.Events.KeepCount,
	})
	if err == nil {
		n.webhooks.Bind(n.functions)
	}
	return err
}

// Webhooks returns the webhooks; nil if functions are off.
func (n *Node) Webhooks() engi.Webhooks {
	if n.webhooks == nil {
		return nil
	}
	return n.webhooks
}

// Functions returns the durable functions; nil if they are off.
func (n *Node) Functions() engi.Functions {
	if n.functions == nil {
		return nil
	}
	return n.functions
}

// Events returns the event log of the node.
func (n *Node) Events() engi.Events { return store.Events(n.db) }

// inngestHandler answers the calls of an Inngest server at [config.InngestPath],
// until leave ends; nil if the node uses no such server.
func (n *Node) inngestHandler(leave context.Context) http.Handler {
	if n.inngest == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(leave, cancel)()
		n.inngest.ServeHTTP(w, r.WithContext(ctx))
	})
}
