package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const (
	workspacePath = "/v1/workspaces"
)

type workspaces struct {
	engi.Workspaces
	previews WorkspacePreviews
}

type aWorkspace struct {
	ID string `path:"id" maxLength:"128" doc:"ID or name of the workspace; those of other owners are named by ID or as OWNER/NAME"`
}

type workspaceAt struct {
	aWorkspace
	Revision int64 `query:"revision" minimum:"0" doc:"Revision; 0 means the last one, with the changes in the sandbox"`
}

type listWorkspaceFiles struct {
	workspaceAt
	Path string `query:"path" maxLength:"1024" doc:"Only files below this directory, or files that match this pattern, in which * and ? match everything except slashes" example:"src"`
}

type workspaceFile struct {
	workspaceAt
	Path string `query:"path" required:"true" maxLength:"1024" doc:"Path, relative to the workspace" example:"src/index.html"`
}

type getWorkspaceFile struct {
	workspaceFile
	download
}

type changeWorkspaceFile struct {
	aWorkspace
	Path    string `query:"path" required:"true" maxLength:"1024" doc:"Path, relative to the workspace" example:"src/index.html"`
	Message string `query:"message" maxLength:"200" doc:"Message of the revision"`
	Base    int64  `query:"base" minimum:"0" doc:"Revision that the caller has read: if the file has changed since, the answer is a conflict; 0 means any revision"`
}

type putWorkspaceFile struct {
	changeWorkspaceFile
	Mode string `query:"mode" doc:"0644 or 0755; absent means the mode of the existing file, or 0644" example:"0755"`
}

type listWorkspaceRevisions struct {
	aWorkspace
	page
}

type diffWorkspace struct {
	aWorkspace
	From int64 `query:"from" minimum:"0" doc:"Revision; 0 means the parent of to"`
	To   int64 `query:"to" minimum:"0" doc:"Revision; 0 means the last one"`
}

type aService struct {
	aWorkspace
	Service string `path:"service" maxLength:"63" doc:"Name of the service"`
}

type getServiceLogs struct {
	aService
	Max int `query:"max" minimum:"1" maximum:"1048576" default:"65536" doc:"Size of the end of the log, in bytes"`
}

type inDatabase struct {
	aWorkspace
	Service  string `query:"service" maxLength:"63" doc:"Name of the service; absent means the only SQL service"`
	Database string `query:"database" maxLength:"63" doc:"Name of the database; absent means the service's database"`
}

type aTable struct {
	inDatabase
	Table string `path:"table" maxLength:"256" doc:"Name of the table, optionally as SCHEMA.TABLE"`
}

// WorkspacePreviews returns the addresses of workspaces' previews.
type WorkspacePreviews interface {
	// WorkspaceURL returns the address of the preview of a workspace, or of one of its services;
	// empty if there is none.
	WorkspaceURL(id engi.WorkspaceID, service string) string
	// SignWorkspace returns an address that opens a preview until the address expires.
	SignWorkspace(id engi.WorkspaceID, service string, good time.Duration) (address string, expires time.Time, err error)
}

