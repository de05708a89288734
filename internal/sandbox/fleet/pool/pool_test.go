package pool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/engi"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

var start = time.Unix(1_700_000_000, 0)

func options() Options {
	return Options{
		Max: 10, MaxQueue: 20, Boots: 2, Teardowns: 2,
		Quiet: 100 * time.Millisecond, Patience: time.Second, DemandIdle: time.Minute,
	}
}

var python = Key{Tier: engi.TierGVisor, Template: "base", Language: engi.Python}
var bash = Key{Tier: engi.TierGVisor, Template: "base", Language: engi.Bash}

// A fixture carries out plans at once, with its own clock.
type fixture struct {
	t    testing.TB
	s    *Scheduler[int]
	now  time.Time
	next int
}

func newFixture(t testing.TB, o Options) *fixture {
	return &fixture{t: t, s: New[int](o), now: start}
}

// settle carries out plans, while time passes, until nothing is left to do
// now or in the next d.
func (f *fixture) settle(d time.Duration) (downs []int) {
	end := f.now.Add(d)
	for {
		p := f.s.Plan(f.now)
		for _, b := range p.Boots {
			f.next++
			f.s.Booted(b, f.next, "d1", f.now)
		}
		for _, m := range p.Teardowns {
			downs = append(downs, m)
			f.s.TornDown(m)
		}
		if len(p.Boots)+len(p.Teardowns) > 0 {
			continue
		}
		if p.Again == 0 || f.now.Add(p.Again).After(end) {
			f.now = end
			return downs
		}
		f.now = f.now.Add(p.Again)
	}
}

func (f *fixture) status(k Key) engi.PoolStatus {
	for _, p := range f.s.Status() {
		if p.Template == k.Template && p.Language == k.Language {
			return p
		}
	}
	return engi.PoolStatus{}
}

// TestUnknownDigestDoesNotGrowThePool boots instances of a digest that the
// scheduler does not know.
func TestUnknownDigestDoesNotGrowThePool(t *testing.T) {
	o := options()
	o.Max = 100
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 3}, "d0", f.now)
	f.settle(time.Minute)
	if p := f.status(python); p.Ready > 6 {
		t.Errorf("%+v, want 6 ready at most", p)
	}
	f.s.SetTemplate("base", "d1", everything)
	f.settle(time.Minute)
	if p := f.status(python); p.Ready != 3 {
		t.Errorf("%+v, want 3 ready", p)
	}
}

func everything(engi.Language) bool { return true }

func TestPoolOfAnUnsupportedLanguageStaysEmpty(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 3}, "d1", f.now)
	f.settle(0)
	nothing := func(engi.Language) bool { return false }
	f.s.SetTemplate("base", "d1", nothing)
	if downs := f.settle(time.Second); len(downs) != 3 {
		t.Errorf("%v go, want 3", downs)
	}
	if cold := f.s.Cold(); len(cold) != 0 {
		t.Errorf("cold %v, want none", cold)
	}
	f.s.SetTemplate("base", "d1", everything)
	f.settle(time.Second)
	if p := f.status(python); p.Ready != 3 {
		t.Errorf("%+v, want 3 ready again", p)
	}
}

func TestDemandPoolEndsWithItsTemplate(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Demand: true, Target: 2}, "d1", f.now)
	f.settle(0)
	f.s.SetTemplate("base", "", nil)
	if downs := f.settle(time.Second); len(downs) != 2 {
		t.Errorf("%v go, want 2", downs)
	}
	if p := f.status(python); p.Ready+p.Booting != 0 {
		t.Errorf("%+v, want nothing", p)
	}
}

func TestPoolFillsToItsTarget(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 3}, "d1", f.now)
	if cold := f.s.Cold(); len(cold) != 1 {
		t.Errorf("cold %v, want one", cold)
	}
	f.settle(0)
	if p := f.status(python); p.Ready != 3 || p.Booting != 0 {
		t.Errorf("%+v, want 3 ready", p)
	}
	if cold := f.s.Cold(); len(cold) != 0 {
		t.Errorf("cold %v, want none", cold)
	}
}

func TestConcurrentBootsAreLimited(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 5}, "d1", f.now)
	if p := f.s.Plan(f.now); len(p.Boots) != 2 {
		t.Errorf("%d boots, want 2", len(p.Boots))
	}
	if p := f.s.Plan(f.now); len(p.Boots) != 0 {
		t.Errorf("%d more boots, want 0", len(p.Boots))
	}
}

