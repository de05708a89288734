package store

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/operation"
)

type operationStore struct {
	table[engi.Operation, engi.OperationID]
	full table[engi.Operation, engi.OperationID] // has the input too
}

var _ operation.Store = operationStore{}

// Operations returns the store of operations.
func Operations(db *DB) operation.Store {
	s := table[engi.Operation, engi.OperationID]{
		db: db, name: "operations", noun: "operation", columns: `id, owner, type, subject, state, attempt, created, ended, error`,
		fields: func(op *engi.Operation) []any {
			return []any{&op.ID, &op.Owner, &op.Type, &op.Subject, &op.State, &op.Attempt, (*stamp)(&op.Created), (*stamp)(&op.Ended), errorText(&op.Error)}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such operation").WithRemedy("'engi operation list' shows yours"),
	}
	return operationStore{s, s.with("input", func(op *engi.Operation) any {
		return derived{func() (string, error) { return string(op.Input), nil }, func(text string) error {
			op.Input = json.RawMessage(text)
			return nil
		}}
	})}
}

// errorText is a column with an error; empty for none.
func errorText(e **engi.Error) derived {
	return derived{func() (string, error) {
		if *e == nil {
			return "", nil
		}
		return encode("the error", keepError(*e))
	}, func(text string) error {
		if text == "" {
			return nil
		}
		var kept *keptError
		err := decode("the error", text, &kept)
		*e = kept.decode()
		return err
	}}
}

// operationEvent is the data of events about operations.
type operationEvent struct {
	Type    string     `json:"type"`
	Subject string     `json:"subject"`
	Attempt int        `json:"attempt"`
	Error   *keptError `json:"error,omitempty"`
}

// event appends the event of an operation's new state.
func (s operationStore) event(ctx context.Context, t *tx, op engi.Operation) error {
	kind := map[engi.OperationState]string{
		engi.OperationRunning: engi.EventOperationStarted, engi.OperationDone: engi.EventOperationDone,
		engi.OperationFailed: engi.EventOperationFailed, engi.OperationCancelled: engi.EventOperationCancelled,
	}[op.State]
	return s.record(ctx, t, &op, kind, operationEvent{op.Type, op.Subject, op.Attempt, keepError(op.Error)})
}

func (s operationStore) Put(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "put operation %s", op.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if err := s.full.put(ctx, t, &op); err != nil {
			return err
		}
		return s.event(ctx, t, op)
	})
}

func (s operationStore) Update(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "update operation %s", op.ID)
	_, err = s.change(ctx, when(`id = ?`, op.ID), func(t *tx, x *engi.Operation) error {
		if !x.Ended.IsZero() {
			return engi.Errorf(engi.Conflict, "it has ended")
		}
		same := op.State == x.State && op.Attempt == x.Attempt
		x.State, x.Attempt, x.Ended, x.Error = op.State, op.Attempt, op.Ended, op.Error
		if same {
			return nil
		}
		return s.event(ctx, t, *x)
	})
	return err
}

func (s operationStore) Get(ctx context.Context, viewer engi.Viewer, id engi.OperationID) (engi.Operation, error) {
	return s.full.Get(ctx, viewer, id)
}

func (s operationStore) List(ctx context.Context, viewer engi.Viewer, f engi.OperationFilter) ([]engi.Operation, error) {
	var w where
	if f.State == engi.OperationRunning {
		w.ownedFew(viewer)
		w.and(true, `ended = 0`)
	} else {
		w.owned(viewer)
	}
	w.and(f.Type != "", `type = ?`, f.Type)
	w.and(f.State != "", `state = ?`, f.State)
	return s.all(ctx, w, `seq DESC`, min(cmp.Or(f.Limit, 100), 1000))
}

func (s operationStore) Running(ctx context.Context) ([]engi.Operation, error) {
	return s.full.all(ctx, when(`ended = 0`), `seq`, 0)
}

func (s operationStore) Forget(ctx context.Context, keep int, before time.Time) (gone []engi.OperationID, err error) {
	defer engi.Annotate(&err, "forget operations")
	err = s.db.tx(ctx, func(t *tx) error {
		gone, err = list(ctx, t, value[engi.OperationID], `DELETE FROM operations WHERE ended > 0 AND
			(ended < ? OR seq <= (SELECT seq FROM operations WHERE ended > 0 ORDER BY seq DESC LIMIT 1 OFFSET ?)) RETURNING id`, nanos(before), keep)
		return err
	})
	return gone, err
}