// Workspaces returns the routes of workspaces; service and previews may be nil.
func Workspaces(service engi.Workspaces, previews WorkspacePreviews) Resource {
	w := &workspaces{service, previews}
	absent := absentUnless(service != nil, "this node has no workspaces", "use /v1/sandboxes and /v1/volumes")
	const one = workspacePath + "/{id}"
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	return Resource{
		tag: "workspaces", about: "files with a history, services such as databases, and collaborators",
		missing: absent, routes: slices.Concat([]Route{
			send(Route{
				Pattern: "POST " + workspacePath, ID: "create-workspace", Summary: "Create a workspace", Access: change, Objects: Owned,
				Text: "Answers once the workspace's services are healthy. If a service does not start, the workspace is created anyway, and the error of the service says why. " +
					"The workspace gets a sandbox with its working copy when it is started.",
				Creates: "a repeated key returns the first workspace instead of creating another",
				Status:  http.StatusCreated, Location: "path of the workspace",
				Bodies: []example{{"shop", "with a database", `{"services": [{"type": "postgres"}], "files": [{"path": "README.md", "content": "# Shop\n"}]}`}},
			}, w.create),
			paged(Route{Pattern: "GET " + workspacePath, ID: "list-workspaces", Summary: "List workspaces", Text: "The newest come first. Includes workspaces that others have shared with the caller.", Access: look},
				paging(service, engi.Workspaces.List), w.of, func(x v1.Workspace) string { return x.ID }),
			fetch(Route{Pattern: "GET " + one, ID: "get-workspace", Summary: "Get a workspace", Access: look}, w.get),
			send(Route{Pattern: "PATCH " + one, ID: "change-workspace", Summary: "Change a workspace", Access: change}, w.change),
			send(Route{
				Pattern: "POST " + one + "/link", ID: "link-workspace", Summary: "Create a link to the preview of a workspace", Access: change, Optional: true,
				Text: "Everybody who has the link can open the preview until the link expires, even if the preview is changed meanwhile. With service, the link is for the pages of that service, which must be exposed. The body is optional.", Status: http.StatusCreated,
			}, w.link),
			act(Route{
				Pattern: "DELETE " + one, ID: "remove-workspace", Summary: "Delete a workspace", Access: change,
				Text: "Deletes the workspace, its history and the data of its services.",
			}, func(c *call, in *aWorkspace, _ none) error { return w.Remove(c, c.viewer(), in.ID) }),
			fetch(Route{
				Pattern: "POST " + one + "/start", ID: "start-workspace", Summary: "Start a workspace", Access: change,
				Text: "Answers once the workspace's sandbox has the files of the last revision and its services are healthy.",
			}, func(c *call, in *aWorkspace) (v1.Workspace, error) {
				return to(w.of)(w.Start(c, c.viewer(), in.ID))
			}),
			fetch(Route{
				Pattern: "POST " + one + "/stop", ID: "stop-workspace", Summary: "Stop a workspace", Access: change,
				Text: "Changes in the workspace's sandbox become a revision. Its sandboxes are destroyed; files, history and the data of services stay. Stopping a workspace twice is no error.",
			}, func(c *call, in *aWorkspace) (v1.Workspace, error) {
				if err := w.Stop(c, c.viewer(), in.ID); err != nil {
					return v1.Workspace{}, err
				}
				return w.get(c, in)
			}),
		}, w.filing(one, look, change), w.cloning(one, look, change), w.serving(one, look, change), w.querying(one, look, change)),
	}
}

func (w *workspaces) create(c *call, _ *none, q v1.WorkspaceRequest) (v1.Workspace, error) {
	var check checker
	check.text("name", q.Name)
	check.text("template", q.Template)
	check.Metadata("metadata", q.Metadata)
	spec := engi.WorkspaceSpec{
		Owner: c.owner(), Name: q.Name, Template: q.Template, Files: writesOf(&check, q.Files), Collaborators: collaboratorsOf(&check, "collaborators", q.Collaborators), Metadata: q.Metadata, Idempotency: c.key,
	}
	for i, s := range q.Services {
		spec.Services = append(spec.Services, serviceSpecOf(&check, "services["+strconv.Itoa(i)+"].", s))
	}
	if err := check.err(); err != nil {
		return v1.Workspace{}, err
	}
	x, err := w.Create(c, spec)
	if err != nil {
		return v1.Workspace{}, err
	}
	c.location(workspacePath, string(x.ID))
	return w.of(x), nil
}

func (w *workspaces) get(c *call, in *aWorkspace) (v1.Workspace, error) {
	x, err := w.Get(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Workspace{}, err
	}
	use, err := w.ServiceUse(c, c.viewer(), string(x.ID))
	out := w.of(x)
	for i, s := range out.Services {
		if u, ok := use[s.Name]; ok {
			out.Services[i].Use = &v1.ServiceUse{CPUTime: length(u.CPU), CPUPercent: u.CPUPercent, Memory: v1.Bytes(u.Memory), MemoryLimit: v1.Bytes(u.MemoryLimit), Disk: v1.Bytes(u.Disk), DiskLimit: v1.Bytes(u.DiskLimit)}
		}
	}
	return out, err
}

func (w *workspaces) change(c *call, in *aWorkspace, q v1.WorkspaceUpdate) (v1.Workspace, error) {
	var check checker
	var update engi.WorkspaceChange
	if q.Collaborators != nil {
		update.Collaborators = new(collaboratorsOf(&check, "collaborators", *q.Collaborators))
	}
	update.Share = collaboratorsOf(&check, "share", q.Share)
	if len(q.Unshare) > engi.MaxCollaborators {
		return v1.Workspace{}, invalid("unshare", "there are more than %d", engi.MaxCollaborators)
	}
	for i, o := range q.Unshare {
		check.text("unshare["+strconv.Itoa(i)+"]", o)
		update.Unshare = append(update.Unshare, engi.Owner(o))
	}
	if q.Metadata != nil {
		check.Metadata("metadata", *q.Metadata)
		if update.Metadata = *q.Metadata; update.Metadata == nil {
			update.Metadata = map[string]string{}
		}
	}
	if p := q.Preview; p != nil {
		if p.Type == "" {
			check.addf("preview.type", "it is missing")
		}
		check.oneOf("preview.type", p.Type, []string{"none", string(engi.PreviewStatic), string(engi.PreviewProxy), string(engi.PreviewWebSocket)})
		if update.Preview = (&engi.WorkspacePreview{Root: p.Root, Port: p.Port, Public: p.Public}); p.Type != "none" {
			update.Preview.Type = engi.PreviewType(p.Type)
		}
	}
	if err := check.err(); err != nil {
		return v1.Workspace{}, err
	}
	return to(w.of)(w.Change(c, c.viewer(), in.ID, update))
}

