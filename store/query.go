package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// A querier is a pool of connections or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// A scanner is a row of a query.
type scanner interface{ Scan(dest ...any) error }

// list returns all rows of a query.
func list[T any](ctx context.Context, q querier, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	return listWhile(ctx, q, scan, func(T) bool { return true }, query, args...)
}

// listWhile returns the rows of a query, up to the first of which more says that
// it is enough.
func listWhile[T any](ctx context.Context, q querier, scan func(scanner) (T, error), more func(T) bool, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fault(ctx, err)
		}
		all = append(all, v)
		if !more(v) {
			return all, nil
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return all, nil
}

// first returns the first row of a query, or missing if there is none.
func first[T any](ctx context.Context, q querier, missing error, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	all, err := list(ctx, q, scan, query, args...)
	if err == nil && len(all) == 0 {
		err = missing
	}
	if err != nil {
		var none T
		return none, err
	}
	return all[0], nil
}

// named returns the single row of a query by ID or name that sorts rows of the
// empty owner first. Two rows of other owners are a Conflict.
func named[T any](ctx context.Context, q querier, noun string, missing error, owner func(T) engi.Owner, scan func(scanner) (T, error), query string, args ...any) (none T, err error) {
	all, err := list(ctx, q, scan, query, args...)
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		return none, missing
	case len(all) > 1 && owner(all[0]) != "":
		return none, engi.Errorf(engi.Conflict, "several owners have a %s of that name", noun).WithRemedy("use its ID")
	}
	return all[0], nil
}

// value scans a row with one column.
func value[T any](row scanner) (v T, err error) { return v, row.Scan(&v) }

// fault turns an error of the driver into an [engi.Error]. It returns others
// unchanged.
func fault(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "database: %v", context.Cause(ctx))
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "UNIQUE constraint"):
		return engi.Errorf(engi.Conflict, "it already exists")
	case strings.Contains(text, "FOREIGN KEY constraint"):
		return engi.Errorf(engi.NotFound, "the record that it refers to does not exist")
	case strings.Contains(text, "SQLITE_FULL"), strings.Contains(text, "disk is full"):
		return engi.Errorf(engi.Exhausted, "database: %v", err).WithRemedy("free space on the disk of the data directory")
	case strings.Contains(text, "SQLITE_BUSY"), strings.Contains(text, "SQLITE_LOCKED"):
		return engi.Errorf(engi.Unavailable, "database: %v", err).WithRemedy("try again; another process uses the database")
	}
	return engi.Errorf(engi.Internal, "database: %v", err)
}

// A where collects the conditions of a query.
type where struct {
	text []string
	args []any
}

// and adds a condition if cond holds.
func (w *where) and(cond bool, text string, args ...any) {
	if cond {
		w.text, w.args = append(w.text, text), append(w.args, args...)
	}
}

func (w *where) String() string {
	if len(w.text) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.text, " AND ")
}

// limit returns n as an SQL limit: none if it is not positive.
func limit(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// nanos returns a time as it is stored: 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func moment(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// A stamp is a time to scan that nanos returned: Scan((*stamp)(&x.Created)).
type stamp time.Time

// Scan implements [sql.Scanner].
func (s *stamp) Scan(v any) error {
	n, ok := v.(int64)
	if !ok {
		return engi.Errorf(engi.Internal, "a time is stored as %T", v)
	}
	*s = stamp(moment(n))
	return nil
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// encode returns v as JSON.
func encode(what string, v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "encode %s: %v", what, err)
	}
	return string(text), nil
}

// decode reads JSON that encode wrote. The error does not contain any of it,
// because it may be secret.
func decode(what, text string, v any) error {
	if json.Unmarshal([]byte(text), v) != nil {
		return engi.Errorf(engi.Internal, "decode %s: the record is damaged", what)
	}
	return nil
}

// keptError is an error in the detail of a record.
type keptError struct {
	Kind     string `json:"kind"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
	After    int64  `json:"after_ms,omitempty"` // when to retry
	Position int    `json:"position,omitempty"` // in a queue
}

// keepError returns nil for nil.
func keepError(e *engi.Error) *keptError {
	if e == nil {
		return nil
	}
	return &keptError{e.Kind.String(), e.Text, e.Remedy, e.Retry.AfterMillis, e.Retry.Position}
}

// decode returns nil for nil.
func (e *keptError) decode() *engi.Error {
	if e == nil {
		return nil
	}
	return &engi.Error{Kind: engi.ParseKind(e.Kind), Text: e.Text, Remedy: e.Remedy, Retry: engi.Retry{AfterMillis: e.After, Position: e.Position}}
}
