package rest

import (
	"cmp"
	"context"
	"net/http"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// PageService returns the addresses of pages and ports of apps.
type PageService interface {
	// AppURL returns the public address of a port of an app's sandbox.
	AppURL(id engi.AppID, port int) string
	// SignApp returns an address that opens a private port of an app until the address expires.
	SignApp(id engi.AppID, port int, good time.Duration) (address string, expires time.Time, err error)
	// PrivateApp reports whether the ports of an app require a link or the owner's key.
	PrivateApp(ctx context.Context, a engi.App) (bool, error)
	// PageURL returns the address of the page of an app.
	PageURL(id engi.AppID) string
	// SignPage returns an address that opens a private page until the address expires.
	SignPage(id engi.AppID, good time.Duration) (address string, expires time.Time, err error)
}

// publishing returns the routes that branch, publish and link apps.
func (a *apps) publishing(one string) []Route {
	change := writes(engi.ScopeSandboxes)
	return []Route{
		fetch(Route{
			Pattern: "POST " + one + "/snapshot", ID: "snapshot-app", Summary: "Take a snapshot of an app", Access: change, Status: http.StatusCreated,
			Text: "Saves the app's sandbox with its memory, processes and databases, and attaches the snapshot to the last revision, which is the answer. The snapshot counts against the owner's quota. " +
				"An app keeps five snapshots; a sixth replaces the oldest. Pages that are open in a browser reload.",
		}, func(c *call, in *anApp) (v1.AppRevision, error) {
			return to(revisionOf)(a.Snapshot(c, c.viewer(), in.ID))
		}),
		send(Route{
			Pattern: "POST " + one + "/branch", ID: "branch-app", Summary: "Create an app from a revision of another app", Access: change, Optional: true,
			Text: "The first revision of the new app has the files of the given revision; from and of name it. The new app has its own sandbox and preview. " +
				"Databases and other files outside of revisions are copied only if the new app starts from a snapshot.",
			Creates: "a repeated key returns the first app instead of creating another",
			Status:  http.StatusCreated, Location: "path of the app",
		}, a.branch),
		send(Route{
			Pattern: "POST " + one + "/publish", ID: "publish-app", Summary: "Publish an app", Access: change, Optional: true,
			Text: "Runs npm run build in the app's sandbox, and serves the files in dist at published.url until the app is deleted. Serving needs no sandbox. " +
				"The new build replaces the published one at once. If the app has no build script, or the build fails, the answer is a conflict, and the published build stays.",
		}, func(c *call, in *anApp, q v1.PublishRequest) (v1.App, error) {
			return to(a.of)(a.Publish(c, engi.PublishSpec{Viewer: c.viewer(), App: in.ID, Private: q.Private}))
		}),
		fetch(Route{
			Pattern: "POST " + one + "/unpublish", ID: "unpublish-app", Summary: "Unpublish an app", Access: change,
			Text: "Unpublishing an app twice is no error.",
		}, func(c *call, in *anApp) (v1.App, error) {
			if err := a.Unpublish(c, c.viewer(), in.ID); err != nil {
				return v1.App{}, err
			}
			return to(a.of)(a.Get(c, c.viewer(), in.ID))
		}),
		send(Route{
			Pattern: "POST " + one + "/publish/link", ID: "link-publication", Summary: "Create a link to a private published app", Access: change, Optional: true,
			Text: "Everybody who has the link can open the page until the link expires. The body is optional.", Status: http.StatusCreated,
		}, a.linkPage),
		send(Route{
			Pattern: "POST " + one + "/link", ID: "link-app", Summary: "Create a link to the preview of an app", Access: change, Optional: true,
			Text: "Everybody who has the link can open preview_url until the link expires, even if the preview is private or the app's sandbox has been replaced. The body is optional.", Status: http.StatusCreated,
		}, a.link),
	}
}

func (a *apps) branch(c *call, in *anApp, q v1.BranchRequest) (v1.App, error) {
	var check checker
	check.text("name", q.Name)
	if err := check.err(); err != nil {
		return v1.App{}, err
	}
	x, err := a.Branch(c, engi.BranchSpec{Viewer: c.viewer(), App: in.ID, Revision: q.Revision, Snapshot: q.Snapshot, Name: q.Name, Idempotency: c.key})
	if err == nil {
		c.location(appPath, string(x.ID))
	}
	return a.of(x), err
}

func (a *apps) link(c *call, in *anApp, q v1.LinkRequest) (v1.AppLink, error) {
	x, err := a.Get(c, c.viewer(), in.ID)
	if err == nil && a.ports == nil {
		err = missing(false, "previews of ports")
	}
	if err != nil {
		return v1.AppLink{}, err
	}
	address, expires, err := a.ports.SignApp(x.ID, x.Port, goodFor(q))
	if err != nil {
		return v1.AppLink{}, err
	}
	private, err := a.ports.PrivateApp(c, x)
	return v1.AppLink{URL: address, ExpiresAt: expires.UTC(), Private: private}, err
}

// goodFor returns the lifetime of a link.
func goodFor(q v1.LinkRequest) time.Duration { return cmp.Or(q.TTL.Std(), time.Hour) }

func (a *apps) linkPage(c *call, in *anApp, q v1.LinkRequest) (v1.Link, error) {
	x, err := a.Get(c, c.viewer(), in.ID)
	switch {
	case err != nil:
		return v1.Link{}, err
	case x.Published.Revision == 0:
		return v1.Link{}, engi.Errorf(engi.Conflict, "app %s has no published build", x.Name).WithRemedy("publish it first")
	case a.ports == nil:
		return v1.Link{}, missing(false, "previews of ports")
	}
	address, expires, err := a.ports.SignPage(x.ID, goodFor(q))
	return v1.Link{URL: address, ExpiresAt: expires.UTC()}, err
}

// published describes the publication of an app; nil if the app is not published.
func (a *apps) published(x engi.App) *v1.AppPublication {
	p := x.Published
	if p.Revision == 0 {
		return nil
	}
	out := &v1.AppPublication{Revision: p.Revision, At: p.At.UTC(), Files: p.Files, Bytes: v1.Bytes(p.Bytes), Private: p.Private}
	if a.ports != nil {
		out.URL = a.ports.PageURL(x.ID)
	}
	return out
}