func (w *workspaces) link(c *call, in *aWorkspace, q v1.WorkspaceLinkRequest) (v1.Link, error) {
	x, err := w.Get(c, c.viewer(), in.ID)
	if err == nil {
		err = x.Allow(c.viewer(), engi.RoleEditor) // this grants access to others
	}
	if err == nil && w.previews == nil {
		err = missing(false, "previews of ports")
	}
	if err != nil {
		return v1.Link{}, err
	}
	shown := x.Preview
	if q.Service != "" {
		i := slices.IndexFunc(x.Services, func(s engi.Service) bool { return s.Name == q.Service })
		switch {
		case i < 0:
			return v1.Link{}, engi.Errorf(engi.NotFound, "there is no service %.70q", q.Service).WithRemedy("list the services of the workspace")
		case !x.Services[i].HasPage():
			return v1.Link{}, engi.Errorf(engi.Conflict, "service %s has no preview", q.Service).WithRemedy("add a service that serves pages, and say that it is exposed")
		}
		shown = engi.WorkspacePreview{Type: engi.PreviewProxy}
	}
	if shown.Type == engi.PreviewNone {
		return v1.Link{}, engi.Errorf(engi.Conflict, "workspace %s has no preview", x.ID).WithRemedy("turn its preview on first")
	}
	address, expires, err := w.previews.SignWorkspace(x.ID, q.Service, goodFor(v1.LinkRequest{TTL: q.TTL}))
	return v1.Link{URL: shown.Address(address), ExpiresAt: expires.UTC()}, err
}

// filing returns the routes of files.
func (w *workspaces) filing(one string, look, change Access) []Route {
	download, upload := fileRoute(downloadFile, one, "get-workspace-file", look), Route{
		Pattern: "PUT " + one + "/files", ID: "put-workspace-file", Summary: "Write a file to a workspace", Access: change,
		Text:    "The body is the file's content. The change becomes a revision, and is copied into the workspace's sandbox, if there is one.",
		Uploads: []string{"application/octet-stream"},
	}
	return []Route{
		fetch(Route{Pattern: "GET " + one + "/files/list", ID: "list-workspace-files", Summary: "List the files of a workspace", Text: "Lists the files of a revision by path. The workspace needs no sandbox for this.", Access: look}, w.list),
		raw(download, w.file),
		send(upload, w.put),
		send(Route{
			Pattern: "POST " + one + "/files", ID: "write-workspace-files", Summary: "Write several files to a workspace", Access: change,
			Text:   "All files are written as one revision, or none is.",
			Bodies: []example{{"page", "one file", `{"files": [{"path": "index.html", "content": "<h1>Shop</h1>\n"}], "message": "Add a page"}`}},
		}, w.write),
		send(Route{
			Pattern: "POST " + one + "/files/move", ID: "move-workspace-file", Summary: "Move a file or a directory of a workspace", Access: change,
			Text:   "The change becomes one revision. If the new path exists, the answer is a conflict.",
			Bodies: []example{{"move", "a file", `{"from": "notes.md", "to": "docs/notes.md"}`}},
		}, w.move),
		fetch(Route{Pattern: "DELETE " + one + "/files", ID: "remove-workspace-file", Summary: "Delete a file from a workspace", Access: change, Text: "The change becomes a revision."},
			func(c *call, in *changeWorkspaceFile) (v1.WorkspaceRevision, error) {
				return w.revise(c, in, engi.WorkspaceFile{Removed: true})
			}),
		paged(Route{Pattern: "GET " + one + "/revisions", ID: "list-workspace-revisions", Summary: "List the revisions of a workspace", Text: "The newest come first.", Access: look},
			func(c *call, in *listWorkspaceRevisions, p engi.Paging) ([]engi.WorkspaceRevision, error) {
				return w.Revisions(c, c.viewer(), in.ID, p)
			}, workspaceRevisionOf, func(x v1.WorkspaceRevision) string { return strconv.FormatInt(x.Number, 10) }),
		raw(Route{
			Pattern: "GET " + one + "/diff", ID: "diff-workspace", Summary: "Compare two revisions of a workspace", Access: look,
			Text: "Returns a unified diff in git's format.", Answers: []answer{bytesOf(http.StatusOK, textType, nil)},
		}, func(c *call, in *diffWorkspace, _ none) error {
			text, err := w.Diff(c, c.viewer(), in.ID, in.From, in.To)
			if err != nil {
				return err
			}
			c.replyText(text)
			return nil
		}),
		send(Route{
			Pattern: "POST " + one + "/restore", ID: "restore-workspace", Summary: "Restore files of a workspace from an earlier revision", Access: change,
			Text: "Files of an earlier revision become a new revision, which can be reverted too.",
		}, func(c *call, in *aWorkspace, q v1.RestoreRequest) (v1.WorkspaceRevision, error) {
			return to(workspaceRevisionOf)(w.Restore(c, c.viewer(), in.ID, q.Revision, q.Path))
		}),
		list(Route{
			Pattern: "GET " + one + "/blame", ID: "blame-workspace-file", Summary: "List the revisions of each line of a file (blame)", Text: "Returns the revision that last changed each line.", Access: look,
		}, func(c *call, in *workspaceFile) ([]engi.BlameLine, error) {
			return w.Blame(c, c.viewer(), in.ID, in.Path, in.Revision)
		}, func(x engi.BlameLine) v1.BlameLine {
			return v1.BlameLine{Revision: x.Revision, Actor: x.Actor, CreatedAt: x.Created.UTC(), Text: text(x.Text)}
		}),
	}
}

