package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A trimmableLog is a log under test.
type trimmableLog interface {
	engi.EventLog
	// Trim drops the oldest events of owners that have more than count.
	Trim(ctx context.Context, count int64) (dropped int64, err error)
}

// eventPromises checks every promise of [engi.EventLog]. open returns a new, empty log, and what returns the
// same log as another process would find it after a crash; nil if nothing is
// left then.
func eventPromises(t *testing.T, open func(t *testing.T) (log trimmableLog, again func() trimmableLog)) {
	for _, p := range []struct {
		name string
		test func(t *testing.T, log trimmableLog, again func() trimmableLog)
	}{
		{"1. Append fills in what is left out", logFills},
		{"2. an expectation is a compare-and-append", logExpects},
		{"3. Append adds all or none", logTogether},
		{"4. Append refuses what cannot be an event", logRefuses},
		{"5. Get and List show owners their own", logLists},
		{"6. Follow yields each event once and in order", logFollows},
		{"7. Follow wakes those it concerns", logWakes},
		{"8. what is dropped leaves a marker, and no Seq is used again", logDrops},
		{"9. lists are bounded in bytes, and reading on misses nothing", logBounded},
		{"10. events outlive the process", logOutlives},
	} {
		t.Run(p.name, func(t *testing.T) {
			log, again := open(t)
			p.test(t, log, again)
		})
	}
}

func addEvents(t *testing.T, log trimmableLog, specs ...engi.EventSpec) []engi.Event {
	t.Helper()
	events, err := log.Append(t.Context(), specs...)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func logFills(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	ctx := engi.WithActor(t.Context(), "key_1")
	before := time.Now().Add(-time.Second)
	events, err := log.Append(ctx,
		engi.EventSpec{Type: "a"},
		engi.EventSpec{Owner: "anna", Subject: "s", Type: "b", Data: json.RawMessage(`{"n":1}`), Actor: "run_1", Replay: "evt_x"},
		engi.EventSpec{Owner: "anna", Subject: "s", Type: "c"},
	)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := events[0], events[1], events[2]
	if _, err := engi.ParseEventID(string(a.ID)); err != nil || a.Subject != string(a.ID) || a.Actor != "key_1" || string(a.Data) != "{}" || a.Time.Before(before) || a.Prev != 0 {
		t.Errorf("%+v %v", a, err)
	}
	if b.Actor != "run_1" || b.Replay != "evt_x" || string(b.Data) != `{"n":1}` || b.Prev != 0 || b.Seq <= a.Seq {
		t.Errorf("%+v", b)
	}
	if c.Prev != b.Seq || c.Seq <= b.Seq {
		t.Errorf("%+v after %+v", c, b)
	}
	for _, e := range events {
		got, err := log.Get(t.Context(), engi.Everyone, e.ID)
		if fmt.Sprint(got, err) != fmt.Sprint(e, nil) {
			t.Errorf("got %+v %v, want %+v", got, err, e)
		}
	}
	if last, err := log.Last(t.Context()); last != c.Seq || err != nil {
		t.Errorf("the last is %d, want %d (%v)", last, c.Seq, err)
	}
}

func logExpects(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	try := func(expect int64) (engi.Event, error) {
		events, err := log.Append(t.Context(), engi.EventSpec{Subject: "lease", Type: "taken", Expect: expect})
		if err != nil {
			return engi.Event{}, err
		}
		return events[0], nil
	}
	if _, err := try(7); !engi.Is(err, engi.Conflict) {
		t.Errorf("nothing is there: %v, want Conflict", err)
	}
	first, err := try(engi.NoEvents)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try(engi.NoEvents); !engi.Is(err, engi.Conflict) {
		t.Errorf("one is there: %v, want Conflict", err)
	}
	last := first
	for range 5 { // eight race for each
		var mu sync.Mutex
		var won []engi.Event
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				e, err := try(last.Seq)
				switch {
				case err == nil:
					mu.Lock()
					defer mu.Unlock()
					won = append(won, e)
				case !engi.Is(err, engi.Conflict):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 || won[0].Prev != last.Seq {
			t.Fatalf("%d have won after %d: %+v", len(won), last.Seq, won)
		}
		last = won[0]
	}
	if _, err := try(0); err != nil {
		t.Errorf("an append without expectation: %v", err)
	}
}

func logTogether(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for e, err := range log.Follow(ctx, engi.Everyone, engi.EventFilter{}) {
			if err != nil {
				t.Error(err)
				return
			}
			if seen = append(seen, e.Type); e.Type == "end" {
				return
			}
		}
	})
	if _, err := log.Append(t.Context(), engi.EventSpec{Subject: "x", Type: "one"}, engi.EventSpec{Subject: "x", Type: "two", Expect: engi.NoEvents}); !engi.Is(err, engi.Conflict) {
		t.Errorf("%v, want Conflict", err)
	}
	if _, err := log.Append(t.Context(), engi.EventSpec{Type: "one"}, engi.EventSpec{Type: "no type"}); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v, want Invalid", err)
	}
	addEvents(t, log, engi.EventSpec{Type: "end"})
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("followers saw %v", seen)
	}
	if all, err := log.List(t.Context(), engi.Everyone, engi.EventFilter{}); len(all) != 1 || err != nil {
		t.Errorf("%+v %v", all, err)
	}
}

