package store_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestApprovalsKeepThePromises(t *testing.T) {
	approvalPromises(t, func(t *testing.T) approval.Store { return store.Approvals(storetest.Open(t)) })
}

// TestApprovalsAreInTheLog checks that each change of an approval has one event,
// and none has what a program sent.
func TestApprovalsAreInTheLog(t *testing.T) {
	db := storetest.Open(t)
	s, log, now := store.Approvals(db), store.Events(db), time.Now().UTC()
	ctx := engi.WithActor(t.Context(), "key_maker")
	a := anApproval("ann")
	if _, err := log.Append(ctx, engi.EventSpec{Owner: "ann", Subject: string(a.Sandbox), Type: "sandbox.running"}); err != nil {
		t.Fatal(err)
	}
	a, err := s.Put(t.Context(), a)
	if err != nil || a.Maker != "key_maker" {
		t.Fatalf("%+v %v", a, err)
	}
	a.State, a.Ended, a.Memory.Until = engi.ApprovalAllowed, now, now.Add(time.Hour)
	b, c := anApproval("ann"), anApproval("ann")
	for _, x := range []engi.Approval{b, c} {
		if _, err := s.Put(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	b.State, b.Ended = engi.ApprovalExpired, now
	if err := s.End(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), a); !engi.Is(err, engi.Conflict) {
		t.Errorf("a second end: %v", err)
	}
	if err := s.End(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Abandon(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), "ann", a.ID, now); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[engi.ApprovalID][]string{
		a.ID: {engi.EventApprovalRequested, engi.EventApprovalDecided, engi.EventApprovalForgotten},
		b.ID: {engi.EventApprovalRequested, engi.EventApprovalExpired},
		c.ID: {engi.EventApprovalRequested, engi.EventApprovalAbandoned},
	} {
		events, err := log.List(t.Context(), "ann", engi.EventFilter{Subject: string(id), Oldest: true})
		if err != nil || len(events) != len(want) {
			t.Fatalf("%d events, want %v: %v", len(events), want, err)
		}
		for i, e := range events {
			if e.Type != want[i] {
				t.Errorf("event %d is %s, want %s", i, e.Type, want[i])
			}
		}
	}
}