func (w *workspaces) list(c *call, in *listWorkspaceFiles) (v1.List[v1.WorkspaceFile], error) {
	wanted := strings.Trim(in.Path, "/")
	if _, err := path.Match(wanted, ""); err != nil {
		return v1.List[v1.WorkspaceFile]{}, invalid("query.path", "it is not a pattern: %v", err)
	}
	all, err := w.Files(c, c.viewer(), in.ID, in.Revision)
	if err != nil {
		return v1.List[v1.WorkspaceFile]{}, err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(f engi.WorkspaceFile) bool {
		matches, _ := path.Match(wanted, f.Path) // the pattern was checked above
		return wanted != "" && !matches && !strings.HasPrefix(f.Path, wanted+"/")
	})
	return listOf(all, func(f engi.WorkspaceFile) v1.WorkspaceFile {
		return v1.WorkspaceFile{Path: text(f.Path), Size: v1.Bytes(max(0, f.Size)), Mode: v1.Mode(f.Mode & 0o777), Digest: f.Digest}
	}), nil
}

func (w *workspaces) file(c *call, in *getWorkspaceFile, _ none) error {
	return downloadFrom(c, in.Path, func(ctx context.Context, path string) (io.ReadCloser, error) {
		return w.File(ctx, c.viewer(), in.ID, path, in.Revision)
	})
}

func (w *workspaces) put(c *call, in *putWorkspaceFile, _ none) (v1.WorkspaceRevision, error) {
	mode, err := modeOf(in.Mode)
	if err != nil {
		return v1.WorkspaceRevision{}, err
	}
	if _, err := w.Get(c, c.viewer(), in.ID); err != nil { // check before reading the body
		return v1.WorkspaceRevision{}, err
	}
	body, err := c.readBody()
	if err != nil {
		return v1.WorkspaceRevision{}, err
	}
	defer c.free(body)
	return w.revise(c, &in.changeWorkspaceFile, engi.WorkspaceFile{Mode: uint32(mode), Content: body})
}

// revise writes or deletes one file.
func (w *workspaces) revise(c *call, in *changeWorkspaceFile, f engi.WorkspaceFile) (v1.WorkspaceRevision, error) {
	f.Path = in.Path
	return to(workspaceRevisionOf)(w.Write(c, engi.WriteSpec{
		Viewer: c.viewer(), Workspace: in.ID, Files: []engi.WorkspaceFile{f}, Message: in.Message, Actor: c.auth.ID, Base: in.Base,
	}))
}

func (w *workspaces) write(c *call, in *aWorkspace, q v1.WriteRequest) (v1.WorkspaceRevision, error) {
	var check checker
	if len(q.Files) == 0 {
		check.addf("files", "there are none")
	}
	if check.text("message", q.Message); len(q.Message) > engi.MaxRevisionText {
		check.addf("message", "it is longer than %d bytes", engi.MaxRevisionText)
	}
	spec := engi.WriteSpec{Viewer: c.viewer(), Workspace: in.ID, Files: writesOf(&check, q.Files), Message: q.Message, Actor: c.auth.ID, Base: q.Base}
	if err := check.err(); err != nil {
		return v1.WorkspaceRevision{}, err
	}
	return to(workspaceRevisionOf)(w.Write(c, spec))
}

