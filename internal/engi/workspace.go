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

// A Workspace is files with a history, services like databases, and the people who work
// on them. Its files are there without a sandbox; while it runs, one sandbox has a working
// copy of them, and each service has a sandbox of its own, which its name leads to from all
// others of the workspace and from nowhere else.
type Workspace struct {
	ID            WorkspaceID
	Owner         Owner
	Name          string // 1 to 63 letters, digits and dashes, unique among the owner's
	Template      string // of the sandbox that has the working copy
	State         WorkspaceState
	Sandbox       SandboxID // that has the working copy; empty if there is none
	Revision      int64     // the last one; 0 before the first
	Services      []Service // by name
	Collaborators []Collaborator
	Preview       WorkspacePreview
	Metadata      map[string]string
	Error         *Error // why it does not run, of WorkspaceFailed
	Created       time.Time
	Used          time.Time
}

// workspaceRoles are what somebody may be, the least first.
var workspaceRoles = []WorkspaceRole{RoleViewer, RoleReviewer, RoleEditor, RoleOwner}

// RoleOf returns what somebody is in the workspace; empty for nothing. The empty owner may
// do everything.
func (w Workspace) RoleOf(owner Owner) WorkspaceRole {
	if owner == "" || owner == w.Owner {
		return RoleOwner
	}
	for _, c := range w.Collaborators {
		if c.Owner == owner {
			return c.Role
		}
	}
	return ""
}

// Allow reports NotFound for strangers and Denied for a role that is less than need.
func (w Workspace) Allow(owner Owner, need WorkspaceRole) error {
	role := w.RoleOf(owner)
	switch {
	case role == "":
		return Errorf(NotFound, "there is no such workspace").WithRemedy("'engi workspace list' shows those that you work on")
	case slices.Index(workspaceRoles, role) < slices.Index(workspaceRoles, need):
		return Errorf(Denied, "a %s of workspace %s may not do that", role, w.ID).WithRemedy("ask its owner for the role %s", need)
	}
	return nil
}

// A WorkspaceState is a point in the life of a workspace.
type WorkspaceState string

const (
	WorkspaceStopped  WorkspaceState = "stopped" // no sandbox; files and the data of services are kept
	WorkspaceStarting WorkspaceState = "starting"
	WorkspaceRunning  WorkspaceState = "running"
	WorkspaceFailed   WorkspaceState = "failed" // its sandbox could not be started; Error says why
)

// A WorkspaceRole is what a collaborator may do in a workspace. Each may do what those before it may,
// but that an editor may change files and services and a reviewer may not.
type WorkspaceRole string

const (
	RoleViewer   WorkspaceRole = "viewer"   // look at files, services and previews
	RoleReviewer WorkspaceRole = "reviewer" // and query databases, without changing them
	RoleEditor   WorkspaceRole = "editor"   // and change files, services and databases, and run programs
	RoleOwner    WorkspaceRole = "owner"    // and say who may, and remove it
)

// A Collaborator is somebody else who works in a workspace.
type Collaborator struct {
	Owner Owner
	Role  WorkspaceRole // viewer, reviewer or editor
}

// A WorkspaceSpec describes a workspace to create.
type WorkspaceSpec struct {
	Owner         Owner
	Name          string // empty means one that is made up
	Template      string // empty means base
	Services      []ServiceSpec
	Files         []WorkspaceFile // of the first revision
	Collaborators []Collaborator
	Metadata      map[string]string
	Idempotency   string // a repeated key of the same owner returns the first workspace
}

// A WorkspaceChange changes what it names of a workspace.
type WorkspaceChange struct {
	Collaborators *[]Collaborator   // all of them; nil means as before
	Share         []Collaborator    // who get a role, or another one; the rest keep theirs
	Unshare       []Owner           // who have none any more
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
			return nil, Errorf(NotFound, "%.70q does not work in the workspace", owner).WithRemedy("'engi workspace show' lists who does")
		}
		all = slices.Delete(all, i, i+1)
	}
	return all, nil
}

