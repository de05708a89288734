package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

var shortFaults uint64 = 500 // 50 with the race detector

// TestFaults injects faults at any step of applies and rollbacks, while the app is also published,
// viewed, branched and changed: 500 faults that occurred, or
// ENGI_CHAOS_FAULTS of them. Afterwards the app must be in the old or the new state, with
// its sandbox, its server, its packages, its history and its repository. ENGI_CHAOS_SEED
// replaces the seed that once found a defect. Time is the fake time of synctest, so
// that delays are measured exactly, and a leaked goroutine fails the test.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all") // the scheduler determines the order of concurrent operations
	}
	seed, faults := seed.Of(t, "ENGI_CHAOS_SEED", 1795827304492980388), number("ENGI_CHAOS_FAULTS", shortFaults)
	t.Logf("ENGI_CHAOS_FAULTS=%d", faults)
	const each = 25 // faults per app
	counts, ends, worst := map[string]int{}, map[string]int{}, map[string]time.Duration{}
	planned, fired := 0, uint64(0)
	for i := uint64(0); fired < faults; i++ {
		synctest.Test(t, func(t *testing.T) {
			h := &history{t: t, w: newFixture(t), rng: rand.New(rand.NewPCG(seed, i)), counts: counts, ends: ends, worst: worst}
			h.w.pace = 2 * time.Second
			h.w.dist = map[string]string{"index.html": "built\n"}
			h.live(int(min(each, faults-fired)))
			fired, planned = fired+uint64(h.fired), planned+h.planned
		})
		if t.Failed() {
			t.Fatalf("in history %d", i)
		}
	}
	t.Logf("%d faults of %d that were planned: %v", fired, planned, counts)
	t.Logf("ends: %v", ends)
	for _, m := range mishaps {
		t.Logf("%-34s at most %v, of %v", m.name, worst[m.name].Round(time.Second), usual+m.own)
	}
	if ends["done"] == 0 || ends["failed"] == 0 {
		t.Error("nothing was applied, or nothing went wrong: the test tested nothing")
	}
}

// TestApplyBeginsUnheard commits the transaction that begins an apply, and loses
// its result.
func TestApplyBeginsUnheard(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	w.mu.Lock()
	w.after = func() error {
		w.after = nil
		return engi.Errorf(engi.Unavailable, "the connection is lost")
	}
	w.mu.Unlock()
	if _, last := apply(t, s, "shop", engi.ApplySpec{Text: file("a.txt", "a\n")}); last.Kind != engi.AppApplied {
		t.Errorf("it ended with %+v", last)
	}
}

// TestSandboxIsLostAsItsServerStarts loses a sandbox in which the server was just started.
// The apply must not wait for the full time limit of a start.
func TestSandboxIsLostAsItsServerStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		a := create(t, s, "shop")
		w.mu.Lock()
		started := w.boxes[a.Sandbox].starts
		w.fault = func(op string, b *fakeSandbox) error {
			if op == "dial" && b.ID == a.Sandbox && b.starts > started {
				w.lose(b)
			}
			return nil
		}
		w.mu.Unlock()
		began := time.Now()
		_, last := apply(t, s, "shop", engi.ApplySpec{Text: file("vite.config.ts", "export default { n: 1 }\n")})
		if took := time.Since(began); last.Kind != engi.AppApplied || took > 10*time.Second {
			t.Errorf("after %v it ended with %+v, %v", took, last, last.Error)
		}
		wantSame(t, w, s, "shop")
		stop()
		w.end()
	})
}