func (w *workspaces) move(c *call, in *aWorkspace, q v1.WorkspaceMove) (v1.WorkspaceRevision, error) {
	var check checker
	for name, p := range map[string]string{"from": q.From, "to": q.To} {
		if check.text(name, p); p == "" {
			check.addf(name, "it is missing")
		}
	}
	if check.text("message", q.Message); len(q.Message) > engi.MaxRevisionText {
		check.addf("message", "it is longer than %d bytes", engi.MaxRevisionText)
	}
	if err := check.err(); err != nil {
		return v1.WorkspaceRevision{}, err
	}
	return to(workspaceRevisionOf)(w.Move(c, engi.MoveSpec{
		Viewer: c.viewer(), Workspace: in.ID, From: q.From, To: q.To, Message: q.Message, Actor: c.auth.ID, Base: q.Base,
	}))
}

// writesOf converts the files of a request.
func writesOf(check *checker, all []v1.WorkspaceWrite) []engi.WorkspaceFile {
	if len(all) > engi.MaxWorkspaceFiles {
		check.addf("files", "there are more than %d", engi.MaxWorkspaceFiles)
		return nil
	}
	var out []engi.WorkspaceFile
	for i, f := range all {
		field := "files[" + strconv.Itoa(i) + "]"
		check.text(field+".path", f.Path)
		file := engi.WorkspaceFile{Path: f.Path, Mode: uint32(f.Mode), Content: f.ContentBase64, Removed: f.Removed}
		if f.Content != nil {
			file.Content = []byte(*f.Content)
		}
		switch given := f.Content != nil || f.ContentBase64 != nil; {
		case f.Content != nil && f.ContentBase64 != nil:
			check.addf(field, "it has content twice: leave content_base64 out")
		case f.Removed && given:
			check.addf(field, "it is to be removed but has content: send one of the two")
		case !f.Removed && !given:
			check.addf(field+".content", "it is missing")
		}
		out = append(out, file)
	}
	return out
}

// serving returns the routes of services.
func (w *workspaces) serving(one string, look, change Access) []Route {
	all, service := one+"/services", one+"/services/{service}"
	return []Route{
		list(Route{Pattern: "GET " + all, ID: "list-services", Summary: "List the services of a workspace", Text: "Ordered by name.", Access: look},
			func(c *call, in *aWorkspace) ([]v1.Service, error) {
				x, err := w.get(c, in)
				return x.Services, err
			}, func(s v1.Service) v1.Service { return s }),
		send(Route{
			Pattern: "POST " + all, ID: "add-service", Summary: "Add a service to a workspace", Access: change,
			Text:    "Answers once the service is healthy, or has failed: then its error says why.",
			Creates: "a repeated key returns the service that the first request added",
			Status:  http.StatusCreated,
			Bodies:  []example{{"redis", "a cache", `{"type": "redis"}`}},
		}, w.add),
		act(Route{
			Pattern: "DELETE " + service, ID: "remove-service", Summary: "Delete a service of a workspace", Access: change, Text: "Deletes the service and its data.",
		}, func(c *call, in *aService, _ none) error {
			return w.RemoveService(c, c.viewer(), in.ID, in.Service)
		}),
		fetch(Route{
			Pattern: "POST " + service + "/restart", ID: "restart-service", Summary: "Restart a service of a workspace", Access: change,
			Text: "Answers once the service is healthy again, or has failed.",
		}, func(c *call, in *aService) (v1.Service, error) {
			x, err := w.RestartService(c, c.viewer(), in.ID, in.Service)
			if err != nil {
				return v1.Service{}, err
			}
			return w.found(c, in.ID, x)
		}),
		fetch(Route{
			Pattern: "GET " + service + "/connection", ID: "get-connection", Summary: "Get the address and credentials of a service", Access: change,
			Text: "Returns the address for sandboxes of the workspace, and the password. Needs a role that can change the workspace.",
		}, func(c *call, in *aService) (v1.Connection, error) {
			x, err := w.Connection(c, c.viewer(), in.ID, in.Service)
			return v1.Connection(x), err
		}),
		raw(Route{
			Pattern: "GET " + service + "/connect", ID: "connect-service", Summary: "Open a TCP connection to a service", Access: change,
			Text: "A WebSocket that carries one TCP connection in binary messages, in both directions; message boundaries have no meaning. " +
				"The service must be exposed, and the caller needs a role that can change the workspace. The connection ends when the API key is revoked or expires.",
			Answers: []answer{{status: http.StatusSwitchingProtocols, headers: map[string]string{"Upgrade": "websocket"}}},
		}, w.connect),
		fetch(Route{Pattern: "GET " + service + "/logs", ID: "get-service-logs", Summary: "Get the log of a service", Access: look, Text: "Returns the end of the log."},
			func(c *call, in *getServiceLogs) (v1.ServiceLogs, error) {
				s, err := w.ServiceLogs(c, c.viewer(), in.ID, in.Service, in.Max)
				return v1.ServiceLogs{Text: text(s)}, err
			}),
	}
}

