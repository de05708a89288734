package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A functionStore stores runs of durable functions.
type functionStore struct {
	table[function.Record, engi.FunctionRunID]
}

// Functions returns the store of runs of durable functions.
func Functions(db *DB) function.Store {
	return functionStore{table[function.Record, engi.FunctionRunID]{
		db: db, name: "function_runs", noun: "run", columns: `id, owner, function, event, name, tick, state, ended, detail`,
		fields: func(r *function.Record) []any {
			return []any{
				&r.ID, &r.Owner, &r.Function, &r.Event, &r.Type, &r.Key, &r.State, (*stamp)(&r.Ended),
				derived{func() (string, error) { return encodeFnRun(r) }, func(text string) error { return decodeFnRun(text, r) }},
			}
		},
	}}
}

// of returns the table with the error that there is no run id.
func (s functionStore) of(id engi.FunctionRunID) table[function.Record, engi.FunctionRunID] {
	s.missing = engi.Errorf(engi.NotFound, "there is no run %.60q of a function", id).WithRemedy("'engi events runs' shows yours")
	return s.table
}

// fnRunDetail holds the fields of a run that no query selects by.
type fnRunDetail struct {
	Attempt int             `json:"attempt"`
	Output  json.RawMessage `json:"output,omitempty"`
	Error   *keptError      `json:"error,omitempty"`
	Cancel  bool            `json:"cancel,omitempty"`
	Created int64           `json:"created"`
	Started int64           `json:"started,omitempty"`
	Next    int64           `json:"next,omitempty"`

	Position int64         `json:"position,omitempty"`
	Wait     *fnWait       `json:"wait,omitempty"`
	Waited   *fnWaitResult `json:"waited,omitempty"`
}

type fnWait struct {
	Step    string   `json:"step"`
	Types   []string `json:"types,omitempty"`
	Subject string   `json:"subject,omitempty"`
	After   int64    `json:"after,omitempty"`
	Until   int64    `json:"until,omitempty"`
}

