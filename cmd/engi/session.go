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

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

type sessionCommand struct {
	Create  sessionCreate            `cmd:"" help:"Create a session."`
	List    sessionList              `cmd:"" aliases:"ls" help:"List sessions."`
	Show    showCommand              `cmd:"" aliases:"get" help:"Show a session."`
	Run     sessionRun               `cmd:"" help:"Run TypeScript in a session."`
	Shell   sessionShell             `cmd:"" help:"Open a shell in a session, or reattach to it."`
	Release actCommand[sessionNames] `cmd:"" help:"Release the sandboxes of sessions, and keep their volumes."`
	Attach  sessionAttach            `cmd:"" help:"Attach a client to a session, and resume the session."`
	Detach  sessionDetach            `cmd:"" help:"Detach a client from a session; programs keep running."`

	Suspend   actCommand[sessionNames] `cmd:"" aliases:"pause" help:"Pause the sandboxes of sessions in memory."`
	Hibernate actCommand[sessionNames] `cmd:"" help:"Hibernate the sandboxes of sessions to disk, with their processes."`
	Resume    actCommand[sessionNames] `cmd:"" help:"Resume sessions."`

	Save sessionSave              `cmd:"" help:"Copy the files of sessions to the node's file store."`
	Push sessionPush              `cmd:"" help:"Commit and push the changes in a session's repository."`
	Kill actCommand[sessionNames] `cmd:"" aliases:"rm,terminate" help:"End sessions, and delete their volumes."`
	Deps sessionDeps              `cmd:"" help:"Show the packages that code in sessions can import, and the state of their installation."`
}

var sessionCommands = sessionCommand{
	Show:    shows(example("engi session show chat", "engi session show chat --json"), (*globals).showSession, (*client.Client).Session),
	Release: acts[sessionNames](example("engi session release chat"), (*client.Client).ReleaseSession, sessionState),
	Suspend: acts[sessionNames](`Any use resumes a session.

`+example("engi session suspend chat"), (*client.Client).SuspendSession, sessionState),
	Hibernate: acts[sessionNames](`Any use resumes a session.

`+example("engi session hibernate chat"), (*client.Client).HibernateSession, sessionState),
	Resume: acts[sessionNames](`Sessions without a sandbox get one.

`+example("engi session resume chat"), (*client.Client).ResumeSession, sessionState),
	Kill: ends[sessionNames](example("engi session kill chat"), "terminated", (*client.Client).TerminateSession),
}

type sessionCreate struct {
	Name        string            `arg:"" optional:"" help:"Name." placeholder:"NAME"`
	Warm        bool              `help:"Boot the sandbox at once." xor:"mode"`
	Lazy        bool              `help:"Boot the sandbox on first use. The node's configuration has the default." xor:"mode"`
	Persistence string            `help:"Data that outlives a sandbox: none, session (files below /workspace), workspace (the same, with a copy in the node's file store), overlay (changes of the disk) or snapshot (everything)." enum:"none,session,workspace,overlay,snapshot," default:"" placeholder:"WHAT"`
	Template    string            `help:"Template (default: the template with the node's packages)." placeholder:"TEMPLATE"`
	Workspace   string            `help:"Work in the sandbox of this workspace, with its files and services, instead of one of its own." placeholder:"NAME"`
	Capacity    string            `help:"Capacity of the volume, like 300MiB." placeholder:"SIZE"`
	TTL         string            `name:"ttl" help:"Time without use after which the session and its volume are deleted." placeholder:"D"`
	Dormancy    string            `help:"Time without use after which the sandbox is released." placeholder:"D"`
	MaxDuration string            `help:"Maximum lifetime, in use or not." placeholder:"D"`
	Memory      string            `help:"Memory of the sandbox, like 1280MiB." placeholder:"SIZE"`
	VCPUs       float64           `name:"vcpus" help:"Processor time, in processors; 0.5 is half of one." placeholder:"N"`
	CPUQuota    float64           `name:"cpu-quota" help:"Sustained processor time, in processors." placeholder:"N"`
	Inodes      int64             `help:"Maximum number of files outside of the volume." placeholder:"N"`
	Env         map[string]string `short:"e" help:"Environment variable of every program in the sandbox; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Meta        map[string]string `short:"m" help:"Label; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Git         string            `help:"Clone the git repository at URL into the sandbox." placeholder:"URL"`
	Ref         string            `help:"Branch, tag or commit to clone." placeholder:"REF"`
	Depth       int               `help:"Number of commits to clone." placeholder:"N"`
	Submodules  bool              `help:"Also clone submodules."`
	GitSecret   string            `help:"Secret with the password or token of the repository, optionally as USER:SECRET." placeholder:"[USER:]SECRET"`
	Push        string            `help:"Allow pushes: on demand, or also when the sandbox is released." enum:"demand,release," default:"" placeholder:"WHEN"`
	Branch      string            `help:"Branch to push to." placeholder:"BRANCH"`
	networkFlags
}

