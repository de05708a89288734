package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
)

type approvalStore struct{ db *DB }

var _ approval.Store = approvalStore{}

// Approvals returns the store of approvals.
func Approvals(db *DB) approval.Store { return approvalStore{db} }

var errNoApproval = engi.Errorf(engi.NotFound, "there is no such approval").WithRemedy("'engi approvals list' shows yours")

// approvalEvent is the data of events about approvals. Other data from the sandbox
// is stored in the approval only.
type approvalEvent struct {
	Sandbox  engi.SandboxID `json:"sandbox_id"`
	Host     string         `json:"host"`
	Port     uint16         `json:"port"`
	Method   string         `json:"method"`
	Path     string         `json:"path"`
	Secrets  []string       `json:"secrets"`
	Rule     string         `json:"rule"`
	BodySize int            `json:"body_size"`
	Expires  time.Time      `json:"expires_at"`
	Exact    bool           `json:"exact_only,omitempty"`

	State     engi.ApprovalState `json:"state"`
	Reason    string             `json:"reason,omitempty"`
	Record    string             `json:"record,omitempty"`
	Signature []byte             `json:"signature,omitempty"`
	PublicKey []byte             `json:"public_key,omitempty"`
}

func (t *tx) recordApproval(ctx context.Context, a engi.Approval, kind string) error {
	return t.record(ctx, a.Owner, string(a.ID), kind, approvalEvent{
		Sandbox: a.Sandbox, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Secrets: append([]string{}, a.Secrets...), Rule: a.Rule, BodySize: a.BodySize, Expires: a.Expires, Exact: a.Exact,
		State: a.State, Reason: a.Reason, Record: string(a.Record), Signature: a.Signature, PublicKey: a.PublicKey,
	})
}

const approvalColumns = `id, owner, sandbox, host, port, method, path, secrets, rule, body, body_size, digest, maker,
	state, created, expires, ended, decider, reason, until, all_sandboxes, whole_rule, record, signature, public_key, exact_only, exact, body_hash`

func (s approvalStore) Put(ctx context.Context, a engi.Approval) (_ engi.Approval, err error) {
	defer engi.Annotate(&err, "put approval %s", a.ID)
	secrets, err := encode("secrets", a.Secrets)
	if err != nil {
		return a, err
	}
	err = s.db.tx(ctx, func(t *tx) error {
		makers, err := list(ctx, t, value[string], `SELECT actor FROM events WHERE subject = ? ORDER BY prev LIMIT 1`, a.Sandbox)
		if err != nil {
			return err
		}
		if len(makers) > 0 {
			a.Maker = makers[0]
		}
		if _, err := t.exec(ctx, `INSERT INTO approvals (`+approvalColumns+`) VALUES (`+marks(28)+`)`,
			a.ID, a.Owner, a.Sandbox, a.Host, a.Port, a.Method, a.Path, secrets, a.Rule, bytesOf(a.Body), a.BodySize, a.Digest, a.Maker,
			a.State, nanos(a.Created), nanos(a.Expires), nanos(a.Ended), a.Decider, a.Reason, nanos(a.Memory.Until), a.Memory.AllSandboxes, a.Memory.WholeRule,
			bytesOf(a.Record), bytesOf(a.Signature), bytesOf(a.PublicKey), a.Exact, a.Memory.Exact, a.BodyHash); err != nil {
			return err
		}
		return t.recordApproval(ctx, a, engi.EventApprovalRequested)
	})
	return a, err
}

// bytesOf returns a copy of b that is not nil, so that it is not stored as NULL.
func bytesOf(b []byte) []byte { return append([]byte{}, b...) }

func (s approvalStore) End(ctx context.Context, a engi.Approval) (err error) {
	defer engi.Annotate(&err, "end approval %s", a.ID)
	return s.db.tx(ctx, func(t *tx) error {
		before, err := first(ctx, t, errNoApproval, scanApproval, `SELECT `+approvalColumns+` FROM approvals WHERE id = ?`, a.ID)
		if err != nil {
			return err
		}
		if !before.State.CanBecome(a.State) {
			return engi.Errorf(engi.Conflict, "it is %s already", before.State)
		}
		return t.endApproval(ctx, a)
	})
}

