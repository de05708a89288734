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
	Snapshot bool   `help:"Begin with the snapshot of that revision, with its databases; else with that of the last one that has one."`
}

func (appBranch) Help() string {
	return `Its first revision has the files of that one. Only the ID of the new app is printed on standard
output, once its page is served. Exits with 1 if its server does not start, as 'engi app create' does.

Examples:
  engi app branch shop blue
  engi app branch shop before --revision 2 --json | jq -r .preview_url
  engi app branch shop trial --snapshot`
}

func (a *appBranch) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.BranchApp(ctx, a.From, v1.BranchRequest{Name: a.Name, Revision: a.Revision, Snapshot: a.Snapshot})
		if err != nil {
			return err
		}
		return g.showNewApp(x)
	})
}

type appSnapshot struct {
	Name string `arg:"" name:"app" help:"App." placeholder:"APP"`
}

func (appSnapshot) Help() string {
	return `The snapshot has the memory, the processes and the databases of the app and belongs to its last
revision, whose number is printed. An app keeps five of them; the oldest goes first. They are
among those of 'engi snapshot list'.

Examples:
  engi app snapshot shop
  engi app snapshot shop --json | jq .snapshot
  engi app rollback shop --snapshot`
}

func (a *appSnapshot) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.AppRevision, error) { return d.SnapshotApp(ctx, a.Name) },
		func(x v1.AppRevision) string { return fmt.Sprint(x.Number) })
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
	Private bool   `help:"Show it to those only who have your key, or a link from 'engi app link --published'."`
}

func (appPublish) Help() string {
	return `Runs 'npm run build' in the sandbox of the app and serves what that leaves in dist at an address of its
own, which is printed. That needs no sandbox, so the app can be stopped. Publishing again takes the
place of what was there before. An app without a build that leaves pages cannot be published.

Examples:
  engi app publish shop
  curl "$(engi app publish shop)"
  engi app publish shop --private && engi app link shop --published --ttl 24h`
}

func (a *appPublish) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.App, error) {
		return d.PublishApp(ctx, a.Name, v1.PublishRequest{Private: a.Private})
	}, func(x v1.App) string { return x.Published.URL })
}

type appLink struct {
	Name      string        `arg:"" name:"app" help:"App." placeholder:"APP"`
	TTL       time.Duration `help:"How long the link is valid." default:"1h"`
	Published bool          `help:"To what it has published; else to its page as it is now."`
}

func (appLink) Help() string {
	return `Whoever has the link can see the page, although it is private, until the link expires. It stays valid
when the app gets another sandbox.

Examples:
  engi app link shop
  engi app link shop --published --ttl 24h`
}

func (a *appLink) Run(ctx context.Context, g *globals) error {
	if a.Published {
		return create(ctx, g, func(d *connection) (v1.Link, error) { return d.LinkPublication(ctx, a.Name, a.TTL) }, func(l v1.Link) string { return l.URL })
	}
	return create(ctx, g, func(d *connection) (v1.AppLink, error) { return d.LinkApp(ctx, a.Name, a.TTL) }, func(l v1.AppLink) string { return l.URL })
}
