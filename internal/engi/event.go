package engi

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"time"
)

// An Event says that something has happened. Every change of a record appends
// one in the transaction that changes the record, so the log and the records
// never disagree; callers append their own with [Functions.Send]. An event is
// immutable; it is a value.
type Event struct {
	// Seq is the event's position in the log. Positions ascend in the order of
	// the commits and are never reused; there may be gaps.
	Seq     int64
	ID      EventID
	Owner   Owner  // whose subject it is about; empty for the node's own
	Subject string // ID of what it is about; the event's own ID if it is about nothing else
	Prev    int64  // Seq of the event before it about the same subject; 0 for the first
	Type    string // one of EventTypes, or what its sender chose
	Time    time.Time
	Actor   string          // who caused it: a key, a run or a function run by ID; empty for the node itself
	Replay  EventID         // the event that it repeats; empty for none
	Data    json.RawMessage // an object; what is in it depends on Type
}

// NoEvents expects that there is no event about the subject yet, in
// [EventSpec.Expect].
const NoEvents int64 = -1

// An EventSpec is an event to be appended.
type EventSpec struct {
	ID          EventID // empty means a fresh one
	Owner       Owner
	Subject     string          // empty means the event's own ID
	Type        string          // 1 to 128 letters, digits and /._-, beginning with a letter or digit
	Actor       string          // empty means that of the context, see [WithActor]
	Replay      EventID         // see [Event.Replay]
	Data        json.RawMessage // an object of 256 KiB at most; nil means {}
	Expect      int64           // Seq of the last event about Subject, or NoEvents; 0 accepts any
	Idempotency string          // for [Functions.Send]: a repeated key of the same owner returns the first event and starts nothing
}