func TestBackgroundWorkWaitsForQuiet(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 2}, "d1", f.now)
	f.settle(0)
	m, ok := f.s.Take(python, f.now)
	if !ok {
		t.Fatal("nothing to take")
	}
	f.s.Retire(python, m, f.now, false)
	p := f.s.Plan(f.now)
	if len(p.Boots) != 0 || len(p.Teardowns) != 0 || p.Again != 100*time.Millisecond {
		t.Errorf("right after a claim: %+v, want nothing for 100ms", p)
	}
	f.now = f.now.Add(p.Again)
	if p = f.s.Plan(f.now); len(p.Boots) != 1 || !slices.Equal(p.Teardowns, []int{m}) {
		t.Errorf("after quiet: %+v, want one boot and the teardown of %d", p, m)
	}
}

func TestBackgroundWorkIsNotPutOffForEver(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 8}, "d1", f.now)
	f.settle(0)
	boots, downs := 0, 0
	for i := range 7 { // a claim every 50 ms, so that it is never quiet
		if i > 0 {
			f.now = f.now.Add(50 * time.Millisecond)
		}
		m, ok := f.s.Take(python, f.now)
		if !ok {
			t.Fatal("nothing to take")
		}
		f.s.Retire(python, m, f.now, false)
		p := f.s.Plan(f.now)
		boots, downs = boots+len(p.Boots), downs+len(p.Teardowns)
	}
	if boots+downs != 0 {
		t.Errorf("%d boots and %d teardowns in the first 300 ms", boots, downs)
	}
	for range 16 {
		f.now = f.now.Add(50 * time.Millisecond)
		f.s.Take(bash, f.now) // another caller
		f.s.Take(python, f.now)
		p := f.s.Plan(f.now)
		boots, downs = boots+len(p.Boots), downs+len(p.Teardowns)
		for _, m := range p.Teardowns {
			f.s.TornDown(m)
		}
	}
	if boots != 1 || downs == 0 {
		t.Errorf("after more than a second of claims: %d boots, %d teardowns; want 1 boot at a time and some teardowns", boots, downs)
	}
}

// arrive takes and retires instances at a fixed rate, while boots take the time boot, and
// returns the number of arrivals that found no instance.
func (f *fixture) arrive(key Key, every, boot, during time.Duration) (missed int) {
	type underWay struct {
		Boot
		ends time.Time
	}
	var boots []underWay
	next := f.now
	for end := f.now.Add(during); f.now.Before(end); f.now = f.now.Add(10 * time.Millisecond) {
		if !f.now.Before(next) {
			next = next.Add(every)
			if m, ok := f.s.Take(key, f.now); ok {
				f.s.Retire(key, m, f.now, true)
			} else {
				missed++
			}
		}
		p := f.s.Plan(f.now)
		for _, b := range p.Boots {
			boots = append(boots, underWay{b, f.now.Add(boot)})
		}
		for _, m := range p.Teardowns {
			f.s.TornDown(m)
		}
		boots = slices.DeleteFunc(boots, func(b underWay) bool {
			if f.now.Before(b.ends) {
				return false
			}
			f.next++
			f.s.Booted(b.Boot, f.next, "d1", f.now)
			return true
		})
	}
	for _, b := range boots {
		f.next++
		f.s.Booted(b.Boot, f.next, "d1", f.now)
	}
	return missed
}

// TestPoolsGrowWithArrivals requests 10 instances per second that take 400 ms to boot: four
// are taken during one boot.
func TestPoolsGrowWithArrivals(t *testing.T) {
	o := options()
	o.Max, o.Boots, o.Grow, o.Yields = 100, 8, 16, func() bool { return true }
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 1}, "d1", f.now)
	f.settle(0)
	f.arrive(python, 100*time.Millisecond, 400*time.Millisecond, 5*time.Second)
	if missed := f.arrive(python, 100*time.Millisecond, 400*time.Millisecond, 10*time.Second); missed != 0 {
		t.Errorf("%d of 100 found none", missed)
	}
	busy := f.status(python)
	if busy.Target < 6 || busy.Target > 12 {
		t.Errorf("the target is %d, want about 8", busy.Target)
	}
	// Without further arrivals, nothing boots, and surplus instances are retired later.
	f.now = f.now.Add(time.Second)
	if p := f.s.Plan(f.now); len(p.Boots) > 0 || len(p.Teardowns) > 0 {
		t.Errorf("a second after the last: %+v", p)
	}
	f.now = f.now.Add(surplusTime / 2)
	if downs := f.settle(0); len(downs) > 0 {
		t.Errorf("%d go in half of the time", len(downs))
	}
	f.now = f.now.Add(surplusTime)
	f.settle(0)
	if p := f.status(python); p.Ready != 1 || p.Target != 1 {
		t.Errorf("long after: %+v, want one ready", p)
	}
}

