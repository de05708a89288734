package app

import (
	"bytes"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

// answers maps the first word of a task to the answers of the model.
var answers = map[string][]string{
	"slow": {slow},
	// One answer is broken, one has no sum, and one is good.
	"cart a": {"<file path=\"src/App.tsx\">\nexport default () => <main>\n</file>"},
	"cart b": {"<file path=\"src/App.tsx\">\nexport default () => <main><button>Cart</button></main>\n</file>"},
	"cart c": {"<file path=\"src/App.tsx\">\nimport { sum } from './sum'\n\nexport default () => <main>{sum([1, 2])}</main>\n</file>\n<file path=\"src/sum.ts\">\nexport const sum = (all: number[]) => all.reduce((a, b) => a + b, 0)\n</file>"},
	"wait c": {slow},
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
</file>`, // has the wrong type
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
	"price": {
		"<file path=\"src/App.tsx\">\nimport { euro } from 'engi-test-no-such-package'\n\nexport default () => <main>{euro(7)}</main>\n</file>", // the package is not published
		"<file path=\"src/App.tsx\">\nexport default () => <main>7 €</main>\n</file>",
	},
	"notes": {
		`<edit path="main.py">
<<<<<<< SEARCH
app = FastAPI()
=======
app = FastAPI()
db = sqlite3.connect("notes.db", check_same_thread=False)
db.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT NOT NULL)")


@app.post("/notes")
def add(note: dict):
    db.execute("INSERT INTO notes VALUES (?)", (note["text"],))
    db.commit()
    return {"ok": True}


@app.get("/notes")
def notes():
    return [text for (text,) in db.execute("SELECT text FROM notes")]

>>>>>>> REPLACE
</edit>`, // imports no sqlite3
		"<file path=\"main.py\">\n" + notes + "</file>",
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

// notes is an API with a database.
const notes = `import sqlite3

from fastapi import FastAPI, Request

app = FastAPI()
db = sqlite3.connect("notes.db", check_same_thread=False)
db.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT NOT NULL)")


@app.get("/")
def index():
    return {"notes": db.execute("SELECT count(*) FROM notes").fetchone()[0]}


@app.post("/notes")
async def add(request: Request):
    db.execute("INSERT INTO notes VALUES (?)", ((await request.json())["text"],))
    db.commit()
    return {"ok": True}


@app.get("/notes")
def all_notes():
    return [text for (text,) in db.execute("SELECT text FROM notes")]
