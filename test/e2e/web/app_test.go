package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

// drafts maps the first word of a task to the texts of the model.
var drafts = map[string][]string{
	"Sell": {`I made it a shop.

<file path="src/App.tsx">
import { useState } from 'react'
import { Stock } from './Stock'

export default function App() {
  const [sold, setSold] = useState<number>('none')
  return (
    <main className="grid gap-4 p-8">
      <h1 className="text-2xl">Shoes</h1>
      <input aria-label="Name" className="border" />
      <button onClick={() => setSold(sold + 1)}>Sold {sold}</button>
      <Stock />
    </main>
  )
}
</file>
<file path="src/Stock.tsx">
const sizes: { left: number }[] = []

export function Stock() {
  return <button onClick={() => console.log(sizes[41].left)}>How many are left?</button>
}
</file>`, `<edit path="src/App.tsx">
<<<<<<< SEARCH
useState<number>('none')
=======
useState(0)
>>>>>>> REPLACE
</edit>`},
	"Call": {`<edit path="src/App.tsx">
<<<<<<< SEARCH
Shoes</h1>
=======
Boots</h1>
>>>>>>> REPLACE
</edit>`},
}

// paints lists the texts of the model in attempts.
var paints = [][]string{{paint("apple", "Red boots</h2>"), "<edit path=\"src/App.tsx\">\n<<<<<<< SEARCH\nRed boots</h2>\n=======\nRed boots\n>>>>>>> REPLACE\n</edit>"}, {paint("pear", "Blue boots")}}

// paint changes the heading, after a long text of one word.
func paint(word, to string) string {
	return strings.Repeat(word+" ", 800) + "\n\n<edit path=\"src/App.tsx\">\n<<<<<<< SEARCH\nBoots</h1>\n=======\n" + to + "</h1>\n>>>>>>> REPLACE\n</edit>"
}

// A writer is a scripted model. Two attempts write at the same time.
type writer struct{ together chan struct{} }

// answer returns the script's text for a repeated request.
func (a *writer) answer(c scripted.Conversation) scripted.Answer {
	_, task, _ := strings.Cut(c.Turns[0].Text, "# The task\n\n")
	word, _, _ := strings.Cut(task, " ")
	all := drafts[word]
	for n, texts := range paints {
		if word == "Paint" && strings.Contains(task, fmt.Sprintf("This is attempt %d of 2.", n+1)) {
			all = texts
		}
	}
	n := (len(c.Turns) - 1) / 2
	if n == 0 && word == "Paint" {
		select {
		case a.together <- struct{}{}:
		case <-a.together:
		case <-time.After(2 * time.Minute):
			return scripted.Answer{Status: http.StatusBadRequest, Text: "it is the only attempt"}
		}
	}
	if n < len(all) {
		return scripted.Answer{Text: all[n], Pace: 5 * time.Millisecond}
	}
	return scripted.Answer{Status: http.StatusBadRequest, Text: "the script has ended"}
}

// TestAppInBrowser: a user builds an app in the dashboard, with a scripted model.
func TestAppInBrowser(t *testing.T) {
	env.Slow(t)
	chromium := browser(t)
	model := &scripted.Server{Play: (&writer{make(chan struct{})}).answer}
	web := httptest.NewServer(model)
	t.Cleanup(web.Close)
	s := env.Serve(t, env.ServerOptions{Config: "[models]\ndefault = \"play:m\"\n[models.prices.\"play:m\"]\ninput = 1\noutput = 1\n[providers.play]\nurl = \"" + web.URL + "/v1\"\n"})
	s.Run("template", "build", "vite-react")
	a, err := s.CreateApp(t.Context(), v1.AppRequest{Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("shots", 0o755); err != nil {
		t.Fatal(err)
	}
	drive(t, "app.mjs", map[string]any{
		"url": s.URL, "admin": s.Key, "link": strings.TrimSpace(s.Run("open", "--print")), "app": a.ID, "preview": a.PreviewURL, "chromium": chromium, "shots": "shots",
	}, 13)
	asked := model.Seen()
	if len(asked) != 6 {
		t.Fatalf("the model was asked %d times", len(asked))
	}
	for i, want := range map[int]string{0: "file: src/App.tsx:4\nselector: #root > main > h1\ntext: Nothing here yet\n", 2: "file: src/App.tsx:8\n"} {
		if told := asked[i].Turns[0].Text; !strings.Contains(told, want) {
			t.Errorf("the model was told %s", told)
		}
	}
}

// TestPrivateApp: a user views an app with a private preview in the dashboard, also
// after another sandbox has replaced its first one.
func TestPrivateApp(t *testing.T) {
	env.Slow(t)
	chromium := browser(t)
	s := env.Serve(t, env.ServerOptions{Config: "[preview]\nprivate = true\n"})
	s.Run("template", "build", "vite-react")
	a, err := s.CreateApp(t.Context(), v1.AppRequest{Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	link := strings.TrimSpace(s.Run("app", "open", "shop", "--print"))
	if !strings.HasPrefix(link, a.PreviewURL+"?") {
		t.Errorf("engi app open prints %s, the app is at %s", link, a.PreviewURL)
	}
	drive(t, "private.mjs", map[string]any{
		"url": s.URL, "link": strings.TrimSpace(s.Run("open", "--print")), "app": a.ID, "sandbox": a.SandboxID, "preview": a.PreviewURL, "signed": link, "chromium": chromium,
	}, 4)
}
