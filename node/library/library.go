// Package library assembles the library of a node from its configuration:
// which documents everybody finds, where documents may be fetched from, what
// compares meanings. Only package node uses it.
package library

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/gate/fetch"
	room "github.com/engi-dev/engi/library"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/node/wall"
	"github.com/engi-dev/engi/store"
)

// Rooms are those of the node that the library needs.
type Options struct {
	DB       *store.DB
	Sessions engi.Sessions // nil: there are none
	Models   *llm.Registry // nil: there are none
	Wall     *wall.Wall    // nil: owners send the text of documents
	Log      *slog.Logger
}

// Open makes the library of c; nil where it is off. Nothing runs before Run.
func Open(ctx context.Context, c config.Config, r Options) (*room.Library, error) {
	if c.Docs.Off {
		return nil, nil
	}
	opt := room.Options{
		Store: store.Library(r.DB), Quota: room.Quota{Documents: c.Docs.Documents, Bytes: int64(c.Docs.Bytes)},
		MaxAge: time.Duration(c.Docs.Refresh), Log: r.Log,
	}
	opt.Sources, opt.Files = c.Documents()
	own := fetch.New(fetch.Options{
		Trusted: hostsOf(opt.Sources), Remedy: "send the text of the document; private addresses are for hosts of [[docs.sources]] in the configuration",
	})
	opt.NodeTransport = own.Transport
	if r.Sessions != nil {
		opt.Sessions = r.Sessions
	}
	if len(c.Docs.Hosts) > 0 {
		if r.Wall == nil {
			r.Log.Warn("documents of owners are not fetched: this node has no wall", "remedy", "'engi doctor' says why; owners can send the text")
		} else {
			client, err := fetch.ForOwners(r.Wall, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: c.Docs.Hosts}, fetch.Options{
				Remedy: "send the text of the document; the operator says with docs.hosts where owners' documents may be fetched from",
			})
			if err != nil {
				return nil, engi.Errorf(engi.KindOf(err), "docs.hosts: %w", err)
			}
			opt.OwnerTransport = func(owner engi.Owner) http.RoundTripper { return client(owner).Transport }
		}
	}
	if err := choose(c, r.Models, &opt); err != nil {
		return nil, err
	}
	return room.Open(ctx, opt)
}

// hostsOf returns the hosts of documents that the configuration names.
func hostsOf(sources []engi.DocumentSpec) []string {
	var hosts []string
	for _, s := range sources {
		if u, err := url.Parse(s.URL); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}

// choose sets what compares meanings and what puts answers in order: the
// built-in one and nothing where no models are configured for it.
func choose(c config.Config, models *llm.Registry, opt *room.Options) error {
	if models == nil {
		return nil
	}
	if c.Models.Embedding != "" {
		e, err := models.Embedder()
		if err != nil {
			return err
		}
		opt.Embedder = e
	}
	if c.Models.Rerank != "" {
		r, err := models.Reranker()
		if err != nil {
			return err
		}
		opt.Reranker = r
	}
	return nil
}
