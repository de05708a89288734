package v1

import (
	"encoding/json"
	"time"
)

// A WorkspaceRequest asks for a workspace.
type WorkspaceRequest struct {
	Name          string            `json:"name,omitempty" maxLength:"63" doc:"1 to 63 letters, digits and dashes, unique per owner; absent means one made up" example:"shop"`
	Template      string            `json:"template,omitempty" maxLength:"200" doc:"of the sandbox that has the working copy; absent means base" example:"base"`
	Services      []ServiceRequest  `json:"services,omitempty" maxItems:"16"`
	Files         []WorkspaceWrite  `json:"files,omitempty" doc:"of the first revision"`
	Collaborators []Collaborator    `json:"collaborators,omitempty" maxItems:"100"`
	Metadata      map[string]string `json:"metadata,omitempty" doc:"up to 64 entries"`
}

// States of workspaces.
const (
	WorkspaceStopped  = "stopped"
	WorkspaceStarting = "starting"
	WorkspaceRunning  = "running"
	WorkspaceFailed   = "failed"
)

// A Workspace is files with a history, services like databases, and who works on them.
type Workspace struct {
	ID            string            `json:"id" example:"wsp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner         string            `json:"owner,omitempty"`
	Name          string            `json:"name" example:"shop"`
	Template      string            `json:"template" example:"base"`
	State         string            `json:"state" enum:"stopped,starting,running,failed"`
	SandboxID     string            `json:"sandbox_id,omitempty" doc:"that has the working copy; absent if there is none" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Revision      int64             `json:"revision" doc:"number of the last one; 0 before the first" example:"3"`
	Services      []Service         `json:"services" doc:"by name"`
	Collaborators []Collaborator    `json:"collaborators"`
	Preview       *WorkspacePreview `json:"preview,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Error         *Problem          `json:"error,omitempty" doc:"why it is failed"`
	CreatedAt     time.Time         `json:"created_at"`
	UsedAt        *time.Time        `json:"used_at,omitempty"`
}

// A WorkspaceUpdate changes a workspace. What is absent stays.
type WorkspaceUpdate struct {
	Collaborators *[]Collaborator    `json:"collaborators,omitempty" maxItems:"100" doc:"all of them"`
	Share         []Collaborator     `json:"share,omitempty" maxItems:"100" doc:"get a role, or another one; the rest keep theirs"`
	Unshare       []string           `json:"unshare,omitempty" maxItems:"100" doc:"owners who have no role any more"`
	Preview       *PreviewRequest    `json:"preview,omitempty"`
	Metadata      *map[string]string `json:"metadata,omitempty" doc:"all of it; up to 64 entries"`
}

// Types of previews.
const (
	PreviewNone      = "none" // of requests only
	PreviewStatic    = "static"
	PreviewProxy     = "proxy"
	PreviewWebSocket = "websocket"
)

// A PreviewRequest says what a workspace is to show.
type PreviewRequest struct {
	Type   string `json:"type" enum:"none,static,proxy,websocket" doc:"none: nothing any more; static: files of the last revision, for which no sandbox is needed; proxy: a server in its sandbox; websocket: the same, and the address is one for WebSockets"`
	Root   string `json:"root,omitempty" maxLength:"512" doc:"directory with the files, relative to the workspace; absent means all of it" example:"dist"`
	Port   int    `json:"port,omitempty" minimum:"0" maximum:"65535" doc:"that the server listens on" example:"3000"`
	Public bool   `json:"public,omitempty" doc:"for everybody who has the address; else for who works in the workspace, and who has a link; for the owner of the workspace to say"`
}

// A WorkspacePreview is what a workspace shows at an address of its own.
type WorkspacePreview struct {
	URL    string `json:"url,omitempty" example:"https://ws-u2dmwmlezjgprkqrgppgcz2mgu.example.com/"`
	Type   string `json:"type" enum:"static,proxy,websocket"`
	Root   string `json:"root,omitempty" doc:"directory with the files, relative to the workspace" example:"dist"`
	Port   int    `json:"port,omitempty" doc:"that the server listens on" example:"3000"`
	Public bool   `json:"public" doc:"for everybody who has the address; else for who works in the workspace, and who has a link"`
}

// A WorkspaceLinkRequest asks for a link to the preview of a workspace.
type WorkspaceLinkRequest struct {
	Service string   `json:"service,omitempty" maxLength:"63" doc:"whose pages are meant; absent means what the workspace shows" example:"nginx"`
	TTL     Duration `json:"ttl,omitempty" doc:"absent means an hour" example:"1h"`
}

// Roles of collaborators. Each may do what those before it may, but that a reviewer
// changes nothing.
const (
	RoleViewer   = "viewer"
	RoleReviewer = "reviewer"
	RoleEditor   = "editor"
)

// A Collaborator is somebody else who works in a workspace.
type Collaborator struct {
	Owner string `json:"owner" minLength:"1" maxLength:"128" example:"bob"`
	Role  string `json:"role" enum:"viewer,reviewer,editor" doc:"viewer: looks at files and services; reviewer: also looks at tables and queries databases, without changing them; editor: also changes files, services and databases" example:"editor"`
}

// Types of services.
const (
	ServicePostgres = "postgres"
	ServiceMySQL    = "mysql"
	ServiceRedis    = "redis"
	ServiceMongoDB  = "mongodb"
	ServiceNginx    = "nginx"
)

// A ServiceRequest asks for a service.
type ServiceRequest struct {
	Name    string            `json:"name,omitempty" maxLength:"63" doc:"lower-case letters, digits and dashes; absent means the type" example:"postgres"`
	Type    string            `json:"type" enum:"postgres,mysql,redis,mongodb,nginx" example:"postgres"`
	Version string            `json:"version,omitempty" maxLength:"64" doc:"a number that there is; absent or latest means the newest" example:"15"`
	Env     map[string]string `json:"env,omitempty" doc:"for the server"`
	Exposed bool              `json:"exposed,omitempty" doc:"who may use the workspace reaches its port from outside"`
	Needs   []string          `json:"needs,omitempty" doc:"names of services that are healthy before it starts"`
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
	Name      string     `json:"name" example:"postgres"`
	Type      string     `json:"type" enum:"postgres,mysql,redis,mongodb,nginx"`
	Version   string     `json:"version,omitempty" doc:"that runs, as the server says it" example:"15.14"`
	Server    string     `json:"server,omitempty" doc:"program that serves the type" example:"MariaDB 10.11"`
	State     string     `json:"state" enum:"stopped,starting,healthy,unhealthy,failed" doc:"unhealthy: it does not answer, and is started again; failed: it was started again too often"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"that it runs in; absent if there is none" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	VolumeID  string     `json:"volume_id,omitempty" doc:"that has its data; absent if there is none" example:"vol_u2dmwmlezjgprkqrgppgcz2mgu"`
	Host      string     `json:"host" doc:"by which sandboxes of the workspace reach it" example:"postgres.workspace.internal"`
	Port      int        `json:"port" example:"5432"`
	Exposed   bool       `json:"exposed"`
	URL       string     `json:"url,omitempty" doc:"of its preview, if it is exposed and serves pages" example:"https://ws-u2dmwmlezjgprkqrgppgcz2mgu-nginx.example.com/"`
	Needs     []string   `json:"needs" doc:"services that are healthy before it starts"`
	Restarts  int        `json:"restarts" doc:"by itself, since it was last healthy for a while"`
	Error     *Problem   `json:"error,omitempty" doc:"why it is unhealthy or failed"`
	StartedAt *time.Time `json:"started_at,omitempty"`
}

