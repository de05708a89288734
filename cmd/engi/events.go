package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type eventsCommand struct {
	Send      eventsSend    `cmd:"" help:"Send an event, which starts the functions bound to its type."`
	List      eventsList    `cmd:"" aliases:"ls" help:"List events."`
	Follow    eventsFollow  `cmd:"" help:"Follow events as they happen."`
	Show      eventsShow    `cmd:"" aliases:"get" help:"Show an event and its runs, or a run with its steps."`
	Replay    eventsReplay  `cmd:"" help:"Send an event again."`
	Functions listCommand   `cmd:"" help:"List functions."`
	Runs      eventsRuns    `cmd:"" help:"List runs of functions."`
	Cancel    removeCommand `cmd:"" help:"Cancel runs."`
}

var eventsCommands = eventsCommand{
	Functions: lists(`Those that are built in, and those of [[functions]] in the configuration.

`+example("engi events functions", "engi events functions --json"), table[v1.Function]{"FUNCTION\tEVENT\tCRON\tRETRIES\tSCOPES\tDESCRIPTION", func(f v1.Function) []any {
		return []any{f.Name, f.Event, f.Cron, f.Retries, strings.Join(f.Scopes, " "), f.Description}
	}, nil}, (*client.Client).Functions),
	Cancel: removes(`A run ends after the step it is in.

`+example("engi events cancel fnr_u2dmwmlezjgprkqrgppgcz2mgu"), "cancelled", (*client.Client).CancelFunctionRun),
}

// maxData is more than the maximum of an event, for which the server returns a better error.
const maxData = 1 << 20

type eventsSend struct {
	Name string `arg:"" help:"Type of the event, like engi/debug/echo." placeholder:"NAME"`
	Data string `short:"d" help:"Data of the event, a JSON object; @FILE reads a file, - reads standard input." placeholder:"JSON"`
	Once string `help:"Idempotency key: an event with the same key is sent only once." placeholder:"KEY"`
	Wait bool   `short:"w" help:"Wait for the functions, show their steps, and print their output."`
}

func (eventsSend) Help() string {
	return `Prints the ID of the event. With --wait, prints the output of each run instead, one JSON value per
line, and exits with 1 if a run failed. Ctrl-C stops waiting.

Examples:
  engi events send engi/debug/echo --data '{"hello":"world"}' --wait
  engi events send engi/sandbox/create --data '{"runtime":"python3.13"}' --wait
  engi events send orders/paid --data @order.json --once order-42`
}

func (e *eventsSend) Run(ctx context.Context, g *globals) error {
	data, err := g.object(e.Data)
	if err != nil {
		return err
	}
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.SendEvent(ctx, v1.EventRequest{Type: e.Name, Data: data}, e.Once)
		if err != nil {
			return err
		}
		return g.sent(ctx, d, x, e.Wait)
	})
}

// object reads the value of --data.
func (g *globals) object(data string) (json.RawMessage, error) {
	raw := []byte(data)
	var err error
	switch name, file := strings.CutPrefix(data, "@"); {
	case data == "-":
		raw, err = io.ReadAll(io.LimitReader(g.in, maxData))
	case file:
		var f *os.File
		if f, err = os.Open(name); err == nil {
			raw, err = io.ReadAll(io.LimitReader(f, maxData))
			_ = f.Close() // the file was opened for reading only
		}
	}
	switch {
	case err != nil:
		return nil, engi.Errorf(engi.Invalid, "--data: %v", err)
	case len(raw) > 0 && !json.Valid(raw):
		return nil, engi.Errorf(engi.Invalid, "--data is not JSON").WithRemedy(`write an object, like --data '{"name":"value"}'`)
	}
	return raw, nil
}

// sent prints the sent event, or its runs.
func (g *globals) sent(ctx context.Context, d *connection, x v1.Event, wait bool) error {
	if !wait {
		if g.JSON {
			return g.printJSON(x)
		}
		fmt.Fprintln(g.out, x.ID)
		return nil
	}
	if len(x.RunIDs) == 0 {
		g.note("no function is bound to %s", x.Type)
	}
	runs := []v1.FunctionRun{}
	failed := false
	for _, id := range x.RunIDs {
		r, err := g.follow(ctx, d, x, id)
		if err != nil {
			if ctx.Err() != nil {
				g.note("run %s goes on; 'engi events show %s' says how it is", id, id)
			}
			return err
		}
		runs = append(runs, r)
		failed = failed || r.State != v1.FunctionDone
		if !g.JSON {
			g.outcome(r)
		}
	}
	if g.JSON {
		if err := g.printJSON(map[string]any{"event": x, "runs": runs}); err != nil {
			return err
		}
	}
	if failed {
		return exitCode(1)
	}
	return nil
}

