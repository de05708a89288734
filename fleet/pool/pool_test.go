package pool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi"
)

var start = time.Unix(1_700_000_000, 0)

func options() Options {
	return Options{
		Max: 10, MaxQueue: 20, Boots: 2, Downs: 2,
		Quiet: 100 * time.Millisecond, Patience: time.Second, DemandIdle: time.Minute,
	}
}

var python = Key{Tier: engi.TierGVisor, Template: "base", Language: engi.Python}
var bash = Key{Tier: engi.TierGVisor, Template: "base", Language: engi.Bash}

// A world carries out plans at once and counts.
type fixture struct {
	t    testing.TB
	s    *Pools[int]
	now  time.Time
	next int
}

func newWorld(t testing.TB, o Options) *fixture {
	return &fixture{t: t, s: New[int](o), now: start}
}

// settle carries out plans, letting time pass, until nothing is left to do
// now or in the next d.
func (w *fixture) settle(d time.Duration) (downs []int) {
	end := w.now.Add(d)
	for {
		p := w.s.Plan(w.now)
		for _, b := range p.Boots {
			w.next++
			w.s.Booted(b, w.next, "d1", w.now)
		}
		for _, m := range p.Downs {
			downs = append(downs, m)
			w.s.Gone(m)
		}
		if len(p.Boots)+len(p.Downs) > 0 {
			continue
		}
		if p.Again == 0 || w.now.Add(p.Again).After(end) {
			w.now = end
			return downs
		}
		w.now = w.now.Add(p.Again)
	}
}

func (w *fixture) status(k Key) engi.PoolStatus {
	for _, p := range w.s.Status() {
		if p.Template == k.Template && p.Language == k.Language {
			return p
		}
	}
	return engi.PoolStatus{}
}

// TestABuildNobodyToldOf boots members of a digest the books do not know: the
// pool must not grow for ever.
func TestABuildNobodyToldOf(t *testing.T) {
	o := options()
	o.Max = 100
	w := newWorld(t, o)
	w.s.Ensure(python, Config{Target: 3}, "d0", w.now)
	w.settle(time.Minute)
	if p := w.status(python); p.Ready > 6 {
		t.Errorf("%+v, want 6 ready at most", p)
	}
	w.s.Templated("base", "d1", everything)
	w.settle(time.Minute)
	if p := w.status(python); p.Ready != 3 {
		t.Errorf("%+v, want 3 ready", p)
	}
}

func everything(engi.Language) bool { return true }

func TestAPoolThatCannotBeKeepsNothing(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 3}, "d1", w.now)
	w.settle(0)
	nothing := func(engi.Language) bool { return false }
	w.s.Templated("base", "d1", nothing)
	if downs := w.settle(time.Second); len(downs) != 3 {
		t.Errorf("%v go, want 3", downs)
	}
	if cold := w.s.Cold(); len(cold) != 0 {
		t.Errorf("cold %v, want none", cold)
	}
	w.s.Templated("base", "d1", everything)
	w.settle(time.Second)
	if p := w.status(python); p.Ready != 3 {
		t.Errorf("%+v, want 3 ready again", p)
	}
}

func TestADemandForWhatIsGoneEnds(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Demand: true, Target: 2}, "d1", w.now)
	w.settle(0)
	w.s.Templated("base", "", nil)
	if downs := w.settle(time.Second); len(downs) != 2 {
		t.Errorf("%v go, want 2", downs)
	}
	if p := w.status(python); p.Ready+p.Booting != 0 {
		t.Errorf("%+v, want nothing", p)
	}
}

func TestPoolFillsToItsTarget(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 3}, "d1", w.now)
	if cold := w.s.Cold(); len(cold) != 1 {
		t.Errorf("cold %v, want one", cold)
	}
	w.settle(0)
	if p := w.status(python); p.Ready != 3 || p.Booting != 0 {
		t.Errorf("%+v, want 3 ready", p)
	}
	if cold := w.s.Cold(); len(cold) != 0 {
		t.Errorf("cold %v, want none", cold)
	}
}

func TestNoMoreBootsAtOnceThanAllowed(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 5}, "d1", w.now)
	if p := w.s.Plan(w.now); len(p.Boots) != 2 {
		t.Errorf("%d boots, want 2", len(p.Boots))
	}
	if p := w.s.Plan(w.now); len(p.Boots) != 0 {
		t.Errorf("%d more boots, want 0", len(p.Boots))
	}
}

