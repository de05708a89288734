package engi

import (
	"context"
	"io"
	"iter"
	"slices"
	"time"
)

// An App is a web application that models write: files with a history, a sandbox
// in which its server runs while it is written, and a preview. It is a value: a copy of
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
type App struct {
	ID       AppID
	Owner    Owner
	Name     string // unique per owner
	Template string // that it began from: vite-react, node-api, fastapi or one of the operator's
	State    AppState
	Sandbox  SandboxID // empty if it has none
	Port     int       // that its server listens on
	Revision int64     // number of the last revision; 0 before the first
	Applying int64     // Seq of the event with which the apply under way began; 0 for none
	Editing  int64     // the same of the edit by a model that is under way
	Error    *Error    // why it is failed; nil otherwise
	Metadata map[string]string
	Created  time.Time
	Used     time.Time

	Published Publication
	AttemptOf AppID // the app that an edit changes of which this branch is an attempt, and goes with it; empty for other apps
}

// An AppState is a point in the life of an app.
type AppState string

const (
	AppStarting AppState = "starting" // its sandbox or its server starts
	AppReady    AppState = "ready"    // its server answers
	AppFailed   AppState = "failed"   // its server does not answer; Error says why
	AppStopped  AppState = "stopped"  // it has no sandbox, and gets one when it is used
	AppRemoved  AppState = "removed"  // it is gone
)

// nextAppStates lists the states that may follow each state.
var nextAppStates = map[AppState][]AppState{
	AppStarting: {AppReady, AppFailed, AppStopped, AppRemoved},
	AppReady:    {AppStarting, AppFailed, AppStopped, AppRemoved},
	AppFailed:   {AppStarting, AppReady, AppStopped, AppRemoved},
	AppStopped:  {AppStarting, AppRemoved},
}

// To returns to if that state may follow s, else Conflict.
func (s AppState) To(to AppState) (AppState, error) {
	if !slices.Contains(nextAppStates[s], to) {
		return s, Errorf(Conflict, "an app that is %s cannot become %s", s, to)
	}
	return to, nil
}

// AppStates returns every state in the order of a life.
func AppStates() []AppState {
	return []AppState{AppStarting, AppReady, AppFailed, AppStopped, AppRemoved}
}

// An AppSpec asks for an app.
type AppSpec struct {
	Owner       Owner
	Name        string // 1 to 63 letters, digits and dashes; empty for one made up
	Template    string // empty means vite-react
	Replace     bool   // stop the other apps of the owner first, as some clients expect
	Metadata    map[string]string
	Env         map[string]string // of its sandbox
	Network     NetworkPolicy     // zero means that packages can be installed and nothing else is reached
	Idempotency string
}

// A BranchSpec asks for an app that begins with the files of another one. It has the
// same template, environment, network and metadata.
type BranchSpec struct {
	Owner       Owner
	App         string // ID or name of the other one
	Revision    int64  // 0 is the last one, or the last that has a snapshot
	Snapshot    bool   // begin with the snapshot of that revision, databases and processes included
	Name        string // as in AppSpec
	Idempotency string
}

// A Revision is a state of an app's files. Numbers count from 1, which is what the
// template has.
type Revision struct {
	App     AppID
	Number  int64
	Parent  int64  // the one before; 0 for the first
	Of      int64  // the one whose files these are again, after a rollback or in a branch; 0 otherwise
	From    AppID  // whose revision Of is, if that is another app's: this is the first of a branch
	Message string // its first line is a summary
	Actor   string // who made it
	Commit  string // in the git repository of the app
	Created time.Time
	Changed []AppChange // against Parent, by path

	Snapshot AppSnapshot // of the sandbox as it was then; zero if there is none
}

// An AppChange is a file that a revision has changed.
type AppChange struct {
	Path string
	Op   FileOp // create, write or remove
	Size int64  // bytes now
}

// An AppFile is a file of an app. Paths are relative, slash-separated and clean.
type AppFile struct {
	Path   string
	Size   int64
	Mode   uint32 // permission bits
	Digest string // sha256 of the content
	Since  int64  // number of the revision that has made it what it is
}

// An ApplySpec asks to apply what a model has written to an app.
type ApplySpec struct {
	Owner       Owner
	App         string // ID or name
	Text        string // of the model: files, packages, commands, edits; see docs/apps.md; 8 MiB at most
	Message     string // of the revision; empty means one made from what changes
	Actor       string
	Keep        bool   // keep the result even if the server does not answer with it; else it is undone
	Snapshot    bool   // keep a snapshot with the revision; that there is none for lack of room is a warning
	Idempotency string // a repeated key of the same owner and app returns the first apply
}

