package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"

	"github.com/engi-dev/engi/client"
)

// These helpers implement the commands that are the same for all kinds of objects:
// create, list, show and remove, with output for users or in JSON.

// A table prints objects in columns.
type table[T any] struct {
	head string         // names of the columns, separated by tabs
	row  func(T) []any  // returns the cells of a row; an empty text is shown as a dash
	id   func(T) string // returns the ID, for lists of IDs only; nil if the objects have none
}

// print prints objects as a table or in JSON.
func (t table[T]) print(g *globals, all []T) error {
	if g.JSON {
		return g.printJSON(all)
	}
	rows := make([][]any, len(all))
	for i, x := range all {
		rows[i] = t.row(x)
	}
	g.columns(t.head, rows)
	return nil
}

// list prints the objects that from returns; quiet prints IDs only.
func (t table[T]) list(ctx context.Context, g *globals, quiet bool, from func(*connection) ([]T, error)) error {
	return t.listAt(ctx, g, serverOnly, quiet, from)
}

func (t table[T]) listAt(ctx context.Context, g *globals, w where, quiet bool, from func(*connection) ([]T, error)) error {
	return g.at(ctx, w, func(d *connection) error {
		all, err := from(d)
		switch {
		case err != nil:
			return err
		case quiet && !g.JSON:
			for _, x := range all {
				fmt.Fprintln(g.out, t.id(x))
			}
			return nil
		}
		return t.print(g, all)
	})
}

// show prints one object as a table of one row.
func (t table[T]) show(g *globals, x T) { g.columns(t.head, [][]any{t.row(x)}) }

// example returns the end of a help text.
func example(lines ...string) string { return "Examples:\n  " + strings.Join(lines, "\n  ") }

// A listCommand lists objects. Values of listCommand, showCommand and actCommand
// have their functions from lists, shows, acts and ends.
type listCommand struct {
	help string
	run  func(context.Context, *globals) error
}

// lists returns a command that lists the objects that from returns.
func lists[T any](help string, t table[T], from func(*client.Client, context.Context) ([]T, error)) listCommand {
	return listCommand{help, func(ctx context.Context, g *globals) error {
		return t.list(ctx, g, false, func(d *connection) ([]T, error) { return from(d.Client, ctx) })
	}}
}

func (l listCommand) Help() string { return l.help }

func (l listCommand) Run(ctx context.Context, g *globals) error { return l.run(ctx, g) }

// A showCommand shows one object.
type showCommand struct {
	Name string `arg:"" name:"id" help:"ID or name." placeholder:"ID"`
	help string
	run  func(ctx context.Context, g *globals, name string) error
}

// shows returns a command that prints the object that from returns, with print.
func shows[T any](help string, print func(*globals, T), from func(*client.Client, context.Context, string) (T, error)) showCommand {
	return showCommand{help: help, run: func(ctx context.Context, g *globals, name string) error {
		return show(ctx, g, func(d *connection) (T, error) { return from(d.Client, ctx, name) }, func(x T) { print(g, x) })
	}}
}

func (s showCommand) Help() string { return s.help }

func (s showCommand) Run(ctx context.Context, g *globals) error { return s.run(ctx, g, s.Name) }

// An actCommand performs an action on several objects, which its arguments A name.
type actCommand[A interface{ names() []string }] struct {
	On   A `embed:""`
	help string
	run  func(ctx context.Context, g *globals, names []string) error
}

// Arguments that name objects of a kind.
type (
	objectNames struct {
		Names []string `arg:"" name:"id" help:"IDs or names." placeholder:"ID"`
	}
	appNames struct {
		Names []string `arg:"" name:"app" help:"Apps." placeholder:"APP"`
	}
	sandboxIDs struct {
		IDs []string `arg:"" name:"id" help:"Sandboxes." placeholder:"ID"`
	}
	sessionNames struct {
		Names []string `arg:"" name:"session" help:"Sessions." placeholder:"SESSION"`
	}
)

func (a objectNames) names() []string  { return a.Names }
func (a appNames) names() []string     { return a.Names }
func (a sandboxIDs) names() []string   { return a.IDs }
func (a sessionNames) names() []string { return a.Names }

// acts returns a command that calls do with each object, and prints the line for
// its result.
func acts[A interface{ names() []string }, T any](help string, do func(*client.Client, context.Context, string) (T, error), line func(T) string) actCommand[A] {
	return actCommand[A]{help: help, run: func(ctx context.Context, g *globals, names []string) error {
		return each(ctx, g, names, func(d *connection, name string) (T, error) { return do(d.Client, ctx, name) }, line)
	}}
}

// ends returns a command that deletes or ends objects, and prints their names under the
// key done.
func ends[A interface{ names() []string }](help, done string, end func(*client.Client, context.Context, string) error) actCommand[A] {
	return actCommand[A]{help: help, run: func(ctx context.Context, g *globals, names []string) error {
		return g.removeAll(ctx, done, names, func(d *connection, name string) error { return end(d.Client, ctx, name) })
	}}
}

