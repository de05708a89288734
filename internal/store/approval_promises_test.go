package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
)

var approvedAt = time.Date(2026, 11, 20, 23, 0, 0, 123456000, time.UTC)

// anApproval returns a pending approval of owner.
func anApproval(owner engi.Owner) engi.Approval {
	return engi.Approval{
		ID: engi.NewApprovalID(), State: engi.ApprovalPending, Created: approvedAt, Expires: approvedAt.Add(time.Minute), BodySize: 5, Digest: "d", BodyHash: "b",
		HeldRequest: engi.HeldRequest{
			Owner: owner, Sandbox: engi.NewSandboxID(), Host: "api.example.com", Port: 443, Method: "POST", Path: "/v1/x",
			Secrets: []string{"a", "b"}, Rule: "ask_exact POST api.example.com", Exact: true, Body: []byte("\xff\x00x"),
		},
	}
}

// approvalPromises holds an [approval.Store] to its promises. Each call of open returns an empty one.
func approvalPromises(t *testing.T, open func(*testing.T) approval.Store) {
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
	same := func(t *testing.T, s approval.Store, f engi.ApprovalFilter, viewer engi.Viewer, now time.Time, want ...engi.Approval) {
		t.Helper()
		got, err := s.List(t.Context(), viewer, f, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v of %q (-want +got):\n%s", f, viewer, diff)
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
		a := put(t, s, anApproval("ann"))
		if a.Maker != "" {
			t.Errorf("the maker of a sandbox without events is %q", a.Maker)
		}
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, a)
		_, err := s.Put(t.Context(), a)
		wantKind(t, "the same ID", err, engi.Conflict)
	})
	t.Run("2 End", func(t *testing.T) {
		s := open(t)
		for _, state := range engi.ApprovalStates()[1:] {
			a := put(t, s, anApproval("ann"))
			a.Decider, a.Reason, a.Record, a.Signature, a.PublicKey = "key_x", "because", []byte(`{"a":1}`), []byte{1}, []byte{2}
			a.Memory = engi.ApprovalMemory{Until: approvedAt.Add(time.Hour), AllSandboxes: true, WholeRule: true, Exact: true}
			a = end(t, s, a, state, approvedAt.Add(time.Second))
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
		wantKind(t, "one that is not there", s.End(t.Context(), deniedApproval(anApproval("ann"))), engi.NotFound)
	})
	t.Run("3 Get", func(t *testing.T) {
		s := open(t)
		a := put(t, s, anApproval("ann"))
		for viewer, ok := range map[engi.Viewer]bool{"ann": true, engi.Everyone: true, "": false, "bob": false} {
			got, err := s.Get(t.Context(), viewer, a.ID)
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
		a, b, c := put(t, s, anApproval("ann")), put(t, s, anApproval("bob")), put(t, s, anApproval("ann"))
		c.Memory.Until = approvedAt.Add(time.Hour)
		c = end(t, s, c, engi.ApprovalAllowed, approvedAt)
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, c, b, a)
		same(t, s, engi.ApprovalFilter{}, "ann", approvedAt, c, a)
		same(t, s, engi.ApprovalFilter{Limit: 1}, "ann", approvedAt, c)
		same(t, s, engi.ApprovalFilter{State: engi.ApprovalPending}, "ann", approvedAt, a)
		same(t, s, engi.ApprovalFilter{Remembered: true}, engi.Everyone, approvedAt, c)
		same(t, s, engi.ApprovalFilter{Remembered: true}, engi.Everyone, approvedAt.Add(time.Hour))
		same(t, s, engi.ApprovalFilter{}, "carl", approvedAt)
		same(t, s, engi.ApprovalFilter{}, "", approvedAt)
	})
	t.Run("5 Forget", func(t *testing.T) {
		s := open(t)
		a := put(t, s, anApproval("ann"))
		wantKind(t, "a pending one", s.Forget(t.Context(), "ann", a.ID, approvedAt), engi.Conflict)
		a.Memory.Until = approvedAt.Add(time.Hour)
		a = end(t, s, a, engi.ApprovalDenied, approvedAt)
		wantKind(t, "another's", s.Forget(t.Context(), "bob", a.ID, approvedAt), engi.NotFound)
		wantKind(t, "too late", s.Forget(t.Context(), "ann", a.ID, approvedAt.Add(time.Hour)), engi.Conflict)
		if err := s.Forget(t.Context(), "ann", a.ID, approvedAt.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		same(t, s, engi.ApprovalFilter{Remembered: true}, engi.Everyone, approvedAt.Add(time.Minute))
		wantKind(t, "again", s.Forget(t.Context(), "ann", a.ID, approvedAt.Add(time.Minute)), engi.Conflict)
	})
	t.Run("6 Abandon", func(t *testing.T) {
		s := open(t)
		a, b, c := put(t, s, anApproval("ann")), put(t, s, anApproval("bob")), put(t, s, anApproval("ann"))
		b = end(t, s, b, engi.ApprovalExpired, approvedAt)
		for _, want := range []int{2, 0} {
			if n, err := s.Abandon(t.Context(), approvedAt.Add(time.Second)); n != want || err != nil {
				t.Errorf("%d %v, want %d", n, err, want)
			}
		}
		a.State, a.Ended = engi.ApprovalAbandoned, approvedAt.Add(time.Second)
		c.State, c.Ended = a.State, a.Ended
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, c, b, a)
	})
	t.Run("7 Trim", func(t *testing.T) {
		s := open(t)
		var all []engi.Approval
		for range 5 {
			all = append(all, put(t, s, anApproval("ann")))
		}
		bobs := end(t, s, put(t, s, anApproval("bob")), engi.ApprovalDenied, approvedAt)
		all[0].Memory.Until = approvedAt.Add(time.Hour) // remembered
		for i := range 4 {
			all[i] = end(t, s, all[i], engi.ApprovalAllowed, approvedAt.Add(time.Duration(i)*time.Minute))
		}
		trim := func(keep int, before, now time.Time) {
			t.Helper()
			if err := s.Trim(t.Context(), keep, before, now); err != nil {
				t.Fatal(err)
			}
		}
		trim(2, approvedAt, approvedAt)
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, bobs, all[4], all[3], all[2], all[0])
		trim(2, approvedAt.Add(3*time.Minute), approvedAt)
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, all[4], all[3], all[0])
		trim(0, approvedAt.Add(2*time.Hour), approvedAt.Add(time.Hour))
		same(t, s, engi.ApprovalFilter{}, engi.Everyone, approvedAt, all[4])
	})
}

// denied returns a with an end.
func deniedApproval(a engi.Approval) engi.Approval {
	a.State, a.Ended = engi.ApprovalDenied, approvedAt
	return a
}
