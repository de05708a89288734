package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A table stores the records of one noun, one row for each. A store embeds the table of its
// noun: the exported methods are those that the stores of most nouns have in common, and the
// others are the statements from which a store makes the rest.
type table[T any, ID ~string] struct {
	db      *DB
	name    string         // name of the SQL table
	noun    string         // name of a record in errors
	columns string         // names of the columns with commas between them; id and owner are the first two
	fields  func(*T) []any // returns a pointer for each column: rows are scanned into them and written from them
	newest  bool           // List begins with the newest record instead of the oldest
	missing error          // reported if there is no such record
	exists  error          // reported if a unique column has the value already; nil means the error of the database
}

// with returns the table with one more column, which most statements do not need.
func (s table[T, ID]) with(column string, field func(*T) any) table[T, ID] {
	fields := s.fields
	s.columns += ", " + column
	s.fields = func(x *T) []any { return append(fields(x), field(x)) }
	return s
}

func (s table[T, ID]) scan(row scanner) (x T, err error) {
	err = row.Scan(s.fields(&x)...)
	if e, ok := errors.AsType[*engi.Error](err); ok { // of a column; leave out the text that the driver adds
		err = fmt.Errorf("%s %s: %w", s.noun, s.id(&x), e)
	}
	return x, err
}

func (s table[T, ID]) id(x *T) ID            { return *s.fields(x)[0].(*ID) }
func (s table[T, ID]) owner(x *T) engi.Owner { return *s.fields(x)[1].(*engi.Owner) }

func (s table[T, ID]) query(w where) string {
	return `SELECT ` + s.columns + ` FROM ` + s.name + w.String()
}

// one returns the first record that w selects.
func (s table[T, ID]) one(ctx context.Context, q querier, w where) (T, error) {
	return first(ctx, q, s.missing, s.scan, s.query(w), w.args...)
}

// all returns the records that w selects, in an order; most is their maximum number, 0 means no limit.
func (s table[T, ID]) all(ctx context.Context, w where, order string, most int) ([]T, error) {
	return list(ctx, s.db.read, s.scan, s.query(w)+` ORDER BY `+order+` LIMIT ?`, append(w.args, limit(most))...)
}

// page returns a page of the records that w selects; see listPage.
func (s table[T, ID]) page(ctx context.Context, p engi.Paging, w where, desc bool, order ...string) ([]T, error) {
	return listPage(ctx, s.db, p, s.scan, s.columns, s.name, w, desc, order...)
}

// named returns the record that w selects by ID or name; see the function named.
func (s table[T, ID]) named(ctx context.Context, w where) (T, error) {
	return named(ctx, s.db.read, s.noun, s.missing, func(x T) engi.Owner { return s.owner(&x) }, s.scan,
		s.query(w)+` ORDER BY owner = '' DESC LIMIT 2`, w.args...)
}

// Get returns one record.
func (s table[T, ID]) Get(ctx context.Context, viewer engi.Viewer, id ID) (T, error) {
	return s.one(ctx, s.db.read, seen(viewer, `id = ?`, string(id)))
}

// Find returns the record with an ID or a name.
func (s table[T, ID]) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (T, error) {
	return s.named(ctx, seen(viewer, `(id = ? OR name = ?)`, idOrName, idOrName))
}

// ByIdempotencyKey returns the record that a request of an owner with an idempotency key created.
func (s table[T, ID]) ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (T, error) {
	return s.one(ctx, s.db.read, when(`owner = ? AND idempotency = ? AND idempotency <> ''`, string(owner), key))
}

// List returns a page of the records that viewer sees.
func (s table[T, ID]) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]T, error) {
	var w where
	w.owned(viewer)
	return s.page(ctx, p, w, s.newest, `seq`)
}

// Count returns the number of an owner's records.
func (s table[T, ID]) Count(ctx context.Context, owner engi.Owner) (int, error) {
	return s.count(ctx, s.db.read, owner)
}

func (s table[T, ID]) count(ctx context.Context, q querier, owner engi.Owner) (int, error) {
	return first(ctx, q, nil, value[int], `SELECT count(*) FROM `+s.name+` WHERE owner = ?`, string(owner))
}