func (sessionCreate) Help() string {
	return `Prints only the ID on standard output.

Examples:
  engi session create
  engi session create chat --warm --ttl 2h
  engi session create notes --workspace shop
  engi session create --allow '*.example.com:443' --persistence none
  engi session create fix --git https://github.com/owner/repository.git --git-secret github --push demand`
}

func (s *sessionCreate) Run(ctx context.Context, g *globals) (err error) {
	q := v1.SessionRequest{Name: s.Name, Persistence: s.Persistence, Template: s.Template, Workspace: s.Workspace, VCPUs: s.VCPUs, CPUQuota: s.CPUQuota, Inodes: s.Inodes, Env: s.Env, Metadata: s.Meta}
	if q.Git, err = s.repository(); err != nil {
		return err
	}
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
	if q.MaxDuration, err = duration("--max-duration", s.MaxDuration); err != nil {
		return err
	}
	if q.Network, err = s.policy(); err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.Session, error) { return d.CreateSession(ctx, q) }, func(x v1.Session) string { return x.ID })
}

func (s *sessionCreate) repository() (*v1.Git, error) {
	if s.Git == "" {
		if s.Ref+s.GitSecret+s.Push+s.Branch != "" || s.Depth != 0 || s.Submodules {
			return nil, engi.Errorf(engi.Invalid, "--ref, --depth, --submodules, --git-secret, --push and --branch need a repository").WithRemedy("name it with --git URL")
		}
		return nil, nil
	}
	g := &v1.Git{URL: s.Git, Ref: s.Ref, Depth: s.Depth, Submodules: s.Submodules, Secret: s.GitSecret}
	if user, name, ok := strings.Cut(s.GitSecret, ":"); ok {
		g.User, g.Secret = user, name
	}
	if s.Push != "" {
		g.Push = &v1.GitPush{OnRelease: s.Push == "release", Branch: s.Branch}
	} else if s.Branch != "" {
		return nil, engi.Errorf(engi.Invalid, "--branch without --push").WithRemedy("add --push demand or --push release")
	}
	return g, nil
}

type sessionSave struct {
	IDs []string `arg:"" name:"session" help:"Sessions with persistence workspace." placeholder:"SESSION"`
}

func (sessionSave) Help() string {
	return `The same happens whenever a sandbox is released. Only data that the store does not have is sent.

Examples:
  engi session save notebook`
}

func (s *sessionSave) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, s.IDs, func(d *connection, id string) (v1.WorkspaceCopy, error) { return d.SaveSession(ctx, id) },
		func(x v1.WorkspaceCopy) string {
			return fmt.Sprintf("%d files, %s, %s of it new", x.Files, x.Bytes, x.Uploaded)
		})
}

type sessionPush struct {
	ID      string `arg:"" help:"Session." placeholder:"SESSION"`
	Branch  string `help:"Branch to push to (default: the session's)." placeholder:"BRANCH"`
	Author  string `help:"Author of the commit, like 'Ann <ann@example.com>'." placeholder:"AUTHOR"`
	Message string `short:"m" help:"Message of the commit." placeholder:"TEXT"`
}

func (sessionPush) Help() string {
	return `Prints the branch. If somebody else has pushed to the requested branch, a new branch is pushed.

Examples:
  engi session push fix
  engi session push fix --branch fix-login -m 'Fix the login'`
}

func (s *sessionPush) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.PushSession(ctx, s.ID, v1.GitPush{Branch: s.Branch, Author: s.Author, Message: s.Message})
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(x)
		}
		switch {
		case x.Conflict:
			g.note("others have pushed to the branch, so the work is in a new one")
		case x.Unchanged:
			g.note("the branch has everything already")
		}
		_, err = fmt.Fprintln(g.out, x.Branch, x.Commit)
		return err
	})
}

