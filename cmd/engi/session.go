package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type sessionCommand struct {
	Create  sessionCreate  `cmd:"" help:"Create a session."`
	List    sessionList    `cmd:"" aliases:"ls" help:"List sessions."`
	Show    showCommand    `cmd:"" aliases:"get" help:"Show a session."`
	Run     sessionRun     `cmd:"" help:"Run TypeScript in a session."`
	Release sessionRelease `cmd:"" help:"Stop the sandboxes of sessions; their volumes stay."`
	Kill    sessionKill    `cmd:"" aliases:"rm,terminate" help:"End sessions, with their volumes."`
	Deps    sessionDeps    `cmd:"" help:"Show the packages that code in sessions may import, and whether they are installed."`
}

var sessionCommands = sessionCommand{
	Show: shows(example("engi session show chat", "engi session show chat --json"), (*globals).showSession, (*client.Client).Session),
}

type sessionCreate struct {
	Name        string            `arg:"" optional:"" help:"Name to find it by." placeholder:"NAME"`
	Warm        bool              `help:"Boot its sandbox at once." xor:"mode"`
	Lazy        bool              `help:"Boot its sandbox with the first use. The node's configuration has the default." xor:"mode"`
	Persistence string            `help:"What outlives a sandbox: none, session (files below /workspace) or snapshot (everything)." enum:"none,session,snapshot," default:"" placeholder:"WHAT"`
	Template    string            `help:"Template of its sandboxes; else the one with the node's packages." placeholder:"TEMPLATE"`
	Capacity    string            `help:"Capacity of its volume, like 300MiB." placeholder:"SIZE"`
	TTL         string            `name:"ttl" help:"How long it and its volume are kept without use." placeholder:"D"`
	Dormancy    string            `help:"How long its sandbox is kept without use." placeholder:"D"`
	Memory      string            `help:"Memory of its sandboxes, like 1280MiB." placeholder:"SIZE"`
	VCPUs       float64           `name:"vcpus" help:"Processors' worth of time." placeholder:"N"`
	Env         map[string]string `short:"e" help:"Environment variable of every program in it; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Meta        map[string]string `short:"m" help:"Label; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	networkFlags
}

func (sessionCreate) Help() string {
	return `Only the ID is printed on standard output.

Examples:
  engi session create
  engi session create chat --warm --ttl 2h
  engi session create --allow '*.example.com:443' --persistence none`
}

// Run implements the command.
func (s *sessionCreate) Run(ctx context.Context, g *globals) (err error) {
	q := v1.SessionRequest{Name: s.Name, Persistence: s.Persistence, Template: s.Template, VCPUs: s.VCPUs, Env: s.Env, Metadata: s.Meta}
	switch {
	case s.Warm:
		q.Mode = string(engi.SessionWarm)
	case s.Lazy:
		q.Mode = string(engi.SessionLazy)
	}
	if q.Capacity, err = size("--capacity", s.Capacity); err != nil {
		return err
	}
	if q.Memory, err = size("--memory", s.Memory); err != nil {
		return err
	}
	if q.TTL, err = duration("--ttl", s.TTL); err != nil {
		return err
	}
	if q.Dormancy, err = duration("--dormancy", s.Dormancy); err != nil {
		return err
	}
	if q.Network, err = s.policy(); err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.Session, error) { return d.CreateSession(ctx, q) }, func(x v1.Session) string { return x.ID })
}

type sessionList struct {
	Quiet bool `short:"q" help:"Print IDs only."`
}

func (sessionList) Help() string {
	return `Examples:
  engi session list
  engi session kill $(engi session list -q)`
}

// Run implements the command.
func (s *sessionList) Run(ctx context.Context, g *globals) error {
	sessions := table[v1.Session]{"NAME\tID\tSTATE\tSANDBOX\tUSED\tENDS IN", func(x v1.Session) []any {
		return []any{x.Name, x.ID, x.State, x.SandboxID, ago(x.UsedAt), short(time.Until(x.ExpiresAt))}
	}, func(x v1.Session) string { return x.ID }}
	return sessions.list(ctx, g, s.Quiet, func(d *connection) ([]v1.Session, error) { return d.Sessions(ctx) })
}

