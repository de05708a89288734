package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
)

type approvalStore struct {
	table[engi.Approval, engi.ApprovalID]
}

var _ approval.Store = approvalStore{}

// Approvals returns the store of approvals.
func Approvals(db *DB) approval.Store {
	return approvalStore{table[engi.Approval, engi.ApprovalID]{
		db: db, name: "approvals", noun: "approval",
		columns: `id, owner, sandbox, host, port, method, path, secrets, rule, body, body_size, digest, maker,
			state, created, expires, ended, decider, reason, until, all_sandboxes, whole_rule, record, signature, public_key, exact_only, exact, body_hash`,
		fields: func(a *engi.Approval) []any {
			return []any{
				&a.ID, &a.Owner, &a.Sandbox, &a.Host, &a.Port, &a.Method, &a.Path, asJSON("secrets", &a.Secrets), &a.Rule, (*blob)(&a.Body), &a.BodySize, &a.Digest, &a.Maker,
				&a.State, (*stamp)(&a.Created), (*stamp)(&a.Expires), (*stamp)(&a.Ended), &a.Decider, &a.Reason,
				(*stamp)(&a.Memory.Until), &a.Memory.AllSandboxes, &a.Memory.WholeRule, (*blob)(&a.Record), (*blob)(&a.Signature), (*blob)(&a.PublicKey), &a.Exact, &a.Memory.Exact, &a.BodyHash,
			}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such approval").WithRemedy("'engi approvals list' shows yours"),
	}}
}

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

func (s approvalStore) event(ctx context.Context, t *tx, a engi.Approval, kind string) error {
	return s.record(ctx, t, &a, kind, approvalEvent{
		Sandbox: a.Sandbox, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Secrets: append([]string{}, a.Secrets...), Rule: a.Rule, BodySize: a.BodySize, Expires: a.Expires, Exact: a.Exact,
		State: a.State, Reason: a.Reason, Record: string(a.Record), Signature: a.Signature, PublicKey: a.PublicKey,
	})
}

func (s approvalStore) Put(ctx context.Context, a engi.Approval) (_ engi.Approval, err error) {
	defer engi.Annotate(&err, "put approval %s", a.ID)
	err = s.db.tx(ctx, func(t *tx) error {
		makers, err := list(ctx, t, value[string], `SELECT actor FROM events WHERE subject = ? ORDER BY prev LIMIT 1`, a.Sandbox)
		if err != nil {
			return err
		}
		if len(makers) > 0 {
			a.Maker = makers[0]
		}
		if err := s.put(ctx, t, &a); err != nil {
			return err
		}
		return s.event(ctx, t, a, engi.EventApprovalRequested)
	})
	return a, err
}

func (s approvalStore) End(ctx context.Context, a engi.Approval) (err error) {
	defer engi.Annotate(&err, "end approval %s", a.ID)
	_, err = s.change(ctx, when(`id = ?`, a.ID), func(t *tx, x *engi.Approval) error {
		if !x.State.CanBecome(a.State) {
			return engi.Errorf(engi.Conflict, "it is %s already", x.State)
		}
		x.State, x.Ended, x.Decider, x.Reason, x.Memory = a.State, a.Ended, a.Decider, a.Reason, a.Memory
		x.Record, x.Signature, x.PublicKey = a.Record, a.Signature, a.PublicKey
		return s.ended(ctx, t, *x)
	})
	return err
}

// ended appends the event of an approval that has ended.
func (s approvalStore) ended(ctx context.Context, t *tx, a engi.Approval) error {
	return s.event(ctx, t, a, map[engi.ApprovalState]string{
		engi.ApprovalAllowed: engi.EventApprovalDecided, engi.ApprovalDenied: engi.EventApprovalDecided,
		engi.ApprovalExpired: engi.EventApprovalExpired, engi.ApprovalAbandoned: engi.EventApprovalAbandoned,
	}[a.State])
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
	return s.all(ctx, w, order+` DESC`, f.Limit)
}

func (s approvalStore) Forget(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID, now time.Time) error {
	_, err := s.change(ctx, seen(viewer, `id = ?`, id), func(t *tx, a *engi.Approval) error {
		if !a.Memory.Until.After(now) {
			return engi.Errorf(engi.Conflict, "the decision is not remembered").WithRemedy("'engi approvals remembered' shows the remembered decisions")
		}
		a.Memory.Until = now
		return s.event(ctx, t, *a, engi.EventApprovalForgotten)
	})
	return err
}

func (s approvalStore) Abandon(ctx context.Context, now time.Time) (n int, err error) {
	defer engi.Annotate(&err, "abandon approvals")
	err = s.db.tx(ctx, func(t *tx) error {
		all, err := list(ctx, t, s.scan, s.query(when(`ended = 0`))+` ORDER BY seq`)
		for _, a := range all {
			a.State, a.Ended = engi.ApprovalAbandoned, now
			if err := s.save(ctx, t, &a); err != nil {
				return err
			}
			if err := s.ended(ctx, t, a); err != nil {
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