// A WorkspacePreview is what a workspace shows at an address of its own. The zero value is
// nothing. It is a value.
type WorkspacePreview struct {
	Type   PreviewType
	Root   string // directory with the files of [PreviewStatic]; empty is that of the workspace
	Port   int    // of the workspace's sandbox, for the others
	Public bool   // for everybody who has the address; else for who works in the workspace, and who has a link
}

// Address returns url, which is that of the workspace, as clients of the preview take it.
func (p WorkspacePreview) Address(url string) string {
	if p.Type == PreviewWebSocket {
		return "ws" + strings.TrimPrefix(url, "http")
	}
	return url
}

// A PreviewType says what a preview of a workspace shows.
type PreviewType string

const (
	PreviewNone      PreviewType = ""
	PreviewStatic    PreviewType = "static"    // files of the last revision; it needs no sandbox
	PreviewProxy     PreviewType = "proxy"     // a server in the sandbox
	PreviewWebSocket PreviewType = "websocket" // the same, whose address is one for WebSockets
)

// A ServiceType is a kind of service.
type ServiceType string

const (
	ServicePostgres ServiceType = "postgres"
	ServiceMySQL    ServiceType = "mysql" // MariaDB serves it
	ServiceRedis    ServiceType = "redis"
	ServiceMongoDB  ServiceType = "mongodb" // FerretDB serves it
	ServiceNginx    ServiceType = "nginx"
)

// A Service is a server that belongs to a workspace.
type Service struct {
	Name     string // in the workspace; lower-case letters, digits and dashes
	Type     ServiceType
	Version  string // that runs, as the server says it
	Server   string // the program that serves the type, like MariaDB 10.11
	State    ServiceState
	Sandbox  SandboxID // that it runs in; empty if there is none
	Volume   VolumeID  // that has its data; empty for none
	Host     string    // NAME.workspace.internal, from sandboxes of the workspace
	Port     int
	Exposed  bool
	Needs    []string // services that must be healthy before it starts
	Restarts int      // by itself, since it was last healthy for a while
	Error    *Error   // why it is unhealthy or has failed
	Started  time.Time
}

// HasPage reports whether the service has a preview: it is exposed, and speaks HTTP.
func (s Service) HasPage() bool { return s.Exposed && s.Type == ServiceNginx }

// A ServiceState is a point in the life of a service.
type ServiceState string

const (
	ServiceStopped   ServiceState = "stopped" // its data is kept
	ServiceStarting  ServiceState = "starting"
	ServiceHealthy   ServiceState = "healthy"
	ServiceUnhealthy ServiceState = "unhealthy" // it does not answer, and is started again
	ServiceFailed    ServiceState = "failed"    // it was started again too often; Error says why
)

// A ServiceSpec describes a service to add.
type ServiceSpec struct {
	Name    string // empty means the name of the type
	Type    ServiceType
	Version string            // "latest", empty, or a number that there is: "15", "10.11"
	Env     map[string]string // for the server; which variables mean something depends on the type
	Exposed bool              // its port may be reached from outside, by who may use the workspace
	Needs   []string
}

// A Connection says how to reach a service.
type Connection struct {
	Host     string // from sandboxes of the workspace
	Port     int
	User     string
	Password string
	Database string
	URL      string // of all that, as clients of the type take it
}

// A WorkspaceFile is a file of a revision of a workspace.
type WorkspaceFile struct {
	Path    string // relative, clean, slash-separated
	Mode    uint32 // 0644 or 0755; 0 means 0644, or that of the file that is there
	Size    int64  // bytes
	Digest  string // of the content, in hexadecimal; empty in what is written
	Content []byte // of what is written; not of what is listed
	Removed bool   // in what is written: it is to go
}

// A WorkspaceRevision is one state of all files of a workspace.
type WorkspaceRevision struct {
	Number  int64
	Parent  int64 // 0 for the first
	Commit  string
	Message string
	Actor   string // who made it
	Of      int64  // revision whose files it took back; 0 for none
	Created time.Time
	Changed []AppChange // against Parent, by path
}

// A BlameLine is a line of a file, and the revision that has made it what it is.
type BlameLine struct {
	Revision int64
	Actor    string
	Created  time.Time
	Text     string
}

