package engi

import (
	"context"
	"io"
	"iter"
	"slices"
	"time"
)

// An App is a web application that models write: files with a history, a sandbox
// in which its server runs while it is edited, and a preview. It is a value: a copy of
// the record. This is its life:
//
//  1. [Apps].Create and Branch record an app, which is starting, boot a sandbox and start
//     the app's server in it. They return when the server answers: the app is ready, and
//     its first revision has the files of the template or of the app it branches from.
//     If there is no sandbox and trying again would not help, the record is removed.
//     After another error the app stays, and is failed.
//  2. An app becomes failed when it can get no sandbox, or when its server does not
//     answer even after a restart. Error says why. The next use tries again, and makes
//     it ready.
//  3. One caller at a time works in the sandbox; the others wait. One apply or edit at a
//     time is under way; beginning another reports Conflict. It goes on when its caller
//     leaves. An apply ends with a new revision or changes nothing; an edit is several.
//  4. A sandbox that nobody uses hibernates, and the app stays ready. The next use wakes
//     the sandbox.
//  5. Stop ends an apply or edit, records changes made by hand in the sandbox as a
//     revision if the sandbox answers, and destroys it: the app is stopped. An app whose
//     sandbox is lost is stopped, too. The next use boots another sandbox with the files
//     of the last revision; changes that no revision has are gone.
//  6. The end of the server, also by kill -9, ends an apply or edit. The next server
//     records that end, and puts the files back to the last revision before anybody
//     uses the app. The branches of attempts are removed.
//  7. Remove ends what is under way, destroys the sandbox, and deletes the history and
//     snapshots. The app is NotFound from then on.
//  8. An app with a Directory has its files in that directory of its workspace, and its server runs
//     in the workspace's sandbox, in which sessions, people and other apps work too. Using it starts
//     the workspace. Stop and Remove end the server, and leave the files and the sandbox as they
//     are. Branches, attempts and snapshots of it are Unsupported.
type App struct {
	ID        AppID
	Owner     Owner
	Name      string      // unique per owner
	Template  string      // template of the first revision: vite-react, node-api, fastapi or one of the operator's
	Workspace WorkspaceID // workspace whose services it reaches by name; empty for none
	Directory string      // directory of the workspace with the app's files; empty for an app with a sandbox of its own
	Start     string      // shell command of the server of an app with Directory; empty for other apps
	State     AppState
	Sandbox   SandboxID // empty if the app has no sandbox
	Port      int       // port of the app's server
	Revision  int64     // number of the last revision; 0 before the first
	Applying  int64     // Seq of the event that started the running apply; 0 for none
	Editing   int64     // Seq of the event that started the running edit; 0 for none
	Error     *Error    // reason of state failed; nil otherwise
	Metadata  map[string]string
	Created   time.Time
	Used      time.Time

	Published Publication
	AttemptOf AppID // app whose edit made this branch for an attempt, which is deleted with that edit; empty for other apps
}

// Shows reports whether the preview of the app may show a port of its sandbox. The other ports of a
// workspace's sandbox belong to the workspace.
func (a App) Shows(port int) bool { return a.Directory == "" || port == a.Port }

// An AppState is a point in the life of an app.
type AppState string

const (
	AppStarting AppState = "starting" // the sandbox or the server is starting
	AppReady    AppState = "ready"    // the server answers
	AppFailed   AppState = "failed"   // the server does not answer; Error says why
	AppStopped  AppState = "stopped"  // the app has no sandbox, and gets one when it is used
	AppRemoved  AppState = "removed"  // the app is deleted
)

// nextAppStates lists the states that may follow each state.
var nextAppStates = map[AppState][]AppState{
	AppStarting: {AppReady, AppFailed, AppStopped, AppRemoved},
	AppReady:    {AppStarting, AppFailed, AppStopped, AppRemoved},
	AppFailed:   {AppStarting, AppReady, AppStopped, AppRemoved},
	AppStopped:  {AppStarting, AppRemoved},
}

// To returns the state to if it may follow s, and Conflict if not.
func (s AppState) To(to AppState) (AppState, error) {
	if !slices.Contains(nextAppStates[s], to) {
		return s, Errorf(Conflict, "an app that is %s cannot become %s", s, to)
	}
	return to, nil
}

// AppStates returns every state, in the order of an app's life.
func AppStates() []AppState {
	return []AppState{AppStarting, AppReady, AppFailed, AppStopped, AppRemoved}
}

