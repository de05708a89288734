package engi

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// A Workspace is files with a history, services such as databases, and collaborators.
// The files need no sandbox; while the workspace runs, one sandbox has a working
// copy of them, and each service has a sandbox of its own, whose host name resolves in all
// sandboxes of the workspace and nowhere else.
type Workspace struct {
	ID            WorkspaceID
	Owner         Owner
	Name          string // 1 to 63 letters, digits and dashes, unique among the owner's
	Template      string // template of the sandbox with the working copy
	State         WorkspaceState
	Sandbox       SandboxID // sandbox with the working copy; empty if there is none
	Revision      int64     // number of the last revision; 0 before the first
	Services      []Service // ordered by name
	Collaborators []Collaborator
	Preview       WorkspacePreview
	Metadata      map[string]string
	Error         *Error // reason of WorkspaceFailed
	Created       time.Time
	Used          time.Time
}

// workspaceRoles lists the roles in order of their rights, least first.
var workspaceRoles = []WorkspaceRole{RoleViewer, RoleReviewer, RoleEditor, RoleOwner}

// RoleOf returns the role of a viewer in the workspace; empty for none. Everyone has the rights of
// the workspace's owner.
func (w Workspace) RoleOf(viewer Viewer) WorkspaceRole {
	if viewer.Sees(w.Owner) {
		return RoleOwner
	}
	for _, c := range w.Collaborators {
		if c.Owner.Viewer() == viewer {
			return c.Role
		}
	}
	return ""
}

// Allow reports NotFound for viewers without a role and Denied for a role with fewer rights than need.
func (w Workspace) Allow(viewer Viewer, need WorkspaceRole) error {
	role := w.RoleOf(viewer)
	switch {
	case role == "":
		return Errorf(NotFound, "there is no such workspace").WithRemedy("'engi workspace list' shows your workspaces")
	case slices.Index(workspaceRoles, role) < slices.Index(workspaceRoles, need):
		return Errorf(Denied, "a %s of workspace %s may not do this", role, w.ID).WithRemedy("ask its owner for the role %s", need)
	}
	return nil
}

// Group is the group in the network policies of a workspace's sandboxes, by which they reach each other; see
// [NetworkPolicy].
func (id WorkspaceID) Group() string { return "ws-" + id.Label() }

// A WorkspaceState is a point in the life of a workspace.
type WorkspaceState string

const (
	WorkspaceStopped  WorkspaceState = "stopped" // no sandbox; files and data of services are kept
	WorkspaceStarting WorkspaceState = "starting"
	WorkspaceRunning  WorkspaceState = "running"
	WorkspaceFailed   WorkspaceState = "failed" // the sandbox could not be started; Error says why
)

// A WorkspaceRole is the set of rights of a collaborator in a workspace. Each role includes the
// rights of the roles before it.
type WorkspaceRole string

const (
	RoleViewer   WorkspaceRole = "viewer"   // read files, services and previews
	RoleReviewer WorkspaceRole = "reviewer" // also run read-only queries
	RoleEditor   WorkspaceRole = "editor"   // also change files, services and databases, and run programs
	RoleOwner    WorkspaceRole = "owner"    // also change collaborators, and delete the workspace
)

// A Collaborator is another owner with access to a workspace.
type Collaborator struct {
	Owner Owner
	Role  WorkspaceRole // viewer, reviewer or editor
}

// A WorkspaceSpec describes a workspace to create.
type WorkspaceSpec struct {
	Owner         Owner
	Name          string // empty means a generated name
	Template      string // empty means base
	Services      []ServiceSpec
	Files         []WorkspaceFile // files of the first revision
	Collaborators []Collaborator
	Metadata      map[string]string
	Idempotency   string // a repeated key of the same owner returns the first workspace
}

// A WorkspaceChange changes a workspace. Nil fields stay unchanged.
type WorkspaceChange struct {
	Collaborators *[]Collaborator   // all collaborators, which replace the current ones; nil means unchanged
	Share         []Collaborator    // collaborators to add or to give another role; the others keep theirs
	Unshare       []Owner           // owners to remove from the collaborators
	Preview       *WorkspacePreview // nil means as before; to have it public is for the owner
	Metadata      map[string]string // all of it; nil means as before
}

