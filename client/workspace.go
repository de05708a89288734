package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const workspaces = "/v1/workspaces"

// CreateWorkspace creates a workspace and returns when its services are healthy, or have
// failed: then their state says so. A broken connection creates no second workspace.
func (c *Client) CreateWorkspace(ctx context.Context, q v1.WorkspaceRequest) (v1.Workspace, error) {
	return create[v1.Workspace](ctx, c, workspaces, q)
}

// Workspaces returns all workspaces, newest first, including those of others in which the caller
// is a collaborator.
func (c *Client) Workspaces(ctx context.Context) ([]v1.Workspace, error) {
	return all[v1.Workspace](ctx, c, workspaces, nil)
}

// Workspace returns one workspace by ID or name.
func (c *Client) Workspace(ctx context.Context, name string) (v1.Workspace, error) {
	return get[v1.Workspace](ctx, c, workspaces+segment(name), nil)
}

// ChangeWorkspace changes the collaborators, the preview or the metadata of a workspace.
func (c *Client) ChangeWorkspace(ctx context.Context, name string, q v1.WorkspaceUpdate) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPatch, workspaces+segment(name), q)
}

// LinkWorkspace returns a link to the preview of a workspace, or of one of its
// services if service is not empty; ttl 0 means an hour.
func (c *Client) LinkWorkspace(ctx context.Context, name, service string, ttl time.Duration) (v1.Link, error) {
	return send[v1.Link](ctx, c, http.MethodPost, workspaces+segment(name)+"/link", v1.WorkspaceLinkRequest{Service: service, TTL: v1.Duration(ttl)})
}

// ConnectService opens a connection to an exposed service, for any
// protocol. ctx limits the opening only. The caller closes it.
func (c *Client) ConnectService(ctx context.Context, name, service string) (net.Conn, error) {
	return c.stream(ctx, workspaces+segment(name)+"/services"+segment(service)+"/connect", nil)
}

// StartWorkspace returns a workspace when its sandbox has the files of the last revision
// and its services are healthy.
func (c *Client) StartWorkspace(ctx context.Context, name string) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPost, workspaces+segment(name)+"/start", nil)
}

// StopWorkspace destroys the sandboxes of a workspace. Files, history and the data of its
// services stay.
func (c *Client) StopWorkspace(ctx context.Context, name string) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPost, workspaces+segment(name)+"/stop", nil)
}

// RemoveWorkspace deletes a workspace, its history and the data of its services.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.remove(ctx, workspaces+segment(name))
}

// WorkspaceFiles returns the files of a workspace below a path, or those that match it as a
// pattern. An empty path means all files, and revision 0 the last one, with the changes in
// the sandbox.
func (c *Client) WorkspaceFiles(ctx context.Context, name, path string, revision int64) ([]v1.WorkspaceFile, error) {
	return list[v1.WorkspaceFile](ctx, c, workspaces+segment(name)+"/files/list", set("path", path, "revision", offset(revision)))
}

// WorkspaceFile downloads a file of a workspace; revision 0 means the last one, as in
// [Client.WorkspaceFiles]. The caller closes it.
func (c *Client) WorkspaceFile(ctx context.Context, name, path string, revision int64) (io.ReadCloser, error) {
	return c.open(ctx, workspaces+segment(name)+"/files", "path", path, "revision", offset(revision))
}

