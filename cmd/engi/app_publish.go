package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type appBranch struct {
	From     string `arg:"" name:"app" help:"App to begin with." placeholder:"APP"`
	Name     string `arg:"" optional:"" help:"Name of the new app; else one made up." placeholder:"NAME"`
	Revision int64  `short:"r" help:"Revision to begin with; else the last one." placeholder:"N"`
}

func (appBranch) Help() string {
	return `Its first revision has the files of that one. Only the ID of the new app is printed on standard
output, once its page is served. Exits with 1 if its server does not start, as 'engi app create' does.

Examples:
  engi app branch shop blue
  engi app branch shop before --revision 2 --json | jq -r .preview_url`
}

// Run implements the command.
func (a *appBranch) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.BranchApp(ctx, a.From, v1.BranchRequest{Name: a.Name, Revision: a.Revision})
		if err != nil {
			return err
		}
		return g.showNewApp(x)
	})
}

// showNewApp prints the ID of an app, and where it is.
func (g *globals) showNewApp(x v1.App) (err error) {
	if g.JSON {
		err = g.printJSON(x)
	} else if _, err = fmt.Fprintln(g.out, x.ID); err == nil && x.PreviewURL != "" {
		g.note("%s is at %s", x.Name, x.PreviewURL)
	}
	if err != nil {
		return err
	}
	return failedApp(x)
}

type appPublish struct {
	Name    string `arg:"" name:"app" help:"App." placeholder:"APP"`
	Private bool   `help:"Show it to those only who have your key, or a link from 'engi app link'."`
}

func (appPublish) Help() string {
	return `Runs 'npm run build' in the sandbox of the app and serves what that leaves in dist at an address of its
own, which is printed. That needs no sandbox, so the app can be stopped. Publishing again takes the
place of what was there before. An app without a build that leaves pages cannot be published.

Examples:
  engi app publish shop
  curl "$(engi app publish shop)"
  engi app publish shop --private && engi app link shop --ttl 24h`
}

// Run implements the command.
func (a *appPublish) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.App, error) {
		return d.PublishApp(ctx, a.Name, v1.PublishRequest{Private: a.Private})
	}, func(x v1.App) string { return x.Published.URL })
}

type appUnpublish struct {
	Names []string `arg:"" name:"app" help:"Apps." placeholder:"APP"`
}

func (appUnpublish) Help() string {
	return `The apps stay as they are.

Examples:
  engi app unpublish shop`
}

// Run implements the command.
func (a *appUnpublish) Run(ctx context.Context, g *globals) error {
	return each(ctx, g, a.Names, func(d *connection, name string) (v1.App, error) { return d.UnpublishApp(ctx, name) },
		func(x v1.App) string { return x.ID + " unpublished" })
}

type appLink struct {
	Name string        `arg:"" name:"app" help:"App." placeholder:"APP"`
	TTL  time.Duration `help:"How long the link is valid." default:"1h"`
}

func (appLink) Help() string {
	return `Whoever has the link can see what the app has published, although it is private.

Examples:
  engi app link shop
  engi app link shop --ttl 24h`
}

// Run implements the command.
func (a *appLink) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.Link, error) { return d.LinkApp(ctx, a.Name, a.TTL) }, func(l v1.Link) string { return l.URL })
}
