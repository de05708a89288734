package store

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// hotQueries are run often in transactions, so they are prepared when the database
// opens.
var hotQueries = []string{begin, commit, insertExecution, updateExecution, putSandbox, sandboxState, appendEvent, appendFirstEvent}

const (
	begin    = `BEGIN IMMEDIATE`
	commit   = `COMMIT`
	rollback = `ROLLBACK`
)

// A writer is the one connection that writes. It is not an sql.DB with one connection, since that
// starts a goroutine for each transaction and searches for each prepared statement.
type writer struct {
	pool     *sql.DB
	conn     *sql.Conn
	prepared map[string]*sql.Stmt // prepared statements by their text; immutable
	free     chan struct{}        // holds a value while no transaction writes
	close    func() error         // closes the connection, once
}

func newWriter(ctx context.Context, pool *sql.DB) (_ *writer, err error) {
	w := &writer{pool: pool, prepared: map[string]*sql.Stmt{}, free: make(chan struct{}, 1)}
	if w.conn, err = pool.Conn(ctx); err != nil {
		return nil, fault(ctx, err)
	}
	for _, q := range hotQueries {
		if w.prepared[q], err = w.conn.PrepareContext(ctx, q); err != nil {
			return nil, errors.Join(fault(ctx, err), w.conn.Close())
		}
	}
	w.free <- struct{}{}
	w.close = sync.OnceValue(func() error {
		<-w.free
		defer w.unlock() // later callers find the connection closed
		err := w.conn.Close()
		return errors.Join(err, w.pool.Close())
	})
	return w, nil
}

// lock waits until no transaction writes. Callers must call unlock after it.
func (w *writer) lock(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fault(ctx, ctx.Err())
	default:
	}
	select {
	case <-w.free:
		return nil
	case <-ctx.Done():
		return fault(ctx, ctx.Err())
	}
}

func (w *writer) unlock() { w.free <- struct{}{} }

// Close waits for the running transaction. Further calls do nothing.
func (w *writer) Close() error { return w.close() }

// exec runs a statement in a transaction of its own and returns how many rows
// it changed.
func (db *DB) exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := db.write.lock(ctx); err != nil {
		return 0, err
	}
	defer db.write.unlock()
	return changed(ctx)(db.write.conn.ExecContext(context.WithoutCancel(ctx), query, args...))
}

// A tx is a write transaction and the events that it appends. Its statements are
// short, and run even if their context ends in the meantime, because the driver starts
// a goroutine to watch a context.
type tx struct {
	w      *writer
	events []engi.Event
}

// QueryContext implements [querier].
func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.w.conn.QueryContext(context.WithoutCancel(ctx), query, args...)
}

// row runs a query for a single row.
func (t *tx) row(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = context.WithoutCancel(ctx)
	if hot := t.w.prepared[query]; hot != nil {
		return hot.QueryRowContext(ctx, args...)
	}
	return t.w.conn.QueryRowContext(ctx, query, args...)
}

// run runs a statement.
func (t *tx) run(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = context.WithoutCancel(ctx)
	if hot := t.w.prepared[query]; hot != nil {
		return hot.ExecContext(ctx, args...)
	}
	return t.w.conn.ExecContext(ctx, query, args...)
}

// exec runs a statement and returns how many rows it changed.
func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return changed(ctx)(t.run(ctx, query, args...))
}

// prepare prepares a statement that runs often in this transaction. Callers must
// close it.
func (t *tx) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.w.conn.PrepareContext(context.WithoutCancel(ctx), query)
}

// tx runs f in one write transaction and publishes its events after the
// commit. If f fails, the transaction is rolled back and the error of f is returned.
func (db *DB) tx(ctx context.Context, f func(*tx) error) error {
	// No other transaction may write until the events are published, which keeps
	// the events of followers in the order of the commits.
	if err := db.write.lock(ctx); err != nil {
		return err
	}
	defer db.write.unlock()
	t := &tx{w: db.write}
	if _, err := t.run(ctx, begin); err != nil {
		return fault(ctx, err)
	}
	committed := false
	defer func() {
		if !committed {
			// The rollback fails if SQLite has already rolled back.
			_, _ = t.run(ctx, rollback)
		}
	}()
	if err := f(t); err != nil {
		return err
	}
	if _, err := t.run(ctx, commit); err != nil {
		return fault(ctx, err)
	}
	committed = true
	for _, e := range t.events {
		db.appended.Add(int64(len(e.Data)))
	}
	db.hub.publish(t.events)
	return nil
}

// change runs a statement that returns the row that it changes or deletes, and appends
// its event in the same transaction.
func change[T any](ctx context.Context, db *DB, missing error, scan func(scanner) (T, error), event func(*tx, T) error, query string, args ...any) error {
	return db.tx(ctx, func(t *tx) error {
		x, err := first(ctx, t, missing, scan, query, args...)
		if err != nil {
			return err
		}
		return event(t, x)
	})
}

func changed(ctx context.Context) func(sql.Result, error) (int64, error) {
	return func(res sql.Result, err error) (int64, error) {
		if err != nil {
			return 0, fault(ctx, err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return 0, fault(ctx, err)
		}
		return n, nil
	}
}
