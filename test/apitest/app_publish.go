package apitest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// Branch implements engi.Apps.
func (a *Apps) Branch(ctx context.Context, spec engi.BranchSpec) (engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	from, err := a.find(spec.Viewer, spec.App)
	if err != nil {
		return engi.App{}, err
	}
	request := idempotency.Request{Owner: from.Owner, Key: spec.Idempotency, Fingerprint: idempotency.Fingerprint(spec)}
	if x, err := a.repeated(request); x != nil || err != nil {
		return x.copyOf(), err
	}
	r, err := from.revision(spec.Revision)
	if spec.Snapshot {
		r, err = from.kept(spec.Revision)
	}
	if err != nil {
		return engi.App{}, err
	}
	spec.Name = cmp.Or(spec.Name, fmt.Sprint("app-", len(a.all)+1))
	if _, err := a.find(from.Owner.Viewer(), spec.Name); err == nil {
		return engi.App{}, engi.Errorf(engi.Conflict, "there is an app %q already", spec.Name).WithRemedy("choose another name")
	}
	x := &app{request: request, applied: map[string]appRepeat{}, App: engi.App{
		ID: engi.NewAppID(), Owner: from.Owner, Name: spec.Name, Template: from.Template, State: engi.AppReady, Sandbox: engi.NewSandboxID(), Port: 5173,
		Metadata: from.Metadata, Created: appMoment, Used: appMoment,
	}}
	x.revise(engi.Revision{Message: fmt.Sprintf("Branch from %s at revision %d", from.Name, r.Number), From: from.ID, Of: r.Number}, maps.Clone(r.files))
	a.all = append(a.all, x)
	_, err = a.happen(ctx, x, engi.EventAppCreated, engi.AppUpdate{Kind: engi.AppStateChanged, State: x.State})
	return x.App, err
}

// Publish implements engi.Apps. It publishes the page, unless the template has none.
func (a *Apps) Publish(ctx context.Context, spec engi.PublishSpec) (engi.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(spec.Viewer, spec.App)
	if err != nil {
		return engi.App{}, err
	}
	page := x.revisions[len(x.revisions)-1].files["index.html"]
	if x.Template != "vite-react" || page == "" {
		return engi.App{}, engi.Errorf(engi.Conflict, "app %s has no build", x.Name).WithRemedy("publish pages only")
	}
	x.Published = engi.Publication{Revision: x.Revision, At: appMoment, Files: 1, Bytes: int64(len(page)), Private: spec.Private}
	_, err = a.happen(ctx, x, engi.EventAppPublished, engi.AppUpdate{Kind: engi.AppPublished, Revision: x.Revision})
	return x.App, err
}

// Unpublish implements engi.Apps.
func (a *Apps) Unpublish(ctx context.Context, viewer engi.Viewer, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, err := a.find(viewer, name)
	if err != nil || x.Published.Revision == 0 {
		return err
	}
	x.Published = engi.Publication{}
	_, err = a.happen(ctx, x, engi.EventAppUnpublished, engi.AppUpdate{Kind: engi.AppUnpublished})
	return err
}

// Published implements engi.Apps.
func (a *Apps) Published(_ context.Context, viewer engi.Viewer, name, path string, _ bool) (engi.PublishedFile, error) {
	r, err := a.at(viewer, name, 0)
	if err != nil {
		return engi.PublishedFile{}, err
	}
	text, ok := r.files[path]
	if !ok || path != "index.html" {
		return engi.PublishedFile{}, engi.Errorf(engi.NotFound, "no page %.80q", path)
	}
	sum := sha256.Sum256([]byte(text))
	return engi.PublishedFile{Path: path, Size: int64(len(text)), Digest: hex.EncodeToString(sum[:]), Content: strings.NewReader(text)}, nil
}