func (t *tx) endApproval(ctx context.Context, a engi.Approval) error {
	if _, err := t.exec(ctx, `UPDATE approvals SET state = ?, ended = ?, decider = ?, reason = ?, until = ?, all_sandboxes = ?, whole_rule = ?, exact = ?, record = ?, signature = ?, public_key = ? WHERE id = ?`,
		a.State, nanos(a.Ended), a.Decider, a.Reason, nanos(a.Memory.Until), a.Memory.AllSandboxes, a.Memory.WholeRule, a.Memory.Exact, bytesOf(a.Record), bytesOf(a.Signature), bytesOf(a.PublicKey), a.ID); err != nil {
		return err
	}
	return t.recordApproval(ctx, a, map[engi.ApprovalState]string{
		engi.ApprovalAllowed: engi.EventApprovalDecided, engi.ApprovalDenied: engi.EventApprovalDecided,
		engi.ApprovalExpired: engi.EventApprovalExpired, engi.ApprovalAbandoned: engi.EventApprovalAbandoned,
	}[a.State])
}

func (s approvalStore) Get(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID) (engi.Approval, error) {
	return first(ctx, s.db.read, errNoApproval, scanApproval, `SELECT `+approvalColumns+` FROM approvals WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (s approvalStore) List(ctx context.Context, viewer engi.Viewer, f engi.ApprovalFilter, now time.Time) ([]engi.Approval, error) {
	var w where
	order := "seq"
	if f.Remembered || f.State == engi.ApprovalPending {
		w.ownedFew(viewer)
	} else {
		w.owned(viewer)
	}
	if f.Remembered {
		order = "+seq"
	}
	w.and(f.State != "", `state = ?`, f.State)
	w.and(f.State == engi.ApprovalPending, `ended = 0`)
	w.and(f.Remembered, `until > 0 AND until > ?`, nanos(now))
	return list(ctx, s.db.read, scanApproval, `SELECT `+approvalColumns+` FROM approvals`+w.String()+` ORDER BY `+order+` DESC LIMIT ?`, append(w.args, limit(f.Limit))...)
}

func (s approvalStore) Forget(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID, now time.Time) error {
	return s.db.tx(ctx, func(t *tx) error {
		a, err := first(ctx, t, errNoApproval, scanApproval, `SELECT `+approvalColumns+` FROM approvals WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
		if err != nil {
			return err
		}
		if !a.Memory.Until.After(now) {
			return engi.Errorf(engi.Conflict, "the decision is not remembered").WithRemedy("'engi approvals remembered' shows the remembered decisions")
		}
		if _, err := t.exec(ctx, `UPDATE approvals SET until = ? WHERE id = ?`, nanos(now), id); err != nil {
			return err
		}
		return t.recordApproval(ctx, a, engi.EventApprovalForgotten)
	})
}

func (s approvalStore) Abandon(ctx context.Context, now time.Time) (n int, err error) {
	defer engi.Annotate(&err, "abandon approvals")
	err = s.db.tx(ctx, func(t *tx) error {
		all, err := list(ctx, t, scanApproval, `SELECT `+approvalColumns+` FROM approvals WHERE ended = 0 ORDER BY seq`)
		for _, a := range all {
			a.State, a.Ended = engi.ApprovalAbandoned, now
			if err := t.endApproval(ctx, a); err != nil {
				return err
			}
		}
		n = len(all)
		return err
	})
	return n, err
}

func (s approvalStore) Trim(ctx context.Context, keep int, before, now time.Time) (err error) {
	defer engi.Annotate(&err, "trim approvals")
	_, err = s.db.exec(ctx, `DELETE FROM approvals WHERE ended > 0 AND until <= ?1 AND (ended < ?2 OR seq IN
		(SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY owner ORDER BY seq DESC) AS place FROM approvals WHERE ended > 0 AND until <= ?1) WHERE place > ?3))`,
		nanos(now), nanos(before), keep)
	return err
}

func scanApproval(row scanner) (a engi.Approval, err error) {
	var secrets string
	var created, expires, ended, until int64
	if err := row.Scan(&a.ID, &a.Owner, &a.Sandbox, &a.Host, &a.Port, &a.Method, &a.Path, &secrets, &a.Rule, &a.Body, &a.BodySize, &a.Digest, &a.Maker,
		&a.State, &created, &expires, &ended, &a.Decider, &a.Reason, &until, &a.Memory.AllSandboxes, &a.Memory.WholeRule, &a.Record, &a.Signature, &a.PublicKey, &a.Exact, &a.Memory.Exact, &a.BodyHash); err != nil {
		return a, err
	}
	a.Created, a.Expires, a.Ended, a.Memory.Until = moment(created), moment(expires), moment(ended), moment(until)
	return a, decode("secrets of approval "+string(a.ID), secrets, &a.Secrets)
}
