package page_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page"
	"github.com/engi-dev/engi/internal/page/markup"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

// childEnv, if set, makes the test binary a child process that works in that directory
// until it is killed.
const childEnv = "ENGI_TEST_VICTIM"

const (
	killPages   = 4 // number of pages at once
	killActions = 5 // number of actions on each page
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// victim performs actions on pages, one after the other, and records a watcher's
// updates, until all are answered. It continues where the last process was killed.
func victim(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := store.Open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		return err
	}
	defer db.Close()
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		a := counter(c)
		a.Pace = time.Millisecond
		return a
	}}
	reg, err := llm.New(llm.Options{Providers: map[string]llm.Provider{"openai": {URL: "http://model.invalid"}}, Default: "openai:demo", Client: &http.Client{Transport: model}, Backoff: time.Millisecond})
	if err != nil {
		return err
	}
	agents, err := agent.New(agent.Options{Agents: []engi.AgentSpec{{Name: page.Agent}}, Models: reg.Model, Store: store.Agents(db), Results: store.AgentResults(db), Dir: filepath.Join(dir, "runs")})
	if err != nil {
		return err
	}
	s := page.New(page.Options{Agents: agents, Sessions: sessions{store: store.Sessions(db)}, Events: store.Events(db), Store: store.Pages(db), Embedder: docs.BuiltIn()})
	failed := make(chan error, killPages+2)
	for _, run := range []func(context.Context, func()) error{agents.Run, s.Run} {
		ready := make(chan struct{})
		go func() { failed <- run(ctx, func() { close(ready) }) }()
		<-ready
	}
	done := make(chan error, killPages)
	for i := range killPages {
		go func() { done <- visit(ctx, db, s, dir, fmt.Sprint("page", i)) }()
	}
	for range killPages {
		select {
		case err = <-done:
		case err = <-failed:
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// visit performs actions on the page of a session, and records its updates in a journal.
func visit(ctx context.Context, db *store.DB, s *page.Service, dir, name string) error {
	err := store.Sessions(db).Put(ctx, session.Record{Session: engi.Session{ID: engi.NewSessionID(), Name: name, Owner: "ann", State: engi.SessionIdle, Created: time.Now()}})
	if err != nil && !engi.Is(err, engi.Conflict) {
		return err
	}
	last, over, _, err := readPage(dir, name)
	if err != nil || over {
		return err
	}
	if last == 0 {
		last = 1 // from the beginning: the first event is older than all pages
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	acted := make(chan error, 1)
	go func() {
		for i := range killActions {
			action := "increment"
			if i == 0 {
				action = "open"
			}
			if _, err := s.Act(ctx, engi.PageAction{Viewer: "ann", Session: name, Action: action, Idempotency: fmt.Sprint(i)}); err != nil {
				acted <- err
				return
			}
			for {
				ui, err := s.Get(ctx, "ann", name, 0)
				if err != nil {
					acted <- err
					return
				}
				if ui.Working == "" && ui.Waiting == 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		_, err := s.Act(ctx, engi.PageAction{Viewer: "ann", Session: name, Action: "over", Idempotency: "over"})
		acted <- err
	}()
	for u, err := range s.Watch(ctx, "ann", name, last) {
		if err != nil {
			return err
		}
		if u.Seq == 0 {
			continue
		}
		raw, err := json.Marshal(u)
		if err != nil {
			return err
		}
		if _, err := f.Write(append(raw, '\n')); err != nil {
			return err
		}
		if u.Action == "over" {
			return <-acted
		}
	}
	return engi.Errorf(engi.Internal, "the stream ended")
}

// readPage returns the last event of a journal, whether it is the final one, and the
// page that its events produce.
func readPage(dir, name string) (last int64, over bool, p *markup.Page, err error) {
	p = markup.NewPage("")
	f, err := os.Open(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return 0, false, p, nil
	}
	if err != nil {
		return 0, false, nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var u engi.PageUpdate
		if err := json.Unmarshal(s.Bytes(), &u); err != nil {
			return 0, false, nil, err
		}
		if u.Seq <= last {
			return 0, false, nil, engi.Errorf(engi.Internal, "%s: update %d comes after %d", name, u.Seq, last)
		}
		over = u.Action == "over"
		if last = u.Seq; u.Kind == engi.PageReplaced {
			p = markup.NewPage(u.HTML)
		}
		p.Apply(u.Patches)
	}
	return last, over, p, nil
}

// raceDetector reports whether this build has the race detector, with which the
// long tests are short: they test every moment, not races.
var raceDetector bool

// TestKill kills a process at random moments. Each client that resumes must see every event
// once, and end with the page of an undisturbed process.
func TestKill(t *testing.T) {
	kills := 25
	if raceDetector {
		kills = 3
	}
	if s := os.Getenv("ENGI_TEST_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	var items strings.Builder
	for i := 1; i < killActions; i++ {
		fmt.Fprintf(&items, "<li>%d</li>", i)
	}
	want := fmt.Sprintf(counted, killActions-1, items.String())
	random := seed.New(t)
	for kills > 0 {
		dir := t.TempDir()
		for over := false; !over; {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), childEnv+"="+dir)
			c.Stderr = os.Stderr
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if kills > 0 {
				kills--
				timer := time.AfterFunc(time.Duration(60+random.IntN(200))*time.Millisecond, func() { c.Process.Kill() })
				defer timer.Stop()
			}
			err := c.Wait()
			if over = err == nil; !over && c.ProcessState.ExitCode() != -1 {
				t.Fatalf("the process failed: %v", err)
			}
		}
		for i := range killPages {
			if _, _, page, err := readPage(dir, fmt.Sprint("page", i)); err != nil || page.HTML() != want {
				t.Errorf("page %d is %v, want %s (%v)", i, page, want, err)
			}
		}
	}
}