// A Connection says how sandboxes of a workspace reach a service.
type Connection struct {
	Host     string `json:"host" example:"postgres.workspace.internal"`
	Port     int    `json:"port" example:"5432"`
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	Database string `json:"database,omitempty"`
	URL      string `json:"url" doc:"all of that, as clients of the type take it" example:"postgres://engi:secret@postgres.workspace.internal:5432/engi"`
}

// ServiceLogs are the end of what the server of a service has printed.
type ServiceLogs struct {
	Text string `json:"text"`
}

// A WorkspaceWrite is a file to write or to remove.
type WorkspaceWrite struct {
	Path          string  `json:"path" minLength:"1" maxLength:"1024" doc:"relative to the workspace, with slashes" example:"src/index.html"`
	Mode          Mode    `json:"mode,omitempty" doc:"0644 or 0755; absent means that of the file that is there, or 0644" example:"0644"`
	Content       *string `json:"content,omitempty"`
	ContentBase64 []byte  `json:"content_base64,omitempty" doc:"instead of content, if that is not UTF-8"`
	Removed       bool    `json:"removed,omitempty" doc:"the file is to go"`
}

// A WriteRequest asks to write files, which become one revision.
type WriteRequest struct {
	Files   []WorkspaceWrite `json:"files" minItems:"1" maxItems:"10000"`
	Message string           `json:"message,omitempty" maxLength:"200" doc:"of the revision; absent means one made from what changes"`
	Base    int64            `json:"base,omitempty" minimum:"1" doc:"revision that the writer has seen: if one of these files has changed since, it is a conflict; absent means whatever there is" example:"3"`
}