func TestBackgroundWorkWaitsForQuiet(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 2}, "d1", w.now)
	w.settle(0)
	m, ok := w.s.Take(python, w.now)
	if !ok {
		t.Fatal("nothing to take")
	}
	w.s.Retire(python, m, w.now, false)
	p := w.s.Plan(w.now)
	if len(p.Boots) != 0 || len(p.Downs) != 0 || p.Again != 100*time.Millisecond {
		t.Errorf("right after a claim: %+v, want nothing for 100ms", p)
	}
	w.now = w.now.Add(p.Again)
	if p = w.s.Plan(w.now); len(p.Boots) != 1 || !slices.Equal(p.Downs, []int{m}) {
		t.Errorf("after quiet: %+v, want one boot and the teardown of %d", p, m)
	}
}

func TestBackgroundWorkDoesNotWaitForEver(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 8}, "d1", w.now)
	w.settle(0)
	boots, downs := 0, 0
	for i := range 7 { // a claim each 50 ms: never quiet
		if i > 0 {
			w.now = w.now.Add(50 * time.Millisecond)
		}
		m, ok := w.s.Take(python, w.now)
		if !ok {
			t.Fatal("nothing to take")
		}
		w.s.Retire(python, m, w.now, false)
		p := w.s.Plan(w.now)
		boots, downs = boots+len(p.Boots), downs+len(p.Downs)
	}
	if boots+downs != 0 {
		t.Errorf("%d boots and %d teardowns in the first 300 ms", boots, downs)
	}
	for range 16 {
		w.now = w.now.Add(50 * time.Millisecond)
		w.s.Take(bash, w.now) // somebody
		w.s.Take(python, w.now)
		p := w.s.Plan(w.now)
		boots, downs = boots+len(p.Boots), downs+len(p.Downs)
		for _, m := range p.Downs {
			w.s.Gone(m)
		}
	}
	if boots != 1 || downs == 0 {
		t.Errorf("after more than a second of claims: %d boots, %d teardowns; want 1 boot at a time and some teardowns", boots, downs)
	}
}

func TestWhoWaitsIsServedInOrder(t *testing.T) {
	w := newWorld(t, options())
	var tickets []*Ticket[int]
	for range 4 {
		tk, err := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, tk)
	}
	for i, tk := range tickets {
		if got := w.s.Position(tk); got != i+1 {
			t.Errorf("position %d, want %d", got, i+1)
		}
	}
	w.settle(0)
	last := 0
	for i, tk := range tickets {
		h := <-tk.C()
		if h.Err != nil || h.Member <= last || !h.Fresh {
			t.Errorf("ticket %d got %+v after member %d", i, h, last)
		}
		last = h.Member
	}
}

func TestOwnersTakeTurns(t *testing.T) {
	w := newWorld(t, options())
	order := []string{}
	tickets := map[string]*Ticket[int]{}
	join := func(name string, owner engi.Owner) {
		tk, err := w.s.Join(python, Config{Demand: true}, "d1", owner, w.now)
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
		b := w.s.Plan(w.now).Boots
		for _, o := range b {
			w.next++
			w.s.Booted(o, w.next, "d1", w.now)
		}
		served := map[int]string{}
		for name, tk := range tickets {
			select {
			case h := <-tk.C():
				served[h.Member] = name
				delete(tickets, name)
				w.s.Retire(python, h.Member, w.now, true)
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
	w := newWorld(t, o)
	for range 2 {
		if _, err := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now)
	if engi.KindOf(err) != engi.Exhausted || engi.RetryOf(err).Position != 3 || engi.RetryOf(err).AfterMillis == 0 {
		t.Errorf("%v %+v, want exhausted at position 3 with a hint", err, engi.RetryOf(err))
	}
}

func TestLeavingGivesThePlaceBack(t *testing.T) {
	w := newWorld(t, options())
	a, _ := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now)
	b, _ := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now)
	if _, served := w.s.Leave(a); served {
		t.Error("served before any boot")
	}
	if got := w.s.Position(b); got != 1 {
		t.Errorf("position %d, want 1", got)
	}
	w.settle(0)
	h, served := w.s.Leave(b)
	if !served || h.Member == 0 {
		t.Errorf("left with %+v, %v; want a member", h, served)
	}
	w.s.Return(python, h.Member, "d1")
	if downs := w.settle(time.Second); !slices.Contains(downs, h.Member) {
		t.Errorf("a pool without a target kept %d; downs %v", h.Member, downs)
	}
	if _, ok := w.s.Config(python); ok {
		t.Error("an empty pool on demand is still there")
	}
}

func TestFailuresPauseAndRefuse(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 1}, "d1", w.now)
	tk, err := w.s.Join(python, Config{}, "d1", "alice", w.now)
	if err != nil {
		t.Fatal(err)
	}
	sad := engi.Errorf(engi.Internal, "sad").WithRemedy("cheer up")
	fail := func() {
		p := w.s.Plan(w.now)
		for len(p.Boots) == 0 {
			if p.Again == 0 {
				t.Fatalf("no boot ordered: %+v", p)
			}
			w.now = w.now.Add(p.Again)
			p = w.s.Plan(w.now)
		}
		for _, b := range p.Boots {
			w.s.Failed(b, sad, w.now)
		}
	}
	fail()
	p := w.s.Plan(w.now)
	if len(p.Boots) != 0 || p.Again == 0 {
		t.Errorf("right after a failure: %+v, want a pause", p)
	}
	fail()
	select {
	case h := <-tk.C():
		if engi.KindOf(h.Err) != engi.Unavailable || engi.RemedyOf(h.Err) != "cheer up" || engi.RetryOf(h.Err).AfterMillis == 0 {
			t.Errorf("refusal %v, remedy %q, retry %+v", h.Err, engi.RemedyOf(h.Err), engi.RetryOf(h.Err))
		}
	default:
		t.Fatal("still waiting after two failures")
	}
	if _, err := w.s.Join(python, Config{}, "d1", "alice", w.now); engi.KindOf(err) != engi.Unavailable {
		t.Errorf("join while it fails: %v, want kind unavailable", err)
	}
	if cold := w.s.Cold(); cold[python] == nil {
		t.Errorf("cold %v does not say why", cold)
	}
	w.settle(time.Second)
	if got := w.status(python); got.Ready != 1 {
		t.Errorf("%+v, want 1 ready after the pause", got)
	}
}