func logRefuses(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	for name, spec := range map[string]engi.EventSpec{
		"no type":     {},
		"a bad type":  {Type: "a b"},
		"a long type": {Type: strings.Repeat("a", 129)},
		"much data":   {Type: "a", Data: json.RawMessage(`{"a":"` + strings.Repeat("a", 256<<10) + `"}`)},
	} {
		if _, err := log.Append(t.Context(), spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
}

func logLists(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	var all []engi.Event
	for i := range 30 {
		owner := []engi.Owner{"anna", "bert", ""}[i%3]
		all = append(all, addEvents(t, log, engi.EventSpec{Owner: owner, Subject: fmt.Sprintf("s%d", i%5), Type: []string{"sandbox.running", "sandbox.stopped", "sandboxes", "user/thing"}[i%4]})...)
	}
	for name, x := range map[string]struct {
		viewer engi.Viewer
		f      engi.EventFilter
		want   func(engi.Event) bool
	}{
		"all":             {engi.Everyone, engi.EventFilter{}, func(engi.Event) bool { return true }},
		"anna's":          {"anna", engi.EventFilter{}, func(e engi.Event) bool { return e.Owner == "anna" }},
		"of anna, by all": {engi.Everyone, engi.EventFilter{Owner: "anna"}, func(e engi.Event) bool { return e.Owner == "anna" }},
		"bert of anna":    {"bert", engi.EventFilter{Owner: "anna"}, func(e engi.Event) bool { return false }},
		"subject":         {engi.Everyone, engi.EventFilter{Subject: "s2"}, func(e engi.Event) bool { return e.Subject == "s2" }},
		"type":            {engi.Everyone, engi.EventFilter{Types: []string{"sandbox.stopped"}}, func(e engi.Event) bool { return e.Type == "sandbox.stopped" }},
		"types":           {"bert", engi.EventFilter{Types: []string{"sandbox.*", "nothing"}}, func(e engi.Event) bool { return e.Owner == "bert" && strings.HasPrefix(e.Type, "sandbox.") }},
		"after":           {engi.Everyone, engi.EventFilter{After: all[20].Seq}, func(e engi.Event) bool { return e.Seq > all[20].Seq }},
		"before":          {engi.Everyone, engi.EventFilter{Before: all[20].Seq}, func(e engi.Event) bool { return e.Seq < all[20].Seq }},
		"between":         {engi.Everyone, engi.EventFilter{After: all[5].Seq, Before: all[20].Seq}, func(e engi.Event) bool { return e.Seq > all[5].Seq && e.Seq < all[20].Seq }},
		"subject after":   {engi.Everyone, engi.EventFilter{Subject: "s2", After: all[12].Seq}, func(e engi.Event) bool { return e.Subject == "s2" && e.Seq > all[12].Seq }},
		"subject later":   {engi.Everyone, engi.EventFilter{Subject: "s2", After: all[13].Seq}, func(e engi.Event) bool { return e.Subject == "s2" && e.Seq > all[13].Seq }},
		"subject before":  {"anna", engi.EventFilter{Subject: "s2", Before: all[22].Seq}, func(e engi.Event) bool { return e.Owner == "anna" && e.Subject == "s2" && e.Seq < all[22].Seq }},
		"subject earlier": {engi.Everyone, engi.EventFilter{Subject: "s2", After: all[1].Seq, Before: all[23].Seq}, func(e engi.Event) bool { return e.Subject == "s2" && e.Seq > all[1].Seq && e.Seq < all[23].Seq }},
	} {
		for _, oldest := range []bool{true, false} {
			x.f.Oldest = oldest
			got, err := log.List(t.Context(), x.viewer, x.f)
			if err != nil {
				t.Fatal(name, err)
			}
			i := 0
			for n := range all {
				e := all[n]
				if !oldest {
					e = all[len(all)-1-n]
				}
				if !x.want(e) {
					continue
				}
				if i >= len(got) || got[i].ID != e.ID {
					t.Errorf("%s: event %d is missing in %d", name, e.Seq, len(got))
					break
				}
				i++
			}
			if i != len(got) {
				t.Errorf("%s: %d events, want %d", name, len(got), i)
			}
		}
	}
	if got, err := log.List(t.Context(), engi.Everyone, engi.EventFilter{Limit: 7}); len(got) != 7 || got[0].Seq != all[29].Seq || err != nil {
		t.Errorf("%d of 7: %v", len(got), err)
	}
	if _, err := log.Get(t.Context(), "bert", all[0].ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("bert gets anna's event: %v", err)
	}
	if e, err := log.Get(t.Context(), "anna", all[0].ID); err != nil || e.ID != all[0].ID {
		t.Errorf("%+v %v", e, err)
	}
}

// follows has 20 followers that stop and come back while 4 writers append.
func logFollows(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	const writers, batches, batch = 4, 60, 5
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	owners := []engi.Owner{"anna", "bert"}
	var wg sync.WaitGroup
	for f := range 20 {
		viewer := []engi.Viewer{engi.Everyone, "anna", "bert"}[f%3]
		want := writers * batches * batch
		if viewer != engi.Everyone {
			want /= 2
		}
		wg.Go(func() {
			seen := map[engi.EventID]bool{}
			var after int64
			for len(seen) < want {
				n := 0
				for e, err := range log.Follow(ctx, viewer, engi.EventFilter{After: after}) {
					if err != nil {
						t.Errorf("follower %d: %d of %d events: %v", f, len(seen), want, err)
						return
					}
					if e.Seq <= after || seen[e.ID] || !viewer.Sees(e.Owner) {
						t.Errorf("follower %d after %d: %+v again", f, after, e)
						return
					}
					seen[e.ID], after = true, e.Seq
					if n++; n%(7+f) == 0 || len(seen) == want {
						break // and come back
					}
				}
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			for b := range batches {
				specs := make([]engi.EventSpec, batch)
				for i := range specs {
					specs[i] = engi.EventSpec{Owner: owners[w%2], Subject: fmt.Sprintf("s%d", b%3), Type: "x"}
				}
				if _, err := log.Append(ctx, specs...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func logWakes(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	old := addEvents(t, log, engi.EventSpec{Owner: "anna", Subject: "s", Type: "old"})[0]
	got := make(chan engi.Event)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		for e, err := range log.Follow(ctx, "anna", engi.EventFilter{Subject: "s", Types: []string{"right"}, After: old.Seq}) {
			if err != nil {
				ended <- err
				return
			}
			got <- e
		}
	}()
	addEvents(t, log, engi.EventSpec{Owner: "bert", Subject: "s", Type: "right"}, engi.EventSpec{Owner: "anna", Subject: "z", Type: "right"}, engi.EventSpec{Owner: "anna", Subject: "s", Type: "wrong"})
	right := addEvents(t, log, engi.EventSpec{Owner: "anna", Subject: "s", Type: "right"})[0]
	select {
	case e := <-got:
		if e.ID != right.ID {
			t.Errorf("%+v, want %+v", e, right)
		}
	case <-time.After(time.Minute):
		t.Error("nobody was woken")
	}
	cancel(fmt.Errorf("enough"))
	if err := <-ended; !engi.Is(err, engi.Expired) || !strings.Contains(err.Error(), "enough") {
		t.Errorf("ended with %v, want Expired", err)
	}
}

func logDrops(t *testing.T, log trimmableLog, again func() trimmableLog) {
	var anna, bert []engi.Event
	for range 10 {
		anna = append(anna, addEvents(t, log, engi.EventSpec{Owner: "anna", Subject: "a", Type: "x"})...)
		bert = append(bert, addEvents(t, log, engi.EventSpec{Owner: "bert", Subject: "b", Type: "x"})...)
		if len(anna) > 4 {
			bert = append(bert, addEvents(t, log, engi.EventSpec{Owner: "bert", Subject: "b", Type: "x"})...)
		}
	}
	if n, err := log.Trim(t.Context(), 12); n != 4 || err != nil { // 16 of bert's
		t.Fatalf("dropped %d, want 4 (%v)", n, err)
	}
	if n, err := log.Trim(t.Context(), 12); n != 0 || err != nil {
		t.Errorf("dropped %d more (%v)", n, err)
	}
	next := func(viewer engi.Viewer, after int64) engi.Event {
		t.Helper()
		for e, err := range log.Follow(t.Context(), viewer, engi.EventFilter{After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		panic("unreachable: Follow ends with an error")
	}
	if e := next("anna", 0); e.ID != anna[0].ID {
		t.Errorf("anna's first: %+v", e)
	}
	e := next("bert", 0)
	var data struct{ Count, Through int64 }
	if err := json.Unmarshal(e.Data, &data); e.Type != engi.EventsDropped || e.Seq != 0 || err != nil || data.Count != 4 || data.Through != bert[3].Seq {
		t.Errorf("bert's marker: %+v %s %v", e, e.Data, err)
	}
	if e := next("bert", bert[3].Seq); e.ID != bert[4].ID {
		t.Errorf("after what was dropped: %+v", e)
	}
	if e := next(engi.Everyone, bert[0].Seq); e.Type != engi.EventsDropped || e.Seq != bert[0].Seq {
		t.Errorf("in the middle: %+v", e)
	}
	if _, err := log.Trim(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	last, err := log.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again != nil {
		log = again()
	}
	if e := addEvents(t, log, engi.EventSpec{Owner: "bert", Subject: "c", Type: "x"})[0]; e.Seq <= last {
		t.Errorf("Seq %d after %d", e.Seq, last)
	}
}

func logBounded(t *testing.T, log trimmableLog, _ func() trimmableLog) {
	const n = 100
	data := json.RawMessage(`{"a":"` + strings.Repeat("x", 200<<10) + `"}`)
	for range n {
		addEvents(t, log, engi.EventSpec{Owner: "ann", Type: "big", Data: data})
	}
	addEvents(t, log, engi.EventSpec{Owner: "bob", Type: "other"})
	got, after := 0, int64(0)
	for {
		events, err := log.List(t.Context(), "ann", engi.EventFilter{After: after, Oldest: true, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			break
		}
		if len(events)*len(data) > 9<<20 {
			t.Errorf("%d events of %d bytes at once", len(events), len(data))
		}
		got, after = got+len(events), events[len(events)-1].Seq
	}
	if got != n {
		t.Errorf("%d of %d events were listed", got, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got = 0
	for _, err := range log.Follow(ctx, "ann", engi.EventFilter{}) {
		if err != nil {
			break
		}
		if got++; got == n {
			cancel()
		}
	}
	if got != n {
		t.Errorf("%d of %d events were followed", got, n)
	}
	for _, types := range [][]string{{""}, {"a b"}, {"a*b"}, {"sandbox[.]*"}, {strings.Repeat("x", 200)}, make([]string, 51)} {
		f := engi.EventFilter{Types: types}
		if _, err := log.List(t.Context(), "ann", f); !engi.Is(err, engi.Invalid) {
			t.Errorf("types %.40q: %v", types, err)
		}
		for _, err := range log.Follow(t.Context(), "ann", f) {
			if !engi.Is(err, engi.Invalid) {
				t.Errorf("follow types %.40q: %v", types, err)
			}
			break
		}
	}
}

func logOutlives(t *testing.T, log trimmableLog, again func() trimmableLog) {
	if again == nil {
		t.Skip("this log dies with its process")
	}
	events := addEvents(t, log, engi.EventSpec{Owner: "anna", Subject: "s", Type: "x"}, engi.EventSpec{Owner: "anna", Subject: "s", Type: "y"})
	log = again()
	n := 0
	for e, err := range log.Follow(t.Context(), "anna", engi.EventFilter{}) {
		if err != nil || fmt.Sprint(e) != fmt.Sprint(events[n]) {
			t.Fatalf("%+v %v, want %+v", e, err, events[n])
		}
		if n++; n == 2 {
			break
		}
	}
	if e := addEvents(t, log, engi.EventSpec{Subject: "s", Type: "z", Expect: events[1].Seq})[0]; e.Prev != events[1].Seq {
		t.Errorf("%+v", e)
	}
}
