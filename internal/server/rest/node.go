package rest

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// NodeInfo describes the node. Only Pools is required.
type NodeInfo struct {
	Pools       engi.Pools
	Sessions    engi.Sessions       // nil if the node has no sessions
	Metrics     prometheus.Gatherer // served at /metrics; nil means no such route
	Tier        engi.Tier           // isolation tier of new sandboxes
	NotEnforced []string            // limits that this machine cannot enforce

	Examine func(context.Context) ([]engi.Check, error) // checks the machine; nil if no check is available
}

// Node returns the routes for version, health and metrics of the node.
func Node(n NodeInfo) Resource {
	r := Resource{tag: "node", about: "the server that answers", routes: []Route{
		fetch(Route{Pattern: "GET /v1/node", ID: "get-node", Summary: "Get the server's version and limits", Access: anyKey, Objects: Shared}, n.get),
		raw(Route{
			Pattern: "GET /healthz", ID: "get-health", Summary: "Check that the server is alive", Text: "Needs no key.", Access: open, Objects: Shared, Quiet: true,
			Answers: []answer{{status: http.StatusOK, media: "text/plain; charset=utf-8", of: reflect.TypeFor[string]()}},
		}, func(c *call, _ *none, _ none) error {
			c.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = c.Write([]byte("ok\n")) // an error means that the caller has left
			return nil
		}),
		raw(Route{
			Pattern: "GET /readyz", ID: "get-readiness", Summary: "Check that every warm pool is ready", Access: open, Objects: Shared, Quiet: true,
			Text:    "Answers 503 until every pool has had its first sandbox, and while the server shuts down. Needs no key.",
			Answers: []answer{jsonOf[v1.Readiness](http.StatusOK, nil), jsonOf[v1.Readiness](http.StatusServiceUnavailable, nil)},
		}, n.ready),
	}}
	r.routes = append(r.routes, list(Route{
		Pattern: "GET /v1/doctor", ID: "examine-node", Summary: "Check the server's machine", Access: Access{Admin: true}, Objects: Shared,
		Text: "Runs the checks of 'engi doctor' that boot no sandbox. Each failed check has a remedy. Needs an admin key.",
	}, func(c *call, _ *none) ([]engi.Check, error) {
		if n.Examine == nil {
			return nil, nil
		}
		return n.Examine(c)
	}, func(x engi.Check) v1.Check { return v1.Check(x) }))
	if n.Metrics != nil {
		r.routes = append(r.routes, raw(Route{Pattern: "GET /metrics", Access: anyKey, Objects: Shared, Quiet: true}, func(c *call, _ *none, _ none) error {
			log := slog.NewLogLogger(c.s.log.Handler(), slog.LevelError)
			promhttp.HandlerFor(n.Metrics, promhttp.HandlerOpts{ErrorLog: log}).ServeHTTP(c, c.r)
			return nil
		}))
	}
	return r
}

func (n NodeInfo) get(c *call, _ *none) (v1.Node, error) {
	return v1.Node{
		Version: c.s.version, API: "v1", Tier: string(n.Tier), NotEnforced: orEmpty(n.NotEnforced), Languages: languages(), StartedAt: c.s.started.UTC(),
	}, nil
}

func (n NodeInfo) ready(c *call, _ *none, _ none) error {
	err := n.Pools.Warm(c)
	if c.s.leaving() {
		err = errLeaving
	}
	if err != nil {
		c.Header().Set("Retry-After", "1")
		return c.reply(http.StatusServiceUnavailable, v1.Readiness{Reason: httpio.Describe(err, "").Detail})
	}
	ready := v1.Readiness{Ready: true}
	if n.Sessions != nil {
		// The rest of the node works without the packages of sessions.
		if d, err := n.Sessions.Dependencies(c); err == nil && d.State != engi.DependenciesReady {
			ready.Reason = "the packages of sessions are " + map[engi.DependencyState]string{
				engi.DependenciesBuilding: "being installed", engi.DependenciesFailed: "not installed: see GET /v1/dependencies",
			}[d.State]
		}
	}
	return c.reply(http.StatusOK, ready)
}