// A WriteSpec describes files to write, which become one revision.
type WriteSpec struct {
	Owner     Owner
	Workspace string // ID or name
	Files     []WorkspaceFile
	Message   string // empty means one made from what changes
	Actor     string
	Base      int64 // the revision that the writer has seen: files that have changed since are a Conflict; 0 for whatever there is
}

// A Query is a text for a database of a workspace.
type Query struct {
	Owner     Owner
	Workspace string // ID or name
	Service   string // empty means the only one that speaks SQL
	Text      string
	Args      []any         // for $1 or ?, as JSON values
	ReadOnly  bool          // the server refuses what would change anything
	Database  string        // empty means that of the service
	MaxRows   int           // 0 means 1,000
	MaxBytes  int64         // of values; 0 means 1 MiB
	Timeout   time.Duration // 0 means 30 s
}

// A Column is a column of a result.
type Column struct {
	Name string
	Type string // as the server calls it, like int4
}

// A QueryResult is what a database has answered. An error of the database is a result.
type QueryResult struct {
	Columns   []Column
	Rows      [][]json.RawMessage // numbers as JSON numbers if they are exact, else as strings; null for NULL
	Affected  int64               // rows; -1 if the server does not say
	Truncated bool                // there were more rows than were asked for
	Took      time.Duration
	Error     *QueryError // nil if there was none
}

// A QueryError is why a database has refused a query.
type QueryError struct {
	Code     string // SQLSTATE
	Text     string
	Position int // in the text, in characters from 1; 0 if the server does not say
	Detail   string
	Hint     string
}

// A Table is a table of a database.
type Table struct {
	Schema string
	Name   string
	Kind   string // table, view, materialized view, foreign table
	Rows   int64  // as the server estimates; -1 if it does not
	Bytes  int64  // with indexes; -1 if the server does not say
}

// A TableDescription says what a table consists of.
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
	Default  string // an expression; empty for none
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
	Kind       string // primary key, foreign key, unique, check
	Definition string
}

// Workspaces keeps workspaces. Its methods see what owner owns or works on; the rest is
// NotFound, and what the role does not allow is Denied. The empty owner may do everything.
// It is safe for concurrent use.
type Workspaces interface {
	WorkspaceRunner
	WorkspaceFiles
	WorkspaceGit
	WorkspaceServices
	WorkspaceDatabases
}

// A WorkspaceRunner has workspaces run; see [Workspaces].
type WorkspaceRunner interface {
	// Create records a workspace with its files, and returns once its services are
	// healthy. It reports Conflict for a name that is taken. If a service does not start,
	// the workspace is there, and the service failed.
	Create(ctx context.Context, spec WorkspaceSpec) (Workspace, error)
	// Get returns a workspace by ID or name.
	Get(ctx context.Context, owner Owner, workspace string) (Workspace, error)
	// List returns the newest first, those that owner works on included.
	List(ctx context.Context, owner Owner, p Paging) ([]Workspace, error)
	// Change changes who works on a workspace, what it shows, or its metadata.
	Change(ctx context.Context, owner Owner, workspace string, c WorkspaceChange) (Workspace, error)
	// Start returns a workspace once its sandbox has the files of the last revision and
	// its services are healthy.
	Start(ctx context.Context, owner Owner, workspace string) (Workspace, error)
	// Stop makes what has changed in the sandbox a revision, and destroys the sandboxes.
	// The data of services stays.
	Stop(ctx context.Context, owner Owner, workspace string) error
	// Remove deletes a workspace with its history and the data of its services.
	Remove(ctx context.Context, owner Owner, workspace string) error
}

