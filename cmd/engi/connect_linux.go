package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
)

// testOptions lets tests of this package run commands on fake machines. Only
// tests set it.
var testOptions node.Options

// enter enables this process to run sandboxes if it was not started by root,
// for commands that may start a node.
func enter(args []string) {
	if len(args) == 0 || !slices.Contains([]string{"run", "shell", "serve", "template", "doctor", "bench", "stop"}, args[0]) || os.Getenv("ENGI_URL") != "" ||
		slices.ContainsFunc(args, func(a string) bool { return a == "--url" || a == "--help" || strings.HasPrefix(a, "--url=") }) {
		return
	}
	// On an error, a server may still be available, and 'engi doctor'
	// reports the cause.
	_ = node.EnterNamespaces()
}

// config returns the configuration with this command's flags.
func (g *globals) config(flags ...config.Flag) (config.Config, config.Sources, error) {
	var all []config.Flag
	if g.DataDir != "" {
		all = append(all, config.Flag{Name: "--data-dir", Key: "data_dir", Value: g.DataDir})
	}
	for _, s := range g.Set {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			return config.Config{}, nil, engi.Errorf(engi.Invalid, "--set %q has no '='", s).WithRemedy("write it like --set limits.memory=1GiB")
		}
		all = append(all, config.Flag{Name: "--set", Key: k, Value: v})
	}
	return config.Load(config.From{File: cmp.Or(g.Config, os.Getenv("ENGI_CONFIG")), Env: os.Environ(), Flags: append(all, flags...)})
}

// options returns the options of a node in this process; log may be nil.
func (g *globals) options(log *slog.Logger) node.Options {
	o := testOptions
	o.Version, o.Log = version, log
	return o
}

func (g *globals) connectHere(ctx context.Context, w where, secret string) (*connection, error) {
	c, _, err := g.config()
	if err != nil {
		return nil, err
	}
	at, key, err := datadir.Discover(c.DataDir)
	if err == nil {
		return &connection{Client: client.New(at.URL, cmp.Or(secret, key)), url: at.URL, secret: cmp.Or(secret, key), close: func() {}}, nil
	}
	if !engi.Is(err, engi.NotFound) || w == serverOnly {
		return nil, err
	}
	c.Pools = nil // start only sandboxes that this command needs
	p, err := g.openPrivate(ctx, c)
	if err != nil {
		return nil, err
	}
	return g.connectPrivate(p), nil
}

// connectPrivate returns a connection to a private node, which it closes.
func (g *globals) connectPrivate(p *node.Private) *connection {
	at := p.Endpoint()
	return &connection{Client: client.New(at.URL, p.AdminKey()), url: at.URL, secret: p.AdminKey(), private: true, close: func() { g.closePrivate(p) }}
}

// openPrivate starts a node in this process. It logs only errors, unless the user
// asks for more.
func (g *globals) openPrivate(ctx context.Context, c config.Config) (*node.Private, error) {
	level := slog.LevelError
	if g.Verbose {
		level = slog.LevelInfo
	}
	var w io.Writer = g.err
	return node.OpenPrivate(ctx, c, g.options(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))))
}

func (g *globals) closePrivate(p *node.Private) {
	if err := p.Close(); err != nil {
		g.note("end the private node: %v", err)
	}
}
