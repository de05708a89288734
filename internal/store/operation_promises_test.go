package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/operation"
)

// operationPromises holds an [operation.Store] to its promises; open returns an empty one.
func operationPromises(t *testing.T, open func(*testing.T) operation.Store) {
	at := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	op := func(owner engi.Owner, n int) engi.Operation {
		return engi.Operation{
			ID: engi.NewOperationID(), Owner: owner, Type: engi.OperationBuildTemplate, Subject: "base", State: engi.OperationRunning,
			Input: json.RawMessage(`{"definition":"x"}`), Attempt: 1, Created: at.Add(time.Duration(n) * time.Second),
		}
	}
	kind := func(t *testing.T, err error, want engi.Kind) {
		t.Helper()
		if !engi.Is(err, want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	same := func(t *testing.T, got, want any) {
		t.Helper()
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b *engi.Error) bool {
			return a == b || a != nil && b != nil && a.Kind == b.Kind && a.Text == b.Text && a.Remedy == b.Remedy
		})); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	light := func(op engi.Operation) engi.Operation { op.Input = nil; return op }

	t.Run("1 and 3/what was put is there for its owner", func(t *testing.T) {
		s, mine := open(t), op("ann", 0)
		if err := s.Put(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		kind(t, s.Put(t.Context(), mine), engi.Conflict)
		for _, viewer := range []engi.Viewer{"ann", engi.Everyone} {
			got, err := s.Get(t.Context(), viewer, mine.ID)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, mine)
		}
		_, err := s.Get(t.Context(), "bob", mine.ID)
		kind(t, err, engi.NotFound)
	})
	t.Run("2/an end is for ever", func(t *testing.T) {
		s, x := open(t), op("ann", 0)
		kind(t, s.Update(t.Context(), x), engi.NotFound)
		if err := s.Put(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		x.Attempt = 2
		if err := s.Update(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		x.State, x.Ended, x.Error = engi.OperationFailed, at.Add(time.Hour), engi.Errorf(engi.Invalid, "no such suite").WithRemedy("choose another")
		if err := s.Update(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		got, err := s.Get(t.Context(), "ann", x.ID)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, x)
		x.State = engi.OperationDone
		kind(t, s.Update(t.Context(), x), engi.Conflict)
	})
	t.Run("4 and 5/lists", func(t *testing.T) {
		s := open(t)
		a, b, c := op("ann", 0), op("bob", 1), op("ann", 2)
		for _, x := range []engi.Operation{a, b, c} {
			if err := s.Put(t.Context(), x); err != nil {
				t.Fatal(err)
			}
		}
		a.State, a.Ended = engi.OperationDone, at.Add(time.Minute)
		if err := s.Update(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for _, q := range []struct {
			viewer engi.Viewer
			f      engi.OperationFilter
			want   []engi.Operation
		}{
			{"ann", engi.OperationFilter{}, []engi.Operation{light(c), light(a)}},
			{engi.Everyone, engi.OperationFilter{Limit: 2}, []engi.Operation{light(c), light(b)}},
			{engi.Everyone, engi.OperationFilter{State: engi.OperationDone}, []engi.Operation{light(a)}},
			{"bob", engi.OperationFilter{Type: "other"}, nil},
		} {
			got, err := s.List(t.Context(), q.viewer, q.f)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, q.want)
		}
		running, err := s.Running(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, running, []engi.Operation{b, c})
	})
	t.Run("6/old ones are forgotten", func(t *testing.T) {
		s := open(t)
		var ids []engi.OperationID
		for n := range 6 {
			x := op("ann", n)
			if err := s.Put(t.Context(), x); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, x.ID)
			if n == 0 {
				continue // this one goes on
			}
			x.State, x.Ended = engi.OperationDone, at.Add(time.Duration(n)*time.Hour)
			if err := s.Update(t.Context(), x); err != nil {
				t.Fatal(err)
			}
		}
		gone, err := s.Forget(t.Context(), 3, at)
		if err != nil {
			t.Fatal(err)
		}
		same(t, gone, ids[1:3])
		if gone, err = s.Forget(t.Context(), 3, at.Add(4*time.Hour)); err != nil {
			t.Fatal(err)
		}
		same(t, gone, ids[3:4])
		if _, err := s.Get(t.Context(), "ann", ids[0]); err != nil {
			t.Errorf("the one that goes on: %v", err)
		}
	})
}
