package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/operation"
)

type operationStore struct{ db *DB }

var _ operation.Store = operationStore{}

// Operations returns the memory of operations.
func Operations(db *DB) operation.Store { return operationStore{db} }

const operationColumns = `id, owner, type, subject, state, attempt, created, ended, error`

var errNoOperation = engi.Errorf(engi.NotFound, "there is no such operation").WithRemedy("'engi operation list' shows yours")

func (s operationStore) Put(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "put operation %s", op.ID)
	text, err := operationError(op.Error)
	if err != nil {
		return err
	}
	_, err = s.db.write.ExecContext(ctx, `INSERT INTO operations (`+operationColumns+`, input) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(op.ID), string(op.Owner), op.Type, op.Subject, string(op.State), op.Attempt, nanos(op.Created), nanos(op.Ended), text, string(op.Input))
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint") {
		return engi.Errorf(engi.Conflict, "it is there already")
	}
	return faultOrNil(ctx, err)
}

func (s operationStore) Update(ctx context.Context, op engi.Operation) (err error) {
	defer engi.Annotate(&err, "update operation %s", op.ID)
	text, err := operationError(op.Error)
	if err != nil {
		return err
	}
	res, err := s.db.write.ExecContext(ctx, `UPDATE operations SET state = ?, attempt = ?, ended = ?, error = ? WHERE id = ? AND ended = 0`,
		string(op.State), op.Attempt, nanos(op.Ended), text, string(op.ID))
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return faultOrNil(ctx, err)
	}
	if _, err := s.Get(ctx, "", op.ID); err != nil {
		return err
	}
	return engi.Errorf(engi.Conflict, "it has ended")
}

func (s operationStore) Get(ctx context.Context, owner engi.Owner, id engi.OperationID) (engi.Operation, error) {
	var input string
	op, err := scanOperation(s.db.read.QueryRowContext(ctx, `SELECT `+operationColumns+`, input FROM operations WHERE id = ? AND (? = '' OR owner = ?)`,
		string(id), string(owner), string(owner)), &input)
	op.Input = json.RawMessage(input)
	if errors.Is(err, sql.ErrNoRows) {
		return engi.Operation{}, errNoOperation
	}
	return op, faultOrNil(ctx, err)
}

func (s operationStore) List(ctx context.Context, owner engi.Owner, f engi.OperationFilter) ([]engi.Operation, error) {
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	return s.all(ctx, `SELECT `+operationColumns+` FROM operations
		WHERE (? = '' OR owner = ?) AND (? = '' OR type = ?) AND (? = '' OR state = ?) ORDER BY seq DESC LIMIT ?`,
		string(owner), string(owner), f.Type, f.Type, string(f.State), string(f.State), min(limit, 1000))
}

func (s operationStore) Running(ctx context.Context) ([]engi.Operation, error) {
	all, err := s.all(ctx, `SELECT `+operationColumns+` FROM operations WHERE ended = 0 ORDER BY seq`)
	for i := range all {
		if all[i], err = s.Get(ctx, "", all[i].ID); err != nil {
			return nil, err
		}
	}
	return all, err
}

func (s operationStore) all(ctx context.Context, query string, args ...any) ([]engi.Operation, error) {
	rows, err := s.db.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var all []engi.Operation
	for rows.Next() {
		op, err := scanOperation(rows)
		if err != nil {
			return nil, fault(ctx, err)
		}
		all = append(all, op)
	}
	return all, faultOrNil(ctx, rows.Err())
}

func (s operationStore) Forget(ctx context.Context, keep int, before time.Time) (gone []engi.OperationID, err error) {
	defer engi.Annotate(&err, "forget operations")
	rows, err := s.db.write.QueryContext(ctx, `DELETE FROM operations WHERE ended > 0 AND
		(ended < ? OR seq <= (SELECT seq FROM operations WHERE ended > 0 ORDER BY seq DESC LIMIT 1 OFFSET ?)) RETURNING id`, nanos(before), keep)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id engi.OperationID
		if err := rows.Scan(&id); err != nil {
			return gone, fault(ctx, err)
		}
		gone = append(gone, id)
	}
	return gone, faultOrNil(ctx, rows.Err())
}

func operationError(e *engi.Error) (string, error) {
	if e == nil {
		return "", nil
	}
	text, err := json.Marshal(keepError(e))
	if err != nil {
		return "", engi.Errorf(engi.Internal, "%v", err) // unreachable: it is made of texts
	}
	return string(text), nil
}

func scanOperation(row interface{ Scan(...any) error }, more ...any) (op engi.Operation, err error) {
	var created, ended int64
	var text string
	if err := row.Scan(append([]any{&op.ID, &op.Owner, &op.Type, &op.Subject, &op.State, &op.Attempt, &created, &ended, &text}, more...)...); err != nil {
		return op, err
	}
	op.Created, op.Ended = moment(created), moment(ended)
	if text != "" {
		var e *keptError
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			return op, err
		}
		op.Error = e.decode()
	}
	return op, nil
}
