package scripted

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// page plays a model that draws pages: the examples of the gallery. Its answers
// depend only on the prompt. ok is false if the conversation is not about a page.
func page(c Conversation) (a Answer, ok bool) {
	at := len(c.Turns) - 1
	for at >= 0 && c.Turns[at].Role != "user" {
		at--
	}
	if at < 0 {
		return a, false
	}
	text := c.Turns[at].Text
	start := strings.LastIndex(text, "[NOW] 1. Action: ")
	if start < 0 {
		return a, false
	}
	body, _, _ := strings.Cut(strings.TrimPrefix(text[:start], "HTML:\n"), "\n[RE")
	p := &demoPage{html: body, todos: map[int]bool{}}
	p.read()
	var results []Result // results of the code so far
	for _, t := range c.Turns[at:] {
		results = append(results, t.Results...)
	}
	for _, m := range pageAction.FindAllStringSubmatch(text[start:], -1) {
		data := map[string]string{}
		for k, v := range decodeObject(m[2]) {
			data[k] = fmt.Sprint(v)
		}
		j, ok := p.job(m[1], data)
		switch {
		case !ok:
			p.act(m[1], data)
		case len(results) > 0:
			p.draw(j, results[0].Text)
			results = results[1:]
		case slices.Contains(c.Tools, "run_code"):
			return Answer{Calls: []Call{{Name: "run_code", Arguments: line(map[string]string{"code": j.code, "description": j.about})}}}, true
		default:
			p.fail(j, "There is no sandbox to run code in.", "")
		}
	}
	return Answer{Text: p.out.String()}, true
}

func decodeObject(text string) (o map[string]any) {
	if json.Unmarshal([]byte(text), &o) != nil {
		return nil
	}
	return o
}

var (
	pageAction = regexp.MustCompile(`(?m)^(?:\[NOW\] )?\d+\. Action: (\S+) Data: (.*)$`)
	pageCount  = regexp.MustCompile(`id="count"[^>]*>(-?\d+)<`)
	pageTodo   = regexp.MustCompile(`<li[^>]*id="todo-(\d+)"[^>]*>`)
)

// A demoPage holds the contents of a page and the output for it.
type demoPage struct {
	html  string
	count int
	todos map[int]bool // numbers of the finished todos
	next  int          // ID of the next todo
	out   strings.Builder
}

// read reads the state from the page, which alone stores it.
func (p *demoPage) read() {
	if m := pageCount.FindStringSubmatch(p.html); m != nil {
		p.count, _ = strconv.Atoi(m[1]) // a number that is too large becomes 0
	}
	p.next = 1
	for _, m := range pageTodo.FindAllStringSubmatch(p.html, -1) {
		id, err := strconv.Atoi(m[1])
		if err == nil {
			p.todos[id] = strings.Contains(m[0], `class="done"`)
			p.next = max(p.next, id+1)
		}
	}
}

func (p *demoPage) write(line object) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(line); err != nil {
		panic(err) // unreachable: the value consists of strings
	}
	p.out.Write(b.Bytes())
}

// full writes another page.
func (p *demoPage) full(title, body string) {
	p.html = fmt.Sprintf(`<main><h1>%s</h1>%s</main>`, html.EscapeString(title), body)
	p.count, p.todos = 0, map[int]bool{}
	p.read()
	p.write(object{"type": "full", "html": p.html})
}

func (p *demoPage) patch(patches ...object) {
	p.write(object{"type": "patches", "patches": patches})
}

func text(selector, text string) object { return object{"selector": selector, "text": text} }

func (p *demoPage) act(action string, data map[string]string) {
	switch action {
	case "demo-counter":
		p.full("Counter", `<p id="count">0</p><button data-action="decrement">Less</button> <button data-action="increment">More</button> <button data-action="reset">Reset</button>`)
	case "increment", "decrement", "reset":
		p.count = map[string]int{"increment": p.count + 1, "decrement": p.count - 1}[action]
		p.patch(text("#count", strconv.Itoa(p.count)))
	case "demo-todo":
		p.full("To do", `<form id="new" data-action="todo-add"><input id="todo-text" name="text" placeholder="What is to be done?" autocomplete="off"> <button>Add</button></form>`+
			`<p id="message"></p><ul id="todos"></ul><p id="left">Nothing is left.</p>`)
	case "todo-add":
		p.addTodo(strings.TrimSpace(data["text"]))
	case "todo-toggle", "todo-remove":
		p.changeTodo(action, data["id"])
	case "demo-form":
		p.full("Sign up", `<form id="sign-up" data-action="form-check">`+field("name", "Name", "text")+field("email", "E-mail", "email")+field("age", "Age", "number")+`<button>Sign up</button></form>`)
	case "form-check":
		p.check(data)
	default:
		p.full("Examples", `<p>The demo model draws one of these:</p><ul><li><button data-action="demo-counter">A counter</button></li><li><button data-action="demo-todo">A list of things to do</button></li>`+
			`<li><button data-action="demo-form">A form that is checked</button></li><li><button data-action="demo-chart">A chart of data that code computes</button></li>`+
			`<li><button data-action="demo-board">A board over an issue tracker</button></li></ul>`)
	}
}

