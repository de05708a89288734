package pagestream

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

// wire returns events as a client reads them.
func wire(t testing.TB, events []Event) (lines []string) {
	t.Helper()
	for _, e := range events {
		if e.Text != "" {
			lines = append(lines, e.Text)
			continue
		}
		b, err := json.Marshal(e.Data)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(b))
	}
	return lines
}

const run = engi.RunID("run_a")

func text(s string) *string { return &s }

// updates are one of each kind, with the seqs 1 to 9.
func updates() []engi.PageUpdate {
	call := &engi.ToolCall{ID: "c1", Name: "run_code", Arguments: `{"code":"1"}`}
	all := []engi.PageUpdate{
		{Kind: engi.PageActed, Action: "go", Data: json.RawMessage(`{}`)},
		{Kind: engi.PageTool, Run: run, Call: call},
		{Kind: engi.PageTool, Run: run, Call: call, Result: &engi.ToolResult{Call: "c1", Name: "run_code", Text: "one"}},
		{Kind: engi.PageReplaced, Run: run, HTML: "<p>a</p>"},
		{Kind: engi.PagePatched, Run: run, Patches: []engi.PagePatch{{Selector: "p", Text: text("b")}}},
		{Kind: engi.PageBad, Run: run, Text: "bad line"},
		{Kind: engi.PageStats, Run: run, Data: json.RawMessage(`{"n":1}`)},
		{Kind: engi.PageBad, Run: run, Text: "worse"},
		{Kind: engi.PageDone, Run: run, Ended: engi.RunDone},
	}
	for i := range all {
		all[i].Seq = int64(i + 1)
	}
	return all
}

func kinds(t *testing.T, enc Encoder, all ...engi.PageUpdate) (list []string, ended bool) {
	t.Helper()
	for _, u := range all {
		if ended {
			t.Fatalf("%s comes after the end", u.Kind)
		}
		var events []Event
		events, ended = enc.Encode(u)
		for _, line := range wire(t, events) {
			var e struct{ Type string }
			if json.Unmarshal([]byte(line), &e) != nil {
				e.Type = line
			}
			list = append(list, e.Type)
		}
	}
	return list, ended
}

func TestRunsInProtocolsOfOthers(t *testing.T) {
	s := Start{Session: "ses_a"}
	page := engi.PageUpdate{Kind: engi.PageReplaced, HTML: "<p>old</p>"}
	partial := engi.PageUpdate{Kind: engi.PageReplaced, Run: run, HTML: "<p>a", Partial: true}
	failed := engi.PageUpdate{Kind: engi.PageDone, Run: run, Ended: engi.RunFailed}
	cancelled := engi.PageUpdate{Kind: engi.PageDone, Run: run, Ended: engi.RunCancelled}
	u := updates()
	for _, test := range []struct {
		name, format string
		resumed      bool
		updates      []engi.PageUpdate
		want         string
	}{
		{"whole", "ai-sdk", false, append([]engi.PageUpdate{page}, u...), "data-html data-action start start-step data-html tool-input-available tool-output-available data-html data-patch data-error data-stats data-error finish-step finish [DONE]"},
		{"from the middle of a call", "ai-sdk", true, u[2:], "start tool-input-available tool-output-available data-html data-patch data-error data-stats data-error finish-step finish [DONE]"},
		{"being written", "ai-sdk", true, []engi.PageUpdate{partial, u[8]}, "start data-html finish-step finish [DONE]"},
		{"failed", "ai-sdk", true, []engi.PageUpdate{u[7], failed}, "start data-error error finish-step finish [DONE]"},
		{"cancelled", "ai-sdk", true, []engi.PageUpdate{u[6], cancelled}, "start data-stats abort [DONE]"},

		{"whole", "ag-ui", false, append([]engi.PageUpdate{page}, u...), "RUN_STARTED STATE_SNAPSHOT RUN_FINISHED RUN_STARTED CUSTOM RUN_FINISHED " +
			"RUN_STARTED TOOL_CALL_START TOOL_CALL_ARGS TOOL_CALL_END TOOL_CALL_RESULT STATE_SNAPSHOT STATE_DELTA TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT CUSTOM TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED"},
		{"from the middle of a call", "ag-ui", true, u[2:], "RUN_STARTED STATE_DELTA TOOL_CALL_START TOOL_CALL_END TOOL_CALL_RESULT STATE_SNAPSHOT STATE_DELTA TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT CUSTOM TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED"},
		{"from the middle of a message", "ag-ui", true, u[6:], "RUN_STARTED STATE_DELTA CUSTOM TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED"},
		{"being written, and not", "ag-ui", false, []engi.PageUpdate{partial, partial, u[6], u[8]}, "RUN_STARTED STATE_DELTA STATE_DELTA STATE_DELTA CUSTOM RUN_FINISHED"},
		{"failed", "ag-ui", true, []engi.PageUpdate{u[7], failed}, "RUN_STARTED STATE_DELTA TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT RUN_ERROR"},
		{"cancelled", "ag-ui", true, []engi.PageUpdate{cancelled}, "RUN_STARTED STATE_DELTA RUN_FINISHED"},
	} {
		s.Resumed = test.resumed
		got, ended := kinds(t, Formats()[test.format].New(s), test.updates...)
		if d := cmp.Diff(strings.Fields(test.want), got); d != "" || !ended {
			t.Errorf("%s, %s, ended %v: %s", test.format, test.name, ended, d)
		}
	}
	// The answer to an action begins with the page.
	s = Start{Session: "ses_a", Answer: true}
	for format, want := range map[string]string{
		"ai-sdk": "start start-step data-html data-patch finish-step finish [DONE]",
		"ag-ui":  "RUN_STARTED STATE_SNAPSHOT STATE_DELTA RUN_FINISHED",
	} {
		if got, ended := kinds(t, Formats()[format].New(s), page, u[4], u[8]); !slices.Equal(got, strings.Fields(want)) || !ended {
			t.Errorf("%s: %v", format, got)
		}
	}
	// Without a run there is the page, and an end.
	if got, ended := kinds(t, Formats()["ai-sdk"].New(Start{Session: "ses_a", Idle: true}), page); !slices.Equal(got, []string{"data-html", "[DONE]"}) || !ended {
		t.Errorf("nothing to come back to: %v", got)
	}
	// Another run's end is missing: it is made up.
	other := engi.PageUpdate{Kind: engi.PageStats, Run: "run_b", Data: json.RawMessage(`{}`), Seq: 20}
	if got, ended := kinds(t, Formats()["ag-ui"].New(s), u[7], other); !slices.Equal(got, strings.Fields("RUN_STARTED TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED RUN_STARTED CUSTOM")) || ended {
		t.Errorf("two runs: %v", got)
	}
}

