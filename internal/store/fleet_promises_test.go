package store

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
)

// fleetPromises checks every promise of fleet.Store. open returns an empty store.
func fleetPromises(t *testing.T, open func(t *testing.T) fleet.Store) {
	ctx := context.Background()
	equal := func(t *testing.T, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	kind := func(t *testing.T, err error, want engi.Kind) {
		t.Helper()
		if !engi.Is(err, want) {
			t.Errorf("error %v, want kind %s", err, want)
		}
	}
	ok := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(t *testing.T, s fleet.Store, r fleet.Record) fleet.Record {
		t.Helper()
		err := s.Create(ctx, r, nil)
		ok(t, err)
		return r
	}

	t.Run("1 Create/keeps every field", func(t *testing.T) {
		s := open(t)
		for _, state := range []engi.ExecutionState{engi.ExecutionQueued, engi.ExecutionRunning, engi.ExecutionDone, engi.ExecutionRefused} {
			r := fleettest.Record("alice", state)
			r.Idempotency, r.Fingerprint = string(state), "f"
			create(t, s, r)
			got, err := s.Get(ctx, "alice", r.ID)
			ok(t, err)
			equal(t, got, r)
		}
	})
	t.Run("1 Create/the sandbox with it", func(t *testing.T) {
		s := open(t)
		r, b := fleettest.Record("alice", engi.ExecutionRunning), fleettest.Sandbox("alice", engi.Running)
		err := s.Create(ctx, r, &b)
		ok(t, err)
		got, err := s.GetSandbox(ctx, "alice", b.ID)
		ok(t, err)
		equal(t, got, b)
	})
	t.Run("1 Create/a key used before", func(t *testing.T) {
		s := open(t)
		first := fleettest.Record("alice", engi.ExecutionDone)
		first.Idempotency, first.Fingerprint = "k", "f"
		create(t, s, first)
		second, b := fleettest.Record("alice", engi.ExecutionRunning), fleettest.Sandbox("alice", engi.Running)
		second.Idempotency = "k"
		err := s.Create(ctx, second, &b)
		kind(t, err, engi.Conflict)
		got, err := s.ByIdempotencyKey(ctx, "alice", "k")
		ok(t, err)
		equal(t, got, first)
		_, err = s.Get(ctx, engi.Everyone, second.ID)
		kind(t, err, engi.NotFound)
		_, err = s.GetSandbox(ctx, engi.Everyone, b.ID)
		kind(t, err, engi.NotFound)

		other := fleettest.Record("bob", engi.ExecutionRunning)
		other.Idempotency = "k"
		create(t, s, other)
		got, err = s.ByIdempotencyKey(ctx, "bob", "k")
		ok(t, err)
		equal(t, got, other)
		_, err = s.ByIdempotencyKey(ctx, "carol", "k")
		kind(t, err, engi.NotFound)
	})
	t.Run("1 Create/one winner among many", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		results := make(chan error, 20)
		for range 20 {
			wg.Go(func() {
				r := fleettest.Record("alice", engi.ExecutionRunning)
				r.Idempotency = "k"
				err := s.Create(ctx, r, nil)
				results <- err
			})
		}
		wg.Wait()
		close(results)
		won := 0
		for err := range results {
			if err == nil {
				won++
			} else {
				kind(t, err, engi.Conflict)
			}
		}
		equal(t, won, 1)
	})
	t.Run("2 Update/only from the stored state", func(t *testing.T) {
		s := open(t)
		r := create(t, s, fleettest.Record("alice", engi.ExecutionRunning))
		b := fleettest.Sandbox("alice", engi.Stopping)
		done := fleettest.Record("alice", engi.ExecutionDone)
		done.ID = r.ID
		kind(t, s.Update(ctx, engi.ExecutionQueued, done, &b), engi.Conflict)
		_, err := s.GetSandbox(ctx, engi.Everyone, b.ID)
		kind(t, err, engi.NotFound)
		ok(t, s.Update(ctx, engi.ExecutionRunning, done, &b))
		got, err := s.Get(ctx, "alice", r.ID)
		ok(t, err)
		equal(t, got, done)
		_, err = s.GetSandbox(ctx, engi.Everyone, b.ID)
		ok(t, err)
		kind(t, s.Update(ctx, engi.ExecutionRunning, done, nil), engi.Conflict)
		kind(t, s.Update(ctx, engi.ExecutionRunning, fleettest.Record("alice", engi.ExecutionDone), nil), engi.NotFound)
	})
	t.Run("2 Update/cannot change what is fixed", func(t *testing.T) {
		s := open(t)
		r := fleettest.Record("alice", engi.ExecutionQueued)
		r.Idempotency = "k"
		create(t, s, r)
		x := r
		x.State, x.Owner, x.Idempotency, x.Created = engi.ExecutionRunning, "bob", "z", time.Now().UTC()
		ok(t, s.Update(ctx, engi.ExecutionQueued, x, nil))
		got, err := s.Get(ctx, "alice", r.ID)
		ok(t, err)
		r.State = engi.ExecutionRunning
		equal(t, got, r)
	})
	t.Run("3 Get/other owners see nothing", func(t *testing.T) {
		s := open(t)
		r := create(t, s, fleettest.Record("alice", engi.ExecutionDone))
		_, err := s.Get(ctx, "bob", r.ID)
		kind(t, err, engi.NotFound)
		got, err := s.Get(ctx, engi.Everyone, r.ID)
		ok(t, err)
		equal(t, got, r)
		_, err = s.Get(ctx, engi.Everyone, engi.NewExecutionID())
		kind(t, err, engi.NotFound)
	})
	t.Run("4 List/newest first, in pages, without output", func(t *testing.T) {
		s := open(t)
		var ids []engi.ExecutionID
		for i := range 7 {
			owner := engi.Owner("alice")
			if i == 3 {
				owner = "bob"
			}
			state := engi.ExecutionDone
			if i%2 == 0 {
				state = engi.ExecutionRunning
			}
			ids = append(ids, create(t, s, fleettest.Record(owner, state)).ID)
		}
		list := func(viewer engi.Viewer, f engi.ExecutionFilter) (got []engi.ExecutionID) {
			recs, err := s.List(ctx, viewer, f)
			ok(t, err)
			for _, r := range recs {
				got = append(got, r.ID)
				if r.Output != nil {
					t.Error("a listed record has its output")
				}
			}
			return got
		}
		pick := func(n ...int) (want []engi.ExecutionID) {
			for _, i := range n {
				want = append(want, ids[i])
			}
			return want
		}
		equal(t, list("alice", engi.ExecutionFilter{}), pick(6, 5, 4, 2, 1, 0))
		equal(t, list(engi.Everyone, engi.ExecutionFilter{}), pick(6, 5, 4, 3, 2, 1, 0))
		equal(t, list("alice", engi.ExecutionFilter{Limit: 2}), pick(6, 5))
		equal(t, list("alice", engi.ExecutionFilter{Limit: 2, Before: ids[5]}), pick(4, 2))
		equal(t, list(engi.Everyone, engi.ExecutionFilter{State: engi.ExecutionRunning}), pick(6, 4, 2, 0))
		equal(t, list("bob", engi.ExecutionFilter{State: engi.ExecutionDone}), pick(3))
		equal(t, len(list("carol", engi.ExecutionFilter{})), 0)
		equal(t, len(list(engi.Everyone, engi.ExecutionFilter{Before: engi.NewExecutionID()})), 0)
	})
	t.Run("5 Expire/old ones and too many, never live ones", func(t *testing.T) {
		s := open(t)
		old := time.Unix(1_000_000, 0).UTC()
		live := fleettest.Record("alice", engi.ExecutionRunning)
		live.Created = old
		create(t, s, live)
		var ids []engi.ExecutionID
		var sandboxes []engi.SandboxID
		for i := range 6 {
			r, b := fleettest.Record("alice", engi.ExecutionDone), fleettest.Sandbox("alice", engi.Stopped)
			r.Ended = old.Add(time.Duration(i) * time.Hour)
			b.Execution, b.Stopped = r.ID, r.Ended
			err := s.Create(ctx, r, &b)
			ok(t, err)
			ids, sandboxes = append(ids, r.ID), append(sandboxes, b.ID)
		}
		unused := fleettest.Sandbox("", engi.Stopped)
		unused.Stopped = old
		ok(t, s.PutSandbox(ctx, unused))
		gone, err := s.Expire(ctx, old.Add(2*time.Hour), 100, 100)
		ok(t, err)
		slices.Sort(gone)
		equal(t, gone, slices.Sorted(slices.Values(ids[:2])))
		for _, id := range []engi.SandboxID{unused.ID, sandboxes[0]} {
			_, err = s.GetSandbox(ctx, engi.Everyone, id)
			kind(t, err, engi.NotFound)
		}
		_, err = s.GetSandbox(ctx, engi.Everyone, sandboxes[2])
		ok(t, err)
		gone, err = s.Expire(ctx, time.Time{}, 3, 100)
		ok(t, err)
		equal(t, gone, ids[2:3])
		gone, err = s.Expire(ctx, old.Add(1000*time.Hour), 3, 2)
		ok(t, err)
		equal(t, len(gone), 2)
		_, err = s.Get(ctx, engi.Everyone, live.ID)
		ok(t, err)
	})
	t.Run("6-9 sandboxes", func(t *testing.T) {
		s := open(t)
		a, b, c := fleettest.Sandbox("", engi.Ready), fleettest.Sandbox("alice", engi.Running), fleettest.Sandbox("alice", engi.Stopped)
		for _, r := range []fleet.SandboxRecord{a, b, c} {
			ok(t, s.PutSandbox(ctx, r))
		}
		got, err := s.ListSandboxes(ctx, engi.Everyone)
		ok(t, err)
		equal(t, got, []fleet.SandboxRecord{b, a})
		got, err = s.ListSandboxes(ctx, "alice")
		ok(t, err)
		equal(t, got, []fleet.SandboxRecord{b})
		_, err = s.GetSandbox(ctx, "bob", b.ID)
		kind(t, err, engi.NotFound)
		one, err := s.GetSandbox(ctx, "alice", c.ID)
		ok(t, err)
		equal(t, one, c)

		a.Owner, a.State, a.Execution, a.Size.Memory = "bob", engi.Running, engi.NewExecutionID(), 99
		ok(t, s.PutSandbox(ctx, a))
		one, err = s.GetSandbox(ctx, "bob", a.ID)
		ok(t, err)
		equal(t, one, a)

		ok(t, s.ForgetSandbox(ctx, b.ID))
		ok(t, s.ForgetSandbox(ctx, b.ID))
		_, err = s.GetSandbox(ctx, engi.Everyone, b.ID)
		kind(t, err, engi.NotFound)
	})
	t.Run("6-12 sandboxes of owners", func(t *testing.T) {
		s := open(t)
		a, b, gone := fleettest.Owned("alice", engi.Running), fleettest.Owned("alice", engi.Hibernated), fleettest.Owned("alice", engi.Stopped)
		a.Idempotency = "k"
		pooled := fleettest.Sandbox("", engi.Ready)
		for _, r := range []fleet.SandboxRecord{a, b, gone, pooled} {
			ok(t, s.PutSandbox(ctx, r))
		}
		one, err := s.GetSandbox(ctx, "alice", a.ID)
		ok(t, err)
		equal(t, one, a)
		list, err := s.ListSandboxes(ctx, "alice")
		ok(t, err)
		equal(t, list, []fleet.SandboxRecord{b, a})
		again := fleettest.Owned("alice", engi.Running)
		again.Idempotency = "k"
		kind(t, s.PutSandbox(ctx, again), engi.Conflict)
		other := again
		other.Owner = "bob"
		ok(t, s.PutSandbox(ctx, other))
		one, err = s.SandboxByIdempotencyKey(ctx, "alice", "k")
		ok(t, err)
		equal(t, one, a)
		_, err = s.SandboxByIdempotencyKey(ctx, "alice", "z")
		kind(t, err, engi.NotFound)
		list, err = s.EndedSandboxes(ctx, "alice", fleet.SandboxRecord{}, 10)
		ok(t, err)
		equal(t, list, []fleet.SandboxRecord{gone})
		list, err = s.EndedSandboxes(ctx, "alice", gone, 10)
		ok(t, err)
		equal(t, len(list), 0)
		list, err = s.EndedSandboxes(ctx, "bob", fleet.SandboxRecord{}, 10)
		ok(t, err)
		equal(t, len(list), 0)
		for since, want := range map[time.Time]int{a.Created: 3, a.Created.Add(time.Hour): 0} {
			n, err := s.CountSandboxes(ctx, "alice", since)
			ok(t, err)
			equal(t, n, want)
		}

		// A pool's instance becomes a sandbox's.
		taken := fleettest.Owned("carol", engi.Running)
		taken.ID = pooled.ID
		ok(t, s.PutSandbox(ctx, taken))
		one, err = s.GetSandbox(ctx, "carol", pooled.ID)
		ok(t, err)
		equal(t, one, taken)
	})
	t.Run("an ended context is Expired", func(t *testing.T) {
		s := open(t)
		over, cancel := context.WithCancel(ctx)
		cancel()
		err := s.Create(over, fleettest.Record("alice", engi.ExecutionQueued), nil)
		kind(t, err, engi.Expired)
		_, err = s.Get(over, engi.Everyone, engi.NewExecutionID())
		kind(t, err, engi.Expired)
	})
	t.Run("many at once", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 10 {
					r := fleettest.Record(engi.Owner(fmt.Sprint(i)), engi.ExecutionRunning)
					b := fleettest.Sandbox(r.Owner, engi.Running)
					if err := s.Create(ctx, r, &b); err != nil {
						t.Error(err)
						return
					}
					done := fleettest.Record(r.Owner, engi.ExecutionDone)
					done.ID = r.ID
					b.State = engi.Stopping
					if err := s.Update(ctx, engi.ExecutionRunning, done, &b); err != nil {
						t.Error(err)
					}
					if _, err := s.Get(ctx, r.Owner.Viewer(), r.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		recs, err := s.List(ctx, engi.Everyone, engi.ExecutionFilter{State: engi.ExecutionDone, Limit: 1000})
		ok(t, err)
		equal(t, len(recs), 80)
	})
}
