package dbos_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/dbos"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/seed"
)

// childEnv, if set, makes the test binary a child process that works in that
// directory until it is killed; generationEnv counts the child processes.
const (
	childEnv      = "ENGI_TEST_VICTIM"
	generationEnv = "ENGI_TEST_GENERATION"
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

const (
	killRuns  = 24 // number of runs that each child starts
	killSteps = 6
)

// work sends events and serves until all runs have ended. Each step adds a
// line to a journal. Between steps, runs sleep and await events.
func work(dir string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(dir, "engi.db"))
	if err != nil {
		return err
	}
	engine, err := dbos.New(dbos.Options{File: filepath.Join(dir, "functions.db")})
	if err != nil {
		return err
	}
	journal, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f := function.Function{
		Function: engi.Function{Name: "f", Event: "f", Retries: 20, Concurrency: 8},
		Backoff:  function.Backoff{First: time.Millisecond, Max: 5 * time.Millisecond},
		Run: func(ctx context.Context, r *function.Run) (any, error) {
			sum := 0
			for i := range killSteps {
				n, err := function.Step(ctx, r, fmt.Sprint("step ", i), func(context.Context) (int, error) {
					time.Sleep(time.Duration(i*5%8) * time.Millisecond) // steps take different times
					_, err := fmt.Fprintf(journal, "%s %d\n", r.ID, i)
					return i, err
				})
				if err != nil {
					return nil, err
				}
				switch i {
				case 1:
					if err := r.Sleep(ctx, "sleep", 5*time.Millisecond); err != nil {
						return nil, err
					}
				case 4:
					if _, _, err := r.Await(ctx, "await", function.Match{Types: []string{"wake"}, Subject: string(r.Event.ID)}, time.Time{}); err != nil {
						return nil, err
					}
				}
				if sum += n; i == 3 && r.Attempt == 1 {
					return nil, engi.Errorf(engi.Unavailable, "the first attempt fails in the middle")
				}
			}
			return sum, nil
		},
	}
	runner, err := function.New(function.Options{Functions: []function.Function{f}, Store: store.Functions(db), Events: store.Events(db), Engine: engine})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	ready := make(chan struct{})
	go func() { failed <- runner.Serve(ctx, func() { close(ready) }) }()
	select {
	case err := <-failed:
		return err
	case <-ready:
	}
	for i := range killRuns {
		// Half of the events were also sent by the last child.
		n, _ := strconv.Atoi(os.Getenv(generationEnv))
		_, runs, err := runner.Send(ctx, engi.EventSpec{Owner: "anna", Type: "f", Idempotency: fmt.Sprint("event ", n-2*i/killRuns, " ", i%(killRuns/2))})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(journal, "sent %s\n", runs[0]); err != nil {
			return err
		}
	}
	for {
		open, err := store.Functions(db).Runs(ctx, engi.Everyone, function.Filter{Open: true})
		if err != nil || len(open) == 0 {
			return err
		}
		for _, r := range open {
			if r.Wait != nil && r.Wait.Subject != "" {
				if _, err := store.Events(db).Append(ctx, engi.EventSpec{Owner: "anna", Type: "wake", Subject: string(r.Event)}); err != nil {
					return err
				}
			}
		}
		select {
		case err := <-failed:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestKill kills a process at random moments. In the end all runs must have completed,
// and no step must have been repeated after the next one had begun. ENGI_TEST_KILLS is the
// number of kills.
func TestKill(t *testing.T) {
	kills := 5
	if testing.Short() {
		kills = 2
	}
	if s := os.Getenv("ENGI_TEST_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	killed, random := 0, seed.New(t)
	for generation, done := 1, false; !done; generation++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprint(generationEnv, "=", generation))
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		left := time.Duration(random.IntN(400)) * time.Millisecond
		if killed >= kills {
			left = 2 * time.Minute
		}
		var err error
		select {
		case err = <-ended:
		case <-time.After(left):
			if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			err = <-ended
			killed++
			if left > time.Minute {
				t.Fatalf("the runs did not end: %v %s", err, said.String())
			}
			continue
		}
		if err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		done = killed >= kills
	}
	count, repeated := check(t, dir)
	t.Logf("%d kills, %d runs, %d of %d steps were repeated because they were interrupted", killed, count, repeated, count*killSteps)
	if most := killed * 8; repeated > most {
		t.Errorf("%d steps were repeated, at most %d were interrupted", repeated, most)
	}
}

// check reads the journal and returns the number of runs and of repeated steps.
func check(t *testing.T, dir string) (runs, repeated int) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sent, last := map[string]bool{}, map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "sent "); ok {
			sent[id] = true
			continue
		}
		id, text, _ := strings.Cut(lines.Text(), " ")
		step, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("the journal says %q", lines.Text())
		}
		before, ok := last[id]
		if !ok {
			before = -1
		}
		switch step {
		case before + 1:
		case before:
			repeated++
		default:
			t.Errorf("run %s: step %d was executed after step %d", id, step, before)
		}
		last[id] = step
	}
	for id := range sent {
		if last[id] != killSteps-1 {
			t.Errorf("run %s ended with step %d", id, last[id])
		}
	}
	if len(last) < len(sent) || len(sent) < killRuns {
		t.Errorf("%d runs were sent, %d were executed", len(sent), len(last))
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := store.Functions(db).Runs(t.Context(), engi.Everyone, function.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.State != engi.FunctionDone || string(r.Output) != "15" || r.Attempt != 2 {
			t.Errorf("run %s is %s with %s after %d attempts: %v", r.ID, r.State, r.Output, r.Attempt, r.Error)
		}
	}
	if len(all) != len(last) {
		t.Errorf("there are %d runs, %d were executed", len(all), len(last))
	}
	return len(all), repeated
}