type fnWaitResult struct {
	Step   string          `json:"step"`
	Until  int64           `json:"until,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

type fnStepDetail struct {
	Attempts int             `json:"attempts"`
	Output   json.RawMessage `json:"output,omitempty"`
	Error    *keptError      `json:"error,omitempty"`
	Started  int64           `json:"started"`
	Ended    int64           `json:"ended,omitempty"`
}

// encodeFnRun returns the detail of a run.
func encodeFnRun(r *function.Record) (string, error) {
	d := fnRunDetail{
		Attempt: r.Attempt, Output: r.Output, Error: keepError(r.Error), Cancel: r.CancelRequested,
		Created: nanos(r.Created), Started: nanos(r.Started), Next: nanos(r.NextAttempt), Position: r.Position,
	}
	if w := r.Wait; w != nil {
		d.Wait = &fnWait{Step: w.Step, Types: w.Types, Subject: w.Subject, After: w.After, Until: nanos(w.Until)}
	}
	if w := r.Waited; w != nil {
		d.Waited = &fnWaitResult{Step: w.Step, Until: nanos(w.Until), Result: w.Result}
	}
	return encode("run", d)
}

// decodeFnRun sets the fields of r that are in its detail.
func decodeFnRun(text string, r *function.Record) error {
	var d fnRunDetail
	if err := decode("detail", text, &d); err != nil {
		return err
	}
	r.Attempt, r.Output, r.Error, r.CancelRequested = d.Attempt, d.Output, d.Error.decode(), d.Cancel
	r.Created, r.Started, r.NextAttempt = moment(d.Created), moment(d.Started), moment(d.Next)
	r.Position = d.Position
	if w := d.Wait; w != nil {
		r.Wait = &engi.FunctionWait{Step: w.Step, Types: w.Types, Subject: w.Subject, After: w.After, Until: moment(w.Until)}
	}
	if w := d.Waited; w != nil {
		r.Waited = &function.Waited{Step: w.Step, Until: moment(w.Until), Result: w.Result}
	}
	return nil
}

func (s functionStore) Send(ctx context.Context, spec engi.EventSpec, runs []function.Record) (e engi.Event, err error) {
	err = s.db.tx(ctx, func(t *tx) error {
		if e, err = t.append(ctx, spec); err != nil {
			return err
		}
		for _, r := range runs {
			if _, err := s.insert(ctx, t, r); err != nil {
				return err
			}
		}
		return nil
	})
	return e, err
}

func (s functionStore) Put(ctx context.Context, r function.Record) error {
	return s.db.tx(ctx, func(t *tx) error {
		fresh, err := s.insert(ctx, t, r)
		if err == nil && !fresh {
			err = engi.Errorf(engi.Conflict, "run %s exists already", r.Key)
		}
		return err
	})
}

// insert adds a run unless a run with its key exists.
func (s functionStore) insert(ctx context.Context, t *tx, r function.Record) (fresh bool, err error) {
	values := s.fields(&r)
	n, err := t.exec(ctx, `INSERT INTO function_runs (`+s.columns+`) VALUES (`+marks(len(values))+`) ON CONFLICT (tick) WHERE tick <> '' DO NOTHING`, values...)
	if err != nil || n == 0 {
		return false, err
	}
	return true, s.event(ctx, t, r)
}

// event appends the event of a run's state.
func (s functionStore) event(ctx context.Context, t *tx, r function.Record) error {
	data := struct {
		Function string          `json:"function"`
		Event    engi.EventID    `json:"event_id,omitempty"`
		Attempt  int             `json:"attempt,omitempty"`
		Next     *time.Time      `json:"next_attempt_at,omitempty"`
		Wait     *shownWait      `json:"wait,omitempty"`
		Error    string          `json:"error,omitempty"`
		Kind     string          `json:"kind,omitempty"`
		Output   json.RawMessage `json:"output,omitempty"`
	}{Function: r.Function, Event: r.Event, Attempt: r.Attempt}
	if !r.NextAttempt.IsZero() {
		data.Next = &r.NextAttempt
	}
	if w := r.Wait; w != nil {
		data.Wait = &shownWait{Step: w.Step, Types: w.Types, Subject: w.Subject}
		if !w.Until.IsZero() {
			data.Wait.Until = &w.Until
		}
	}
	if r.Error != nil {
		data.Error, data.Kind = r.Error.Text, r.Error.Kind.String()
	}
	if len(r.Output) <= shownOutput {
		data.Output = r.Output
	}
	return s.record(ctx, t, &r, engi.EventFunctionPrefix+string(r.State), data)
}

// A shownWait is what a run waits for, in an event.
type shownWait struct {
	Step    string     `json:"step"`
	Types   []string   `json:"types,omitempty"`
	Subject string     `json:"subject,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
}

// shownOutput is the maximum number of bytes of output in the event of a run or a step;
// longer outputs are stored in the record only.
const shownOutput = 16 << 10

const (
	functionCursor = "functions"
	waitCursor     = "function_waits"
	keepCursor     = `INSERT INTO event_cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = max(seq, excluded.seq)`
)

func (s functionStore) Cursor(ctx context.Context, waits bool) (int64, error) {
	name := functionCursor
	if waits {
		name = waitCursor
	}
	return first(ctx, s.db.read, nil, value[int64], `SELECT coalesce((SELECT seq FROM event_cursors WHERE name = ?), -1)`, name)
}

func (s functionStore) Woken(ctx context.Context, seq int64) error {
	_, err := s.db.exec(ctx, keepCursor, waitCursor, seq)
	return err
}

func (s functionStore) Lost(ctx context.Context, owner engi.Owner, after int64) (bool, error) {
	return first(ctx, s.db.read, nil, value[bool], `SELECT EXISTS (SELECT 1 FROM event_totals WHERE owner = ? AND through > ?)`, string(owner), after)
}

func (s functionStore) Advance(ctx context.Context, seq int64, runs []function.Record) (fresh []function.Record, err error) {
	err = s.db.tx(ctx, func(t *tx) error {
		for _, r := range runs {
			added, err := s.insert(ctx, t, r)
			if err != nil {
				return err
			}
			if added {
				fresh = append(fresh, r)
			}
		}
		_, err := t.exec(ctx, keepCursor, functionCursor, seq)
		return err
	})
	return fresh, err
}