// connect connects a WebSocket to a service.
func (w *workspaces) connect(c *call, in *aService, _ none) error {
	return carry(c, "services are reached over a WebSocket", "connect with 'engi workspace connect', or a WebSocket client", func(ctx context.Context, accept func() net.Conn) error {
		to, err := w.Dial(ctx, c.viewer(), in.ID, in.Service)
		if err != nil {
			return err
		}
		defer to.Close()
		if from := accept(); from != nil {
			engi.Splice(ctx, from, to)
		}
		return nil
	})
}

func (w *workspaces) add(c *call, in *aWorkspace, q v1.ServiceRequest) (v1.Service, error) {
	var check checker
	spec := serviceSpecOf(&check, "", q)
	if err := check.err(); err != nil {
		return v1.Service{}, err
	}
	name := cmp.Or(q.Name, q.Type)
	x, err := once(c, q, idempotency.Creation[engi.Service]{
		IDs:  []string{name}, // names are unique within a workspace
		Work: func([]string) (engi.Service, error) { return w.AddService(c, c.viewer(), in.ID, spec) },
		Find: func([]string, bool) (engi.Service, error) {
			x, err := w.Get(c, c.viewer(), in.ID)
			if err != nil {
				return engi.Service{}, err
			}
			i := slices.IndexFunc(x.Services, func(s engi.Service) bool { return s.Name == name })
			if i < 0 {
				return engi.Service{}, engi.Errorf(engi.NotFound, "workspace %s has no service %q", in.ID, name)
			}
			return x.Services[i], nil
		},
	})
	if err != nil {
		return v1.Service{}, err
	}
	return w.found(c, in.ID, x)
}

// querying returns the routes of databases.
func (w *workspaces) querying(one string, look, change Access) []Route {
	return []Route{
		send(Route{
			Pattern: "POST " + one + "/query", ID: "query-workspace", Summary: "Query a database of a workspace", Access: change,
			Text:   "An error of the database is an answer too. Callers with the role reviewer must set read_only.",
			Bodies: []example{{"sql", "SQL", `{"text": "select 42 as n"}`}},
		}, func(c *call, in *aWorkspace, q v1.QueryRequest) (v1.QueryResult, error) {
			spec, err := queryOf(c, in.ID, q)
			if err != nil {
				return v1.QueryResult{}, err
			}
			return to(queryResultOf)(w.Query(c, spec))
		}),
		send(Route{
			Pattern: "POST " + one + "/explain", ID: "explain-query", Summary: "Explain a query", Access: change,
			Text:   "The query is explained, not run.",
			Bodies: []example{{"sql", "SQL", `{"text": "select 42 as n"}`}},
		}, func(c *call, in *aWorkspace, q v1.QueryRequest) (v1.QueryPlan, error) {
			spec, err := queryOf(c, in.ID, q)
			if err != nil {
				return v1.QueryPlan{}, err
			}
			plan, err := w.Explain(c, spec)
			return v1.QueryPlan{Text: text(plan)}, err
		}),
		send(Route{
			Pattern: "POST " + one + "/documents", ID: "query-collection", Summary: "Find or aggregate documents of a mongodb service", Access: change,
			Text:   "An error of the service is an answer too. Callers with the role reviewer may not use stages that write.",
			Bodies: []example{{"find", "a filter", `{"collection": "orders", "filter": {"total": {"$gt": 5}}}`}, {"sum", "a pipeline", `{"collection": "orders", "pipeline": [{"$group": {"_id": "$day", "total": {"$sum": "$total"}}}]}`}},
		}, func(c *call, in *aWorkspace, q v1.CollectionRequest) (v1.CollectionResult, error) {
			spec, err := documentQueryOf(c, in.ID, q)
			if err != nil {
				return v1.CollectionResult{}, err
			}
			return to(documentResultOf)(w.Documents(c, spec))
		}),
		list(Route{Pattern: "GET " + one + "/tables", ID: "list-tables", Summary: "List the tables of a database", Text: "System tables are not listed. A service of type mongodb, which must be named, has collections instead.", Access: look},
			func(c *call, in *inDatabase) ([]engi.Table, error) { return w.Tables(c, in.query(c)) }, tableOf),
		fetch(Route{Pattern: "GET " + one + "/tables/{table}", ID: "describe-table", Summary: "Describe a table", Access: look},
			func(c *call, in *aTable) (v1.TableDescription, error) {
				return to(descriptionOf)(w.Describe(c, in.query(c), in.Table))
			}),
		send(Route{
			Pattern: "POST " + one + "/services/{service}/command", ID: "run-redis-command", Summary: "Run a Redis command", Access: change,
			Bodies: []example{{"ping", "a command", `{"args": ["PING"]}`}},
		}, func(c *call, in *aService, q v1.CommandRequest) (v1.CommandReply, error) {
			var check checker
			if len(q.Args) == 0 {
				check.addf("args", "there are none")
			}
			check.QueryArgs(len(q.Args))
			if err := check.err(); err != nil {
				return v1.CommandReply{}, err
			}
			reply, err := w.Command(c, c.viewer(), in.ID, in.Service, q.Args)
			return v1.CommandReply{Reply: reply.Value, Refused: reply.Refused}, err
		}),
	}
}

