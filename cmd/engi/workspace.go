package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type workspaceCommand struct {
	Create   workspaceCreate  `cmd:"" help:"Create a workspace, and wait until its services are healthy."`
	List     workspaceList    `cmd:"" aliases:"ls" help:"List workspaces."`
	Show     showCommand      `cmd:"" aliases:"get" help:"Show a workspace with its services."`
	Start    workspaceStart   `cmd:"" help:"Start the sandbox and the services of a workspace."`
	Stop     workspaceStop    `cmd:"" help:"Destroy the sandboxes of workspaces, and keep files, history and data of services."`
	Share    workspaceShare   `cmd:"" help:"Share a workspace with another owner."`
	Unshare  workspaceUnshare `cmd:"" help:"Stop sharing a workspace with an owner."`
	Remove   removeCommand    `cmd:"" name:"rm" aliases:"remove,kill" help:"Delete workspaces, their history and the data of their services."`
	Exec     workspaceExec    `cmd:"" aliases:"run" help:"Run a program in a workspace, and print its output live."`
	Files    workspaceFiles   `cmd:"" help:"List the files of a workspace."`
	Cat      workspaceCat     `cmd:"" help:"Print a file of a workspace."`
	Write    workspaceWrite   `cmd:"" help:"Write or delete one file of a workspace."`
	Move     workspaceMove    `cmd:"" name:"mv" aliases:"move" help:"Move or rename a file or a directory of a workspace."`
	History  workspaceHistory `cmd:"" aliases:"log" help:"List the revisions of a workspace."`
	Diff     workspaceDiff    `cmd:"" help:"Compare two revisions of a workspace."`
	Restore  workspaceRestore `cmd:"" help:"Restore files of a workspace from an earlier revision."`
	Blame    workspaceBlame   `cmd:"" help:"Show the revision that last changed each line of a file."`
	Clone    workspaceClone   `cmd:"" help:"Clone the history of a workspace with git, to work on it here."`
	Preview  workspacePreview `cmd:"" help:"Serve files of a workspace, or a port of its sandbox, as a preview."`
	Service  serviceCommand   `cmd:"" help:"Add and manage services of workspaces."`
	Connect  workspaceConnect `cmd:"" help:"Listen on this machine, and forward connections to a service."`
	Sql      workspaceSQL     `cmd:"" name:"sql" help:"Query a database of a workspace."`
	Explain  workspaceExplain `cmd:"" help:"Explain how a database would run a query."`
	Tables   workspaceTables  `cmd:"" help:"List the tables of a database of a workspace."`
	Describe workspaceTable   `cmd:"" help:"Describe a table."`
	Find     workspaceFind    `cmd:"" help:"Find or aggregate documents of a mongodb service."`
	Redis    workspaceRedis   `cmd:"" help:"Run a Redis command."`
	Git      gitCredential    `cmd:"" name:"git-credential" help:"Act as git's credential helper, and return the API key."`
}

var workspaceCommands = workspaceCommand{
	Show:   shows(example("engi workspace show shop", "engi workspace show shop --json | jq '.services[].host'"), (*globals).showWorkspace, (*client.Client).Workspace),
	Remove: removes(example("engi workspace rm shop"), "removed", (*client.Client).RemoveWorkspace),
}