func (p *demoPage) addTodo(what string) {
	if what == "" {
		p.patch(text("#message", "Write what is to be done."))
		return
	}
	id := p.next
	p.next++
	p.todos[id] = false
	item := fmt.Sprintf(`<li id="todo-%d"><button data-action="todo-toggle" data-id="%[1]d">Done</button> <span>%s</span> <button data-action="todo-remove" data-id="%[1]d">Remove</button></li>`, id, html.EscapeString(what))
	p.patch(object{"selector": "#todos", "append": item}, object{"selector": "#todo-text", "value": ""}, text("#message", ""), p.left())
}

func (p *demoPage) changeTodo(action, which string) {
	id, err := strconv.Atoi(which)
	done, ok := p.todos[id]
	if err != nil || !ok {
		p.patch(text("#message", "It is not there any more."))
		return
	}
	item := fmt.Sprintf("#todo-%d", id)
	if action == "todo-remove" {
		delete(p.todos, id)
		p.patch(object{"selector": item, "remove": true}, p.left())
		return
	}
	p.todos[id] = !done
	style := object{"text-decoration": "line-through"}
	if done {
		style["text-decoration"] = nil
	}
	p.patch(object{"selector": item, "class": object{"done": !done}}, object{"selector": item + " span", "style": style}, p.left())
}

func (p *demoPage) left() object {
	n := 0
	for _, done := range p.todos {
		if !done {
			n++
		}
	}
	if n == 0 {
		return text("#left", "Nothing is left.")
	}
	return text("#left", fmt.Sprintf("%d left.", n))
}

func field(name, label, kind string) string {
	return fmt.Sprintf(`<p><label>%s <input id="%s" name="%[2]s" type="%s"></label> <span id="error-%[2]s"></span></p>`, label, name, kind)
}

var emailForm = regexp.MustCompile(`^[^@\s]+@[^@\s]+\.[^@\s]+$`)

// check shows the invalid fields of the form, or thanks if all are valid.
func (p *demoPage) check(data map[string]string) {
	faults := map[string]string{}
	if strings.TrimSpace(data["name"]) == "" {
		faults["name"] = "Tell us your name."
	}
	if !emailForm.MatchString(data["email"]) {
		faults["email"] = "This is not an address, like ada@example.com."
	}
	if age, err := strconv.Atoi(strings.TrimSpace(data["age"])); err != nil || age < 18 || age > 150 {
		faults["age"] = "You must be 18 or older."
	}
	if len(faults) == 0 {
		p.patch(object{"selector": "#sign-up", "replace": `<p id="thanks">Welcome, ` + html.EscapeString(strings.TrimSpace(data["name"])) + `.</p>`})
		return
	}
	var patches []object
	for _, name := range []string{"name", "email", "age"} {
		patches = append(patches, text("#error-"+name, faults[name]), object{"selector": "#" + name, "attr": object{"aria-invalid": strconv.FormatBool(faults[name] != "")}})
	}
	p.patch(patches...)
}

// primes is a program that counts the primes in ten intervals.
const primes = `const from = %d, counts: number[] = [];
for (let i = 0; i < 10; i++) {
  let n = 0;
  for (let k = from + 100 * i; k < from + 100 * (i + 1); k++) {
    let prime = k > 1;
    for (let d = 2; d * d <= k && prime; d++) prime = k %% d !== 0;
    if (prime) n++;
  }
  console.log(from + 100 * i, n);
  counts.push(n);
}
counts`

// A job is the code that an action needs, and the way to draw its result.
type job struct {
	title, about, code string
	draw               func(result json.RawMessage) error
}

// job returns the job of an action; ok is false if it needs none.
func (p *demoPage) job(action string, data map[string]string) (j job, ok bool) {
	switch action {
	case "demo-chart":
		from, err := strconv.Atoi(data["from"])
		if err != nil || from < 0 || from > 1e6 {
			from = 0
		}
		return job{"Chart", "count primes", fmt.Sprintf(primes, from), func(result json.RawMessage) error {
			var counts []int
			if err := json.Unmarshal(result, &counts); err != nil || len(counts) == 0 {
				return fmt.Errorf("it returned %.100s", result)
			}
			p.full("Primes", bars(from, counts))
			return nil
		}}, true
	case "demo-board":
		return job{"Board", "list the issues", trackerCode("GET", "/issues", nil), p.board}, true
	case "board-add":
		return job{"Board", "add an issue", trackerCode("POST", "/issues", map[string]string{"title": data["title"]}), func(result json.RawMessage) error {
			x, err := oneIssue(result)
			if err == nil {
				p.patch(object{"selector": "#state-" + x.State, "append": x.html()}, object{"selector": "#issue-title", "value": ""}, text("#message", ""))
			}
			return err
		}}, true
	case "board-move":
		return job{"Board", "move an issue", trackerCode("PATCH", "/issues/"+url.PathEscape(data["id"]), map[string]string{"state": data["to"]}), func(result json.RawMessage) error {
			x, err := oneIssue(result)
			if err == nil {
				at := fmt.Sprintf("#issue-%d", x.ID)
				p.patch(object{"selector": at, "move": object{"to": "#state-" + x.State, "place": "append"}}, object{"selector": at, "replace": x.html()}, text("#message", ""))
			}
			return err
		}}, true
	}
	return j, false
}

