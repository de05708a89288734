package v1

import "time"

// An AppRequest creates an app.
type AppRequest struct {
	Name      string            `json:"name,omitempty" maxLength:"63" doc:"Name: 1 to 63 letters, digits and dashes, unique per owner; absent means a generated name" example:"shop"`
	Template  string            `json:"template,omitempty" maxLength:"200" doc:"Name of the template; absent means vite-react" example:"vite-react"`
	Workspace string            `json:"workspace,omitempty" maxLength:"128" doc:"ID or name of a workspace of the caller, whose services the app reaches by name, like postgres.workspace.internal"`
	Directory string            `json:"directory,omitempty" maxLength:"512" doc:"Directory of the workspace with the app's files. The server then runs in the workspace's sandbox, and template and network are not allowed; absent means that the app has a sandbox of its own" example:"web"`
	Start     string            `json:"start,omitempty" maxLength:"4096" doc:"Shell command that starts the server in the directory, with PORT and HOST in its environment; only with directory, which needs it" example:"npm start"`
	Port      int               `json:"port,omitempty" minimum:"1" maximum:"65535" doc:"Port of the server, which no other app in the workspace has; only with directory, which needs it" example:"3000"`
	Replace   bool              `json:"replace,omitempty" doc:"Stop the caller's other apps first"`
	Metadata  map[string]string `json:"metadata,omitempty" doc:"Labels; up to 64"`
	Env       map[string]string `json:"env,omitempty" doc:"Environment variables of every program in the app's sandbox"`
	Network   *NetworkPolicy    `json:"network,omitempty" doc:"Network policy of the app's sandbox; absent allows installing packages and nothing else"`
}

// States of apps.
const (
	AppStarting = "starting"
	AppReady    = "ready"
	AppFailed   = "failed"
	AppStopped  = "stopped"
	AppRemoved  = "removed"
)

// An App is a web application that models write.
type App struct {
	ID          string            `json:"id" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty"`
	Name        string            `json:"name" example:"shop"`
	Template    string            `json:"template" example:"vite-react"`
	WorkspaceID string            `json:"workspace_id,omitempty" doc:"ID of the workspace whose services the app reaches; absent for none"`
	Directory   string            `json:"directory,omitempty" doc:"Directory of the workspace with the app's files, if the app's server runs in the workspace's sandbox; absent for other apps" example:"web"`
	Start       string            `json:"start,omitempty" doc:"Shell command that starts the server of an app with directory" example:"npm start"`
	State       string            `json:"state" enum:"starting,ready,failed,stopped,removed"`
	SandboxID   string            `json:"sandbox_id,omitempty" doc:"ID of the sandbox in which the app's server runs; absent while the app is stopped" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Port        int               `json:"port,omitempty" doc:"Port of the app's server" example:"5173"`
	PreviewURL  string            `json:"preview_url,omitempty" doc:"URL of the app's page; absent while the app is stopped" example:"http://5173-app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
	Revision    int64             `json:"revision" doc:"Number of the last revision; 0 before the first" example:"3"`
	Applying    int64             `json:"applying,omitempty" doc:"Seq of the event that started the running apply" example:"4711"`
	Editing     int64             `json:"editing,omitempty" doc:"Seq of the event that started the running edit" example:"4711"`
	Error       *Problem          `json:"error,omitempty" doc:"Reason of state failed"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
	UsedAt      *time.Time        `json:"used_at,omitempty"`
	Published   *AppPublication   `json:"published,omitempty" doc:"Published build, which is served without a sandbox"`
	AttemptOf   string            `json:"attempt_of,omitempty" doc:"ID of the app that an edit changes, if this app is a branch for an attempt of that edit; the branch is deleted when the edit ends" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
}

