package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"

	"github.com/engi-dev/engi/test/env"
)

const (
	// firstTry does not remove the quotes, as its own check detects.
	firstTry = `
def parse_csv(text):
    return [line.split(",") for line in text.splitlines()]
rows = parse_csv('name,city\n"Hopper, Grace",New York\n')
print("rows", rows, flush=True)
assert rows[1][0] == "Hopper, Grace", rows[1]
`
	secondTry = `
import csv, io, time
def parse_csv(text):
    return list(csv.DictReader(io.StringIO(text)))
print("parsing", flush=True)
time.sleep(1)
rows = parse_csv('name,city\n"Hopper, Grace",New York\n')
assert rows[0]["name"] == "Hopper, Grace"
print("works", rows[0]["city"], flush=True)
`
)

// writesCSV is a model that makes an error once, reads the message, and corrects it. Seed S4,
// the execution loop.
func writesCSV(c scripted.Conversation) scripted.Answer {
	last := c.Last()
	if last.Role != "tool" {
		return scripted.Answer{Text: "I write it and run it. ", Calls: []scripted.Call{call("execute_code", map[string]any{"language": "python", "code": firstTry})}}
	}
	switch result := last.Results[0]; {
	case result.Failed && strings.Contains(result.Text, "AssertionError"):
		return scripted.Answer{Text: "Quoted commas break it. Again: ", Calls: []scripted.Call{call("execute_code", map[string]any{"language": "python", "code": secondTry})}}
	case strings.Contains(result.Text, "works New York"):
		return scripted.Answer{Text: "Here is the function. I ran it, and it keeps quoted commas."}
	}
	return scripted.Answer{Text: "I give up."}
}

const wish = "write a function to parse CSV and show me it works"

// TestTheLoop has a model that calls a tool, reads the result, and tries again, while the output of programs is
// shown live.
func TestTheLoop(t *testing.T) {
	w := begin(t)
	w.plays(writesCSV)
	t.Run("HTTP", func(t *testing.T) {
		body, err := json.Marshal(v1.ChatRequest{Message: wish})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/v1/chat", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.Key)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var kinds []string
		var printed time.Time // time of the first line of the second program
		var lead time.Duration
		text := ""
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			data, ok := strings.CutPrefix(in.Text(), "data: ")
			if !ok {
				continue
			}
			var e v1.AgentUpdate
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			if e.Type == v1.EventHeartbeat {
				continue
			}
			if len(kinds) == 0 || kinds[len(kinds)-1] != e.Type {
				kinds = append(kinds, e.Type)
			}
			switch {
			case e.Type == "text":
				text += e.Text
			case e.Type == "stdout" && strings.Contains(e.Text, "parsing"):
				printed = time.Now()
			case e.Type == "result" && !printed.IsZero():
				lead = time.Since(printed)
			}
		}
		// The program slept for a second between the two.
		if lead < 500*time.Millisecond {
			t.Errorf("what it printed was shown %v before its end", lead)
		}
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "stderr" })
		if got := strings.Join(slices.Compact(kinds), " "); got != "text call stdout result text call stdout result text done" {
			t.Errorf("it told %s", got)
		}
		if !strings.HasSuffix(text, "keeps quoted commas.") {
			t.Errorf("it said %q", text)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		cmd := w.Engi("chat", wish)
		var out, work bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &work
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, work.String())
		}
		if !strings.HasSuffix(strings.TrimSpace(out.String()), "keeps quoted commas.") {
			t.Errorf("it said %q", out.String())
		}
		for _, want := range []string{`[execute_code] {"language":"python"}`, "AssertionError", "[execute_code failed]", "parsing\n", "works New York"} {
			if !strings.Contains(work.String(), want) {
				t.Errorf("%q was not shown in %s", want, work.String())
			}
		}
	})
}

