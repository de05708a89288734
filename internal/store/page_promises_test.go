package store_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/page"
)

// A pageFixture is an empty store and what is around it.
type pageFixture struct {
	Store  page.Store
	Events engi.Events
	Begin  func(owner engi.Owner) engi.SessionID // makes a session
	End    func(id engi.SessionID)               // ends it
}

// pagePromises tests every promise of page.Store. Each call of open returns an empty store.
func pagePromises(t *testing.T, open func(t *testing.T) pageFixture) {
	acted := func(t *testing.T, f pageFixture, id engi.SessionID, key string) (seq int64, err error) {
		t.Helper()
		_, err = f.Store.Change(t.Context(), id, func(r *page.Record, emit page.Emit) (err error) {
			if seq, err = emit(engi.EventPageActed, json.RawMessage(`{"action":"a"}`), idempotency.Request{Key: key, Fingerprint: "f"}); err != nil {
				return err
			}
			r.Waiting = append(r.Waiting, page.Action{Seq: seq, Name: "a", Data: json.RawMessage(`{}`), Agent: "ui"})
			return nil
		})
		return seq, err
	}
	t.Run("Change/stores the record and its events", func(t *testing.T) {
		f := open(t)
		id := f.Begin("ann")
		if _, err := f.Store.Get(t.Context(), id); !engi.Is(err, engi.NotFound) {
			t.Errorf("before the first change: %v", err)
		}
		want := page.Record{
			Session: id, Owner: "ann", HTML: `<p title="&amp;">é</p>`,
			Waiting: []page.Action{{Seq: 7, Name: "add", Data: json.RawMessage(`{"a":"<b>"}`), Agent: "ui", Model: "m", Scopes: []engi.Scope{engi.ScopeAgents}}},
			Batch:   &page.Batch{Actions: []page.Action{{Seq: 5, Name: "x", Data: json.RawMessage(`{}`), Agent: "ui"}}, Input: "in", Talk: "cnv", Run: "run_a", Retry: 2, Cancelled: true},
			Modules: []page.Modules{{Run: "run_b", List: []engi.CodeModule{{Path: "lib/a.ts", Exports: []string{"f"}}}}},
		}
		before := time.Now().Add(-time.Second)
		got, err := f.Store.Change(t.Context(), id, func(r *page.Record, emit page.Emit) (err error) {
			if r.Session != id || r.Owner != "ann" || r.Busy() {
				t.Errorf("the first record is %+v", r)
			}
			if want.First, err = emit(engi.EventPageActed, json.RawMessage(`{"action":"<a>"}`), idempotency.Request{}); err != nil {
				return err
			}
			want.Seq, err = emit(engi.EventPageDone, json.RawMessage(`{}`), idempotency.Request{})
			*r = want
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		kept, err := f.Store.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for what, r := range map[string]page.Record{"changed": got, "kept": kept} {
			if d := cmp.Diff(want, r, cmpopts.IgnoreFields(page.Record{}, "Updated")); d != "" || r.Updated.Before(before) {
				t.Errorf("%s at %v (-want +got):\n%s", what, r.Updated, d)
			}
		}
		events, err := f.Events.List(t.Context(), "ann", engi.EventFilter{Subject: string(id), Types: []string{"page.*"}, Oldest: true})
		if err != nil || len(events) != 2 || events[0].Seq != want.First || events[0].Type != engi.EventPageActed || string(events[0].Data) != `{"action":"<a>"}` || events[1].Seq != want.Seq {
			t.Errorf("the events are %+v (%v)", events, err)
		}
	})
	t.Run("Change/stores nothing if it fails", func(t *testing.T) {
		f := open(t)
		id := f.Begin("ann")
		if _, err := acted(t, f, id, ""); err != nil {
			t.Fatal(err)
		}
		want, err := f.Store.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Store.Change(t.Context(), id, func(r *page.Record, emit page.Emit) error {
			r.HTML, r.Waiting = "other", nil
			if _, err := emit(engi.EventPageDone, json.RawMessage(`{}`), idempotency.Request{}); err != nil {
				return err
			}
			return engi.Errorf(engi.Exhausted, "no")
		})
		if !engi.Is(err, engi.Exhausted) {
			t.Error(err)
		}
		_, err = f.Store.Change(t.Context(), id, func(_ *page.Record, emit page.Emit) error {
			_, err := emit(engi.EventPageDone, json.RawMessage(`{"text":"`+strings.Repeat("x", 256<<10)+`"}`), idempotency.Request{})
			return err
		})
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("an event that is too large: %v", err)
		}
		got, err := f.Store.Get(t.Context(), id)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
		if events, err := f.Events.List(t.Context(), engi.Everyone, engi.EventFilter{Types: []string{engi.EventPageDone}}); err != nil || len(events) != 0 {
			t.Errorf("%+v, %v", events, err)
		}
	})
	t.Run("Change/loses none of those at once", func(t *testing.T) {
		f := open(t)
		id := f.Begin("ann")
		const n = 20
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if _, err := acted(t, f, id, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r, err := f.Store.Get(t.Context(), id)
		if err != nil || len(r.Waiting) != n || !slices.IsSortedFunc(r.Waiting, func(a, b page.Action) int { return int(a.Seq - b.Seq) }) {
			t.Errorf("%+v, %v", r.Waiting, err)
		}
	})
	t.Run("EventByIdempotencyKey/finds the first event of a key", func(t *testing.T) {
		f := open(t)
		id, other := f.Begin("ann"), f.Begin("bob")
		first, err := acted(t, f, id, "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := acted(t, f, id, "k"); !engi.Is(err, engi.Conflict) {
			t.Errorf("a key that was used: %v", err)
		}
		if _, err := acted(t, f, other, "k"); err != nil {
			t.Errorf("another owner's key: %v", err)
		}
		if e, err := f.Store.EventByIdempotencyKey(t.Context(), "ann", id, "k"); err != nil || e.Seq != first || e.Fingerprint != "f" {
			t.Errorf("%+v (%v), want %d", e, err, first)
		}
		if _, err := f.Store.EventByIdempotencyKey(t.Context(), "ann", id, "l"); !engi.Is(err, engi.NotFound) {
			t.Errorf("an unused key: %v", err)
		}
		if r, err := f.Store.Get(t.Context(), id); err != nil || len(r.Waiting) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("Busy/returns those with something to do", func(t *testing.T) {
		f := open(t)
		var all []engi.SessionID
		for range 4 {
			all = append(all, f.Begin("ann"))
		}
		for i, r := range []page.Record{{Waiting: []page.Action{{Name: "a"}}}, {Batch: &page.Batch{}}, {Modules: []page.Modules{{}}}, {HTML: "x"}} {
			for _, busy := range []bool{false, true} {
				_, err := f.Store.Change(t.Context(), all[i], func(x *page.Record, _ page.Emit) error {
					if x.HTML = r.HTML; busy {
						x.Waiting, x.Batch, x.Modules = r.Waiting, r.Batch, r.Modules
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := f.Store.Busy(t.Context())
		want := slices.Sorted(slices.Values(all[:3]))
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v (%v), want %v", got, err, want)
		}
	})
	t.Run("records go with their sessions", func(t *testing.T) {
		f := open(t)
		id := f.Begin("ann")
		if _, err := acted(t, f, id, ""); err != nil {
			t.Fatal(err)
		}
		f.End(id)
		if _, err := f.Store.Get(t.Context(), id); !engi.Is(err, engi.NotFound) {
			t.Errorf("Get: %v", err)
		}
		if _, err := acted(t, f, id, ""); !engi.Is(err, engi.NotFound) {
			t.Errorf("Change: %v", err)
		}
		if _, err := acted(t, f, "ses_none", ""); !engi.Is(err, engi.NotFound) {
			t.Errorf("Change of no session: %v", err)
		}
		if busy, err := f.Store.Busy(t.Context()); err != nil || len(busy) != 0 {
			t.Errorf("Busy: %v, %v", busy, err)
		}
	})
}