// TestBackgroundBootsThatYield requests an instance while another one boots for the pool.
func TestBackgroundBootsThatYield(t *testing.T) {
	o := options()
	o.Boots, o.Yields = 1, func() bool { return true }
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 1}, "d1", f.now)
	f.settle(0)
	m, _ := f.s.Take(python, f.now)
	f.s.Retire(python, m, f.now, false)
	p := f.s.Plan(f.now)
	if len(p.Boots) != 1 || p.Boots[0].Wanted {
		t.Fatalf("right after a claim: %+v, want one boot for nobody", p)
	}
	join := func(k Key) *Ticket[int] {
		tk, err := f.s.Join(k, Config{Demand: true}, "d1", "ann", false, f.now)
		if err != nil {
			t.Fatal(err)
		}
		return tk
	}
	// The background boot delays no other boot.
	other := join(bash)
	q := f.s.Plan(f.now)
	if len(q.Boots) != 1 || !q.Boots[0].Wanted || q.Boots[0].Owner != "ann" || q.Boots[0].Key != bash || len(q.Wanted) != 0 {
		t.Fatalf("with a ticket of another pool: %+v, want its boot", q)
	}
	mine := join(python)
	if r := f.s.Plan(f.now); len(r.Boots) != 0 || !slices.Equal(r.Wanted, []uint64{p.Boots[0].ID}) {
		t.Fatalf("with a ticket: %+v, want boot %d to be wanted", r, p.Boots[0].ID)
	}
	f.s.Booted(q.Boots[0], 100, "d1", f.now)
	f.s.Booted(p.Boots[0], 101, "d1", f.now)
	if a, b := <-other.C(), <-mine.C(); a.Instance != 100 || b.Instance != 101 {
		t.Errorf("handed over %+v and %+v", a, b)
	}
}

// TestRefusesWhatWouldWaitLong has twice as many arrivals as can be served.
func TestRefusesWhatWouldWaitLong(t *testing.T) {
	o := options()
	o.Max, o.MaxQueue, o.Boots, o.MaxWait = 100, 1000, 1, 500*time.Millisecond
	f := newFixture(t, o)
	const boot = 100 * time.Millisecond
	join := func(owner engi.Owner, patient bool) (*Ticket[int], error) {
		return f.s.Join(python, Config{Demand: true}, "d1", owner, patient, f.now)
	}
	var order *Boot
	began := map[*Ticket[int]]time.Time{}
	accepted, refused, longest := 0, 0, time.Duration(0)
	var waiting []*Ticket[int]
	for i := range 400 { // a tick of 50 ms each, with one arrival
		if tk, err := join("ann", false); err == nil {
			accepted++
			began[tk] = f.now
			waiting = append(waiting, tk)
		} else if r := engi.RetryOf(err); !engi.Is(err, engi.Exhausted) || r.AfterMillis < 1 || r.AfterMillis > 1000 {
			t.Fatalf("%v, come back after %+v", err, r)
		} else {
			refused++
		}
		f.now = f.now.Add(50 * time.Millisecond)
		if i%2 == 1 && order != nil {
			f.next++
			f.s.Booted(*order, f.next, "d1", f.now)
			order = nil
		}
		for _, b := range f.s.Plan(f.now).Boots {
			order = &b
		}
		waiting = slices.DeleteFunc(waiting, func(tk *Ticket[int]) bool {
			select {
			case <-tk.C():
				longest = max(longest, f.now.Sub(began[tk]))
				f.s.RemoveUsed(python)
				return true
			default:
				return false
			}
		})
	}
	if accepted < 190 || refused < 150 {
		t.Errorf("%d accepted and %d refused, want half of 400 each", accepted, refused)
	}
	if longest > o.MaxWait+2*lateTime+boot { // there are twice as many arrivals as departures
		t.Errorf("one waited %v, want %v at most", longest, o.MaxWait)
	}
	if _, err := join("ann", true); err != nil {
		t.Errorf("a patient caller: %v", err)
	}
	if _, err := join("bob", false); err != nil {
		t.Errorf("another owner, whose turn comes soon: %v", err)
	}
}