// draw draws the result of a job's code, or its error.
func (p *demoPage) draw(j job, text string) {
	var r struct {
		Success bool            `json:"success"`
		Result  json.RawMessage `json:"result"`
		Error   string          `json:"error"`
	}
	switch err := json.Unmarshal([]byte(text), &r); {
	case err != nil || !r.Success:
		p.fail(j, "The code did not run:", cmp.Or(r.Error, text))
	default:
		if err := j.draw(r.Result); err != nil {
			p.fail(j, "The code ran in vain:", err.Error())
		}
	}
}

// fail shows an error in the page's place for errors, or as a new page if it has none.
func (p *demoPage) fail(j job, what, why string) {
	if strings.Contains(p.html, `id="board"`) {
		p.patch(text("#message", strings.TrimSpace(what+" "+why)))
		return
	}
	body := `<p id="message">` + what + `</p>`
	if why != "" {
		body += `<pre>` + html.EscapeString(why) + `</pre>`
	}
	p.full(j.title, body)
}

// tracker is a program that queries an issue tracker. The node inserts the key into its requests: in the
// sandbox, the variable holds a placeholder.
const tracker = `const url = Deno.env.get("TRACKER_URL");
const ask = async (method: string, path: string, body: unknown) => {
  const r = await fetch(url + path, {
    method, body: body ? JSON.stringify(body) : undefined,
    headers: { "authorization": "Bearer " + Deno.env.get("TRACKER_KEY"), "content-type": "application/json" },
  });
  if (!r.ok) throw new Error("the tracker answers " + r.status + ": " + await r.text());
  return await r.json();
};
url ? await ask(%s, %s, %s) : null`

func trackerCode(method, path string, body any) string {
	return fmt.Sprintf(tracker, line(method), line(path), line(body))
}

// An issue is an issue of the tracker.
type issue struct {
	ID    int
	Title string
	State string
}

var boardStates = []struct{ state, name string }{{"open", "Open"}, {"doing", "Doing"}, {"done", "Done"}}

// html returns the card of an issue.
func (x issue) html() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<article id="issue-%d"><p>%s</p>`, x.ID, html.EscapeString(x.Title))
	for _, s := range boardStates {
		if s.state != x.State {
			fmt.Fprintf(&b, `<button data-action="board-move" data-id="%d" data-to="%s">%s</button> `, x.ID, s.state, s.name)
		}
	}
	return b.String() + `</article>`
}

func oneIssue(result json.RawMessage) (x issue, err error) {
	err = json.Unmarshal(result, &x)
	if err == nil && !slices.ContainsFunc(boardStates, func(s struct{ state, name string }) bool { return s.state == x.State }) {
		err = fmt.Errorf("the issue is %.100s", result)
	}
	return x, err
}

// board draws all issues.
func (p *demoPage) board(result json.RawMessage) error {
	var all []issue
	if err := json.Unmarshal(result, &all); err != nil {
		return err
	}
	if all == nil {
		p.full("Board", `<p id="message">There is no tracker. <a href="https://github.com/engi-dev/engi/blob/main/docs/pages.md#a-board-over-a-tracker">This is how to start one</a>: its key is put in where the sandbox ends, and neither the model nor the code sees it.</p>`)
		return nil
	}
	var b strings.Builder
	b.WriteString(`<form id="new" data-action="board-add"><input id="issue-title" name="title" required placeholder="What is wrong?" autocomplete="off"> <button>Add</button></form><p id="message"></p><div id="board" style="display: flex; gap: 16px">`)
	for _, s := range boardStates {
		fmt.Fprintf(&b, `<section id="state-%s" aria-label="%s" style="flex: 1"><h2>%[2]s</h2>`, s.state, s.name)
		for _, x := range all {
			if x.State == s.state {
				b.WriteString(x.html())
			}
		}
		b.WriteString(`</section>`)
	}
	p.full("Board", b.String()+`</div>`)
	return nil
}

func bars(from int, counts []int) string {
	const width, height = 40, 200
	var b strings.Builder
	fmt.Fprintf(&b, `<svg id="chart" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img" aria-label="Primes in each hundred">`, width*len(counts), height+20, height+20)
	for i, n := range counts {
		h := height * n / max(slices.Max(counts), 1)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="steelblue"></rect><text x="%[1]d" y="%d" font-size="12">%d</text>`, i*width, height-h, width-8, h, height+16, n)
	}
	fmt.Fprintf(&b, `</svg><p>Primes in each hundred from %d on.</p><button data-action="demo-chart" data-from="%d">The next thousand</button>`, from, from+1000)
	return b.String()
}
