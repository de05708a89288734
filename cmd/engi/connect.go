package main

import (
	"context"
	"os"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/client"
)

// Where a command may find a node.
type where int

const (
	serverOnly where = iota // a running server
	orPrivate               // else a node of its own
)

// A desk is a client of the node that a command works with.
type localNode struct {
	*client.Client
	url     string
	secret  string
	private bool // a node inside this process
	close   func()
}

// connect finds a node: the one that ENGI_URL names, else the server of the
// data directory, else, if allowed, a private one. The caller closes the desk.
func (g *globals) connect(ctx context.Context, w where) (*localNode, error) {
	url, secret := first(g.URL, os.Getenv("ENGI_URL")), first(g.Key, os.Getenv("ENGI_KEY"))
	if url != "" {
		if secret == "" {
			return nil, engi.Errorf(engi.Anonymous, "no key for %s", url).WithRemedy("set ENGI_KEY")
		}
		return &localNode{Client: client.New(url, secret), url: url, secret: secret, close: func() {}}, nil
	}
	return g.connectHere(ctx, w, secret)
}

func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}