// TestServerNeverAnswers applies to an app whose server accepts connections without
// answering, before the apply and with its files. Once the files are restored, the server must be
// started without waiting for it. Waiting once took the apply 3 min 33 s.
func TestServerNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s, stop := w.begin(t)
		a := create(t, s, "shop")
		before := recorded(t, s, "shop", 0)
		w.change(a.Sandbox, func(b *fakeSandbox) { b.mute = true })
		began := time.Now()
		if _, err := s.Apply(t.Context(), engi.ApplySpec{Viewer: "ann", App: "shop", Text: file("vite.config.ts", "export default { n: 1 }\n")}); err != nil {
			t.Fatal(err)
		}
		for applying := true; applying; time.Sleep(200 * time.Millisecond) { // fake time
			r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop")
			if err != nil {
				t.Fatal(err)
			}
			applying = r.Applying != 0
		}
		// The server gets 30 seconds to answer. Then it is started twice, with 60 seconds each: with the
		// old files, and with the files of the apply.
		if took := time.Since(began); took > 155*time.Second {
			t.Errorf("the apply took %v", took)
		}
		w.change(a.Sandbox, func(b *fakeSandbox) {
			if b.mute = false; !b.server || b.serves != b.settings() {
				t.Errorf("the server (%v) has %q, and the app %q", b.server, b.serves, b.settings())
			}
		})
		if d := cmp.Diff(before, w.tracked(a.Sandbox)); d != "" {
			t.Errorf("what is there (-before +after):\n%s", d)
		}
		if a, err := s.Open(t.Context(), "ann", "shop"); err != nil || a.State != engi.AppReady {
			t.Errorf("it is opened as %+v, %v", a, err)
		}
		stop()
		w.end()
	})
}

func number(name string, def uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return def
}

// A history is an app with injected faults.
type history struct {
	t            *testing.T
	w            *fixture
	rng          *rand.Rand
	s            *app.Service
	stop         func()
	box          *fakeSandbox // sandbox of the app when a fault begins
	counts, ends map[string]int
	worst        map[string]time.Duration // longest delay caused by a single fault, by fault
	fired        int                      // number of faults that occurred; guarded by the fixture's mu
	planned      int
	n            int               // number of the apply
	deltas       map[string]change // expected changes of the applies, by message
	rows         []string          // possible contents of its database
	late         sync.WaitGroup    // concurrent users of the app
}

// A change is the expected change of an apply.
type change struct {
	put      map[string]string
	removed  string
	packages []string
}

// A mishap is a fault that occurs after some steps.
type mishap struct {
	name string
	own  time.Duration // time that may pass until the fault is noticed
	hit  func(h *history) error
}

// usual is the duration of an apply or a rollback without delays of a fault: at most five
// programs of two seconds each, including those that restore the files after a failure
// or rebuild a sandbox.
const usual = 10 * time.Second

// Time limits from the table "Time limit" in docs/apps.md, for parts that do not answer. The time
// of a fault is the sum of the limits that apply one after the other.
const (
	installLimit = 120 * time.Second // one attempt of three
	commandLimit = 120 * time.Second
	startLimit   = 60 * time.Second
	answerLimit  = 30 * time.Second
	undoLimit    = 60 * time.Second // restoring the files after a failure
	lookLimit    = 60 * time.Second // looking at a page, which waits for a server that has ended
	late         = 10 * time.Second // maximum delay of a program's end, and of everything beyond a fault's own time
)

