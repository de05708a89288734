package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet"
)

// fleetShelf is the fleet room's shelf in the database.
type fleetStore struct{ db *DB }

var _ fleet.Store = fleetStore{}

// Fleet returns the fleet room's shelf.
func Fleet(db *DB) fleet.Store { return fleetStore{db} }

// What each execution does once or twice is prepared when the database opens.
const (
	insertExecution = `INSERT INTO executions
	(id, owner, state, language, template, sandbox, created, started, ended, idempotency, fingerprint, tape_file, detail, tape)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (owner, idempotency) WHERE idempotency IS NOT NULL DO NOTHING`
	updateExecution = `UPDATE executions
	SET state = ?, sandbox = ?, started = ?, ended = ?, tape_file = ?, detail = ?, tape = ?
	WHERE id = ? AND state = ?`
	putSandbox = `INSERT INTO sandboxes
	(id, owner, template, digest, pool, tier, size, state, cause, execution, token, language, fixed, created, stopped, made, idempotency, detail)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, template = excluded.template, pool = excluded.pool, size = excluded.size,
	state = excluded.state, cause = excluded.cause, execution = excluded.execution, token = excluded.token, created = excluded.created,
	stopped = excluded.stopped, made = excluded.made, idempotency = excluded.idempotency, detail = excluded.detail`
)

// fleetDetail is the part of an execution nobody selects by.
type fleetDetail struct {
	Limits    fleetLimits   `json:"limits"`
	OutputDir string        `json:"output_dir,omitempty"`
	Result    *fleetResult  `json:"result,omitempty"`
	Refusal   *fleetRefusal `json:"refusal,omitempty"`
}

type fleetLimits struct {
	Size          fleetSize `json:"size"`
	Timeout       int64     `json:"timeout_ns"`
	Output        int64     `json:"output"`
	ArtifactBytes int64     `json:"artifact_bytes"`
	ArtifactCount int       `json:"artifact_count"`
}

type fleetSize struct {
	VCPUs     float64 `json:"vcpus"`
	Memory    int64   `json:"memory"`
	Disk      int64   `json:"disk"`
	Inodes    int64   `json:"inodes"`
	Processes int     `json:"processes"`
	OpenFiles int     `json:"open_files"`
}

type fleetResult struct {
	Code            int             `json:"code"`
	Signal          string          `json:"signal,omitempty"`
	Cause           string          `json:"cause"`
	StdoutTruncated bool            `json:"stdout_truncated,omitempty"`
	StderrTruncated bool            `json:"stderr_truncated,omitempty"`
	Artifacts       []fleetArtifact `json:"artifacts,omitempty"`
	ArtifactsLeft   int             `json:"artifacts_left,omitempty"`
	Duration        int64           `json:"duration_ns"`
	Queued          int64           `json:"queued_ns"`
	Claim           int64           `json:"claim_ns"`
	Warm            bool            `json:"warm"`
	Tier            string          `json:"tier"`
	NotEnforced     []string        `json:"not_enforced,omitempty"`
	Error           string          `json:"error,omitempty"`
}

type fleetArtifact struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"`
	SHA256 string `json:"sha256"`
}