// TestManyAtOnceMayAllWait has a hundred arrivals at the same time.
func TestManyAtOnceMayAllWait(t *testing.T) {
	o := options()
	o.MaxQueue, o.MaxWait = 1000, 100*time.Millisecond
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 1}, "d1", f.now)
	p := f.s.Plan(f.now)
	f.now = f.now.Add(time.Second)
	f.s.Booted(p.Boots[0], 1, "d1", f.now) // the boot took a second
	for i := range 100 {
		if _, err := f.s.Join(python, Config{Target: 1}, "d1", "ann", false, f.now); err != nil {
			t.Fatalf("the %dth: %v", i+1, err)
		}
		f.now = f.now.Add(time.Millisecond)
	}
	f.now = f.now.Add(time.Second)
	if _, err := f.s.Join(python, Config{Target: 1}, "d1", "ann", false, f.now); !engi.Is(err, engi.Exhausted) {
		t.Errorf("one more, a second later: %v, want exhausted", err)
	}
}

// TestSlowBootsRefuseNobody has as many arrivals as can be booted, where each boot takes
// longer than MaxWait.
func TestSlowBootsRefuseNobody(t *testing.T) {
	o := options()
	o.MaxWait = 100 * time.Millisecond
	f := newFixture(t, o)
	for i := range 50 {
		tk, err := f.s.Join(python, Config{Demand: true}, "d1", "ann", false, f.now)
		if err != nil {
			t.Fatalf("the %dth: %v", i+1, err)
		}
		p := f.s.Plan(f.now)
		f.now = f.now.Add(2 * time.Second)
		f.next++
		f.s.Booted(p.Boots[0], f.next, "d1", f.now)
		<-tk.C()
		f.s.RemoveUsed(python)
	}
}

func TestTicketsAreServedInOrder(t *testing.T) {
	f := newFixture(t, options())
	var tickets []*Ticket[int]
	for range 4 {
		tk, err := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, tk)
	}
	for i, tk := range tickets {
		if got := f.s.Position(tk); got != i+1 {
			t.Errorf("position %d, want %d", got, i+1)
		}
	}
	f.settle(0)
	last := 0
	for i, tk := range tickets {
		h := <-tk.C()
		if h.Err != nil || h.Instance <= last || !h.Fresh {
			t.Errorf("ticket %d got %+v after instance %d", i, h, last)
		}
		last = h.Instance
	}
}