type sessionList struct {
	Quiet bool `short:"q" help:"Print IDs only."`
}

func (sessionList) Help() string {
	return example("engi session list", "engi session kill $(engi session list -q)")
}

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
	Timeout string            `help:"Maximum run time, like 30s (default: the node's limit)." placeholder:"D"`
	Env     map[string]string `short:"e" help:"Environment variable of the code; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
}

func (sessionRun) Help() string {
	return `The code's output is printed live; then the value of its last expression, or of its default export,
is printed as JSON. The code can import the node's packages ('engi session deps') and modules below
/workspace. Ctrl-C ends it.

Examples:
  engi session run chat -c 'const n: number = 6; n * 7'
  engi session run chat report.ts
  engi session run chat -c 'import { LinearClient } from "@linear/sdk"; typeof LinearClient'`
}

func (s *sessionRun) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", s.Timeout)
	if err != nil {
		return err
	}
	code, err := (&scriptCommand{File: s.File, Code: s.Code}).program()
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
		_, _ = io.WriteString(g.out, string(x.Result)+"\n") // an error means that the reader of the output has left
	}
}

type sessionShell struct {
	ID   string `arg:"" help:"Session." placeholder:"SESSION"`
	User string `short:"u" help:"User in the sandbox (default: the template's)." placeholder:"USER"`
	Dir  string `short:"w" help:"Working directory." placeholder:"DIR"`
	New  bool   `help:"Start a new shell even if an earlier one is still running."`
}

func (sessionShell) Help() string {
	return `Reattaches to the shell that was left with Ctrl-], and prints the output since then. If there is
none, starts a shell. A session without a sandbox gets one; a sleeping sandbox is resumed.

Examples:
  engi session shell chat`
}

func (s *sessionShell) Run(ctx context.Context, g *globals) error {
	return g.shell(ctx, s.ID, s.User, s.Dir, s.New)
}

type sessionAttach struct {
	ID     string `arg:"" help:"Session." placeholder:"SESSION"`
	Client string `help:"Name of the client." default:"default" placeholder:"NAME"`
}

func (sessionAttach) Help() string {
	return `An attached client does not keep the sandbox awake. For a shell, use 'engi session shell'.

Examples:
  engi session attach chat --client laptop`
}

func (s *sessionAttach) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, []string{s.ID}, func(d *connection, id string) (v1.Session, error) { return d.AttachSession(ctx, id, s.Client) }, sessionState)
}

type sessionDetach struct {
	ID     string `arg:"" help:"Session." placeholder:"SESSION"`
	Client string `help:"Name of the client." default:"default" placeholder:"NAME"`
}

func (sessionDetach) Help() string {
	return `When the last client detaches, the sandbox is stopped (persistence none) or hibernated (snapshot),
or its files are saved (workspace).

Examples:
  engi session detach chat --client laptop`
}

func (s *sessionDetach) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, []string{s.ID}, func(d *connection, id string) (v1.Session, error) { return d.DetachSession(ctx, id, s.Client) }, sessionState)
}

func sessionState(x v1.Session) string { return x.ID + " " + x.State }

type sessionDeps struct {
	Wait bool `help:"Wait until the packages are installed or the installation has failed."`
}

func (sessionDeps) Help() string {
	return `Exits with 1 if the installation has failed.

Examples:
  engi session deps
  engi session deps --wait`
}

func (s *sessionDeps) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.Dependencies(ctx)
		step := ""
		for err == nil && s.Wait && x.State == string(engi.DependenciesBuilding) {
			if x.Step != step {
				step = x.Step
				g.note("%s", step)
			}
			if clock.Sleep(ctx, 300*time.Millisecond) != nil {
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
	for _, a := range x.Attached {
		f.add("attached", "%s, %s", strings.TrimSpace(a.Via+" "+a.Client), ago(a.Since))
	}
	f.add("sandbox", "%s", orDash(x.SandboxID))
	f.add("volume", "%s, %s", orDash(x.VolumeID), x.Capacity)
	f.add("memory", "%s", x.Size.Memory)
	if x.Network != nil {
		f.add("network", "%s %s", x.Network.Mode, strings.Join(x.Network.Allow, " "))
	}
	if x.Git != nil {
		f.add("repository", "%s %s", x.Git.URL, x.Git.Ref)
	}
	if x.SavedAt != nil {
		f.add("saved", "%s", ago(*x.SavedAt))
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