`

// play answers as a model that receives repeated requests.
func play(c scripted.Conversation) scripted.Answer {
	_, task, _ := strings.Cut(c.Turns[0].Text, "# The task\n\n")
	word, _, _ := strings.Cut(task, " ")
	word = strings.TrimSpace(word)
	if c.Schema != nil { // the model judges: it prefers the change that has a button
		for i, part := range strings.Split(c.Turns[0].Text, "\n## Change ") {
			if strings.Contains(part, "<button>") {
				return scripted.Answer{Object: fmt.Sprintf(`{"why":"it has a button","best":%d}`, i)}
			}
		}
	}
	all := slices.Concat(answers[word], answers[word+" "+c.Model])
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

// attempts has models that change the app concurrently, and a command or another model that judges them.
func (w *fixture) attempts(took func(string)) {
	t, ctx := w.t, w.t.Context()
	wantAlone := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			all, err := w.Apps(ctx)
			boxes, e := w.Sandboxes(ctx)
			boxes = slices.DeleteFunc(boxes, func(b v1.Sandbox) bool { return b.Metadata["app"] == "" })
			if err == nil && e == nil && len(all) == 1 && len(boxes) == 1 && all[0].Editing == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("there are %+v and %+v (%v, %v)", all, boxes, err, e)
			}
		}
	}
	was := w.recorded()
	for _, c := range []struct {
		models string
		judge  v1.AppJudge
		taken  int
	}{{"play:a,play:b,play:c", v1.AppJudge{Command: "grep -c sum src/App.tsx"}, 3}, {"play:c,play:b", v1.AppJudge{Model: "play:m", Criteria: "it has a button"}, 2}} {
		seq, err := w.EditApp(ctx, w.app.ID, v1.EditRequest{Prompt: "cart please", Model: c.models, MaxRounds: 1, Judge: &c.judge}, "")
		if err != nil {
			t.Fatal(err)
		}
		var problems []int
		pages := map[int]string{}
		last := w.edited(seq, func(u v1.AppUpdate) {
			switch u.Type {
			case v1.AppAttempt:
				pages[u.Attempt] = w.fetch(u.PreviewURL, "/")
			case v1.AppProblem:
				problems = append(problems, u.Attempt)
			}
		})
		n := 1 + strings.Count(c.models, ",")
		took(fmt.Sprintf("%d attempts, of which %d is taken", n, c.taken))
		if last.Error != nil || last.Attempt != c.taken || last.Rounds != n || len(pages) != n || slices.Contains(problems, 2) || slices.Contains(problems, 3) || slices.Contains(problems, 1) != (n == 3) {
			t.Fatalf("it ended with %+v, %+v after problems of %v, and %d pages", last, last.Error, problems, len(pages))
		}
		if code := w.get("/src/App.tsx"); strings.Contains(code, "sum") != (c.taken == 3) {
			t.Errorf("the app serves %s", code)
		}
		w.wantSame()
		wantAlone()
		if _, err := w.RollbackApp(ctx, w.app.ID, last.Revision-1); err != nil {
			t.Fatal(err)
		}
	}
	// The daemon is killed in the middle.
	seq, err := w.EditApp(ctx, w.app.ID, v1.EditRequest{Prompt: "wait for it", Model: "play:c", Attempts: 2}, "")
	if err != nil {
		t.Fatal(err)
	}
	begun := 0
	for u, err := range w.WatchApp(ctx, w.app.ID, seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Type == v1.AppAttempt {
			if begun++; begun == 2 {
				break
			}
		}
	}
	w.Kill()
	w.Start()
	wantAlone()
	if u := w.edited(seq, nil); u.Error == nil || u.Error.Kind != v1.Unavailable {
		t.Errorf("the edit ended with %+v", u)
	}
	if w.app, err = w.OpenApp(ctx, w.app.ID); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(was, w.recorded()); d != "" {
		t.Error(d)
	}
	w.wantSame()
	took("two attempts whose daemon is killed")
}

// ask sends a request to an app through its preview.
func (w *fixture) ask(app v1.App, method, path, body string) string {
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
func (w *fixture) edited(seq int64, seen func(v1.AppUpdate)) v1.AppUpdate {
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

// TestEdit has a model that writes apps without a viewer.
func TestEdit(t *testing.T) {
	env.Slow(t)
	model, config := models(t)
	w := &fixture{Server: env.Serve(t, env.ServerOptions{Config: config}), t: t}
	began := time.Now()
	took := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	w.Run("template", "build", "vite-react")
	var err error
	if w.app, err = w.CreateApp(t.Context(), v1.AppRequest{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	took("build and create")
	editApps(w, model, took)
	w.lookAt()
	took("check and screenshots")
	if err := w.RemoveApp(t.Context(), w.app.ID); err != nil {
		t.Error(err)
	}
}

// lookAt checks the app by hand, breaks it, and looks for remaining browsers.
func (w *fixture) lookAt() {
	t, ctx := w.t, w.t.Context()
	if c, err := w.CheckApp(ctx, w.app.ID); err != nil || len(c.Problems) > 0 || c.Warning != "" {
		t.Errorf("what was repaired: %+v, %v", c, err)
	}
	raw, err := w.ScreenshotApp(ctx, w.app.ID, v1.ScreenshotRequest{Width: 390, Height: 300})
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(raw))
	if err != nil || picture.Bounds().Dx() != 390 || picture.Bounds().Dy() != 300 {
		t.Fatalf("%v of %d bytes", err, len(raw))
	}
	ink := 0 // number of pixels of text
	for y := range 300 {
		for x := range 390 {
			if r, g, b, _ := picture.At(x, y).RGBA(); r+g+b < 3*0x8000 {
				ink++
			}
		}
	}
	if ink < 20 {
		t.Errorf("the picture has %d dark pixels", ink)
	}
	for text, want := range map[string]string{
		"import { useEffect } from 'react'\nexport default () => { useEffect(() => { console.error('told %s', 'so') }, []); return <p>x</p> }": "told so",
		"export default () => null":                "the page is empty",
		"export default () => { while (true) {} }": "never ends",
		"import { useEffect } from 'react'\nexport default () => { useEffect(() => { fetch('https://example.com/x').then(() => { throw new Error('never') }) }, []); return <><img src='https://example.com/x.png' /><p>x</p></> }": "",
		"import { useEffect } from 'react'\nexport default () => { useEffect(() => { fetch('/src/none.json?raw').then((r) => r.json()) }, []); return <p>x</p> }":                                                                   "is not valid JSON",
	} {
		if u := w.apply("<file path=\"src/App.tsx\">\n"+text+"\n</file>", nil); u.Type != v1.AppDone {
			t.Fatalf("%s: %+v, %+v", text, u, u.Error)
		}
		c, err := w.CheckApp(ctx, w.app.ID)
		found := false
		for _, p := range c.Problems {
			found = found || p.Source == "browser" && strings.Contains(p.Text, want)
		}
		if err != nil || c.Warning != "" || found != (want != "") && len(c.Problems) > 0 || want != "" && !found {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	if out := w.Run("app", "run", w.app.ID, "--", "sh", "-c", "cat /proc/[0-9]*/comm | grep -c chrom || true; ls -A /tmp | grep -c engi-browser || true"); strings.TrimSpace(out) != "0\n0" {
		t.Errorf("browsers and their files that are left: %s", out)
	}
}

// editApps has a model that breaks apps, and repairs them.
func editApps(w *fixture, m *scripted.Server, took func(string)) {
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
	text := ""
	last := w.edited(seq, func(u v1.AppUpdate) {
		switch u.Type {
		case v1.AppOutput:
			text += u.Text
		case v1.AppProblem:
			problems = append(problems, u)
		case v1.AppWarning:
			t.Logf("warning: %s", u.Text)
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
	for _, c := range asked[1:] { // providers cache the beginning
		if c.System != asked[0].System || c.Turns[0].Text != asked[0].Turns[0].Text {
			t.Error("what the model is told first has changed")
		}
	}
	if first := asked[0].Turns[0].Text; !strings.Contains(first, "## src/App.tsx") || strings.Contains(first, "## package-lock.json") {
		t.Errorf("the model was told %s", first)
	}
	w.wantSame()
	w.noSuchPackage(took)
	w.attempts(took)

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
	w.pythonNotes(took)
}

// noSuchPackage has a model that imports an unpublished package.
func (w *fixture) noSuchPackage(took func(string)) {
	t := w.t
	was := w.app.Revision
	seq, err := w.EditApp(t.Context(), w.app.ID, v1.EditRequest{Prompt: "price of shoes in src/App.tsx"}, "")
	if err != nil {
		t.Fatal(err)
	}
	var problems []v1.AppUpdate
	last := w.edited(seq, func(u v1.AppUpdate) {
		if u.Type == v1.AppProblem {
			problems = append(problems, u)
		}
	})
	took("edit: a package that is not there")
	if last.Error != nil || last.Rounds != 2 || len(problems) == 0 || problems[0].Source != "apply" || !strings.Contains(problems[0].Text, "engi-test-no-such-package") || !strings.Contains(problems[0].Text, "404") {
		t.Fatalf("it ended with %+v, %+v after %+v", last, last.Error, problems)
	}
	if code := w.get("/src/App.tsx"); !strings.Contains(code, "7 €") || strings.Contains(w.recorded()["package.json"], "no-such-package") {
		t.Errorf("the app serves %s", code)
	}
	w.wantSame()
	if _, err := w.RollbackApp(t.Context(), w.app.ID, last.Revision-1); err != nil || was > last.Revision {
		t.Fatal(err)
	}
}

// pythonNotes has a model that adds a database to an API in Python, and forgets the import
// at first.
func (w *fixture) pythonNotes(took func(string)) {
	t, ctx := w.t, w.t.Context()
	w.Run("template", "build", "fastapi")
	app, err := w.CreateApp(ctx, v1.AppRequest{Name: "notes", Template: "fastapi"})
	if err != nil {
		t.Fatal(err)
	}
	api := &fixture{Server: w.Server, t: t, app: app}
	if u := api.apply("<file path=\"main.py\">\nfrom fastapi import FastAPI\n\napp = FastAPI()\n\n\n@app.get(\"/\")\ndef index():\n    return \"empty\"\n</file>", nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	took("create fastapi")
	seq, err := w.EditApp(ctx, app.ID, v1.EditRequest{Prompt: "notes in a database"}, "")
	if err != nil {
		t.Fatal(err)
	}
	var problems []v1.AppUpdate
	last := api.edited(seq, func(u v1.AppUpdate) {
		if u.Type == v1.AppProblem {
			problems = append(problems, u)
		}
	})
	took("edit: an API in Python with a database")
	placed := func(u v1.AppUpdate) bool {
		return u.Path == "main.py" && u.Line > 0 && strings.Contains(u.Text, "sqlite3")
	}
	if last.Error != nil || last.Rounds != 2 || !slices.ContainsFunc(problems, placed) {
		t.Fatalf("it ended with %+v, %+v after %+v", last, last.Error, problems)
	}
	w.ask(app, "POST", "/notes", `{"text":"milk"}`)
	if all := w.ask(app, "GET", "/notes", ""); all != `["milk"]` {
		t.Errorf("the notes are %s", all)
	}
	if u := api.apply("<edit path=\"main.py\">\n<<<<<<< SEARCH\n    return {\"ok\": True}\n=======\n    return {\"kept\": True}\n>>>>>>> REPLACE\n</edit>", nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	if kept, all := w.ask(app, "POST", "/notes", `{"text":"bread"}`), w.ask(app, "GET", "/notes", ""); kept != `{"kept":true}` || all != `["milk","bread"]` {
		t.Errorf("after an edit of its code it answers %s, and the notes are %s", kept, all)
	}
	files := api.recorded()
	if _, ok := files["notes.db"]; ok || !strings.Contains(files["main.py"], "kept") {
		t.Errorf("its files are %v", files)
	}
	if err := w.RemoveApp(ctx, "notes"); err != nil {
		t.Error(err)
	}
	took("use it and change it")
}