func TestOwnFormat(t *testing.T) {
	enc := Formats()["engi"].New(Start{})
	for _, test := range []struct {
		update engi.PageUpdate
		want   string
	}{
		{engi.PageUpdate{Kind: engi.PageReplaced}, `{"type":"html","html":""}`},
		{updates()[1], `{"type":"tool","seq":2,"run":"run_a","call":{"id":"c1","name":"run_code","arguments":"{\"code\":\"1\"}"}}`},
		{updates()[4], `{"type":"patch","seq":5,"run":"run_a","patches":[{"selector":"p","text":"b"}]}`},
		{updates()[6], `{"type":"stats","seq":7,"run":"run_a","stats":{"n":1}}`},
		{updates()[8], `{"type":"done","seq":9,"run":"run_a","state":"done"}`},
		{engi.PageUpdate{Kind: engi.PagePatched, Patches: []engi.PagePatch{{Selector: "a", Attr: map[string]*string{"href": nil}, Move: &engi.PageMove{To: "b", Place: "after"}}}},
			`{"type":"patch","patches":[{"selector":"a","attr":{"href":null},"move":{"to":"b","place":"after"}}]}`},
	} {
		events, ended := enc.Encode(test.update)
		if got := wire(t, events); len(got) != 1 || got[0] != test.want || ended || events[0].Name != string(test.update.Kind) {
			t.Errorf("%v, want %s", got, test.want)
		}
	}
}

// TestPatchesSurviveTheWire checks that no change of a patch is forgotten.
func TestPatchesSurviveTheWire(t *testing.T) {
	p := engi.PagePatch{Selector: "s", Text: text("1"), HTML: text("2"), Attr: map[string]*string{"a": text("3")}, Class: map[string]bool{"b": true}, Style: map[string]*string{"c": nil},
		Value: text("4"), Append: text("5"), Prepend: text("6"), Before: text("7"), After: text("8"), Replace: text("9"), Remove: true, Move: &engi.PageMove{To: "t", Place: "after"}}
	ours, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := json.Marshal(patchOf(p))
	if err != nil || string(ours) != string(theirs) {
		t.Errorf("%v: %s, want %s", err, theirs, ours)
	}
}