// Of returns who works in a workspace after the change, of who works in it before. It
// reports NotFound if somebody in Unshare does not.
func (c WorkspaceChange) Of(before []Collaborator) ([]Collaborator, error) {
	all := slices.Clone(before)
	if c.Collaborators != nil {
		all = slices.Clone(*c.Collaborators)
	}
	at := func(owner Owner) int {
		return slices.IndexFunc(all, func(x Collaborator) bool { return x.Owner == owner })
	}
	for _, x := range c.Share {
		if i := at(x.Owner); i >= 0 {
			all[i] = x
		} else {
			all = append(all, x)
		}
	}
	for _, owner := range c.Unshare {
		i := at(owner)
		if i < 0 {
			return nil, Errorf(NotFound, "%.70q does not work in the workspace", owner).WithRemedy("'engi workspace show' lists the people with their roles")
		}
		all = slices.Delete(all, i, i+1)
	}
	return all, nil
}

// A WorkspacePreview is the content that a workspace serves at its preview URL. The zero value is
// no preview. It is a value.
type WorkspacePreview struct {
	Type   PreviewType
	Root   string // directory with the files of [PreviewStatic]; empty means the whole workspace
	Port   int    // port in the workspace's sandbox, for the other types
	Public bool   // everybody who has the URL has access; false means collaborators and holders of a link
}

// Address returns the workspace's url in the form that clients of the preview need.
func (p WorkspacePreview) Address(url string) string {
	if p.Type == PreviewWebSocket {
		return "ws" + strings.TrimPrefix(url, "http")
	}
	return url
}

// A PreviewType is the kind of a workspace's preview.
type PreviewType string

const (
	PreviewNone      PreviewType = ""
	PreviewStatic    PreviewType = "static"    // files of the last revision; needs no sandbox
	PreviewProxy     PreviewType = "proxy"     // a server in the sandbox
	PreviewWebSocket PreviewType = "websocket" // a server in the sandbox, with a WebSocket URL
)

// A ServiceType is a kind of service.
type ServiceType string

const (
	ServicePostgres ServiceType = "postgres"
	ServiceMySQL    ServiceType = "mysql" // MariaDB serves it
	ServiceRedis    ServiceType = "redis"
	ServiceMongoDB  ServiceType = "mongodb" // FerretDB serves it, or the mongod in a template of the operator
	ServiceNginx    ServiceType = "nginx"
)

// A Service is a server that belongs to a workspace.
type Service struct {
	Name     string // name in the workspace: lower-case letters, digits and dashes
	Type     ServiceType
	Version  string // version of the running server, as it reports it
	Server   string // program that implements the type, like MariaDB 10.11
	State    ServiceState
	Sandbox  SandboxID // sandbox with the server; empty if there is none
	Volume   VolumeID  // volume with the data; empty for none
	Host     string    // NAME.workspace.internal, which resolves in sandboxes of the workspace
	Port     int
	Exposed  bool
	Needs    []string // services that must be healthy before this one starts
	Restarts int      // automatic restarts since the service was last healthy for a while
	Error    *Error   // reason of states unhealthy and failed
	Started  time.Time
}

// A ServiceUse is what a service uses of its node.
type ServiceUse struct {
	CPU                 time.Duration // processor time since the start of the sandbox
	CPUPercent          float64       // percent of one processor
	Memory, MemoryLimit int64         // bytes
	Disk, DiskLimit     int64         // bytes of the data
}

// HasPage reports whether the service has a preview, because it is exposed and speaks HTTP.
func (s Service) HasPage() bool { return s.Exposed && s.Type == ServiceNginx }

// A ServiceState is a point in the life of a service.
type ServiceState string

const (
	ServiceStopped   ServiceState = "stopped" // the data is kept
	ServiceStarting  ServiceState = "starting"
	ServiceHealthy   ServiceState = "healthy"
	ServiceUnhealthy ServiceState = "unhealthy" // the server does not answer, and is restarted
	ServiceFailed    ServiceState = "failed"    // the server was restarted too often; Error says why
)

// A ServiceSpec describes a service to add.
type ServiceSpec struct {
	Name    string // empty means the name of the type
	Type    ServiceType
	Version string            // "latest", empty, or a version that the template source has, like "15" or "10.11"
	Env     map[string]string // environment variables of the server; the type decides which have a meaning
	Exposed bool              // callers who can use the workspace reach the port from outside
	Needs   []string
}

