package main

import (
	"context"

	"github.com/engi-dev/engi/internal/node"
)

// programs returns the programs that engi starts, with their origin.
func programs(ctx context.Context, g *globals) ([]programFacts, error) {
	c, _, err := g.config()
	if err != nil {
		return nil, err
	}
	found, err := node.FindPrograms(ctx, c)
	var all []programFacts
	for _, p := range found {
		all = append(all, programFacts{Name: p.Name, Path: p.Path, Module: p.Module(), Digest: p.Digest, From: p.From})
	}
	return all, err
}
