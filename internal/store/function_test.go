package store_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/store"
)

// TestWorkflowForgets keeps what has not ended, and of the rest what is young
// and not too much.
func TestWorkflowForgets(t *testing.T) {
	s := store.Functions(openDB(t))
	now := time.Now().UTC()
	put := func(age time.Duration, ended bool) engi.FunctionRunID {
		t.Helper()
		r := function.Record{FunctionRun: engi.FunctionRun{ID: engi.NewFunctionRunID(), Owner: "anna", Function: "f", State: engi.FunctionQueued, Created: now.Add(-age)}}
		if ended {
			r.State, r.Ended = engi.FunctionDone, r.Created
		}
		if err := s.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := s.Step(t.Context(), r, engi.FunctionStep{Name: "s", Attempts: 1, Started: now, Ended: now}); err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	open, old := put(100*time.Hour, false), put(100*time.Hour, true)
	var young []engi.FunctionRunID
	for i := range 4 {
		young = append(young, put(time.Duration(4-i)*time.Hour, true))
	}
	if err := s.Forget(t.Context(), now.Add(-50*time.Hour), 3); err != nil {
		t.Fatal(err)
	}
	for id, kept := range map[engi.FunctionRunID]bool{open: true, old: false, young[0]: false, young[1]: true, young[2]: true, young[3]: true} {
		r, err := s.Run(t.Context(), "anna", id)
		if (err == nil) != kept || kept && len(r.Steps) != 1 || err != nil && !engi.Is(err, engi.NotFound) {
			t.Errorf("run %s: %+v %v, want kept %v", id, r, err, kept)
		}
	}
}
