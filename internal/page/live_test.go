package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// TestPageAppearsWhileItIsWritten makes a slow model write a long page. Watchers must see
// partial pages, then the page, and later updates in the right order.
func TestPageAppearsWhileItIsWritten(t *testing.T) {
	long := strings.Repeat("<p>word</p>", 60)
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"full","html":"<main>` + long + `<script>1</script></main>"}` + "\n" + `{"type":"patches","patches":[{"selector":"main","append":"<b>end</b>"}]}`, Pace: 8 * time.Millisecond}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sizes, whole := []int{}, false
	for u, err := range p.Watch(ctx, "ann", string(id), c.seq) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case u.Partial && (u.Seq != 0 || whole):
			t.Errorf("a part comes after the whole, or is kept: %+v", u)
		case u.Partial:
			if strings.Contains(u.HTML, "script") {
				t.Error(u.HTML)
			}
			sizes = append(sizes, len(u.HTML))
		case u.Kind == engi.PageReplaced:
			whole = u.HTML == "<main>"+long+"</main>"
		}
		if u.Kind == engi.PageDone {
			break
		}
	}
	if !whole || len(sizes) < 2 || !slices.IsSorted(sizes) {
		t.Errorf("parts of %v bytes came first, whole: %v", sizes, whole)
	}
}

// TestPageThatIsNotCompleted breaks the model's connection within a page that is already shown.
func TestPageThatIsNotCompleted(t *testing.T) {
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		if c.N > 2 {
			return scripted.Answer{}
		}
		if c.N == 1 {
			return scripted.Answer{Text: `{"type":"full","html":"<p>first</p>"}`}
		}
		return scripted.Answer{Text: `{"type":"full","html":"<main>` + strings.Repeat("<p>word</p>", 60) + "\n", Pace: 5 * time.Millisecond}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, ended)
	p.act(t, id, "b", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shown, parts := "", 0
	for u, err := range p.Watch(ctx, "ann", string(id), c.seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == engi.PageReplaced {
			shown = u.HTML
		}
		if u.Partial {
			parts++
		}
		if u.Kind == engi.PageDone {
			break
		}
	}
	if shown != "<p>first</p>" || parts == 0 {
		t.Errorf("after %d parts, a client shows %s", parts, shown)
	}
}

// TestOutputOfTools makes a tool print much in small pieces. Watchers must see all of it, in
// fewer pieces, between the beginning and the end of the call.
func TestOutputOfTools(t *testing.T) {
	const lines = 400
	seen := make(chan struct{}) // closed when the watcher has joined: a later watcher would miss output
	say, err := tool.New("say", "Prints.", func(ctx context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
		select {
		case <-seen:
		case <-ctx.Done():
		}
		for i := range lines {
			c.Out(engi.Stdout, fmt.Appendf(nil, "line %03d ä\n", i))
			if i%40 == 0 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		return tool.Result{Text: "done"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: `{"type":"full","html":"<p>a</p>"}`}
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "say", Arguments: "{}"}}}
	})
	w.tools = []tool.Tool{say}
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	var text strings.Builder
	var order []string
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for u, err := range p.Watch(ctx, "ann", string(id), c.seq) {
		if err != nil {
			t.Fatal(err)
		}
		what := string(u.Kind)
		if u.Result != nil {
			what = "result"
		}
		if what == "tool" {
			close(seen)
		}
		if order = append(order, what); u.Kind == engi.PageOutput {
			text.WriteString(u.Text)
			if u.Seq != 0 || u.Call.Name != "say" {
				t.Errorf("%+v", u)
			}
		}
		if u.Kind == engi.PageDone {
			break
		}
	}
	pieces := strings.Count(strings.Join(order, " "), "stdout")
	most := int(time.Since(began)/(50*time.Millisecond)) + text.Len()/(4<<10) + 2
	if got := strings.Join(slices.Compact(order), " "); got != "action tool stdout result html done" || strings.Count(text.String(), "ä\n") != lines || pieces > most {
		t.Errorf("%s in %d pieces:\n%s", got, pieces, text.String())
	}
}