// An ApplyRequest applies the output of a model to an app.
type ApplyRequest struct {
	Text    string `json:"text" doc:"Text of the model, at most 8 MiB: files, edits, packages and commands" example:"<file path=\"src/App.jsx\">export default function App() { return <h1>Hello</h1> }</file>"`
	Message string `json:"message,omitempty" maxLength:"200" doc:"Message of the revision, one line; absent means a message made from the changes"`
	Keep    bool   `json:"keep,omitempty" doc:"Keep the new revision even if the app's server does not respond with it; by default it is undone"`

	Snapshot bool `json:"snapshot,omitempty" doc:"Take a snapshot with the revision; if the quota has no room for it, the apply has a warning"`
}

// An Applying is an apply that has started.
type Applying struct {
	Seq int64 `json:"seq" doc:"Seq of the event that started the change; watch the app after this seq to follow it" example:"4711"`
}

// An EditRequest asks a model to change an app.
type EditRequest struct {
	Prompt    string      `json:"prompt" doc:"Prompt for the model, at most 32 KiB" example:"Add a cart that keeps what is in it"`
	Model     string      `json:"model,omitempty" maxLength:"2000" doc:"Model, as provider:model; absent means the node's default; several models, separated by commas, take turns in attempts" example:"openai:gpt-4o"`
	MaxRounds int         `json:"max_rounds,omitempty" minimum:"1" maximum:"10" doc:"Maximum number of answers of the model in each attempt; absent means 3" example:"3"`
	MaxCost   float64     `json:"max_cost,omitempty" minimum:"0" doc:"Cost limit of all attempts, by the node's prices and in their currency; no model is asked again beyond it; absent means no limit" example:"0.5"`
	Element   *AppElement `json:"element,omitempty" doc:"Element of the page that the prompt is about"`
	Attempts  int         `json:"attempts,omitempty" minimum:"1" maximum:"8" doc:"Number of parallel attempts, of which the best is used; absent means one for each model" example:"3"`
	Judge     *AppJudge   `json:"judge,omitempty" doc:"Comparison of the successful attempts; absent means that the attempt with the fewest problems wins, then the cheapest"`
	Keep      bool        `json:"keep_attempts,omitempty" doc:"Keep the branches of the attempts as apps"`
}

// An AppJudge compares attempts: a command or a model.
type AppJudge struct {
	Command  string `json:"command,omitempty" maxLength:"4096" doc:"Shell command that runs in each attempt: exit code 0 wins, then the highest number alone on the last line of output" example:"npm test"`
	Model    string `json:"model,omitempty" maxLength:"200" doc:"Model that compares the attempts; absent with criteria means the node's default" example:"openai:gpt-4o"`
	Criteria string `json:"criteria,omitempty" maxLength:"8192" doc:"Criteria by which the model compares" example:"The plainest code wins"`
}

// An AppElement is a part of an app's page.
type AppElement struct {
	Selector string `json:"selector,omitempty" maxLength:"2000" example:"main > h1"`
	Text     string `json:"text,omitempty" maxLength:"4096" example:"Nothing here yet"`
	HTML     string `json:"html,omitempty" maxLength:"16384"`
	Path     string `json:"path,omitempty" maxLength:"512" doc:"Path of the source file with the element" example:"src/App.tsx"`
	Line     int    `json:"line,omitempty" minimum:"1"`
}

// A RollbackRequest restores the files of an app from an earlier revision.
type RollbackRequest struct {
	Revision int64 `json:"revision,omitempty" minimum:"1" doc:"Number of the revision; absent means the one before the last, or, with snapshot, the last revision with a snapshot" example:"2"`
	Snapshot bool  `json:"snapshot,omitempty" doc:"Restore the snapshot of the revision, with databases and processes"`
}

