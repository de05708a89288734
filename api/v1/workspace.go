package v1

import (
	"encoding/json"
	"time"
)

// A WorkspaceRequest creates a workspace.
type WorkspaceRequest struct {
	Name          string            `json:"name,omitempty" maxLength:"63" doc:"Name: 1 to 63 letters, digits and dashes, unique per owner; absent means a generated name" example:"shop"`
	Template      string            `json:"template,omitempty" maxLength:"200" doc:"Template of the sandbox with the working copy; absent means base" example:"base"`
	Services      []ServiceRequest  `json:"services,omitempty" maxItems:"16"`
	Files         []WorkspaceWrite  `json:"files,omitempty" doc:"Files of the first revision"`
	Collaborators []Collaborator    `json:"collaborators,omitempty" maxItems:"100"`
	Metadata      map[string]string `json:"metadata,omitempty" doc:"Labels; up to 64"`
}

// States of workspaces.
const (
	WorkspaceStopped  = "stopped"
	WorkspaceStarting = "starting"
	WorkspaceRunning  = "running"
	WorkspaceFailed   = "failed"
)

// A Workspace holds files with a history, services like databases, and collaborators.
type Workspace struct {
	ID            string            `json:"id" example:"wsp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner         string            `json:"owner,omitempty"`
	Name          string            `json:"name" example:"shop"`
	Template      string            `json:"template" example:"base"`
	State         string            `json:"state" enum:"stopped,starting,running,failed"`
	SandboxID     string            `json:"sandbox_id,omitempty" doc:"ID of the sandbox with the working copy; absent if there is none" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Revision      int64             `json:"revision" doc:"Number of the last revision; 0 before the first" example:"3"`
	Services      []Service         `json:"services" doc:"Services, ordered by name"`
	Collaborators []Collaborator    `json:"collaborators"`
	Preview       *WorkspacePreview `json:"preview,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Error         *Problem          `json:"error,omitempty" doc:"Reason of state failed"`
	CreatedAt     time.Time         `json:"created_at"`
	UsedAt        *time.Time        `json:"used_at,omitempty"`
}

// A WorkspaceUpdate changes a workspace. Absent fields do not change.
type WorkspaceUpdate struct {
	Collaborators *[]Collaborator    `json:"collaborators,omitempty" maxItems:"100" doc:"All collaborators, which replace the current ones"`
	Share         []Collaborator     `json:"share,omitempty" maxItems:"100" doc:"Collaborators to add or to give another role; the others keep theirs"`
	Unshare       []string           `json:"unshare,omitempty" maxItems:"100" doc:"Owners to remove from the collaborators"`
	Preview       *PreviewRequest    `json:"preview,omitempty"`
	Metadata      *map[string]string `json:"metadata,omitempty" doc:"Labels, which replace all current ones; up to 64"`
}

// Types of previews.
const (
	PreviewNone      = "none" // only in requests
	PreviewStatic    = "static"
	PreviewProxy     = "proxy"
	PreviewWebSocket = "websocket"
)

// A PreviewRequest selects the preview of a workspace.
type PreviewRequest struct {
	Type   string `json:"type" enum:"none,static,proxy,websocket" doc:"none: no preview; static: files of the last revision, which need no sandbox; proxy: a server in the workspace's sandbox; websocket: the same, with a WebSocket URL"`
	Root   string `json:"root,omitempty" maxLength:"512" doc:"Directory with the files, relative to the workspace; absent means the whole workspace" example:"dist"`
	Port   int    `json:"port,omitempty" minimum:"0" maximum:"65535" doc:"Port of the server" example:"3000"`
	Public bool   `json:"public,omitempty" doc:"Everybody who has the URL can open the preview; by default only collaborators and holders of links can. Only the owner of the workspace can set it"`
}

// A WorkspacePreview is the preview of a workspace, at its own address.
type WorkspacePreview struct {
	URL    string `json:"url,omitempty" example:"https://ws-u2dmwmlezjgprkqrgppgcz2mgu.example.com/"`
	Type   string `json:"type" enum:"static,proxy,websocket"`
	Root   string `json:"root,omitempty" doc:"Directory with the files, relative to the workspace" example:"dist"`
	Port   int    `json:"port,omitempty" doc:"Port of the server" example:"3000"`
	Public bool   `json:"public" doc:"Everybody who has the URL can open the preview; by default only collaborators and holders of links can"`
}

// A WorkspaceLinkRequest creates a link to the preview of a workspace.
type WorkspaceLinkRequest struct {
	Service string   `json:"service,omitempty" maxLength:"63" doc:"Service whose pages the link opens; absent means the workspace's preview" example:"nginx"`
	TTL     Duration `json:"ttl,omitempty" doc:"Lifetime of the link; absent means one hour" example:"1h"`
}

// Roles of collaborators. Each has the rights of those before it, except that a reviewer
// cannot change anything.
const (
	RoleViewer   = "viewer"
	RoleReviewer = "reviewer"
	RoleEditor   = "editor"
)

// A Collaborator is another owner that works in a workspace.
type Collaborator struct {
	Owner string `json:"owner" minLength:"1" maxLength:"128" example:"bob"`
	Role  string `json:"role" enum:"viewer,reviewer,editor" doc:"viewer: reads files and services; reviewer: also reads tables and runs read-only queries; editor: also changes files, services and databases" example:"editor"`
}

// Types of services.
const (
	ServicePostgres = "postgres"
	ServiceMySQL    = "mysql"
	ServiceRedis    = "redis"
	ServiceMongoDB  = "mongodb"
	ServiceNginx    = "nginx"
)

// A ServiceRequest adds a service.
type ServiceRequest struct {
	Name    string            `json:"name,omitempty" maxLength:"63" doc:"Name: lower-case letters, digits and dashes; absent means the type" example:"postgres"`
	Type    string            `json:"type" enum:"postgres,mysql,redis,mongodb,nginx" example:"postgres"`
	Version string            `json:"version,omitempty" maxLength:"64" doc:"Version that the template source has; absent or latest means the newest" example:"15"`
	Env     map[string]string `json:"env,omitempty" doc:"Environment variables of the server"`
	Exposed bool              `json:"exposed,omitempty" doc:"Callers who can use the workspace reach the service's port from outside"`
	Needs   []string          `json:"needs,omitempty" doc:"Names of services that must be healthy before this one starts"`
}

// States of services.
const (
	ServiceStopped   = "stopped"
	ServiceStarting  = "starting"
	ServiceHealthy   = "healthy"
	ServiceUnhealthy = "unhealthy"
	ServiceFailed    = "failed"
)

// A Service is a server that belongs to a workspace.
type Service struct {
	Name      string      `json:"name" example:"postgres"`
	Type      string      `json:"type" enum:"postgres,mysql,redis,mongodb,nginx"`
	Version   string      `json:"version,omitempty" doc:"Version of the running server, as it reports it" example:"15.14"`
	Server    string      `json:"server,omitempty" doc:"Program that implements the type" example:"MariaDB 10.11"`
	State     string      `json:"state" enum:"stopped,starting,healthy,unhealthy,failed" doc:"unhealthy: the server does not answer and is restarted; failed: it was restarted too often"`
	SandboxID string      `json:"sandbox_id,omitempty" doc:"ID of the sandbox with the server; absent if there is none" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	VolumeID  string      `json:"volume_id,omitempty" doc:"ID of the volume with the data; absent if there is none" example:"vol_u2dmwmlezjgprkqrgppgcz2mgu"`
	Host      string      `json:"host" doc:"Host name for sandboxes of the workspace" example:"postgres.workspace.internal"`
	Port      int         `json:"port" example:"5432"`
	Exposed   bool        `json:"exposed"`
	URL       string      `json:"url,omitempty" doc:"URL of the service's preview, if it is exposed and serves pages" example:"https://ws-u2dmwmlezjgprkqrgppgcz2mgu-nginx.example.com/"`
	Needs     []string    `json:"needs" doc:"Services that must be healthy before this one starts"`
	Restarts  int         `json:"restarts" doc:"Number of automatic restarts since the service was last healthy for a while"`
	Error     *Problem    `json:"error,omitempty" doc:"Reason why the service is unhealthy or failed"`
	StartedAt *time.Time  `json:"started_at,omitempty"`
	Use       *ServiceUse `json:"use,omitempty" doc:"Resources that the service uses; absent without a sandbox, in lists of workspaces, and in answers to changes"`
}