// follow waits for a run that an event has started, and prints its steps when they
// end.
func (g *globals) follow(ctx context.Context, d *connection, sent v1.Event, id string) (x v1.FunctionRun, err error) {
	told, failure := map[string]bool{}, ""
	look := func() (over bool, err error) {
		if x, err = d.FunctionRun(ctx, id); err != nil {
			return true, err
		}
		if !g.JSON {
			for _, st := range x.Steps {
				if key := fmt.Sprint(st.Name, st.Attempts, st.EndedAt != nil); !told[key] {
					told[key] = true
					g.note("%s: %s", x.Function, stepLine(st))
				}
			}
			if key := "wait " + fmt.Sprint(x.Attempt); x.Wait != nil && !told[key+x.Wait.Step] {
				told[key+x.Wait.Step] = true
				g.note("%s waits for %s", x.Function, waitLine(*x.Wait))
			}
			if x.State == v1.FunctionWaiting && x.Error != nil && failure != fmt.Sprint(x.Attempt, x.Error.Detail) {
				failure = fmt.Sprint(x.Attempt, x.Error.Detail)
				if x.Attempt == 0 {
					g.note("%s cannot begin, and is started again: %s", x.Function, printable(x.Error.Detail))
				} else {
					g.note("%s: attempt %d failed, and is made again: %s", x.Function, x.Attempt, printable(x.Error.Detail))
				}
			}
		}
		return x.Over(), nil
	}
	if over, err := look(); over {
		return x, err
	}
	for _, err := range d.FollowEvents(ctx, sent.Seq, client.EventFilter{Subject: id}) {
		if err != nil {
			return x, err
		}
		if over, err := look(); over {
			return x, err
		}
	}
	return x, context.Cause(ctx)
}

// stepLine returns a step in one line.
func stepLine(st v1.FunctionStep) string {
	text := printable(st.Name)
	switch {
	case st.EndedAt == nil:
		text += " ..."
	case st.Error != nil:
		text += " failed: " + printable(st.Error.Detail)
	default:
		text += " in " + short(st.EndedAt.Sub(st.StartedAt))
	}
	if st.Attempts > 1 {
		text += fmt.Sprintf(" (attempt %d)", st.Attempts)
	}
	return text
}

// waitLine returns what a run waits for, in one line.
func waitLine(w v1.FunctionWait) string {
	text := "a time"
	if len(w.Types) > 0 || w.Subject != "" {
		text = "an event"
		if len(w.Types) > 0 {
			text += " of type " + printable(strings.Join(w.Types, ", "))
		}
		if w.Subject != "" {
			text += " about " + printable(w.Subject)
		}
	}
	if w.Until != nil {
		text += ", until " + w.Until.Local().Format(time.DateTime)
	}
	return text
}

// outcome prints the output of a run, or its error.
func (g *globals) outcome(x v1.FunctionRun) {
	switch {
	case x.State == v1.FunctionDone && len(x.Output) > 0:
		fmt.Fprintln(g.out, string(x.Output))
	case x.State == v1.FunctionFailed && x.Error != nil:
		g.note("%s failed: %s", x.Function, printable(x.Error.Detail))
		if x.Error.Remedy != "" {
			fmt.Fprintf(g.err, "  %s\n", printable(x.Error.Remedy))
		}
	case x.State != v1.FunctionDone:
		g.note("%s is %s", x.Function, x.State)
	}
}

// An eventSelection holds the flags that select events.
type eventSelection struct {
	Type    []string `help:"Only events of these types; sandbox.* means all with this prefix." placeholder:"TYPE"`
	Name    string   `help:"Alias of --type." hidden:""`
	Subject string   `help:"Only events about this ID." placeholder:"ID"`
	Owner   string   `help:"Only events of this owner, for admins." placeholder:"OWNER"`
}

func (e eventSelection) filter() client.EventFilter {
	f := client.EventFilter{Types: e.Type, Subject: e.Subject, Owner: e.Owner}
	if e.Name != "" {
		f.Types = append(f.Types, e.Name)
	}
	return f
}

type eventsList struct {
	eventSelection
	Limit int `help:"Maximum number of results." default:"20" placeholder:"N"`
}

func (eventsList) Help() string {
	return `The newest come first.

Examples:
  engi events list
  engi events list --type 'sandbox.*' --limit 5
  engi events list --subject sbx_u2dmwmlezjgprkqrgppgcz2mgu --json`
}

func (e *eventsList) Run(ctx context.Context, g *globals) error {
	events := table[v1.Event]{"SEQ\tEVENT\tTYPE\tSUBJECT\tACTOR\tTIME", func(x v1.Event) []any {
		return []any{x.Seq, x.ID, printable(x.Type), printable(x.Subject), printable(x.Actor), ago(x.CreatedAt)}
	}, nil}
	return events.list(ctx, g, false, func(d *connection) ([]v1.Event, error) {
		f := e.filter()
		f.Limit = e.Limit
		return d.Events(ctx, f)
	})
}

type eventsFollow struct {
	eventSelection
	After int64 `help:"Start after the event with this seq; -1 starts with new events." default:"-1" placeholder:"SEQ"`
}

func (eventsFollow) Help() string {
	return `Prints each event on one line until Ctrl-C: seq, time, type, subject and data; with --json, prints
whole events. Reconnects when the connection breaks or the server restarts, and misses nothing.

Examples:
  engi events follow
  engi events follow --type 'sandbox.*' --type execution.done
  engi events follow --after 4711 --json`
}

