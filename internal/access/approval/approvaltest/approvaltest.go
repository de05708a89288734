// Package approvaltest holds the promises of [approval.Store] as tests.
package approvaltest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
)

var at = time.Date(2026, 11, 20, 23, 0, 0, 123456000, time.UTC)

// Of returns a pending approval of owner.
func Of(owner engi.Owner) engi.Approval {
	return engi.Approval{
		ID: engi.NewApprovalID(), State: engi.ApprovalPending, Created: at, Expires: at.Add(time.Minute), BodySize: 5, Digest: "d",
		HeldRequest: engi.HeldRequest{
			Owner: owner, Sandbox: engi.NewSandboxID(), Host: "api.example.com", Port: 443, Method: "POST", Path: "/v1/x",
			Secrets: []string{"a", "b"}, Rule: "ask POST api.example.com", Body: []byte("\xff\x00x"),
		},
	}
}

// Run holds a store to its promises. Each call of open returns an empty one.
func Run(t *testing.T, open func(*testing.T) approval.Store) {
	put := func(t *testing.T, s approval.Store, a engi.Approval) engi.Approval {
		t.Helper()
		a, err := s.Put(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	end := func(t *testing.T, s approval.Store, a engi.Approval, state engi.ApprovalState, ended time.Time) engi.Approval {
		t.Helper()
		a.State, a.Ended = state, ended
		if err := s.End(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	same := func(t *testing.T, s approval.Store, f engi.ApprovalFilter, owner engi.Owner, now time.Time, want ...engi.Approval) {
		t.Helper()
		got, err := s.List(t.Context(), owner, f, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v of %q (-want +got):\n%s", f, owner, diff)
		}
	}
	wantKind := func(t *testing.T, what string, err error, kind engi.Kind) {
		t.Helper()
		if !engi.Is(err, kind) {
			t.Errorf("%s: %v, want kind %s", what, err, kind)
		}
	}

	t.Run("1 Put", func(t *testing.T) {
		s := open(t)
		a := put(t, s, Of("ann"))
		if a.Maker != "" {
			t.Errorf("the maker of a sandbox without events is %q", a.Maker)
		}
		same(t, s, engi.ApprovalFilter{}, "", at, a)
		_, err := s.Put(t.Context(), a)
		wantKind(t, "the same ID", err, engi.Conflict)
	})
	t.Run("2 End", func(t *testing.T) {
		s := open(t)
		for _, state := range engi.ApprovalStates()[1:] {
			a := put(t, s, Of("ann"))
			a.Decider, a.Reason, a.Record, a.Signature, a.PublicKey = "key_x", "because", []byte(`{"a":1}`), []byte{1}, []byte{2}
			a.Memory = engi.ApprovalMemory{Until: at.Add(time.Hour), AllSandboxes: true, WholeRule: true}
			a = end(t, s, a, state, at.Add(time.Second))
			got, err := s.Get(t.Context(), "ann", a.ID)
			if diff := cmp.Diff(a, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			for _, next := range engi.ApprovalStates() {
				b := a
				b.State = next
				wantKind(t, string(state+" to "+next), s.End(t.Context(), b), engi.Conflict)
			}
		}
		wantKind(t, "one that is not there", s.End(t.Context(), denied(Of("ann"))), engi.NotFound)
	})
	t.Run("3 Get", func(t *testing.T) {
		s := open(t)
		a := put(t, s, Of("ann"))
		for owner, ok := range map[engi.Owner]bool{"ann": true, "": true, "bob": false} {
			got, err := s.Get(t.Context(), owner, a.ID)
			if ok {
				if diff := cmp.Diff(a, got); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				continue
			}
			wantKind(t, "another's", err, engi.NotFound)
		}
	})
	t.Run("4 List", func(t *testing.T) {
		s := open(t)
		a, b, c := put(t, s, Of("ann")), put(t, s, Of("bob")), put(t, s, Of("ann"))
		c.Memory.Until = at.Add(time.Hour)
		c = end(t, s, c, engi.ApprovalAllowed, at)
		same(t, s, engi.ApprovalFilter{}, "", at, c, b, a)
		same(t, s, engi.ApprovalFilter{}, "ann", at, c, a)
		same(t, s, engi.ApprovalFilter{Limit: 1}, "ann", at, c)
		same(t, s, engi.ApprovalFilter{State: engi.ApprovalPending}, "ann", at, a)
		same(t, s, engi.ApprovalFilter{Remembered: true}, "", at, c)
		same(t, s, engi.ApprovalFilter{Remembered: true}, "", at.Add(time.Hour))
		same(t, s, engi.ApprovalFilter{}, "carl", at)
	})
	t.Run("5 Forget", func(t *testing.T) {
		s := open(t)
		a := put(t, s, Of("ann"))
		wantKind(t, "a pending one", s.Forget(t.Context(), "ann", a.ID, at), engi.Conflict)
		a.Memory.Until = at.Add(time.Hour)
		a = end(t, s, a, engi.ApprovalDenied, at)
		wantKind(t, "another's", s.Forget(t.Context(), "bob", a.ID, at), engi.NotFound)
		wantKind(t, "too late", s.Forget(t.Context(), "ann", a.ID, at.Add(time.Hour)), engi.Conflict)
		if err := s.Forget(t.Context(), "ann", a.ID, at.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		same(t, s, engi.ApprovalFilter{Remembered: true}, "", at.Add(time.Minute))
		wantKind(t, "again", s.Forget(t.Context(), "ann", a.ID, at.Add(time.Minute)), engi.Conflict)
	})
	t.Run("6 Abandon", func(t *testing.T) {
		s := open(t)
		a, b, c := put(t, s, Of("ann")), put(t, s, Of("bob")), put(t, s, Of("ann"))
		b = end(t, s, b, engi.ApprovalExpired, at)
		for _, want := range []int{2, 0} {
			if n, err := s.Abandon(t.Context(), at.Add(time.Second)); n != want || err != nil {
				t.Errorf("%d %v, want %d", n, err, want)
			}
		}
		a.State, a.Ended = engi.ApprovalAbandoned, at.Add(time.Second)
		c.State, c.Ended = a.State, a.Ended
		same(t, s, engi.ApprovalFilter{}, "", at, c, b, a)
	})
	t.Run("7 Trim", func(t *testing.T) {
		s := open(t)
		var all []engi.Approval
		for range 5 {
			all = append(all, put(t, s, Of("ann")))
		}
		bobs := end(t, s, put(t, s, Of("bob")), engi.ApprovalDenied, at)
		all[0].Memory.Until = at.Add(time.Hour) // remembered
		for i := range 4 {
			all[i] = end(t, s, all[i], engi.ApprovalAllowed, at.Add(time.Duration(i)*time.Minute))
		}
		trim := func(keep int, before, now time.Time) {
			t.Helper()
			if err := s.Trim(t.Context(), keep, before, now); err != nil {
				t.Fatal(err)
			}
		}
		trim(2, at, at)
		same(t, s, engi.ApprovalFilter{}, "", at, bobs, all[4], all[3], all[2], all[0])
		trim(2, at.Add(3*time.Minute), at)
		same(t, s, engi.ApprovalFilter{}, "", at, all[4], all[3], all[0])
		trim(0, at.Add(2*time.Hour), at.Add(time.Hour))
		same(t, s, engi.ApprovalFilter{}, "", at, all[4])
	})
}

// denied returns a with an end.
func denied(a engi.Approval) engi.Approval {
	a.State, a.Ended = engi.ApprovalDenied, at
	return a
}
