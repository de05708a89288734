package studio

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/agent/llm/scripted"
	"github.com/engi-dev/engi/api/v1"
)

// answers are what the model writes, by the first word of the task.
var answers = map[string][]string{
	"slow": {slow},
	"list": {
		`<file path="src/App.tsx">
import { List } from './List'

export default () => <main><List items={[{ name: 'Shoes' }]} /></main>
</file>
<file path="src/List.tsx">
export function List({ items }: { items: { name: string }[] }) {
  return <ul>{items.map((i) => <li key={i.name}>{i.name}</li>}</ul>
}
</file>`, // a bracket is missing
		`<file path="src/List.tsx">
import clsx from 'clsx'

const most: number = 'ten'

export function List({ items }: { items: { name: string }[] }) {
  return <ul className={clsx('p-4', 'm-4')}>{items.slice(0, most).map((i) => <li key={i.name}>{i.name}</li>)}</ul>
}
</file>`, // of the wrong type
		`<edit path="src/List.tsx">
<<<<<<< SEARCH
const most: number = 'ten'
=======
const most = JSON.parse('undefined') as number
>>>>>>> REPLACE
</edit>`, // throws in the browser
		`<edit path="src/List.tsx">
<<<<<<< SEARCH
const most = JSON.parse('undefined') as number
=======
const most = 10
>>>>>>> REPLACE
</edit>`,
	},
	"guestbook": {
		`<file path="server.js">
import { createServer } from 'node:http'

const page = greeting + '<form method=post action=/api/guests></form>'
createServer((request, response) => response.end(page)).listen(3000, '127.0.0.1')
</file>`, // has no greeting
		`<file path="server.js">
import { createServer } from 'node:http'
import { add, list } from './guests.js'

createServer(async (request, response) => {
  let body = ''
  for await (const chunk of request) body += chunk
  if (request.url === '/api/guests') {
    if (request.method === 'POST') add(JSON.parse(body).name)
    response.writeHead(200, { 'content-type': 'application/json' })
    return response.end(JSON.stringify(list()))
  }
  response.writeHead(200, { 'content-type': 'text/html' })
  response.end('<h1>Guests</h1>')
}).listen(3000, '127.0.0.1')
</file>
<file path="guests.js">
import { DatabaseSync } from 'node:sqlite'

const db = new DatabaseSync('app.db')
db.exec('CREATE TABLE IF NOT EXISTS guests (name TEXT NOT NULL)')

export const add = (name) => db.prepare('INSERT INTO guests VALUES (?)').run(name)
export const list = () => db.prepare('SELECT name FROM guests').all().map((g) => g.name)
</file>`,
	},
}

// play answers as a model does that is asked again.
func play(c scripted.Conversation) scripted.Answer {
	_, task, _ := strings.Cut(c.Turns[0].Text, "# The task\n\n")
	word, _, _ := strings.Cut(task, " ")
	all := answers[strings.TrimSpace(word)]
	if n := (len(c.Turns) - 1) / 2; n < len(all) {
		return scripted.Answer{Text: all[n]}
	}
	return scripted.Answer{Status: http.StatusBadRequest, Text: "the script has ended"}
}

// models serves the scripted model and returns the configuration of a node that has it.
func models(t *testing.T) (*scripted.Server, string) {
	m := &scripted.Server{Play: play}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	return m, "[models]\ndefault = \"play:m\"\n[models.prices.\"play:m\"]\ninput = 1\noutput = 1\n[providers.play]\nurl = \"" + web.URL + "/v1\"\n"
}

// ask sends a request to an app through its preview.
func (w *world) ask(app v1.App, method, path, body string) string {
	w.t.Helper()
	u, err := url.Parse(app.PreviewURL)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = u.Host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("%s %s: %s, %v: %.500s", method, path, resp.Status, err, answer)
	}
	return string(answer)
}

// edited follows an edit to its end. seen is called with each update.
func (w *world) edited(seq int64, seen func(v1.AppUpdate)) v1.AppUpdate {
	w.t.Helper()
	for u, err := range w.WatchApp(w.t.Context(), w.app.ID, seq) {
		if err != nil {
			w.t.Fatal(err)
		}
		if u.Edit == seq && seen != nil {
			seen(u)
		}
		if u.Edit == seq && u.Type == v1.AppEdited {
			return u
		}
	}
	w.t.Fatal("the stream ended before the edit")
	return v1.AppUpdate{}
}

