// Package fleettest holds what the fleet room promises and needs, for tests:
// the in-memory twin of its Store, and the suite of promises that every Store
// must keep.
package fleettest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet"
)

// A Store is the twin of the SQL shelf: it keeps the same promises in memory.
// It is safe for concurrent use.
type Store struct {
	mu        sync.Mutex
	records   []fleet.Record // in the order of creation; guarded by mu
	sandboxes []fleet.SandboxRecord
	fault     func(act string) error
}

var _ fleet.Store = (*Store)(nil)

// NewStore returns an empty store.
func NewStore() *Store { return &Store{} }

// Fail makes every later act for which f returns an error fail with it; nil
// ends that. Acts are named like the methods.
func (s *Store) Fail(f func(act string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// enter locks the store for an act, unless ctx or the test forbids it.
func (s *Store) enter(ctx context.Context, act string) error {
	if err := ctx.Err(); err != nil {
		return engi.Errorf(engi.Expired, "%s: %v", act, err)
	}
	s.mu.Lock()
	if s.fault != nil {
		if err := s.fault(act); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	return nil
}

func (s *Store) find(id engi.ExecutionID) int {
	return slices.IndexFunc(s.records, func(r fleet.Record) bool { return r.ID == id })
}

// Create implements fleet.ExecutionStore.
func (s *Store) Create(ctx context.Context, r fleet.Record, b *fleet.SandboxRecord) (fleet.Record, error) {
	if err := s.enter(ctx, "Create"); err != nil {
		return fleet.Record{}, err
	}
	defer s.mu.Unlock()
	for _, older := range s.records {
		if r.Idempotency != "" && older.Owner == r.Owner && older.Idempotency == r.Idempotency {
			return older, engi.Errorf(engi.Conflict, "idempotency key used before, by execution %s", older.ID)
		}
	}
	s.records = append(s.records, r)
	s.put(b)
	return r, nil
}

// Update implements fleet.ExecutionStore.
func (s *Store) Update(ctx context.Context, from engi.ExecutionState, r fleet.Record, b *fleet.SandboxRecord) error {
	if err := s.enter(ctx, "Update"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	i := s.find(r.ID)
	if i < 0 {
		return engi.Errorf(engi.NotFound, "no execution %s", r.ID)
	}
	old := s.records[i]
	if old.State != from {
		return engi.Errorf(engi.Conflict, "execution %s is %s, not %s", r.ID, old.State, from)
	}
	r.Owner, r.Created, r.Idempotency, r.Fingerprint = old.Owner, old.Created, old.Idempotency, old.Fingerprint
	r.Language, r.Template = old.Language, old.Template
	s.records[i] = r
	s.put(b)
	return nil
}

// Get implements fleet.ExecutionStore.
func (s *Store) Get(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (fleet.Record, error) {
	if err := s.enter(ctx, "Get"); err != nil {
		return fleet.Record{}, err
	}
	defer s.mu.Unlock()
	if i := s.find(id); i >= 0 && (owner == "" || s.records[i].Owner == owner) {
		return s.records[i], nil
	}
	return fleet.Record{}, engi.Errorf(engi.NotFound, "no execution %s", id)
}

// Repeated implements fleet.ExecutionStore.
func (s *Store) Repeated(ctx context.Context, owner engi.Owner, key string) (fleet.Record, error) {
	if err := s.enter(ctx, "Repeated"); err != nil {
		return fleet.Record{}, err
	}
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.Owner == owner && r.Idempotency == key && key != "" {
			return r, nil
		}
	}
	return fleet.Record{}, engi.Errorf(engi.NotFound, "no execution with that key")
}

// List implements fleet.ExecutionStore.
func (s *Store) List(ctx context.Context, owner engi.Owner, f engi.ExecutionFilter) ([]fleet.Record, error) {
	if err := s.enter(ctx, "List"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	end := len(s.records)
	if f.Before != "" {
		end = max(s.find(f.Before), 0)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	var list []fleet.Record
	for _, r := range slices.Backward(s.records[:end]) {
		if len(list) < limit && (owner == "" || r.Owner == owner) && (f.State == "" || r.State == f.State) {
			r.Tape = nil
			list = append(list, r)
		}
	}
	return list, nil
}

// Expire implements fleet.ExecutionStore.
func (s *Store) Expire(ctx context.Context, before time.Time, keep, limit int) ([]engi.ExecutionID, error) {
	if err := s.enter(ctx, "Expire"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var ended []fleet.Record
	for _, r := range s.records {
		if !r.Ended.IsZero() {
			ended = append(ended, r)
		}
	}
	slices.SortStableFunc(ended, func(a, b fleet.Record) int { return a.Ended.Compare(b.Ended) })
	var gone []engi.ExecutionID
	for i, r := range ended {
		if len(gone) < limit && (r.Ended.Before(before) || len(ended)-i > keep) {
			gone = append(gone, r.ID)
		}
	}
	s.records = slices.DeleteFunc(s.records, func(r fleet.Record) bool { return slices.Contains(gone, r.ID) })
	s.sandboxes = slices.DeleteFunc(s.sandboxes, func(b fleet.SandboxRecord) bool {
		return b.State == engi.Stopped && (b.Stopped.Before(before) || b.Execution != "" && slices.Contains(gone, b.Execution))
	})
	return gone, nil
}

func (s *Store) put(b *fleet.SandboxRecord) {
	if b == nil {
		return
	}
	if i := slices.IndexFunc(s.sandboxes, func(o fleet.SandboxRecord) bool { return o.ID == b.ID }); i >= 0 {
		s.sandboxes[i] = *b
		return
	}
	s.sandboxes = append(s.sandboxes, *b)
}

// PutSandbox implements fleet.SandboxStore.
func (s *Store) PutSandbox(ctx context.Context, b fleet.SandboxRecord) error {
	if err := s.enter(ctx, "PutSandbox"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, o := range s.sandboxes {
		if b.Idempotency != "" && o.ID != b.ID && o.Owner == b.Owner && o.Idempotency == b.Idempotency {
			return engi.Errorf(engi.Conflict, "idempotency key used before, by another sandbox")
		}
	}
	s.put(&b)
	return nil
}

// RepeatedSandbox implements fleet.SandboxStore.
func (s *Store) RepeatedSandbox(ctx context.Context, owner engi.Owner, key string) (fleet.SandboxRecord, error) {
	if err := s.enter(ctx, "RepeatedSandbox"); err != nil {
		return fleet.SandboxRecord{}, err
	}
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.Owner == owner && b.Idempotency == key && key != "" {
			return b, nil
		}
	}
	return fleet.SandboxRecord{}, engi.Errorf(engi.NotFound, "no sandbox with that key")
}

// EndedSandboxes implements fleet.SandboxStore.
func (s *Store) EndedSandboxes(ctx context.Context, owner engi.Owner, limit int) ([]fleet.SandboxRecord, error) {
	if err := s.enter(ctx, "EndedSandboxes"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var list []fleet.SandboxRecord
	for _, b := range slices.Backward(s.sandboxes) {
		if b.State == engi.Stopped && (owner == "" || b.Owner == owner) {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b fleet.SandboxRecord) int { return b.Created.Compare(a.Created) })
	return list[:min(limit, len(list))], nil
}

// CountSandboxes implements fleet.SandboxStore.
func (s *Store) CountSandboxes(ctx context.Context, owner engi.Owner, since time.Time) (n int, err error) {
	if err := s.enter(ctx, "CountSandboxes"); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.Made && b.Owner == owner && !b.Created.Before(since) {
			n++
		}
	}
	return n, nil
}

// GetSandbox implements fleet.SandboxStore.
func (s *Store) GetSandbox(ctx context.Context, owner engi.Owner, id engi.SandboxID) (fleet.SandboxRecord, error) {
	if err := s.enter(ctx, "GetSandbox"); err != nil {
		return fleet.SandboxRecord{}, err
	}
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.ID == id && (owner == "" || b.Owner == owner) {
			return b, nil
		}
	}
	return fleet.SandboxRecord{}, engi.Errorf(engi.NotFound, "no sandbox %s", id)
}

// ListSandboxes implements fleet.SandboxStore.
func (s *Store) ListSandboxes(ctx context.Context, owner engi.Owner) ([]fleet.SandboxRecord, error) {
	if err := s.enter(ctx, "ListSandboxes"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var list []fleet.SandboxRecord
	for _, b := range slices.Backward(s.sandboxes) {
		if b.State != engi.Stopped && (owner == "" || b.Owner == owner) {
			list = append(list, b)
		}
	}
	return list, nil
}

// ForgetSandbox implements fleet.SandboxStore.
func (s *Store) ForgetSandbox(ctx context.Context, id engi.SandboxID) error {
	if err := s.enter(ctx, "ForgetSandbox"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.sandboxes = slices.DeleteFunc(s.sandboxes, func(b fleet.SandboxRecord) bool { return b.ID == id })
	return nil
}
