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
	room "github.com/engi-dev/engi/library"
	"github.com/engi-dev/engi/node/agents"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/node/wall"
	"github.com/engi-dev/engi/script"
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
	own, err := newOutlet(opt.Sources)
	if err != nil {
		return nil, err
	}
	opt.NodeTransport = own
	if r.Sessions != nil {
		opt.Sessions = r.Sessions
	}
	if len(c.Docs.Hosts) > 0 {
		if r.Wall == nil {
			r.Log.Warn("documents of owners are not fetched: this node has no wall", "remedy", "'engi doctor' says why; owners can send the text")
		} else {
			through, err := agents.Through(r.Wall, "docs.hosts", c.Docs.Hosts)
			if err != nil {
				return nil, err
			}
			opt.OwnerTransport = func(owner engi.Owner) http.RoundTripper {
				return helpful{through(owner), "send the text of the document; the operator says with docs.hosts where owners' documents may be fetched from"}
			}
		}
	}
	if err := choose(c, r.Models, &opt); err != nil {
		return nil, err
	}
	return room.Open(ctx, opt)
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

// An outlet fetches the node's own documents: from anywhere the operator has
// named in the configuration, else from public addresses only.
type outlet struct {
	named  map[string]bool // host, with port if it has one
	plain  *http.Transport
	public http.RoundTripper
}

func newOutlet(sources []engi.DocumentSpec) (*outlet, error) {
	public, err := script.FetchPolicy{}.Client()
	if err != nil {
		return nil, err
	}
	o := &outlet{named: map[string]bool{}, plain: http.DefaultTransport.(*http.Transport).Clone(), public: helpful{public.Transport, "send the text of the document; private addresses are for hosts of [[docs.sources]] in the configuration"}}
	for _, s := range sources {
		if u, err := url.Parse(s.URL); err == nil {
			o.named[u.Host] = true
		}
	}
	return o, nil
}

// RoundTrip implements http.RoundTripper.
func (o *outlet) RoundTrip(r *http.Request) (*http.Response, error) {
	if o.named[r.URL.Host] {
		return o.plain.RoundTrip(r)
	}
	return o.public.RoundTrip(r)
}

// CloseIdleConnections is for http.Client's.
func (o *outlet) CloseIdleConnections() {
	o.plain.CloseIdleConnections()
	(&http.Client{Transport: o.public}).CloseIdleConnections()
}

// helpful says what to do about what is denied.
type helpful struct {
	http.RoundTripper
	remedy string
}

// RoundTrip implements http.RoundTripper.
func (h helpful) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.RoundTripper.RoundTrip(r)
	if engi.KindOf(err) == engi.Denied {
		err = engi.Errorf(engi.Denied, "%w", err).WithRemedy("%s", h.remedy)
	}
	return resp, err
}

// CloseIdleConnections is for http.Client's.
func (h helpful) CloseIdleConnections() {
	(&http.Client{Transport: h.RoundTripper}).CloseIdleConnections()
}
