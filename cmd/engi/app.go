package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type appCommand struct {
	Create     appCreate            `cmd:"" help:"Create an app, and wait until its page is served."`
	List       appList              `cmd:"" aliases:"ls" help:"List apps."`
	Show       showCommand          `cmd:"" aliases:"get" help:"Show an app."`
	Apply      appApply             `cmd:"" help:"Apply a model's text to an app."`
	Edit       appEdit              `cmd:"" help:"Edit an app with a model."`
	Write      appWrite             `cmd:"" help:"Change one file of an app."`
	Cancel     removeCommand        `cmd:"" help:"Cancel the running apply or edit of apps."`
	Open       appOpen              `cmd:"" help:"Open the page of an app in a browser."`
	Watch      appWatch             `cmd:"" help:"Follow the events of an app."`
	Run        appRun               `cmd:"" help:"Run a program in an app, and print its output live."`
	Logs       appLogs              `cmd:"" help:"Print the log of an app's server."`
	Status     appStatus            `cmd:"" help:"Check an app's health."`
	Check      appCheck             `cmd:"" help:"Check an app for problems, also in a browser."`
	Screenshot appScreenshot        `cmd:"" help:"Take a screenshot of an app."`
	Files      appFiles             `cmd:"" help:"List the files of an app."`
	Cat        appCat               `cmd:"" help:"Print a file of an app."`
	Manifest   appManifest          `cmd:"" help:"Show the components, routes and imports of an app."`
	History    appHistory           `cmd:"" aliases:"log" help:"List the revisions of an app."`
	Diff       appDiff              `cmd:"" help:"Compare two revisions of an app."`
	Rollback   appRollback          `cmd:"" help:"Roll an app back to an earlier revision."`
	Snapshot   appSnapshot          `cmd:"" help:"Take a snapshot of an app with its databases."`
	Branch     appBranch            `cmd:"" help:"Create an app from a revision of another app."`
	Publish    appPublish           `cmd:"" help:"Build an app and serve the build without a sandbox."`
	Unpublish  actCommand[appNames] `cmd:"" help:"Stop serving the builds of apps."`
	Link       appLink              `cmd:"" help:"Create a link to a private app, or to its published build."`
	Zip        appZip               `cmd:"" help:"Download the files of an app as an archive."`
	Stop       actCommand[appNames] `cmd:"" help:"Destroy the sandboxes of apps, and keep files and history."`
	Kill       removeCommand        `cmd:"" aliases:"rm,remove" help:"Delete apps and their history."`
}

var appCommands = appCommand{
	Show:   shows(example("engi app show shop", "engi app show shop --json"), (*globals).showApp, (*client.Client).App),
	Cancel: removes(example("engi app cancel shop"), "cancelled", (*client.Client).CancelApply),
	Kill:   removes(example("engi app kill shop"), "removed", (*client.Client).RemoveApp),
	Stop: acts[appNames](`A stopped app gets a sandbox again when it is used.

`+example("engi app stop shop"), (*client.Client).StopApp, appState),
	Unpublish: acts[appNames](`The apps themselves stay unchanged.

`+example("engi app unpublish shop"), (*client.Client).UnpublishApp, func(x v1.App) string { return x.ID + " unpublished" }),
}

type appCreate struct {
	Name      string            `arg:"" optional:"" help:"Name of the app (default: a generated name)." placeholder:"NAME"`
	Template  string            `short:"t" help:"Template of the app (default: vite-react)." placeholder:"TEMPLATE"`
	Workspace string            `help:"Workspace whose services the app reaches by name." placeholder:"NAME"`
	Directory string            `help:"Directory of the workspace with the app's files; the server runs in the workspace's sandbox." placeholder:"DIR"`
	Start     string            `help:"Shell command that starts the server in the directory." placeholder:"COMMAND"`
	Port      int               `help:"Port of the server in the directory." placeholder:"PORT"`
	Replace   bool              `help:"Stop your other apps first."`
	Env       map[string]string `short:"e" help:"Environment variable of every program in the sandbox; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Meta      map[string]string `short:"m" help:"Label; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	networkFlags
}

func (appCreate) Help() string {
	return `Prints only the ID on standard output. If the template has not been built, it is built first, which
needs an admin key and takes minutes, once. Exits with 1 if the app's server does not start; the app
exists anyway, and 'engi app logs' shows why.

Examples:
  engi app create shop
  engi app create shop --json | jq -r .preview_url
  engi app create api --template node-api --env LOG=debug
  engi app create api --template node-api --workspace shop --env DATABASE_URL="$(engi workspace service connection shop postgres)"
  engi app create web --workspace shop --directory web --start 'npm start' --port 3000`
}