func TestOwnersTakeTurns(t *testing.T) {
	f := newFixture(t, options())
	order := []string{}
	tickets := map[string]*Ticket[int]{}
	join := func(name string, owner engi.Owner) {
		tk, err := f.s.Join(python, Config{Demand: true}, "d1", owner, false, f.now)
		if err != nil {
			t.Fatal(err)
		}
		tickets[name] = tk
	}
	for i := range 5 {
		join(fmt.Sprint("a", i), "alice")
	}
	join("b0", "bob")
	join("b1", "bob")
	join("c0", "carol")
	for len(tickets) > 0 {
		b := f.s.Plan(f.now).Boots
		for _, o := range b {
			f.next++
			f.s.Booted(o, f.next, "d1", f.now)
		}
		served := map[int]string{}
		for name, tk := range tickets {
			select {
			case h := <-tk.C():
				served[h.Instance] = name
				delete(tickets, name)
				f.s.Retire(python, h.Instance, f.now, true)
			default:
			}
		}
		for _, m := range slices.Sorted(func(yield func(int) bool) {
			for m := range served {
				if !yield(m) {
					return
				}
			}
		}) {
			order = append(order, served[m])
		}
	}
	want := []string{"a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"}
	if !slices.Equal(order, want) {
		t.Errorf("served %v, want %v", order, want)
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	o := options()
	o.MaxQueue = 2
	f := newFixture(t, o)
	for range 2 {
		if _, err := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
	if !engi.Is(err, engi.Exhausted) || engi.RetryOf(err).Position != 3 || engi.RetryOf(err).AfterMillis == 0 {
		t.Errorf("%v %+v, want exhausted at position 3 with a hint", err, engi.RetryOf(err))
	}
}

// TestNobodyTakesTheWholeQueue: one owner tries to fill the queue, while tickets leave and are
// served.
func TestNobodyTakesTheWholeQueue(t *testing.T) {
	f := newFixture(t, options()) // the queue has 20 places
	var tickets []*Ticket[int]
	fill := func() {
		for {
			tk, err := f.s.Join(python, Config{Demand: true}, "d1", "hog", false, f.now)
			if err != nil {
				return
			}
			tickets = append(tickets, tk)
		}
	}
	others := func(n int) {
		t.Helper()
		for range n {
			tk, err := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
			if err != nil {
				t.Fatal(err)
			}
			defer f.s.Leave(tk)
		}
	}
	fill()
	others(3)
	for _, tk := range tickets[10:] {
		f.s.Leave(tk)
	}
	fill()
	others(3)
	for _, o := range f.s.Plan(f.now).Boots {
		f.next++
		f.s.Booted(o, f.next, "d1", f.now)
	}
	fill()
	others(3)
}

func TestLeavingMovesTheQueueUp(t *testing.T) {
	f := newFixture(t, options())
	a, _ := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
	b, _ := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
	if _, served := f.s.Leave(a); served {
		t.Error("served before any boot")
	}
	if got := f.s.Position(b); got != 1 {
		t.Errorf("position %d, want 1", got)
	}
	f.settle(0)
	h, served := f.s.Leave(b)
	if !served || h.Instance == 0 {
		t.Errorf("left with %+v, %v; want an instance", h, served)
	}
	f.s.Return(python, h.Instance, "d1")
	if downs := f.settle(time.Second); !slices.Contains(downs, h.Instance) {
		t.Errorf("a pool without a target kept %d; downs %v", h.Instance, downs)
	}
	if _, ok := f.s.Config(python); ok {
		t.Error("an empty pool on demand is still there")
	}
}

func TestFailedBootsPauseAndRefuse(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 1}, "d1", f.now)
	tk, err := f.s.Join(python, Config{}, "d1", "alice", false, f.now)
	if err != nil {
		t.Fatal(err)
	}
	sad := engi.Errorf(engi.Internal, "sad").WithRemedy("cheer up")
	fail := func() {
		p := f.s.Plan(f.now)
		for len(p.Boots) == 0 {
			if p.Again == 0 {
				t.Fatalf("no boot ordered: %+v", p)
			}
			f.now = f.now.Add(p.Again)
			p = f.s.Plan(f.now)
		}
		for _, b := range p.Boots {
			f.s.BootFailed(b, sad, f.now)
		}
	}
	fail()
	p := f.s.Plan(f.now)
	if len(p.Boots) != 0 || p.Again == 0 {
		t.Errorf("right after a failure: %+v, want a pause", p)
	}
	fail()
	select {
	case h := <-tk.C():
		if !engi.Is(h.Err, engi.Unavailable) || engi.RemedyOf(h.Err) != "cheer up" || engi.RetryOf(h.Err).AfterMillis == 0 {
			t.Errorf("refusal %v, remedy %q, retry %+v", h.Err, engi.RemedyOf(h.Err), engi.RetryOf(h.Err))
		}
	default:
		t.Fatal("still waiting after two failures")
	}
	if _, err := f.s.Join(python, Config{}, "d1", "alice", false, f.now); !engi.Is(err, engi.Unavailable) {
		t.Errorf("join while it fails: %v, want kind unavailable", err)
	}
	if cold := f.s.Cold(); cold[python] == nil {
		t.Errorf("cold %v does not say why", cold)
	}
	f.settle(time.Second)
	if got := f.status(python); got.Ready != 1 {
		t.Errorf("%+v, want 1 ready after the pause", got)
	}
}

func TestPermanentFailureRefusesAtOnce(t *testing.T) {
	f := newFixture(t, options())
	tk, _ := f.s.Join(python, Config{Demand: true}, "d1", "alice", false, f.now)
	for _, b := range f.s.Plan(f.now).Boots {
		f.s.BootFailed(b, engi.Errorf(engi.Invalid, "no shell in template"), f.now)
	}
	select {
	case h := <-tk.C():
		if !engi.Is(h.Err, engi.Invalid) {
			t.Errorf("%v, want kind invalid", h.Err)
		}
	default:
		t.Error("still waiting")
	}
}