type workspaceCreate struct {
	Name     string            `arg:"" optional:"" help:"Name of the app (default: a generated name)." placeholder:"NAME"`
	Service  []string          `short:"s" help:"Service: postgres, mysql, redis, mongodb or nginx, optionally with a version after a colon; may be repeated." placeholder:"[NAME=]TYPE[:VERSION]" sep:"none"`
	Template string            `short:"t" help:"Template of the workspace's sandbox." default:"base" placeholder:"TEMPLATE"`
	Meta     map[string]string `short:"m" help:"Label; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
}

func (workspaceCreate) Help() string {
	return `Prints only the ID on standard output, and the start of services on standard error. Exits with 1 if
a service fails; the workspace exists anyway, and 'engi workspace service logs' shows why.

Examples:
  engi workspace create shop --service postgres --service redis
  engi workspace create shop --service main=postgres:15 --json | jq -r .id`
}

func (w *workspaceCreate) Run(ctx context.Context, g *globals) error {
	q := v1.WorkspaceRequest{Name: w.Name, Template: w.Template, Metadata: w.Meta}
	for _, s := range w.Service {
		name, kind, named := strings.Cut(s, "=")
		if !named {
			name, kind = "", s
		}
		kind, version, _ := strings.Cut(kind, ":")
		q.Services = append(q.Services, v1.ServiceRequest{Name: name, Type: kind, Version: version})
	}
	return g.atServer(ctx, func(d *connection) error {
		name := w.Name
		if _, err := d.Workspace(ctx, name); name == "" || !client.IsKind(err, v1.NotFound) {
			name = "" // the new workspace has other services
		}
		return g.showStarting(ctx, d, name, func() (v1.Workspace, error) { return d.CreateWorkspace(ctx, q) }, func(x v1.Workspace) string { return x.ID })
	})
}

// showStarting waits for work, during which services of a workspace start. It prints their
// states, and the line for the workspace that work returns. An empty name means that it is not
// known yet.
func (g *globals) showStarting(ctx context.Context, d *connection, name string, work func() (v1.Workspace, error), line func(v1.Workspace) string) error {
	seen := map[string]string{}
	tell := func(x v1.Workspace) {
		for _, s := range x.Services {
			if seen[s.Name] == s.State || g.JSON {
				continue
			}
			seen[s.Name] = s.State
			g.note("%s is %s", s.Name, s.State)
		}
	}
	type outcome struct {
		x   v1.Workspace
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		x, err := work() // work ends with ctx
		done <- outcome{x, err}
	}()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if name == "" || g.JSON {
				continue
			}
			if x, err := d.Workspace(ctx, name); err == nil { // otherwise work returns the error
				tell(x)
			}
			continue
		case o := <-done:
			if o.err != nil {
				return o.err
			}
			tell(o.x)
			if g.JSON {
				if err := g.printJSON(o.x); err != nil {
					return err
				}
			} else if _, err := fmt.Fprintln(g.out, line(o.x)); err != nil {
				return err
			}
			return failedWorkspace(o.x)
		}
	}
}

// failedWorkspace returns the error of a failed workspace or of its first failed service; nil if none has failed.
func failedWorkspace(x v1.Workspace) error {
	if x.State == v1.WorkspaceFailed && x.Error != nil {
		return &client.Error{Problem: *x.Error}
	}
	for _, s := range x.Services {
		if err := failedService(x.Name, s); err != nil {
			return err
		}
	}
	return nil
}

// failedService returns the error of a failed service; nil for other states.
func failedService(workspace string, s v1.Service) error {
	switch {
	case s.State != v1.ServiceFailed:
		return nil
	case s.Error != nil:
		return &client.Error{Problem: *s.Error}
	}
	return engi.Errorf(engi.Unavailable, "service %s of workspace %s has failed", s.Name, workspace).WithRemedy("see 'engi workspace service logs %s %s'", workspace, s.Name)
}

type workspaceList struct {
	Quiet bool `short:"q" help:"Print IDs only."`
}

func (workspaceList) Help() string {
	return `Includes workspaces that others have shared with you. The newest come first.

Examples:
  engi workspace list
  engi workspace rm $(engi workspace list -q)`
}

func (w *workspaceList) Run(ctx context.Context, g *globals) error {
	all := table[v1.Workspace]{"NAME\tID\tOWNER\tSTATE\tREVISION\tSERVICES\tUSED", func(x v1.Workspace) []any {
		used, services := "", make([]string, len(x.Services))
		if x.UsedAt != nil {
			used = ago(*x.UsedAt)
		}
		for i, s := range x.Services {
			services[i] = s.Name
		}
		return []any{x.Name, x.ID, x.Owner, x.State, x.Revision, strings.Join(services, ","), used}
	}, func(x v1.Workspace) string { return x.ID }}
	return all.list(ctx, g, w.Quiet, func(d *connection) ([]v1.Workspace, error) { return d.Workspaces(ctx) })
}

func (g *globals) showWorkspace(x v1.Workspace) {
	var f facts
	f.add("workspace", "%s", x.ID)
	f.add("name", "%s", x.Name)
	f.add("owner", "%s", x.Owner)
	f.add("template", "%s", x.Template)
	f.add("state", "%s", x.State)
	if x.Error != nil {
		f.add("error", "%s", x.Error.Detail)
		f.add("remedy", "%s", x.Error.Remedy)
	}
	f.add("sandbox", "%s", x.SandboxID)
	f.add("revision", "%d", x.Revision)
	for _, c := range x.Collaborators {
		f.add("shared", "with %s as %s", c.Owner, c.Role)
	}
	if p := x.Preview; p != nil {
		who := "who works in it"
		if p.Public {
			who = "everybody"
		}
		f.add("preview", "%s for %s", p.URL, who)
	}
	f.add("created", "%s", ago(x.CreatedAt))
	f.print(g)
	if len(x.Services) > 0 {
		fmt.Fprintln(g.out)
		_ = services.print(g, x.Services) // a table reports no errors
	}
}

type workspaceStart struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
}

func (workspaceStart) Help() string {
	return `Prints the ID of the sandbox with the working copy, once the services are healthy. Exits with 1 if a
service fails.

Examples:
  engi workspace start shop
  engi sandbox shell "$(engi workspace start shop)"`
}

func (w *workspaceStart) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		return g.showStarting(ctx, d, w.Name, func() (v1.Workspace, error) { return d.StartWorkspace(ctx, w.Name) }, func(x v1.Workspace) string { return x.SandboxID })
	})
}

type workspaceStop struct {
	Names []string `arg:"" name:"workspace" help:"Workspaces." placeholder:"WORKSPACE"`
}

func (workspaceStop) Help() string {
	return `Changes in the working copy become a revision first.

Examples:
  engi workspace stop shop`
}

func (w *workspaceStop) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, w.Names, func(d *connection, name string) (v1.Workspace, error) { return d.StopWorkspace(ctx, name) },
		func(x v1.Workspace) string { return x.ID + " " + x.State })
}

type workspaceShare struct {
	Name  string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Owner string `arg:"" help:"Owner with whom to share the workspace." placeholder:"OWNER"`
	Role  string `help:"Role: viewer, reviewer or editor." default:"viewer" placeholder:"ROLE"`
}

func (workspaceShare) Help() string {
	return `A viewer reads files and services; a reviewer also reads tables and runs read-only queries; an
editor also changes files, services and databases. A new role replaces an earlier one.

Examples:
  engi workspace share shop bob --role editor`
}

func (w *workspaceShare) Run(ctx context.Context, g *globals) error {
	return g.share(ctx, w.Name, v1.WorkspaceUpdate{Share: []v1.Collaborator{{Owner: w.Owner, Role: w.Role}}})
}

type workspaceUnshare struct {
	Name  string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Owner string `arg:"" help:"Owner with whom to stop sharing." placeholder:"OWNER"`
}

func (workspaceUnshare) Help() string { return example("engi workspace unshare shop bob") }

func (w *workspaceUnshare) Run(ctx context.Context, g *globals) error {
	return g.share(ctx, w.Name, v1.WorkspaceUpdate{Unshare: []string{w.Owner}})
}

func (g *globals) share(ctx context.Context, name string, u v1.WorkspaceUpdate) error {
	return create(ctx, g, func(d *connection) (v1.Workspace, error) { return d.ChangeWorkspace(ctx, name, u) },
		func(x v1.Workspace) string { return x.ID })
}

type workspacePreview struct {
	Name      string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Static    string `xor:"what" help:"Serve the files below this directory; . is the whole workspace." placeholder:"DIR"`
	Port      int    `xor:"what" help:"Serve this port of the sandbox." placeholder:"PORT"`
	Off       bool   `xor:"what" help:"Turn the preview off."`
	Link      bool   `xor:"what" help:"Print a link with which everybody can open the preview."`
	WebSocket bool   `name:"websocket" help:"With --port: print a WebSocket URL."`
	Public    bool   `help:"With --static or --port: make the preview public (default: only for collaborators)."`
	Service   string `short:"s" help:"With --link: link to the pages of this service, which must be exposed." placeholder:"SERVICE"`
	TTL       string `name:"ttl" help:"With --link: lifetime of the link (default: one hour)." placeholder:"D"`
}

func (workspacePreview) Help() string {
	return `Prints the URL, which never changes. Serving files needs no sandbox, and a URL without a file serves
index.html.

Examples:
  engi workspace preview shop --static dist
  engi workspace preview shop --port 3000
  engi workspace preview shop --static . --public
  engi workspace preview shop --link --ttl 24h
  engi workspace preview shop --off`
}

func (w *workspacePreview) Run(ctx context.Context, g *globals) error {
	ttl, err := duration("--ttl", w.TTL)
	if err != nil {
		return err
	}
	shows := w.Static != "" || w.Port != 0
	switch {
	case w.Public && !shows:
		return engi.Errorf(engi.Invalid, "--public says who may see something").WithRemedy("name the preview with --static or --port")
	case w.WebSocket && w.Port == 0:
		return engi.Errorf(engi.Invalid, "--websocket is about a server").WithRemedy("name the port with --port")
	case (w.Service != "" || w.TTL != "") && !w.Link:
		return engi.Errorf(engi.Invalid, "--service and --ttl are about links").WithRemedy("create a link with --link")
	case w.Link:
		return create(ctx, g, func(d *connection) (v1.Link, error) { return d.LinkWorkspace(ctx, w.Name, w.Service, ttl.Std()) }, func(l v1.Link) string { return l.URL })
	}
	p := &v1.PreviewRequest{Type: v1.PreviewStatic, Port: w.Port, Public: w.Public}
	if root := strings.Trim(w.Static, "/"); root != "." {
		p.Root = root
	}
	switch {
	case w.Off:
		p.Type = v1.PreviewNone
	case w.WebSocket:
		p.Type = v1.PreviewWebSocket
	case w.Port != 0:
		p.Type = v1.PreviewProxy
	}
	return create(ctx, g, func(d *connection) (v1.Workspace, error) {
		if shows || w.Off {
			return d.ChangeWorkspace(ctx, w.Name, v1.WorkspaceUpdate{Preview: p})
		}
		x, err := d.Workspace(ctx, w.Name)
		if err == nil && x.Preview == nil {
			err = engi.Errorf(engi.NotFound, "workspace %s has no preview", x.Name).WithRemedy("turn its preview on with --static or --port")
		}
		return x, err
	}, func(x v1.Workspace) string {
		if x.Preview == nil {
			return x.ID
		}
		return x.Preview.URL
	})
}

type workspaceExec struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	execFlags
}

func (workspaceExec) Help() string {
	return `Runs the program in the working copy in the workspace's sandbox; a workspace without a sandbox gets
one. Output is printed live, standard input is passed on, and engi exits with the program's exit
code. Changed files become a revision before the next one.

Examples:
  engi workspace exec shop -- npm test
  engi workspace exec shop -c 'psql -h postgres.workspace.internal -c "select 1"'
  engi workspace exec -it shop -- python3`
}

func (w *workspaceExec) Run(ctx context.Context, g *globals) error {
	in := w.exec()
	if err := g.atServer(ctx, func(d *connection) error {
		x, err := d.Workspace(ctx, w.Name)
		if err == nil && x.State != v1.WorkspaceRunning {
			x, err = d.StartWorkspace(ctx, w.Name)
		}
		in.ID = x.SandboxID
		return err
	}); err != nil {
		return err
	}
	return in.Run(ctx, g)
}

type workspaceFiles struct {
	Name     string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Path     string `arg:"" optional:"" help:"Only files below this directory, or files that match this pattern." placeholder:"PATH"`
	Revision int64  `short:"r" help:"Revision (default: the last one, with the changes in the sandbox)." placeholder:"N"`
}

func (workspaceFiles) Help() string {
	return example("engi workspace files shop", "engi workspace files shop 'src/*.js' --revision 2")
}

func (w *workspaceFiles) Run(ctx context.Context, g *globals) error {
	files := table[v1.WorkspaceFile]{"PATH\tSIZE\tMODE", func(x v1.WorkspaceFile) []any { return []any{x.Path, int64(x.Size), x.Mode} }, nil}
	return files.list(ctx, g, false, func(d *connection) ([]v1.WorkspaceFile, error) {
		return d.WorkspaceFiles(ctx, w.Name, w.Path, w.Revision)
	})
}

type workspaceCat struct {
	Name     string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Path     string `arg:"" help:"File, relative to the workspace." placeholder:"PATH"`
	Revision int64  `short:"r" help:"Revision (default: the last one, with the changes in the sandbox)." placeholder:"N"`
}

func (workspaceCat) Help() string {
	return example("engi workspace cat shop README.md", "engi workspace cat shop README.md --revision 1")
}

func (w *workspaceCat) Run(ctx context.Context, g *globals) error {
	return g.cat(ctx, func(d *connection) (io.ReadCloser, error) {
		return d.WorkspaceFile(ctx, w.Name, w.Path, w.Revision)
	})
}

type workspaceWrite struct {
	Name    string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Path    string `arg:"" help:"File, relative to the workspace; a missing file is created." placeholder:"PATH"`
	With    string `xor:"how" help:"Read the content from FILE, or from standard input if FILE is -, instead of opening an editor." placeholder:"FILE"`
	Remove  bool   `xor:"how" help:"Delete the file."`
	Mode    string `help:"Mode: 0644 or 0755 (default: the existing file's mode, or 0644)." placeholder:"MODE"`
	Message string `short:"m" help:"Message of the revision." placeholder:"TEXT"`
	Base    int64  `help:"Revision that you have read; if the file has changed since, nothing is written." placeholder:"N"`
}

func (workspaceWrite) Help() string {
	return `Opens the file in the editor of VISUAL or EDITOR, and writes it when the editor exits. Prints the
number of the new revision.

Examples:
  engi workspace write shop README.md
  engi workspace write shop run.sh --with run.sh --mode 0755 --message 'Add a script'
  echo '# Shop' | engi workspace write shop README.md --with -
  engi workspace write shop old.txt --remove`
}

func (w *workspaceWrite) Run(ctx context.Context, g *globals) error {
	o := client.FileWrite{Message: w.Message, Base: w.Base}
	if w.Mode != "" {
		var err error
		if o.Mode, err = v1.ParseMode(w.Mode); err != nil {
			return engi.Errorf(engi.Invalid, "--mode: %v", err)
		}
	}
	return create(ctx, g, func(d *connection) (v1.WorkspaceRevision, error) {
		var content io.Reader
		switch w.With {
		case "-":
			content = g.in
		case "":
			if w.Remove {
				return d.RemoveWorkspaceFile(ctx, w.Name, w.Path, o)
			}
			text, err := w.edit(ctx, g, d)
			if err != nil {
				return v1.WorkspaceRevision{}, err
			}
			content = strings.NewReader(text)
		default:
			f, err := os.Open(w.With)
			if err != nil {
				return v1.WorkspaceRevision{}, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("name a file, or - to read standard input")
			}
			defer f.Close()
			content = f
		}
		return d.WriteWorkspaceFile(ctx, w.Name, w.Path, content, o)
	}, func(x v1.WorkspaceRevision) string { return fmt.Sprint(x.Number) })
}

func (w *workspaceWrite) edit(ctx context.Context, g *globals, d *connection) (string, error) {
	return g.edit(ctx, w.Path, func() (io.ReadCloser, error) {
		if _, err := d.Workspace(ctx, w.Name); err != nil {
			return nil, err
		}
		return orEmptyFile(d.WorkspaceFile(ctx, w.Name, w.Path, 0))
	})
}

type workspaceMove struct {
	Name    string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	From    string `arg:"" help:"File or directory, relative to the workspace." placeholder:"FROM"`
	To      string `arg:"" help:"New path, which must not exist." placeholder:"TO"`
	Message string `short:"m" help:"Message of the revision." placeholder:"TEXT"`
	Base    int64  `help:"Revision that you have read; if the files have changed since, nothing is moved." placeholder:"N"`
}

func (workspaceMove) Help() string {
	return `Prints the number of the new revision.

Examples:
  engi workspace mv shop notes.md docs/notes.md
  engi workspace mv shop src lib --message 'Rename src'`
}

func (w *workspaceMove) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.WorkspaceRevision, error) {
		return d.MoveWorkspaceFile(ctx, w.Name, w.From, w.To, client.FileWrite{Message: w.Message, Base: w.Base})
	}, func(x v1.WorkspaceRevision) string { return fmt.Sprint(x.Number) })
}

type workspaceHistory struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
}

func (workspaceHistory) Help() string {
	return `The newest come first.

Examples:
  engi workspace history shop
  engi workspace history shop --json | jq '.[0].changed'`
}

func (w *workspaceHistory) Run(ctx context.Context, g *globals) error {
	revisions := table[v1.WorkspaceRevision]{"REVISION\tCOMMIT\tCREATED\tBY\tFILES\tMESSAGE", func(x v1.WorkspaceRevision) []any {
		message, _, _ := strings.Cut(x.Message, "\n")
		return []any{x.Number, x.Commit[:min(len(x.Commit), 12)], ago(x.CreatedAt), x.Actor, len(x.Changed), message}
	}, nil}
	return revisions.list(ctx, g, false, func(d *connection) ([]v1.WorkspaceRevision, error) { return d.WorkspaceRevisions(ctx, w.Name) })
}

type workspaceDiff struct {
	Name string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	From int64  `arg:"" optional:"" help:"Revision (default: the one before the other revision)." placeholder:"FROM"`
	To   int64  `arg:"" optional:"" help:"Revision (default: the last one)." placeholder:"TO"`
}

func (workspaceDiff) Help() string {
	return `Examples:
  engi workspace diff shop            what the last revision has changed
  engi workspace diff shop 1          what has changed since revision 1
  engi workspace diff shop 1 2`
}

func (w *workspaceDiff) Run(ctx context.Context, g *globals) error {
	return g.showDiff(ctx, func(d *connection) (string, error) { return d.WorkspaceDiff(ctx, w.Name, w.From, w.To) })
}

type workspaceRestore struct {
	Name     string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Revision int64  `arg:"" help:"Revision." placeholder:"REVISION"`
	Path     string `arg:"" optional:"" help:"Only this file, or files below this directory." placeholder:"PATH"`
}

func (workspaceRestore) Help() string {
	return `The files become a new revision, whose number is printed. Databases stay unchanged.

Examples:
  engi workspace restore shop 1
  engi workspace restore shop 1 src`
}

func (w *workspaceRestore) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.WorkspaceRevision, error) {
		return d.RestoreWorkspace(ctx, w.Name, w.Revision, w.Path)
	},
		func(x v1.WorkspaceRevision) string { return fmt.Sprint(x.Number) })
}

type workspaceBlame struct {
	Name     string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Path     string `arg:"" help:"File, relative to the workspace." placeholder:"PATH"`
	Revision int64  `short:"r" help:"Revision (default: the last one, with the changes in the sandbox)." placeholder:"N"`
}

func (workspaceBlame) Help() string { return example("engi workspace blame shop README.md") }

func (w *workspaceBlame) Run(ctx context.Context, g *globals) error {
	lines := table[v1.BlameLine]{"REVISION\tCREATED\tBY\tLINE", func(x v1.BlameLine) []any { return []any{x.Revision, ago(x.CreatedAt), x.Actor, x.Text} }, nil}
	return lines.list(ctx, g, false, func(d *connection) ([]v1.BlameLine, error) { return d.WorkspaceBlame(ctx, w.Name, w.Path, w.Revision) })
}
