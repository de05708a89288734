package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/apitest"
)

func TestUICommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	run := func(want int, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, srv.URL, w.User, `{"from":"a pipe"}`, args...)
		if code != want {
			t.Fatalf("engi %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
	run(0, "session", "create", "page")
	seq, _ := run(0, "page", "act", "page", "demo-counter", "--data", "-", "--once", "k")
	if again, _ := run(0, "page", "act", "page", "demo-counter", "--data", `{"from":"a pipe"}`, "--once", "k"); again != seq || !regexp.MustCompile(`^\d+\n$`).MatchString(seq) {
		t.Errorf("%q, and again %q", seq, again)
	}
	before, _ := run(0, "page", "show", "page")
	if !strings.Contains(before, `<h1 id="count">0</h1>`) {
		t.Errorf("%s", before)
	}
	out, _ := run(0, "page", "act", "page", "add", "--wait")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 || !strings.Contains(lines[0], `patch  {"selector":"#count","text":"1"}`) || !strings.HasSuffix(lines[1], "done  done") {
		t.Errorf("%s", out)
	}
	out, _ = run(0, "page", "act", "page", "tools", "--wait")
	for _, want := range []string{`tool  run_code {"code":"6*7"}`, "tool  run_code = 42"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if out, _ := run(1, "page", "act", "page", "fail", "-w"); !strings.Contains(out, "error  the model is gone") {
		t.Errorf("%s", out)
	}
	out, _ = run(0, "page", "act", "page", "stats", "--wait", "--json")
	for line := range strings.Lines(out) {
		var u v1.PageUpdate
		if err := json.Unmarshal([]byte(line), &u); err != nil || u.Type == "" {
			t.Errorf("%v in %s", err, line)
		}
	}
	for format, want := range map[string]string{"ai-sdk": "data: [DONE]\n\n", "ag-ui": `"type":"RUN_FINISHED"}` + "\n\n"} {
		if out, _ := run(0, "page", "watch", "page", "--after", strings.TrimSpace(seq), "--format", format); !strings.HasSuffix(out, want) {
			t.Errorf("%s: %s", format, out)
		}
	}
	restored, _ := run(0, "page", "show", "page", "--at", strings.TrimSpace(seq))
	if strings.TrimSpace(restored) != "" {
		t.Errorf("before the first answer it was %s", restored)
	}
	var x v1.Page
	out, _ = run(0, "page", "show", "page", "--json")
	if err := json.Unmarshal([]byte(out), &x); err != nil || !strings.Contains(x.HTML, ">1<") {
		t.Errorf("%v in %s", err, out)
	}
	run(0, "page", "restore", "page", strings.TrimSpace(seq))
	run(0, "page", "act", "page", "wait")
	run(0, "page", "cancel", "page")
	if out, _ := run(0, "page", "show", "page", "--json"); strings.Contains(out, "working") {
		t.Errorf("%s", out)
	}
	if _, said := run(1, "page", "restore", "page", "1000000"); said == "" {
		t.Error("nothing said")
	}
	if _, said := run(1, "page", "act", "page", "x", "--data", "{"); !strings.Contains(said, "--data is not JSON") {
		t.Errorf("%s", said)
	}
	run(1, "page", "show", "nobody")
	if code, _, _ := askServer(t, srv.URL, w.Other, "", "page", "show", "page"); code != 1 {
		t.Errorf("somebody else: exit code %d", code)
	}
}