// A Connection is the address and the credentials of a service.
type Connection struct {
	Host     string // host name in sandboxes of the workspace
	Port     int
	User     string
	Password string
	Database string
	URL      string // the same as a URL, as clients of the type expect it
}

// A WorkspaceFile is a file of a revision of a workspace.
type WorkspaceFile struct {
	Path    string // relative, clean, slash-separated
	Mode    uint32 // 0644 or 0755; 0 means the existing file's mode, or 0644
	Size    int64  // bytes
	Digest  string // digest of the content, in hex; empty in files to write
	Content []byte // content, in files to write; nil in lists
	Removed bool   // in files to write: delete the file
}

// A WorkspaceRevision is one state of all files of a workspace.
type WorkspaceRevision struct {
	Number  int64
	Parent  int64 // 0 for the first
	Commit  string
	Message string
	Actor   string // ID of the key or run that made the revision
	Of      int64  // number of the revision that was restored; 0 for none
	Created time.Time
	Changed []AppChange // changes since Parent, ordered by path
}

// A BlameLine is a line of a file with the revision that last changed it.
type BlameLine struct {
	Revision int64
	Actor    string
	Created  time.Time
	Text     string
}

// A WriteSpec describes files to write, which become one revision.
type WriteSpec struct {
	Viewer    Viewer
	Workspace string // ID or name
	Files     []WorkspaceFile
	Message   string // empty means one made from the changes
	Actor     string
	Base      int64 // revision that the writer has read: files that have changed since are a Conflict; 0 means any revision
}

// A MoveSpec describes a file or a directory to move, which becomes one revision.
type MoveSpec struct {
	Viewer    Viewer
	Workspace string // ID or name
	From, To  string // paths; From exists, and To does not
	Message   string // empty means one made from the paths
	Actor     string
	Base      int64 // revision that the mover has read: if what moves has changed since, it is a Conflict; 0 means any revision
}

// A Query is a query of a database of a workspace.
type Query struct {
	Viewer    Viewer
	Workspace string // ID or name
	Service   string // empty means the only SQL service
	Text      string
	Args      []any         // arguments for $1 or ?, as JSON values
	ReadOnly  bool          // run in a read-only transaction, which the database enforces
	Database  string        // empty means the service's database
	MaxRows   int           // 0 means 1,000
	MaxBytes  int64         // maximum size of the values; 0 means 1 MiB
	Timeout   time.Duration // 0 means 30 s
}

// A Column is a column of a result.
type Column struct {
	Name string
	Type string // type, as the database names it, like int4
}

// A QueryResult is the answer of a database. An error of the database is a result.
type QueryResult struct {
	Columns   []Column
	Rows      [][]json.RawMessage // numbers are JSON numbers if these are exact, otherwise strings; null for NULL
	Affected  int64               // number of affected rows; -1 if the database does not report it
	Truncated bool                // the query has more rows or bytes than were requested
	Took      time.Duration
	Error     *QueryError // nil if there was none
}

// A QueryError is the error of a database.
type QueryError struct {
	Code     string // SQLSTATE
	Text     string
	Position int // position in the query, in characters from 1; 0 if unknown
	Detail   string
	Hint     string
}

// A DocumentQuery finds documents in a collection of a mongodb service, or aggregates them. The documents in
// it are MongoDB Extended JSON.
type DocumentQuery struct {
	Viewer     Viewer
	Workspace  string // ID or name
	Service    string // empty means the only service of type mongodb
	Database   string // empty means the service's database
	Collection string
	Filter     json.RawMessage // empty means all documents
	Projection json.RawMessage
	Sort       json.RawMessage
	Skip       int64
	Pipeline   json.RawMessage // stages of an aggregation; excludes Filter, Projection, Sort and Skip
	ReadOnly   bool            // refuse a pipeline that writes
	MaxRows    int             // maximum number of documents; 0 means 1,000
	MaxBytes   int64           // maximum size of the documents as JSON; 0 means 1 MiB
	Timeout    time.Duration   // 0 means 30 s
}

