package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

type pageCommand struct {
	Act     pageAct     `cmd:"" help:"Send an action to the page of a session."`
	Show    pageShow    `cmd:"" aliases:"get" help:"Print the page of a session."`
	Watch   pageWatch   `cmd:"" help:"Follow the changes of the page of a session."`
	Cancel  pageCancel  `cmd:"" help:"Stop the model's answers on pages."`
	Restore pageRestore `cmd:"" help:"Roll the page of a session back to an earlier event."`
}

type pageAct struct {
	ID     string `arg:"" name:"session" help:"Session." placeholder:"SESSION"`
	Action string `arg:"" help:"Name of the action, like the data-action of an element." placeholder:"ACTION"`
	Data   string `short:"d" help:"Data of the action, a JSON object; @FILE reads a file, - reads standard input." placeholder:"JSON"`
	Agent  string `help:"Agent that answers (default: the node's agent for pages)." placeholder:"NAME"`
	Model  string `help:"Model (default: the agent's)." placeholder:"PROVIDER:MODEL"`
	Once   string `help:"Idempotency key: an action with the same key is done only once." placeholder:"KEY"`
	Wait   bool   `short:"w" help:"Follow the changes of the page until the answer has ended."`
}

func (pageAct) Help() string {
	return `Prints the seq of the action; the answer follows it in the stream of the page. With --wait, prints
the changes of the page as 'engi page watch' does, and exits with 1 if the answer failed. Ctrl-C
stops waiting.

Examples:
  engi page act page demo-counter --wait
  engi page act page add-task --data '{"title":"Buy milk"}'
  engi page act page import --data @tasks.json --once import-42`
}

func (u *pageAct) Run(ctx context.Context, g *globals) error {
	data, err := g.object(u.Data)
	if err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		seq, err := d.Act(ctx, u.ID, v1.PageActionRequest{Action: u.Action, Data: data, Agent: u.Agent, Model: u.Model}, u.Once)
		switch {
		case err != nil:
			return err
		case u.Wait:
			return g.watchPage(ctx, d, u.ID, seq, true)
		case g.JSON:
			return g.printJSON(v1.PageAction{Seq: seq})
		}
		_, err = fmt.Fprintln(g.out, seq)
		return err
	})
}

type pageShow struct {
	ID string `arg:"" name:"session" help:"Session." placeholder:"SESSION"`
	At int64  `help:"Show the page as it was after the event with this seq." placeholder:"SEQ"`
}

func (pageShow) Help() string {
	return `Prints the content of the page's body as HTML.

Examples:
  engi page show page
  engi page show page --at 4711
  engi page show page --json`
}

func (u *pageShow) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Page, error) { return d.Page(ctx, u.ID, u.At) }, func(x v1.Page) string { return x.HTML })
}

type pageWatch struct {
	ID     string `arg:"" name:"session" help:"Session." placeholder:"SESSION"`
	After  int64  `help:"Start after the event with this seq (default: start with the whole page)." placeholder:"SEQ"`
	Format string `help:"Print the stream in another protocol: ai-sdk, ag-ui, json-render or a2ui." enum:"engi,ai-sdk,ag-ui,json-render,a2ui" default:"engi" placeholder:"FORMAT"`
}

func (pageWatch) Help() string {
	return `Prints each change on one line until Ctrl-C; with --json, prints whole changes. Reconnects when the
connection breaks or the server restarts, and misses nothing. With --format, prints the server's
stream unchanged; ai-sdk and ag-ui end with the end of an answer.

Examples:
  engi page watch page
  engi page watch page --after 4711 --json
  engi page watch page --format json-render`
}

func (u *pageWatch) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		if u.Format == "engi" {
			return g.watchPage(ctx, d, u.ID, u.After, false)
		}
		r, err := d.StreamPage(ctx, u.ID, u.Format, u.After)
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := io.Copy(g.out, r); err != nil && ctx.Err() == nil {
			return engi.Errorf(engi.Unavailable, "the stream broke: %v", err).WithRemedy("watch the page again")
		}
		return nil
	})
}

// watchPage prints the updates of a page; if ends is set, only up to the end of an answer.
func (g *globals) watchPage(ctx context.Context, d *connection, session string, after int64, ends bool) error {
	for x, err := range d.WatchPage(ctx, session, after) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case g.JSON:
			if err := g.printLine(x); err != nil {
				return err
			}
		default:
			fmt.Fprintln(g.out, updateLine(x))
		}
		if ends && x.Type == v1.PageDone {
			if x.State == string(engi.RunFailed) {
				return exitCode(1)
			}
			return nil
		}
	}
	return nil
}

// updateLine returns an update of a page in one line.
func updateLine(x v1.PageUpdate) string {
	var what string
	switch {
	case x.HTML != nil && x.Partial:
		what = fmt.Sprintf("%s so far", v1.Bytes(len(*x.HTML)))
	case x.HTML != nil:
		what = *x.HTML
	case x.Result != nil:
		what = x.Call.Name + " = " + x.Result.Text
	case x.Call != nil:
		what = x.Call.Name + " " + cmp.Or(x.Call.Arguments, x.Text)
	case x.Type == v1.PageActed:
		what = x.Action + " " + string(x.Data)
	case len(x.Patches) > 0:
		var all []string
		for _, p := range x.Patches {
			if b, err := json.Marshal(p); err == nil { // the value was JSON
				all = append(all, string(b))
			}
		}
		what = strings.Join(all, " ")
	default:
		what = cmp.Or(string(x.Stats), x.Text, x.State)
	}
	seq := "-"
	if x.Seq > 0 {
		seq = fmt.Sprint(x.Seq)
	}
	at := "-"
	if !x.Time.IsZero() {
		at = x.Time.Local().Format(time.TimeOnly)
	}
	return fmt.Sprintf("%s  %s  %s  %s", seq, at, x.Type, printable(what))
}

type pageCancel struct {
	IDs []string `arg:"" name:"session" help:"Sessions." placeholder:"SESSION"`
}

func (pageCancel) Help() string {
	return `Waiting actions are dropped. Changes already made to the pages stay.

Examples:
  engi page cancel page`
}

func (u *pageCancel) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "cancelled", u.IDs, func(d *connection, id string) error { return d.CancelPage(ctx, id) })
}

type pageRestore struct {
	ID  string `arg:"" name:"session" help:"Session." placeholder:"SESSION"`
	Seq int64  `arg:"" help:"Seq of the event after which the page was as wanted." placeholder:"SEQ"`
}

func (pageRestore) Help() string {
	return `Prints the seq of the rollback, which is an event too and can be undone.

Examples:
  engi page restore page 4711`
}

func (u *pageRestore) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Page, error) { return d.RestorePage(ctx, u.ID, u.Seq) }, func(x v1.Page) string { return fmt.Sprint(x.Seq) })
}
