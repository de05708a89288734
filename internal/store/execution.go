package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// fleetStore implements [fleet.Store].
type fleetStore struct{ db *DB }

var _ fleet.Store = fleetStore{}

// Fleet returns the store of executions and sandboxes.
func Fleet(db *DB) fleet.Store { return fleetStore{db} }

// Every execution runs these statements, so they are prepared when the database opens.
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

// fleetDetail holds the fields of an execution that no query selects by.
type fleetDetail struct {
	Limits    fleetLimits  `json:"limits"`
	OutputDir string       `json:"output_dir,omitempty"`
	Result    *fleetResult `json:"result,omitempty"`
	Refusal   *keptError   `json:"refusal,omitempty"`
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

func (f fleetStore) Create(ctx context.Context, r fleet.Record, s *fleet.SandboxRecord) (err error) {
	defer engi.Annotate(&err, "record execution %s", r.ID)
	detail, err := encodeDetail(r)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(t *tx) error {
		n, err := t.exec(ctx, insertExecution, r.ID, r.Owner, r.State, r.Language, r.Template, r.Sandbox,
			nanos(r.Created), nanos(r.Started), nanos(r.Ended), nullable(r.Idempotency), r.Fingerprint, r.OutputFile, detail, r.Output)
		if err == nil && n == 0 {
			err = engi.Errorf(engi.Conflict, "the idempotency key was used for another execution")
		}
		if err != nil {
			return err
		}
		if err := f.executionEvent(ctx, t.recordFirst, r); err != nil {
			return err
		}
		return f.putSandbox(ctx, t, s)
	})
}

func (f fleetStore) Update(ctx context.Context, from engi.ExecutionState, r fleet.Record, s *fleet.SandboxRecord) (err error) {
	defer engi.Annotate(&err, "record execution %s", r.ID)
	detail, err := encodeDetail(r)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(t *tx) error {
		n, err := t.exec(ctx, updateExecution, r.State, r.Sandbox, nanos(r.Started), nanos(r.Ended), r.OutputFile, detail, r.Output, r.ID, from)
		if err != nil {
			return err
		}
		if n == 0 {
			state, err := first(ctx, t, errNoExecution, value[string], `SELECT state FROM executions WHERE id = ?`, r.ID)
			if err != nil {
				return err
			}
			return engi.Errorf(engi.Conflict, "it is %s, not %s", state, from)
		}
		if r.State != from {
			if err := f.executionEvent(ctx, t.record, r); err != nil {
				return err
			}
		}
		return f.putSandbox(ctx, t, s)
	})
}

// executionEvent appends the event of r's state with record.
func (f fleetStore) executionEvent(ctx context.Context, record recorder, r fleet.Record) error {
	data := struct {
		Language engi.Language  `json:"language"`
		Template string         `json:"template,omitempty"`
		Sandbox  engi.SandboxID `json:"sandbox_id,omitempty"`
		ExitCode *int           `json:"exit_code,omitempty"`
		Cause    engi.Cause     `json:"cause,omitempty"`
		Duration float64        `json:"duration_ms,omitempty"`
		Warm     bool           `json:"warm,omitempty"`
		Kind     string         `json:"kind,omitempty"`
		Error    string         `json:"error,omitempty"`
	}{Language: r.Language, Template: r.Template, Sandbox: r.Sandbox}
	if a := r.Result; a != nil {
		data.ExitCode, data.Cause, data.Warm = &a.Exit.Code, a.Exit.Cause, a.Warm
		data.Duration = float64(a.Duration.Microseconds()) / 1000
	}
	if r.Refusal != nil {
		data.Kind, data.Error = r.Refusal.Kind.String(), r.Refusal.Text
	}
	return record(ctx, r.Owner, string(r.ID), "execution."+string(r.State), data)
}

var errNoExecution = engi.Errorf(engi.NotFound, "no such execution")

const executionColumns = `id, owner, state, language, template, sandbox, created, started, ended,
	COALESCE(idempotency, ''), fingerprint, tape_file, detail`