// An AppRevision is a state of an app's files.
type AppRevision struct {
	Number    int64       `json:"number" doc:"Number of the revision; 1 has the files of the template" example:"3"`
	Parent    int64       `json:"parent,omitempty" doc:"Number of the previous revision" example:"2"`
	Of        int64       `json:"of,omitempty" doc:"Number of the revision whose files this one has, after a rollback or in a branch" example:"1"`
	From      string      `json:"from,omitempty" doc:"ID of the app that has the revision of, if this is the first revision of a branch" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Message   string      `json:"message" doc:"Message; the first line is a summary" example:"Add a cart"`
	Actor     string      `json:"actor,omitempty" doc:"Key or run that created the revision" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Commit    string      `json:"commit,omitempty" doc:"Commit in the app's git repository"`
	CreatedAt time.Time   `json:"created_at"`
	Changed   []AppChange `json:"changed" doc:"Changes since the previous revision, by path"`

	Snapshot *AppSnapshot `json:"snapshot,omitempty" doc:"ID of the snapshot of the app's sandbox; absent if there is none or it was deleted"`
}

// An AppSnapshot is a copy of an app's sandbox, with its databases and processes.
type AppSnapshot struct {
	ID        string    `json:"id" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Size      Bytes     `json:"size"`
	CreatedAt time.Time `json:"created_at"`
}

// An AppChange is a file that a revision changed.
type AppChange struct {
	Path string `json:"path" example:"src/App.jsx"`
	Op   string `json:"op" enum:"create,write,remove"`
	Size Bytes  `json:"size" doc:"Size now, in bytes"`
}

// AppFiles is a list of files of a revision of an app.
type AppFiles struct {
	Revision  int64     `json:"revision" example:"3"`
	Items     []AppFile `json:"items" doc:"Objects, ordered by path"`
	Truncated bool      `json:"truncated" doc:"The answer lacks the content of some files, because together they have more than 4 MiB"`
}

// An AppFile is a file of an app.
type AppFile struct {
	Path          string  `json:"path" example:"src/App.jsx"`
	Size          Bytes   `json:"size"`
	Mode          Mode    `json:"mode" example:"0644"`
	SHA256        string  `json:"sha256"`
	Since         int64   `json:"since" doc:"Revision that last changed the file" example:"2"`
	Content       *string `json:"content,omitempty" doc:"Content, if it was requested and is UTF-8"`
	ContentBase64 []byte  `json:"content_base64,omitempty" doc:"Content in base64, if it was requested and is not UTF-8"`
}

// AppLogs is the end of the output of an app's server.
type AppLogs struct {
	Text      string     `json:"text"`
	Truncated bool       `json:"truncated" doc:"The log has earlier output that the answer lacks"`
	Mark      string     `json:"mark,omitempty" doc:"Position of the end of the log; send it as after to get later output" example:"5120.prc_7"`
	Faults    []AppFault `json:"faults" doc:"Problems found in the log, each once: errors of the server, and errors reported by browsers that show the page"`
}

// An AppFault is a fault of an app.
type AppFault struct {
	Source string `json:"source" doc:"Source of the problem: server, vite, tsc, check, node, python or browser" example:"browser"`
	Path   string `json:"path,omitempty" example:"src/App.tsx"`
	Line   int    `json:"line,omitempty" doc:"Line in the file, from 1" example:"12"`
	Text   string `json:"text" example:"TypeError: items is undefined"`
}

// An AppStatus is the health of an app.
type AppStatus struct {
	App       App        `json:"app"`
	Healthy   bool       `json:"healthy" doc:"The app's server answered the health check"`
	CheckedAt *time.Time `json:"checked_at,omitempty"`
	Latency   Duration   `json:"latency" doc:"Time until the server answered"`
	Startup   Duration   `json:"startup" doc:"Time from the creation of the sandbox to the first answer"`
	FileTime  Duration   `json:"file_time" doc:"Average time to read or write files of the app"`
	Memory    Bytes      `json:"memory" doc:"Memory that the app's sandbox uses, in bytes"`
	Files     int        `json:"files"`
	CacheHits float64    `json:"cache_hits" doc:"Share of file reads that needed no sandbox" example:"0.9"`
	Errors    float64    `json:"errors" doc:"Share of recent operations that failed; problems in applied text do not count" example:"0.1"`
	Alerts    []AppAlert `json:"alerts" doc:"Alerts whose thresholds are exceeded"`
}

// Types of updates of an app. An error without seq ends the stream.
const (
	AppStateChanged = "state"
	AppStart        = "start"
	AppProgress     = "progress"
	AppWritten      = "file"
	AppPackage      = "package"
	AppCommand      = "command"
	AppLog          = "log"
	AppWarning      = "warning"
	AppDone         = "done"
	AppError        = "error"
	AppRollback     = "rollback"
	AppSnapshotted  = "snapshot"
	AppAlerted      = "alert"
	AppCalmed       = "resolved"
	AppEditBegun    = "edit"
	AppRound        = "round"
	AppOutput       = "output"
	AppProblem      = "problem"
	AppEdited       = "edited"
	AppAttempt      = "attempt"
	AppAttempted    = "attempted"
	AppJudged       = "judged"
)

// An AppUpdate is one item in the stream of an app.
type AppUpdate struct {
	Type     string    `json:"type" enum:"state,start,progress,file,package,command,log,warning,done,error,rollback,snapshot,published,unpublished,alert,resolved,edit,round,output,problem,edited,attempt,attempted,judged,heartbeat"`
	Seq      int64     `json:"seq,omitempty" doc:"Seq of the event, to resume the stream; absent for updates that are not kept: lines of output and text of a model" example:"4711"`
	Time     time.Time `json:"time,omitzero"`
	Apply    int64     `json:"apply,omitempty" doc:"Seq of the event that started the apply to which this update belongs" example:"4711"`
	Edit     int64     `json:"edit,omitempty" doc:"Seq of the event that started the edit to which this update belongs" example:"4700"`
	Step     string    `json:"step,omitempty" doc:"Type progress: parse, packages, write, command, restart, check or snapshot; build for a publication"`
	Text     string    `json:"text,omitempty" doc:"Text for people"`
	Path     string    `json:"path,omitempty" example:"src/App.jsx"`
	Op       string    `json:"op,omitempty" doc:"Type file: the operation" enum:"create,write,remove"`
	Name     string    `json:"name,omitempty" doc:"Name of a package, a command or a metric" example:"lucide-react"`
	Code     int       `json:"code,omitempty" doc:"Exit code of a command"`
	Line     int       `json:"line,omitempty" doc:"Line in the file, from 1"`
	State    string    `json:"state,omitempty" enum:"starting,ready,failed,stopped,removed"`
	Revision int64     `json:"revision,omitempty" doc:"Types done and rollback: the new revision; edited and attempted: the last new revision; published: the published revision; snapshot: the revision with the snapshot" example:"3"`
	Round    int       `json:"round,omitempty" doc:"Type round: number of this answer of the model" example:"1"`
	Rounds   int       `json:"rounds,omitempty" doc:"Types edited and attempted: number of answers of the model" example:"2"`
	Source   string    `json:"source,omitempty" doc:"Type problem: source of the problem: apply, model, vite, tsc, check, node, python or browser" example:"tsc"`
	Cost     float64   `json:"cost,omitempty" doc:"Types edited and attempted: cost of the models, by the node's prices, in their currency" example:"0.02"`
	Error    *Problem  `json:"error,omitempty" doc:"Type error: reason why the apply changed nothing; edited and attempted: remaining problem of the app; without seq: reason why the stream ends"`

	Attempt    int    `json:"attempt,omitempty" doc:"Number of the attempt to which this update belongs, if there are several; judged and edited: the winning attempt" example:"2"`
	Branch     string `json:"branch,omitempty" doc:"Types attempt and attempted: ID of the app with the attempt, whose name is in name" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Model      string `json:"model,omitempty" doc:"Types attempt and attempted: the model" example:"openai:gpt-4o"`
	PreviewURL string `json:"preview_url,omitempty" doc:"Type attempt: URL of the attempt's page, valid until the edit ends" example:"http://5173-app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
}
