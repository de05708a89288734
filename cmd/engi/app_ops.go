package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
)

type appManifest struct {
	Name     string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Revision int64  `short:"r" help:"Revision (default: the last one)." placeholder:"N"`
}

func (appManifest) Help() string {
	return `Shows the imports, exports, components, routes, style sheets and packages in the app's source code.
With --json, prints the whole manifest, from which a model can find the place for a change.

Examples:
  engi app manifest shop
  engi app manifest shop --json | jq -c '.files[] | {path, uses, exports}'`
}

func (a *appManifest) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.AppManifest, error) { return d.AppManifest(ctx, a.Name, a.Revision) }, func(x v1.AppManifest) {
		var f facts
		f.add("revision", "%d", x.Revision)
		f.add("entry", "%s", x.Entry)
		for _, r := range x.Routes {
			f.add("route", "%s", strings.TrimSpace(r.Method+" "+r.Path+" "+r.Component))
		}
		var packages []string
		for _, name := range slices.Sorted(maps.Keys(x.Packages)) {
			packages = append(packages, strings.TrimSpace(name+" "+x.Packages[name]))
		}
		f.add("packages", "%s", strings.Join(packages, ", "))
		for _, p := range x.Problems {
			f.add("problem", "%s:%d: %s", p.File, p.Line, p.Text)
		}
		f.print(g)
		components := map[string][]string{}
		for _, c := range x.Components {
			components[c.File] = append(components[c.File], c.Name)
		}
		for _, file := range x.Files {
			line := fmt.Sprintf("%s  %s, %d lines", file.Path, file.Type, file.Lines)
			if names := components[file.Path]; len(names) > 0 {
				line += ": " + strings.Join(names, ", ")
			}
			if len(file.Uses) > 0 {
				line += " <- " + strings.Join(file.Uses, ", ")
			}
			fmt.Fprintln(g.out, printable(line))
		}
		if x.Truncated {
			g.note("imports and the like of some files are left out, because there are too many")
		}
	})
}

type appRun struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
	execFlags
}

func (appRun) Help() string {
	return `Runs the program in the app's directory in its sandbox; an app without a sandbox gets one. Output is
printed live, standard input is passed on, and engi exits with the program's exit code. Changed
files become a revision before the next apply or rollback.

Examples:
  engi app run shop -- npm run build
  engi app run shop -c 'npm test | tail -20'
  engi app run -it shop -- node`
}

func (a *appRun) Run(ctx context.Context, g *globals) error {
	in := a.exec()
	if err := g.atServer(ctx, func(d *connection) error {
		x, err := d.App(ctx, a.Name)
		if err != nil {
			return err
		}
		if x.Directory != "" { // the sandbox begins in the directory of the workspace
			in.Dir = "/workspace/" + x.Directory
		}
		if x.Applying != 0 && x.SandboxID != "" { // opening the app would wait for the end of the apply
			in.ID = x.SandboxID
			return nil
		}
		if x, err = d.OpenApp(ctx, a.Name); err != nil { // the command may be meant to repair the app's server
			now, e := d.App(ctx, a.Name)
			if e != nil || now.SandboxID == "" {
				return err
			}
			g.note("the server of %s does not answer", now.Name)
			x = now
		}
		in.ID = x.SandboxID
		return nil
	}); err != nil {
		return err
	}
	return in.Run(ctx, g)
}
