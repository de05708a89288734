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

// CreateWorkspace makes a workspace and returns once its services are healthy, or have
// failed: then their state says so. A broken connection makes no second one.
func (c *Client) CreateWorkspace(ctx context.Context, q v1.WorkspaceRequest) (v1.Workspace, error) {
	return create[v1.Workspace](ctx, c, workspaces, q)
}

// Workspaces returns all workspaces, newest first, those of others that the caller works
// on included.
func (c *Client) Workspaces(ctx context.Context) ([]v1.Workspace, error) {
	return all[v1.Workspace](ctx, c, workspaces, nil)
}

// Workspace returns one by ID or name.
func (c *Client) Workspace(ctx context.Context, name string) (v1.Workspace, error) {
	return get[v1.Workspace](ctx, c, workspaces+segment(name), nil)
}

// ChangeWorkspace changes who works on a workspace, what it shows, or its metadata.
func (c *Client) ChangeWorkspace(ctx context.Context, name string, q v1.WorkspaceUpdate) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPatch, workspaces+segment(name), q)
}

// LinkWorkspace returns a link to the preview of a workspace, or to that of one of its
// services if it is not empty; ttl 0 means an hour.
func (c *Client) LinkWorkspace(ctx context.Context, name, service string, ttl time.Duration) (v1.Link, error) {
	return send[v1.Link](ctx, c, http.MethodPost, workspaces+segment(name)+"/link", v1.WorkspaceLinkRequest{Service: service, TTL: v1.Duration(ttl)})
}

// ConnectService opens a connection to a service that is exposed, whatever protocol it
// speaks. ctx bounds the opening only. The caller closes it.
func (c *Client) ConnectService(ctx context.Context, name, service string) (net.Conn, error) {
	return c.stream(ctx, workspaces+segment(name)+"/services"+segment(service)+"/connect", nil)
}

// StartWorkspace returns a workspace once its sandbox has the files of the last revision
// and its services are healthy.
func (c *Client) StartWorkspace(ctx context.Context, name string) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPost, workspaces+segment(name)+"/start", nil)
}

// StopWorkspace destroys the sandboxes of a workspace. Files, history and the data of its
// services stay.
func (c *Client) StopWorkspace(ctx context.Context, name string) (v1.Workspace, error) {
	return send[v1.Workspace](ctx, c, http.MethodPost, workspaces+segment(name)+"/stop", nil)
}

// RemoveWorkspace deletes a workspace with its history and the data of its services.
func (c *Client) RemoveWorkspace(ctx context.Context, name string) error {
	return c.remove(ctx, workspaces+segment(name))
}

// WorkspaceFiles returns the files of a workspace below a path, or that match it as a
// pattern; an empty path means all, and revision 0 the last one, with what has changed in
// the sandbox.
func (c *Client) WorkspaceFiles(ctx context.Context, name, path string, revision int64) ([]v1.WorkspaceFile, error) {
	return list[v1.WorkspaceFile](ctx, c, workspaces+segment(name)+"/files/list", set("path", path, "revision", offset(revision)))
}

// WorkspaceFile downloads a file of a workspace; revision 0 is the last one, as in
// [Client.WorkspaceFiles]. The caller closes it.
func (c *Client) WorkspaceFile(ctx context.Context, name, path string, revision int64) (io.ReadCloser, error) {
	return c.open(ctx, workspaces+segment(name)+"/files", "path", path, "revision", offset(revision))
}

