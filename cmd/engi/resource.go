package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/engi-dev/engi/client"
)

// These helpers implement the commands that are alike for all kinds of objects:
// create, list, show and remove, for people or as JSON.

// A table prints objects in columns.
type table[T any] struct {
	head string         // names of the columns, with tabs between
	row  func(T) []any  // cells; an empty text is shown as a dash
	id   func(T) string // for lists of nothing else; nil if there are none
}

// print shows objects, or prints them as JSON.
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

// list shows what from returns; quiet prints IDs only.
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

// show shows one object as a table of one row.
func (t table[T]) show(g *globals, x T) { g.columns(t.head, [][]any{t.row(x)}) }

// example is the end of a help text.
func example(lines ...string) string { return "Examples:\n  " + strings.Join(lines, "\n  ") }

// A listCommand lists objects. It, a showCommand and a removeCommand are values,
// which have their functions from lists, shows and removes.
type listCommand struct {
	help string
	run  func(context.Context, *globals) error
}

// lists is the command that lists what from returns.
func lists[T any](help string, t table[T], from func(*client.Client, context.Context) ([]T, error)) listCommand {
	return listCommand{help, func(ctx context.Context, g *globals) error {
		return t.list(ctx, g, false, func(d *connection) ([]T, error) { return from(d.Client, ctx) })
	}}
}

func (l listCommand) Help() string { return l.help }

// Run implements the command.
func (l listCommand) Run(ctx context.Context, g *globals) error { return l.run(ctx, g) }

// A showCommand shows one object.
type showCommand struct {
	Name string `arg:"" name:"id" help:"ID, or name if there is one." placeholder:"ID"`
	help string
	run  func(ctx context.Context, g *globals, name string) error
}

// shows is the command that shows what from returns, as print does.
func shows[T any](help string, print func(*globals, T), from func(*client.Client, context.Context, string) (T, error)) showCommand {
	return showCommand{help: help, run: func(ctx context.Context, g *globals, name string) error {
		return show(ctx, g, func(d *connection) (T, error) { return from(d.Client, ctx, name) }, func(x T) { print(g, x) })
	}}
}

func (s showCommand) Help() string { return s.help }

// Run implements the command.
func (s showCommand) Run(ctx context.Context, g *globals) error { return s.run(ctx, g, s.Name) }

// A removeCommand removes objects, or ends them.
type removeCommand struct {
	Names  []string `arg:"" name:"id" help:"IDs, or names if there are some." placeholder:"ID"`
	help   string
	done   string
	remove func(*client.Client, context.Context, string) error
}

// removes is the command that removes objects and prints which, under the key done.
func removes(help, done string, remove func(*client.Client, context.Context, string) error) removeCommand {
	return removeCommand{help: help, done: done, remove: remove}
}

func (r removeCommand) Help() string { return r.help }

// Run implements the command.
func (r removeCommand) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, r.done, r.Names, func(d *connection, name string) error { return r.remove(d.Client, ctx, name) })
}

// show prints one object: as JSON, or as print does.
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

// create prints the ID of a new object, and nothing else, so that scripts can
// use it.
func create[T any](ctx context.Context, g *globals, from func(*connection) (T, error), id func(T) string) error {
	return show(ctx, g, from, func(x T) { fmt.Fprintln(g.out, id(x)) })
}

// each applies f to several objects and prints the results.
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

// removeAll removes objects by name, and prints which, under the key done.
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

// columns prints rows under a head. It escapes control characters, because values
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
	_ = w.Flush() // nobody reads it any more
}

// facts are the properties of one object, each with a name and a text.
type facts [][2]string

// add adds a fact, unless its text is empty.
func (f *facts) add(name, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		*f = append(*f, [2]string{name, text})
	}
}

// print shows facts below each other.
func (f facts) print(g *globals) {
	w := tabwriter.NewWriter(g.out, 11, 0, 1, ' ', 0)
	for _, x := range f {
		fmt.Fprintf(w, "%s\t%s\n", x[0], printable(x[1]))
	}
	_ = w.Flush() // nobody reads it any more
}

// table prints rows under a head.
func (g *globals) table(head string, rows [][]string) {
	all := make([][]any, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			all[i] = append(all[i], cell)
		}
	}
	g.columns(head, all)
}
