package rest

import (
	"net/http"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const snapshotPath = "/v1/snapshots"

type aSnapshot struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the snapshot"`
}

type listSnapshots struct {
	page
	Sandbox engi.SandboxID `query:"sandbox" doc:"Only snapshots of this sandbox"`
}

// Snapshots returns the routes of snapshots of sandboxes; service and lifecycle may be nil.
func Snapshots(service engi.Snapshots, lifecycle engi.Lifecycle) Resource {
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	return Resource{tag: "snapshots", about: "saved states of sandboxes, from which other sandboxes can start", missing: missing(service != nil, "snapshots"), routes: []Route{
		send(Route{
			Pattern: "POST " + sandboxPath + "/{id}/snapshot", ID: "snapshot-sandbox", Tag: "sandboxes", Summary: "Take a snapshot of a sandbox", Access: change,
			missing: missing(lifecycle != nil, "sandboxes that sleep"),
			Creates: "a repeated key returns the first snapshot instead of creating another",
			Text:    "The sandbox keeps running. To start sandboxes from the snapshot, name it as snapshot in POST /v1/sandboxes. The body is optional.",
			Status:  http.StatusCreated, Location: "path of the snapshot", Optional: true,
		}, func(c *call, in *aSandbox, q v1.SnapshotRequest) (v1.Snapshot, error) {
			x, err := once(c, q, idempotency.Creation[engi.Snapshot]{
				IDs: []string{string(engi.NewSnapshotID())},
				Work: func(ids []string) (engi.Snapshot, error) {
					return lifecycle.Snapshot(c, c.viewer(), in.ID, engi.SnapshotSpec{ID: idempotency.FirstID[engi.SnapshotID](ids), Name: q.Name, DiskOnly: q.DiskOnly, TTL: q.TTL.Std()})
				},
				Find: func(ids []string, _ bool) (engi.Snapshot, error) { return service.Get(c, c.viewer(), ids[0]) },
			})
			if err == nil {
				c.location(snapshotPath, string(x.ID))
			}
			return snapshotOf(x), err
		}),
		paged(Route{Pattern: "GET " + snapshotPath, ID: "list-snapshots", Summary: "List snapshots", Text: "The newest come first.", Access: look},
			func(c *call, in *listSnapshots, p engi.Paging) ([]engi.Snapshot, error) {
				return service.List(c, c.viewer(), in.Sandbox, p)
			}, snapshotOf, func(x v1.Snapshot) string { return x.ID }),
		fetch(Route{Pattern: "GET " + snapshotPath + "/{name}", ID: "get-snapshot", Summary: "Get a snapshot", Access: look},
			func(c *call, in *aSnapshot) (v1.Snapshot, error) {
				return to(snapshotOf)(service.Get(c, c.viewer(), in.Name))
			}),
		act(Route{
			Pattern: "DELETE " + snapshotPath + "/{name}", ID: "remove-snapshot", Summary: "Delete a snapshot", Access: change,
			Text: "Its files are deleted when no sandbox depends on them.",
		}, func(c *call, in *aSnapshot, _ none) error { return service.Remove(c, c.viewer(), in.Name) }),
	}}
}

func snapshotOf(x engi.Snapshot) v1.Snapshot {
	return v1.Snapshot{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, SandboxID: string(x.Sandbox), Template: x.Template, Digest: x.Digest,
		Tier: string(x.Tier), Size: sizeOf(x.Size), DiskOnly: x.Disk, Bytes: v1.Bytes(max(0, x.Bytes)),
		CreatedAt: x.Created.UTC(), UsedAt: moment(x.Used), ExpiresAt: moment(x.Expires),
	}
}