type fleetRefusal struct {
	Kind     string `json:"kind"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
	After    int64  `json:"after_ms,omitempty"`
	Position int    `json:"position,omitempty"`
}

func (f fleetStore) Create(ctx context.Context, r fleet.Record, s *fleet.SandboxRecord) (older fleet.Record, err error) {
	defer engi.Annotate(&err, "record execution %s", r.ID)
	detail, err := encodeDetail(r)
	if err != nil {
		return fleet.Record{}, err
	}
	repeated := false
	err = f.db.tx(ctx, func(tx *sql.Tx) error {
		res, err := f.db.hot(ctx, tx, insertExecution).ExecContext(ctx,
			string(r.ID), string(r.Owner), string(r.State), string(r.Language), r.Template, string(r.Sandbox),
			nanos(r.Created), nanos(r.Started), nanos(r.Ended), nullable(r.Idempotency), r.Fingerprint, r.OutputFile, detail, r.Output)
		if err != nil {
			return fault(ctx, err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return fault(ctx, err)
		}
		if repeated = n == 0; repeated {
			return nil
		}
		return f.putSandbox(ctx, tx, s)
	})
	if err != nil || !repeated {
		return r, err
	}
	if older, err = f.Repeated(ctx, r.Owner, r.Idempotency); err != nil {
		return fleet.Record{}, err
	}
	return older, engi.Errorf(engi.Conflict, "idempotency key used before, by execution %s", older.ID)
}

func (f fleetStore) Update(ctx context.Context, from engi.ExecutionState, r fleet.Record, s *fleet.SandboxRecord) (err error) {
	defer engi.Annotate(&err, "record execution %s", r.ID)
	detail, err := encodeDetail(r)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(tx *sql.Tx) error {
		res, err := f.db.hot(ctx, tx, updateExecution).ExecContext(ctx,
			string(r.State), string(r.Sandbox), nanos(r.Started), nanos(r.Ended), r.OutputFile, detail, r.Output,
			string(r.ID), string(from))
		if err != nil {
			return fault(ctx, err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return fault(ctx, err)
		}
		if n == 0 {
			var state string
			err := tx.QueryRowContext(ctx, `SELECT state FROM executions WHERE id = ?`, string(r.ID)).Scan(&state)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				return engi.Errorf(engi.NotFound, "no such execution")
			case err != nil:
				return fault(ctx, err)
			}
			return engi.Errorf(engi.Conflict, "it is %s, not %s", state, from)
		}
		return f.putSandbox(ctx, tx, s)
	})
}

const executionColumns = `id, owner, state, language, template, sandbox, created, started, ended,
	COALESCE(idempotency, ''), fingerprint, tape_file, detail`

func (f fleetStore) Get(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (_ fleet.Record, err error) {
	defer engi.Annotate(&err, "get execution %s", id)
	return f.one(ctx, `SELECT `+executionColumns+`, tape FROM executions WHERE id = ? AND (? = '' OR owner = ?)`,
		string(id), string(owner), string(owner))
}

func (f fleetStore) Repeated(ctx context.Context, owner engi.Owner, key string) (_ fleet.Record, err error) {
	defer engi.Annotate(&err, "get execution by idempotency key")
	return f.one(ctx, `SELECT `+executionColumns+`, tape FROM executions WHERE owner = ? AND idempotency = ?`, string(owner), key)
}

func (f fleetStore) one(ctx context.Context, query string, args ...any) (fleet.Record, error) {
	var tape []byte
	r, err := scanExecution(ctx, f.db.read.QueryRowContext(ctx, query, args...), &tape)
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Record{}, engi.Errorf(engi.NotFound, "no such execution")
	}
	r.Output = tape
	return r, err
}

func (f fleetStore) List(ctx context.Context, owner engi.Owner, q engi.ExecutionFilter) (_ []fleet.Record, err error) {
	defer engi.Annotate(&err, "list executions")
	where, args := []string{"1"}, []any{}
	if owner != "" {
		where, args = append(where, "owner = ?"), append(args, string(owner))
	}
	if q.State != "" {
		where, args = append(where, "state = ?"), append(args, string(q.State))
		if q.State == engi.ExecutionQueued || q.State == engi.ExecutionRunning {
			where = append(where, "state IN ('queued', 'running')") // lets SQLite use the small index
		}
	}
	if q.Before != "" {
		where, args = append(where, "seq < (SELECT seq FROM executions WHERE id = ?)"), append(args, string(q.Before))
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := f.db.read.QueryContext(ctx, `SELECT `+executionColumns+` FROM executions WHERE `+
		strings.Join(where, " AND ")+` ORDER BY seq DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []fleet.Record
	for rows.Next() {
		r, err := scanExecution(ctx, rows)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

// Expire looks for what is to go on a reading connection, so that those who
// write wait for the deletions only.
func (f fleetStore) Expire(ctx context.Context, before time.Time, keep, limit int) (_ []engi.ExecutionID, err error) {
	defer engi.Annotate(&err, "expire executions")
	var ended, old int
	err = f.db.read.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(ended < ?), 0) FROM executions WHERE ended > 0`, nanos(before)).Scan(&ended, &old)
	if err != nil {
		return nil, fault(ctx, err)
	}
	gone, err := column[engi.ExecutionID](ctx, f.db.read, `SELECT id FROM executions WHERE ended > 0 ORDER BY ended, seq LIMIT ?`,
		max(0, min(limit, max(old, ended-keep))))
	if err != nil {
		return nil, err
	}
	boxes, err := column[engi.SandboxID](ctx, f.db.read, `SELECT id FROM sandboxes WHERE state = 'stopped' AND stopped < ? LIMIT ?`, nanos(before), limit)
	if err != nil || len(gone)+len(boxes) == 0 {
		return nil, err
	}
	err = f.db.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range gone {
			if _, err := tx.ExecContext(ctx, `DELETE FROM executions WHERE id = ?`, string(id)); err != nil {
				return fault(ctx, err)
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE execution = ? AND execution <> '' AND state = 'stopped'`, string(id)); err != nil {
				return fault(ctx, err)
			}
		}
		for _, id := range boxes {
			if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ? AND state = 'stopped'`, string(id)); err != nil {
				return fault(ctx, err)
			}
		}
		return nil
	})
	return gone, err
}

// column returns the one column of a query.
func column[T ~string](ctx context.Context, db *sql.DB, query string, args ...any) (all []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, fault(ctx, err)
		}
		all = append(all, T(v))
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return all, nil
}

func (f fleetStore) PutSandbox(ctx context.Context, s fleet.SandboxRecord) (err error) {
	defer engi.Annotate(&err, "record sandbox %s", s.ID)
	return f.db.tx(ctx, func(tx *sql.Tx) error { return f.putSandbox(ctx, tx, &s) })
}

func (f fleetStore) putSandbox(ctx context.Context, tx *sql.Tx, s *fleet.SandboxRecord) error {
	if s == nil {
		return nil
	}
	size, err := encodeSize(s.Size)
	if err != nil {
		return err
	}
	fixed, err := encodeSize(s.Fixed)
	if err != nil {
		return err
	}
	detail, err := encodeLife(s)
	if err != nil {
		return err
	}
	_, err = f.db.hot(ctx, tx, putSandbox).ExecContext(ctx,
		string(s.ID), string(s.Owner), s.Template, s.Digest, s.Pool, string(s.Tier), size, string(s.State), string(s.End),
		string(s.Execution), s.Token, string(s.Language), fixed, nanos(s.Created), nanos(s.Stopped),
		s.Made, nullable(s.Idempotency), detail)
	if err != nil && strings.Contains(err.Error(), "sandboxes.idempotency") {
		return engi.Errorf(engi.Conflict, "idempotency key used before, by another sandbox")
	}
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

const sandboxColumns = `id, owner, template, digest, pool, tier, size, state, cause, execution, token, language, fixed, created, stopped,
	made, COALESCE(idempotency, ''), detail`

func (f fleetStore) GetSandbox(ctx context.Context, owner engi.Owner, id engi.SandboxID) (_ fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "get sandbox %s", id)
	s, err := scanSandbox(ctx, f.db.read.QueryRowContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE id = ? AND (? = '' OR owner = ?)`, string(id), string(owner), string(owner)))
	if errors.Is(err, sql.ErrNoRows) {
		return s, engi.Errorf(engi.NotFound, "no such sandbox")
	}
	return s, err
}

