package v1

import "time"

// An AppRequest asks for an app.
type AppRequest struct {
	Name     string            `json:"name,omitempty" maxLength:"63" doc:"1 to 63 letters, digits and dashes, unique per owner; absent means one made up" example:"shop"`
	Template string            `json:"template,omitempty" maxLength:"200" doc:"absent means vite-react" example:"vite-react"`
	Replace  bool              `json:"replace,omitempty" doc:"stop the caller's other apps first"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"up to 64 entries"`
	Env      map[string]string `json:"env,omitempty" doc:"of every program in it"`
	Network  *NetworkPolicy    `json:"network,omitempty" doc:"what it reaches; absent means that packages can be installed and nothing else is reached"`
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
	ID         string            `json:"id" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner      string            `json:"owner,omitempty"`
	Name       string            `json:"name" example:"shop"`
	Template   string            `json:"template" example:"vite-react"`
	State      string            `json:"state" enum:"starting,ready,failed,stopped,removed"`
	SandboxID  string            `json:"sandbox_id,omitempty" doc:"in which its server runs; absent while it is stopped" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Port       int               `json:"port,omitempty" doc:"that its server listens on" example:"5173"`
	PreviewURL string            `json:"preview_url,omitempty" doc:"where its page is; absent while it is stopped" example:"http://5173-app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
	Revision   int64             `json:"revision" doc:"number of the last one; 0 before the first" example:"3"`
	Applying   int64             `json:"applying,omitempty" doc:"seq of the event with which the apply under way began" example:"4711"`
	Editing    int64             `json:"editing,omitempty" doc:"the same of the edit by a model that is under way" example:"4711"`
	Error      *Problem          `json:"error,omitempty" doc:"why it is failed"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	UsedAt     *time.Time        `json:"used_at,omitempty"`
	Published  *AppPublication   `json:"published,omitempty" doc:"the build that is served without a sandbox"`
	AttemptOf  string            `json:"attempt_of,omitempty" doc:"ID of the app that an edit changes, if this is a branch for one of its attempts, which goes when that ends" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
}

// An ApplyRequest asks to apply what a model has written to an app.
type ApplyRequest struct {
	Text    string `json:"text" doc:"what the model has written, 8 MiB at most: files, edits, packages, commands" example:"<file path=\"src/App.jsx\">export default function App() { return <h1>Hello</h1> }</file>"`
	Message string `json:"message,omitempty" maxLength:"200" doc:"of the revision, a line; absent means one made from what changes"`
	Keep    bool   `json:"keep,omitempty" doc:"keep the result even if the server does not answer with it; else it is undone"`

	Snapshot bool `json:"snapshot,omitempty" doc:"keep a snapshot with the revision; if there is no room for one, that is a warning"`
}

// An Applying is an apply that has begun.
type Applying struct {
	Seq int64 `json:"seq" doc:"of its event; the stream of the app after it shows the rest" example:"4711"`
}

// An EditRequest asks a model to change an app.
type EditRequest struct {
	Prompt    string      `json:"prompt" doc:"what is to become of it, 32 KiB at most" example:"Add a cart that keeps what is in it"`
	Model     string      `json:"model,omitempty" maxLength:"2000" doc:"absent means the default of the node; several, with commas between, take turns in attempts" example:"openai:gpt-4o"`
	MaxRounds int         `json:"max_rounds,omitempty" minimum:"1" maximum:"10" doc:"answers of the model at most, in each attempt; absent means 3" example:"3"`
	MaxCost   float64     `json:"max_cost,omitempty" minimum:"0" doc:"of all attempts, after which no model is asked again, by the node's prices, in their currency; absent means no limit" example:"0.5"`
	Element   *AppElement `json:"element,omitempty" doc:"part of the page that the prompt is about"`
	Attempts  int         `json:"attempts,omitempty" minimum:"1" maximum:"8" doc:"that are made side by side, of which the best is taken; absent means one for each model" example:"3"`
	Judge     *AppJudge   `json:"judge,omitempty" doc:"who compares the attempts that are well; absent means that the one with the fewest problems is taken, then the cheapest"`
	Keep      bool        `json:"keep_attempts,omitempty" doc:"the branches in which the attempts were made stay, as apps of their own"`
}

// An AppJudge compares attempts: a command or a model.
type AppJudge struct {
	Command  string `json:"command,omitempty" maxLength:"4096" doc:"run by the shell in each: exit code 0 wins, then the highest number that stands alone on the last line" example:"npm test"`
	Model    string `json:"model,omitempty" maxLength:"200" doc:"that is asked; absent with criteria means the default of the node" example:"openai:gpt-4o"`
	Criteria string `json:"criteria,omitempty" maxLength:"8192" doc:"by which the model compares" example:"The plainest code wins"`
}

// An AppElement is a part of an app's page.
type AppElement struct {
	Selector string `json:"selector,omitempty" maxLength:"2000" example:"main > h1"`
	Text     string `json:"text,omitempty" maxLength:"4096" example:"Nothing here yet"`
	HTML     string `json:"html,omitempty" maxLength:"16384"`
	Path     string `json:"path,omitempty" maxLength:"512" doc:"of the file that has it" example:"src/App.tsx"`
	Line     int    `json:"line,omitempty" minimum:"1"`
}

// A RollbackRequest makes the files of an app those of an earlier revision.
type RollbackRequest struct {
	Revision int64 `json:"revision,omitempty" minimum:"1" doc:"absent means the one before the last, or with snapshot the last that has one" example:"2"`
	Snapshot bool  `json:"snapshot,omitempty" doc:"make everything what it was then, databases and processes included"`
}

// An AppRevision is a state of an app's files.
type AppRevision struct {
	Number    int64       `json:"number" doc:"from 1, which is what the template has" example:"3"`
	Parent    int64       `json:"parent,omitempty" doc:"the one before" example:"2"`
	Of        int64       `json:"of,omitempty" doc:"the one whose files these are again, after a rollback or in a branch" example:"1"`
	From      string      `json:"from,omitempty" doc:"ID of the app whose revision of is, if this is the first of a branch" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Message   string      `json:"message" doc:"its first line is a summary" example:"Add a cart"`
	Actor     string      `json:"actor,omitempty" doc:"who made it" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Commit    string      `json:"commit,omitempty" doc:"in the git repository of the app"`
	CreatedAt time.Time   `json:"created_at"`
	Changed   []AppChange `json:"changed" doc:"against the one before, by path"`

	Snapshot *AppSnapshot `json:"snapshot,omitempty" doc:"of its sandbox; absent if there is none, or none any more"`
}

// An AppSnapshot is a copy of an app's sandbox, with its databases and processes.
type AppSnapshot struct {
	ID        string    `json:"id" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Size      Bytes     `json:"size"`
	CreatedAt time.Time `json:"created_at"`
}