func (a *appCreate) Run(ctx context.Context, g *globals) (err error) {
	q := v1.AppRequest{Name: a.Name, Template: a.Template, Workspace: a.Workspace, Directory: a.Directory, Start: a.Start, Port: a.Port, Replace: a.Replace, Metadata: a.Meta, Env: a.Env}
	if q.Network, err = a.policy(); err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		if a.Directory == "" {
			if err := g.buildIfNeeded(ctx, d, cmp.Or(a.Template, "vite-react")); err != nil {
				return err
			}
		}
		x, err := d.CreateApp(ctx, q)
		if err != nil {
			return err
		}
		return g.showNewApp(x)
	})
}

// failedApp returns the error of a failed app; nil for other states.
func failedApp(x v1.App) error {
	switch {
	case x.State != v1.AppFailed:
		return nil
	case x.Error != nil:
		return &client.Error{Problem: *x.Error}
	}
	return engi.Errorf(engi.Unavailable, "the server of app %s does not answer", x.Name).WithRemedy("see 'engi app logs %s'", x.Name)
}

// buildIfNeeded builds a template whose definition is on the server but not built yet.
func (g *globals) buildIfNeeded(ctx context.Context, d *connection, name string) error {
	all, err := d.Templates(ctx)
	if client.IsKind(err, v1.Denied) {
		return nil // later steps show whether the template is built
	}
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(t v1.Template) bool { return t.Name == name && !t.Built }) {
		return nil
	}
	g.note("template %s is not built yet; this takes a while, once", name)
	p := newProgress(g)
	for e, err := range d.BuildTemplate(ctx, v1.TemplateRequest{Name: name}) {
		if err != nil {
			p.fail()
			return err
		}
		if e.Type != v1.EventResult {
			p.step(e)
		}
	}
	p.done()
	return nil
}

type appList struct {
	Quiet bool `short:"q" help:"Print IDs only."`
}

func (appList) Help() string {
	return `The newest come first.

Examples:
  engi app list
  engi app kill $(engi app list -q)`
}

func (a *appList) Run(ctx context.Context, g *globals) error {
	apps := table[v1.App]{"NAME\tID\tTEMPLATE\tSTATE\tREVISION\tUSED\tPREVIEW", func(x v1.App) []any {
		used := ""
		if x.UsedAt != nil {
			used = ago(*x.UsedAt)
		}
		return []any{x.Name, x.ID, x.Template, x.State, x.Revision, used, x.PreviewURL}
	}, func(x v1.App) string { return x.ID }}
	return apps.list(ctx, g, a.Quiet, func(d *connection) ([]v1.App, error) { return d.Apps(ctx) })
}

func (g *globals) showApp(x v1.App) {
	var f facts
	f.add("app", "%s", x.ID)
	f.add("name", "%s", x.Name)
	f.add("template", "%s", x.Template)
	f.add("workspace", "%s", x.WorkspaceID)
	f.add("directory", "%s", x.Directory)
	f.add("start", "%s", x.Start)
	f.add("state", "%s", x.State)
	if x.Error != nil {
		f.add("error", "%s", x.Error.Detail)
		f.add("remedy", "%s", x.Error.Remedy)
	}
	f.add("preview", "%s", x.PreviewURL)
	if p := x.Published; p != nil {
		f.add("published", "%s", p.URL)
		f.add("", "revision %d, %s", p.Revision, ago(p.At))
	}
	f.add("sandbox", "%s", x.SandboxID)
	f.add("revision", "%d", x.Revision)
	if x.Applying != 0 {
		f.add("applying", "since event %d", x.Applying)
	}
	f.add("created", "%s", ago(x.CreatedAt))
	f.print(g)
}

type appApply struct {
	Name    string `arg:"" name:"app" help:"App." placeholder:"APP"`
	File    string `arg:"" help:"File with the model's text; - reads standard input." placeholder:"FILE"`
	Message string `short:"m" help:"Message of the revision (default: made from the changes)." placeholder:"TEXT"`
	Keep    bool   `help:"Keep the result even if the server does not answer with it."`

	Snapshot bool `help:"Take a snapshot with the revision, which includes databases and processes."`

	Once   string `help:"Idempotency key: a text with the same key is applied only once." placeholder:"KEY"`
	Detach bool   `short:"d" help:"Print the seq of the apply, and do not wait for its end."`
}

