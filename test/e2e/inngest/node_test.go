package inngest_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// A node is an engi server whose functions are executed by Inngest.
type node struct {
	*env.Server
	t       *testing.T
	inngest string
}

const functions = `
[events]
engine = "inngest"

[events.inngest]
url = "URL"
event_key_env = "TEST_EVENT_KEY"
signing_key_env = "TEST_SIGNING_KEY"

[[functions]]
name = "slow"
event = "slow"
run = { language = "bash", code = "sleep 3; cat; echo" }
`

// begin starts a node, which ends with the test.
func begin(t *testing.T) *node {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	s := start(t, true)
	return &node{t: t, inngest: s.url, Server: env.Serve(t, env.ServerOptions{
		Config: strings.Replace(functions, "URL", s.url, 1),
		Env:    []string{"TEST_EVENT_KEY=" + eventKey, "TEST_SIGNING_KEY=signkey-test-" + signingKey},
	})}
}

// send sends an event and returns the ID of its run.
func (n *node) send(name, data string) string {
	n.t.Helper()
	e, err := n.SendEvent(n.t.Context(), v1.EventRequest{Name: name, Data: json.RawMessage(data)}, "")
	if err != nil {
		n.t.Fatal(err)
	}
	if len(e.RunIDs) != 1 {
		n.t.Fatalf("%s has started %v", name, e.RunIDs)
	}
	return e.RunIDs[0]
}

// end waits for the successful end of a run and returns the run.
func (n *node) end(id string) v1.FunctionRun {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	x, err := n.WaitFunctionRun(ctx, id)
	if err != nil {
		n.t.Fatal(err)
	}
	if x.State != v1.FunctionDone {
		n.t.Fatalf("%+v", x)
	}
	return x
}

// begun waits until a step of a run is running.
func (n *node) begun(id, step string) {
	n.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		x, err := n.FunctionRun(n.t.Context(), id)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, s := range x.Steps {
			if s.Name == step {
				return
			}
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%+v", x)
		}
	}
}

// TestNode creates and stops a sandbox by events that a real server handles, and
// kills and stops the node in the middle of a run: no finished step is
// repeated.
func TestNode(t *testing.T) {
	env.Slow(t)
	n := begin(t)
	var made struct {
		ID string `json:"sandbox_id"`
	}
	x := n.end(n.send("engi/sandbox/create", `{"metadata":{"by":"inngest"}}`))
	if err := json.Unmarshal(x.Output, &made); err != nil {
		t.Fatal(err)
	}
	if box, err := n.Sandbox(t.Context(), made.ID); err != nil || box.State != v1.SandboxRunning || box.Metadata["by"] != "inngest" {
		t.Errorf("%+v, %v", box, err)
	}
	n.end(n.send("engi/sandbox/stop", `{"sandbox_id":"`+made.ID+`"}`))
	if box, err := n.Sandbox(t.Context(), made.ID); err != nil || box.State != v1.SandboxStopped {
		t.Errorf("%+v, %v", box, err)
	}

	for name, end := range map[string]func(){
		"killed": n.Kill,
		"stopped": func() {
			began := time.Now()
			n.Stop()
			t.Logf("stopped after %v", time.Since(began))
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := n.send("slow", `{"n":7}`)
			n.begun(id, "wait 1")
			end()
			n.Start()
			x := n.end(id)
			if x.Attempt != 1 || len(x.Steps) != 2 || x.Steps[0].Name != "start 1" || x.Steps[0].Attempts != 1 || !strings.Contains(string(x.Output), `"n":7`) {
				t.Errorf("%+v with output %s", x, x.Output)
			}
		})
	}
}