// An AppSpec asks for an app.
type AppSpec struct {
	Owner       Owner
	Name        string // 1 to 63 letters, digits and dashes; empty means a generated name
	Template    string // empty means vite-react
	Workspace   string `json:",omitzero"` // ID or name of a workspace of the owner, whose services the app reaches by name; empty for none
	Directory   string `json:",omitzero"` // directory of the workspace with the app's files; the server runs in the workspace's sandbox, and Template and Network are empty; empty for a sandbox of the app's own
	Start       string `json:",omitzero"` // shell command that starts the server; required with Directory, empty without
	Port        int    `json:",omitzero"` // port of the server, unique among the apps in the workspace; required with Directory, 0 without
	Replace     bool   // stop the other apps of the owner first, as some clients expect
	Metadata    map[string]string
	Env         map[string]string // environment variables of the sandbox
	Network     NetworkPolicy     // zero allows installing packages and nothing else
	Idempotency string
}

// A BranchSpec asks for an app that starts with the files of another app. It has the
// other app's template, environment, network and metadata.
type BranchSpec struct {
	Viewer      Viewer `json:"Owner"` // stored fingerprints of requests have this name
	App         string // ID or name of the app to copy
	Revision    int64  // number of the revision to copy; 0 means the last one, or, with Snapshot, the last one with a snapshot
	Snapshot    bool   // start from the snapshot of the revision, with databases and processes
	Name        string // as in AppSpec
	Idempotency string
}

// A Revision is a state of an app's files. Numbers count from 1; revision 1 has the
// files of the template.
type Revision struct {
	App     AppID
	Number  int64
	Parent  int64  // number of the previous revision; 0 for the first
	Of      int64  // number of the revision whose files were restored or branched; 0 otherwise
	From    AppID  // app of revision Of, if this is the first revision of a branch; empty otherwise
	Message string // the first line is a summary
	Actor   string // ID of the key or run that made the revision
	Commit  string // commit in the app's git repository
	Created time.Time
	Changed []AppChange // changes since Parent, ordered by path

	Snapshot AppSnapshot // snapshot of the sandbox at this revision; zero if there is none
}

// An AppChange is a file that a revision has changed.
type AppChange struct {
	Path string
	Op   FileOp // create, write or remove
	Size int64  // size after the change, in bytes
}

// An AppFile is a file of an app. Paths are relative, slash-separated and clean.
type AppFile struct {
	Path   string
	Size   int64
	Mode   uint32 // permission bits
	Digest string // SHA-256 of the content
	Since  int64  // number of the revision that last changed the file
}

// An ApplySpec asks to apply a model's text to an app.
type ApplySpec struct {
	Viewer      Viewer
	App         string // ID or name
	Text        string // text of the model with files, packages, commands and edits (see docs/apps.md); at most 8 MiB
	Message     string // message of the revision; empty means one made from the changes
	Actor       string
	Keep        bool   // keep the result even if the app's server does not answer with it; false undoes it
	Snapshot    bool   // take a snapshot with the revision; if the quota has no room for it, the apply has a warning
	Idempotency string // a repeated key of the same owner and app returns the first apply
}

// An EditSpec asks a model to change an app.
type EditSpec struct {
	Viewer      Viewer
	App         string // ID or name
	Prompt      string // prompt for the model; at most 32 KiB
	Model       string // provider:model; empty means the node's default; several, separated by commas, take turns in attempts
	Rounds      int    // maximum number of model answers in each attempt; 0 means 3; at most 10
	MaxCost     int64  // cost limit of all attempts, in millionths of the price table's currency; no model is asked again beyond it; 0 means no limit
	Element     *AppElement
	Actor       string
	Idempotency string // a repeated key of the same owner and app returns the first edit

	Attempts int       // number of parallel attempts, of which one is used; 0 means one for each model; at most 8
	Judge    *AppJudge // nil means that the attempt with the fewest problems wins, then the cheapest
	Keep     bool      // keep the branches of the attempts as apps
}

// An AppJudge compares the successful attempts, by a command or by a model.
type AppJudge struct {
	Command  string // shell command that runs in each attempt; exit code 0 wins, then the highest number on the last line that is not blank
	Model    string // model that compares; empty with Criteria means the node's default
	Criteria string // criteria for the model; at most 8 KiB
}

// An AppElement is an element of an app's page that a prompt is about. Unknown fields
// are empty.
type AppElement struct {
	Selector string
	Text     string
	HTML     string // at most 4 KiB of Selector, Text and HTML together are used
	Path     string // path of the source file with the element
	Line     int
}

// An AppUpdateKind is the kind of an [AppUpdate].
type AppUpdateKind string