func (appApply) Help() string {
	return `The files, edits, packages and commands in the text become one revision, whose number is printed, or
nothing changes: then the command exits with 1 and prints the reason. Progress is shown on standard
error. With --json, prints one object with the result. Ctrl-C stops waiting; 'engi app cancel'
cancels the apply.

Examples:
  engi app apply shop answer.txt
  llm 'Write a shop with React' | engi app apply shop -
  engi app apply shop answer.txt --message 'Add a cart' --once answer-42
  engi app apply shop answer.txt --snapshot`
}

// An applied is the result of an apply.
type applied struct {
	Seq      int64          `json:"seq"`
	State    string         `json:"state"` // done or failed
	Revision int64          `json:"revision,omitempty"`
	Files    []v1.AppUpdate `json:"files"`
	Packages []v1.AppUpdate `json:"packages"`
	Commands []v1.AppUpdate `json:"commands"`
	Warnings []v1.AppUpdate `json:"warnings"`
	Error    *v1.Problem    `json:"error,omitempty"`
}

func (a *appApply) Run(ctx context.Context, g *globals) error {
	text, err := g.text(a.File)
	if err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		seq, err := d.ApplyToApp(ctx, a.Name, v1.ApplyRequest{Text: text, Message: a.Message, Keep: a.Keep, Snapshot: a.Snapshot}, a.Once)
		if err == nil && !a.Detach {
			return g.followApply(ctx, d, a.Name, seq)
		}
		return g.started(seq, err)
	})
}

// started prints the number of the event with which a change of an app has begun.
func (g *globals) started(seq int64, err error) error {
	switch {
	case err != nil:
		return err
	case g.JSON:
		return g.printJSON(v1.Applying{Seq: seq})
	}
	_, err = fmt.Fprintln(g.out, seq)
	return err
}

// text reads a file, or standard input.
func (g *globals) text(name string) (string, error) {
	in := io.Reader(g.in)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "%v", err).WithRemedy("name a file, or - to read standard input")
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, engi.MaxApplyText+1))
	switch {
	case err != nil:
		return "", engi.Errorf(engi.Unavailable, "read %s: %v", filepath.Base(name), err)
	case len(b) > engi.MaxApplyText:
		return "", engi.Errorf(engi.Invalid, "%s has more than %s", name, v1.Bytes(engi.MaxApplyText)).WithRemedy("apply it in parts")
	}
	return string(b), nil
}

// followApply shows an apply up to its end.
func (g *globals) followApply(ctx context.Context, d *connection, app string, seq int64) error {
	out := applied{Seq: seq, State: "failed", Files: []v1.AppUpdate{}, Packages: []v1.AppUpdate{}, Commands: []v1.AppUpdate{}, Warnings: []v1.AppUpdate{}}
	for x, err := range d.WatchApp(ctx, app, seq) {
		switch {
		case err != nil && ctx.Err() != nil:
			g.note("the apply goes on; 'engi app watch %s --after %d' shows it", app, seq)
			return exitCode(exitCancelled)
		case err != nil:
			return err
		case x.Apply != seq:
			continue
		}
		if !g.JSON && (x.Type != v1.AppLog || g.Verbose) {
			fmt.Fprintln(g.err, appLine(x))
		}
		switch x.Type {
		case v1.AppWritten:
			out.Files = append(out.Files, x)
		case v1.AppPackage:
			out.Packages = append(out.Packages, x)
		case v1.AppCommand:
			out.Commands = append(out.Commands, x)
		case v1.AppWarning:
			out.Warnings = append(out.Warnings, x)
		case v1.AppDone:
			if out.State, out.Revision = "done", x.Revision; g.JSON {
				return g.printJSON(out)
			}
			_, err := fmt.Fprintln(g.out, x.Revision)
			return err
		case v1.AppError:
			if out.Error = x.Error; out.Error == nil {
				out.Error = &v1.Problem{Kind: v1.Internal, Detail: cmp.Or(x.Text, "the apply has failed")}
			}
			if g.JSON {
				if err := g.printJSON(out); err != nil {
					return err
				}
				return exitCode(exitFailed)
			}
			return &client.Error{Problem: *out.Error}
		}
	}
	return engi.Errorf(engi.NotFound, "app %s was removed", app)
}

