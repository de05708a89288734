package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/operation"
)

type operationStore struct{ db *DB }

var _ operation.Store = operationStore{}

// Operations returns the store of operations.
func Operations(db *DB) operation.Store { return operationStore{db} }

const operationColumns = `id, owner, type, subject, state, attempt, created, ended, error`

var errNoOperation = engi.Errorf(engi.NotFound, "there is no such operation").WithRemedy("'engi operation list' shows yours")

// operationEvent is the data of events about operations.
type operationEvent struct {
	Type    string     `json:"type"`
	Subject string     `json:"subject"`
	Attempt int        `json:"attempt"`
	Error   *keptError `json:"error,omitempty"`
}

// record appends the event of an operation's new state, and the event of the template
// after a completed build.
func (s operationStore) record(ctx context.Context, t *tx, op engi.Operation) error {
	kind := map[engi.OperationState]string{
		engi.OperationRunning: engi.EventOperationStarted, engi.OperationDone: engi.EventOperationDone,
		engi.OperationFailed: engi.EventOperationFailed, engi.OperationCancelled: engi.EventOperationCancelled,
	}[op.State]
	return t.record(ctx, op.Owner, string(op.ID), kind, operationEvent{op.Type, op.Subject, op.Attempt, keepError(op.Error)})
}

func (s operationStore) Put(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "put operation %s", op.ID)
	text, err := operationError(op.Error)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO operations (`+operationColumns+`, input) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			op.ID, op.Owner, op.Type, op.Subject, op.State, op.Attempt, nanos(op.Created), nanos(op.Ended), text, string(op.Input)); err != nil {
			return err
		}
		return s.record(ctx, t, op)
	})
}

func (s operationStore) Update(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "update operation %s", op.ID)
	text, err := operationError(op.Error)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		before, err := first(ctx, t, errNoOperation, scanOperation, `SELECT `+operationColumns+` FROM operations WHERE id = ?`, op.ID)
		if err != nil {
			return err
		}
		if !before.Ended.IsZero() {
			return engi.Errorf(engi.Conflict, "it has ended")
		}
		if _, err := t.exec(ctx, `UPDATE operations SET state = ?, attempt = ?, ended = ?, error = ? WHERE id = ?`,
			op.State, op.Attempt, nanos(op.Ended), text, op.ID); err != nil {
			return err
		}
		if op.State == before.State && op.Attempt == before.Attempt {
			return nil
		}
		return s.record(ctx, t, op)
	})
}

func (s operationStore) Get(ctx context.Context, viewer engi.Viewer, id engi.OperationID) (engi.Operation, error) {
	return first(ctx, s.db.read, errNoOperation, scanOperationInput,
		`SELECT `+operationColumns+`, input FROM operations WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (s operationStore) List(ctx context.Context, viewer engi.Viewer, f engi.OperationFilter) ([]engi.Operation, error) {
	n := f.Limit
	if n == 0 {
		n = 100
	}
	var w where
	if f.State == engi.OperationRunning {
		w.ownedFew(viewer)
		w.and(true, `ended = 0`)
	} else {
		w.owned(viewer)
	}
	w.and(f.Type != "", `type = ?`, f.Type)
	w.and(f.State != "", `state = ?`, f.State)
	return list(ctx, s.db.read, scanOperation, `SELECT `+operationColumns+` FROM operations`+w.String()+` ORDER BY seq DESC LIMIT ?`, append(w.args, min(n, 1000))...)
}

func (s operationStore) Running(ctx context.Context) ([]engi.Operation, error) {
	return list(ctx, s.db.read, scanOperationInput, `SELECT `+operationColumns+`, input FROM operations WHERE ended = 0 ORDER BY seq`)
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

func operationError(e *engi.Error) (string, error) {
	if e == nil {
		return "", nil
	}
	return encode("the error", keepError(e))
}

func scanOperation(row scanner) (op engi.Operation, err error) { return op, scanOperationTo(row, &op) }

func scanOperationInput(row scanner) (op engi.Operation, err error) {
	var input string
	err = scanOperationTo(row, &op, &input)
	op.Input = json.RawMessage(input)
	return op, err
}

func scanOperationTo(row scanner, op *engi.Operation, more ...any) error {
	var text string
	if err := row.Scan(append([]any{&op.ID, &op.Owner, &op.Type, &op.Subject, &op.State, &op.Attempt, (*stamp)(&op.Created), (*stamp)(&op.Ended), &text}, more...)...); err != nil {
		return err
	}
	if text == "" {
		return nil
	}
	var e *keptError
	if err := decode("the error of an operation", text, &e); err != nil {
		return err
	}
	op.Error = e.decode()
	return nil
}