func (s functionStore) ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (idempotency.Event, error) {
	return s.db.eventOf(ctx, owner, key)
}

func (s functionStore) Runs(ctx context.Context, viewer engi.Viewer, f function.Filter) ([]function.Record, error) {
	var w where
	order := "DESC"
	w.owned(viewer)
	w.and(f.Event != "", `event = ?`, string(f.Event))
	w.and(f.Type != "", `name = ?`, f.Type)
	w.and(f.Function != "", `function = ?`, f.Function)
	w.and(f.State != "", `state = ?`, string(f.State))
	w.and(f.Scheduled, `tick <> ''`)
	if f.Open {
		order = "ASC"
		w.and(true, `ended = 0`)
	}
	return s.all(ctx, w, `seq `+order, f.Limit)
}

func (s functionStore) Run(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID) (r function.Record, err error) {
	if r, err = s.of(id).Get(ctx, viewer, id); err != nil {
		return r, err
	}
	r.Steps, err = list(ctx, s.db.read, func(row scanner) (step engi.FunctionStep, err error) {
		var text string
		if err := row.Scan(&step.Name, &text); err != nil {
			return step, err
		}
		var d fnStepDetail
		if err := decode("step "+step.Name, text, &d); err != nil {
			return step, err
		}
		step.Attempts, step.Output, step.Error = d.Attempts, d.Output, d.Error.decode()
		step.Started, step.Ended = moment(d.Started), moment(d.Ended)
		return step, nil
	}, `SELECT name, detail FROM function_steps WHERE run = ? ORDER BY n`, id)
	return r, err
}

func (s functionStore) Update(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID, change func(*function.Record) error) (r function.Record, err error) {
	return s.of(id).change(ctx, seen(viewer, `id = ?`, id), func(t *tx, r *function.Record) error {
		before := r.State
		if err := change(r); err != nil || r.State == before {
			return err
		}
		return s.event(ctx, t, *r)
	})
}

func (s functionStore) Step(ctx context.Context, r function.Record, step engi.FunctionStep) error {
	text, err := encode("step "+step.Name, fnStepDetail{Attempts: step.Attempts, Output: step.Output, Error: keepError(step.Error), Started: nanos(step.Started), Ended: nanos(step.Ended)})
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO function_steps (run, name, n, detail)
			VALUES (?, ?, (SELECT count(*) FROM function_steps WHERE run = ?), ?)
			ON CONFLICT (run, name) DO UPDATE SET detail = excluded.detail`, r.ID, step.Name, r.ID, text); err != nil || step.Ended.IsZero() {
			return err
		}
		data := struct {
			Function string          `json:"function"`
			Step     string          `json:"step"`
			Attempt  int             `json:"attempt"`
			Duration float64         `json:"duration_ms"`
			Error    string          `json:"error,omitempty"`
			Output   json.RawMessage `json:"output,omitempty"`
		}{Function: r.Function, Step: step.Name, Attempt: step.Attempts, Duration: float64(step.Ended.Sub(step.Started).Microseconds()) / 1000}
		kind := engi.EventFunctionStepDone
		if step.Error != nil {
			kind, data.Error = engi.EventFunctionStepFailed, step.Error.Text
		}
		if len(step.Output) <= shownOutput {
			data.Output = step.Output
		}
		return t.record(ctx, r.Owner, string(r.ID), kind, data)
	})
}

func (s functionStore) Forget(ctx context.Context, before time.Time, count int) error {
	return s.db.tx(ctx, func(t *tx) error {
		const old = `ended <> 0 AND (ended < ? OR seq <= (SELECT seq FROM function_runs WHERE ended <> 0 ORDER BY seq DESC LIMIT 1 OFFSET ?))`
		for _, q := range []string{
			`DELETE FROM function_steps WHERE run IN (SELECT id FROM function_runs WHERE ` + old + `)`,
			`DELETE FROM function_runs WHERE ` + old,
		} {
			if _, err := t.exec(ctx, q, nanos(before), count); err != nil {
				return err
			}
		}
		return nil
	})
}