type appEdit struct {
	Name    string  `arg:"" name:"app" help:"App." placeholder:"APP"`
	Prompt  string  `arg:"" help:"Prompt for the model; - reads standard input." placeholder:"PROMPT"`
	Model   string  `help:"Model, as provider:model (default: the node's default model)." placeholder:"MODEL"`
	Rounds  int     `help:"Maximum number of answers of the model." default:"3" placeholder:"N"`
	MaxCost float64 `help:"Cost limit, in the currency of the node's prices; the model is not asked again beyond it." placeholder:"COST"`
	Once    string  `help:"Idempotency key: a prompt with the same key is answered only once." placeholder:"KEY"`
	Detach  bool    `short:"d" help:"Print the seq of the edit, and do not wait for its end."`

	Attempts     int    `help:"Number of parallel attempts, of which the best is used (default: one for each model)." placeholder:"N"`
	Judge        string `xor:"judge" help:"Command that compares the attempts: exit code 0 wins, then the highest number alone on the last line of output." placeholder:"COMMAND"`
	JudgeModel   string `xor:"judge" help:"Model that compares the attempts." placeholder:"MODEL"`
	Criteria     string `help:"Criteria by which the model compares the attempts; without --judge-model, the node's default model compares them." placeholder:"TEXT"`
	KeepAttempts bool   `help:"Keep the branches of the attempts as apps."`
}

func (appEdit) Help() string {
	return `Applies the model's text, and reports the app's problems back to the model until the app has none or
a limit is reached. Prints the number of the last revision; if the app still has problems, exits
with 1 and prints them. Progress is shown on standard error, with the model's text if --verbose is
given. With --json, prints one object with the result. Ctrl-C stops waiting; 'engi app cancel'
cancels the edit.

With --attempts, the model, or several models in turn, each change a branch of the app, and the
files of the best successful branch become the next revision. The branches have previews of their
own and are deleted at the end. The judge compares the successful branches; without a judge, the one
with the fewest problems wins, then the cheapest.

Examples:
  engi app edit shop 'Add a cart that keeps what is in it'
  engi app edit shop 'The list is empty: correct that' --rounds 5 --max-cost 0.50
  engi app edit shop 'Make it fast' --model openai:gpt-5,anthropic:claude-opus-4-5 --attempts 4 --judge 'npm test'
  engi app edit shop - --model ollama:qwen3-coder < wish.txt`
}

// An editResult is the result of an edit.
type editResult struct {
	Seq      int64          `json:"seq"`
	State    string         `json:"state"` // done or failed
	Revision int64          `json:"revision,omitempty"`
	Rounds   int            `json:"rounds"`
	Cost     float64        `json:"cost"`
	Tried    string         `json:"tried,omitempty"`
	Problems []v1.AppUpdate `json:"problems"`
	Attempt  int            `json:"attempt,omitempty"`  // number of the accepted attempt
	Attempts []v1.AppUpdate `json:"attempts,omitempty"` // last update of each attempt
	Error    *v1.Problem    `json:"error,omitempty"`
}

func (a *appEdit) Run(ctx context.Context, g *globals) error {
	prompt := a.Prompt
	if prompt == "-" {
		var err error
		if prompt, err = g.text("-"); err != nil {
			return err
		}
	}
	return g.atServer(ctx, func(d *connection) error {
		q := v1.EditRequest{Prompt: prompt, Model: a.Model, MaxRounds: a.Rounds, MaxCost: a.MaxCost, Attempts: a.Attempts, Keep: a.KeepAttempts}
		if a.Judge+a.JudgeModel+a.Criteria != "" {
			q.Judge = &v1.AppJudge{Command: a.Judge, Model: a.JudgeModel, Criteria: a.Criteria}
		}
		seq, err := d.EditApp(ctx, a.Name, q, a.Once)
		if err == nil && !a.Detach {
			return g.followEdit(ctx, d, a.Name, seq)
		}
		return g.started(seq, err)
	})
}