// A removeCommand deletes or ends objects of any kind.
type removeCommand = actCommand[objectNames]

func removes(help, done string, end func(*client.Client, context.Context, string) error) removeCommand {
	return ends[objectNames](help, done, end)
}

func (c actCommand[A]) Help() string { return c.help }

func (c actCommand[A]) Run(ctx context.Context, g *globals) error {
	return c.run(ctx, g, c.On.names())
}

// follow prints the items of a stream until it ends or the user interrupts it: each as a line of
// JSON, or as the text that line returns.
func follow[T any](ctx context.Context, g *globals, from func(*connection) iter.Seq2[T, error], line func(T) string) error {
	return g.atServer(ctx, func(d *connection) error {
		for x, err := range from(d) {
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case g.JSON:
				err = g.printLine(x)
			default:
				_, err = fmt.Fprintln(g.out, line(x))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// cat prints the data that open returns.
func (g *globals) cat(ctx context.Context, open func(*connection) (io.ReadCloser, error)) error {
	return g.atServer(ctx, func(d *connection) error {
		f, err := open(d)
		if err != nil {
			return err
		}
		defer f.Close()
		return copyTo(g.out, f)
	})
}

// showDiff prints differences.
func (g *globals) showDiff(ctx context.Context, from func(*connection) (string, error)) error {
	return show(ctx, g, func(d *connection) (map[string]string, error) {
		text, err := from(d)
		return map[string]string{"diff": text}, err
	}, func(x map[string]string) {
		_ = copyTo(g.out, strings.NewReader(x["diff"])) // an error means that the reader of the output has left
	})
}

// show prints one object: in JSON, or with print.
func show[T any](ctx context.Context, g *globals, from func(*connection) (T, error), print func(T)) error {
	return g.at(ctx, serverOnly, func(d *connection) error {
		x, err := from(d)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(x)
		}
		print(x)
		return nil
	})
}

// create prints only the ID of a new object, so that scripts can
// use it.
func create[T any](ctx context.Context, g *globals, from func(*connection) (T, error), id func(T) string) error {
	return show(ctx, g, from, func(x T) { fmt.Fprintln(g.out, id(x)) })
}

// each calls act for several objects and prints the results.
func each[T any](ctx context.Context, g *globals, ids []string, act func(*connection, string) (T, error), line func(T) string) error {
	return g.at(ctx, serverOnly, func(d *connection) error {
		all := []T{}
		var errs []error
		for _, id := range ids {
			x, err := act(d, id)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, x)
			if !g.JSON {
				fmt.Fprintln(g.out, line(x))
			}
		}
		if g.JSON {
			if err := g.printJSON(all); err != nil {
				return err
			}
		}
		return g.several(errs)
	})
}

// removeAll deletes objects by name, and prints their names under the key done.
func (g *globals) removeAll(ctx context.Context, done string, names []string, remove func(*connection, string) error) error {
	return g.at(ctx, serverOnly, func(d *connection) error {
		var errs []error
		removed := []string{}
		for _, name := range names {
			if err := remove(d, name); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, name)
		}
		if g.JSON {
			if err := g.printJSON(map[string]any{done: removed}); err != nil {
				return err
			}
		}
		return g.several(errs)
	})
}

// at runs f with a client of a node.
func (g *globals) at(ctx context.Context, w where, f func(*connection) error) error {
	d, err := g.connect(ctx, w)
	if err != nil {
		return err
	}
	defer d.close()
	return f(d)
}

// atServer runs f with a client of the running server.
func (g *globals) atServer(ctx context.Context, f func(*connection) error) error {
	return g.at(ctx, serverOnly, f)
}

// several prints all of errs but the last, which it returns.
func (g *globals) several(errs []error) error {
	for i, err := range errs {
		if i == len(errs)-1 {
			return err
		}
		g.complain(err)
	}
	return nil
}

// columns prints rows below a head. It escapes control characters, because values
// may come from others.
func (g *globals) columns(head string, rows [][]any) {
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = orDash(printable(fmt.Sprint(cell)))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // an error means that the reader of the output has left
}

// facts are the properties of one object, each with a name and a text.
type facts [][2]string

// add adds a fact, unless its text is empty.
func (f *facts) add(name, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		*f = append(*f, [2]string{name, text})
	}
}

// print prints facts below each other.
func (f facts) print(g *globals) {
	w := tabwriter.NewWriter(g.out, 11, 0, 1, ' ', 0)
	for _, x := range f {
		fmt.Fprintf(w, "%s\t%s\n", x[0], printable(x[1]))
	}
	_ = w.Flush() // an error means that the reader of the output has left
}

// table prints rows below a head.
func (g *globals) table(head string, rows [][]string) {
	all := make([][]any, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			all[i] = append(all[i], cell)
		}
	}
	g.columns(head, all)
}
