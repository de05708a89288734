package main

import (
	"context"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type operationCommand struct {
	List   operationList  `cmd:"" aliases:"ls" help:"List operations."`
	Show   showCommand    `cmd:"" aliases:"get" help:"Show an operation."`
	Watch  operationWatch `cmd:"" help:"Follow the progress of an operation until it ends."`
	Cancel removeCommand  `cmd:"" help:"Cancel operations."`
}

var operationCommands = operationCommand{
	Show:   shows(example("engi operation show opn_u2dmwmlezjgprkqrgppgcz2mgu"), (*globals).showOperation, (*client.Client).Operation),
	Cancel: removes(example("engi operation cancel opn_u2dmwmlezjgprkqrgppgcz2mgu"), "cancelled", (*client.Client).CancelOperation),
}

type operationList struct {
	State string `help:"Only operations in this state: running, done, failed or cancelled." enum:"running,done,failed,cancelled," default:"" placeholder:"STATE"`
	Limit int    `short:"n" help:"Maximum number of results." default:"20" placeholder:"N"`
}

func (operationList) Help() string {
	return `The newest come first.

Examples:
  engi operation list
  engi operation list --state failed --json`
}

func (o *operationList) Run(ctx context.Context, g *globals) error {
	operations := table[v1.Operation]{"ID\tTYPE\tSUBJECT\tSTATE\tCREATED\tERROR", func(x v1.Operation) []any {
		why := ""
		if x.Error != nil {
			why = x.Error.Detail
		}
		return []any{x.ID, x.Type, x.Subject, x.State, ago(x.CreatedAt), why}
	}, nil}
	return operations.list(ctx, g, false, func(d *connection) ([]v1.Operation, error) {
		return d.Operations(ctx, client.OperationFilter{State: o.State, Limit: o.Limit})
	})
}

type operationWatch struct {
	ID   string `arg:"" help:"Operation." placeholder:"ID"`
	From int64  `help:"Offset of the last event received (default: show all events)." placeholder:"N"`
}

func (operationWatch) Help() string {
	return `Exits with 1 if the operation has failed or was cancelled. With --json, prints one event per line.
Ctrl-C stops watching; the operation continues.

Examples:
  engi operation watch opn_u2dmwmlezjgprkqrgppgcz2mgu
  engi operation watch opn_u2dmwmlezjgprkqrgppgcz2mgu --verbose`
}

func (o *operationWatch) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		p := newProgress(g)
		for e, err := range d.WatchOperation(ctx, o.ID, o.From) {
			if err != nil {
				p.fail()
				return err
			}
			if g.JSON {
				if err := g.printLine(e); err != nil {
					return err
				}
			}
			switch x := e.Operation; {
			case x == nil:
				p.step(v1.BuildUpdate{Step: e.Step, Steps: e.Steps, Name: e.Name, Done: e.Done, Total: e.Total, Log: e.Log})
			case x.State == v1.OperationDone:
				p.done()
				g.note("%s %s is done", x.Type, x.Subject)
			case x.Error != nil:
				p.fail()
				return &client.Error{Problem: *x.Error}
			default:
				p.fail()
				return engi.Errorf(engi.Expired, "the operation was cancelled").WithRemedy("start it again")
			}
		}
		return nil
	})
}

func (g *globals) showOperation(x v1.Operation) {
	var f facts
	f.add("operation", "%s", x.ID)
	f.add("type", "%s", x.Type)
	f.add("subject", "%s", x.Subject)
	f.add("state", "%s, attempt %d, created %s", x.State, x.Attempt, ago(x.CreatedAt))
	if x.EndedAt != nil {
		f.add("took", "%s", short(x.EndedAt.Sub(x.CreatedAt)))
	}
	f.add("result", "%s", x.Result)
	if x.Error != nil {
		f.add("error", "%s", x.Error.Detail)
		f.add("remedy", "%s", x.Error.Remedy)
	}
	f.print(g)
}
