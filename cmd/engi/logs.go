package main

import (
	"context"
	"iter"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type logsCommand struct {
	ID     string `arg:"" help:"Execution." placeholder:"ID"`
	Follow bool   `short:"f" help:"Continue until the execution ends, and exit with its code."`
	From   int64  `help:"Offset to start at, in bytes of output." placeholder:"N"`
}

func (logsCommand) Help() string {
	return `Prints what the program printed so far, on the streams it printed to. With --json, one event
per line.

Examples:
  engi logs exe_u2dmwmlezjgprkqrgppgcz2mgu
  engi logs -f $(engi run -d train.py)`
}

// quiet is the silence after which the output of a running execution so far
// counts as complete.
const quiet = 300 * time.Millisecond

func (l *logsCommand) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		if _, err := d.Execution(ctx, l.ID); err != nil {
			return err
		}
		return printUntilQuiet(ctx, l.Follow, func(ctx context.Context) iter.Seq2[v1.ExecutionUpdate, error] { return d.Watch(ctx, l.ID, l.From) }, func(e v1.ExecutionUpdate) error {
			if err := g.printEvent(e); err != nil || e.Type != v1.EventResult || !l.Follow || e.Execution.Result == nil {
				return err
			}
			if code := exitOf(*e.Execution.Result); code != 0 {
				return exitCode(code)
			}
			return nil
		})
	})
}

// printUntilQuiet prints the events of a stream until it ends, or, unless follow is set, until no more output
// arrives.
func printUntilQuiet[T any](ctx context.Context, follow bool, from func(context.Context) iter.Seq2[T, error], print func(T) error) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	var pause *time.Timer
	if !follow {
		pause = time.AfterFunc(2*time.Second, stop)
		defer pause.Stop()
	}
	for e, err := range from(watch) {
		if err != nil {
			if watch.Err() != nil && ctx.Err() == nil {
				return nil // all output so far was printed
			}
			return err
		}
		if pause != nil {
			pause.Reset(quiet)
		}
		if err := print(e); err != nil {
			return err
		}
	}
	return nil
}

type cancelCommand struct {
	IDs []string `arg:"" help:"Executions." placeholder:"ID"`
}

func (cancelCommand) Help() string { return example("engi cancel exe_u2dmwmlezjgprkqrgppgcz2mgu") }

func (c *cancelCommand) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "cancelled", c.IDs, func(d *connection, id string) error { return d.Cancel(ctx, id) })
}
