package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/workflow"
)

// workflowShelf is the durable functions' shelf in the database.
type workflowStore struct{ db *DB }

// Workflow returns the shelf for events and for runs of durable functions.
func Workflow(db *DB) workflow.Store { return workflowStore{db} }

const (
	eventColumns = `id, owner, name, data, replay, created, (SELECT group_concat(id) FROM (SELECT id FROM workflow_runs WHERE event = e.id ORDER BY seq))`
	fnRunColumns = `id, owner, function, event, name, tick, state, ended, detail`
)

// fnRunDetail is what of a run nobody searches for.
type fnRunDetail struct {
	Attempt int             `json:"attempt"`
	Output  json.RawMessage `json:"output,omitempty"`
	Error   *keptError      `json:"error,omitempty"`
	Cancel  bool            `json:"cancel,omitempty"`
	Created int64           `json:"created"`
	Started int64           `json:"started,omitempty"`
	Next    int64           `json:"next,omitempty"`
}

// fnStepDetail is a step.
type fnStepDetail struct {
	Attempts int             `json:"attempts"`
	Output   json.RawMessage `json:"output,omitempty"`
	Error    *keptError      `json:"error,omitempty"`
	Started  int64           `json:"started"`
	Ended    int64           `json:"ended,omitempty"`
}

func fnRunDetailOf(r workflow.Record) (string, error) {
	text, err := json.Marshal(fnRunDetail{
		Attempt: r.Attempt, Output: r.Output, Error: keepError(r.Error), Cancel: r.Cancel,
		Created: nanos(r.Created), Started: nanos(r.Started), Next: nanos(r.Next),
	})
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "encode: %v", err)
	}
	return string(text), nil
}

func scanFnRun(row interface{ Scan(...any) error }) (r workflow.Record, err error) {
	var ended int64
	var text string
	if err := row.Scan(&r.ID, &r.Owner, &r.Function, &r.Event, &r.Name, &r.Key, &r.State, &ended, &text); err != nil {
		return r, err
	}
	var d fnRunDetail
	if json.Unmarshal([]byte(text), &d) != nil {
		return r, engi.Errorf(engi.Internal, "decode run %s: its record is damaged", r.ID)
	}
	r.Attempt, r.Output, r.Error, r.Cancel = d.Attempt, d.Output, d.Error.decode(), d.Cancel
	r.Created, r.Started, r.Next, r.Ended = moment(d.Created), moment(d.Started), moment(d.Next), moment(ended)
	return r, nil
}

func scanEvent(row interface{ Scan(...any) error }) (e engi.Event, err error) {
	var created int64
	var data string
	var runs sql.NullString
	if err := row.Scan(&e.ID, &e.Owner, &e.Name, &data, &e.Replay, &created, &runs); err != nil {
		return e, err
	}
	e.Data, e.Created = json.RawMessage(data), moment(created)
	if runs.String != "" {
		for id := range strings.SplitSeq(runs.String, ",") {
			e.Runs = append(e.Runs, engi.FunctionRunID(id))
		}
	}
	return e, nil
}