// An AppChange is a file that a revision has changed.
type AppChange struct {
	Path string `json:"path" example:"src/App.jsx"`
	Op   string `json:"op" enum:"create,write,remove"`
	Size Bytes  `json:"size" doc:"now"`
}

// AppFiles are files of a revision of an app.
type AppFiles struct {
	Revision  int64     `json:"revision" example:"3"`
	Items     []AppFile `json:"items" doc:"by path"`
	Truncated bool      `json:"truncated" doc:"the content of some was asked for and is left out, because there is more than an answer has: 4 MiB"`
}

// An AppFile is a file of an app.
type AppFile struct {
	Path          string  `json:"path" example:"src/App.jsx"`
	Size          Bytes   `json:"size"`
	Mode          Mode    `json:"mode" example:"0644"`
	SHA256        string  `json:"sha256"`
	Since         int64   `json:"since" doc:"revision that has made it what it is" example:"2"`
	Content       *string `json:"content,omitempty" doc:"if it was asked for and is UTF-8"`
	ContentBase64 []byte  `json:"content_base64,omitempty" doc:"if it was asked for and is not UTF-8"`
}

// AppLogs are the end of what the server of an app has printed.
type AppLogs struct {
	Text      string     `json:"text"`
	Truncated bool       `json:"truncated" doc:"there was more before"`
	Mark      string     `json:"mark,omitempty" doc:"where it ends: with after, the answer has what came since" example:"5120.prc_7"`
	Faults    []AppFault `json:"faults" doc:"what is wrong according to it, each once: errors of the server, and what browsers that show the page have reported to it"`
}