func (in *inDatabase) query(c *call) engi.Query {
	return engi.Query{Viewer: c.viewer(), Workspace: in.ID, Service: in.Service, Database: in.Database, ReadOnly: true}
}

func queryOf(c *call, workspace string, q v1.QueryRequest) (engi.Query, error) {
	out := engi.Query{
		Viewer: c.viewer(), Workspace: workspace, Service: q.Service, Text: q.Text, ReadOnly: q.ReadOnly, Database: q.Database, MaxRows: q.MaxRows, MaxBytes: int64(q.MaxBytes), Timeout: q.Timeout.Std(),
	}
	check := out.Faults()
	check.QueryArgs(len(q.Args)) // before they are decoded
	if err := check.Err(); err != nil || len(q.Args) == 0 {
		return out, err
	}
	list := []byte("[")
	for i, raw := range q.Args {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, raw...)
	}
	d := json.NewDecoder(bytes.NewReader(append(list, ']')))
	d.UseNumber() // a float cannot hold all digits of a large integer
	if err := d.Decode(&out.Args); err != nil {
		return out, invalid("args", "%v", err)
	}
	return out, nil
}

func documentQueryOf(c *call, workspace string, q v1.CollectionRequest) (engi.DocumentQuery, error) {
	out := engi.DocumentQuery{
		Viewer: c.viewer(), Workspace: workspace, Service: q.Service, Database: q.Database, Collection: q.Collection, Filter: q.Filter, Projection: q.Projection, Sort: q.Sort, Skip: q.Skip, Pipeline: q.Pipeline,
		MaxRows: q.MaxRows, MaxBytes: int64(q.MaxBytes), Timeout: q.Timeout.Std(),
	}
	return out, out.Faults().Err()
}

func documentResultOf(x engi.DocumentResult) v1.CollectionResult {
	return v1.CollectionResult{Documents: orEmpty(x.Documents), Truncated: x.Truncated, Took: length(x.Took), Error: queryErrorOf(x.Error)}
}

// preview describes the preview of a workspace; nil if there is none.
func (w *workspaces) preview(x engi.Workspace) *v1.WorkspacePreview {
	p := x.Preview
	if p.Type == engi.PreviewNone {
		return nil
	}
	out := &v1.WorkspacePreview{Type: string(p.Type), Root: p.Root, Port: p.Port, Public: p.Public}
	if w.previews != nil {
		out.URL = p.Address(w.previews.WorkspaceURL(x.ID, ""))
	}
	return out
}

func (w *workspaces) of(x engi.Workspace) v1.Workspace {
	return v1.Workspace{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Template: x.Template, State: string(x.State), SandboxID: string(x.Sandbox), Revision: x.Revision,
		Services: listOf(x.Services, func(s engi.Service) v1.Service { return w.service(x.ID, s) }).Items, Preview: w.preview(x), Metadata: x.Metadata, Error: problemOf(x.Error), CreatedAt: x.Created.UTC(), UsedAt: moment(x.Used),
		Collaborators: listOf(x.Collaborators, func(y engi.Collaborator) v1.Collaborator {
			return v1.Collaborator{Owner: string(y.Owner), Role: string(y.Role)}
		}).Items,
	}
}