// An EditSpec asks a model to change an app.
type EditSpec struct {
	Owner       Owner
	App         string // ID or name
	Prompt      string // what is to become of it; 32 KiB at most
	Model       string // provider:model; empty means the node's default; several of attempts, with commas between, take turns
	Rounds      int    // answers of the model at most, in each attempt; 0 means 3, 10 is the most
	MaxCost     int64  // of all attempts, in millionths of the price table's currency, after which no model is asked again; 0 means no limit
	Element     *AppElement
	Actor       string
	Idempotency string // a repeated key of the same owner and app returns the first edit

	Attempts int       // that are made side by side, of which one is taken; 0 means one of each model, 8 is the most
	Judge    *AppJudge // nil means that the one with the fewest problems is taken, then the one that has cost least
	Keep     bool      // the branches in which the attempts are made stay, as apps of their own
}

// An AppJudge says how attempts that are well are compared: by a command or by a model.
type AppJudge struct {
	Command  string // run by the shell in each; exit code 0 wins, then the highest number on the last line that is not blank
	Model    string // that is asked; empty with criteria means the node's default
	Criteria string // that it is told; 8 KiB at most
}

// An AppElement is a part of an app's page that a prompt is about. What is not known is
// empty.
type AppElement struct {
	Selector string
	Text     string
	HTML     string // at most 4 KiB of all this are looked at
	Path     string // of the file that has it
	Line     int
}

// An AppUpdateKind tells what happens to an app apart.
type AppUpdateKind string

const (
	AppStateChanged AppUpdateKind = "state"
	AppApplyBegun   AppUpdateKind = "start"    // an apply begins
	AppProgress     AppUpdateKind = "progress" // a step begins, with Step
	AppFileWritten  AppUpdateKind = "file"     // a file is in place, with Path and Op
	AppPackage      AppUpdateKind = "package"  // a package was installed or refused, with Name
	AppCommand      AppUpdateKind = "command"  // a command of the model has ended, with Name and Code
	AppLog          AppUpdateKind = "log"      // a line of output; not kept
	AppWarning      AppUpdateKind = "warning"  // something of the text had no effect, with the reason
	AppApplied      AppUpdateKind = "done"     // an apply has ended and Revision has it
	AppApplyFailed  AppUpdateKind = "error"    // an apply has ended and changed nothing
	AppRolledBack   AppUpdateKind = "rollback"
	AppAlerted      AppUpdateKind = "alert"       // Name is the metric
	AppCalmed       AppUpdateKind = "resolved"    // the alert about Name has ended
	AppEditBegun    AppUpdateKind = "edit"        // a model begins to change the app
	AppRound        AppUpdateKind = "round"       // it is asked, for the time that Round says
	AppOutput       AppUpdateKind = "output"      // a piece of what it writes, in Text; not kept
	AppProblem      AppUpdateKind = "problem"     // something is wrong with the app, and the model is told if it is asked again
	AppEdited       AppUpdateKind = "edited"      // the edit has ended: Error says why the app is not well, Text what was tried
	AppAttempt      AppUpdateKind = "attempt"     // one of several attempts begins, with Branch, Name, Port and Model
	AppAttempted    AppUpdateKind = "attempted"   // it has ended: Error says why it is not well, Text what was tried
	AppJudged       AppUpdateKind = "judged"      // Attempt is taken, and Text says why
	AppPublished    AppUpdateKind = "published"   // a build of Revision is served
	AppUnpublished  AppUpdateKind = "unpublished" // it is not served any more
	AppSnapshotted  AppUpdateKind = "snapshot"    // a snapshot of Revision was made
)

// An AppUpdate is one item in the stream of an app.
type AppUpdate struct {
	Seq      int64 // of its event; 0 for what is not kept
	Time     time.Time
	Kind     AppUpdateKind
	Apply    int64  // Seq of the event with which the apply began; 0 for what is not of one
	Edit     int64  // Seq of the event with which the edit began; 0 for what is not of one
	Step     string // parse, packages, write, command, restart, check, snapshot; build of a publication
	Text     string // for people
	Path     string
	Op       FileOp
	Name     string
	Code     int
	Line     int // in the file Path, from 1; 0 if unknown
	State    AppState
	Revision int64  // that was made; of AppEdited the last one that the edit has made, 0 for none
	Round    int    // of AppRound, from 1; of AppEdited and AppAttempted how many there were
	Source   string // of AppProblem: apply, model, vite, tsc, check, node, python or browser
	Cost     int64  // of AppEdited and AppAttempted: of the models, in millionths of the price table's currency
	Error    *Error

	Attempt int    // that it is of, from 1; of AppEdited the one that was taken; 0 for none
	Branch  AppID  // of AppAttempt: the app in which it is made, called Name, whose page is at Port
	Port    int    // see Branch
	Model   string // of AppAttempt
}

// AppLogs is a piece of the output of an app's server.
type AppLogs struct {
	Text      string
	Truncated bool   // there was more before
	Mark      string // where it ends, see [Apps]; empty if there is no output
	Faults    []AppFault
}

// An AppFault is something that is wrong with an app.
type AppFault struct {
	Source string // server, vite, tsc, check, node, python or browser
	Path   string // of the file that has it; empty if that is not known
	Line   int    // from 1; 0 for unknown
	Text   string
}

