package main

import (
	"cmp"
	"context"
	"os"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// A where says where a command may find a node.
type where int

const (
	serverOnly where = iota // a running server
	orPrivate               // a running server, or else a private node
)

// A connection is a client of the node that a command uses.
type connection struct {
	*client.Client
	url     string
	secret  string
	private bool // the node is in this process
	close   func()
}

// connect finds a node: the one in ENGI_URL, else the server of the
// data directory, else, if allowed, a private one. The caller must close the
// connection.
func (g *globals) connect(ctx context.Context, w where) (*connection, error) {
	url, secret := cmp.Or(g.URL, os.Getenv("ENGI_URL")), cmp.Or(g.Key, os.Getenv("ENGI_KEY"))
	if url != "" {
		if secret == "" {
			return nil, engi.Errorf(engi.Anonymous, "no key for %s", url).WithRemedy("set ENGI_KEY")
		}
		return &connection{Client: client.New(url, secret), url: url, secret: secret, close: func() {}}, nil
	}
	return g.connectHere(ctx, w, secret)
}
