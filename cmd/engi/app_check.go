package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	v1 "github.com/engi-dev/engi/api/v1"
)

type appCheck struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
}

func (appCheck) Help() string {
	return `Sends a request to the app's server, compiles its files, runs the script check of its package.json,
and opens its pages in a browser in the sandbox. Prints each problem with its place, and exits with
1 if there are any.

Examples:
  engi app check shop
  engi app check shop --json | jq -r '.problems[].text'`
}

func (a *appCheck) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.CheckApp(ctx, a.Name)
		if err != nil {
			return err
		}
		if x.Warning != "" {
			g.note("%s", printable(x.Warning))
		}
		if g.JSON {
			if err := g.printJSON(x); err != nil {
				return err
			}
		}
		for _, p := range x.Problems {
			place := p.Path
			if p.Line > 0 {
				place += fmt.Sprintf(":%d", p.Line)
			}
			if place != "" {
				place += ": "
			}
			if !g.JSON {
				fmt.Fprintln(g.out, printable(p.Source+": "+place+p.Text))
			}
		}
		if len(x.Problems) > 0 {
			return exitCode(exitFailed)
		}
		return nil
	})
}

type appScreenshot struct {
	Name   string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Path   string `arg:"" optional:"" help:"Path of the page (default: /)." placeholder:"PATH"`
	Output string `short:"o" help:"File to write; - is standard output (default: the name of the app)." placeholder:"FILE"`
	Width  int    `help:"Width in pixels." default:"1280" placeholder:"N"`
	Height int    `help:"Height in pixels." default:"800" placeholder:"N"`
}

func (appScreenshot) Help() string {
	return `Takes a PNG screenshot of a page in a browser in the app's sandbox, and prints the name of the file.

Examples:
  engi app screenshot shop
  engi app screenshot shop /cart -o cart.png --width 390 --height 844`
}

func (a *appScreenshot) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.App(ctx, a.Name)
		if err != nil {
			return err
		}
		image, err := d.ScreenshotApp(ctx, a.Name, v1.ScreenshotRequest{Path: a.Path, Width: a.Width, Height: a.Height})
		if err != nil {
			return err
		}
		return g.writeFile(cmp.Or(a.Output, filepath.Base(x.Name)+".png"), bytes.NewReader(image))
	})
}