// TestLargeEvents makes a model and a tool write more than an event can hold. The answer must end.
func TestLargeEvents(t *testing.T) {
	const much = 200 << 10
	say, err := tool.New("say", "Prints.", func(context.Context, *tool.Call, struct {
		Text string `json:"text"`
	}) (tool.Result, error) {
		return tool.Result{Text: strings.Repeat("\x01", much)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
		switch {
		case strings.HasPrefix(c.Last().Text, "These lines"):
			return scripted.Answer{Text: "{}"}
		case c.Last().Role == "tool":
			return scripted.Answer{Text: `{"type":"stats","x":"` + strings.Repeat("x", 256<<10-len(`{"type":"stats","x":""}`)) + `"}` + "\n" +
				`{"type":"full","html":"<p>a</p>"}` + "\n" + `{"type":"patches","patches":[` +
				strings.Repeat(`{"selector":"p","attr":{"title":"`+strings.Repeat(`<`, 30<<10)+`"}},`, 7) + `{"selector":"p","text":"b"}]}`}
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "say", Arguments: `{"text":"` + strings.Repeat(`\"`, much/2) + `"}`}, {Name: strings.Repeat("n", 1000), Arguments: "{}"}}}
	})
	w.tools = []tool.Tool{say}
	p := w.start()
	id := w.session("ann")
	p.act(t, id, "a", "")
	if ui := p.rest(t, id); !strings.HasSuffix(ui.HTML, ">b</p>") {
		t.Errorf("%.200s", ui.HTML)
	}
}

// TestRefusedEvent makes the log refuse an event of an answer, however often it is tried.
// This must end the answer, but not the page.
func TestRefusedEvent(t *testing.T) {
	w := newFixture(t, counter)
	w.refuses.Store(true)
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "open", "")
	p.rest(t, id)
	if !c.look(t.Context(), t, p, id, ended) || c.seen[len(c.seen)-1].Ended != engi.RunFailed || c.seen[len(c.seen)-2].Kind != engi.PageBad {
		t.Errorf("%+v", c.seen)
	}
	w.refuses.Store(false)
	p.act(t, id, "open", "")
	if ui := p.rest(t, id); ui.HTML != fmt.Sprintf(counted, 0, "") {
		t.Errorf("%+v", ui)
	}
}

// A modules saves modules, except those in fails.
type modules struct {
	engi.Docs
	mu    sync.Mutex
	fails map[string]error
	tries map[string]int
	saved []string
}

func (m *modules) SaveModules(_ context.Context, viewer engi.Viewer, session string, list []engi.CodeModule) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range list {
		m.tries[x.Path]++
		if err := m.fails[x.Path]; err != nil && (!engi.Is(err, engi.Unavailable) || m.tries[x.Path] < 3) {
			return err
		}
	}
	for _, x := range list {
		m.saved = append(m.saved, string(viewer)+" "+x.Path+" "+strings.Join(x.Exports, ","))
	}
	return nil
}

