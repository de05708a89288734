package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

// childEnv, if set, makes the test binary a child process that works in that
// directory until it is killed.
const childEnv = "ENGI_TEST_VICTIM"

const (
	killRuns  = 6 // at once
	killSteps = 5
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := work(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openChild opens a runner on a directory, with a slow model.
func openChild(ctx context.Context, dir string) (*agent.Runner, func(), error) {
	db, err := store.Open(ctx, filepath.Join(dir, "engi.db"))
	if err != nil {
		return nil, nil, err
	}
	model := httptest.NewServer(&scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		steps := 0
		for _, m := range c.Turns {
			if m.Role == "assistant" {
				steps++
			}
		}
		a := scripted.Answer{Text: fmt.Sprintf("step %d begins with a few words and ends", steps), Pace: time.Millisecond}
		if steps < killSteps {
			a.Calls = []scripted.Call{{Name: "say", Arguments: `{"a":1}`}, {Name: "say", Arguments: `{"a":2}`}}
		}
		return a
	}})
	reg, err := llm.New(llm.Options{Providers: map[string]llm.Provider{"openai": {URL: model.URL}}, Default: "openai:demo", Client: model.Client(), Backoff: time.Millisecond})
	if err != nil {
		return nil, nil, err
	}
	say, err := tool.New("say", "Says something.", func(ctx context.Context, c *tool.Call, a adding) (tool.Result, error) {
		for range 3 {
			c.Out(engi.Stdout, []byte("word "))
			time.Sleep(time.Millisecond)
		}
		return tool.Result{Text: fmt.Sprint(a.A)}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	say.Repeatable = true
	r, err := agent.New(agent.Options{Agents: []engi.AgentSpec{{Name: "a", Tools: []string{"*"}, Steps: 20}}, Models: reg.Model, Tools: []tool.Tool{say},
		Store: store.Agents(db), Results: store.AgentResults(db), Dir: filepath.Join(dir, "runs")})
	return r, func() { model.Close(); db.Close() }, err
}

// work starts or resumes runs and appends the events it sees to journals until
// the runs have ended. It watches from the last event that an earlier process
// has seen.
func work(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, closeAll, err := openChild(ctx, dir)
	if err != nil {
		return err
	}
	defer closeAll()
	ready, gone := make(chan struct{}), make(chan error, 1)
	go func() { gone <- r.Run(ctx, func() { close(ready) }) }()
	defer func() { cancel(); <-gone }()
	<-ready
	var wg sync.WaitGroup
	failed := make(chan error, killRuns)
	for i := range killRuns {
		wg.Go(func() { failed <- watch(ctx, r, dir, fmt.Sprint("run ", i)) })
	}
	wg.Wait()
	for range killRuns {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func watch(ctx context.Context, runner *agent.Runner, dir, key string) error {
	r, err := runner.Start(ctx, engi.RunSpec{Owner: "ann", Input: key, Idempotency: key})
	if err != nil {
		return err
	}
	seen, err := readJournal(dir, r.ID)
	if err != nil {
		return err
	}
	var last int64
	if n := len(seen); n > 0 {
		number, _, _ := strings.Cut(seen[n-1], " ")
		if last, err = strconv.ParseInt(number, 10, 64); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "journal of "+string(r.ID)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for e, err := range runner.Watch(ctx, "ann", r.ID, last) {
		if err != nil {
			return err
		}
		if _, err := f.WriteString(journalLine(e) + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// journalLine returns an event as a line.
func journalLine(e engi.RunUpdate) string {
	text := fmt.Sprintf("%d %s %d %q", e.Seq, e.Kind, e.Step, e.Text)
	if e.Call != nil {
		text += " " + e.Call.ID
	}
	return text
}

// readJournal returns the events that were seen of a run.
func readJournal(dir string, id engi.RunID) (lines []string, err error) {
	f, err := os.Open(filepath.Join(dir, "journal of "+string(id)))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines, nil
}

// TestKill kills a process at random moments. A watcher that resumes each time
// sees the same events as one that reads all of them at the end: none is missing,
// none comes twice, and completed steps are not repeated.
func TestKill(t *testing.T) {
	kills := 40
	if s := os.Getenv("ENGI_TEST_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	random := seed.New(t)
	for round := 0; kills > 0; round++ {
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
				timer := time.AfterFunc(time.Duration(40+random.IntN(160))*time.Millisecond, func() { c.Process.Kill() })
				defer timer.Stop()
			}
			err := c.Wait()
			if over = err == nil; !over && c.ProcessState.ExitCode() != -1 {
				t.Fatalf("the process failed: %v", err)
			}
		}
		check(t, dir)
	}
}

func check(t *testing.T, dir string) {
	runner, closeAll, err := openChild(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	runs, err := runner.List(t.Context(), "ann", 0)
	if err != nil || len(runs) != killRuns {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	for _, r := range runs {
		if r.State != engi.RunDone || r.Steps != killSteps+1 {
			t.Errorf("run %s is %s after %d steps: %v", r.ID, r.State, r.Steps, r.Error)
		}
		seen, err := readJournal(dir, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		results := map[string]int{}
		for e, err := range runner.Watch(t.Context(), "ann", r.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, journalLine(e))
			if e.Kind == engi.RunResult {
				results[e.Call.ID]++
			}
		}
		if !slices.Equal(seen, all) {
			t.Errorf("run %s was seen as\n%s\nand is\n%s", r.ID, strings.Join(seen, "\n"), strings.Join(all, "\n"))
		}
		if len(results) != 2*killSteps {
			t.Errorf("run %s has results of %v", r.ID, results)
		}
		for call, n := range results {
			if n != 1 {
				t.Errorf("run %s has %[3]d results of call %[2]s", r.ID, call, n)
			}
		}
	}
}