// put adds a record, without an event.
func (s table[T, ID]) put(ctx context.Context, t *tx, x *T) error {
	values := s.fields(x)
	_, err := t.exec(ctx, `INSERT INTO `+s.name+` (`+s.columns+`) VALUES (`+marks(len(values))+`)`, values...)
	if s.exists != nil && engi.Is(err, engi.Conflict) {
		return s.exists
	}
	return err
}

// save writes all columns of a record but its ID and owner, which never change. It appends no event.
func (s table[T, ID]) save(ctx context.Context, t *tx, x *T) error {
	values, columns := s.fields(x)[2:], strings.TrimPrefix(s.columns, "id, owner, ")
	n, err := t.exec(ctx, `UPDATE `+s.name+` SET (`+columns+`) = (`+marks(len(values))+`) WHERE id = ?`, append(values, string(s.id(x)))...)
	if err == nil && n == 0 {
		err = s.missing
	}
	return err
}

// record appends an event about a record.
func (s table[T, ID]) record(ctx context.Context, t *tx, x *T, kind string, data any) error {
	return t.record(ctx, s.owner(x), string(s.id(x)), kind, data)
}

// add adds a record, and its event in the same transaction.
func (s table[T, ID]) add(ctx context.Context, x *T, kind string, data any) error {
	return s.db.tx(ctx, func(t *tx) error {
		if err := s.put(ctx, t, x); err != nil {
			return err
		}
		return s.record(ctx, t, x, kind, data)
	})
}

// change writes what f makes of the record that w selects. f appends the events, in the same
// transaction; nothing is written if it fails.
func (s table[T, ID]) change(ctx context.Context, w where, f func(*tx, *T) error) (x T, err error) {
	err = s.db.tx(ctx, func(t *tx) error {
		if x, err = s.one(ctx, t, w); err != nil {
			return err
		}
		if err := f(t, &x); err != nil {
			return err
		}
		return s.save(ctx, t, &x)
	})
	return x, err
}

// remove deletes the record that w selects, and appends its event in the same transaction.
func (s table[T, ID]) remove(ctx context.Context, w where, kind string, data func(T) any) error {
	return change(ctx, s.db, s.missing, s.scan, func(t *tx, x T) error { return s.record(ctx, t, &x, kind, data(x)) },
		`DELETE FROM `+s.name+w.String()+` RETURNING `+s.columns, w.args...)
}

// A stamp is a column with a time that nanos returned: (*stamp)(&x.Created).
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

// Value implements [driver.Valuer].
func (s stamp) Value() (driver.Value, error) { return nanos(time.Time(s)), nil }

// A blob is a column with bytes, which is never NULL: (*blob)(&x.Data).
type blob []byte

// Value implements [driver.Valuer].
func (b blob) Value() (driver.Value, error) { return append([]byte{}, b...), nil }

// A wordList is a column with words that contain no space: (*wordList[string])(&x.Hosts).
type wordList[T ~string] []T

// Scan implements [sql.Scanner].
func (w *wordList[T]) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return engi.Errorf(engi.Internal, "words are stored as %T", v)
	}
	*w = nil
	for word := range strings.FieldsSeq(text) {
		*w = append(*w, T(word))
	}
	return nil
}

// Value implements [driver.Valuer].
func (w wordList[T]) Value() (driver.Value, error) {
	all := make([]string, len(w))
	for i, word := range w {
		all[i] = string(word)
	}
	return strings.Join(all, " "), nil
}

// A derived column is one whose text stands for several fields of a record, or for one that is no column
// by itself.
type derived struct {
	from func() (string, error) // returns the text
	to   func(string) error     // sets the fields
}

// Scan implements [sql.Scanner].
func (t derived) Scan(v any) error {
	s, ok := v.(string)
	if !ok {
		return engi.Errorf(engi.Internal, "a text is stored as %T", v)
	}
	return t.to(s)
}

// Value implements [driver.Valuer].
func (t derived) Value() (driver.Value, error) { return t.from() }

// asJSON is a column with a value in JSON, to which v points; what names it in errors.
func asJSON(what string, v any) derived {
	return derived{func() (string, error) { return encode(what, v) }, func(s string) error { return decode(what, s, v) }}
}
