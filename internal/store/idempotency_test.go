package store_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/store"
)

func TestIdempotency(t *testing.T) {
	db := openDB(t)
	s, ctx := store.Idempotency(db), t.Context()
	at := time.Now().UTC().Truncate(time.Millisecond)
	r := idempotency.Reservation{Owner: "ann", Key: "k", Fingerprint: "f", IDs: []string{"a", "b"}, Created: at}

	if got, fresh, err := s.Reserve(ctx, r); err != nil || !fresh || len(got.IDs) != 2 {
		t.Fatalf("first: %+v %t %v", got, fresh, err)
	}
	again := r
	again.Fingerprint, again.IDs, again.Created = "other", []string{"c"}, at.Add(time.Hour)
	if got, fresh, err := s.Reserve(ctx, again); err != nil || fresh || got.Fingerprint != "f" || got.IDs[1] != "b" || got.Done || !got.Created.Equal(at) {
		t.Errorf("second: %+v %t %v", got, fresh, err)
	}
	other := r
	other.Owner = "bob"
	if _, fresh, err := s.Reserve(ctx, other); err != nil || !fresh {
		t.Errorf("of another owner: %t %v", fresh, err)
	}

	// What was released is free; what was finished is not.
	if err := s.Release(ctx, r); err != nil {
		t.Fatal(err)
	}
	if _, fresh, err := s.Reserve(ctx, r); err != nil || !fresh {
		t.Errorf("after release: %t %v", fresh, err)
	}
	r.IDs = []string{"made"}
	if err := s.Finish(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx, r); err != nil {
		t.Fatal(err)
	}
	if got, fresh, err := s.Reserve(ctx, again); err != nil || fresh || !got.Done || got.IDs[0] != "made" {
		t.Errorf("after the end: %+v %t %v", got, fresh, err)
	}

	// One that is a week old is forgotten.
	late := again
	late.Created = at.Add(7*24*time.Hour + time.Second)
	if got, fresh, err := s.Reserve(ctx, late); err != nil || !fresh || got.IDs[0] != "c" {
		t.Errorf("a week later: %+v %t %v", got, fresh, err)
	}
}
