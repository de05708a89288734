package store

import (
	"context"
	"database/sql"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

// Default limits of the network log.
const (
	EgressKeep = 10_000 // records per sandbox
	EgressAge  = 7 * 24 * time.Hour
)

// egressStore implements [egress.Store].
type egressStore struct {
	db   *DB
	keep int
	age  time.Duration

	swept *atomic.Int64 // time at which old records were last deleted
}

var _ egress.Store = egressStore{}

// Egress returns the store of the network log. It keeps the last keep records of
// each sandbox, and none older than age; zero means EgressKeep and EgressAge.
func Egress(db *DB, keep int, age time.Duration) egress.Store {
	if keep <= 0 {
		keep = EgressKeep
	}
	if age <= 0 {
		age = EgressAge
	}
	return egressStore{db, keep, age, new(atomic.Int64)}
}

const egressColumns = `sandbox, seq, time, owner, kind, allowed, protocol, host, address, rule, reason, up, down`

// Records are deleted by age every sweepEvery, at most sweepMost at a time so
// that the transaction stays short.
const (
	sweepEvery = time.Minute
	sweepMost  = 5000
)

func (s egressStore) Append(ctx context.Context, events []engi.NetworkRecord) (err error) {
	if len(events) == 0 {
		return nil
	}
	defer engi.Annotate(&err, "append %d network events", len(events))
	seqs := make([]int64, len(events)) // set when the records are stored
	err = s.db.tx(ctx, func(t *tx) error {
		last := map[engi.SandboxID]int64{}
		insert, err := t.prepare(ctx, `INSERT INTO network_events (`+egressColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return fault(ctx, err)
		}
		defer insert.Close()
		for i, e := range events {
			n, ok := last[e.Sandbox]
			if !ok {
				err := t.row(ctx, `SELECT last FROM network_logs WHERE sandbox = ?`, string(e.Sandbox)).Scan(&n)
				if err != nil && !errors.Is(err, sql.ErrNoRows) {
					return fault(ctx, err)
				}
			}
			n++
			last[e.Sandbox], seqs[i] = n, n
			address := ""
			if e.Address.IsValid() {
				address = e.Address.String()
			}
			_, err := insert.ExecContext(ctx, string(e.Sandbox), n, nanos(e.Time), string(e.Owner), string(e.Kind), e.Allowed, e.Protocol, e.Host, address,
				e.Rule, e.Reason, e.Up, e.Down)
			if err != nil {
				return fault(ctx, err)
			}
		}
		for id, n := range last {
			if _, err := t.exec(ctx, `INSERT INTO network_logs (sandbox, last) VALUES (?, ?)
				ON CONFLICT (sandbox) DO UPDATE SET last = excluded.last`, string(id), n); err != nil {
				return err
			}
			if _, err := t.exec(ctx, `DELETE FROM network_events WHERE sandbox = ? AND seq <= ?`, string(id), n-int64(s.keep)); err != nil {
				return err
			}
		}
		if err := recordRefusals(ctx, t, events); err != nil {
			return err
		}
		return s.sweep(ctx, t)
	})
	if err != nil {
		return err
	}
	for i, n := range seqs {
		events[i].Seq = n
	}
	return nil
}

// recordRefusals appends one event for each sandbox with refused connections,
// with their number and the first destinations.
func recordRefusals(ctx context.Context, t *tx, events []engi.NetworkRecord) error {
	const mostPlaces = 10
	type refusals struct {
		owner  engi.Owner
		count  int
		places []string
	}
	refused := map[engi.SandboxID]*refusals{}
	var order []engi.SandboxID
	for _, e := range events {
		if e.Allowed {
			continue
		}
		r := refused[e.Sandbox]
		if r == nil {
			r = &refusals{owner: e.Owner}
			refused[e.Sandbox] = r
			order = append(order, e.Sandbox)
		}
		r.count++
		place := e.Host
		if place == "" && e.Address.IsValid() {
			place = e.Address.String()
		}
		if place != "" && len(r.places) < mostPlaces && !slices.Contains(r.places, place) {
			r.places = append(r.places, place)
		}
	}
	for _, id := range order {
		r := refused[id]
		if err := t.record(ctx, r.owner, string(id), engi.EventNetworkRefused, map[string]any{"count": r.count, "places": r.places}); err != nil {
			return err
		}
	}
	return nil
}

// sweep deletes old records, at most once every sweepEvery.
func (s egressStore) sweep(ctx context.Context, t *tx) error {
	now := time.Now()
	if at := s.swept.Load(); now.Sub(time.Unix(0, at)) < sweepEvery || !s.swept.CompareAndSwap(at, now.UnixNano()) {
		return nil
	}
	_, err := t.run(ctx, `DELETE FROM network_events WHERE (sandbox, seq) IN
		(SELECT sandbox, seq FROM network_events WHERE time < ? ORDER BY time LIMIT ?)`, nanos(now.Add(-s.age)), sweepMost)
	if err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (s egressStore) Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int) (_ []engi.NetworkRecord, err error) {
	defer engi.Annotate(&err, "read network events of %s", id)
	return list(ctx, s.db.read, func(row scanner) (e engi.NetworkRecord, err error) {
		var at int64
		var address string
		if err := row.Scan(&e.Sandbox, &e.Seq, &at, &e.Owner, &e.Kind, &e.Allowed, &e.Protocol, &e.Host, &address, &e.Rule, &e.Reason, &e.Up, &e.Down); err != nil {
			return e, err
		}
		e.Time = moment(at)
		if address != "" {
			if e.Address, err = netip.ParseAddrPort(address); err != nil {
				return e, engi.Errorf(engi.Internal, "event %d: address %.60q: %v", e.Seq, address, err)
			}
		}
		return e, nil
	}, `SELECT `+egressColumns+` FROM network_events
		WHERE sandbox = ? AND seq > ? AND (? = '*' OR owner = ?) AND time >= ? ORDER BY seq LIMIT ?`,
		id, seq, viewer, viewer, nanos(time.Now().Add(-s.age)), limit)
}