func TestNewTemplateFillsThePoolBeforeTheOldOneGoes(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 3}, "d1", f.now)
	f.settle(0)
	f.s.SetTemplate("base", "d2", everything)
	p := f.s.Plan(f.now)
	for i := 0; len(p.Boots) > 0; i++ {
		if len(p.Teardowns) > 0 {
			t.Fatalf("%v go while only %d new ones are ready", p.Teardowns, i)
		}
		if _, ok := f.s.Take(bash, f.now); ok {
			t.Fatal("took from a pool that is not there")
		}
		for _, b := range p.Boots {
			f.next++
			f.s.Booted(b, f.next, "d2", f.now)
		}
		f.now = f.now.Add(time.Second)
		p = f.s.Plan(f.now)
	}
	if len(p.Teardowns)+f.status(python).Ready != 6 && f.status(python).Ready != 3 {
		t.Errorf("downs %v, status %+v", p.Teardowns, f.status(python))
	}
	for _, m := range p.Teardowns {
		if m > 3 {
			t.Errorf("a new one, %d, goes", m)
		}
	}
	m, _ := f.s.Take(python, f.now)
	if m <= 3 {
		t.Errorf("took the old %d", m)
	}
}

func TestNewTemplateReplacesAFullPool(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 3, Max: 3}, "d1", f.now)
	f.settle(0)
	f.s.SetTemplate("base", "d2", everything)
	seen := map[string]int{}
	for range 50 {
		p := f.s.Plan(f.now)
		for _, b := range p.Boots {
			f.next++
			f.s.Booted(b, f.next, "d2", f.now)
		}
		for _, m := range p.Teardowns {
			f.s.TornDown(m)
		}
		if got := f.status(python); got.Ready < 2 {
			t.Fatalf("only %d ready", got.Ready)
		}
		f.now = f.now.Add(200 * time.Millisecond)
	}
	for {
		m, ok := f.s.Take(python, f.now)
		if !ok {
			break
		}
		if m <= 3 {
			t.Errorf("old %d is still there", m)
		}
		seen["new"]++
	}
	if seen["new"] != 3 {
		t.Errorf("%d new ones, want 3", seen["new"])
	}
}

func TestFullNodeMakesSpaceForTickets(t *testing.T) {
	o := options()
	o.Max = 3
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 3}, "d1", f.now)
	f.settle(0)
	tk, err := f.s.Join(bash, Config{Demand: true}, "d1", "alice", false, f.now)
	if err != nil {
		t.Fatal(err)
	}
	f.settle(0)
	select {
	case h := <-tk.C():
		if h.Err != nil {
			t.Error(h.Err)
		}
	default:
		t.Error("still waiting")
	}
	if p := f.status(python); p.Ready != 2 {
		t.Errorf("%+v, want 2 ready", p)
	}
}

func TestDemandPoolsEndWhenIdle(t *testing.T) {
	f := newFixture(t, options())
	tk, _ := f.s.Join(python, Config{Demand: true, Target: 2}, "d1", "alice", false, f.now)
	f.settle(0)
	h := <-tk.C()
	f.s.Retire(python, h.Instance, f.now, false)
	f.settle(30 * time.Second)
	if p := f.status(python); p.Ready != 2 {
		t.Errorf("%+v, want 2 ready", p)
	}
	f.settle(40 * time.Second)
	if st := f.s.Status(); len(st) != 0 {
		t.Errorf("still there: %+v", st)
	}
	if alive, waiting := f.s.Counts(); alive != 0 || waiting != 0 {
		t.Errorf("%d alive, %d waiting", alive, waiting)
	}
}

func TestDrainRefusesAndRetiresAll(t *testing.T) {
	f := newFixture(t, options())
	f.s.Ensure(python, Config{Target: 3}, "d1", f.now)
	f.settle(0)
	tk, _ := f.s.Join(bash, Config{Demand: true}, "d1", "alice", false, f.now)
	bye := engi.Errorf(engi.Unavailable, "bye")
	f.s.Drain(f.now, bye)
	if h := <-tk.C(); h.Err != error(bye) {
		t.Errorf("%v, want %v", h.Err, bye)
	}
	if downs := f.settle(0); len(downs) != 3 {
		t.Errorf("%v go, want 3", downs)
	}
	if alive, _ := f.s.Counts(); alive != 0 {
		t.Errorf("%d alive", alive)
	}
}