const (
	AppStateChanged AppUpdateKind = "state"
	AppApplyBegun   AppUpdateKind = "start"    // an apply starts
	AppProgress     AppUpdateKind = "progress" // a step starts; Step names it
	AppFileWritten  AppUpdateKind = "file"     // a file was changed; Path and Op say which and how
	AppPackage      AppUpdateKind = "package"  // a package was installed or refused; Name is the package
	AppCommand      AppUpdateKind = "command"  // a command of the model has ended; Name is the command, Code its exit code
	AppLog          AppUpdateKind = "log"      // a line of output; not stored
	AppWarning      AppUpdateKind = "warning"  // a part of the text had no effect; Text says why
	AppApplied      AppUpdateKind = "done"     // an apply has ended with the new Revision
	AppApplyFailed  AppUpdateKind = "error"    // an apply has ended and changed nothing
	AppRolledBack   AppUpdateKind = "rollback"
	AppAlerted      AppUpdateKind = "alert"       // Name is the metric
	AppCalmed       AppUpdateKind = "resolved"    // the alert for the metric Name has ended
	AppEditBegun    AppUpdateKind = "edit"        // an edit starts
	AppRound        AppUpdateKind = "round"       // the model is asked; Round is the number of the answer
	AppOutput       AppUpdateKind = "output"      // Text is a piece of the model's answer; not stored
	AppProblem      AppUpdateKind = "problem"     // a problem of the app, which the model sees if it is asked again
	AppEdited       AppUpdateKind = "edited"      // the edit has ended; Error is the remaining problem of the app, Text a summary of the attempts to solve it
	AppAttempt      AppUpdateKind = "attempt"     // one of several attempts starts; Branch, Name, Port and Model describe it
	AppAttempted    AppUpdateKind = "attempted"   // an attempt has ended; Error is its remaining problem, Text a summary
	AppJudged       AppUpdateKind = "judged"      // the attempt numbered Attempt wins; Text says why
	AppPublished    AppUpdateKind = "published"   // a build of Revision is published
	AppUnpublished  AppUpdateKind = "unpublished" // the app is unpublished
	AppSnapshotted  AppUpdateKind = "snapshot"    // a snapshot of Revision was taken
)

// An AppUpdate is one item in the stream of an app.
type AppUpdate struct {
	Seq      int64 // Seq of the event; 0 for updates that are not stored
	Time     time.Time
	Kind     AppUpdateKind
	Apply    int64  // Seq of the event that started the apply; 0 outside of applies
	Edit     int64  // Seq of the event that started the edit; 0 outside of edits
	Step     string // parse, packages, write, command, restart, check or snapshot; build for a publication
	Text     string // for people
	Path     string
	Op       FileOp
	Name     string
	Code     int
	Line     int // in the file Path, from 1; 0 if unknown
	State    AppState
	Revision int64  // number of the new revision; for AppEdited the last one of the edit, 0 for none
	Round    int    // for AppRound the number of the answer, from 1; for AppEdited and AppAttempted the number of answers
	Source   string // for AppProblem its source: apply, model, vite, tsc, check, node, python or browser
	Cost     int64  // for AppEdited and AppAttempted the cost of the models, in millionths of the price table's currency
	Error    *Error

	Attempt int    // number of the attempt, from 1; for AppEdited the winner; 0 for none
	Branch  AppID  // for AppAttempt the app with the attempt, whose name is Name and whose server listens on Port
	Port    int    // see Branch
	Model   string // for AppAttempt the model
}

// AppLogs is a piece of the output of an app's server.
type AppLogs struct {
	Text      string
	Truncated bool   // the log has earlier output
	Mark      string // position of the end, for AppRunner.Logs; empty if there is no output
	Faults    []AppFault
}

// An AppFault is a problem of an app.
type AppFault struct {
	Source string // server, vite, tsc, check, node, python or browser
	Path   string // path of the file with the problem; empty if it is unknown
	Line   int    // from 1; 0 for unknown
	Text   string
}

// AppStatus is the health of an app.
type AppStatus struct {
	App       App
	Healthy   bool          // the server answered the last check
	Checked   time.Time     // time of the last check
	Latency   time.Duration // time until the server answered
	Startup   time.Duration // time from the creation of the sandbox to the first answer
	FileTime  time.Duration // average time to read or write a file in the sandbox
	Memory    int64         // memory of the sandbox, in bytes
	Files     int           // number of tracked files
	CacheHits float64       // share of file reads that needed no sandbox; 0 before the first
	Errors    float64       // share of recent operations that failed; problems in applied text do not count
	Alerts    []AppAlert
}