// followEdit shows an edit up to its end.
func (g *globals) followEdit(ctx context.Context, d *connection, app string, seq int64) error {
	out := editResult{Seq: seq, State: "failed", Problems: []v1.AppUpdate{}}
	texts := map[int]string{} // unfinished lines of the models, by attempt
	say := func(x v1.AppUpdate, lines string) {
		for line := range strings.Lines(lines) {
			if g.Verbose && !g.JSON {
				fmt.Fprintln(g.err, ofAttempt(x)+"    "+printable(strings.TrimRight(line, "\r\n")))
			}
		}
	}
	for x, err := range d.WatchApp(ctx, app, seq) {
		switch {
		case err != nil && ctx.Err() != nil:
			g.note("the edit goes on; 'engi app watch %s --after %d' shows it", app, seq)
			return exitCode(exitCancelled)
		case err != nil:
			return err
		case x.Edit != seq:
			continue
		}
		if x.Type == v1.AppOutput { // a line arrives in pieces
			text := texts[x.Attempt] + x.Text
			end := strings.LastIndexByte(text, '\n') + 1
			if len(text) > 4<<10 {
				end = len(text)
			}
			say(x, text[:end])
			texts[x.Attempt] = text[end:]
			continue
		}
		say(x, texts[x.Attempt])
		delete(texts, x.Attempt)
		if !g.JSON && (x.Type != v1.AppLog || g.Verbose) {
			fmt.Fprintln(g.err, ofAttempt(x)+appLine(x))
		}
		switch x.Type {
		case v1.AppProblem:
			out.Problems = append(out.Problems, x)
		case v1.AppAttempted:
			out.Attempts = append(out.Attempts, x)
		case v1.AppEdited:
			out.Attempt = x.Attempt
			if out.Revision, out.Rounds, out.Cost, out.Tried, out.Error = x.Revision, x.Rounds, x.Cost, x.Text, x.Error; x.Error == nil {
				out.State = "done"
			}
			if g.JSON {
				if err := g.printJSON(out); err != nil || x.Error == nil {
					return err
				}
				return exitCode(exitFailed)
			}
			if x.Revision > 0 {
				if _, err := fmt.Fprintln(g.out, x.Revision); err != nil {
					return err
				}
			}
			if x.Error != nil {
				return &client.Error{Problem: *x.Error}
			}
			return nil
		}
	}
	return engi.Errorf(engi.NotFound, "app %s was removed", app)
}

// ofAttempt returns the prefix for lines of one of several attempts; empty for a single attempt.
func ofAttempt(x v1.AppUpdate) string {
	if x.Attempt == 0 {
		return ""
	}
	return fmt.Sprintf("[%d] ", x.Attempt)
}

// appLine returns an update of an app in one line, with only the first line of its texts.
func appLine(x v1.AppUpdate) string {
	where := printable(x.Path)
	if x.Line > 0 {
		where += fmt.Sprintf(":%d", x.Line)
	}
	var all []string
	add := func(s string) {
		if s != "" {
			all = append(all, s)
		}
	}
	switch x.Type {
	case v1.AppProgress, v1.AppStart:
		add(cmp.Or(x.Step, "apply"))
	case v1.AppLog:
		return "    " + printable(strings.TrimRight(x.Text, "\r\n"))
	case v1.AppOutput:
		return "    " + printable(strings.TrimRight(x.Text, "\r\n"))
	case v1.AppDone, v1.AppRollback, v1.AppPublished:
		add(x.Type)
		add(fmt.Sprintf("revision %d", x.Revision))
	case v1.AppRound:
		return fmt.Sprintf("round %d", x.Round)
	case v1.AppEditBegun, v1.AppEdited, v1.AppJudged:
		add(x.Type)
	case v1.AppAttempt, v1.AppAttempted:
		add(x.Type)
		add(printable(x.Model))
		add(printable(x.PreviewURL))
	default:
		add("  " + x.Type)
	}
	add(x.State)
	add(x.Op)
	add(where)
	add(printable(x.Name))
	if x.Type == v1.AppCommand {
		add(fmt.Sprintf("exit code %d", x.Code))
	}
	first := func(text string) string {
		line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		return printable(line)
	}
	add(first(x.Text))
	if x.Error != nil {
		add(first(x.Error.Detail))
	}
	return strings.Join(all, " ")
}

type appWrite struct {
	Name    string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Path    string `arg:"" help:"File, relative to the app; a missing file is created." placeholder:"PATH"`
	With    string `help:"Read the content from FILE, or from standard input if FILE is -, instead of opening an editor." placeholder:"FILE"`
	Message string `short:"m" help:"Message of the revision." placeholder:"TEXT"`
}

func (appWrite) Help() string {
	return `Opens the file in the editor of VISUAL or EDITOR, and applies it when the editor exits.

Examples:
  engi app write shop src/App.jsx
  engi app write shop src/App.jsx --with App.jsx --message 'Fix the title'
  engi app cat shop src/App.jsx | sed s/Shop/Store/ | engi app write shop src/App.jsx --with -`
}