// A WorkspaceFile is a file of a revision of a workspace.
type WorkspaceFile struct {
	Path   string `json:"path" example:"src/index.html"`
	Size   Bytes  `json:"size"`
	Mode   Mode   `json:"mode" example:"0644"`
	Digest string `json:"digest" doc:"of the content, in hex"`
}

// A WorkspaceRevision is one state of all files of a workspace.
type WorkspaceRevision struct {
	Number    int64       `json:"number" example:"3"`
	Parent    int64       `json:"parent,omitempty" doc:"the one before" example:"2"`
	Of        int64       `json:"of,omitempty" doc:"the one whose files it took back" example:"1"`
	Message   string      `json:"message" doc:"its first line is a summary" example:"Add a cart"`
	Actor     string      `json:"actor,omitempty" doc:"who made it" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Commit    string      `json:"commit,omitempty" doc:"in the git repository of the workspace"`
	CreatedAt time.Time   `json:"created_at"`
	Changed   []AppChange `json:"changed" doc:"against the one before, by path"`
}

// A RestoreRequest makes files of a workspace what they were in a revision.
type RestoreRequest struct {
	Revision int64  `json:"revision" minimum:"1" example:"2"`
	Path     string `json:"path,omitempty" maxLength:"1024" doc:"only this file, or those below this directory; absent means all" example:"src"`
}

// A BlameLine is a line of a file, and the revision that has made it what it is.
type BlameLine struct {
	Revision  int64     `json:"revision" example:"2"`
	Actor     string    `json:"actor,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	Text      string    `json:"text"`
}

// A QueryRequest is a text for a database of a workspace.
type QueryRequest struct {
	Text     string            `json:"text" minLength:"1" maxLength:"1048576" example:"select 42 as n"`
	Service  string            `json:"service,omitempty" maxLength:"63" doc:"absent means the only one that speaks SQL" example:"postgres"`
	Args     []json.RawMessage `json:"args,omitempty" maxItems:"10000" doc:"for $1 or ?"`
	ReadOnly bool              `json:"read_only,omitempty" doc:"the server refuses what would change anything"`
	Database string            `json:"database,omitempty" maxLength:"63" doc:"absent means that of the service"`
	MaxRows  int               `json:"max_rows,omitempty" minimum:"1" maximum:"100000" doc:"absent means 1,000"`
	MaxBytes Bytes             `json:"max_bytes,omitempty" doc:"of values, 16 MiB at most; absent means 1 MiB" example:"1048576"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"10 minutes at most; absent means 30 seconds" example:"30s"`
}

// A QueryResult is what a database has answered. An error of the database is a result.
type QueryResult struct {
	Columns   []QueryColumn       `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows" doc:"a value for each column: numbers are strings if JSON's would not be exact"`
	Affected  *int64              `json:"affected,omitempty" doc:"rows; absent if the server does not say"`
	Truncated bool                `json:"truncated" doc:"there was more than was asked for"`
	Took      Duration            `json:"took"`
	Error     *QueryError         `json:"error,omitempty" doc:"why the database has refused the query"`
}

// A QueryColumn is a column of a result.
type QueryColumn struct {
	Name string `json:"name" example:"n"`
	Type string `json:"type" doc:"as the server calls it" example:"int4"`
}

// A QueryError is why a database has refused a query.
type QueryError struct {
	Code     string `json:"code,omitempty" doc:"SQLSTATE" example:"42601"`
	Text     string `json:"text"`
	Position int    `json:"position,omitempty" doc:"in the query, in characters from 1"`
	Detail   string `json:"detail,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// A QueryPlan is how a database would run a query.
type QueryPlan struct {
	Text string `json:"text" doc:"as the server prints it"`
}

// A Table is a table of a database.
type Table struct {
	Schema string `json:"schema,omitempty" example:"public"`
	Name   string `json:"name" example:"orders"`
	Kind   string `json:"kind" doc:"table, view, materialized view or foreign table" example:"table"`
	Rows   *int64 `json:"rows,omitempty" doc:"as the server estimates; absent if it does not"`
	Size   *Bytes `json:"size,omitempty" doc:"with indexes; absent if the server does not say"`
}

// A TableDescription says what a table consists of.
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
	Default  string `json:"default,omitempty" doc:"an expression"`
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

// A CommandReply is what a redis service has answered.
type CommandReply struct {
	Reply   json.RawMessage `json:"reply"`
	Refused bool            `json:"refused,omitempty" doc:"the reply says why redis did not run the command"`
}