// WriteWorkspace writes files of a workspace as one revision, or not at all.
func (c *Client) WriteWorkspace(ctx context.Context, name string, q v1.WriteRequest) (v1.WorkspaceRevision, error) {
	return once[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/files", q)
}

// A FileWrite holds the options for writing a file of a workspace. Zero fields keep the existing values.
type FileWrite struct {
	Mode    v1.Mode
	Message string // message of the revision
	Base    int64  // revision that the caller has seen; Conflict if the file has changed since then
}

// WriteWorkspaceFile writes a file of a workspace as a revision. The request is not repeated.
func (c *Client) WriteWorkspaceFile(ctx context.Context, name, path string, content io.Reader, o FileWrite) (v1.WorkspaceRevision, error) {
	mode := ""
	if o.Mode != 0 {
		mode = o.Mode.String()
	}
	return ask[v1.WorkspaceRevision](ctx, c, &call{
		method: http.MethodPut, path: workspaces + segment(name) + "/files", query: set("path", path, "mode", mode, "message", o.Message, "base", offset(o.Base)),
		stream: content, length: -1, once: true,
	})
}

// RemoveWorkspaceFile deletes a file of a workspace as a revision; o has no mode.
func (c *Client) RemoveWorkspaceFile(ctx context.Context, name, path string, o FileWrite) (v1.WorkspaceRevision, error) {
	return ask[v1.WorkspaceRevision](ctx, c, &call{
		method: http.MethodDelete, path: workspaces + segment(name) + "/files", query: set("path", path, "message", o.Message, "base", offset(o.Base)), once: true,
	})
}

// MoveWorkspaceFile moves a file or a directory of a workspace to a path that does not exist, as a revision; o has no mode.
func (c *Client) MoveWorkspaceFile(ctx context.Context, name, from, to string, o FileWrite) (v1.WorkspaceRevision, error) {
	return once[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/files/move", v1.WorkspaceMove{From: from, To: to, Message: o.Message, Base: o.Base})
}

// WorkspaceRevisions returns the history of a workspace, newest first.
func (c *Client) WorkspaceRevisions(ctx context.Context, name string) ([]v1.WorkspaceRevision, error) {
	return all[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/revisions", nil)
}

// WorkspaceDiff returns the unified diff between two revisions of a workspace; from 0 means
// the parent of to, and to 0 the last revision.
func (c *Client) WorkspaceDiff(ctx context.Context, name string, from, to int64) (string, error) {
	return c.text(ctx, workspaces+segment(name)+"/diff", "from", offset(from), "to", offset(to))
}

// RestoreWorkspace restores files of a workspace from a revision, as a new revision;
// an empty path means all files.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, revision int64, path string) (v1.WorkspaceRevision, error) {
	return once[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/restore", v1.RestoreRequest{Revision: revision, Path: path})
}

// WorkspaceBlame returns, for each line of a file, the revision that last changed it.
func (c *Client) WorkspaceBlame(ctx context.Context, name, path string, revision int64) ([]v1.BlameLine, error) {
	return list[v1.BlameLine](ctx, c, workspaces+segment(name)+"/blame", set("path", path, "revision", offset(revision)))
}

// Services returns the services of a workspace, by name.
func (c *Client) Services(ctx context.Context, workspace string) ([]v1.Service, error) {
	return list[v1.Service](ctx, c, workspaces+segment(workspace)+"/services", nil)
}

// AddService adds a service to a workspace and returns when it is healthy, or has failed.
// A broken connection adds no second service.
func (c *Client) AddService(ctx context.Context, workspace string, q v1.ServiceRequest) (v1.Service, error) {
	return create[v1.Service](ctx, c, workspaces+segment(workspace)+"/services", q)
}

// RemoveService deletes a service of a workspace and its data.
func (c *Client) RemoveService(ctx context.Context, workspace, service string) error {
	return c.remove(ctx, serviceAt(workspace, service))
}

func serviceAt(workspace, service string) string {
	return workspaces + segment(workspace) + "/services" + segment(service)
}

// RestartService restarts a service of a workspace and returns like [Client.AddService].
func (c *Client) RestartService(ctx context.Context, workspace, service string) (v1.Service, error) {
	return send[v1.Service](ctx, c, http.MethodPost, serviceAt(workspace, service)+"/restart", nil)
}

// Connection returns the address and the password with which sandboxes of a workspace reach a service.
func (c *Client) Connection(ctx context.Context, workspace, service string) (v1.Connection, error) {
	return get[v1.Connection](ctx, c, serviceAt(workspace, service)+"/connection", nil)
}

// ServiceLogs returns the end of the output of a service's server; 0 bytes mean
// 64 KiB.
func (c *Client) ServiceLogs(ctx context.Context, workspace, service string, bytes int) (v1.ServiceLogs, error) {
	return get[v1.ServiceLogs](ctx, c, serviceAt(workspace, service)+"/logs", set("max", number(bytes)))
}

// Query runs a text in a database of a workspace. Errors of the database are in
// the result. A query that may have arrived is not repeated, unless it is read-only.
func (c *Client) Query(ctx context.Context, workspace string, q v1.QueryRequest) (v1.QueryResult, error) {
	return ask[v1.QueryResult](ctx, c, &call{method: http.MethodPost, path: workspaces + segment(workspace) + "/query", body: q, once: !q.ReadOnly})
}

// QueryCollection finds or aggregates documents of a mongodb service. Errors of the service are in the result. A
// pipeline that may have arrived is not repeated, because it may write.
func (c *Client) QueryCollection(ctx context.Context, workspace string, q v1.CollectionRequest) (v1.CollectionResult, error) {
	return ask[v1.CollectionResult](ctx, c, &call{method: http.MethodPost, path: workspaces + segment(workspace) + "/documents", body: q, once: len(q.Pipeline) > 0})
}

// Explain returns the plan of a database for a query.
func (c *Client) Explain(ctx context.Context, workspace string, q v1.QueryRequest) (v1.QueryPlan, error) {
	return send[v1.QueryPlan](ctx, c, http.MethodPost, workspaces+segment(workspace)+"/explain", q)
}

// Tables returns the tables of a database of a workspace. An empty service means the only
// one with SQL, and an empty database the default of the service.
func (c *Client) Tables(ctx context.Context, workspace, service, database string) ([]v1.Table, error) {
	return list[v1.Table](ctx, c, workspaces+segment(workspace)+"/tables", set("service", service, "database", database))
}

// DescribeTable returns the description of a table, whose name may have a schema before a dot.
// Service and database work as in [Client.Tables].
func (c *Client) DescribeTable(ctx context.Context, workspace, service, database, table string) (v1.TableDescription, error) {
	return get[v1.TableDescription](ctx, c, workspaces+segment(workspace)+"/tables"+segment(table), set("service", service, "database", database))
}

// RedisCommand runs a command of a redis service. A command that may have arrived is not repeated.
func (c *Client) RedisCommand(ctx context.Context, workspace, service string, args ...string) (v1.CommandReply, error) {
	return once[v1.CommandReply](ctx, c, serviceAt(workspace, service)+"/command", v1.CommandRequest{Args: args})
}