// TestRandomHistories plays random histories: an instance is handed out once,
// never after it was retired, limits hold at every moment, and when there are
// no more requests every pool settles at its target.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options()
		o.Max = rapid.IntRange(4, 12).Draw(t, "max")
		o.Boots = rapid.IntRange(1, 4).Draw(t, "boots")
		o.Grow = rapid.IntRange(0, 6).Draw(t, "grow")
		o.MaxWait = time.Duration(rapid.IntRange(0, 500).Draw(t, "wait")) * time.Millisecond
		yields := rapid.Bool().Draw(t, "yields")
		o.Yields = func() bool { return yields }
		s := New[int](o)
		now := start
		keys := []Key{python, bash, {Tier: engi.TierGVisor, Template: "other", Language: engi.Go}}
		cfgs := map[Key]Config{python: {Target: 2, Max: 5}, bash: {Target: 1}}
		for k, c := range cfgs {
			s.Ensure(k, c, "d1", now)
		}
		digests := map[string]string{"base": "d1", "other": "d1"}
		owners := []engi.Owner{"a", "b", "c"}
		next := 0
		keyOf := map[int]Key{} // keys of all live instances
		digestOf := map[int]string{}
		held := map[int]bool{} // instances taken and not yet given back
		gone := map[int]bool{} // instances retired or destroyed, which must not be handed out again
		var boots []Boot
		downing := []int{}
		type wait struct {
			t *Ticket[int]
			k Key
		}
		var waits []wait
		got := func(m int, k Key) {
			if held[m] || gone[m] {
				t.Fatalf("instance %d handed out again", m)
			}
			if keyOf[m] != k {
				t.Fatalf("instance of %v handed to %v", keyOf[m], k)
			}
			held[m] = true
		}
		collect := func() {
			waits = slices.DeleteFunc(waits, func(w wait) bool {
				select {
				case h := <-w.t.C():
					if h.Err == nil {
						got(h.Instance, w.k)
					}
					return true
				default:
					return false
				}
			})
		}
		plan := func() time.Duration {
			p := s.Plan(now)
			for _, id := range p.Wanted {
				i := slices.IndexFunc(boots, func(b Boot) bool { return b.ID == id })
				if i < 0 || boots[i].Wanted {
					t.Fatalf("boot %d becomes wanted; under way are %+v", id, boots)
				}
				boots[i].Wanted = true
			}
			boots = append(boots, p.Boots...)
			downing = append(downing, p.Teardowns...)
			for _, m := range p.Teardowns {
				if held[m] {
					t.Fatalf("instance %d destroyed while in use", m)
				}
				gone[m] = true
			}
			if len(boots) > 2*o.Boots { // wanted and unwanted boots
				t.Fatalf("%d boots at once, %d allowed", len(boots), 2*o.Boots)
			}
			if alive, _ := s.Counts(); alive > o.Max {
				t.Fatalf("%d alive, %d allowed", alive, o.Max)
			}
			return p.Again
		}
		booted := func(i int, fail bool) {
			b := boots[i]
			boots = slices.Delete(boots, i, i+1)
			if fail {
				s.BootFailed(b, engi.Errorf(engi.Internal, "sad"), now)
				return
			}
			next++
			keyOf[next], digestOf[next] = b.Key, digests[b.Key.Template]
			s.Booted(b, next, digestOf[next], now)
		}
		anyHeld := func() (int, bool) {
			ms := []int{}
			for m := range held {
				ms = append(ms, m)
			}
			if len(ms) == 0 {
				return 0, false
			}
			slices.Sort(ms)
			return rapid.SampledFrom(ms).Draw(t, "instance"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				k := rapid.SampledFrom(keys).Draw(t, "key")
				if m, ok := s.Take(k, now); ok {
					got(m, k)
				}
			},
			"join": func(t *rapid.T) {
				k := rapid.SampledFrom(keys).Draw(t, "key")
				cfg, ok := cfgs[k]
				if !ok {
					cfg = Config{Demand: true, Target: 1}
				}
				tk, err := s.Join(k, cfg, digests[k.Template], rapid.SampledFrom(owners).Draw(t, "owner"), rapid.Bool().Draw(t, "patient"), now)
				if err == nil {
					waits = append(waits, wait{tk, k})
				}
			},
			"leave": func(t *rapid.T) {
				if len(waits) == 0 {
					return
				}
				i := rapid.IntRange(0, len(waits)-1).Draw(t, "wait")
				w := waits[i]
				if h, served := s.Leave(w.t); served && h.Err == nil {
					got(h.Instance, w.k)
				}
				waits = slices.Delete(waits, i, i+1)
			},
			"plan": func(t *rapid.T) { plan() },
			"boot": func(t *rapid.T) {
				if len(boots) > 0 {
					booted(rapid.IntRange(0, len(boots)-1).Draw(t, "boot"), rapid.IntRange(0, 4).Draw(t, "fail") == 0)
				}
			},
			"down": func(t *rapid.T) {
				if len(downing) > 0 {
					s.TornDown(downing[0])
					downing = downing[1:]
				}
			},
			"retire": func(t *rapid.T) {
				if m, ok := anyHeld(); ok {
					delete(held, m)
					gone[m] = true
					s.Retire(keyOf[m], m, now, rapid.Bool().Draw(t, "hurry"))
				}
			},
			"return": func(t *rapid.T) {
				if m, ok := anyHeld(); ok {
					delete(held, m)
					s.Return(keyOf[m], m, digestOf[m])
				}
			},
			"lose": func(t *rapid.T) {
				for m := range keyOf {
					if !held[m] && !gone[m] {
						if s.Discard(keyOf[m], m, now) {
							gone[m] = true
						}
						return
					}
				}
			},
			"template": func(t *rapid.T) {
				digests["base"] = rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "digest")
				s.SetTemplate("base", digests["base"], everything)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) { collect() },
		})
		// All instances in use are given back.
		for range 2000 {
			collect()
			for m := range held {
				delete(held, m)
				gone[m] = true
				s.Retire(keyOf[m], m, now, false)
			}
			again := plan()
			for len(boots) > 0 {
				booted(0, false)
			}
			for _, m := range downing {
				s.TornDown(m)
			}
			downing = nil
			now = now.Add(max(again, 50*time.Millisecond))
		}
		collect()
		if len(waits) > 0 || len(held) > 0 {
			t.Fatalf("%d still wait, %d still hold", len(waits), len(held))
		}
		ready := 0
		for _, p := range s.Status() {
			want := cfgs[Key{engi.TierGVisor, p.Template, p.Language, engi.Size{}}].Target
			if p.Ready != want || p.Booting+p.Used+p.Waiting != 0 {
				t.Fatalf("at rest: %+v, want %d ready and nothing else", p, want)
			}
			ready += p.Ready
		}
		if alive, waiting := s.Counts(); alive != ready || waiting != 0 {
			t.Fatalf("%d alive, %d ready, %d waiting", alive, ready, waiting)
		}
	})
}

