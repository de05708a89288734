// Package workflows assembles the durable functions of a node from its
// configuration: what executes them, those that come with engi and those that
// are declared. Only package node uses it.
package workflows

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/node/datadir"
	"github.com/engi-dev/engi/store"
	"github.com/engi-dev/engi/workflow"
	"github.com/engi-dev/engi/workflow/builtin"
	"github.com/engi-dev/engi/workflow/dbos"
	"github.com/engi-dev/engi/workflow/inngest"
)

// Rooms are those of the node that functions need.
type Options struct {
	DB         *store.DB
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Agents     engi.Agents // nil: there are none
	Source     workflow.Source
	URL        string // where the node is reached
	Log        *slog.Logger
}

// Workflows are a node's. It is safe for concurrent use.
type Workflows struct {
	runner *workflow.Runner
	calls  http.Handler
}

// Open makes the durable functions of c; nil where they are off. Nothing runs
// before Run. It reports Invalid for functions that cannot work.
func Open(c config.Config, r Options) (*Workflows, error) {
	if c.Events.Off {
		return nil, nil
	}
	engine, calls, err := open(c, r)
	if err != nil {
		return nil, err
	}
	rooms := builtin.Services{Sandboxes: r.Sandboxes, Templates: r.Templates, Executions: r.Executions, Agents: r.Agents, Runtimes: c.Events.RuntimeTemplates()}
	functions := builtin.Functions(rooms)
	declared, err := c.DeclaredFunctions(os.ReadFile)
	if err != nil {
		return nil, err
	}
	for _, d := range declared {
		f, err := rooms.Declare(d)
		if err != nil {
			return nil, err
		}
		functions = append(functions, f)
	}
	runner, err := workflow.New(workflow.Options{
		Functions: functions, Source: r.Source, Store: store.Workflow(r.DB), Events: store.Events(r.DB), Engine: engine, Log: r.Log, MaxQueue: c.Events.MaxQueue, MaxRuns: c.Events.MaxRuns,
		Retention: time.Duration(c.Events.Keep), RetainCount: c.Events.KeepCount,
	})
	if err != nil {
		return nil, err
	}
	return &Workflows{runner, calls}, nil
}

// open makes what executes functions, and what answers calls of it, if it calls.
func open(c config.Config, r Options) (workflow.Engine, http.Handler, error) {
	if c.Events.Engine == config.EngineInngest {
		opt, err := c.Events.Inngest.Options(r.URL, os.LookupEnv)
		if err != nil {
			return nil, nil, err
		}
		opt.Log = r.Log
		e, err := inngest.New(opt)
		return e, e, err
	}
	e, err := dbos.New(dbos.Options{File: filepath.Join(c.DataDir, datadir.FunctionsName), Log: r.Log})
	return e, nil, err
}

// Functions are what runs; nil if there are none.
func (w *Workflows) Functions() engi.Functions {
	if w == nil {
		return nil
	}
	return w.runner
}

// Runs are those of the Source's functions.
func (w *Workflows) Runs() *workflow.Runner { return w.runner }

// Calls answers an engine elsewhere, at [config.InngestPath]; nil if there is
// none. Nobody waits beyond leave.
func (w *Workflows) Calls(leave context.Context) http.Handler {
	if w == nil || w.calls == nil {
		return nil
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(leave, cancel)()
		w.calls.ServeHTTP(rw, r.WithContext(ctx))
	})
}

// Run runs functions until ctx ends.
func (w *Workflows) Run(ctx context.Context, ready func()) error { return w.runner.Serve(ctx, ready) }
