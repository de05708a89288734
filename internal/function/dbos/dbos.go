// Package dbos executes durable functions with DBOS Transact. It records started
// runs and the results of their steps in a SQLite file of its own, until the
// runs have ended. Package function manages states, attempts and queues.
package dbos

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite" // SQLite driver for DBOS

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

const (
	// version is recorded in the file instead of a hash of the program, so that
	// newer versions of engi continue the runs of older ones. It must not change.
	version = "1"

	// workflowName is recorded in the file, too.
	workflowName = "run"

	// maxRecoveries is the number of times that DBOS continues a run after crashes: package
	// function decides when to give up.
	maxRecoveries = 1 << 30

	cleanupInterval = time.Minute
	cleanupBatch    = 500
	stopLimit       = 10 * time.Second
)

// Options configures an Engine.
type Options struct {
	File string       // absolute; created with mode 0600 if it does not exist
	Log  *slog.Logger // nil discards
}

// An Engine implements [function.Engine]. Only one process may use a file.
type Engine struct {
	opt Options

	mu      sync.Mutex
	runtime *runtime // nil unless Run is active
}

var _ function.Engine = (*Engine)(nil)

// New returns an engine. The file is opened by Run.
func New(opt Options) (*Engine, error) {
	if !filepath.IsAbs(opt.File) {
		return nil, engi.Errorf(engi.Invalid, "%.200q is not an absolute path", opt.File)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{opt: opt}, nil
}

// A runtime is the state of an engine during one Run.
type runtime struct {
	ctx      context.Context // context of Run
	executor function.Executor
	log      *slog.Logger
	dbos     dbos.Context

	mu     sync.Mutex
	closed bool
	busy   sync.WaitGroup // running calls of Execute
	wakes  map[string]chan struct{}
}

// Run implements [function.Engine].
func (e *Engine) Run(ctx context.Context, x function.Executor, ready func()) (err error) {
	defer engi.Annotate(&err, "durable functions in %s", e.opt.File)
	db, err := openFile(e.opt.File)
	if err != nil {
		return err
	}
	defer db.Close()
	// These variables override the configuration below, and one of them makes
	// DBOS call its vendor's service.
	for _, name := range []string{"DBOS__APPVERSION", "DBOS__VMID", "DBOS__APPID", "DBOS__CLOUD"} {
		if err := os.Unsetenv(name); err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
	}
	rt := &runtime{ctx: ctx, executor: x, log: e.opt.Log, wakes: map[string]chan struct{}{}}
	// Shutdown ends it, after all functions have returned.
	rt.dbos, err = dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{
		AppName: "engi", ApplicationVersion: version, ExecutorID: "engi", SQLiteSystemDB: db, Logger: warningsOnly(e.opt.Log),
	})
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	dbos.RegisterWorkflow(rt.dbos, rt.run, dbos.WithWorkflowName(workflowName), dbos.WithMaxRecoveryAttempts(maxRecoveries))
	if err := dbos.Launch(rt.dbos); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	// After a power failure, our record of a run may say that it is active although
	// this file says that it has ended. Such runs are deleted here before they
	// are started again.
	rt.removeEnded()

	e.mu.Lock()
	e.runtime = rt
	e.mu.Unlock()
	ready()
	for range clock.Later(ctx, cleanupInterval) {
		rt.removeEnded()
	}
	e.mu.Lock()
	e.runtime = nil
	e.mu.Unlock()
	rt.mu.Lock()
	rt.closed = true
	rt.mu.Unlock()
	// Results of steps must be recorded: wait for the last step before shutting
	// down.
	rt.busy.Wait()
	if err := dbos.Shutdown(rt.dbos, stopLimit); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// openFile opens the database.
func openFile(path string) (*sql.DB, error) {
	// SQLite would create the file with the umask's mode, but the file has results of
	// functions.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err).WithRemedy("make the data directory writable")
	}
	if err := f.Close(); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	source := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(1)"},
	}.Encode()}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	return db, nil
}

// Start implements [function.Engine].
func (e *Engine) Start(_ context.Context, id engi.FunctionRunID, _ string) error {
	e.mu.Lock()
	rt := e.runtime
	e.mu.Unlock()
	if rt == nil {
		return engi.Errorf(engi.Unavailable, "the engine is not running")
	}
	// DBOS ignores an ID that is already in the file.
	if _, err := dbos.RunWorkflow(rt.dbos, rt.run, string(id), dbos.WithWorkflowID(string(id))); err != nil {
		return engi.Errorf(engi.Unavailable, "record run %s: %v", id, err)
	}
	return nil
}