// Apps writes applications, runs them and keeps their history. Methods find only objects that
// viewer sees and report NotFound for all others. It is safe for concurrent use.
type Apps interface {
	AppRunner
	AppWriter
	AppEditor
	AppInspector
	AppHistory
	AppSnapshotter
	AppPublisher
}

// An AppRunner runs apps; see [Apps].
type AppRunner interface {
	// Create records an app and returns once its page is served. It reports Conflict
	// for a name that is taken and NotFound for an unknown template. If the server does
	// not start, the app exists in state failed.
	Create(ctx context.Context, spec AppSpec) (App, error)
	// Get returns an app by ID or name.
	Get(ctx context.Context, viewer Viewer, app string) (App, error)
	// List returns apps, newest first.
	List(ctx context.Context, viewer Viewer, p Paging) ([]App, error)
	// Open returns an app once it has a sandbox whose server answers. It creates a new
	// sandbox from the last revision if the old one is lost.
	Open(ctx context.Context, viewer Viewer, app string) (App, error)
	// Stop destroys the sandbox. Files and history stay.
	Stop(ctx context.Context, viewer Viewer, app string) error
	// Remove deletes an app with its history.
	Remove(ctx context.Context, viewer Viewer, app string) error
	// Logs returns the end of the server's log, at most max bytes, and the problems found
	// in it. After a mark it returns later output only; the empty mark, and a mark of a
	// server that has ended, mean all output.
	Logs(ctx context.Context, viewer Viewer, app, after string, max int) (AppLogs, error)
	// Status checks the server's health now.
	Status(ctx context.Context, viewer Viewer, app string) (AppStatus, error)
}

// An AppWriter changes apps; see [Apps].
type AppWriter interface {
	// Apply starts to apply a text and returns the Seq of the event that starts it;
	// Watch follows it. The apply continues after ctx ends. Either the whole text is
	// applied, in one revision, or nothing changes, even if the node is killed
	// meanwhile. It reports Conflict while another apply is running.
	Apply(ctx context.Context, spec ApplySpec) (seq int64, err error)
	// Watch yields the updates of an app after seq, until ctx ends or the app is
	// removed.
	Watch(ctx context.Context, viewer Viewer, app string, seq int64) iter.Seq2[AppUpdate, error]
	// Cancel ends a running apply, which then changes nothing, or a running edit,
	// whose finished applies stay.
	Cancel(ctx context.Context, viewer Viewer, app string) error
	// Rollback creates a new revision with the files of an earlier one, and
	// returns it once the server answers.
	Rollback(ctx context.Context, viewer Viewer, app string, revision int64) (Revision, error)
	// Branch creates an app whose first revision has the files of another app's
	// revision, and returns as Create does.
	Branch(ctx context.Context, spec BranchSpec) (App, error)
}

// An AppEditor changes apps with models; see [Apps].
type AppEditor interface {
	// Edit starts an edit of an app by a model and returns the Seq of the event that
	// starts it; Watch follows it. The edit continues after ctx ends. It applies the
	// model's text and reports problems back to the model, until the app has none or
	// a limit is reached. Each round is an apply of its own. With several
	// attempts, the files of the winner are applied in one apply, if any succeeded. It
	// reports Conflict while another change is running, and Unsupported if the node has no
	// model.
	Edit(ctx context.Context, spec EditSpec) (seq int64, err error)
}

// AppHistory reads the revisions of apps; see [Apps]. It needs no sandbox.
type AppHistory interface {
	// Revisions returns the revisions, newest first.
	Revisions(ctx context.Context, viewer Viewer, app string, p Paging) ([]Revision, error)
	// Diff returns the unified diff between two revisions; from 0 is the parent of to,
	// and to 0 the last one.
	Diff(ctx context.Context, viewer Viewer, app string, from, to int64) (string, error)
	// Files returns the files of a revision, ordered by path; 0 is the last one.
	Files(ctx context.Context, viewer Viewer, app string, revision int64) ([]AppFile, error)
	// File opens a file of a revision; 0 is the last one. The caller closes it.
	File(ctx context.Context, viewer Viewer, app, path string, revision int64) (io.ReadCloser, error)
	// Manifest returns the manifest of a revision; 0 is the last one.
	Manifest(ctx context.Context, viewer Viewer, app string, revision int64) (AppManifest, error)
	// Zip writes the files of a revision as an archive; 0 is the last one.
	Zip(ctx context.Context, viewer Viewer, app string, revision int64, w io.Writer) error
}