// A ServiceUse is what a service uses of its node.
type ServiceUse struct {
	CPUTime     Duration `json:"cpu_time" doc:"Processor time since the start of the sandbox" example:"1.5s"`
	CPUPercent  float64  `json:"cpu_percent" doc:"Processor use, in percent of one processor" example:"3.5"`
	Memory      Bytes    `json:"memory"`
	MemoryLimit Bytes    `json:"memory_limit"`
	Disk        Bytes    `json:"disk" doc:"Size of the data, in bytes"`
	DiskLimit   Bytes    `json:"disk_limit"`
}

// A Connection holds the address of a service for sandboxes of its workspace.
type Connection struct {
	Host     string `json:"host" example:"postgres.workspace.internal"`
	Port     int    `json:"port" example:"5432"`
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	Database string `json:"database,omitempty"`
	URL      string `json:"url" doc:"URL with address and credentials, as clients of the type expect it" example:"postgres://engi:secret@postgres.workspace.internal:5432/engi"`
}

// ServiceLogs is the end of the output of a service's server.
type ServiceLogs struct {
	Text string `json:"text"`
}

// A WorkspaceWrite is a file to write or to delete.
type WorkspaceWrite struct {
	Path          string  `json:"path" minLength:"1" maxLength:"1024" doc:"Path relative to the workspace, with slashes" example:"src/index.html"`
	Mode          Mode    `json:"mode,omitempty" doc:"0644 or 0755; absent means the existing file's mode, or 0644" example:"0644"`
	Content       *string `json:"content,omitempty"`
	ContentBase64 []byte  `json:"content_base64,omitempty" doc:"Content in base64, instead of content, for bytes that are not UTF-8"`
	Removed       bool    `json:"removed,omitempty" doc:"Delete the file"`
}

