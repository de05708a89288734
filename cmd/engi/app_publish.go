package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type appBranch struct {
	From     string `arg:"" name:"app" help:"App to copy." placeholder:"APP"`
	Name     string `arg:"" optional:"" help:"Name of the new app (default: a generated name)." placeholder:"NAME"`
	Revision int64  `short:"r" help:"Revision to copy (default: the last one)." placeholder:"N"`
	Snapshot bool   `help:"Start from the snapshot of the revision, with its databases (default: the last revision with a snapshot)."`
}

func (appBranch) Help() string {
	return `The first revision of the new app has the files of the given revision. Prints only the ID of the new
app on standard output, once its page is served. Exits with 1 if its server does not start, as 'engi
app create' does.

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
	return `The snapshot has the memory, processes and databases of the app and belongs to its last revision,
whose number is printed. An app keeps five snapshots; a sixth replaces the oldest. 'engi snapshot
list' lists them too.

Examples:
  engi app snapshot shop
  engi app snapshot shop --json | jq .snapshot
  engi app rollback shop --snapshot`
}

func (a *appSnapshot) Run(ctx context.Context, g *globals) error {
	return create(ctx, g, func(d *connection) (v1.AppRevision, error) { return d.SnapshotApp(ctx, a.Name) },
		func(x v1.AppRevision) string { return fmt.Sprint(x.Number) })
}

// showNewApp prints the ID of an app, and its address.
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
	Private bool   `help:"Show the page only to callers with your key, or with a link from 'engi app link --published'."`
}

func (appPublish) Help() string {
	return `Runs 'npm run build' in the app's sandbox, serves the files in dist at a URL of their own, and
prints the URL. Serving needs no sandbox, so the app can be stopped. Publishing again replaces the
earlier build. An app whose build creates no pages cannot be published.

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
	TTL       time.Duration `help:"Lifetime of the link." default:"1h"`
	Published bool          `help:"Link to the published build (default: to the current preview)."`
}

func (appLink) Help() string {
	return `Everybody who has the link can open the private page until the link expires. The link stays valid
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