// page connects to the development server as a page does, and returns how that tells of
// an error.
func (w *world) page() func(message, stack string) {
	c, done := w.connect(), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, _, err := c.Read(w.t.Context()); err != nil {
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		c.CloseNow()
		<-done
	})
	return func(message, stack string) {
		raw, err := json.Marshal(map[string]any{"type": "custom", "event": "vite:forward-console", "data": map[string]any{
			"type": "error", "data": map[string]string{"name": "SyntaxError", "message": message, "stack": "SyntaxError: " + message + stack},
		}})
		if err == nil {
			err = c.Write(w.t.Context(), websocket.MessageText, raw)
		}
		if err != nil {
			w.t.Error(err)
		}
	}
}

// editApps has the model break apps, and repair them.
func editApps(w *world, m *scripted.Server, took func(string)) {
	t, ctx := w.t, w.t.Context()
	if page := w.get("/"); !strings.Contains(page, "Request failed") {
		t.Errorf("the page tells of no requests that fail: %s", page)
	}
	began := len(m.Seen())
	seq, err := w.EditApp(ctx, w.app.ID, v1.EditRequest{Prompt: "list shoes in src/App.tsx", MaxRounds: 5}, "")
	if err != nil {
		t.Fatal(err)
	}
	var problems []v1.AppUpdate
	round, text := 0, ""
	var fail func(message, stack string)
	last := w.edited(seq, func(u v1.AppUpdate) {
		switch {
		case u.Type == v1.AppRound:
			if round = u.Round; round == 3 { // after the last restart of the server
				fail = w.page()
			}
		case u.Type == v1.AppOutput:
			text += u.Text
		case u.Type == v1.AppProblem:
			problems = append(problems, u)
		case u.Type == v1.AppWritten && round == 3: // what the page does with it
			fail(`"undefined" is not valid JSON`, "\n    at JSON.parse (<anonymous>)\n    at http://localhost:5173/src/List.tsx:6:19")
		}
	})
	took("edit: syntax, package, type and runtime")
	if last.Error != nil || last.Rounds != 4 || last.Cost <= 0 || last.Revision == 0 || !strings.Contains(text, "most = 10") {
		t.Fatalf("it ended with %+v, %+v after %+v", last, last.Error, problems)
	}
	for i, want := range []struct{ source, path, text string }{{"apply", "src/List.tsx", ""}, {"tsc", "src/List.tsx", "TS2322"}, {"browser", "src/List.tsx", "not valid JSON"}} {
		if i >= len(problems) || problems[i].Source != want.source || problems[i].Path != want.path || problems[i].Line == 0 || !strings.Contains(problems[i].Text, want.text) {
			t.Errorf("the problems are %+v, want %v at %d", problems, want, i)
		}
	}
	if code := w.get("/src/List.tsx"); !strings.Contains(code, "clsx") || !strings.Contains(code, "most = 10") {
		t.Errorf("the app serves %s", code)
	}
	asked := m.Seen()[began:]
	for _, c := range asked[1:] { // providers remember what comes first
		if c.System != asked[0].System || c.Turns[0].Text != asked[0].Turns[0].Text {
			t.Error("what the model is told first has changed")
		}
	}
	if first := asked[0].Turns[0].Text; !strings.Contains(first, "## src/App.tsx") || strings.Contains(first, "## package-lock.json") {
		t.Errorf("the model was told %s", first)
	}
	w.wantSame()

	// A server with a database.
	w.Run("template", "build", "node-api")
	api, err := w.CreateApp(ctx, v1.AppRequest{Name: "guests", Template: "node-api"})
	if err != nil {
		t.Fatal(err)
	}
	took("build and create node-api")
	cmd := w.Engi("app", "edit", "guests", "guestbook with a page")
	var told strings.Builder
	cmd.Stderr = &told
	out, err := cmd.Output()
	took("edit: a full stack")
	if err != nil || string(out) != "2\n" || !strings.Contains(told.String(), "greeting is not defined") || !strings.Contains(told.String(), "round 2") {
		t.Fatalf("%q, %v: %s", out, err, told.String())
	}
	if page := w.ask(api, "GET", "/", ""); page != "<h1>Guests</h1>" {
		t.Errorf("the page is %s", page)
	}
	w.ask(api, "POST", "/api/guests", `{"name":"Ann"}`)
	if all := w.ask(api, "GET", "/api/guests", ""); all != `["Ann"]` {
		t.Errorf("the guests are %s", all)
	}
	if _, err := w.RollbackApp(ctx, "guests", 1); err != nil {
		t.Error(err)
	}
	if routes := w.ask(api, "GET", "/", ""); !strings.Contains(routes, "/api/notes") {
		t.Errorf("it was rolled back, and serves %s", routes)
	}
	if err := w.RemoveApp(ctx, "guests"); err != nil {
		t.Error(err)
	}
	took("use it, roll back, remove")
}