// Types of the events that engi appends itself. The data of each is described
// in docs/events.md.
const (
	EventExecutionQueued  = "execution.queued"
	EventExecutionRunning = "execution.running"
	EventExecutionDone    = "execution.done"
	EventExecutionRefused = "execution.refused"

	EventSandboxPrefix      = "sandbox." // followed by the state that an owner's sandbox has entered
	EventSandboxUpdated     = "sandbox.updated"
	EventSandboxSnapshotted = "sandbox.snapshotted" // a snapshot of it was made; the snapshot has an event of its own

	EventSnapshotCreated = "snapshot.created"
	EventSnapshotRemoved = "snapshot.removed"

	EventVolumeCreated  = "volume.created"
	EventVolumeAttached = "volume.attached"
	EventVolumeDetached = "volume.detached"
	EventVolumeRemoved  = "volume.removed"

	EventSessionCreated     = "session.created"
	EventSessionStarted     = "session.started"  // it has a sandbox now
	EventSessionReleased    = "session.released" // it has none any more
	EventSessionTerminated  = "session.terminated"
	EventSessionBooting     = "session.booting"
	EventSessionSuspended   = "session.suspended"
	EventSessionHibernated  = "session.hibernated"
	EventSessionResumed     = "session.resumed"
	EventSessionAttached    = "session.attached"
	EventSessionDetached    = "session.detached"
	EventSessionSaved       = "session.saved"
	EventSessionRestored    = "session.restored"
	EventSessionSaveFailed  = "session.save_failed"
	EventSessionGitCloned   = "session.git_cloned"
	EventSessionGitPushed   = "session.git_pushed"
	EventSessionGitConflict = "session.git_conflict" // it was pushed to a new branch
	EventSessionGitFailed   = "session.git_failed"   // what should have been pushed on release was not

	EventTerminalCreated  = "terminal.created"
	EventTerminalEnded    = "terminal.ended"
	EventTerminalShared   = "terminal.shared"
	EventTerminalUnshared = "terminal.unshared" // the link does not open it any more

	EventTemplateBuilt   = "template.built"
	EventTemplateRemoved = "template.removed"

	EventOperationStarted   = "operation.started"
	EventOperationDone      = "operation.done"
	EventOperationFailed    = "operation.failed"
	EventOperationCancelled = "operation.cancelled"

	EventKeyCreated = "key.created"
	EventKeyRevoked = "key.revoked"

	EventSSHKeyCreated = "ssh_key.created"
	EventSSHKeyDeleted = "ssh_key.deleted"

	EventSecretCreated = "secret.created"
	EventSecretUpdated = "secret.updated"
	EventSecretRemoved = "secret.removed"

	EventQuotaRefused   = "quota.refused"
	EventNetworkRefused = "network.refused"

	EventRunStarted  = "run.started"
	EventRunStep     = "run.step"
	EventRunEnded    = "run.ended"
	EventToolWaiting = "tool.waiting" // for somebody's decision
	EventToolDecided = "tool.decided"
	EventToolCalled  = "tool.called"
	EventToolResult  = "tool.result"
	EventModelCharge = "model.charged"

	EventPageActed    = "page.acted"    // somebody did something on the page of a session
	EventPagePatched  = "page.patched"  // a model changed the page
	EventPageReplaced = "page.replaced" // a model wrote the page, or took it back to what it was
	EventPageRestored = "page.restored" // somebody took the page back to what it was
	EventPageStats    = "page.stats"
	EventPageTool     = "page.tool"   // a tool call began or ended
	EventPageFailed   = "page.failed" // a line of the model did nothing, or its run failed
	EventPageDone     = "page.done"   // a run has answered

	EventAppCreated     = "app.created"
	EventAppState       = "app.state"    // it entered another state
	EventAppApplying    = "app.applying" // an apply began
	EventAppProgress    = "app.progress" // a step of an apply began, or something of it was done
	EventAppApplied     = "app.applied"  // there is a new revision
	EventAppApplyFailed = "app.apply_failed"
	EventAppRolledBack  = "app.rolled_back" // the new revision has the files of an earlier one
	EventAppEditing     = "app.editing"     // a model began to change it
	EventAppEdited      = "app.edited"
	EventAppPublished   = "app.published"   // a build of it is served without a sandbox
	EventAppUnpublished = "app.unpublished" // it is not served any more
	EventAppSnapshotted = "app.snapshotted" // a snapshot was kept with its last revision
	EventAppRemoved     = "app.removed"

	EventAppAlert         = "app.alert" // it has been beyond a threshold for a while
	EventAppAlertResolved = "app.alert_resolved"

	EventWorkspaceCreated = "workspace.created"
	EventWorkspaceUpdated = "workspace.updated" // who works on it, what it shows, or its metadata
	EventWorkspaceState   = "workspace.state"   // it entered another state
	EventWorkspaceRevised = "workspace.revised" // there is a new revision
	EventWorkspaceService = "workspace.service" // a service of it entered another state, or was removed
	EventWorkspaceRemoved = "workspace.removed"

	EventFunctionPrefix     = "function." // followed by the state that the run entered
	EventFunctionStepDone   = "function.step.done"
	EventFunctionStepFailed = "function.step.failed"
	EventFunctionLoop       = "function.loop" // a run that would have started itself was refused

	EventWebhookCreated = "webhook.created"
	EventWebhookUpdated = "webhook.updated"
	EventWebhookRemoved = "webhook.removed"
	EventWebhookDropped = "webhook.dropped" // events are not sent, because too many wait to be

	EventApprovalRequested = "approval.requested"
	EventApprovalDecided   = "approval.decided"
	EventApprovalExpired   = "approval.expired"
	EventApprovalAbandoned = "approval.abandoned"
	EventApprovalForgotten = "approval.forgotten" // the decision is not for later requests any more

	// EventsDropped stands where older events were dropped to keep the log
	// within its bounds; its data says up to which Seq and how many.
	EventsDropped = "events.dropped"
)

// EventTypes returns the types that engi appends itself, in the order of this
// page. Callers cannot send them.
func EventTypes() []string {
	types := []string{EventExecutionQueued, EventExecutionRunning, EventExecutionDone, EventExecutionRefused}
	for _, s := range States() {
		types = append(types, EventSandboxPrefix+string(s))
	}
	types = append(types, EventSandboxUpdated, EventSandboxSnapshotted, EventSnapshotCreated, EventSnapshotRemoved,
		EventVolumeCreated, EventVolumeAttached, EventVolumeDetached, EventVolumeRemoved,
		EventSessionCreated, EventSessionStarted, EventSessionReleased, EventSessionTerminated,
		EventSessionBooting, EventSessionSuspended, EventSessionHibernated, EventSessionResumed, EventSessionAttached, EventSessionDetached,
		EventTerminalCreated, EventTerminalEnded, EventTerminalShared, EventTerminalUnshared,
		EventSessionSaved, EventSessionRestored, EventSessionSaveFailed, EventSessionGitCloned, EventSessionGitPushed, EventSessionGitConflict, EventSessionGitFailed,
		EventTemplateBuilt, EventTemplateRemoved,
		EventOperationStarted, EventOperationDone, EventOperationFailed, EventOperationCancelled,
		EventKeyCreated, EventKeyRevoked, EventSSHKeyCreated, EventSSHKeyDeleted, EventSecretCreated, EventSecretUpdated, EventSecretRemoved,
		EventQuotaRefused, EventNetworkRefused,
		EventRunStarted, EventRunStep, EventRunEnded, EventToolWaiting, EventToolDecided, EventToolCalled, EventToolResult, EventModelCharge,
		EventPageActed, EventPagePatched, EventPageReplaced, EventPageRestored, EventPageStats, EventPageTool, EventPageFailed, EventPageDone,
		EventAppCreated, EventAppState, EventAppApplying, EventAppProgress, EventAppApplied, EventAppApplyFailed, EventAppRolledBack, EventAppPublished, EventAppUnpublished,
		EventAppEditing, EventAppEdited, EventAppSnapshotted, EventAppRemoved, EventAppAlert, EventAppAlertResolved,
		EventWorkspaceCreated, EventWorkspaceUpdated, EventWorkspaceState, EventWorkspaceRevised, EventWorkspaceService, EventWorkspaceRemoved)
	for _, s := range FunctionStates() {
		types = append(types, EventFunctionPrefix+string(s))
	}
	return append(types, EventFunctionStepDone, EventFunctionStepFailed, EventFunctionLoop,
		EventWebhookCreated, EventWebhookUpdated, EventWebhookRemoved, EventWebhookDropped,
		EventApprovalRequested, EventApprovalDecided, EventApprovalExpired, EventApprovalAbandoned, EventApprovalForgotten, EventsDropped)
}

