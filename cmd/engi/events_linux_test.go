package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/apitest"
)

// eventsAt runs "engi events" at a server and returns what it printed.
func eventsAt(t *testing.T, url, key, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	in, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(stdin); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	var o, e strings.Builder
	code = engiMain(append([]string{"events", "--url", url, "--key", key}, args...), in, &o, &e)
	return code, o.String(), e.String()
}

func TestEventsCommand(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	file := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(file, []byte(`{"from":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(args ...string) (int, string, string) {
		t.Helper()
		return eventsAt(t, srv.URL, w.User, `{"from":"stdin"}`, args...)
	}
	for _, c := range []struct {
		args     []string
		code     int
		out, err string // that are in it
	}{
		{[]string{"send", "engi/debug/echo", "--data", `{"a":1}`, "--wait"}, 0, "{\"a\":1}\n", "echo: echo in "},
		{[]string{"send", "engi/debug/echo", "-d", "@" + file, "-w"}, 0, "{\"from\":\"file\"}\n", ""},
		{[]string{"send", "engi/debug/echo", "-d", "-", "-w"}, 0, "{\"from\":\"stdin\"}\n", ""},
		{[]string{"send", "engi/debug/fail", "--wait"}, 1, "", "fail failed: there is no sandbox\n  send the ID of one that lives"},
		{[]string{"send", "engi/debug/fail"}, 0, "evt_", ""},
		{[]string{"send", "nobody/cares", "--wait"}, 0, "", "no function is bound to nobody/cares"},
		{[]string{"send", "x", "--data", "nonsense"}, 1, "", "--data is not JSON"},
		{[]string{"send", "x", "--data", "@" + file + ".none"}, 1, "", "no such file"},
		{[]string{"send", "x", "--data", "[]"}, 1, "", "is not a JSON object"},
		{[]string{"list", "--name", "nobody/cares"}, 0, "  nobody/cares  evt_", ""},
		{[]string{"functions"}, 0, "engi/debug/echo  -          3        -       says it again", ""},
		{[]string{"runs", "--state", "failed"}, 0, "there is no sandbox", ""},
		{[]string{"show", "evt_x"}, 1, "", "is not an event ID"},
	} {
		code, out, errOut := at(c.args...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.err) || c.err == "" && errOut != "" && c.code != 0 {
			t.Errorf("%v: code %d, want %d\nout %s\nerr %s", c.args, code, c.code, out, errOut)
		}
	}

	_, first, _ := at("send", "engi/debug/echo", "--once", "order-42")
	if _, again, _ := at("send", "engi/debug/echo", "--once", "order-42"); again != first {
		t.Errorf("the same key made %s and %s", first, again)
	}
	var sent struct {
		Event v1.Event
		Runs  []v1.FunctionRun
	}
	code, out, _ := at("replay", strings.TrimSpace(first), "--wait", "--json")
	if err := json.Unmarshal([]byte(out), &sent); err != nil || code != 0 || sent.Event.ReplayOf != strings.TrimSpace(first) || len(sent.Runs) != 1 {
		t.Errorf("%d %s %v", code, out, err)
	}
	if code, out, _ := at("show", sent.Event.ID); code != 0 || !strings.Contains(out, "replay of  evt_") || !strings.Contains(out, "step       echo in ") {
		t.Errorf("%d %s", code, out)
	}
	_, out, _ = at("send", "engi/debug/wait", "--json")
	if err := json.Unmarshal([]byte(out), &sent.Event); err != nil {
		t.Fatal(err)
	}
	run := sent.Event.RunIDs[0]
	if code, out, errOut := at("cancel", run); code != 0 || out != "" {
		t.Errorf("%d %s %s", code, out, errOut)
	}
	if code, out, _ := at("show", run); code != 0 || !strings.Contains(out, "state      cancelled") {
		t.Errorf("%d %s", code, out)
	}
	if code, _, errOut := at("replay", sent.Event.ID, "--function", "echo"); code != 1 || !strings.Contains(errOut, "bound") {
		t.Errorf("%d %s", code, errOut)
	}
}