func TestAHopelessBootRefusesAtOnce(t *testing.T) {
	w := newWorld(t, options())
	tk, _ := w.s.Join(python, Config{Demand: true}, "d1", "alice", w.now)
	for _, b := range w.s.Plan(w.now).Boots {
		w.s.Failed(b, engi.Errorf(engi.Invalid, "no shell in template"), w.now)
	}
	select {
	case h := <-tk.C():
		if engi.KindOf(h.Err) != engi.Invalid {
			t.Errorf("%v, want kind invalid", h.Err)
		}
	default:
		t.Error("still waiting")
	}
}

func TestANewTemplateFillsThePoolBeforeTheOldOneGoes(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 3}, "d1", w.now)
	w.settle(0)
	w.s.Templated("base", "d2", everything)
	p := w.s.Plan(w.now)
	for i := 0; len(p.Boots) > 0; i++ {
		if len(p.Downs) > 0 {
			t.Fatalf("%v go while only %d new ones are ready", p.Downs, i)
		}
		if _, ok := w.s.Take(bash, w.now); ok {
			t.Fatal("took from a pool that is not there")
		}
		for _, b := range p.Boots {
			w.next++
			w.s.Booted(b, w.next, "d2", w.now)
		}
		w.now = w.now.Add(time.Second)
		p = w.s.Plan(w.now)
	}
	if len(p.Downs)+w.status(python).Ready != 6 && w.status(python).Ready != 3 {
		t.Errorf("downs %v, status %+v", p.Downs, w.status(python))
	}
	for _, m := range p.Downs {
		if m > 3 {
			t.Errorf("a new one, %d, goes", m)
		}
	}
	m, _ := w.s.Take(python, w.now)
	if m <= 3 {
		t.Errorf("took the old %d", m)
	}
}