func TestStreamsThatBreak(t *testing.T) {
	p := &v1.Problem{Kind: v1.Unavailable, Detail: "it went away", Remedy: "come back"}
	for name, want := range map[string]string{
		"engi": `"error":{`, "json-render": `"error":{`, "ai-sdk": `{"errorText":"it went away","type":"error"}`, "ag-ui": `{"code":"unavailable","message":"it went away","type":"RUN_ERROR"}`,
	} {
		if got := wire(t, []Event{Formats()[name].New(Start{}).Fail(p)})[0]; !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A spec is what a client of json-render has.
type spec struct {
	Root     string
	Elements map[string]*specElement
}

type specElement struct {
	Type     string
	Props    map[string]string
	Children []string
}

// apply does what RFC 6902 says about the operations that are used.
func (s *spec) apply(t testing.TB, line string) {
	t.Helper()
	var p struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &p); err != nil {
		t.Fatal(err)
	}
	read := func(v any) {
		if err := json.Unmarshal(p.Value, v); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
	}
	parts := strings.Split(p.Path, "/")[1:]
	for i := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i])
	}
	if parts[0] == "root" {
		read(&s.Root)
		return
	}
	if len(parts) == 1 {
		s.Elements = nil
		read(&s.Elements)
		return
	}
	e := s.Elements[parts[1]]
	if len(parts) > 2 && e == nil {
		t.Fatalf("no such element: %s", line)
	}
	switch {
	case len(parts) == 2 && p.Op == "remove":
		if e == nil {
			t.Fatalf("no such element: %s", line)
		}
		delete(s.Elements, parts[1])
	case len(parts) == 2:
		if e != nil {
			t.Fatalf("a key is used again: %s", line)
		}
		e = &specElement{}
		read(e)
		s.Elements[parts[1]] = e
	case parts[2] == "props" && p.Op == "remove":
		delete(e.Props, parts[3])
	case parts[2] == "props":
		var v string
		read(&v)
		e.Props[parts[3]] = v
	case len(parts) == 3:
		e.Children = nil
		read(&e.Children)
	default:
		i, err := strconv.Atoi(parts[3])
		if err != nil || i > len(e.Children) {
			t.Fatalf("%v: %s", err, line)
		}
		if p.Op == "remove" {
			e.Children = slices.Delete(e.Children, i, i+1)
			return
		}
		var v string
		read(&v)
		e.Children = slices.Insert(e.Children, i, v)
	}
}

// outline writes elements as lines, with what they hold, and counts them.
func (s *spec) outline(t testing.TB, key string, depth int, b *strings.Builder) (n int) {
	t.Helper()
	e := s.Elements[key]
	if e == nil {
		t.Fatalf("there is no element %q", key)
	}
	fmt.Fprintf(b, "%d %s %q\n", depth, e.Type, fmt.Sprint(e.Props))
	n = 1
	for _, c := range e.Children {
		n += s.outline(t, c, depth+1, b)
	}
	return n
}

func TestJSONRenderIsThePage(t *testing.T) {
	words := []string{"p", "b", "ul", "li", "div", "span", "i"}
	for round := range uint64(60) {
		r := rand.New(rand.NewPCG(round, 7))
		var piece func(depth int) string
		piece = func(depth int) string {
			var b strings.Builder
			for range r.IntN(4) {
				w := words[r.IntN(len(words))]
				id := ""
				if r.IntN(3) == 0 {
					id = fmt.Sprintf(` id="x%d"`, r.IntN(20))
				}
				inner := fmt.Sprint(r.IntN(5))
				if depth > 0 && r.IntN(2) == 0 {
					inner = piece(depth - 1)
				}
				fmt.Fprintf(&b, "<%s%s>%s</%s>", w, id, inner, w)
			}
			return b.String()
		}
		enc, sent, page := newJSONRender(Start{}), &spec{}, markup.NewPage("")
		for step := range 25 {
			u := engi.PageUpdate{Kind: engi.PagePatched}
			w := words[r.IntN(len(words))]
			switch choice := r.IntN(8); {
			case step == 0 || choice == 0:
				u = engi.PageUpdate{Kind: engi.PageReplaced, HTML: piece(4)}
				if err := page.Set(u.HTML); err != nil {
					t.Fatal(err)
				}
			case choice == 1:
				u.Patches = []engi.PagePatch{{Selector: w, Append: text(piece(1))}}
			case choice == 2:
				u.Patches = []engi.PagePatch{{Selector: w, Before: text(piece(1))}}
			case choice == 3:
				u.Patches = []engi.PagePatch{{Selector: w, Attr: map[string]*string{"title": text("a/b~c" + fmt.Sprint(step)), "lang": nil}}}
			case choice == 4:
				u.Patches = []engi.PagePatch{{Selector: w + ":first-child", Remove: true}}
			case choice == 5:
				u.Patches = []engi.PagePatch{{Selector: w, Text: text(fmt.Sprint(step))}}
			case choice == 6:
				u.Patches = []engi.PagePatch{{Selector: w, Move: &engi.PageMove{To: words[r.IntN(len(words))], Place: "before"}}}
			default:
				u.Patches = []engi.PagePatch{{Selector: w, Replace: text(piece(2))}}
			}
			page.Apply(u.Patches)
			events, _ := enc.Encode(u)
			for _, line := range wire(t, events) {
				sent.apply(t, line)
			}
			fresh := &spec{}
			events, _ = newJSONRender(Start{}).Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: page.HTML()})
			for _, line := range wire(t, events) {
				fresh.apply(t, line)
			}
			var got, want strings.Builder
			if n := sent.outline(t, sent.Root, 0, &got); n != len(sent.Elements) {
				t.Fatalf("round %d, step %d: %d elements are shown, %d sent", round, step, n, len(sent.Elements))
			}
			fresh.outline(t, fresh.Root, 0, &want)
			if d := cmp.Diff(want.String(), got.String()); d != "" {
				t.Fatalf("round %d, step %d, %+v: %s", round, step, u, d)
			}
		}
	}
}