func (f fleetStore) Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (_ fleet.Record, err error) {
	defer engi.Annotate(&err, "get execution %s", id)
	return first(ctx, f.db.read, errNoExecution, scanExecution(true), `SELECT `+executionColumns+`, tape FROM executions WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (f fleetStore) ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (_ fleet.Record, err error) {
	defer engi.Annotate(&err, "get execution by idempotency key")
	return first(ctx, f.db.read, errNoExecution, scanExecution(true), `SELECT `+executionColumns+`, tape FROM executions WHERE owner = ? AND idempotency = ?`, owner, key)
}

func (f fleetStore) List(ctx context.Context, viewer engi.Viewer, q engi.ExecutionFilter) (_ []fleet.Record, err error) {
	defer engi.Annotate(&err, "list executions")
	var w where
	w.and(viewer != engi.Everyone, "owner = ?", viewer)
	w.and(q.State != "", "state = ?", q.State)
	w.and(q.State == engi.ExecutionQueued || q.State == engi.ExecutionRunning, "state IN ('queued', 'running')") // allows SQLite to use the small index
	w.and(q.Before != "", "seq < (SELECT seq FROM executions WHERE id = ?)", q.Before)
	return list(ctx, f.db.read, scanExecution(false), `SELECT `+executionColumns+` FROM executions`+w.String()+` ORDER BY seq DESC LIMIT ?`, append(w.args, limit(cmp.Or(max(q.Limit, 0), 100)))...)
}

// Expire selects on a reading connection, so that writers wait only for the
// deletions.
func (f fleetStore) Expire(ctx context.Context, before time.Time, keep, limit int) (_ []engi.ExecutionID, err error) {
	defer engi.Annotate(&err, "expire executions")
	// The newest execution beyond the number to keep.
	var ended, seq int64
	err = f.db.read.QueryRowContext(ctx, `SELECT ended, seq FROM executions WHERE ended > 0 ORDER BY ended DESC, seq DESC LIMIT 1 OFFSET ?`, max(keep, 0)).Scan(&ended, &seq)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fault(ctx, err)
	}
	gone, err := list(ctx, f.db.read, value[engi.ExecutionID], `SELECT id FROM executions
		WHERE ended > 0 AND ended <= max(?1, ?2) AND (ended < ?1 OR ended < ?2 OR ended = ?2 AND seq <= ?3) ORDER BY ended, seq LIMIT ?4`,
		nanos(before), ended, seq, max(limit, 0))
	if err != nil {
		return nil, err
	}
	sandboxes, err := list(ctx, f.db.read, value[engi.SandboxID], `SELECT id FROM sandboxes WHERE state = 'stopped' AND stopped < ? LIMIT ?`, nanos(before), limit)
	if err != nil || len(gone)+len(sandboxes) == 0 {
		return nil, err
	}
	err = f.db.tx(ctx, func(t *tx) error {
		for _, id := range gone {
			if _, err := t.exec(ctx, `DELETE FROM sandboxes WHERE id = (SELECT sandbox FROM executions WHERE id = ?1) AND execution = ?1 AND state = 'stopped'`, id); err != nil {
				return err
			}
			if _, err := t.exec(ctx, `DELETE FROM executions WHERE id = ?`, id); err != nil {
				return err
			}
		}
		for _, id := range sandboxes {
			if _, err := t.exec(ctx, `DELETE FROM sandboxes WHERE id = ? AND state = 'stopped'`, id); err != nil {
				return err
			}
		}
		return nil
	})
	return gone, err
}

// scanExecution scans executionColumns, and also the output if it is selected.
func scanExecution(output bool) func(scanner) (fleet.Record, error) {
	return func(row scanner) (r fleet.Record, err error) {
		var detail string
		dest := []any{&r.ID, &r.Owner, &r.State, &r.Language, &r.Template, &r.Sandbox, (*stamp)(&r.Created), (*stamp)(&r.Started), (*stamp)(&r.Ended),
			&r.Idempotency, &r.Fingerprint, &r.OutputFile, &detail}
		if output {
			dest = append(dest, &r.Output)
		}
		if err := row.Scan(dest...); err != nil {
			return r, err
		}
		return r, decodeDetail(detail, &r)
	}
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
		d.Refusal = keepError(e)
	}
	if a := r.Result; a != nil {
		d.Result = &fleetResult{
			Code: a.Exit.Code, Signal: a.Exit.Signal, Cause: string(a.Exit.Cause),
			StdoutTruncated: a.StdoutTruncated, StderrTruncated: a.StderrTruncated,
			ArtifactsLeft: a.ArtifactsLeft,
			Duration:      int64(a.Duration), Queued: int64(a.Queued), Claim: int64(a.Claim),
			Warm: a.Warm, Tier: string(a.Tier), NotEnforced: a.NotEnforced, Error: a.Error,
		}
		d.Result.Artifacts = mapped(a.Artifacts, func(f engi.Artifact) fleetArtifact { return fleetArtifact(f) })
	}
	return encode("execution", d)
}

func decodeDetail(text string, r *fleet.Record) error {
	var d fleetDetail
	if err := decode("execution "+string(r.ID), text, &d); err != nil {
		return err
	}
	r.Limits = engi.Limits{
		Size:          engi.Size(d.Limits.Size),
		Timeout:       time.Duration(d.Limits.Timeout),
		Output:        d.Limits.Output,
		ArtifactBytes: d.Limits.ArtifactBytes,
		ArtifactCount: d.Limits.ArtifactCount,
	}
	r.OutputDir = d.OutputDir
	r.Refusal = d.Refusal.decode()
	if a := d.Result; a != nil {
		r.Result = &engi.Result{
			Exit:            engi.Exit{Code: a.Code, Signal: a.Signal, Cause: engi.Cause(a.Cause)},
			StdoutTruncated: a.StdoutTruncated, StderrTruncated: a.StderrTruncated,
			ArtifactsLeft: a.ArtifactsLeft,
			Duration:      time.Duration(a.Duration), Queued: time.Duration(a.Queued), Claim: time.Duration(a.Claim),
			Warm: a.Warm, Tier: engi.Tier(a.Tier), NotEnforced: a.NotEnforced, Error: a.Error,
		}
		r.Result.Artifacts = mapped(a.Artifacts, func(f fleetArtifact) engi.Artifact { return engi.Artifact(f) })
	}
	return nil
}