// A DocumentResult is the answer of a mongodb service. An error of the service is a result.
type DocumentResult struct {
	Documents []json.RawMessage // as relaxed Extended JSON, in which integers beyond 2⁵³ are $numberLong
	Truncated bool              // there are more documents or bytes than were requested
	Took      time.Duration
	Error     *QueryError // nil if there was none; it has no position
}

// A Table is a table of a database, or a collection of documents.
type Table struct {
	Schema string
	Name   string
	Kind   string // table, view, materialized view, foreign table or collection
	Rows   int64  // number of rows, as the database estimates; -1 if it does not
	Bytes  int64  // size with indexes; -1 if the database does not report it
}

// A TableDescription describes a table.
type TableDescription struct {
	Table
	Columns     []TableColumn
	Indexes     []TableIndex
	Constraints []TableConstraint
}

// A TableColumn is a column of a table.
type TableColumn struct {
	Name     string
	Type     string
	Nullable bool
	Default  string // default value, an expression; empty for none
}

// A TableIndex is an index of a table.
type TableIndex struct {
	Name       string
	Definition string
	Unique     bool
	Primary    bool
}

// A TableConstraint is a constraint of a table.
type TableConstraint struct {
	Name       string
	Kind       string // primary key, foreign key, unique or check
	Definition string
}

// Workspaces manages workspaces. Methods find workspaces in which viewer has a role and report
// NotFound for all others, and Denied for acts that the role does not allow. [Everyone] has the
// rights of each workspace's owner. It is safe for concurrent use.
type Workspaces interface {
	WorkspaceRunner
	WorkspaceFiles
	WorkspaceHistory
	WorkspaceGit
	WorkspaceServices
	WorkspaceDatabases
}

// A WorkspaceRunner creates, starts and stops workspaces; see [Workspaces].
type WorkspaceRunner interface {
	// Create records a workspace with its files, and returns once its services are
	// healthy. It reports Conflict for a name that is taken. If a service does not start,
	// the workspace exists, and the service is failed.
	Create(ctx context.Context, spec WorkspaceSpec) (Workspace, error)
	// Get returns a workspace by ID or name.
	Get(ctx context.Context, viewer Viewer, workspace string) (Workspace, error)
	// List returns workspaces in which owner has a role, newest first.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Workspace, error)
	// Change changes the collaborators, the preview or the metadata of a workspace.
	Change(ctx context.Context, viewer Viewer, workspace string, c WorkspaceChange) (Workspace, error)
	// Start returns a workspace once its sandbox has the files of the last revision and
	// its services are healthy.
	Start(ctx context.Context, viewer Viewer, workspace string) (Workspace, error)
	// Stop records changes in the sandbox as a revision, and destroys the sandboxes.
	// The data of services stays.
	Stop(ctx context.Context, viewer Viewer, workspace string) error
	// Remove deletes a workspace with its history and the data of its services.
	Remove(ctx context.Context, viewer Viewer, workspace string) error
}

// WorkspaceFiles reads and writes the files of workspaces; see [Workspaces]. It needs no sandbox.
type WorkspaceFiles interface {
	// Write creates a revision with files that are written or deleted, and copies them into the
	// sandbox, if there is one. Earlier changes in the sandbox become a revision of their
	// own first.
	Write(ctx context.Context, spec WriteSpec) (WorkspaceRevision, error)
	// Move creates a revision in which a file or a directory has another path, as Write does. It reports NotFound
	// if From does not exist, and Conflict if To does.
	Move(ctx context.Context, spec MoveSpec) (WorkspaceRevision, error)
	// Files returns the files of a revision, ordered by path; 0 is the last one, with the
	// changes in the sandbox.
	Files(ctx context.Context, viewer Viewer, workspace string, revision int64) ([]WorkspaceFile, error)
	// File opens a file of a revision, as in Files. The caller closes it.
	File(ctx context.Context, viewer Viewer, workspace, path string, revision int64) (io.ReadCloser, error)
	// PreviewFile opens a file of [PreviewStatic] by its path below the root, or reports
	// NotFound. If the sandbox is awake, its changes are collected once a second.
	PreviewFile(ctx context.Context, viewer Viewer, workspace, path string) (PublishedFile, error)
}