type sessionRun struct {
	ID      string            `arg:"" help:"Session." placeholder:"SESSION"`
	File    string            `arg:"" optional:"" help:"Program to run; - reads it from standard input. Files that end in .js are JavaScript." placeholder:"FILE"`
	Code    string            `short:"c" help:"Run CODE instead of a file." placeholder:"CODE"`
	Timeout string            `help:"Longest time, like 30s; else the node's." placeholder:"D"`
	Env     map[string]string `short:"e" help:"Variable that the code may read; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
}

func (sessionRun) Help() string {
	return `What the code prints comes while it runs; then the value of its last expression, or of its
default export, is printed as JSON. It may import the node's packages ('engi session deps')
and modules below /workspace. Ctrl-C ends it.

Examples:
  engi session run chat -c 'const n: number = 6; n * 7'
  engi session run chat report.ts
  engi session run chat -c 'import { LinearClient } from "@linear/sdk"; typeof LinearClient'`
}

// Run implements the command.
func (s *sessionRun) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	code, err := (&jsCommand{File: s.File, Code: s.Code}).program()
	if err != nil {
		return err
	}
	q := v1.CodeRequest{Code: code, Timeout: timeout, Env: s.Env}
	if strings.HasSuffix(s.File, ".js") || strings.HasSuffix(s.File, ".mjs") {
		q.Language = string(engi.JavaScript)
	}
	var x v1.CodeResult
	err = g.atServer(ctx, func(d *connection) error {
		if g.JSON {
			x, err = d.RunCode(ctx, s.ID, q)
			return err
		}
		for e, err := range d.StreamCode(ctx, s.ID, q) {
			if err != nil {
				return err
			}
			if e.Result != nil {
				x = *e.Result
				continue
			}
			to := g.out
			if e.Type == v1.EventStderr {
				to = g.err
			}
			data := e.DataBase64
			if data == nil {
				data = []byte(e.Data)
			}
			if _, err := to.Write(data); err != nil && !errors.Is(err, os.ErrClosed) {
				return engi.Errorf(engi.Unavailable, "print: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if g.JSON {
		if err := g.printJSON(x); err != nil {
			return err
		}
	} else {
		g.showCode(x)
	}
	if !x.Success {
		return exitCode(1)
	}
	return nil
}

func (g *globals) showCode(x v1.CodeResult) {
	for _, w := range x.Warnings {
		g.note("%s", w)
	}
	if !x.Success {
		fmt.Fprintln(g.err, x.Error)
		if x.Detail != nil && x.Detail.Stack != "" {
			fmt.Fprintln(g.err, "    "+strings.ReplaceAll(x.Detail.Stack, "\n", "\n    "))
		}
		return
	}
	if len(x.Result) > 0 {
		_, _ = io.WriteString(g.out, string(x.Result)+"\n") // nobody reads it any more
	}
}

type sessionRelease struct {
	IDs []string `arg:"" name:"session" help:"Sessions." placeholder:"SESSION"`
}

func (sessionRelease) Help() string {
	return `Examples:
  engi session release chat`
}

// Run implements the command.
func (s *sessionRelease) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, s.IDs, func(d *connection, id string) (v1.Session, error) { return d.ReleaseSession(ctx, id) },
		func(x v1.Session) string { return x.ID + " " + x.State })
}

type sessionKill struct {
	IDs []string `arg:"" name:"session" help:"Sessions." placeholder:"SESSION"`
}

func (sessionKill) Help() string {
	return `Examples:
  engi session kill chat`
}

// Run implements the command.
func (s *sessionKill) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "terminated", s.IDs, func(d *connection, id string) error { return d.TerminateSession(ctx, id) })
}

type sessionDeps struct {
	Wait bool `help:"Wait until they are installed or that has failed."`
}

func (sessionDeps) Help() string {
	return `Exits with 1 if the installation has failed.

Examples:
  engi session deps
  engi session deps --wait`
}

// Run implements the command.
func (s *sessionDeps) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.Dependencies(ctx)
		step := ""
		for err == nil && s.Wait && x.State == string(engi.DependenciesBuilding) {
			if x.Step != step {
				step = x.Step
				g.note("%s", step)
			}
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			x, err = d.Dependencies(ctx)
		}
		if err != nil {
			return err
		}
		if err := g.showDependencies(x); err != nil {
			return err
		}
		if x.State == string(engi.DependenciesFailed) {
			return exitCode(1)
		}
		return nil
	})
}

func (g *globals) showDependencies(x v1.Dependencies) error {
	if g.JSON {
		return g.printJSON(x)
	}
	packages := table[v1.Dependency]{"PACKAGE\tVERSION\tSECRET\tHOSTS", func(p v1.Dependency) []any {
		return []any{p.Package, cmp.Or(p.Version, "newest"), p.SecretEnv, strings.Join(p.Hosts, " ")}
	}, nil}
	if err := packages.print(g, x.Packages); err != nil {
		return err
	}
	fmt.Fprintf(g.out, "\n%s: template %s\n", x.State, x.Wanted)
	if x.Step != "" {
		fmt.Fprintln(g.out, "now:", x.Step)
	}
	if x.Template != "" && x.Template != x.Wanted {
		fmt.Fprintln(g.out, "sessions get", x.Template, "until then")
	}
	if x.Error != "" {
		fmt.Fprintln(g.err, x.Error)
		fmt.Fprintln(g.err, "remedy:", x.Remedy)
	}
	return nil
}

func (g *globals) showSession(x v1.Session) {
	var f facts
	f.add("session", "%s", x.ID)
	f.add("name", "%s", x.Name)
	f.add("state", "%s, mode %s, persistence %s", x.State, x.Mode, x.Persistence)
	f.add("sandbox", "%s", orDash(x.SandboxID))
	f.add("volume", "%s, %s", orDash(x.VolumeID), x.Capacity)
	f.add("memory", "%s", x.Size.Memory)
	if x.Network != nil {
		f.add("network", "%s %s", x.Network.Mode, strings.Join(x.Network.Allow, " "))
	}
	f.add("used", "%s", ago(x.UsedAt))
	if x.State != string(engi.SessionTerminated) {
		f.add("ends in", "%s without use", short(time.Until(x.ExpiresAt)))
	}
	if len(x.Metadata) > 0 {
		f.add("words", "%s", words(x.Metadata))
	}
	f.print(g)
}
