package engi

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"time"
)

// An Event records one change. Every change of a record appends
// an event in the transaction that changes the record, so the log and the records
// never disagree; callers append events of their own with [Functions.Send]. An event is
// immutable; it is a value.
type Event struct {
	// Seq is the event's position in the log. Positions ascend in the order of
	// the commits and are never reused; there may be gaps.
	Seq     int64
	ID      EventID
	Owner   Owner  // owner of the subject; empty for events of the node
	Subject string // ID of the object that the event is about; the event's own ID if there is none
	Prev    int64  // Seq of the previous event about the same subject; 0 for the first
	Type    string // one of EventTypes, or a type that the sender chose
	Time    time.Time
	Actor   string          // ID of the key, run or function run that caused the event; empty for the node itself
	Replay  EventID         // event that this one repeats; empty for none
	Data    json.RawMessage // JSON object, whose members depend on Type
}

// NoEvents in [EventSpec.Expect] expects that the log has no event about the
// subject.
const NoEvents int64 = -1

// An EventSpec is an event to be appended.
type EventSpec struct {
	ID          EventID // empty means a new ID
	Owner       Owner
	Subject     string          // empty means the event's own ID
	Type        string          // 1 to 128 letters, digits and /._-, beginning with a letter or digit
	Actor       string          // empty means the actor of the context (see [WithActor])
	Replay      EventID         // see [Event.Replay]
	Data        json.RawMessage // JSON object of at most 256 KiB; nil means {}
	Expect      int64           // Seq of the last event about Subject, or NoEvents; 0 accepts any
	Idempotency string          // used by [Functions.Send]: a repeated key of the same owner returns the first event and starts nothing
	Fingerprint string          // of the request with the key; another one with the key is a Conflict, unless one of the two is empty
}

// Types of the events that engi appends itself. The data of each is described
// in docs/events.md.
const (
	EventExecutionQueued  = "execution.queued"
	EventExecutionRunning = "execution.running"
	EventExecutionDone    = "execution.done"
	EventExecutionRefused = "execution.refused"

	EventSandboxPrefix      = "sandbox." // followed by the new state of an owner's sandbox
	EventSandboxUpdated     = "sandbox.updated"
	EventSandboxSnapshotted = "sandbox.snapshotted" // a snapshot was taken; the snapshot has an event of its own

	EventSnapshotCreated = "snapshot.created"
	EventSnapshotRemoved = "snapshot.removed"

	EventVolumeCreated  = "volume.created"
	EventVolumeAttached = "volume.attached"
	EventVolumeDetached = "volume.detached"
	EventVolumeRemoved  = "volume.removed"

	EventSessionCreated     = "session.created"
	EventSessionStarted     = "session.started"  // the session got a sandbox
	EventSessionReleased    = "session.released" // the session's sandbox was released
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
	EventSessionGitConflict = "session.git_conflict" // the work was pushed to a new branch
	EventSessionGitFailed   = "session.git_failed"   // a push on release failed

	EventTerminalCreated  = "terminal.created"
	EventTerminalEnded    = "terminal.ended"
	EventTerminalShared   = "terminal.shared"
	EventTerminalUnshared = "terminal.unshared" // the link was revoked

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
	EventToolWaiting = "tool.waiting" // a tool call waits for a decision
	EventToolDecided = "tool.decided"
	EventToolCalled  = "tool.called"
	EventToolResult  = "tool.result"
	EventModelCharge = "model.charged"

	EventPageActed    = "page.acted"    // a user sent an action to the page of a session
	EventPagePatched  = "page.patched"  // a model changed the page
	EventPageReplaced = "page.replaced" // a model wrote the whole page, or restored an earlier one
	EventPageRestored = "page.restored" // a user restored an earlier page
	EventPageStats    = "page.stats"
	EventPageTool     = "page.tool"   // a tool call started or ended
	EventPageFailed   = "page.failed" // a line of the model had no effect, or its run failed
	EventPageDone     = "page.done"   // a run has answered

	EventAppCreated     = "app.created"
	EventAppState       = "app.state"    // the state changed
	EventAppApplying    = "app.applying" // an apply started
	EventAppProgress    = "app.progress" // a step of an apply started, or a part of it was done
	EventAppApplied     = "app.applied"  // a revision was created
	EventAppApplyFailed = "app.apply_failed"
	EventAppRolledBack  = "app.rolled_back" // the new revision has the files of an earlier one
	EventAppEditing     = "app.editing"     // an edit started
	EventAppEdited      = "app.edited"
	EventAppPublished   = "app.published"   // a build was published
	EventAppUnpublished = "app.unpublished" // the published build was removed
	EventAppSnapshotted = "app.snapshotted" // a snapshot was taken with the last revision
	EventAppRemoved     = "app.removed"

	EventAppAlert         = "app.alert" // a metric has exceeded its threshold for a while
	EventAppAlertResolved = "app.alert_resolved"

	EventWorkspaceCreated = "workspace.created"
	EventWorkspaceUpdated = "workspace.updated" // collaborators, preview or metadata changed
	EventWorkspaceState   = "workspace.state"   // the state changed
	EventWorkspaceRevised = "workspace.revised" // a revision was created
	EventWorkspaceService = "workspace.service" // the state of a service changed, or a service was deleted
	EventWorkspaceRemoved = "workspace.removed"

	EventWorkflowCreated = "workflow.created"
	EventWorkflowStage   = "workflow.stage" // an action changed the stage or whose turn it is
	EventWorkflowDeleted = "workflow.deleted"

	EventFunctionPrefix     = "function." // followed by the new state of the run
	EventFunctionStepDone   = "function.step.done"
	EventFunctionStepFailed = "function.step.failed"
	EventFunctionLoop       = "function.loop" // a run that would have started itself again was refused

	EventWebhookCreated = "webhook.created"
	EventWebhookUpdated = "webhook.updated"
	EventWebhookRemoved = "webhook.removed"
	EventWebhookDropped = "webhook.dropped" // events were not sent, because too many deliveries are pending

	EventApprovalRequested = "approval.requested"
	EventApprovalDecided   = "approval.decided"
	EventApprovalExpired   = "approval.expired"
	EventApprovalAbandoned = "approval.abandoned"
	EventApprovalForgotten = "approval.forgotten" // a remembered decision was deleted

	// EventsDropped marks the place where older events were dropped to keep the log
	// within its limits; its data has the last Seq and the number of dropped events.
	EventsDropped = "events.dropped"
)