// A WriteRequest writes files as one revision.
type WriteRequest struct {
	Files   []WorkspaceWrite `json:"files" minItems:"1" maxItems:"10000"`
	Message string           `json:"message,omitempty" maxLength:"200" doc:"Message of the revision; absent means a message made from the changes"`
	Base    int64            `json:"base,omitempty" minimum:"1" doc:"Revision that the caller has read: if one of the files has changed since, the answer is a conflict; absent means any revision" example:"3"`
}

// A WorkspaceFile is a file of a revision of a workspace.
type WorkspaceFile struct {
	Path   string `json:"path" example:"src/index.html"`
	Size   Bytes  `json:"size"`
	Mode   Mode   `json:"mode" example:"0644"`
	Digest string `json:"digest" doc:"Hash of the content, in hex, as git computes it for blobs"`
}

// A WorkspaceRevision is one state of all files of a workspace.
type WorkspaceRevision struct {
	Number    int64       `json:"number" example:"3"`
	Parent    int64       `json:"parent,omitempty" doc:"Number of the previous revision" example:"2"`
	Of        int64       `json:"of,omitempty" doc:"Number of the revision that was restored" example:"1"`
	Message   string      `json:"message" doc:"Message; the first line is a summary" example:"Add a cart"`
	Actor     string      `json:"actor,omitempty" doc:"Key or run that created the revision" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Commit    string      `json:"commit,omitempty" doc:"Commit in the workspace's git repository"`
	CreatedAt time.Time   `json:"created_at"`
	Changed   []AppChange `json:"changed" doc:"Changes since the previous revision, by path"`
}

// A RestoreRequest restores files of a workspace from a revision.
type RestoreRequest struct {
	Revision int64  `json:"revision" minimum:"1" example:"2"`
	Path     string `json:"path,omitempty" maxLength:"1024" doc:"Only this file, or files below this directory; absent means all files" example:"src"`
}

// A WorkspaceMove moves a file or a directory of a workspace.
type WorkspaceMove struct {
	From    string `json:"from" maxLength:"1024" doc:"Path of the file or directory" example:"notes.md"`
	To      string `json:"to" maxLength:"1024" doc:"New path, which must not exist; missing directories are created" example:"docs/notes.md"`
	Message string `json:"message,omitempty" maxLength:"200" doc:"Message of the revision"`
	Base    int64  `json:"base,omitempty" minimum:"0" doc:"Revision that the caller has read: if the file, or one in the directory, has changed since, the answer is a conflict; absent means any revision"`
}

// A BlameLine is a line of a file, and the revision that last changed it.
type BlameLine struct {
	Revision  int64     `json:"revision" example:"2"`
	Actor     string    `json:"actor,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	Text      string    `json:"text"`
}

