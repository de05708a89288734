package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
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

// listWhile returns the rows of a query, up to the first row for which more returns
// false.
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

// listPage returns a page of the rows of table that w selects, in the order of columns, or in
// the opposite order with desc. It reports Invalid unless w selects the row that the page follows.
func listPage[T any](ctx context.Context, db *DB, p engi.Paging, scan func(scanner) (T, error), columns, table string, w where, desc bool, order ...string) ([]T, error) {
	key, than, end := strings.Join(order, ", "), ">", ""
	if desc {
		than, end = "<", " DESC"
	}
	if p.After != "" {
		if err := selected(ctx, db, p, table, w); err != nil {
			return nil, err
		}
		w.and(true, `(`+key+`) `+than+` (SELECT `+key+` FROM `+table+` WHERE id = ?)`, p.After)
	}
	query := `SELECT ` + columns + ` FROM ` + table + w.String() + ` ORDER BY ` + strings.Join(order, end+", ") + end + ` LIMIT ?`
	return list(ctx, db.read, scan, query, append(w.args, limit(p.Limit))...)
}

// selected reports Invalid unless w selects the row that a page follows.
func selected(ctx context.Context, db *DB, p engi.Paging, table string, w where) error {
	w = where{slices.Clone(w.text), slices.Clone(w.args)}
	w.and(true, `id = ?`, p.After)
	_, err := first(ctx, db.read, p.Lost(), value[int], `SELECT 1 FROM `+table+w.String(), w.args...)
	return err
}

// byName returns the order by name and then owner. For a single owner the name suffices. SQLite
// has an index for each.
func byName(viewer engi.Viewer) []string {
	if viewer != engi.Everyone {
		return []string{`name`}
	}
	return []string{`name`, `owner`}
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

// named returns the single row of a query by ID or name that orders rows of the
// empty owner first. It reports Conflict for two rows of other owners.
func named[T any](ctx context.Context, q querier, noun string, missing error, owner func(T) engi.Owner, scan func(scanner) (T, error), query string, args ...any) (none T, err error) {
	all, err := list(ctx, q, scan, query, args...)
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		return none, missing
	case len(all) > 1 && owner(all[0]) != "":
		return none, engi.Errorf(engi.Conflict, "several owners have a %s with this name", noun).WithRemedy("use its ID")
	}
	return all[0], nil
}

// total returns the number of an owner's objects of a kind, and the disk space that they may use.
// Triggers maintain both.
func (db *DB) total(ctx context.Context, noun string, owner engi.Owner) (count int, bytes int64, err error) {
	_, err = list(ctx, db.read, func(row scanner) (struct{}, error) { return struct{}{}, row.Scan(&count, &bytes) },
		`SELECT count, bytes FROM owner_totals WHERE noun = ? AND owner = ?`, noun, owner)
	return count, bytes, err
}

// value scans a row with one column.
func value[T any](row scanner) (v T, err error) { return v, row.Scan(&v) }

// fault converts an error of the driver to an [engi.Error]. It returns others
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
		return engi.Errorf(engi.NotFound, "the referenced record does not exist")
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

// and adds a condition if cond is true.
func (w *where) and(cond bool, text string, args ...any) {
	if cond {
		w.text, w.args = append(w.text, text), append(w.args, args...)
	}
}

// owned adds the condition that viewer sees a record. "? = '*' OR owner = ?" would be equivalent,
// but SQLite would read all records.
func (w *where) owned(viewer engi.Viewer) {
	w.and(viewer != engi.Everyone, `owner = ?`, string(viewer))
}

// when returns a condition.
func when(text string, args ...any) where { return where{[]string{text}, args} }

// seen returns a condition that selects few records, of which viewer sees those.
func seen(viewer engi.Viewer, text string, args ...any) where {
	w := when(text, args...)
	w.ownedFew(viewer)
	return w
}

// ownedFew is owned for queries whose other conditions leave few records. The plus keeps SQLite
// from using the index of all of the owner's records.
func (w *where) ownedFew(viewer engi.Viewer) {
	w.and(viewer != engi.Everyone, `+owner = ?`, string(viewer))
}

func (w *where) String() string {
	if len(w.text) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.text, " AND ")
}

// limit returns n as an SQL limit; n <= 0 means no limit.
func limit(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// nanos returns a time as it is stored, in nanoseconds; 0 for the zero time.
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

// decode decodes JSON that encode returned. The error contains none of the text,
// because it may be secret.
func decode(what, text string, v any) error {
	if json.Unmarshal([]byte(text), v) != nil {
		return engi.Errorf(engi.Internal, "decode %s: the record is damaged", what)
	}
	return nil
}

// mapped returns the results of f for all items; nil if there are none.
func mapped[A, B any](items []A, f func(A) B) []B {
	if len(items) == 0 {
		return nil
	}
	all := make([]B, len(items))
	for i, x := range items {
		all[i] = f(x)
	}
	return all
}

// keptError is an error in the detail of a record.
type keptError struct {
	Kind     string `json:"kind"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
	After    int64  `json:"after_ms,omitempty"` // time until the retry
	Position int    `json:"position,omitempty"` // position in a queue
}

// keepError converts an error for the detail; nil for nil.
func keepError(e *engi.Error) *keptError {
	if e == nil {
		return nil
	}
	return &keptError{Kind: e.Kind.String(), Text: e.Text, Remedy: e.Remedy, After: e.Retry.AfterMillis, Position: e.Retry.Position}
}

// decode returns the error; nil for nil.
func (e *keptError) decode() *engi.Error {
	if e == nil {
		return nil
	}
	return &engi.Error{Kind: engi.ParseKind(e.Kind), Text: e.Text, Remedy: e.Remedy, Retry: engi.Retry{AfterMillis: e.After, Position: e.Position}}
}
