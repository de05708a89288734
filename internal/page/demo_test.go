package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

// TestDemo plays the examples of the demo model. Each line must have an effect.
func TestDemo(t *testing.T) {
	ran := ""
	code, err := tool.New("run_code", "Runs code.", func(_ context.Context, _ *tool.Call, a struct {
		Code        string `json:"code"`
		Description string `json:"description"`
	}) (tool.Result, error) {
		ran = a.Code
		for does, result := range map[string]string{
			`"GET", "/issues", null`:                           `{"success":true,"result":[{"id":1,"title":"<b>Login</b>","state":"open"},{"id":2,"title":"Prices","state":"done"}]}`,
			`"POST", "/issues", {"title":"New \"one\""}`:       `{"success":true,"result":{"id":3,"title":"New \"one\"","state":"open"}}`,
			`"PATCH", "/issues/1", {"state":"doing"}`:          `{"success":true,"result":{"id":1,"title":"<b>Login</b>","state":"doing"}}`,
			`"PATCH", "/issues/3", {"state":"done"}`:           `{"success":true,"result":{"id":3,"title":"New","state":"done"}}`,
			`"PATCH", "/issues/..%2F2", {"state":"doing"}`:     `{"success":false,"error":"Error: the tracker answers 404: <none>"}`,
			`"PATCH", "/issues/2", {"state":"no\"where"}`:      `{"success":true,"result":{"id":2,"title":"x","state":"#x"}}`,
			`"PATCH", "/issues/", {"state":"\u003cnil\u003e"}`: `{"success":true,"result":null}`,
		} {
			if strings.Contains(ran, "ask("+does+")") {
				return tool.Result{Text: result}, nil
			}
		}
		return tool.Result{Text: `{"success":true,"result":[25,21,16,16,17,14,16,14,15,14]}`}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	type step struct{ action, data, want string }
	for name, steps := range map[string][]step{
		"counter": {
			{"demo-counter", "", `<p id="count">0</p>`}, {"increment", "", `<p id="count">1</p>`}, {"increment", "", `<p id="count">2</p>`},
			{"decrement", "", `<p id="count">1</p>`}, {"reset", "", `<p id="count">0</p>`}, {"decrement", "", `<p id="count">-1</p>`},
		},
		"todo": {
			{"demo-todo", "", `Nothing is left.`}, {"todo-add", `{"text":" "}`, `Write what is to be done.`}, {"todo-add", `{"text":"<b>milk</b>"}`, `<span>&lt;b&gt;milk&lt;/b&gt;</span>`},
			{"todo-add", `{"text":"bread"}`, `2 left.`}, {"todo-toggle", `{"id":"1"}`, `1 left.`}, {"todo-toggle", `{"id":"1"}`, `2 left.`},
			{"todo-toggle", `{"id":"2"}`, `class="done"`}, {"todo-remove", `{"id":"1"}`, `Nothing is left.`}, {"todo-remove", `{"id":"1"}`, `It is not there any more.`},
		},
		"form": {
			{"demo-form", "", `data-action="form-check"`}, {"form-check", `{"name":"","email":"x","age":"7"}`, `Tell us your name.`},
			{"form-check", `{"name":"Ada","email":"ada@example.com","age":"7"}`, `You must be 18 or older.`}, {"form-check", `{"name":"<Ada>","email":"ada@example.com","age":"36"}`, `Welcome, &lt;Ada&gt;.`},
		},
		"chart": {{"demo-chart", "", `data-from="1000"`}, {"demo-chart", `{"from":"1000"}`, `data-from="2000"`}},
		"board": {
			{"demo-board", "", `<section aria-label="Open" id="state-open" style="flex: 1;"><h2>Open</h2><article id="issue-1"><p>&lt;b&gt;Login&lt;/b&gt;</p>`},
			{"board-add", `{"title":"New \"one\""}`, `<article id="issue-3"><p>New "one"</p>`},
			{"board-move", `{"id":"1","to":"doing"}`, `<h2>Doing</h2><article id="issue-1"><p>&lt;b&gt;Login&lt;/b&gt;</p><button data-action="board-move" data-id="1" data-to="open">Open</button>`},
			{"board-move", `{"id":"3","to":"done"}`, `<p>Prices</p>`}, {"board-move", `{"id":"../2","to":"doing"}`, `The code did not run: Error: the tracker answers 404: &lt;none&gt;`},
			{"board-move", `{"id":"2","to":"no\"where"}`, `The code ran in vain: the issue is {`}, {"board-move", `{"id":"","to":null}`, `The code ran in vain: the issue is null`},
		},
		"others": {{"hello", "", `data-action="demo-chart"`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, scripted.Demo)
			w.tools = []tool.Tool{code}
			p := w.start()
			id := w.session("ann")
			c := p.join(t, id)
			for _, s := range steps {
				p.act(t, id, s.action, s.data)
				c.look(t.Context(), t, p, id, ended)
				if ui := p.rest(t, id); !strings.Contains(ui.HTML, s.want) || c.page.HTML() != ui.HTML {
					t.Errorf("%s %s: %s", s.action, s.data, ui.HTML)
				}
			}
			for _, u := range c.seen {
				if u.Kind == engi.PageBad {
					t.Errorf("%s", u.Text)
				}
			}
			if name == "chart" && (!strings.Contains(ran, "const from = 1000") || strings.Count(c.page.HTML(), "<rect") != 10) {
				t.Errorf("ran %s and drew %s", ran, c.page.HTML())
			}
		})
	}
}

// TestPromptsBeginAlike computes how much of its prompts a model can take from a cache in
// sessions of 20 actions: the common beginning of a prompt and the one before.
// Providers cache it from 1024 tokens on, in steps of 128 (OpenAI), or up to a
// mark, which is after the tools and the instructions (Anthropic).
func TestPromptsBeginAlike(t *testing.T) {
	code, err := tool.New("run_code", "Runs TypeScript in the session's sandbox and returns the value of the last expression and the output.", func(context.Context, *tool.Call, struct {
		Code        string `json:"code"`
		Description string `json:"description"`
	}) (tool.Result, error) {
		return tool.Result{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// A page of 10 KiB in which a random row changes.
	table := func(c scripted.Conversation) scripted.Answer {
		_, now, _ := strings.Cut(c.Last().Text, "[NOW] 1. Action: ")
		var row int
		if _, err := fmt.Sscanf(now, `change Data: {"row":%d}`, &row); err == nil {
			return scripted.Answer{Text: fmt.Sprintf(`{"type":"patches","patches":[{"selector":"#r%d .n","text":"%d"}]}`, row, len(now)+row)}
		}
		rows := ""
		for i := range 120 {
			rows += fmt.Sprintf(`<tr id=\"r%d\"><td>Part %[1]d of the warehouse</td><td class=\"n\">%[1]d</td><td>pieces</td></tr>`, i)
		}
		return scripted.Answer{Text: `{"type":"full","html":"<table>` + rows + `</table>"}`}
	}
	for _, session := range []struct {
		name string
		play func(scripted.Conversation) scripted.Answer
		act  func(i int) (action, data string)
	}{
		{"a list that grows", scripted.Demo, func(i int) (action, data string) {
			switch {
			case i == 0:
				return "demo-todo", ""
			case i%4 == 3:
				return "todo-toggle", fmt.Sprintf(`{"id":"%d"}`, i/3)
			}
			return "todo-add", fmt.Sprintf(`{"text":"buy %d bottles of milk, and some bread"}`, i)
		}},
		{"a table that changes", table, func(i int) (action, data string) {
			if i == 0 {
				return "show", ""
			}
			return "change", fmt.Sprintf(`{"row":%d}`, i*47%120)
		}},
	} {
		w := newFixture(t, session.play)
		w.tools = []tool.Tool{code}
		p := w.start()
		id := w.session("ann")
		for i := range 20 {
			action, data := session.act(i)
			p.act(t, id, action, data)
			p.rest(t, id)
		}
		const token, least, step = 4, 1024, 128 // bytes of a token; then numbers of tokens
		var all, alike, cached, marked int
		before := ""
		for i, c := range w.model.Seen() {
			var q struct{ Tools json.RawMessage }
			if err := json.Unmarshal(c.Raw, &q); err != nil {
				t.Fatal(err)
			}
			static := string(q.Tools) + c.System
			prompt := static + c.Last().Text
			n := 0
			for n < min(len(prompt), len(before)) && prompt[n] == before[n] {
				n++
			}
			if i > 0 {
				if marked += len(static); n < len(static) {
					t.Errorf("%s: prompt %d begins otherwise than the one before after %d bytes: %.60q", session.name, i, n, prompt[n:])
				}
			}
			if n >= least*token {
				cached += n / token / step * step * token
			}
			all, alike, before = all+len(prompt), alike+n, prompt
		}
		if seen := len(w.model.Seen()); seen != 20 || alike < all*2/5 {
			t.Errorf("%s: %d prompts of %d bytes, %d as before", session.name, seen, all, alike)
		}
		share := func(n int) int { return 100 * n / all }
		t.Logf("%s: %d tokens a prompt, %d %% as before; cached by steps %d %%, by the mark %d %%", session.name, all/token/20, share(alike), share(cached), share(marked))
	}
}