// EventTypes returns the types that engi itself appends, in the order of their
// declaration. Callers cannot send them.
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
		EventWorkspaceCreated, EventWorkspaceUpdated, EventWorkspaceState, EventWorkspaceRevised, EventWorkspaceService, EventWorkspaceRemoved,
		EventWorkflowCreated, EventWorkflowStage, EventWorkflowDeleted)
	for _, s := range FunctionStates() {
		types = append(types, EventFunctionPrefix+string(s))
	}
	return append(types, EventFunctionStepDone, EventFunctionStepFailed, EventFunctionLoop,
		EventWebhookCreated, EventWebhookUpdated, EventWebhookRemoved, EventWebhookDropped,
		EventApprovalRequested, EventApprovalDecided, EventApprovalExpired, EventApprovalAbandoned, EventApprovalForgotten, EventsDropped)
}

// An EventFilter selects events. Zero fields select all.
type EventFilter struct {
	Owner   Owner    // only events of this owner, for callers that see several owners
	Subject string   // only events about this ID
	Types   []string // only events of one of these types; a type that ends in ".*" matches all types with that prefix
	After   int64    // only events with a greater Seq
	Before  int64    // only events with a smaller Seq
	Limit   int      // 0 means 100; 1000 at most
	Oldest  bool     // oldest first; false means newest first
}

// Check reports Invalid for a filter that no event can match, or that is too
// expensive to match against each event.
func (f EventFilter) Check() error {
	const most = 50
	if len(f.Types) > most {
		return Errorf(Invalid, "types: there are %d, %d at most", len(f.Types), most).WithRemedy("ask for fewer, or for more at once, like sandbox.*")
	}
	for _, t := range f.Types {
		name := strings.TrimSuffix(t, "*")
		if len(name) > 128 || t == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") != "" {
			return Errorf(Invalid, "types: %.140q is not a type of events", t).WithRemedy("use types such as sandbox.running, or sandbox.* for all types with this prefix")
		}
	}
	return nil
}

// Matches reports whether f selects e. It ignores Limit.
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

// Events is the read interface of the event log. Methods find only events of owners that viewer
// sees. It is safe for concurrent use.
type Events interface {
	// Get returns one event. It reports NotFound.
	Get(ctx context.Context, viewer Viewer, id EventID) (Event, error)
	// List returns the events that f selects, fewer than Limit if they are
	// large: at most 8 MiB of data, or one event.
	List(ctx context.Context, viewer Viewer, f EventFilter) ([]Event, error)
	// Follow yields the events that f selects, oldest first and each once, and
	// then new events as they are appended, until ctx ends, which it reports as Expired. Before,
	// Limit and Oldest are ignored. If events between f.After and the oldest stored event
	// were dropped, an event of type [EventsDropped] comes first.
	Follow(ctx context.Context, viewer Viewer, f EventFilter) iter.Seq2[Event, error]
	// Last returns the Seq of the newest event of all owners; 0 if there is none.
	Last(ctx context.Context) (int64, error)
}

// An EventLog is the event log for packages that append to it.
type EventLog interface {
	Events
	// Append adds events in the given order, all or none. It reports Conflict if an
	// Expect does not hold, and Invalid for a malformed event. Once it
	// returns, the events outlive the process.
	Append(ctx context.Context, specs ...EventSpec) ([]Event, error)
}

type actorKey struct{}

// WithActor returns a context whose changes are recorded as caused by actor, the
// ID of a key, a run or a function run.
func WithActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorOf returns the actor of ctx; empty means the node itself.
func ActorOf(ctx context.Context) string {
	actor, _ := ctx.Value(actorKey{}).(string)
	return actor
}