// AppStatus says how an app does.
type AppStatus struct {
	App       App
	Healthy   bool          // its server answered the last check
	Checked   time.Time     // of the last check
	Latency   time.Duration // of its answer
	Startup   time.Duration // from creation of its sandbox to the first answer
	FileTime  time.Duration // that reading or writing its files in the sandbox takes, on average
	Memory    int64         // bytes that its sandbox uses
	Files     int           // that are tracked
	CacheHits float64       // share of reads of files that needed no sandbox; 0 before the first
	Errors    float64       // share of failed operations among the last ones; faults of what was applied are none
	Alerts    []AppAlert
}

// Apps writes applications, runs them and keeps their history. Its methods see only
// what owner owns; the rest is NotFound. The empty owner sees all. It is safe for
// concurrent use.
type Apps interface {
	AppRunner
	AppWriter
	AppEditor
	AppInspector
	AppHistory
	AppSnapshotter
	AppPublisher
}

// An AppRunner has apps served; see [Apps].
type AppRunner interface {
	// Create records an app and returns once its page is served. It reports Conflict
	// for a name that is taken and NotFound for an unknown template. If its server does
	// not start, the app is there, and failed.
	Create(ctx context.Context, spec AppSpec) (App, error)
	// Get returns an app by ID or name.
	Get(ctx context.Context, owner Owner, app string) (App, error)
	// List returns the newest first.
	List(ctx context.Context, owner Owner, p Paging) ([]App, error)
	// Open returns an app once it has a sandbox whose server answers. It makes a new
	// sandbox from the last revision if the old one is lost.
	Open(ctx context.Context, owner Owner, app string) (App, error)
	// Stop destroys the sandbox. Files and history stay.
	Stop(ctx context.Context, owner Owner, app string) error
	// Remove deletes an app with its history.
	Remove(ctx context.Context, owner Owner, app string) error
	// Logs returns the end of what the server has printed, of at most max bytes, and what
	// is wrong according to that. After a mark it is what came since; the empty one, and one
	// of a server that is gone, mean all.
	Logs(ctx context.Context, owner Owner, app, after string, max int) (AppLogs, error)
	// Status checks the server now.
	Status(ctx context.Context, owner Owner, app string) (AppStatus, error)
}

// An AppWriter changes apps; see [Apps].
type AppWriter interface {
	// Apply begins to apply a text and returns the Seq of the event with which that
	// begins; Watch shows the rest. It goes on when ctx ends. Either the whole text is
	// applied, in one revision, or nothing changes, also when the node is killed in
	// between. It reports Conflict while another apply is under way.
	Apply(ctx context.Context, spec ApplySpec) (seq int64, err error)
	// Watch yields what happens to an app after seq, until ctx ends or the app is
	// removed.
	Watch(ctx context.Context, owner Owner, app string, seq int64) iter.Seq2[AppUpdate, error]
	// Cancel ends an apply that is under way, which then changes nothing, or an edit,
	// whose applies that have ended stay.
	Cancel(ctx context.Context, owner Owner, app string) error
	// Rollback makes the files those of an earlier revision, as a new revision, and
	// returns it once the server answers.
	Rollback(ctx context.Context, owner Owner, app string, revision int64) (Revision, error)
	// Branch makes an app whose first revision has the files of a revision of another
	// one, and returns as Create does.
	Branch(ctx context.Context, spec BranchSpec) (App, error)
}

// An AppEditor has models change apps; see [Apps].
type AppEditor interface {
	// Edit begins to have a model change an app and returns the Seq of the event with
	// which that begins; Watch shows the rest. It goes on when ctx ends. What the model
	// writes is applied, and what is wrong then goes back to it, until the app is well or
	// a bound is reached. Each apply is one of its own, as Apply makes it. Of several
	// attempts, the files of one become those of the app, in one apply, if any is well. It
	// reports Conflict while something else changes the app, and Unsupported if there is no
	// model.
	Edit(ctx context.Context, spec EditSpec) (seq int64, err error)
}

// AppHistory has the revisions of apps; see [Apps]. No sandbox is needed for it.
type AppHistory interface {
	// Revisions returns the history, the newest first.
	Revisions(ctx context.Context, owner Owner, app string, p Paging) ([]Revision, error)
	// Diff returns the unified diff between two revisions; from 0 is the parent of to,
	// and to 0 the last one.
	Diff(ctx context.Context, owner Owner, app string, from, to int64) (string, error)
	// Files returns the files of a revision, by path; 0 is the last one.
	Files(ctx context.Context, owner Owner, app string, revision int64) ([]AppFile, error)
	// File opens a file of a revision; 0 is the last one. The caller closes it.
	File(ctx context.Context, owner Owner, app, path string, revision int64) (io.ReadCloser, error)
	// Manifest returns what a revision consists of; 0 is the last one.
	Manifest(ctx context.Context, owner Owner, app string, revision int64) (AppManifest, error)
	// Zip writes the files of a revision as an archive; 0 is the last one.
	Zip(ctx context.Context, owner Owner, app string, revision int64, w io.Writer) error
}