// An AppFault is something that is wrong with an app.
type AppFault struct {
	Source string `json:"source" doc:"who says so: server, vite, tsc, check, node, python or browser" example:"browser"`
	Path   string `json:"path,omitempty" example:"src/App.tsx"`
	Line   int    `json:"line,omitempty" doc:"in the file path, from 1" example:"12"`
	Text   string `json:"text" example:"TypeError: items is undefined"`
}

// An AppStatus says how an app does.
type AppStatus struct {
	App       App        `json:"app"`
	Healthy   bool       `json:"healthy" doc:"its server answered"`
	CheckedAt *time.Time `json:"checked_at,omitempty"`
	Latency   Duration   `json:"latency" doc:"of its answer"`
	Startup   Duration   `json:"startup" doc:"from the creation of its sandbox to the first answer"`
	FileTime  Duration   `json:"file_time" doc:"that reading or writing its files takes, on average"`
	Memory    Bytes      `json:"memory" doc:"that its sandbox uses"`
	Files     int        `json:"files"`
	CacheHits float64    `json:"cache_hits" doc:"share of reads of files that needed no sandbox" example:"0.9"`
	Errors    float64    `json:"errors" doc:"share of failed operations among the last ones; faults of what was applied are none" example:"0.1"`
	Alerts    []AppAlert `json:"alerts" doc:"thresholds that it is beyond"`
}

// Types of updates of an app. An error without seq is the end of the stream.
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
	Seq      int64     `json:"seq,omitempty" doc:"of its event, to come back to; absent for what is not kept: lines of output, and what a model writes" example:"4711"`
	Time     time.Time `json:"time,omitzero"`
	Apply    int64     `json:"apply,omitempty" doc:"seq of the event with which the apply began that this is of" example:"4711"`
	Edit     int64     `json:"edit,omitempty" doc:"seq of the event with which the edit by a model began that this is of" example:"4700"`
	Step     string    `json:"step,omitempty" doc:"of progress: parse, packages, write, command, restart, check or snapshot, or build of a publication"`
	Text     string    `json:"text,omitempty" doc:"for people"`
	Path     string    `json:"path,omitempty" example:"src/App.jsx"`
	Op       string    `json:"op,omitempty" doc:"of file" enum:"create,write,remove"`
	Name     string    `json:"name,omitempty" doc:"of a package, a command or a metric" example:"lucide-react"`
	Code     int       `json:"code,omitempty" doc:"exit code of a command"`
	Line     int       `json:"line,omitempty" doc:"in the file path, from 1"`
	State    string    `json:"state,omitempty" enum:"starting,ready,failed,stopped,removed"`
	Revision int64     `json:"revision,omitempty" doc:"of done and rollback: the one that was made; of edited: the last one that was; of attempted: the same in its branch; of published: the one that was built; of snapshot: the one that has it" example:"3"`
	Round    int       `json:"round,omitempty" doc:"of round: how often the model is asked now" example:"1"`
	Rounds   int       `json:"rounds,omitempty" doc:"of edited and attempted: how often it was asked" example:"2"`
	Source   string    `json:"source,omitempty" doc:"of problem, who says so: apply, model, vite, tsc, check, node, python or browser" example:"tsc"`
	Cost     float64   `json:"cost,omitempty" doc:"of edited and attempted: of the models, by the node's prices, in their currency" example:"0.02"`
	Error    *Problem  `json:"error,omitempty" doc:"of error: why the apply changed nothing; of edited and attempted: why the app is not well; without seq, why the stream ends"`

	Attempt    int    `json:"attempt,omitempty" doc:"that this is of, if there are several; of judged and edited: the one that was taken" example:"2"`
	Branch     string `json:"branch,omitempty" doc:"of attempt and attempted: ID of the app in which it is made, called name" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Model      string `json:"model,omitempty" doc:"of attempt and attempted" example:"openai:gpt-4o"`
	PreviewURL string `json:"preview_url,omitempty" doc:"of attempt: where its page is, until the edit ends" example:"http://5173-app-u2dmwmlezjgprkqrgppgcz2mgu.localhost:7777/"`
}