func TestANewTemplateMakesItsWayInAFullPool(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 3, Max: 3}, "d1", w.now)
	w.settle(0)
	w.s.Templated("base", "d2", everything)
	seen := map[string]int{}
	for range 50 {
		p := w.s.Plan(w.now)
		for _, b := range p.Boots {
			w.next++
			w.s.Booted(b, w.next, "d2", w.now)
		}
		for _, m := range p.Downs {
			w.s.Gone(m)
		}
		if got := w.status(python); got.Ready < 2 {
			t.Fatalf("only %d ready", got.Ready)
		}
		w.now = w.now.Add(200 * time.Millisecond)
	}
	for {
		m, ok := w.s.Take(python, w.now)
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

func TestAFullStockMakesRoomForWhoWaits(t *testing.T) {
	o := options()
	o.Max = 3
	w := newWorld(t, o)
	w.s.Ensure(python, Config{Target: 3}, "d1", w.now)
	w.settle(0)
	tk, err := w.s.Join(bash, Config{Demand: true}, "d1", "alice", w.now)
	if err != nil {
		t.Fatal(err)
	}
	w.settle(0)
	select {
	case h := <-tk.C():
		if h.Err != nil {
			t.Error(h.Err)
		}
	default:
		t.Error("still waiting")
	}
	if p := w.status(python); p.Ready != 2 {
		t.Errorf("%+v, want 2 ready", p)
	}
}

func TestPoolsOnDemandGoWhenIdle(t *testing.T) {
	w := newWorld(t, options())
	tk, _ := w.s.Join(python, Config{Demand: true, Target: 2}, "d1", "alice", w.now)
	w.settle(0)
	h := <-tk.C()
	w.s.Retire(python, h.Member, w.now, false)
	w.settle(30 * time.Second)
	if p := w.status(python); p.Ready != 2 {
		t.Errorf("%+v, want 2 ready", p)
	}
	w.settle(40 * time.Second)
	if st := w.s.Status(); len(st) != 0 {
		t.Errorf("still there: %+v", st)
	}
	if alive, waiting := w.s.Counts(); alive != 0 || waiting != 0 {
		t.Errorf("%d alive, %d waiting", alive, waiting)
	}
}

func TestEmptyRefusesAndRetiresAll(t *testing.T) {
	w := newWorld(t, options())
	w.s.Ensure(python, Config{Target: 3}, "d1", w.now)
	w.settle(0)
	tk, _ := w.s.Join(bash, Config{Demand: true}, "d1", "alice", w.now)
	bye := engi.Errorf(engi.Unavailable, "bye")
	w.s.Empty(w.now, bye)
	if h := <-tk.C(); h.Err != error(bye) {
		t.Errorf("%v, want %v", h.Err, bye)
	}
	if downs := w.settle(0); len(downs) != 3 {
		t.Errorf("%v go, want 3", downs)
	}
	if alive, _ := w.s.Counts(); alive != 0 {
		t.Errorf("%d alive", alive)
	}
}

// TestBooksStayRight plays random histories: a member is handed out once,
// never after it was retired, limits hold at every moment, and when nothing
// is asked any more the stock comes to rest with every pool at its target.
func TestBooksStayRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options()
		o.Max = rapid.IntRange(4, 12).Draw(t, "max")
		o.Boots = rapid.IntRange(1, 4).Draw(t, "boots")
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
		keyOf := map[int]Key{} // of every member alive
		digestOf := map[int]string{}
		held := map[int]bool{} // taken, not yet given back
		gone := map[int]bool{} // retired or destroyed: never again
		var boots []Boot
		downing := []int{}
		type wait struct {
			t *Ticket[int]
			k Key
		}
		var waits []wait
		got := func(m int, k Key) {
			if held[m] || gone[m] {
				t.Fatalf("member %d handed out again", m)
			}
			if keyOf[m] != k {
				t.Fatalf("member of %v handed to %v", keyOf[m], k)
			}
			held[m] = true
		}
		collect := func() {
			waits = slices.DeleteFunc(waits, func(w wait) bool {
				select {
				case h := <-w.t.C():
					if h.Err == nil {
						got(h.Member, w.k)
					}
					return true
				default:
					return false
				}
			})
		}
		plan := func() time.Duration {
			p := s.Plan(now)
			boots = append(boots, p.Boots...)
			downing = append(downing, p.Downs...)
			for _, m := range p.Downs {
				if held[m] {
					t.Fatalf("member %d destroyed while in use", m)
				}
				gone[m] = true
			}
			if len(boots) > o.Boots {
				t.Fatalf("%d boots at once, %d allowed", len(boots), o.Boots)
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
				s.Failed(b, engi.Errorf(engi.Internal, "sad"), now)
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
			return rapid.SampledFrom(ms).Draw(t, "member"), true
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
				tk, err := s.Join(k, cfg, digests[k.Template], rapid.SampledFrom(owners).Draw(t, "owner"), now)
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
					got(h.Member, w.k)
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
					s.Gone(downing[0])
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
						if s.Lose(keyOf[m], m, now) {
							gone[m] = true
						}
						return
					}
				}
			},
			"template": func(t *rapid.T) {
				digests["base"] = rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "digest")
				s.Templated("base", digests["base"], everything)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) { collect() },
		})
		// Everybody goes home.
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
				s.Gone(m)
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

// TestOldOnesThatComeBackMakeWay gives back more members than a pool is to
// have ready, just before its template changes: new ones are booted all the
// same.
func TestOldOnesThatComeBackMakeWay(t *testing.T) {
	w := newWorld(t, options())
	for m := range 2 {
		w.s.Adopt(bash, Config{Target: 1}, -m-1, "d0", true, w.now)
	}
	w.s.Templated("base", "d0", everything)
	for m := range 2 {
		w.s.Return(bash, -m-1, "d0")
	}
	w.s.Templated("base", "d1", everything)
	w.settle(time.Minute)
	if n := w.s.pools[bash].current(); n != 1 || len(w.s.pools[bash].ready) != 1 {
		t.Errorf("%d of %d are new, want one", n, len(w.s.pools[bash].ready))
	}
}