const repository = `
set -e
mkdir -p /tmp/repo/pkg && cd /tmp/repo
git init -q -b main . && git config user.email a@example.com && git config user.name a
printf 'def add(a, b):\n    return a - b\n' > pkg/calc.py
printf 'import sys\nsys.path.insert(0, "pkg")\nfrom calc import add\nassert add(2, 3) == 5\nprint("passed")\n' > check.py
printf '# calc\n' > README.md
git add -A && git commit -qm 'first'
`

// TestExploreAndCode has one agent that finds the fault in a repository,
// and another one that changes the repository, with tools for files only.
func TestExploreAndCode(t *testing.T) {
	env.Slow(t)
	w := begin(t)
	box := w.sandbox(t, repository)
	w.plays(func(c scripted.Conversation) scripted.Answer {
		last := c.Last()
		seen := ""
		for _, r := range last.Results {
			seen += r.Text
		}
		explores := strings.Contains(c.System, "find things out")
		switch n := said(c); {
		case explores && n == 0:
			return scripted.Answer{Calls: []scripted.Call{call("glob", map[string]any{"pattern": "**/*.py", "dir": "/tmp/repo"}), call("grep", map[string]any{"pattern": "def add", "path": "/tmp/repo"}),
				// A model that calls tools that it was not given.
				call("write_file", map[string]any{"path": "/tmp/repo/pkg/calc.py", "content": "gone"}), call("run_command", map[string]any{"command": "rm -rf /tmp/repo"})}}
		case explores && n == 1 && strings.Contains(seen, "/tmp/repo/pkg/calc.py"):
			return scripted.Answer{Calls: []scripted.Call{call("read_file", map[string]any{"path": "/tmp/repo/pkg/calc.py"})}}
		case explores && n == 2 && strings.Contains(seen, "return a - b"):
			return scripted.Answer{Text: "add in /tmp/repo/pkg/calc.py subtracts."}
		case !explores && n == 0 && strings.Contains(last.Text, "[FOUND] add in /tmp/repo/pkg/calc.py subtracts."):
			return scripted.Answer{Calls: []scripted.Call{call("edit_file", map[string]any{"path": "/tmp/repo/pkg/calc.py", "edits": []map[string]any{{"old": "a - b", "new": "a + b"}}})}}
		case !explores && n == 1:
			return scripted.Answer{Calls: []scripted.Call{call("write_file", map[string]any{"path": "/tmp/repo/docs/calc.md", "content": "add adds.\n"}), call("read_file", map[string]any{"path": "/tmp/repo/pkg/calc.py"})}}
		case !explores && n == 2 && strings.Contains(seen, "return a + b"):
			return scripted.Answer{Text: "Fixed."}
		}
		return scripted.Answer{Text: "lost: " + seen}
	})
	found, _ := w.run(t, "explore", v1.RunRequest{Input: "Why does the check fail?", SandboxID: box})
	if found.State != v1.AgentDone || found.Text != "add in /tmp/repo/pkg/calc.py subtracts." {
		t.Fatalf("%+v", found)
	}
	if got := w.sh(t, box, "cd /tmp/repo && git status --porcelain"); got != "" {
		t.Errorf("exploring changed %s", got)
	}
	if tools := w.model.Seen()[0].Tools; !slices.Equal(tools, []string{"glob", "grep", "list_files", "read_file", "read_result"}) {
		t.Errorf("the explorer was offered %v", tools)
	}
	done, events := w.run(t, "code", v1.RunRequest{Input: "Fix it.", SandboxID: box, Context: []v1.ContextPart{{Name: "FOUND", Text: found.Text}}})
	if done.State != v1.AgentDone || done.Text != "Fixed." {
		t.Fatalf("%+v %+v", done, events)
	}
	if got := w.sh(t, box, "cd /tmp/repo && git status --porcelain && git diff | grep '^[-+] ' && python3 check.py"); got != " M pkg/calc.py\n?? docs/\n-    return a - b\n+    return a + b\npassed\n" {
		t.Errorf("the repository: %q", got)
	}
}