// TestModulesAreSaved announces modules. The updates must continue while modules are saved; modules that
// cannot be saved must be reported, without effect on the others.
func TestModulesAreSaved(t *testing.T) {
	m := &modules{tries: map[string]int{}, fails: map[string]error{
		"lib/flaky.ts": engi.Errorf(engi.Unavailable, "the sandbox boots"), "lib/none.ts": engi.Errorf(engi.NotFound, "no such file").WithRemedy("write it first"),
	}}
	line := func(paths ...string) string {
		var list []string
		for _, p := range paths {
			list = append(list, `{"path":"`+p+`","description":"d","exports":["f"],"usage":"u"}`)
		}
		return `{"type":"code_modules","modules":[` + strings.Join(list, ",") + `]}` + "\n"
	}
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: line("lib/a.ts", "lib/none.ts", "lib/flaky.ts") + `{"type":"full","html":"<p>a</p>"}` + "\n"}
	})
	w.library = m
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, ended)
	if c.page.HTML() != "<p>a</p>" || !strings.Contains(w.model.Seen()[0].System, "code_modules") {
		t.Errorf("%s", c.page.HTML())
	}
	c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool { return u.Kind == engi.PageBad })
	if u := c.seen[len(c.seen)-1]; !strings.Contains(u.Text, "no such file") || !strings.Contains(u.Text, "write it first") || u.Run == "" {
		t.Errorf("%+v", u)
	}
	p.stop()
	if slices.Sort(m.saved); !slices.Equal(m.saved, []string{"ann lib/a.ts f", "ann lib/flaky.ts f"}) {
		t.Errorf("saved %v after %v", m.saved, m.tries)
	}
	if r, err := store.Pages(w.db).Get(t.Context(), id); err != nil || r.Busy() {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestModulesSurviveRestart stops a node that has not saved modules yet.
func TestModulesSurviveRestart(t *testing.T) {
	m := &modules{tries: map[string]int{}, fails: map[string]error{"lib/a.ts": engi.Errorf(engi.Unavailable, "the sandbox boots")}}
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"code_modules","modules":[{"path":"lib/a.ts","description":"d","exports":["f"],"usage":"u"}]}`}
	})
	w.library, w.backoff = m, time.Hour
	p := w.start()
	id := w.session("ann")
	p.act(t, id, "a", "")
	p.rest(t, id)
	p.stop()
	if len(m.saved) > 0 {
		t.Fatalf("saved %v", m.saved)
	}
	w.backoff = time.Millisecond
	p = w.start()
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		if r, err := store.Pages(w.db).Get(t.Context(), id); err != nil || time.Now().After(end) {
			t.Fatalf("%+v, %v", r, err)
		} else if !r.Busy() {
			break
		}
	}
	p.stop()
	if !slices.Equal(m.saved, []string{"ann lib/a.ts f"}) {
		t.Errorf("saved %v after %v", m.saved, m.tries)
	}
}

// TestRestart stops a node in the middle of an answer, and makes the model write another answer
// afterwards.
func TestRestart(t *testing.T) {
	said := func(words ...string) string {
		text := `{"type":"full","html":"<ul></ul>"}` + "\n"
		for _, word := range words {
			text += `{"type":"patches","patches":[{"selector":"ul","append":"<li>` + word + `</li>"}]}` + "\n"
		}
		return text
	}
	for name, then := range map[string]string{"the same": said("a", "b", "c", "d", "e"), "other": said("a", "b", "x", "y"), "less": said("a")} {
		t.Run(name, func(t *testing.T) {
			var restarted bool
			w := newFixture(t, func(c scripted.Conversation) scripted.Answer {
				if restarted {
					return scripted.Answer{Text: then}
				}
				return scripted.Answer{Text: said("a", "b", "c", "d", "e"), Pace: 150 * time.Millisecond}
			})
			p := w.start()
			id := w.session("ann")
			c := p.join(t, id)
			p.act(t, id, "a", "")
			n := 0
			c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool {
				if u.Kind == engi.PagePatched {
					n++
				}
				return n == 3
			})
			p.stop()
			restarted = true
			p = w.start()
			c.look(t.Context(), t, p, id, ended)
			ui := p.rest(t, id)
			want := "<ul><li>" + strings.Join(words(then), "</li><li>") + "</li></ul>"
			if ui.HTML != want || c.page.HTML() != want {
				t.Errorf("the page is %s, the client's %s, want %s", ui.HTML, c.page.HTML(), want)
			}
			replaced := 0
			for _, u := range c.seen[1:] {
				if u.Kind == engi.PageReplaced {
					replaced++
				}
			}
			if name == "the same" && (replaced != 1 || len(c.seen) != 9) || replaced > 2 {
				t.Errorf("the page was replaced %d times, and %d updates seen", replaced, len(c.seen))
			}
		})
	}
}

func words(text string) (all []string) {
	for _, part := range strings.Split(text, "<li>")[1:] {
		word, _, _ := strings.Cut(part, "<")
		all = append(all, word)
	}
	return all
}

// TestEndOfSession ends a session during a run for its page.
func TestEndOfSession(t *testing.T) {
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: strings.Repeat(`{"type":"stats","a":1}`+"\n", 5000), Pace: time.Millisecond}
	})
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool { return u.Kind == engi.PageStats })
	looked, looking := make(chan bool), make(chan bool, 10_000)
	go func() {
		looked <- c.look(t.Context(), t, p, id, func(engi.PageUpdate) bool { looking <- true; return false })
	}()
	<-looking
	w.end(id)
	if <-looked {
		t.Error("the stream did not end")
	}
	if _, err := p.Get(t.Context(), "ann", string(id), 0); !engi.Is(err, engi.NotFound) {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		runs, err := p.agents.List(t.Context(), "ann", 1)
		if err != nil {
			t.Fatal(err)
		}
		if runs[0].State == engi.RunCancelled {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the run goes on: %+v", runs)
		}
	}
}

// TestLogThatWasTrimmed removes the events of a page. The current page must remain.
func TestLogThatWasTrimmed(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	first := p.act(t, id, "open", "")
	for range 3 {
		p.act(t, id, "increment", "")
		p.rest(t, id)
	}
	want := p.rest(t, id)
	if n, err := store.TrimEvents(t.Context(), w.db, store.EventBounds{Count: 1}); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	if ui, err := p.Get(t.Context(), "ann", string(id), 0); err != nil || ui.HTML != want.HTML {
		t.Errorf("%+v, %v", ui, err)
	}
	if _, err := p.Get(t.Context(), "ann", string(id), first); !engi.Is(err, engi.Expired) {
		t.Error(err)
	}
	if _, err := p.Restore(t.Context(), "ann", string(id), first); !engi.Is(err, engi.Expired) {
		t.Error(err)
	}
	p.act(t, id, "increment", "")
	ui := p.rest(t, id)
	c.look(t.Context(), t, p, id, func(engi.PageUpdate) bool { return true })
	if c.page.HTML() != ui.HTML || strings.Count(ui.HTML, "<li>") != 4 || c.seen[1].Kind != engi.PageReplaced {
		t.Errorf("the client has %s, the page is %s", c.page.HTML(), ui.HTML)
	}
}

// TestWhatHasNotHappened names a future event of the log.
func TestWhatHasNotHappened(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id := w.session("ann")
	p.act(t, id, "open", "")
	now := p.rest(t, id)
	const future = 1 << 40
	if _, err := p.Get(t.Context(), "ann", string(id), future); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	if _, err := p.Restore(t.Context(), "ann", string(id), future); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for u, err := range p.Watch(ctx, "ann", string(id), future) {
		if err != nil || u.Kind != engi.PageReplaced || u.HTML != now.HTML || u.Seq >= future {
			t.Errorf("%+v, %v", u, err)
		}
		break
	}
}

// TestManyLines uses an answer of more lines than are stored between copies of the page.
func TestManyLines(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"type":"full","html":"<p>x</p>"}` + "\n")
	for i := range 650 {
		fmt.Fprintf(&b, `{"type":"patches","patches":[{"selector":"p","text":"%d"}]}`+"\n", i)
	}
	w := newFixture(t, func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: b.String()} })
	p := w.start()
	id := w.session("ann")
	c := p.join(t, id)
	p.act(t, id, "a", "")
	c.look(t.Context(), t, p, id, ended)
	if ui := p.rest(t, id); ui.HTML != "<p>649</p>" || c.page.HTML() != ui.HTML {
		t.Errorf("%s", ui.HTML)
	}
	// Every state can be read.
	for _, u := range c.seen {
		if u.Kind != engi.PagePatched || *u.Patches[0].Text != "300" {
			continue
		}
		if ui, err := p.Get(t.Context(), "ann", string(id), u.Seq); err != nil || ui.HTML != "<p>300</p>" {
			t.Errorf("%+v, %v", ui, err)
		}
	}
}