func (f fleetStore) ListSandboxes(ctx context.Context, owner engi.Owner) (_ []fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "list sandboxes")
	return f.sandboxes(ctx, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE state <> 'stopped' AND (? = '' OR owner = ?) ORDER BY seq DESC`, string(owner), string(owner))
}

// sandboxes returns the records a query selects.
func (f fleetStore) sandboxes(ctx context.Context, query string, args ...any) ([]fleet.SandboxRecord, error) {
	rows, err := f.db.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []fleet.SandboxRecord
	for rows.Next() {
		s, err := scanSandbox(ctx, rows)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

func (f fleetStore) ForgetSandbox(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "forget sandbox %s", id)
	return f.db.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, string(id)); err != nil {
			return fault(ctx, err)
		}
		return nil
	})
}

// scanner is a row or the current one of many.
type scanner interface{ Scan(dest ...any) error }

// scanExecution reads executionColumns and then more. It returns
// sql.ErrNoRows as it is.
func scanExecution(ctx context.Context, row scanner, more ...any) (r fleet.Record, err error) {
	var created, started, ended int64
	var detail string
	dest := append([]any{&r.ID, &r.Owner, &r.State, &r.Language, &r.Template, &r.Sandbox, &created, &started, &ended,
		&r.Idempotency, &r.Fingerprint, &r.OutputFile, &detail}, more...)
	if err := row.Scan(dest...); err != nil {
		if errors.Is(err, sql.ErrNoRows) {
			return r, err
		}
		return r, fault(ctx, err)
	}
	r.Created, r.Started, r.Ended = moment(created), moment(started), moment(ended)
	return r, decodeDetail(detail, &r)
}

func scanSandbox(ctx context.Context, row scanner) (s fleet.SandboxRecord, err error) {
	var created, stopped int64
	var size, fixed, detail string
	err = row.Scan(&s.ID, &s.Owner, &s.Template, &s.Digest, &s.Pool, &s.Tier, &size, &s.State, &s.End,
		&s.Execution, &s.Token, &s.Language, &fixed, &created, &stopped, &s.Made, &s.Idempotency, &detail)
	if err != nil {
		if errors.Is(err, sql.ErrNoRows) {
			return s, err
		}
		return s, fault(ctx, err)
	}
	if s.Size, err = decodeSize(size); err != nil {
		return s, err
	}
	if s.Fixed, err = decodeSize(fixed); err != nil {
		return s, err
	}
	s.Created, s.Stopped = moment(created), moment(stopped)
	return s, decodeLife(detail, &s)
}

// encodeSize returns the JSON of a size, "" for the zero one.
func encodeSize(size engi.Size) (string, error) {
	if size == (engi.Size{}) {
		return "", nil
	}
	text, err := json.Marshal(fleetSize(size))
	if err != nil {
		return "", engi.Errorf(engi.Internal, "encode size: %v", err)
	}
	return string(text), nil
}

func decodeSize(text string) (engi.Size, error) {
	var size fleetSize
	if text == "" {
		return engi.Size{}, nil
	}
	if err := json.Unmarshal([]byte(text), &size); err != nil {
		return engi.Size{}, engi.Errorf(engi.Internal, "decode size: %v", err)
	}
	return engi.Size(size), nil
}

func encodeDetail(r fleet.Record) (string, error) {
	d := fleetDetail{
		Limits: fleetLimits{
			Size:          fleetSize(r.Limits.Size),
			Timeout:       int64(r.Limits.Timeout),
			Output:        r.Limits.Output,
			ArtifactBytes: r.Limits.ArtifactBytes,
			ArtifactCount: r.Limits.ArtifactCount,
		},
		OutputDir: r.OutputDir,
	}
	if e := r.Refusal; e != nil {
		d.Refusal = &fleetRefusal{e.Kind.String(), e.Text, e.Remedy, e.Retry.AfterMillis, e.Retry.Position}
	}
	if a := r.Result; a != nil {
		d.Result = &fleetResult{
			Code: a.Exit.Code, Signal: a.Exit.Signal, Cause: string(a.Exit.Cause),
			StdoutTruncated: a.StdoutTruncated, StderrTruncated: a.StderrTruncated,
			ArtifactsLeft: a.ArtifactsLeft,
			Duration:      int64(a.Duration), Queued: int64(a.Queued), Claim: int64(a.Claim),
			Warm: a.Warm, Tier: string(a.Tier), NotEnforced: a.NotEnforced, Error: a.Error,
		}
		for _, f := range a.Artifacts {
			d.Result.Artifacts = append(d.Result.Artifacts, fleetArtifact(f))
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", engi.Errorf(engi.Internal, "encode: %v", err)
	}
	return string(text), nil
}

func decodeDetail(text string, r *fleet.Record) error {
	var d fleetDetail
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return engi.Errorf(engi.Internal, "decode execution %s: %v", r.ID, err)
	}
	r.Limits = engi.Limits{
		Size:          engi.Size(d.Limits.Size),
		Timeout:       time.Duration(d.Limits.Timeout),
		Output:        d.Limits.Output,
		ArtifactBytes: d.Limits.ArtifactBytes,
		ArtifactCount: d.Limits.ArtifactCount,
	}
	r.OutputDir = d.OutputDir
	if e := d.Refusal; e != nil {
		r.Refusal = engi.Errorf(engi.ParseKind(e.Kind), "%s", e.Text).
			WithRetry(engi.Retry{AfterMillis: e.After, Position: e.Position})
		r.Refusal.Remedy = e.Remedy
	}
	if a := d.Result; a != nil {
		r.Result = &engi.Result{
			Exit:            engi.Exit{Code: a.Code, Signal: a.Signal, Cause: engi.Cause(a.Cause)},
			StdoutTruncated: a.StdoutTruncated, StderrTruncated: a.StderrTruncated,
			ArtifactsLeft: a.ArtifactsLeft,
			Duration:      time.Duration(a.Duration), Queued: time.Duration(a.Queued), Claim: time.Duration(a.Claim),
			Warm: a.Warm, Tier: engi.Tier(a.Tier), NotEnforced: a.NotEnforced, Error: a.Error,
		}
		for _, f := range a.Artifacts {
			r.Result.Artifacts = append(r.Result.Artifacts, engi.Artifact(f))
		}
	}
	return nil
}

// nanos is a time as it is stored: 0 for none.
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
