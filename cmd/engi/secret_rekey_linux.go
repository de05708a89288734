package main

import (
	"context"
	"fmt"

	"github.com/engi-dev/engi/internal/node"
)

type secretRekey struct{}

func (secretRekey) Help() string {
	return `Makes a new key in secret.key and seals every secret under it, on the machine of the node and while
no server runs there. If it is broken off, run it again; until then all secrets can be read. Signed
links to ports end. Back the new file up, and destroy copies of the old one.

With a key in ENGI_SECRET_KEY, secrets are sealed under that one, and the file is removed. To go on
from there, put a new key into it, and the one before as a second line: "former: KEY".

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