// A QueryRequest is a text for a database of a workspace.
type QueryRequest struct {
	Text     string            `json:"text" minLength:"1" maxLength:"1048576" example:"select 42 as n"`
	Service  string            `json:"service,omitempty" maxLength:"63" doc:"Name of the service; absent means the only SQL service" example:"postgres"`
	Args     []json.RawMessage `json:"args,omitempty" maxItems:"10000" doc:"Arguments for $1 or ?"`
	ReadOnly bool              `json:"read_only,omitempty" doc:"Run the query in a read-only transaction, which the database enforces"`
	Database string            `json:"database,omitempty" maxLength:"63" doc:"Name of the database; absent means the service's database"`
	MaxRows  int               `json:"max_rows,omitempty" minimum:"1" maximum:"100000" doc:"Maximum number of rows; absent means 1,000"`
	MaxBytes Bytes             `json:"max_bytes,omitempty" doc:"Maximum size of the values, at most 16 MiB; absent means 1 MiB" example:"1048576"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"Maximum run time, at most 10 minutes; absent means 30 seconds" example:"30s"`
}

// A QueryResult is the answer of a database. An error of the database is a result.
type QueryResult struct {
	Columns   []QueryColumn       `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows" doc:"Rows with a value for each column; numbers that JSON cannot represent exactly are strings"`
	Affected  *int64              `json:"affected,omitempty" doc:"Number of affected rows; absent if the server does not report it"`
	Truncated bool                `json:"truncated" doc:"The query has more rows or bytes than were requested"`
	Took      Duration            `json:"took"`
	Error     *QueryError         `json:"error,omitempty" doc:"Error of the database"`
}

// A QueryColumn is a column of a result.
type QueryColumn struct {
	Name string `json:"name" example:"n"`
	Type string `json:"type" doc:"Type, as the database names it" example:"int4"`
}