func (a *appWrite) Run(ctx context.Context, g *globals) error {
	if strings.ContainsAny(a.Path, "\"'<>&\n") {
		return engi.Errorf(engi.Invalid, "%q has characters that a model's text cannot have in a path", a.Path)
	}
	return g.atServer(ctx, func(d *connection) error {
		var text string
		var err error
		if a.With != "" {
			text, err = g.text(a.With)
		} else {
			text, err = a.edit(ctx, g, d)
		}
		switch {
		case err != nil:
			return err
		case strings.Contains(text, "</file>"):
			return engi.Errorf(engi.Invalid, "%s contains </file>, which ends a file in a model's text", a.Path).WithRemedy("write it in two parts, like '</' + 'file>'")
		}
		q := v1.ApplyRequest{Text: fmt.Sprintf("<file path=\"%s\">\n%s</file>", a.Path, text), Message: cmp.Or(a.Message, "Edit "+a.Path)}
		seq, err := d.ApplyToApp(ctx, a.Name, q, "")
		if err != nil {
			return err
		}
		return g.followApply(ctx, d, a.Name, seq)
	})
}

// edit returns the content of the file after the user edited it.
func (a *appWrite) edit(ctx context.Context, g *globals, d *connection) (string, error) {
	return g.edit(ctx, a.Path, func() (io.ReadCloser, error) {
		if _, err := d.App(ctx, a.Name); err != nil {
			return nil, err
		}
		return orEmptyFile(d.AppFile(ctx, a.Name, a.Path, 0))
	})
}

// orEmptyFile returns the existing file, or an empty one.
func orEmptyFile(f io.ReadCloser, err error) (io.ReadCloser, error) {
	if client.IsKind(err, v1.NotFound) {
		return http.NoBody, nil
	}
	return f, err
}

// edit returns the content of a file after the user edited it; open returns
// the content before. If nothing has changed, edit ends engi.
func (g *globals) edit(ctx context.Context, name string, open func() (io.ReadCloser, error)) (string, error) {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"))
	if editor == "" {
		return "", engi.Errorf(engi.Invalid, "neither VISUAL nor EDITOR names an editor").WithRemedy("set EDITOR, or give the content with --with FILE")
	}
	f, err := open()
	if err != nil {
		return "", err
	}
	before, err := io.ReadAll(io.LimitReader(f, engi.MaxApplyText))
	_ = f.Close() // all needed content was read
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "read %s: %v", name, err)
	}
	dir, err := os.MkdirTemp("", "engi-edit-")
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer os.RemoveAll(dir)
	local := filepath.Join(dir, path.Base("/"+name))
	if err := os.WriteFile(local, before, 0o600); err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", local) // the editor may have arguments, as for git
	cmd.Stdin, cmd.Stdout, cmd.Stderr = g.in, g.out, g.err
	if err := cmd.Run(); err != nil {
		return "", engi.Errorf(engi.Unavailable, "the editor %s: %v", editor, err)
	}
	after, err := os.ReadFile(local)
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	if bytes.Equal(after, before) {
		g.note("nothing has changed")
		return "", exitCode(0)
	}
	return string(after), nil
}

type appOpen struct {
	Name  string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Print bool   `help:"Print the URL, and open no browser."`
}

func (appOpen) Help() string {
	return `An app without a sandbox gets one with the files of its last revision. If no browser can be started,
the URL is printed. For a private app, the URL is a link that is valid for one hour, as from 'engi
app link'.

Examples:
  engi app open shop
  curl "$(engi app open shop --print)"`
}

func (a *appOpen) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.OpenApp(ctx, a.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			if err := g.printJSON(x); err != nil {
				return err
			}
			return failedApp(x)
		}
		address := x.PreviewURL
		link, err := d.LinkApp(ctx, x.ID, 0)
		switch {
		case err != nil:
			return err
		case link.Private:
			address = link.URL
		}
		if a.Print || !browse(ctx, address) {
			fmt.Fprintln(g.out, address)
		} else {
			g.note("opened %s in your browser", x.PreviewURL)
		}
		return failedApp(x)
	})
}

type appWatch struct {
	Name  string `arg:"" name:"app" help:"App." placeholder:"APP"`
	After int64  `help:"Start after the event with this seq; -1 starts with new events." default:"-1" placeholder:"SEQ"`
}