// Wake implements [function.Engine].
func (e *Engine) Wake(_ context.Context, id engi.FunctionRunID) error {
	e.mu.Lock()
	rt := e.runtime
	e.mu.Unlock()
	if rt == nil {
		return nil
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	select {
	case rt.wakes[string(id)] <- struct{}{}:
	default:
	}
	return nil
}

// acquire reports whether Execute may be called. The caller then calls busy.Done.
func (rt *runtime) acquire() bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if !rt.closed {
		rt.busy.Add(1)
	}
	return !rt.closed
}

// run is the only DBOS workflow: it executes a run until the run has ended. Its result
// is not recorded while the engine stops.
func (rt *runtime) run(ctx dbos.Context, id string) (string, error) {
	wake := make(chan struct{}, 1)
	rt.mu.Lock()
	rt.wakes[id] = wake
	rt.mu.Unlock()
	defer func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		delete(rt.wakes, id)
	}()

	s := &steps{ctx: ctx, done: map[string]json.RawMessage{}}
	if err := s.load(rt.dbos, id); err != nil && ctx.Err() == nil {
		// The next process tries again; continuing without the results would
		// repeat the steps.
		rt.log.Error("read the steps of a run", "run", id, "error", err)
		<-ctx.Done()
	}
	for rt.acquire() {
		out := rt.executor.Execute(rt.ctx, engi.FunctionRunID(id), s)
		rt.busy.Done()
		switch out.Next {
		case function.Ended:
			return "", nil
		case function.Stopped:
			continue
		}
		var again <-chan time.Time
		if out.Next != function.Parked {
			again = time.After(out.After)
		}
		select {
		case <-rt.ctx.Done():
		case <-wake:
		case <-again:
		}
	}
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// removeEnded deletes runs that have ended from the file.
func (rt *runtime) removeEnded() {
	for rt.ctx.Err() == nil {
		ended, err := dbos.ListWorkflows(rt.dbos, dbos.WithFilterStatus(dbos.WorkflowStatusSuccess, dbos.WorkflowStatusError),
			dbos.WithFilterLimit(cleanupBatch), dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(false))
		ids := make([]string, 0, len(ended))
		for _, w := range ended {
			ids = append(ids, w.ID)
		}
		if err == nil && len(ids) > 0 {
			err = dbos.DeleteWorkflows(rt.dbos, ids)
		}
		if err != nil {
			rt.log.Warn("delete runs that have ended", "error", err)
			return
		}
		if len(ids) < cleanupBatch {
			return
		}
	}
}

// steps implements [function.Stepper] for one run. DBOS identifies steps by
// number; here they are identified by name, so that further attempts and changed
// functions find their steps.
type steps struct {
	ctx  dbos.Context
	done map[string]json.RawMessage // results by name
}

// A stepResult is the recorded form of a step in DBOS.
type stepResult struct {
	Failed bool            `json:"failed,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// load reads the results that were recorded by earlier processes. DBOS requires
// that all recorded steps are requested in order before a new one.
func (s *steps) load(root dbos.Context, id string) error {
	known, err := dbos.GetWorkflowSteps(root, id, dbos.WithStepsLoadOutput(false))
	if err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	next := 0
	for _, k := range known {
		// A step that could not be recorded has left its number unused.
		for ; next <= k.StepID; next++ {
			name := k.StepName
			if next < k.StepID {
				name = "unrecorded"
			}
			m, err := dbos.RunAsStep(s.ctx, func(context.Context) (stepResult, error) { return stepResult{Failed: true}, nil }, dbos.WithStepName(name))
			if err != nil {
				return engi.Errorf(engi.Unavailable, "step %s: %v", name, err)
			}
			if !m.Failed {
				s.done[name] = m.Result
			}
		}
	}
	return nil
}

// Step implements [function.Stepper].
func (s *steps) Step(ctx context.Context, name string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	if raw, ok := s.done[name]; ok {
		return raw, nil
	}
	var failure error
	m, err := dbos.RunAsStep(s.ctx, func(context.Context) (stepResult, error) {
		raw, err := fn(ctx)
		failure = err
		return stepResult{Failed: err != nil, Result: raw}, nil
	}, dbos.WithStepName(name))
	switch {
	case err != nil:
		return nil, engi.Errorf(engi.Unavailable, "record step %s: %v", name, err)
	case failure != nil:
		return nil, failure
	}
	s.done[name] = m.Result
	return m.Result, nil
}

// warningsOnly returns a logger that drops messages of DBOS below the level of warnings.
func warningsOnly(log *slog.Logger) *slog.Logger { return slog.New(warningHandler{log.Handler()}) }

type warningHandler struct{ slog.Handler }

func (w warningHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

func (w warningHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return warningHandler{w.Handler.WithAttrs(a)}
}
func (w warningHandler) WithGroup(n string) slog.Handler {
	return warningHandler{w.Handler.WithGroup(n)}
}
