package preview

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Workspaces serves previews of workspaces: files that need no sandbox, servers in their sandboxes, and
// exposed services. [engi.Workspaces] implements it.
type Workspaces interface {
	Get(ctx context.Context, viewer engi.Viewer, workspace string) (engi.Workspace, error)
	PreviewFile(ctx context.Context, viewer engi.Viewer, workspace, path string) (engi.PublishedFile, error)
}

// workspacePrefix is the prefix of names of workspaces' previews.
const workspacePrefix = "ws-"

const longestLabel = 63 // maximum length of a label of a host name, see RFC 1035

// parseWorkspace parses LABEL, or LABEL-SERVICE.
func parseWorkspace(name string) target {
	label, service, _ := strings.Cut(name, "-")
	t := target{workspace: true, label: name, service: service}
	if id, err := engi.WorkspaceOfLabel(label); err == nil {
		t.site = id
	}
	return t
}

// WorkspaceURL returns the URL of the preview of a workspace, or of one of its services if
// service is not empty. It returns "" for a service whose name is too long for a host name.
func (p *Proxy) WorkspaceURL(id engi.WorkspaceID, service string) string {
	name := workspacePrefix + id.Label()
	if service != "" {
		name += "-" + service
	}
	if len(name) > longestLabel {
		return ""
	}
	return p.address(name)
}

// SignWorkspace is like Sign for the URL of [Proxy.WorkspaceURL]. The link stays valid when the preview changes.
func (p *Proxy) SignWorkspace(id engi.WorkspaceID, service string, ttl time.Duration) (address string, expires time.Time, err error) {
	if expires, err = until(ttl); err != nil {
		return "", time.Time{}, err
	}
	if address = p.WorkspaceURL(id, service); address == "" {
		return "", time.Time{}, engi.Errorf(engi.Invalid, "the name of service %.70s is too long for an address", service).WithRemedy("add it under a shorter name")
	}
	return address + p.query(target{workspace: true, site: id, service: service}, expires), expires, nil
}

// workspaceTarget returns the target of a request for the preview of a workspace, if the client may
// see it: other clients do not learn which targets exist. It serves files itself. who is nil if the
// request has been responded to.
func (p *Proxy) workspaceTarget(w http.ResponseWriter, r *http.Request, t target) (_ target, who *access) {
	refuse := func(status int, why string) (target, *access) {
		p.refuse(w, r, t, status, why)
		return t, nil
	}
	if p.o.Workspaces == nil || t.site == "" {
		return refuse(http.StatusNotFound, noPreview)
	}
	x, err := p.o.Workspaces.Get(r.Context(), engi.Everyone, string(t.site))
	switch {
	case err != nil && !engi.Is(err, engi.NotFound):
		p.respondError(w, r, t, err)
		return t, nil
	case err != nil:
		return refuse(http.StatusNotFound, noPreview)
	}
	who = &access{owner: x.Owner, private: t.service != "" || !x.Preview.Public, others: x.Collaborators}
	if done := p.authorize(w, r, t, *who); done {
		return t, nil
	}
	switch {
	case t.service != "":
		i := slices.IndexFunc(x.Services, func(s engi.Service) bool { return s.Name == t.service })
		if i < 0 || !x.Services[i].HasPage() {
			return refuse(http.StatusNotFound, noPreview)
		}
		t.id, t.port = x.Services[i].Sandbox, x.Services[i].Port
	case x.Preview.Type == engi.PreviewNone:
		return refuse(http.StatusNotFound, noPreview)
	case x.Preview.Type == engi.PreviewStatic:
		p.serveFiles(w, r, t, *who, string(t.site), func(name string, _ bool) (engi.PublishedFile, error) {
			return p.o.Workspaces.PreviewFile(r.Context(), engi.Everyone, string(t.site), name)
		})
		return t, nil
	default:
		t.id, t.port = x.Sandbox, x.Preview.Port
	}
	if t.id == "" {
		return refuse(http.StatusBadGateway, notStarted)
	}
	return t, who
}