// WorkspaceHistory reads and restores the revisions of workspaces; see [Workspaces].
type WorkspaceHistory interface {
	// Revisions returns the revisions, newest first.
	Revisions(ctx context.Context, viewer Viewer, workspace string, p Paging) ([]WorkspaceRevision, error)
	// Diff returns the unified diff between two revisions; from 0 is the parent of to, and
	// to 0 the last one.
	Diff(ctx context.Context, viewer Viewer, workspace string, from, to int64) (string, error)
	// Restore restores the files of a revision, or those below path, as a new
	// one.
	Restore(ctx context.Context, viewer Viewer, workspace string, revision int64, path string) (WorkspaceRevision, error)
	// Blame returns the revision that last changed each line of a file.
	Blame(ctx context.Context, viewer Viewer, workspace, path string, revision int64) ([]BlameLine, error)
}

// WorkspaceGit serves git clone, fetch and push for the history of workspaces, in
// version 0 of git's protocol in its stateless form, gitprotocol-http(5). Each revision is a
// commit, and the branch main is the last one; it does not exist before the first.
type WorkspaceGit interface {
	// GitRefs writes the refs that may be fetched, or pushed to.
	GitRefs(ctx context.Context, viewer Viewer, workspace string, push bool, w io.Writer) error
	// GitFetch answers a fetch. It reports Invalid for a malformed request
	// and NotFound for unknown objects, before anything is written.
	GitFetch(ctx context.Context, viewer Viewer, workspace string, request io.Reader, w io.Writer) error
	// GitPush records a push to main as one revision, whose commit is the
	// pushed one, with all its ancestors. It reports Invalid for a malformed
	// request, before anything is written; the reason why a branch is refused is written to the client.
	GitPush(ctx context.Context, viewer Viewer, workspace string, request io.Reader, w io.Writer) error
}

// WorkspaceServices manages the services of workspaces; see [Workspaces].
type WorkspaceServices interface {
	// AddService starts a service and returns it once it is healthy, or has failed. It
	// reports Conflict for a name that is taken.
	AddService(ctx context.Context, viewer Viewer, workspace string, spec ServiceSpec) (Service, error)
	// RemoveService deletes a service and its data.
	RemoveService(ctx context.Context, viewer Viewer, workspace, service string) error
	// RestartService restarts the server of a service.
	RestartService(ctx context.Context, viewer Viewer, workspace, service string) (Service, error)
	// Connection returns the address and the credentials of a service. It needs the role editor.
	Connection(ctx context.Context, viewer Viewer, workspace, service string) (Connection, error)
	// Dial connects to a service that is exposed. It needs the role editor. It
	// reports Conflict for a service that is not exposed or has no server. The caller closes the
	// connection; ctx limits the opening only.
	Dial(ctx context.Context, viewer Viewer, workspace, service string) (net.Conn, error)
	// ServiceUse returns what each service with a sandbox uses now, by the name of the service. It needs the role viewer.
	ServiceUse(ctx context.Context, viewer Viewer, workspace string) (map[string]ServiceUse, error)
	// ServiceLogs returns the end of a server's log, at most max bytes.
	ServiceLogs(ctx context.Context, viewer Viewer, workspace, service string, max int) (string, error)
}

// WorkspaceDatabases queries the databases of workspaces; see [Workspaces].
type WorkspaceDatabases interface {
	// Query runs a query. The role reviewer requires ReadOnly. It reports Expired
	// after the query's time limit, and Unavailable if the server does not answer.
	Query(ctx context.Context, q Query) (QueryResult, error)
	// Explain returns the plan of a query, as the database prints it, without running the query.
	Explain(ctx context.Context, q Query) (string, error)
	// Documents finds or aggregates documents. It needs the role reviewer, and editor for a
	// pipeline that writes. Errors are those of Query.
	Documents(ctx context.Context, q DocumentQuery) (DocumentResult, error)
	// Tables lists the tables of a database, without system tables. It lists the collections of a
	// mongodb service that q names.
	Tables(ctx context.Context, q Query) ([]Table, error)
	// Describe describes a table, whose name may be SCHEMA.TABLE.
	Describe(ctx context.Context, q Query, table string) (TableDescription, error)
	// Command runs a command of a Redis service.
	Command(ctx context.Context, viewer Viewer, workspace, service string, args []string) (CommandReply, error)
}

// A CommandReply is the reply of a Redis service.
type CommandReply struct {
	Value   json.RawMessage
	Refused bool // Redis refused the command; the value says why
}
