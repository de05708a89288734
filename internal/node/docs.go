package node

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/store"
)

// openDocs opens the index of documents unless it is off. A nil models
// means the built-in embedder.
func (n *Node) openDocs(ctx context.Context, models *llm.Registry) (err error) {
	c := n.config.Docs
	n.embedder = docs.BuiltIn()
	if models != nil && n.config.Models.Embedding != "" {
		if n.embedder, err = models.Embedder(); err != nil {
			return err
		}
	}
	if c.Off {
		return nil
	}
	log := n.log.With("component", "docs")
	opt := docs.Options{
		Store: store.Docs(n.db), Quota: docs.Quota{Documents: c.Documents, Bytes: int64(c.Bytes)},
		MaxAge: time.Duration(c.Refresh), Log: log, Embedder: n.embedder, Sessions: n.Sessions(),
	}
	opt.Sources, opt.Files = n.config.Documents()
	opt.NodeTransport = fetch.New(fetch.Options{
		Trusted: hostsOf(opt.Sources), Remedy: "send the text of the document; private addresses are for hosts of [[docs.sources]] in the configuration",
	}).Transport
	switch {
	case len(c.Hosts) == 0:
	case n.gateway == nil:
		log.Warn("documents of owners are not fetched: sandboxes of this node have no network", "remedy", "'engi doctor' says why; owners can send the text")
	default:
		client, err := fetch.ForOwners(n.gateway, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: c.Hosts}, fetch.Options{
			Remedy: "send the text of the document; the operator says with docs.hosts where owners' documents may be fetched from",
		})
		if err != nil {
			return engi.Errorf(engi.KindOf(err), "docs.hosts: %w", err)
		}
		opt.OwnerTransport = func(owner engi.Owner) http.RoundTripper { return client(owner).Transport }
	}
	if models != nil && n.config.Models.Rerank != "" {
		if opt.Reranker, err = models.Reranker(); err != nil {
			return err
		}
	}
	n.docs, err = docs.Open(ctx, opt)
	return err
}

// hostsOf returns the hosts of the documents' URLs.
func hostsOf(sources []engi.DocumentSpec) []string {
	var hosts []string
	for _, s := range sources {
		if u, err := url.Parse(s.URL); err == nil {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}

// Docs returns the index of documentation; nil if it is off.
func (n *Node) Docs() engi.Docs {
	if n.docs == nil {
		return nil
	}
	return n.docs
}