func (e *eventsFollow) Run(ctx context.Context, g *globals) error {
	return follow(ctx, g, func(d *connection) iter.Seq2[v1.Event, error] { return d.FollowEvents(ctx, e.After, e.filter()) }, func(x v1.Event) string {
		return fmt.Sprintf("%d  %s  %s  %s  %s", x.Seq, x.CreatedAt.Local().Format(time.TimeOnly), printable(x.Type), printable(x.Subject), printable(string(x.Data)))
	})
}

type eventsShow struct {
	ID string `arg:"" help:"Event, or run of a function." placeholder:"ID"`
}

func (eventsShow) Help() string {
	return `Examples:
  engi events show evt_u2dmwmlezjgprkqrgppgcz2mgu
  engi events show fnr_u2dmwmlezjgprkqrgppgcz2mgu --json`
}

func (e *eventsShow) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		if strings.HasPrefix(e.ID, "fnr_") {
			x, err := d.FunctionRun(ctx, e.ID)
			if err != nil {
				return err
			}
			if g.JSON {
				return g.printJSON(x)
			}
			g.showFunctionRun(x)
			return nil
		}
		x, err := d.Event(ctx, e.ID)
		if err != nil {
			return err
		}
		runs := []v1.FunctionRun{}
		for _, id := range x.RunIDs {
			r, err := d.FunctionRun(ctx, id)
			if err != nil {
				return err
			}
			runs = append(runs, r)
		}
		if g.JSON {
			return g.printJSON(map[string]any{"event": x, "runs": runs})
		}
		var f facts
		f.add("event", "%s", x.ID)
		f.add("type", "%s", x.Type)
		f.add("subject", "%s", x.Subject)
		f.add("actor", "%s", x.Actor)
		f.add("sent", "%s", ago(x.CreatedAt))
		f.add("replay of", "%s", x.ReplayOf)
		f.add("data", "%s", x.Data)
		f.print(g)
		for _, r := range runs {
			fmt.Fprintln(g.out)
			g.showFunctionRun(r)
		}
		return nil
	})
}

// showFunctionRun prints a run with its steps.
func (g *globals) showFunctionRun(x v1.FunctionRun) {
	var f facts
	f.add("run", "%s", x.ID)
	f.add("function", "%s", x.Function)
	f.add("state", "%s, attempt %d, created %s", x.State, x.Attempt, ago(x.CreatedAt))
	if x.Wait != nil {
		f.add("waits for", "%s", waitLine(*x.Wait))
	}
	for _, st := range x.Steps {
		f.add("step", "%s", stepLine(st))
	}
	f.add("output", "%s", x.Output)
	if x.Error != nil {
		f.add("error", "%s", x.Error.Detail)
		f.add("remedy", "%s", x.Error.Remedy)
	}
	f.print(g)
}

type eventsReplay struct {
	ID       string `arg:"" help:"Event." placeholder:"EVENT"`
	Function string `help:"Only for this function (default: all functions bound to the event)." placeholder:"NAME"`
	Wait     bool   `short:"w" help:"Wait for the functions, show their steps, and print their output."`
}

func (eventsReplay) Help() string {
	return `Sends a new event with the same type and data. The effects of the first event stay.

Examples:
  engi events replay evt_u2dmwmlezjgprkqrgppgcz2mgu --wait
  engi events replay evt_u2dmwmlezjgprkqrgppgcz2mgu --function engi/agents/code`
}

func (e *eventsReplay) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.ReplayEvent(ctx, e.ID, e.Function)
		if err != nil {
			return err
		}
		return g.sent(ctx, d, x, e.Wait)
	})
}

type eventsRuns struct {
	Function string `help:"Only runs of this function." placeholder:"NAME"`
	Event    string `help:"Only runs that this event started." placeholder:"ID"`
	State    string `help:"Only runs that are queued, running, waiting, done, failed or cancelled." enum:"queued,running,waiting,done,failed,cancelled," default:"" placeholder:"STATE"`
	Limit    int    `help:"Maximum number of results." default:"20" placeholder:"N"`
}

func (eventsRuns) Help() string {
	return `The newest come first.

Examples:
  engi events runs --state failed
  engi events runs --function engi/agents/explore --limit 5`
}

func (e *eventsRuns) Run(ctx context.Context, g *globals) error {
	runs := table[v1.FunctionRun]{"RUN\tFUNCTION\tSTATE\tATTEMPT\tCREATED\tERROR OR WAIT", func(x v1.FunctionRun) []any {
		why := ""
		switch {
		case x.Wait != nil:
			why = "waits for " + waitLine(*x.Wait)
		case x.Error != nil:
			why = x.Error.Detail
		}
		return []any{x.ID, x.Function, x.State, x.Attempt, ago(x.CreatedAt), why}
	}, nil}
	return runs.list(ctx, g, false, func(d *connection) ([]v1.FunctionRun, error) {
		return d.FunctionRuns(ctx, client.FunctionFilter{Function: e.Function, Event: e.Event, State: e.State, Limit: e.Limit})
	})
}
