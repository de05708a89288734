package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Record is the stored record of an execution.
type Record struct {
	engi.Execution        // without Stdout and Stderr in Result: Output holds them
	Idempotency    string // idempotency key, unique per owner; empty means none
	Fingerprint    string // hash of the request, to distinguish a repetition from a mistake
	Limits         engi.Limits
	OutputDir      string
	Output         []byte // frames of package outputlog; nil if OutputFile is set or the execution is not done
	OutputFile     bool   // the output is in a file of the execution's directory
}

// A SandboxRecord is the stored record of a sandbox, or of an instance that
// belongs to a pool or an execution.
type SandboxRecord struct {
	engi.Sandbox
	Token    string        // secret that gives access to the guest
	Language engi.Language // language whose interpreter was started in advance; empty means bare
	Fixed    engi.Size     // size in the key of its pool; zero means the template's

	Made        bool   // the sandbox was created for an owner, by Sandboxes.Create or Lifecycle.Fork
	Idempotency string // idempotency key of the creation, unique per owner; empty means none
	Fingerprint string // hash of the request, to distinguish a repetition from a mistake
}

// Requested implements [idempotency.Record].
func (r Record) Requested() (id, fingerprint string) {
	return "execution " + string(r.ID), r.Fingerprint
}

// Requested implements [idempotency.Record].
func (r SandboxRecord) Requested() (id, fingerprint string) {
	return "sandbox " + string(r.ID), r.Fingerprint
}

// A Store keeps records. It is safe for concurrent use. Data that a method has
// written survives a kill -9 of the process. The guarantees are tested by
// fleettest.RunStore.
type Store interface {
	ExecutionStore
	SandboxStore
}

// An ExecutionStore keeps executions.
//
//  1. Create stores a new record, and the sandbox with it if s is not nil,
//     both or neither. If the owner used r's Idempotency before, it stores
//     nothing and reports Conflict.
//  2. Update replaces a record whose stored state is from, and the sandbox
//     with it if s is not nil; it reports Conflict for any other state and
//     NotFound for an unknown record. Created, Owner and Idempotency never
//     change.
//  3. Get and ByIdempotencyKey return a complete record or NotFound; Get reports
//     NotFound for a record that viewer does not see.
//  4. List returns records without Output, newest first.
//  5. Expire deletes ended records older than before, and the oldest ended
//     ones beyond keep, at most limit of them, with their stopped sandboxes,
//     and returns their IDs. Sandboxes that stopped before go too.
type ExecutionStore interface {
	Create(ctx context.Context, r Record, s *SandboxRecord) error
	Update(ctx context.Context, from engi.ExecutionState, r Record, s *SandboxRecord) error
	Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (Record, error)
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	List(ctx context.Context, viewer engi.Viewer, f engi.ExecutionFilter) ([]Record, error)
	Expire(ctx context.Context, before time.Time, keep, limit int) ([]engi.ExecutionID, error)
}

// A SandboxStore keeps sandboxes.
//
//  6. PutSandbox stores or replaces a record. If the owner used its
//     Idempotency for another, it stores nothing and reports Conflict.
//  7. GetSandbox returns a record that viewer sees, or NotFound.
//  8. ListSandboxes returns the records that viewer sees and that are not stopped, newest
//     first.
//  9. ForgetSandbox deletes a record; an unknown one is no error.
//  10. SandboxByIdempotencyKey returns the record with the owner's Idempotency,
//     or NotFound.
//  11. EndedSandboxes returns the stopped ones created last, newest first and by
//     ID of those created together: those that follow after, unless it is zero.
//  12. CountSandboxes counts the owner's Made ones created at since or later,
//     stopped ones included.
type SandboxStore interface {
	PutSandbox(ctx context.Context, s SandboxRecord) error
	GetSandbox(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (SandboxRecord, error)
	ListSandboxes(ctx context.Context, viewer engi.Viewer) ([]SandboxRecord, error)
	ForgetSandbox(ctx context.Context, id engi.SandboxID) error
	SandboxByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (SandboxRecord, error)
	EndedSandboxes(ctx context.Context, viewer engi.Viewer, after SandboxRecord, limit int) ([]SandboxRecord, error)
	CountSandboxes(ctx context.Context, owner engi.Owner, since time.Time) (int, error)
}
