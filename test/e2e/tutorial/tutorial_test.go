// Package tutorial runs docs/tutorial.md as written. The provider that it
// names is replaced by a scripted server; nothing else is replaced.
package tutorial

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

var (
	blocks  = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	passage = regexp.MustCompile(`(?m)^\[providers\.openai\]\n`)
)

// fixes is a model that repairs the program that the tutorial broke, step by step, using only
// the shown texts.
func fixes(c scripted.Conversation) scripted.Answer {
	seen := c.Last().Text
	for _, r := range c.Last().Results {
		seen += r.Text
	}
	use := func(text, name string, args map[string]any) scripted.Answer {
		raw, err := json.Marshal(args)
		if err != nil {
			panic(err) // the strings are known
		}
		return scripted.Answer{Text: text, Calls: []scripted.Call{{Name: name, Arguments: string(raw)}}}
	}
	run := map[string]any{"command": "python3 test_price.py", "dir": "/home/user/shop"}
	switch {
	case strings.Contains(seen, "Find out why") || strings.Contains(seen, "green now?"):
		return use("I run the tests. ", "run_command", run)
	case strings.Contains(seen, "FAILED"):
		return use("The discount is wrong. ", "read_file", map[string]any{"path": "/home/user/shop/price.py"})
	case strings.Contains(seen, "discount / 10)"):
		return use("Percent is a hundredth. ", "edit_file", map[string]any{"path": "/home/user/shop/price.py", "edits": []map[string]any{{"old": "discount / 10)", "new": "discount / 100)"}}})
	case strings.Contains(seen, "replaced 1"):
		return use("Once more. ", "run_command", run)
	case strings.Contains(seen, "OK"):
		return scripted.Answer{Text: "All tests are green."}
	}
	return scripted.Answer{Text: "I do not understand: " + seen}
}

func TestTutorial(t *testing.T) {
	env.Slow(t)
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	if out, err := exec.Command(os.Getenv("ENGI_BIN"), "template", "show", "base").CombinedOutput(); err != nil || bytes.Contains(out, []byte("not built")) {
		env.Need(t, "the template base (make template)")
	}
	page, err := os.ReadFile("../../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	model := &scripted.Server{Play: fixes}
	web := httptest.NewServer(model)
	defer web.Close()
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	found := blocks.FindAllSubmatch(page, -1)
	if len(found) < 8 {
		t.Fatalf("%d blocks of shell in the page", len(found))
	}
	for _, b := range found {
		script.Write(b[1])
	}
	text := script.String()
	if n := len(passage.FindAllString(text, -1)); n != 1 {
		t.Fatalf("the provider is named %d times", n)
	}
	text = passage.ReplaceAllString(text, "[providers.openai]\nurl = \""+web.URL+"\"\n")

	// The path of a socket below the directory may have 107 bytes.
	dir, err := os.MkdirTemp("", "engi-tut-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Symlink(os.Getenv("ENGI_BIN"), filepath.Join(dir, "engi")); err != nil {
		t.Fatal(err)
	}
	vars := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ENGI_DATA_DIR="+filepath.Join(dir, "d"), "OPENAI_API_KEY=sk-none", "ENGI_LISTEN=127.0.0.1:0", "ENGI_URL=", "ENGI_KEY=")
	cmd := exec.CommandContext(t.Context(), "bash", "-c", text)
	cmd.Env = vars
	out, err := cmd.CombinedOutput()
	defer func() {
		stop := exec.Command(os.Getenv("ENGI_BIN"), "stop", "--destroy")
		stop.Env = vars
		_ = stop.Run() // the server has been stopped already, unless the test failed before
	}()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"fixer", "FAILED", "[edit_file]", "All tests are green.", "price.py | 2 +-", `"type":"done"`} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("%q does not come up in\n%s", want, out)
		}
	}
	for _, c := range model.Seen() {
		if c.Key != "sk-none" || c.Model != "gpt-4o" {
			t.Errorf("the provider saw %+v", c)
		}
	}
	if last := model.Seen()[len(model.Seen())-1]; !strings.HasPrefix(last.Turns[0].Text, "[PROJECT] price.py adds prices") {
		t.Errorf("the model read %q", last.Turns[0].Text)
	}
}