// read returns what a query finds.
func read[T any](ctx context.Context, s workflowStore, scan func(interface{ Scan(...any) error }) (T, error), query string, args ...any) ([]T, error) {
	rows, err := s.db.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			if _, ok := errors.AsType[*engi.Error](err); ok {
				return nil, err
			}
			return nil, fault(ctx, err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return all, nil
}

func (s workflowStore) Put(ctx context.Context, e engi.Event, idempotency string, runs []workflow.Record) (err error) {
	defer engi.Annotate(&err, "record event %s", e.ID)
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		put := func(query string, args ...any) error {
			_, err := tx.ExecContext(ctx, query, args...)
			switch {
			case err != nil && strings.Contains(err.Error(), "UNIQUE constraint"):
				return engi.Errorf(engi.Conflict, "it is there already")
			case err != nil:
				return fault(ctx, err)
			}
			return nil
		}
		if e.ID != "" {
			if err := put(`INSERT INTO workflow_events (id, owner, name, data, replay, idempotency, created) VALUES (?, ?, ?, ?, ?, ?, ?)`,
				string(e.ID), string(e.Owner), e.Name, string(e.Data), string(e.Replay), idempotency, nanos(e.Created)); err != nil {
				return err
			}
		}
		for _, r := range runs {
			detail, err := fnRunDetailOf(r)
			if err != nil {
				return err
			}
			if err := put(`INSERT INTO workflow_runs (`+fnRunColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
				string(r.ID), string(r.Owner), r.Function, string(r.Event), r.Name, r.Key, string(r.State), nanos(r.Ended), detail); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s workflowStore) Repeated(ctx context.Context, owner engi.Owner, key string) (e engi.Event, err error) {
	all, err := read(ctx, s, scanEvent, `SELECT `+eventColumns+` FROM workflow_events e WHERE owner = ? AND idempotency = ? AND idempotency <> ''`, string(owner), key)
	if err == nil && len(all) == 0 {
		err = engi.Errorf(engi.NotFound, "there is no event of this idempotency key")
	}
	if err != nil {
		return e, err
	}
	return all[0], nil
}

// where collects conditions.
type where struct {
	text []string
	args []any
}

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

func (s workflowStore) Events(ctx context.Context, owner engi.Owner, f engi.EventFilter) ([]engi.Event, error) {
	var w where
	w.and(owner != "", `owner = ?`, string(owner))
	w.and(f.Event != "", `id = ?`, string(f.Event))
	w.and(f.Name != "", `name = ?`, f.Name)
	return read(ctx, s, scanEvent, `SELECT `+eventColumns+` FROM workflow_events e`+w.String()+` ORDER BY seq DESC LIMIT ?`, append(w.args, atMost(f.Limit))...)
}

// atMost is a limit as SQL has it.
func atMost(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

func (s workflowStore) Runs(ctx context.Context, owner engi.Owner, f workflow.Filter) ([]workflow.Record, error) {
	var w where
	order := "DESC"
	w.and(owner != "", `owner = ?`, string(owner))
	w.and(f.Event != "", `event = ?`, string(f.Event))
	w.and(f.Name != "", `name = ?`, f.Name)
	w.and(f.Function != "", `function = ?`, f.Function)
	w.and(f.State != "", `state = ?`, string(f.State))
	w.and(f.Ticked, `tick <> ''`)
	if f.Open {
		order = "ASC"
		w.and(true, `ended = 0`)
	}
	return read(ctx, s, scanFnRun, `SELECT `+fnRunColumns+` FROM workflow_runs`+w.String()+` ORDER BY seq `+order+` LIMIT ?`, append(w.args, atMost(f.Limit))...)
}

func noFnRun(id engi.FunctionRunID) error {
	return engi.Errorf(engi.NotFound, "there is no run %.60q of a function", id).WithRemedy("'engi events runs' shows yours")
}

const oneFnRun = `SELECT ` + fnRunColumns + ` FROM workflow_runs WHERE id = ? AND (? = '' OR owner = ?)`

func (s workflowStore) Run(ctx context.Context, owner engi.Owner, id engi.FunctionRunID) (r workflow.Record, err error) {
	all, err := read(ctx, s, scanFnRun, oneFnRun, string(id), string(owner), string(owner))
	if err == nil && len(all) == 0 {
		err = noFnRun(id)
	}
	if err != nil {
		return r, err
	}
	r = all[0]
	r.Steps, err = read(ctx, s, func(row interface{ Scan(...any) error }) (step engi.FunctionStep, err error) {
		var text string
		if err := row.Scan(&step.Name, &text); err != nil {
			return step, err
		}
		var d fnStepDetail
		if json.Unmarshal([]byte(text), &d) != nil {
			return step, engi.Errorf(engi.Internal, "decode step %s: its record is damaged", step.Name)
		}
		step.Attempts, step.Output, step.Error = d.Attempts, d.Output, d.Error.decode()
		step.Started, step.Ended = moment(d.Started), moment(d.Ended)
		return step, nil
	}, `SELECT name, detail FROM workflow_steps WHERE run = ? ORDER BY n`, string(id))
	return r, err
}

func (s workflowStore) Update(ctx context.Context, owner engi.Owner, id engi.FunctionRunID, change func(*workflow.Record) error) (r workflow.Record, err error) {
	err = s.db.tx(ctx, func(tx *sql.Tx) error {
		if r, err = scanFnRun(tx.QueryRowContext(ctx, oneFnRun, string(id), string(owner), string(owner))); err != nil {
			if errors.Is(err, sql.ErrNoRows) {
				return noFnRun(id)
			}
			if _, ok := errors.AsType[*engi.Error](err); ok {
				return err
			}
			return fault(ctx, err)
		}
		if err := change(&r); err != nil {
			return err
		}
		detail, err := fnRunDetailOf(r)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE workflow_runs SET state = ?, ended = ?, detail = ? WHERE id = ?`, string(r.State), nanos(r.Ended), detail, string(id)); err != nil {
			return fault(ctx, err)
		}
		return nil
	})
	return r, err
}

func (s workflowStore) Step(ctx context.Context, id engi.FunctionRunID, step engi.FunctionStep) error {
	text, err := json.Marshal(fnStepDetail{Attempts: step.Attempts, Output: step.Output, Error: keepError(step.Error), Started: nanos(step.Started), Ended: nanos(step.Ended)})
	if err != nil {
		return engi.Errorf(engi.Invalid, "record step %s: %v", step.Name, err)
	}
	if _, err := s.db.write.ExecContext(ctx, `INSERT INTO workflow_steps (run, name, n, detail)
		VALUES (?, ?, (SELECT count(*) FROM workflow_steps WHERE run = ?), ?)
		ON CONFLICT (run, name) DO UPDATE SET detail = excluded.detail`, string(id), step.Name, string(id), string(text)); err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (s workflowStore) Forget(ctx context.Context, before time.Time, count int) error {
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		const old = `ended <> 0 AND (ended < ? OR seq <= (SELECT seq FROM workflow_runs WHERE ended <> 0 ORDER BY seq DESC LIMIT 1 OFFSET ?))`
		for _, q := range []string{
			`DELETE FROM workflow_steps WHERE run IN (SELECT id FROM workflow_runs WHERE ` + old + `)`,
			`DELETE FROM workflow_runs WHERE ` + old,
			`DELETE FROM workflow_events WHERE (created < ? OR seq <= (SELECT seq FROM workflow_events ORDER BY seq DESC LIMIT 1 OFFSET ?))
				AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE event = workflow_events.id)`,
		} {
			if _, err := tx.ExecContext(ctx, q, nanos(before), count); err != nil {
				return fault(ctx, err)
			}
		}
		return nil
	})
}
