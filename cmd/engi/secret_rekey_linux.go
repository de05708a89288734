package main

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/internal/node"
)

type secretRekey struct{}

func (secretRekey) Help() string {
	return `Creates a new key in secret.key and encrypts every secret with it. Run it on the node's machine
while no server is running. If it is interrupted, run it again; all secrets stay readable until
then. Signed links to ports become invalid. Back up the new file, and destroy copies of the old one.

With a key in ENGI_SECRET_KEY, secrets are encrypted with that key, and the file is deleted. To
rotate the key again, set ENGI_SECRET_KEY to a new key, with the old one on a second line: "former:
KEY".

Examples:
  engi stop && engi secret rekey && engi serve --detach`
}

func (secretRekey) Run(ctx context.Context, g *globals) error {
	c, _, err := g.config()
	if err != nil {
		return err
	}
	log, err := c.Logger(g.err, isTerminal(g.err))
	if err != nil {
		return err
	}
	n, err := node.RotateSecrets(ctx, c.DataDir, log)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.printJSON(map[string]int{"sealed": n})
	}
	fmt.Fprintf(g.out, "%d secrets are sealed under a new key\n", n)
	return nil
}