// A QueryError is the error with which a database refused a query.
type QueryError struct {
	Code     string `json:"code,omitempty" doc:"SQLSTATE; of mongodb, the name of the error" example:"42601"`
	Text     string `json:"text"`
	Position int    `json:"position,omitempty" doc:"Position in the query, in characters, from 1"`
	Detail   string `json:"detail,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// A CollectionRequest finds documents in a collection of a mongodb service, or aggregates them. Its documents are
// MongoDB Extended JSON.
type CollectionRequest struct {
	Collection string          `json:"collection,omitempty" maxLength:"255" doc:"Name of the collection; absent only with a pipeline that needs none" example:"orders"`
	Service    string          `json:"service,omitempty" maxLength:"63" doc:"Name of the service; absent means the only one of type mongodb" example:"mongodb"`
	Database   string          `json:"database,omitempty" maxLength:"63" doc:"Name of the database; absent means the service's database"`
	Filter     json.RawMessage `json:"filter,omitempty" doc:"Filter, as an object; absent means all documents"`
	Projection json.RawMessage `json:"projection,omitempty" doc:"Fields of the documents to return, as an object; absent means all"`
	Sort       json.RawMessage `json:"sort,omitempty" doc:"Order, as an object: 1 for ascending, -1 for descending"`
	Skip       int64           `json:"skip,omitempty" minimum:"0" doc:"Number of documents to skip"`
	Pipeline   json.RawMessage `json:"pipeline,omitempty" doc:"Stages of an aggregation, as a list, instead of filter, projection, sort and skip"`
	MaxRows    int             `json:"max_rows,omitempty" minimum:"1" maximum:"100000" doc:"Maximum number of documents; absent means 1,000"`
	MaxBytes   Bytes           `json:"max_bytes,omitempty" doc:"Maximum size of the documents, at most 16 MiB; absent means 1 MiB" example:"1048576"`
	Timeout    Duration        `json:"timeout,omitempty" doc:"Maximum run time, at most 10 minutes; absent means 30 seconds" example:"30s"`
}

// A CollectionResult is the answer of a mongodb service. An error of the service is a result.
type CollectionResult struct {
	Documents []json.RawMessage `json:"documents" doc:"Documents, as relaxed Extended JSON; integers that JSON cannot represent exactly are $numberLong"`
	Truncated bool              `json:"truncated" doc:"There are more documents or bytes than were requested"`
	Took      Duration          `json:"took"`
	Error     *QueryError       `json:"error,omitempty" doc:"Error of the service"`
}

// A QueryPlan is the plan of a database for a query.
type QueryPlan struct {
	Text string `json:"text" doc:"Plan, as the database prints it"`
}

// A Table is a table of a database, or a collection of documents.
type Table struct {
	Schema string `json:"schema,omitempty" example:"public"`
	Name   string `json:"name" example:"orders"`
	Kind   string `json:"kind" doc:"table, view, materialized view, foreign table or collection" example:"table"`
	Rows   *int64 `json:"rows,omitempty" doc:"Number of rows, as the database estimates; absent if it does not"`
	Size   *Bytes `json:"size,omitempty" doc:"Size with indexes, in bytes; absent if the database does not report it"`
}

// A TableDescription describes the structure of a table.
type TableDescription struct {
	Table       Table             `json:"table"`
	Columns     []TableColumn     `json:"columns"`
	Indexes     []TableIndex      `json:"indexes"`
	Constraints []TableConstraint `json:"constraints"`
}

// A TableColumn is a column of a table.
type TableColumn struct {
	Name     string `json:"name" example:"id"`
	Type     string `json:"type" example:"integer"`
	Nullable bool   `json:"nullable"`
	Default  string `json:"default,omitempty" doc:"Default value, an expression"`
}

// A TableIndex is an index of a table.
type TableIndex struct {
	Name       string `json:"name"`
	Definition string `json:"definition"`
	Unique     bool   `json:"unique"`
	Primary    bool   `json:"primary"`
}

// A TableConstraint is a constraint of a table.
type TableConstraint struct {
	Name       string `json:"name"`
	Kind       string `json:"kind" doc:"primary key, foreign key, unique or check" example:"primary key"`
	Definition string `json:"definition"`
}

// A CommandRequest is a command for a redis service.
type CommandRequest struct {
	Args []string `json:"args" minItems:"1" maxItems:"10000" example:"[\"GET\",\"key\"]"`
}

// A CommandReply is the answer of a redis service.
type CommandReply struct {
	Reply   json.RawMessage `json:"reply"`
	Refused bool            `json:"refused,omitempty" doc:"Redis refused the command; the reply says why"`
}