// TestReturnedOldInstancesMakeSpace gives back more instances than the pool's
// target just before its template changes: new instances are booted nevertheless.
func TestReturnedOldInstancesMakeSpace(t *testing.T) {
	f := newFixture(t, options())
	for m := range 2 {
		f.s.Adopt(bash, Config{Target: 1}, -m-1, "d0", true, f.now)
	}
	f.s.SetTemplate("base", "d0", everything)
	for m := range 2 {
		f.s.Return(bash, -m-1, "d0")
	}
	f.s.SetTemplate("base", "d1", everything)
	f.settle(time.Minute)
	if n := f.s.pools[bash].current(); n != 1 || len(f.s.pools[bash].ready) != 1 {
		t.Errorf("%d of %d are new, want one", n, len(f.s.pools[bash].ready))
	}
}

// TestReservedPlaces reserves places for instances that the caller boots.
func TestReservedPlaces(t *testing.T) {
	o := options()
	o.Max = 3
	f := newFixture(t, o)
	f.s.Ensure(python, Config{Target: 2}, "d1", f.now)
	f.settle(time.Second)
	reserve := func(what string, want engi.Kind) {
		t.Helper()
		err := f.s.Reserve(f.now)
		if engi.KindOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	const fine = engi.NoKind
	reserve("the last free place", fine)
	reserve("at the cost of a ready instance", fine)
	reserve("at the cost of the other", fine)
	reserve("beyond the maximum", engi.Exhausted)
	f.settle(time.Second)
	if alive, _ := f.s.Counts(); alive != 3 {
		t.Errorf("%d instances, want 3", alive)
	}
	sized := bash
	sized.Size = engi.Size{Disk: 1}
	f.s.AddUsed(sized, Config{Demand: true}, "d1", f.now)
	f.s.AddUsed(python, Config{Target: 2}, "d1", f.now)
	f.s.Unreserve()
	f.s.RemoveUsed(sized)
	f.s.RemoveUsed(python)
	f.settle(time.Second)
	if alive, _ := f.s.Counts(); alive != 2 {
		t.Errorf("%d instances, want the pool's 2 again", alive)
	}
	for _, p := range f.s.Status() {
		if p.Used != 0 {
			t.Errorf("%+v: want none in use", p)
		}
	}
}