// TestSimilarPastActions shows a model earlier actions that are similar to the current
// one.
func TestSimilarPastActions(t *testing.T) {
	w := newFixture(t, counter)
	p := w.start()
	id := w.session("ann")
	for _, data := range []string{`{"search":"red shoes"}`, `{"q":"weather in Paris"}`, `{"q":"a"}`, `{"q":"b"}`, `{"q":"c"}`, `{"q":"d"}`, `{"q":"e"}`, `{"q":"f"}`, `{"search":"blue shoes"}`} {
		p.act(t, id, "look", data)
		p.rest(t, id)
	}
	seen := w.model.Seen()
	_, past, _ := strings.Cut(seen[len(seen)-1].Last().Text, "[RELEVANT PAST CONTEXT] ")
	past, _, _ = strings.Cut(past, "\n[NOW]")
	if first, _, _ := strings.Cut(past, "\n"); first != `1. Action: look Data: {"search":"red shoes"}` {
		t.Errorf("the model was shown\n%s", seen[len(seen)-1].Last().Text)
	}
}

// TestCost measures the costs of pages on a node: memory of idle pages, and time for
// each patch. The limits allow for a busy machine. ENGI_TEST_PAGES sets the number
// of pages.
func TestCost(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes most of the time, and allocates, too")
	}
	idle, streaming, patches := 100, 50, 20
	if text := os.Getenv("ENGI_TEST_PAGES"); text != "" {
		var err error
		if idle, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	w := newFixture(t, func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: `{"type":"full","html":"<p>` + strings.Repeat("x", 10_000) + `</p><b></b>"}`}
	})
	p := w.start()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	var ids []engi.SessionID
	for range idle {
		ids = append(ids, w.session("ann"))
	}
	p.act(t, ids[0], "warm", "")
	p.rest(t, ids[0])
	before, goroutines := heap(), runtime.NumGoroutine()
	for i, id := range ids {
		p.act(t, id, "a", "")
		if i%20 == 19 {
			p.rest(t, id)
		}
	}
	for _, id := range ids {
		p.rest(t, id)
	}
	perIdle := (heap() - before) / int64(idle)
	t.Logf("%d bytes for each of %d idle pages", perIdle, idle)
	if perIdle > 64<<10 {
		t.Errorf("an idle page takes %d bytes", perIdle)
	}
	if n := runtime.NumGoroutine() - goroutines; n > 20 {
		t.Errorf("%d goroutines are left", n)
	}

	// Each line contains the time at which the model wrote it.
	w = newFixture(t, nil)
	w.transport = stamped(patches)
	p = w.start()
	took := make(chan time.Duration, streaming*patches)
	spent := processorTime(t)
	var wg sync.WaitGroup
	for range streaming {
		id := w.session("ann")
		c := p.join(t, id)
		wg.Go(func() {
			c.look(t.Context(), t, p, id, func(u engi.PageUpdate) bool {
				for _, x := range u.Patches {
					n, err := strconv.ParseInt(*x.Text, 10, 64)
					if err != nil {
						t.Error(err)
					}
					took <- time.Since(time.Unix(0, n))
				}
				return u.Kind == engi.PageDone
			})
		})
		p.act(t, id, "stream", "")
	}
	wg.Wait()
	spent = processorTime(t) - spent
	close(took)
	all := slices.Sorted(func(yield func(time.Duration) bool) {
		for d := range took {
			if !yield(d) {
				return
			}
		}
	})
	if len(all) != streaming*patches {
		t.Fatalf("%d lines", len(all))
	}
	t.Logf("%d lines of %d pages at once, from the model to a watcher: half took %v, 99 %% %v, the longest %v", len(all), streaming, all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	each := spent / time.Duration(len(all))
	t.Logf("a line takes %v of processors, with the model, the run and the watcher", each)
	if median := all[len(all)/2]; median > time.Second || each > 20*time.Millisecond {
		t.Errorf("a line takes %v, and %v of processors", median, each)
	}
}

// processorTime returns the CPU time of this process.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A stamped is a provider whose model writes a number of lines, each with its time.
type stamped int

const lineEvery = 100 * time.Millisecond

func (n stamped) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	say := func(text string) {
		raw, _ := json.Marshal(text) // encoding a string cannot fail
		fmt.Fprintf(pw, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\n", raw)
	}
	go func() {
		say(`{"type":"full","html":"<p>` + strings.Repeat("x", 10_000) + `</p><b></b>"}` + "\n")
		for i := range n {
			time.Sleep(lineEvery/2 + time.Duration(i%7)*lineEvery/7) // models do not write in step
			say(fmt.Sprintf(`{"type":"patches","patches":[{"selector":"b","text":"%d"}]}`+"\n", time.Now().UnixNano()))
		}
		fmt.Fprint(pw, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		pw.Close()
	}()
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr, ContentLength: -1, Request: r}, nil
}