// WorkspaceFiles has the files of workspaces; see [Workspaces]. No sandbox is needed for it.
type WorkspaceFiles interface {
	// Write makes a revision of files that are written or removed, and puts them into the
	// sandbox, if there is one. What somebody has changed there before is a revision of its
	// own.
	Write(ctx context.Context, spec WriteSpec) (WorkspaceRevision, error)
	// Files returns the files of a revision, by path; 0 is the last one, with what has
	// changed in the sandbox.
	Files(ctx context.Context, owner Owner, workspace string, revision int64) ([]WorkspaceFile, error)
	// File opens a file of a revision, as in Files. The caller closes it.
	File(ctx context.Context, owner Owner, workspace, path string, revision int64) (io.ReadCloser, error)
	// Revisions returns the history, the newest first.
	Revisions(ctx context.Context, owner Owner, workspace string, p Paging) ([]WorkspaceRevision, error)
	// Diff returns the unified diff between two revisions; from 0 is the parent of to, and
	// to 0 the last one.
	Diff(ctx context.Context, owner Owner, workspace string, from, to int64) (string, error)
	// Restore makes the files, or those below path, what they were in a revision, as a new
	// one.
	Restore(ctx context.Context, owner Owner, workspace string, revision int64, path string) (WorkspaceRevision, error)
	// PreviewFile opens a file of [PreviewStatic] by its path below the root, or reports
	// NotFound. What has changed in the sandbox is looked for once a second, if that is awake.
	PreviewFile(ctx context.Context, owner Owner, workspace, path string) (PublishedFile, error)
	// Blame says of each line of a file which revision has made it what it is.
	Blame(ctx context.Context, owner Owner, workspace, path string, revision int64) ([]BlameLine, error)
}

// WorkspaceGit has programs of git clone, fetch and push the history of workspaces, in
// version 0 of git's protocol, the stateless form: gitprotocol-http(5). Each revision is a
// commit, and the branch main is the last one; there is none before the first.
type WorkspaceGit interface {
	// GitRefs writes what may be fetched, or pushed to.
	GitRefs(ctx context.Context, owner Owner, workspace string, push bool, w io.Writer) error
	// GitFetch answers what a client asks for. It reports Invalid for what is not git's
	// and NotFound for what is not there, before anything is written.
	GitFetch(ctx context.Context, owner Owner, workspace string, request io.Reader, w io.Writer) error
	// GitPush records what a client has pushed to main as one revision, whose commit is the
	// one that was pushed, with all that come before it. It reports Invalid for what is not
	// git's, before anything is written; why a branch stays as it was, the client is told.
	GitPush(ctx context.Context, owner Owner, workspace string, request io.Reader, w io.Writer) error
}

// WorkspaceServices has the services of workspaces; see [Workspaces].
type WorkspaceServices interface {
	// AddService starts a service and returns it once it is healthy, or has failed. It
	// reports Conflict for a name that is taken.
	AddService(ctx context.Context, owner Owner, workspace string, spec ServiceSpec) (Service, error)
	// RemoveService destroys a service with its data.
	RemoveService(ctx context.Context, owner Owner, workspace, service string) error
	// RestartService ends the server of a service and starts it again.
	RestartService(ctx context.Context, owner Owner, workspace, service string) (Service, error)
	// Connection says how to reach a service. It is for who may change the workspace.
	Connection(ctx context.Context, owner Owner, workspace, service string) (Connection, error)
	// Dial connects to a service that is exposed. It is for who may change the workspace. It
	// reports Conflict for one that is not exposed or has no server. The caller closes the
	// connection; ctx bounds the opening only.
	Dial(ctx context.Context, owner Owner, workspace, service string) (net.Conn, error)
	// ServiceLogs returns the end of what a server has printed, of at most max bytes.
	ServiceLogs(ctx context.Context, owner Owner, workspace, service string, max int) (string, error)
}

// WorkspaceDatabases has the databases of workspaces; see [Workspaces].
type WorkspaceDatabases interface {
	// Query runs a text. Whose role is reviewer must have it read-only. It reports Expired
	// after the time that it may take, and Unavailable if the server does not answer.
	Query(ctx context.Context, q Query) (QueryResult, error)
	// Explain returns the plan of a query, as the server prints it, without running it.
	Explain(ctx context.Context, q Query) (string, error)
	// Tables lists the tables of a database; those of the server itself are left out.
	Tables(ctx context.Context, q Query) ([]Table, error)
	// Describe returns what a table consists of. Its name may have a schema.
	Describe(ctx context.Context, q Query, table string) (TableDescription, error)
	// Command runs a command of a redis service.
	Command(ctx context.Context, owner Owner, workspace, service string, args []string) (CommandReply, error)
}

// A CommandReply is what a redis service has answered.
type CommandReply struct {
	Value   json.RawMessage
	Refused bool // the value says why
}