// WriteWorkspace writes files of a workspace, which become one revision, or none.
func (c *Client) WriteWorkspace(ctx context.Context, name string, q v1.WriteRequest) (v1.WorkspaceRevision, error) {
	return once[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/files", q)
}

// A FileWrite says how a file of a workspace is written. Zero fields keep what is there.
type FileWrite struct {
	Mode    v1.Mode
	Message string // of the revision
	Base    int64  // revision that was seen: if the file has changed since, it is a conflict
}

// WriteWorkspaceFile writes a file of a workspace, as a revision. It is sent once.
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

// RemoveWorkspaceFile removes a file of a workspace, as a revision; o has no mode.
func (c *Client) RemoveWorkspaceFile(ctx context.Context, name, path string, o FileWrite) (v1.WorkspaceRevision, error) {
	return ask[v1.WorkspaceRevision](ctx, c, &call{
		method: http.MethodDelete, path: workspaces + segment(name) + "/files", query: set("path", path, "message", o.Message, "base", offset(o.Base)), once: true,
	})
}

// WorkspaceRevisions returns the history of a workspace, newest first.
func (c *Client) WorkspaceRevisions(ctx context.Context, name string) ([]v1.WorkspaceRevision, error) {
	return all[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/revisions", nil)
}

// WorkspaceDiff returns the unified diff between two revisions of a workspace; from 0 is
// the parent of to, and to 0 the last one.
func (c *Client) WorkspaceDiff(ctx context.Context, name string, from, to int64) (string, error) {
	return c.text(ctx, workspaces+segment(name)+"/diff", "from", offset(from), "to", offset(to))
}

// RestoreWorkspace makes files of a workspace what they were in a revision, as a new one;
// an empty path means all of them.
func (c *Client) RestoreWorkspace(ctx context.Context, name string, revision int64, path string) (v1.WorkspaceRevision, error) {
	return once[v1.WorkspaceRevision](ctx, c, workspaces+segment(name)+"/restore", v1.RestoreRequest{Revision: revision, Path: path})
}

// WorkspaceBlame says of each line of a file which revision has made it what it is.
func (c *Client) WorkspaceBlame(ctx context.Context, name, path string, revision int64) ([]v1.BlameLine, error) {
	return list[v1.BlameLine](ctx, c, workspaces+segment(name)+"/blame", set("path", path, "revision", offset(revision)))
}

// Services returns the services of a workspace, by name.
func (c *Client) Services(ctx context.Context, workspace string) ([]v1.Service, error) {
	return list[v1.Service](ctx, c, workspaces+segment(workspace)+"/services", nil)
}

// AddService adds a service to a workspace and returns once it is healthy, or has failed.
// A broken connection adds no second one.
func (c *Client) AddService(ctx context.Context, workspace string, q v1.ServiceRequest) (v1.Service, error) {
	return create[v1.Service](ctx, c, workspaces+segment(workspace)+"/services", q)
}

// RemoveService removes a service of a workspace with its data.
func (c *Client) RemoveService(ctx context.Context, workspace, service string) error {
	return c.remove(ctx, serviceAt(workspace, service))
}

func serviceAt(workspace, service string) string {
	return workspaces + segment(workspace) + "/services" + segment(service)
}

// RestartService restarts a service of a workspace and returns as [Client.AddService] does.
func (c *Client) RestartService(ctx context.Context, workspace, service string) (v1.Service, error) {
	return send[v1.Service](ctx, c, http.MethodPost, serviceAt(workspace, service)+"/restart", nil)
}

// Connection says how sandboxes of a workspace reach a service, with a password.
func (c *Client) Connection(ctx context.Context, workspace, service string) (v1.Connection, error) {
	return get[v1.Connection](ctx, c, serviceAt(workspace, service)+"/connection", nil)
}

// ServiceLogs returns the end of what the server of a service has printed; 0 bytes mean
// 64 KiB.
func (c *Client) ServiceLogs(ctx context.Context, workspace, service string, bytes int) (v1.ServiceLogs, error) {
	return get[v1.ServiceLogs](ctx, c, serviceAt(workspace, service)+"/logs", set("max", number(bytes)))
}

// Query runs a text in a database of a workspace. What the database says against it is in
// the result. It is not repeated if it may have arrived, unless it is read-only.
func (c *Client) Query(ctx context.Context, workspace string, q v1.QueryRequest) (v1.QueryResult, error) {
	return ask[v1.QueryResult](ctx, c, &call{method: http.MethodPost, path: workspaces + segment(workspace) + "/query", body: encode(q), once: !q.ReadOnly})
}

// Explain returns how a database would run a query.
func (c *Client) Explain(ctx context.Context, workspace string, q v1.QueryRequest) (v1.QueryPlan, error) {
	return send[v1.QueryPlan](ctx, c, http.MethodPost, workspaces+segment(workspace)+"/explain", q)
}

// Tables returns the tables of a database of a workspace. An empty service is the only
// one that speaks SQL, and an empty database that of the service.
func (c *Client) Tables(ctx context.Context, workspace, service, database string) ([]v1.Table, error) {
	return list[v1.Table](ctx, c, workspaces+segment(workspace)+"/tables", set("service", service, "database", database))
}

// DescribeTable says what a table consists of, whose name may have a schema before a dot.
// Service and database are as for [Client.Tables].
func (c *Client) DescribeTable(ctx context.Context, workspace, service, database, table string) (v1.TableDescription, error) {
	return get[v1.TableDescription](ctx, c, workspaces+segment(workspace)+"/tables"+segment(table), set("service", service, "database", database))
}

// RedisCommand runs a command of a redis service. It is not repeated if it may have arrived.
func (c *Client) RedisCommand(ctx context.Context, workspace, service string, args ...string) (v1.CommandReply, error) {
	return once[v1.CommandReply](ctx, c, serviceAt(workspace, service)+"/command", v1.CommandRequest{Args: args})
}