var mishaps = []mishap{
	{"kill the server", 0, func(h *history) error { h.box.server = false; return nil }},
	{"the server does not answer", answerLimit + 2*startLimit + undoLimit, // a request, a restart, and the same with the new files
		func(h *history) error { h.box.mute = true; return nil }},
	{"kill the guest", 0, func(h *history) error { h.w.lose(h.box); return nil }},
	{"the guest does not answer", commandLimit + late + undoLimit, func(h *history) error { h.box.stuck = true; return nil }},
	{"kill the node", 0, func(h *history) error { h.w.off = true; return nil }},
	{"npm fails twice", 0, func(h *history) error { h.w.flaky = 2; return nil }},
	{"npm fails", 2*(1+2)*time.Second + 4*2*time.Second, // pauses and attempts, also while restoring
		func(h *history) error { h.w.flaky = 9; return nil }},
	{"the registry hangs", 3*installLimit + (1+2)*time.Second + undoLimit, func(h *history) error { h.w.hangs = true; return nil }},
	{"the sandbox is full", 0, func(h *history) error { h.box.full = true; return nil }},
	{"transactions fail", 7 * time.Second, // pauses before six more attempts, from 0.1 s, doubled each time
		func(h *history) error { return h.failStore(h.rng.IntN(6)) }},
	{"transactions fail for long", 63 * time.Second, // pauses before twelve attempts, of at most 10 s
		func(h *history) error { return h.failStore(12) }},
	{"a transaction's end is not heard", 0, func(h *history) error {
		h.w.after = func() error {
			h.w.after = nil
			return engi.Errorf(engi.Unavailable, "the connection is lost")
		}
		return nil
	}},
	{"cancel", 0, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error { return h.s.Cancel(ctx, "ann", "shop") })
		return nil
	}},
	{"stop", 0, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error { return h.s.Stop(ctx, "ann", "shop") })
		return nil
	}},
	{"open", 0, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error { return second(h.s.Open(ctx, "ann", "shop")) })
		return nil
	}},
	{"another rollback", usual, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error { return second(h.s.Rollback(ctx, "ann", "shop", 2)) })
		return nil
	}},
	{"a snapshot", 10 * time.Second, // maximum time of a snapshot in this fixture
		func(h *history) error {
			h.meanwhile(func(ctx context.Context) error { return second(h.s.Snapshot(ctx, "ann", "shop")) })
			return nil
		}},
	{"no room for snapshots", 0, func(h *history) error { h.w.noRoom = true; return nil }},
	{"somebody removes the snapshots", 0, func(h *history) error { clear(h.w.copies); return nil }},
	{"publish", 0, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error {
			return second(h.s.Publish(ctx, engi.PublishSpec{Viewer: "ann", App: "shop"}))
		})
		return nil
	}},
	{"check", lookLimit, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error { return second(h.s.Check(ctx, "ann", "shop")) })
		return nil
	}},
	{"screenshot", lookLimit, func(h *history) error {
		h.meanwhile(func(ctx context.Context) error {
			return second(h.s.Screenshot(ctx, engi.ScreenshotSpec{Viewer: "ann", App: "shop"}))
		})
		return nil
	}},
	{"branch", 0, func(h *history) error {
		name := fmt.Sprint("branch-", h.n, "-", h.fired)
		h.meanwhile(func(ctx context.Context) error {
			return second(h.s.Branch(ctx, engi.BranchSpec{Viewer: "ann", App: "shop", Name: name}))
		})
		return nil
	}},
	{"another apply", usual, func(h *history) error {
		spec := h.spec()
		h.meanwhile(func(ctx context.Context) error { return second(h.s.Apply(ctx, spec)) })
		return nil
	}},
}

// failStore makes the next transactions fail.
func (h *history) failStore(n int) error {
	before := h.w.fault
	h.w.fault = func(op string, b *fakeSandbox) error {
		if op == "change" || op == "append" || op == "find" {
			if n--; n >= 0 {
				return engi.Errorf(engi.Unavailable, "the disk is full")
			}
		}
		if before != nil {
			return before(op, b)
		}
		return nil
	}
	return engi.Errorf(engi.Unavailable, "the disk is full")
}

// meanwhile uses the app concurrently.
func (h *history) meanwhile(f func(ctx context.Context) error) {
	h.late.Go(func() {
		if err := f(h.t.Context()); err != nil {
			h.t.Logf("meanwhile: %v", err)
		}
	})
}