func (appWatch) Help() string {
	return `Prints each update on one line until Ctrl-C; with --json, prints whole updates. Reconnects when the
connection breaks or the server restarts, and misses only lines of output.

Examples:
  engi app watch shop
  engi app watch shop --after 4711 --json`
}

func (a *appWatch) Run(ctx context.Context, g *globals) error {
	return follow(ctx, g, func(d *connection) iter.Seq2[v1.AppUpdate, error] { return d.WatchApp(ctx, a.Name, a.After) }, func(x v1.AppUpdate) string {
		seq, at := "-", "-"
		if x.Seq > 0 {
			seq = fmt.Sprint(x.Seq)
		}
		if !x.Time.IsZero() {
			at = x.Time.Local().Format(time.TimeOnly)
		}
		return fmt.Sprintf("%s  %s  %s", seq, at, strings.TrimSpace(appLine(x)))
	})
}

type appLogs struct {
	Name  string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Bytes int    `help:"Size of the end of the log." default:"65536" placeholder:"N"`
}

func (appLogs) Help() string { return example("engi app logs shop", "engi app logs shop --bytes 1000") }

func (a *appLogs) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.AppLogs, error) { return d.AppLogs(ctx, a.Name, a.Bytes) }, func(x v1.AppLogs) {
		if x.Truncated {
			g.note("there was more before")
		}
		for line := range strings.Lines(x.Text) {
			fmt.Fprintln(g.out, printable(strings.TrimRight(line, "\r\n")))
		}
	})
}

type appStatus struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
}

func (appStatus) Help() string {
	return `Exits with 1 if the server does not answer.

Examples:
  engi app status shop
  engi app status shop --json | jq .latency`
}

func (a *appStatus) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.AppStatus(ctx, a.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			if err := g.printJSON(x); err != nil {
				return err
			}
		} else {
			g.showApp(x.App)
			var f facts
			answer := "none"
			if x.Healthy {
				answer = "after " + x.Latency.String()
			}
			f.add("answer", "%s", answer)
			if x.Startup > 0 {
				f.add("startup", "%s", short(x.Startup.Std()))
			}
			f.add("memory", "%d MiB", x.Memory>>20)
			f.add("files", "%d", x.Files)
			if x.FileTime > 0 {
				f.add("file time", "%s", short(x.FileTime.Std()))
			}
			f.add("cache hits", "%.0f %%", 100*x.CacheHits)
			f.add("errors", "%.0f %%", 100*x.Errors)
			for _, y := range x.Alerts {
				f.add("alert", "%s, %s: %s", ago(y.Since), strings.ReplaceAll(y.Action, "_", " "), y.Text)
			}
			f.print(g)
		}
		if !x.Healthy {
			return exitCode(exitFailed)
		}
		return nil
	})
}

type appFiles struct {
	Name     string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Path     string `arg:"" optional:"" help:"Only files below this directory, or files that match this pattern." placeholder:"PATH"`
	Revision int64  `short:"r" help:"Revision (default: the last one)." placeholder:"N"`

	Ext     []string `help:"Only files with these extensions, separated by commas." placeholder:".EXT"`
	MaxSize string   `help:"Only files up to this size." placeholder:"SIZE"`
	Content bool     `help:"With --json: include the content of the files, up to 4 MiB in all."`
}

func (appFiles) Help() string {
	return `Examples:
  engi app files shop
  engi app files shop --json --content --ext .tsx,.css --max-size 10KiB
  engi app files shop 'src/*.jsx' --revision 2`
}

func (a *appFiles) Run(ctx context.Context, g *globals) error {
	files := table[v1.AppFile]{"PATH\tSIZE\tMODE", func(x v1.AppFile) []any { return []any{x.Path, int64(x.Size), x.Mode} }, nil}
	return files.list(ctx, g, false, func(d *connection) ([]v1.AppFile, error) {
		most, err := size("--max-size", a.MaxSize)
		if err != nil {
			return nil, err
		}
		x, err := d.AppFiles(ctx, a.Name, client.AppFileFilter{Path: a.Path, Revision: a.Revision, Extensions: a.Ext, MaxSize: int64(most), Content: a.Content})
		return x.Items, err
	})
}

type appCat struct {
	Name     string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Path     string `arg:"" help:"File, relative to the app." placeholder:"PATH"`
	Revision int64  `short:"r" help:"Revision (default: the last one)." placeholder:"N"`
}

func (appCat) Help() string {
	return example("engi app cat shop src/App.jsx", "engi app cat shop src/App.jsx --revision 1")
}