func collaboratorsOf(check *checker, name string, all []v1.Collaborator) []engi.Collaborator {
	if len(all) > engi.MaxCollaborators {
		check.addf(name, "there are more than %d", engi.MaxCollaborators)
		return nil
	}
	out := make([]engi.Collaborator, len(all))
	for i, x := range all {
		field := name + "[" + strconv.Itoa(i) + "]."
		if check.text(field+"owner", x.Owner); x.Owner == "" {
			check.addf(field+"owner", "it is missing")
		}
		if check.oneOf(field+"role", x.Role, words(engi.RoleViewer, engi.RoleReviewer, engi.RoleEditor)); x.Role == "" {
			check.addf(field+"role", "it is missing")
		}
		out[i] = engi.Collaborator{Owner: engi.Owner(x.Owner), Role: engi.WorkspaceRole(x.Role)}
	}
	return out
}

func serviceSpecOf(check *checker, field string, q v1.ServiceRequest) engi.ServiceSpec {
	check.text(field+"name", q.Name)
	if check.oneOf(field+"type", q.Type, words(engi.ServicePostgres, engi.ServiceMySQL, engi.ServiceRedis, engi.ServiceMongoDB, engi.ServiceNginx)); q.Type == "" {
		check.addf(field+"type", "it is missing")
	}
	check.text(field+"version", q.Version)
	check.Env(field+"env", q.Env)
	return engi.ServiceSpec{Name: q.Name, Type: engi.ServiceType(q.Type), Version: q.Version, Env: q.Env, Exposed: q.Exposed, Needs: q.Needs}
}

// found converts a service of a workspace, which the caller names by ID or name.
func (w *workspaces) found(c *call, workspace string, s engi.Service) (v1.Service, error) {
	if !s.HasPage() {
		return w.service("", s), nil // only an address has the workspace's ID
	}
	x, err := w.Get(c, c.viewer(), workspace)
	return w.service(x.ID, s), err
}

func (w *workspaces) service(id engi.WorkspaceID, x engi.Service) v1.Service {
	url := ""
	if x.HasPage() && w.previews != nil {
		url = w.previews.WorkspaceURL(id, x.Name)
	}
	return v1.Service{
		URL:  url,
		Name: x.Name, Type: string(x.Type), Version: text(x.Version), Server: text(x.Server), State: string(x.State), SandboxID: string(x.Sandbox), VolumeID: string(x.Volume),
		Host: x.Host, Port: x.Port, Exposed: x.Exposed, Needs: orEmpty(x.Needs), Restarts: x.Restarts, Error: problemOf(x.Error), StartedAt: moment(x.Started),
	}
}

func workspaceRevisionOf(x engi.WorkspaceRevision) v1.WorkspaceRevision {
	return v1.WorkspaceRevision{
		Number: x.Number, Parent: x.Parent, Of: x.Of, Message: text(x.Message), Actor: x.Actor, Commit: x.Commit, CreatedAt: x.Created.UTC(), Changed: listOf(x.Changed, changeOf).Items,
	}
}

func queryResultOf(x engi.QueryResult) v1.QueryResult {
	out := v1.QueryResult{Columns: make([]v1.QueryColumn, len(x.Columns)), Rows: orEmpty(x.Rows), Affected: known(x.Affected), Truncated: x.Truncated, Took: length(x.Took)}
	for i, c := range x.Columns {
		out.Columns[i] = v1.QueryColumn{Name: text(c.Name), Type: text(c.Type)}
	}
	out.Error = queryErrorOf(x.Error)
	return out
}

func queryErrorOf(e *engi.QueryError) *v1.QueryError {
	if e == nil {
		return nil
	}
	return &v1.QueryError{Code: text(e.Code), Text: text(e.Text), Position: e.Position, Detail: text(e.Detail), Hint: text(e.Hint)}
}

// known returns a pointer to n, and nil for an unknown number.
func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func tableOf(x engi.Table) v1.Table {
	return v1.Table{Schema: text(x.Schema), Name: text(x.Name), Kind: x.Kind, Rows: known(x.Rows), Size: (*v1.Bytes)(known(x.Bytes))}
}

func descriptionOf(x engi.TableDescription) v1.TableDescription {
	return v1.TableDescription{
		Table: tableOf(x.Table),
		Columns: listOf(x.Columns, func(y engi.TableColumn) v1.TableColumn {
			return v1.TableColumn{Name: text(y.Name), Type: text(y.Type), Nullable: y.Nullable, Default: text(y.Default)}
		}).Items,
		Indexes: listOf(x.Indexes, func(y engi.TableIndex) v1.TableIndex {
			return v1.TableIndex{Name: text(y.Name), Definition: text(y.Definition), Unique: y.Unique, Primary: y.Primary}
		}).Items,
		Constraints: listOf(x.Constraints, func(y engi.TableConstraint) v1.TableConstraint {
			return v1.TableConstraint{Name: text(y.Name), Kind: y.Kind, Definition: text(y.Definition)}
		}).Items,
	}
}