// spec returns a random apply.
func (h *history) spec() engi.ApplySpec {
	h.n++
	c := change{put: map[string]string{"src/App.tsx": fmt.Sprintf("import './A%d.tsx'\n", h.n), fmt.Sprintf("src/A%d.tsx", h.n): fmt.Sprintf("export default %d\n", h.n)}}
	text := ""
	if h.rng.IntN(2) == 0 {
		c.packages = []string{fmt.Sprint("p", h.rng.IntN(200))}
		text += "<package>" + c.packages[0] + "</package>"
	}
	if h.rng.IntN(3) == 0 {
		c.put["made.txt"] = fmt.Sprint(h.n)
		text += fmt.Sprintf("<command>put made.txt %d</command>", h.n)
	}
	if h.rng.IntN(3) == 0 {
		c.put["vite.config.ts"] = fmt.Sprintf("export default { n: %d }\n", h.n)
	}
	if h.rng.IntN(3) == 0 {
		c.removed = "src/shared.tsx"
		text += `<file path="src/shared.tsx" action="delete"/>`
	} else {
		c.put["src/shared.tsx"] = fmt.Sprintf("export const shared = %d\n", h.n)
	}
	broken := h.rng.IntN(6) == 0
	for _, p := range slices.Sorted(maps.Keys(c.put)) { // the order of files must only depend on the seed
		content := c.put[p]
		if broken && strings.HasPrefix(p, "src/A") && p != "src/App.tsx" {
			content = "BROKEN\n"
		}
		if p != "made.txt" {
			text += file(p, content)
		}
	}
	message := fmt.Sprint("apply ", h.n)
	if !broken {
		h.deltas[message] = c
	}
	return engi.ApplySpec{Viewer: "ann", App: "shop", Text: text, Message: message, Snapshot: h.rng.IntN(3) == 0}
}

func (h *history) live(faults int) {
	h.deltas = map[string]change{}
	h.s, h.stop = h.w.begin(h.t)
	create(h.t, h.s, "shop")
	if _, last := apply(h.t, h.s, "shop", engi.ApplySpec{Text: file("package.json", `{"dependencies":{"react":"19"},"scripts":{"build":"vite build"}}`)}); last.Kind != engi.AppApplied {
		h.t.Fatalf("it ended with %+v", last)
	}
	for fired := 0; fired < faults && !h.t.Failed(); {
		h.round(1 + h.rng.IntN(2))
		h.w.mu.Lock()
		fired = h.fired
		h.w.mu.Unlock()
	}
	h.late.Wait()
	h.stop()
	h.w.mu.Lock()
	for _, b := range h.w.boxes {
		h.w.lose(b) // together with the processes that the node has not ended
	}
	h.w.mu.Unlock()
	synctest.Wait()
}