// TestJSONRenderTakesBackWhatIsBeingWritten patches the page that was there before.
func TestJSONRenderTakesBackWhatIsBeingWritten(t *testing.T) {
	for _, after := range []engi.PageUpdate{{Kind: engi.PagePatched, Patches: []engi.PagePatch{{Selector: "i", Text: text("new")}}}, {Kind: engi.PageDone}} {
		enc, sent := newJSONRender(Start{}), &spec{}
		for i, u := range []engi.PageUpdate{{Kind: engi.PageReplaced, HTML: "<i>old</i>"}, {Kind: engi.PageReplaced, HTML: "<p>fir", Partial: true}, {Kind: engi.PageReplaced, HTML: "<p>first", Partial: true}, after} {
			events, _ := enc.Encode(u)
			for _, line := range wire(t, events) {
				sent.apply(t, line)
			}
			var b strings.Builder
			sent.outline(t, sent.Root, 0, &b)
			want := []string{"old", "fir", "first", "old"}[i]
			if u.Patches != nil {
				want = "new"
			}
			if !strings.Contains(b.String(), "text:"+want+"]") || strings.Count(b.String(), "text:") != 1 {
				t.Errorf("after %+v: %s", u, b.String())
			}
		}
	}
}

func TestJSONRenderSendsLittle(t *testing.T) {
	var list strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&list, "<li>%d</li>", i)
	}
	enc := newJSONRender(Start{})
	enc.Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: `<h1 id="n">0</h1><ul>` + list.String() + `</ul>`})
	for _, test := range []struct {
		patch engi.PagePatch
		want  int // operations
	}{
		{engi.PagePatch{Selector: "#n", Text: text("1")}, 1},
		{engi.PagePatch{Selector: "#n", Attr: map[string]*string{"title": text("x")}}, 1},
		{engi.PagePatch{Selector: "ul", Append: text("<li>last</li>")}, 3},
		{engi.PagePatch{Selector: "ul", Prepend: text("<li>first</li>")}, 3},
		{engi.PagePatch{Selector: "li:nth-child(500)", Remove: true}, 3},
		{engi.PagePatch{Selector: "li:nth-child(300)", Text: text("changed")}, 1},
		{engi.PagePatch{Selector: "li:first-child", Move: &engi.PageMove{To: "ul", Place: "append"}}, 1}, // the keys anew
		{engi.PagePatch{Selector: "#nowhere", Text: text("x")}, 0},
	} {
		events, _ := enc.Encode(engi.PageUpdate{Kind: engi.PagePatched, Patches: []engi.PagePatch{test.patch}})
		if len(events) != test.want {
			t.Errorf("%+v: %v, want %d", test.patch, wire(t, events[:min(len(events), 5)]), test.want)
		}
	}
}

func BenchmarkJSONRender(b *testing.B) {
	var list strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&list, "<li class='item'>number %d</li>", i)
	}
	enc := newJSONRender(Start{})
	enc.Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: `<h1 id="n">0</h1><ul>` + list.String() + `</ul>`})
	for i := range b.N {
		if events, _ := enc.Encode(engi.PageUpdate{Kind: engi.PagePatched, Patches: []engi.PagePatch{{Selector: "#n", Text: text(fmt.Sprint(i + 1))}}}); len(events) != 1 {
			b.Fatal(events)
		}
	}
}
