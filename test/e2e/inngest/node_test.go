package inngest_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// A node is a server in a process of its own that has its functions executed
// elsewhere.
type node struct {
	*client.Client
	t         *testing.T
	dir, addr string
	inngest   string
	cmd       *exec.Cmd
}

func (n *node) engi(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Getenv("ENGI_BIN"), args...)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+n.dir, "TEST_EVENT_KEY="+eventKey, "TEST_SIGNING_KEY=signkey-test-"+signingKey)
	return cmd
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
	// The path of a socket below it may have 107 bytes.
	dir, err := os.MkdirTemp("", "engi-inngest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, addr: "127.0.0.1:" + ports(t, 1)[0], inngest: s.url}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(strings.Replace(functions, "URL", s.url, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := n.engi("template", "show", "base").CombinedOutput(); err != nil || strings.Contains(string(out), "not built") {
		env.Need(t, "the template base (make template): "+string(out))
	}
	t.Cleanup(func() {
		if out, err := n.engi("stop", "--destroy").CombinedOutput(); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
			n.kill()
		}
		_ = n.cmd.Wait() // how it ended is in the log
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "serve.log"))
			t.Logf("the end of the node's log:\n%s", log[max(0, len(log)-6000):])
		}
	})
	n.serve()
	return n
}

// serve starts the node, again after its end.
func (n *node) serve() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.cmd = n.engi("serve", "--listen", n.addr, "--pools", "none")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + n.addr + "/healthz"); err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			n.t.Fatal("the node does not answer")
		}
	}
	key, err := os.ReadFile(filepath.Join(n.dir, "admin.key"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.Client = client.New("http://"+n.addr, strings.TrimSpace(string(key)))
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill() // it may have ended
	_ = n.cmd.Wait()
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

// end returns a run that has ended well.
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

// begun waits until a step of a run goes on.
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

// TestNode makes and stops a sandbox by events that a real server executes, and
// kills and stops the node in the middle of a run: no step that is done is
// repeated.
func TestNode(t *testing.T) {
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
		"killed": n.kill,
		"stopped": func() {
			began := time.Now()
			if out, err := n.engi("stop").CombinedOutput(); err != nil {
				t.Errorf("stop: %v\n%s", err, out)
			}
			_ = n.cmd.Wait() // how it ended is in the log
			t.Logf("stopped after %v", time.Since(began))
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := n.send("slow", `{"n":7}`)
			n.begun(id, "wait 1")
			end()
			n.serve()
			x := n.end(id)
			if x.Attempt != 1 || len(x.Steps) != 2 || x.Steps[0].Name != "start 1" || x.Steps[0].Attempts != 1 || !strings.Contains(string(x.Output), `"n":7`) {
				t.Errorf("%+v with output %s", x, x.Output)
			}
		})
	}
}