// round changes the app with injected faults, and checks the result.
func (h *history) round(faults int) {
	t, w := h.t, h.w
	a, err := h.s.Open(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	projected(t, w, h.s, a)
	before := h.history()
	// The database is unchanged, or that of a snapshot, or that of a new sandbox.
	h.rows = []string{"", fmt.Sprint("rows ", h.n)}
	w.rows(a.Sandbox, h.rows[1])
	var names []string
	own := usual
	w.mu.Lock()
	h.box = w.boxes[a.Sandbox]
	for _, c := range w.copies {
		h.rows = append(h.rows, c.box.files[appDir+"/data.db"].data)
	}
	for range faults {
		m := mishaps[h.rng.IntN(len(mishaps))]
		names = append(names, m.name)
		h.planned++
		own += m.own
		left, next := h.rng.IntN(70), w.fault
		w.fault = func(op string, b *fakeSandbox) error {
			if b != nil && b.Metadata["app"] == "shop" {
				h.box = b
			}
			if next != nil {
				if err := next(op, b); err != nil {
					return err
				}
			}
			if left--; left == 0 {
				h.counts[m.name]++
				h.fired++
				return m.hit(h)
			}
			return nil
		}
	}
	w.mu.Unlock()
	if len(names) > 1 {
		own *= 2 // the operation may begin again, or wait for another one with the same delay
	}
	spec := h.spec()
	what := fmt.Sprintf("round %d, %s", h.n, strings.Join(names, " and "))
	began := time.Now()
	if h.rng.IntN(4) == 0 {
		what += ", rollback"
		number := 1 + h.rng.Int64N(before[0].Number)
		back := func() error { return second(h.s.Rollback(t.Context(), "ann", "shop", number)) }
		if h.rng.IntN(2) == 0 {
			what += " with a snapshot"
			back = func() error { return second(h.s.Restore(t.Context(), "ann", "shop", 0)) }
			w.mu.Lock()
			for _, c := range w.copies {
				if c.box.mute { // a copy of a server without an answer also gives none: it gets a request, and is restarted
					own = max(own, usual) + 90*time.Second
					break
				}
			}
			w.mu.Unlock()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := back(); err == nil {
				h.ends["done"]++
			} else {
				h.ends["failed"]++
			}
		}()
		for over := false; !over && !w.isOff(); {
			select {
			case <-done:
				over = true
			case <-time.After(200 * time.Millisecond):
			}
		}
		if w.isOff() {
			h.stop()
		}
		<-done
	} else {
		what += ", apply"
		if _, err := h.s.Apply(t.Context(), spec); err != nil {
			t.Logf("%s: %v", what, err)
		}
		for !w.isOff() {
			if r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop"); err != nil || r.Applying == 0 {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	if w.isOff() {
		h.stop()
	}
	h.late.Wait()
	took := time.Since(began)
	if took > own+late {
		t.Errorf("%s: it took %v, with %v of its own", what, took, own)
	}
	if len(names) == 1 {
		h.worst[names[0]] = max(h.worst[names[0]], took)
	}
	// All faults end, except for killed parts.
	w.mu.Lock()
	off := w.off
	w.off, w.fault, w.after, w.hangs, w.flaky, w.noRoom = false, nil, nil, false, 0, false
	for _, b := range w.boxes {
		b.stuck, b.full, b.mute = false, false, false
	}
	w.mu.Unlock()
	if off {
		h.s, h.stop = w.begin(t)
	}
	began = time.Now()
	for { // an apply that began concurrently
		r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop")
		if err != nil {
			t.Fatal(err)
		}
		if r.Applying == 0 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if a, err = h.s.Open(t.Context(), "ann", "shop"); err != nil {
		t.Errorf("%s: it cannot be opened: %v", what, err)
		return
	}
	h.prune(what)
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("%s: it took %v to be opened", what, took)
	}
	h.check(what, a, before)
}

// prune removes the branches that were created concurrently. Each must have the files of some
// revision.
func (h *history) prune(what string) {
	t := h.t
	all, err := h.s.List(t.Context(), "ann", engi.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Name == "shop" {
			continue
		}
		if _, err := h.s.Open(t.Context(), "ann", x.Name); err != nil {
			t.Errorf("%s: the branch %s cannot be opened: %v", what, x.Name, err)
		} else {
			wantSame(t, h.w, h.s, x.Name)
		}
		if err := h.s.Remove(t.Context(), "ann", x.Name); err != nil {
			t.Errorf("%s: remove the branch %s: %v", what, x.Name, err)
		}
	}
}

func (h *history) history() []engi.Revision {
	revs, err := h.s.Revisions(h.t.Context(), "ann", "shop", engi.Paging{})
	if err != nil {
		h.t.Fatal(err)
	}
	return revs
}

// check checks the state of the app.
func (h *history) check(what string, a engi.App, before []engi.Revision) {
	t, w := h.t, h.w
	r, err := store.Apps(w.db).Find(t.Context(), "ann", "shop")
	if err != nil {
		t.Fatal(err)
	}
	if r.Applying != 0 || r.Undo != nil || r.State != engi.AppReady || r.Sandbox != a.Sandbox {
		t.Errorf("%s: the app is %+v", what, r)
	}
	// Each revision is its parent with all changes of an apply, or an earlier revision.
	now := h.history()
	if !slices.EqualFunc(before, now[len(now)-len(before):], func(a, b engi.Revision) bool { return a.Commit == b.Commit }) {
		t.Errorf("%s: the history has changed: %v, %v", what, before, now)
	}
	for _, rev := range now[:len(now)-len(before)] {
		got, want := recorded(t, h.s, "shop", rev.Number), recorded(t, h.s, "shop", max(rev.Of, rev.Parent))
		if rev.Of != 0 {
			want = recorded(t, h.s, "shop", rev.Of)
		} else if c, ok := h.deltas[rev.Message]; ok {
			maps.Copy(want, c.put)
			delete(want, c.removed)
			if strings.Contains(what, "is full") { // a command may have failed, which must be reported
				delete(want, "made.txt")
				if text, ok := got["made.txt"]; ok {
					want["made.txt"] = text
				}
			}
			have := packagesOf(t, want["package.json"])
			for _, p := range c.packages {
				have[p] = "^1.0.0"
			}
			if d := cmp.Diff(have, packagesOf(t, got["package.json"])); d != "" {
				t.Errorf("%s: revision %d:\n%s", what, rev.Number, d)
			}
			want["package.json"] = got["package.json"]
			h.ends["done"]++
		} else {
			t.Errorf("%s: there is a revision %d: %s", what, rev.Number, rev.Message)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: revision %d %s is half done:\n%s", what, rev.Number, rev.Message, d)
		}
	}
	if len(now) == len(before) {
		h.ends["failed"]++
	}
	if d := cmp.Diff(recorded(t, h.s, "shop", 0), w.tracked(a.Sandbox)); d != "" {
		t.Errorf("%s: revision %d and the sandbox differ (-recorded +there):\n%s", what, a.Revision, d)
	}
	projected(t, w, h.s, a)
	w.change(a.Sandbox, func(b *fakeSandbox) {
		if !b.server || b.serves != b.settings() {
			t.Errorf("%s: the server (%v) has %s, and the app %s", what, b.server, b.serves, b.settings())
		}
		for name := range packagesOf(t, b.files[appDir+"/package.json"].data) {
			if _, ok := b.files[appDir+"/node_modules/"+name+"/index.js"]; !ok {
				t.Errorf("%s: the package %s is not there", what, name)
			}
		}
		for p := range b.files {
			if strings.Contains(p, "engi-stage") {
				t.Errorf("%s: %s is left", what, p)
			}
		}
		for _, p := range b.procs {
			// The browser of a killed node changes nothing, and ends within a minute.
			if !p.ended() && p.tag != "" && p.tag != "browser" {
				t.Errorf("%s: %s still runs", what, p.name)
			}
		}
	})
	if rows := w.database(a.Sandbox); !slices.Contains(h.rows, rows) {
		t.Errorf("%s: its database has %q, which is none of %q", what, rows, h.rows)
	}
	snapshotsOf(t, h.s, "shop") // removed snapshots are forgotten
	settled(t, w)
	for err, what := range map[error]string{
		second(h.s.Get(t.Context(), "bob", "shop")):                                                 "get",
		second(h.s.Apply(t.Context(), engi.ApplySpec{Viewer: "bob", App: string(a.ID), Text: "x"})): "apply",
		second(h.s.Rollback(t.Context(), "bob", string(a.ID), 1)):                                   "rollback",
		h.s.Cancel(t.Context(), "bob", string(a.ID)):                                                "cancel",
		second(h.s.Files(t.Context(), "bob", string(a.ID), 0)):                                      "files",
		second(h.s.Snapshot(t.Context(), "bob", string(a.ID))):                                      "snapshot",
		second(h.s.Restore(t.Context(), "bob", string(a.ID), 0)):                                    "restore",
	} {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("another owner's %s: %v", what, err)
		}
	}
}

func packagesOf(t *testing.T, manifest string) map[string]string {
	var m struct{ Dependencies map[string]string }
	if err := json.Unmarshal([]byte(manifest), &m); err != nil {
		t.Fatal(err)
	}
	return m.Dependencies
}