func (a *appCat) Run(ctx context.Context, g *globals) error {
	return g.cat(ctx, func(d *connection) (io.ReadCloser, error) { return d.AppFile(ctx, a.Name, a.Path, a.Revision) })
}

// copyTo prints data from a server.
func copyTo(out io.Writer, in io.Reader) error {
	if _, err := io.Copy(out, in); err != nil {
		return engi.Errorf(engi.Unavailable, "the download broke: %v", err).WithRemedy("try again")
	}
	return nil
}

type appHistory struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
}

func (appHistory) Help() string {
	return `The newest come first.

Examples:
  engi app history shop
  engi app history shop --json | jq '.[0].changed'`
}

func (a *appHistory) Run(ctx context.Context, g *globals) error {
	revisions := table[v1.AppRevision]{"REVISION\tCOMMIT\tCREATED\tFILES\tSNAPSHOT\tMESSAGE", func(x v1.AppRevision) []any {
		message, _, _ := strings.Cut(x.Message, "\n")
		snapshot := ""
		if x.Snapshot != nil {
			snapshot = fmt.Sprintf("%d MiB", x.Snapshot.Size>>20)
		}
		return []any{x.Number, x.Commit[:min(len(x.Commit), 12)], ago(x.CreatedAt), len(x.Changed), snapshot, message}
	}, nil}
	return revisions.list(ctx, g, false, func(d *connection) ([]v1.AppRevision, error) { return d.AppRevisions(ctx, a.Name) })
}

type appDiff struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
	From int64  `arg:"" optional:"" help:"Revision (default: the one before the other revision)." placeholder:"FROM"`
	To   int64  `arg:"" optional:"" help:"Revision (default: the last one)." placeholder:"TO"`
}

func (appDiff) Help() string {
	return `Examples:
  engi app diff shop            what the last revision has changed
  engi app diff shop 1          what has changed since revision 1
  engi app diff shop 1 2`
}

func (a *appDiff) Run(ctx context.Context, g *globals) error {
	return g.showDiff(ctx, func(d *connection) (string, error) { return d.AppDiff(ctx, a.Name, a.From, a.To) })
}

type appRollback struct {
	Name     string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Revision int64  `arg:"" optional:"" help:"Revision (default: the one before the last)." placeholder:"REVISION"`
	Snapshot bool   `help:"Restore the snapshot of the revision, with databases and processes (default: the last revision with a snapshot)."`
}

func (appRollback) Help() string {
	return `The files become a new revision, whose number is printed once the app's server responds. The new
revision can be rolled back too.

Examples:
  engi app rollback shop
  engi app rollback shop 1
  engi app rollback shop --snapshot`
}

func (a *appRollback) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.AppRevision, error) {
		if a.Snapshot {
			return d.RestoreApp(ctx, a.Name, a.Revision)
		}
		return d.RollbackApp(ctx, a.Name, a.Revision)
	},
		func(x v1.AppRevision) string { return fmt.Sprint(x.Number) })
}

type appZip struct {
	Name     string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Output   string `short:"o" help:"File to write; - is standard output (default: the name of the app)." placeholder:"FILE"`
	Revision int64  `short:"r" help:"Revision (default: the last one)." placeholder:"N"`
}

func (appZip) Help() string {
	return example("engi app zip shop", "engi app zip shop --revision 2 -o before.zip")
}

func (a *appZip) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.App(ctx, a.Name)
		if err != nil {
			return err
		}
		z, err := d.AppZip(ctx, a.Name, a.Revision)
		if err != nil {
			return err
		}
		defer z.Close()
		return g.writeFile(cmp.Or(a.Output, filepath.Base(x.Name)+".zip"), z)
	})
}

// writeFile writes a file and prints its name; - is standard output.
func (g *globals) writeFile(to string, from io.Reader) error {
	if to == "-" {
		return copyTo(g.out, from)
	}
	f, err := os.Create(to)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err).WithRemedy("name another file with -o")
	}
	err = copyTo(f, from)
	if e := f.Close(); err == nil && e != nil {
		err = engi.Errorf(engi.Unavailable, "write %s: %v", to, e)
	}
	switch {
	case err != nil:
		_ = os.Remove(to) // half a file is useless
		return err
	case g.JSON:
		return g.printJSON(map[string]string{"file": to})
	}
	_, err = fmt.Fprintln(g.out, to)
	return err
}

func appState(x v1.App) string { return x.ID + " " + x.State }
