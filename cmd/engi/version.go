package main

import (
	"context"
	"fmt"
	"runtime"
)

type versionCommand struct{}

func (versionCommand) Help() string { return example("engi version", "engi version --json") }

func (versionCommand) Run(ctx context.Context, g *globals) error {
	all, err := programs(ctx, g)
	v := versions{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Programs: all}
	if g.JSON {
		return g.printJSON(v)
	}
	fmt.Fprintf(g.out, "engi %s\ncommit %s\nbuilt with %s for %s\n", v.Version, v.Commit, v.Go, v.Platform)
	for _, p := range all {
		fmt.Fprintf(g.out, "%s sha256:%s (%s, %s)\n", p.Name, p.Digest, p.Module, p.From)
	}
	if err != nil {
		g.complain(err)
	}
	return nil
}

type versions struct {
	Version  string         `json:"version"`
	Commit   string         `json:"commit"`
	Go       string         `json:"go"`
	Platform string         `json:"platform"`
	Programs []programFacts `json:"programs,omitempty"`
}

type programFacts struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Module string `json:"module"`
	Digest string `json:"sha256"`
	From   string `json:"from"`
}