// An EventFilter selects events. Zero fields select all.
type EventFilter struct {
	Owner   Owner    // of those who may see several owners'
	Subject string   // about this only
	Types   []string // any of; one that ends in ".*" stands for all that begin so
	After   int64    // only those with a greater Seq
	Before  int64    // only those with a smaller Seq
	Limit   int      // 0 means 100; 1000 at most
	Oldest  bool     // oldest first; else newest
}

// Check reports Invalid for a filter that nothing can match, or that takes too
// long to look at for each event.
func (f EventFilter) Check() error {
	const most = 50
	if len(f.Types) > most {
		return Errorf(Invalid, "types: there are %d, %d at most", len(f.Types), most).WithRemedy("ask for fewer, or for more at once, like sandbox.*")
	}
	for _, t := range f.Types {
		name := strings.TrimSuffix(t, "*")
		if len(name) > 128 || t == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") != "" {
			return Errorf(Invalid, "types: %.140q is not a type of events", t).WithRemedy("use types like sandbox.running, or sandbox.* for all that begin so")
		}
	}
	return nil
}

// Matches reports whether e is selected, Limit aside.
func (f EventFilter) Matches(e Event) bool {
	if e.Seq <= f.After || f.Before != 0 && e.Seq >= f.Before || f.Owner != "" && e.Owner != f.Owner || f.Subject != "" && e.Subject != f.Subject {
		return false
	}
	if len(f.Types) == 0 {
		return true
	}
	for _, t := range f.Types {
		if prefix, tree := strings.CutSuffix(t, "*"); t == e.Type || tree && strings.HasPrefix(e.Type, prefix) {
			return true
		}
	}
	return false
}

// Events is the log of what has happened, for readers. All methods see only
// what owner owns; the empty owner sees all. It is safe for concurrent use.
type Events interface {
	// Get returns one event, or NotFound.
	Get(ctx context.Context, owner Owner, id EventID) (Event, error)
	// List returns the events that f selects, fewer than Limit if they are
	// large together: 8 MiB of data, or one event.
	List(ctx context.Context, owner Owner, f EventFilter) ([]Event, error)
	// Follow yields the events that f selects, oldest first, each once, and
	// then those that come, until ctx ends, which it reports as Expired. Before,
	// Limit and Oldest are ignored. Where events between f.After and the oldest that
	// is left were dropped, one of type [EventsDropped] comes first.
	Follow(ctx context.Context, owner Owner, f EventFilter) iter.Seq2[Event, error]
	// Last returns the Seq of the newest event of all; 0 if there was none.
	Last(ctx context.Context) (int64, error)
}

// An EventLog is the log of what has happened, for those who append to it.
type EventLog interface {
	Events
	// Append adds events in this order, all or none. It reports Conflict if an
	// Expect does not hold, and Invalid for what cannot be an event. Once it
	// returns, the events outlive the process.
	Append(ctx context.Context, specs ...EventSpec) ([]Event, error)
}

type actorKey struct{}

// WithActor returns a context in which whatever happens is caused by actor, the
// ID of a key, a run or a function run.
func WithActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorOf returns who acts in ctx; empty for the node itself.
func ActorOf(ctx context.Context) string {
	actor, _ := ctx.Value(actorKey{}).(string)
	return actor
}
