package session

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// TestStatesOfASession puts a session with a process to sleep, in memory and on disk,
// kills the server meanwhile, and finds the process and the whole story in the log.
func TestStatesOfASession(t *testing.T) {
	env.Slow(t)
	s := env.Serve(t, env.ServerOptions{})
	ctx := t.Context()
	made, err := s.CreateSession(ctx, v1.SessionRequest{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.AttachSession(ctx, "s", "laptop")
	if err != nil || x.State != "running" || len(x.Attached) != 1 {
		t.Fatalf("%+v, %v", x, err)
	}
	count := func() string {
		t.Helper()
		p, err := s.Exec(ctx, x.SandboxID, v1.ProcessRequest{Args: []string{"sh", "-c", "kill -USR1 $(cat /tmp/pid); for i in 1 2 3 4 5 6 7 8 9; do test -s /tmp/n && break; sleep 0.1; done; cat /tmp/n"}})
		if err != nil {
			t.Fatal(err)
		}
		return p.Stdout
	}
	if _, err := s.StartProcess(ctx, x.SandboxID, v1.ProcessRequest{Detach: true, Args: []string{"sh", "-c", "n=0; trap 'n=$((n+1)); echo $n > /tmp/n' USR1; echo $$ > /tmp/pid; while :; do sleep 0.05; done"}}); err != nil {
		t.Fatal(err)
	}
	s.RunCode(ctx, "s", v1.CodeRequest{Code: "1"})
	is := func(want string) func(v1.Session, error) {
		return func(y v1.Session, err error) {
			t.Helper()
			if err != nil || y.State != want || y.SandboxID != x.SandboxID {
				t.Fatalf("%+v, %v, want %s in sandbox %s", y, err, want, x.SandboxID)
			}
		}
	}
	is("suspended")(s.SuspendSession(ctx, "s"))
	s.Kill()
	s.Start()
	is("suspended")(s.Session(ctx, "s"))
	is("running")(s.ResumeSession(ctx, "s"))
	if got := strings.TrimSpace(count()); got != "1" {
		t.Errorf("the process counts %q", got)
	}
	is("hibernated")(s.HibernateSession(ctx, "s"))
	s.Kill()
	s.Start()
	is("hibernated")(s.Session(ctx, "s"))
	is("running")(s.AttachSession(ctx, "s", "phone"))
	if got := strings.TrimSpace(count()); got != "1" && got != "2" {
		t.Errorf("the process counts %q", got)
	}
	if y, err := s.ReleaseSession(ctx, "s"); err != nil || y.State != "idle" || len(y.Attached) != 0 {
		t.Errorf("%+v, %v", y, err)
	}
	if err := s.TerminateSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(ctx, client.EventFilter{Subject: made.ID})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(events, func(a, b v1.Event) int { return int(a.Seq - b.Seq) })
	var got []string
	for _, e := range events {
		var data struct{ Cause, Client string }
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(strings.TrimPrefix(e.Type, "session.")+" "+data.Cause+data.Client))
	}
	want := []string{
		"created", "booting use", "started use", "attached laptop", "suspended request", "resumed use", "hibernated request", "resumed use", "attached phone",
		"released request", "terminated request",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestTerminalsAttach views a terminal of a session, which is attached meanwhile:
// it is detached when the server is killed, and attached again when its viewer is back. When the viewer has
// left, the files are saved and the program continues.
func TestTerminalsAttach(t *testing.T) {
	s := env.Serve(t, env.ServerOptions{})
	ctx := t.Context()
	if _, err := s.CreateSession(ctx, v1.SessionRequest{Name: "s", Persistence: "workspace"}); err != nil {
		t.Fatal(err)
	}
	term, err := s.CreateTerminal(ctx, "s", v1.TerminalRequest{Args: []string{"/bin/sh"}})
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want ...string) {
		t.Helper()
		wait(t, "what is attached", func() ([]v1.SessionClient, bool) {
			x, err := s.Session(ctx, "s")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range x.Attached {
				got = append(got, c.Via+" "+c.Client)
			}
			return x.Attached, slices.Equal(got, want)
		})
	}
	shows()
	a, err := client.New(s.URL, s.Key, client.WithRetries(200)).AttachTerminal(ctx, "s", term.ID, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := io.WriteString(a, "echo kept > /workspace/f; printf 'do%s\\n' ne\n"); err != nil {
		t.Fatal(err)
	}
	read, stop := context.WithCancel(ctx)
	defer stop()
	wrote, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		got := ""
		for data, err := range a.Output(read) {
			if err != nil {
				break
			}
			before := strings.Contains(got, "done")
			if got += string(data); !before && strings.Contains(got, "done") {
				close(wrote)
			}
		}
	}()
	select {
	case <-wrote:
	case <-left:
		t.Fatal("the terminal ends")
	}
	shows("terminal " + term.ID)
	s.Kill()
	s.Start()
	shows("terminal " + term.ID) // the terminal is back
	stop()
	<-left
	a.Close()
	shows()
	x := wait(t, "the files are saved", func() (v1.Session, bool) {
		x, err := s.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		return x, x.SavedAt != nil
	})
	if y, err := s.Terminal(ctx, "s", term.ID); x.State != "running" || err != nil || !y.Running {
		t.Errorf("the session is %s, its terminal %+v, %v", x.State, y, err)
	}
	events, err := s.Events(ctx, client.EventFilter{Subject: x.ID, Types: []string{"session.attached", "session.detached", "session.saved"}})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(events, func(a, b v1.Event) int { return int(a.Seq - b.Seq) })
	var got []string
	for _, e := range events {
		got = append(got, e.Type)
	}
	if want := []string{"session.attached", "session.attached", "session.detached", "session.saved"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
