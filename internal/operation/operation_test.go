package operation_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/operation"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fixture is a database with a directory of logs, used by one node
// after another.
type fixture struct {
	t    *testing.T
	db   *store.DB
	dir  string
	work map[string]operation.Work
}

func newFixture(t *testing.T, work operation.Work) *fixture {
	return &fixture{t: t, db: storetest.Open(t), dir: t.TempDir(), work: map[string]operation.Work{"work": work}}
}

// node starts a node; stop ends it.
func (f *fixture) node() (m *operation.Manager, stop func()) {
	f.t.Helper()
	m = operation.New(f.t.Context(), operation.Options{Store: store.Operations(f.db), Dir: f.dir, Work: f.work})
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- m.Run(ctx, func() { close(ready) }) }()
	<-ready
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				f.t.Error(err)
			}
		}
	}
	f.t.Cleanup(stop)
	return m, stop
}

func (f *fixture) start(m *operation.Manager) engi.Operation {
	f.t.Helper()
	op, err := m.Start(f.t.Context(), engi.OperationSpec{Owner: "ann", Type: "work", Subject: "it"})
	if err != nil {
		f.t.Fatal(err)
	}
	return op
}

// said describes a watcher's updates in one line, and returns their offsets.
func said(t *testing.T, m *operation.Manager, id engi.OperationID, after int64) (text string, offsets []int64, end *engi.Operation) {
	t.Helper()
	for e, err := range m.Watch(t.Context(), "ann", id, after) {
		if err != nil {
			t.Fatal(err)
		}
		offsets = append(offsets, e.Offset)
		if e.Operation != nil {
			return strings.TrimSpace(text), offsets, e.Operation
		}
		text += " " + e.Progress.Log
	}
	t.Fatal("the end is missing")
	return
}

// listing is a store that calls listed after it has listed the operations that are running.
type listing struct {
	operation.Store
	listed func()
}

func (l listing) Running(ctx context.Context) ([]engi.Operation, error) {
	all, err := l.Store.Running(ctx)
	l.listed()
	return all, err
}

// TestStartDuringRun starts an operation before the manager has looked for interrupted ones, and ends it just
// after they were listed: it must be carried out once.
func TestStartDuringRun(t *testing.T) {
	var attempts []int
	goOn := make(chan struct{})
	f := newFixture(t, func(_ context.Context, op engi.Operation, _ func(engi.Progress)) error {
		attempts = append(attempts, op.Attempt)
		<-goOn
		return nil
	})
	var m *operation.Manager
	var op engi.Operation
	m = operation.New(t.Context(), operation.Options{Store: listing{store.Operations(f.db), func() {
		close(goOn)
		if end, err := m.Wait(t.Context(), "ann", op.ID); err != nil || end.State != engi.OperationDone {
			t.Errorf("%+v, %v", end, err)
		}
	}}, Dir: f.dir, Work: f.work})
	op = f.start(m)
	ctx, stop := context.WithCancel(t.Context())
	if err := m.Run(ctx, stop); err != nil {
		t.Fatal(err)
	}
	if len(attempts) != 1 || attempts[0] != 1 {
		t.Errorf("carried out in the attempts %v", attempts)
	}
}

func TestOperationsAreWatchedFromAnywhere(t *testing.T) {
	f := newFixture(t, func(_ context.Context, _ engi.Operation, progress func(engi.Progress)) error {
		for i := range 3 {
			progress(engi.Progress{Step: i + 1, Steps: 3, Log: fmt.Sprint("line", i)})
		}
		return nil
	})
	m, stop := f.node()
	op := f.start(m)
	live, offsets, end := said(t, m, op.ID, 0)
	if live != "line0 line1 line2" || end.State != engi.OperationDone || end.Ended.IsZero() {
		t.Errorf("%q, %+v", live, end)
	}
	want := []string{"line1 line2", "line2", "", ""}
	for i, after := range offsets {
		if got, _, _ := said(t, m, op.ID, after); got != want[i] {
			t.Errorf("after %d: %q, want %q", after, got, want[i])
		}
	}
	// From the middle of a line, the rest of the line is left out.
	if got, _, _ := said(t, m, op.ID, offsets[0]+3); got != "line2" {
		t.Errorf("from the middle: %q", got)
	}
	if _, err := m.Get(t.Context(), "bob", op.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("another owner: %v", err)
	}
	for _, err := range m.Watch(t.Context(), "bob", op.ID, 0) {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("another owner watches: %v", err)
		}
	}
	// The log is kept after the node has ended.
	stop()
	m, _ = f.node()
	if got, _, _ := said(t, m, op.ID, offsets[1]); got != "line2" {
		t.Errorf("after a restart: %q", got)
	}
}

func TestOperationsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		work  operation.Work
		state engi.OperationState
		says  string
	}{
		"refused": {func(context.Context, engi.Operation, func(engi.Progress)) error {
			return engi.Errorf(engi.Invalid, "no such suite").WithRemedy("choose another")
		}, engi.OperationFailed, "no such suite"},
		"broken": {func(context.Context, engi.Operation, func(engi.Progress)) error { return errors.New("token=s3cret") },
			engi.OperationFailed, "an internal error"},
		"panics": {func(context.Context, engi.Operation, func(engi.Progress)) error { panic("oops") }, engi.OperationFailed, "an internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.work)
			m, _ := f.node()
			op, err := m.Wait(t.Context(), "ann", f.start(m).ID)
			if err != nil || op.State != c.state || op.Error == nil || !strings.Contains(op.Error.Text, c.says) || op.Error.Remedy == "" {
				t.Errorf("%+v, %v, %v", op, op.Error, err)
			}
		})
	}
}

func TestOperationsAreCancelled(t *testing.T) {
	f := newFixture(t, func(ctx context.Context, _ engi.Operation, _ func(engi.Progress)) error {
		<-ctx.Done()
		return ctx.Err()
	})
	m, _ := f.node()
	op := f.start(m)
	if err := m.Cancel(t.Context(), "bob", op.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("another owner: %v", err)
	}
	for range 2 { // repeating it is no error
		if err := m.Cancel(t.Context(), "ann", op.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := m.Get(t.Context(), "ann", op.ID); err != nil || got.State != engi.OperationCancelled || got.Error != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestOperationsGoOnAfterARestart stops a node in the middle, twice.
func TestOperationsGoOnAfterARestart(t *testing.T) {
	goOn := make(chan struct{})
	f := newFixture(t, func(ctx context.Context, op engi.Operation, progress func(engi.Progress)) error {
		progress(engi.Progress{Step: op.Attempt, Log: fmt.Sprint("attempt", op.Attempt)})
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	m, stop := f.node()
	op := f.start(m)
	next := int64(0)
	for i := range 2 {
		for e, err := range m.Watch(t.Context(), "ann", op.ID, next) {
			if err != nil { // the node has stopped
				if !engi.Is(err, engi.Unavailable) {
					t.Errorf("%v", err)
				}
				break
			}
			if e.Progress.Log != fmt.Sprint("attempt", i+1) {
				t.Errorf("life %d says %+v", i+1, e)
			}
			next = e.Offset
			go stop()
		}
		stop()
		m, stop = f.node()
	}
	close(goOn)
	text, _, end := said(t, m, op.ID, 0)
	if text != "attempt1 attempt2 attempt3" || end.State != engi.OperationDone || end.Attempt != 3 {
		t.Errorf("%q, %+v", text, end)
	}

	// An operation that kills the node each time, and one of an unknown type, are given up.
	killer := engi.Operation{ID: engi.NewOperationID(), Owner: "ann", Type: "work", State: engi.OperationRunning, Attempt: 5, Created: time.Now()}
	stranger := engi.Operation{ID: engi.NewOperationID(), Owner: "ann", Type: "other", State: engi.OperationRunning, Attempt: 1, Created: time.Now()}
	stop()
	for _, x := range []engi.Operation{killer, stranger} {
		if err := store.Operations(f.db).Put(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	m, _ = f.node()
	for _, x := range []engi.Operation{killer, stranger} {
		got, err := m.Wait(t.Context(), "ann", x.ID)
		if err != nil || got.State != engi.OperationFailed || got.Error.Remedy == "" {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestOperationsAreRefused(t *testing.T) {
	f := newFixture(t, func(context.Context, engi.Operation, func(engi.Progress)) error { return nil })
	m, stop := f.node()
	if _, err := m.Start(t.Context(), engi.OperationSpec{Type: "other"}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("unknown: %v", err)
	}
	op := f.start(m)
	if _, err := m.Start(t.Context(), engi.OperationSpec{ID: op.ID, Type: "work"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("the same ID: %v", err)
	}
	stop()
	if _, err := m.Start(t.Context(), engi.OperationSpec{Owner: "ann", Type: "work"}); !engi.Is(err, engi.Unavailable) {
		t.Errorf("after the end: %v", err)
	}
	if logs, err := os.ReadDir(filepath.Clean(f.dir)); err != nil || len(logs) == 0 {
		t.Errorf("%v, %v", logs, err)
	}
}
