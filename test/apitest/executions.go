package apitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Executions is a fake. Programs, in any language, are commands separated
// by ';' or newlines:
//
//	echo TEXT    prints TEXT and a newline; with >&2 at the end, to stderr
//	put TEXT     prints TEXT, which is a quoted Go string
//	puterr TEXT  the same to stderr
//	cat          prints standard input
//	sleep TIME   sleeps ("100ms")
//	save PATH TEXT  leaves an artifact
//	exit N       ends the program
//
// The program print(6*7) prints "42"; all others fail.
type Executions struct {
	bounds engi.Bounds // of programs

	mu       sync.Mutex
	capacity int    // maximum number of concurrent runs; guarded by mu
	all      []*run // all executions, oldest first; guarded by mu
	running  sync.WaitGroup
	closed   context.Context
	close    context.CancelFunc
}

var _ engi.Executions = (*Executions)(nil)

// NewExecutions returns a fake without executions that can run 100 at a time.
func NewExecutions() *Executions {
	x := &Executions{capacity: 100}
	x.closed, x.close = context.WithCancel(context.Background())
	return x
}

// SetCapacity sets the maximum number of concurrent executions.
func (x *Executions) SetCapacity(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.capacity = n
}

// Close cancels all runs and waits for them.
func (x *Executions) Close() {
	x.close()
	x.running.Wait()
}

type run struct {
	spec   engi.ExecutionSpec
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	record engi.Execution // guarded by mu
	output []piece        // guarded by mu
	length int64          // guarded by mu
	files  []file         // guarded by mu
	change chan struct{}  // closed and replaced with each change; guarded by mu
}

type piece struct {
	stream engi.ExecutionUpdateKind
	offset int64
	data   []byte
}

type file struct {
	path string
	data []byte
}

// Start starts an execution.
func (x *Executions) Start(ctx context.Context, spec engi.ExecutionSpec) (engi.Execution, error) {
	if err := spec.Faults(x.bounds).Err(); err != nil {
		return engi.Execution{}, err
	}
	if spec.Template == "" {
		spec.Template = "base"
	}
	switch {
	case spec.Template != "base" && spec.Template != "host":
		return engi.Execution{}, engi.Errorf(engi.NotFound, "no template %q", spec.Template).WithRemedy("GET /v1/templates lists what there is")
	case spec.MinTier == engi.TierMicroVM:
		return engi.Execution{}, engi.Errorf(engi.Unsupported, "this node has no microvm tier")
	}
	if err := checkNetwork(spec.Network); err != nil {
		return engi.Execution{}, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	live := 0
	for _, r := range x.all {
		if spec.Idempotency != "" && r.spec.Idempotency == spec.Idempotency && r.spec.Owner == spec.Owner {
			if !reflect.DeepEqual(r.spec, spec) {
				return engi.Execution{}, engi.Errorf(engi.Conflict, "this Idempotency-Key was used for another request")
			}
			return r.snapshot(), nil
		}
		if r.snapshot().State != engi.ExecutionDone {
			live++
		}
	}
	if live >= x.capacity {
		return engi.Execution{}, engi.Errorf(engi.Exhausted, "%d runs are going on already", live).
			WithRetry(engi.Retry{AfterMillis: 1500, Position: 7})
	}
	now := time.Now()
	runCtx, cancel := context.WithCancel(x.closed)
	r := &run{spec: spec, cancel: cancel, done: make(chan struct{}), change: make(chan struct{}), record: engi.Execution{
		ID: engi.NewExecutionID(), Owner: spec.Owner, State: engi.ExecutionRunning, Language: spec.Program.Language,
		Template: spec.Template, Sandbox: engi.NewSandboxID(), Created: now, Started: now,
	}}
	x.all = append(x.all, r)
	x.running.Go(func() { r.execute(runCtx) })
	return r.snapshot(), nil
}

func (r *run) snapshot() engi.Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

// execute runs the program.
func (r *run) execute(ctx context.Context) {
	defer r.cancel()
	timeout := r.spec.Limits.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	exit := r.interpret(ctx)
	if ctx.Err() != nil {
		exit = engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseCancelled}
		if context.Cause(ctx) == context.DeadlineExceeded {
			exit.Cause = engi.CauseTimeout
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &engi.Result{Exit: exit, Duration: time.Since(r.record.Started), Tier: engi.TierMemory, Warm: true, NotEnforced: []string{"memory"}}
	for _, p := range r.output {
		if p.stream == engi.EventStdout {
			res.Stdout = append(res.Stdout, p.data...)
		} else {
			res.Stderr = append(res.Stderr, p.data...)
		}
	}
	for _, f := range r.files {
		sum := sha256.Sum256(f.data)
		res.Artifacts = append(res.Artifacts, engi.Artifact{Path: f.path, Size: int64(len(f.data)), Mode: 0o644, SHA256: hex.EncodeToString(sum[:])})
	}
	r.record.State, r.record.Ended, r.record.Result = engi.ExecutionDone, time.Now(), res
	close(r.done)
	r.goOnLocked()
}

func (r *run) goOnLocked() {
	close(r.change)
	r.change = make(chan struct{})
}

func (r *run) print(s engi.ExecutionUpdateKind, data string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output = append(r.output, piece{s, r.length, []byte(data)})
	r.length += int64(len(data))
	r.goOnLocked()
}

func (r *run) interpret(ctx context.Context) engi.Exit {
	var code []byte
	for _, f := range r.spec.Program.Files {
		if f.Path == r.spec.Program.Entry {
			code = f.Data
		}
	}
	for line := range strings.FieldsFuncSeq(string(code), func(c rune) bool { return c == ';' || c == '\n' }) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "echo":
			if text, ok := strings.CutSuffix(rest, ">&2"); ok {
				r.print(engi.EventStderr, strings.TrimSpace(text)+"\n")
			} else {
				r.print(engi.EventStdout, rest+"\n")
			}
		case "put", "puterr":
			text, err := strconv.Unquote(rest)
			if err != nil {
				return r.complain(line, err)
			}
			if word == "put" {
				r.print(engi.EventStdout, text)
			} else {
				r.print(engi.EventStderr, text)
			}
		case "cat":
			r.print(engi.EventStdout, string(r.spec.Program.Stdin))
		case "sleep":
			d, err := time.ParseDuration(rest)
			if err != nil {
				return r.complain(line, err)
			}
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return engi.Exit{}
			}
		case "save":
			name, text, _ := strings.Cut(rest, " ")
			r.mu.Lock()
			r.files = append(r.files, file{name, []byte(text)})
			r.mu.Unlock()
		case "exit":
			n, err := strconv.Atoi(rest)
			if err != nil {
				return r.complain(line, err)
			}
			return engi.Exit{Code: n, Cause: engi.CauseExited}
		case "print(6*7)":
			r.print(engi.EventStdout, "42\n")
		default:
			return r.complain(line, fmt.Errorf("what is %q?", word))
		}
	}
	return engi.Exit{Cause: engi.CauseExited}
}

func (r *run) complain(line string, err error) engi.Exit {
	r.print(engi.EventStderr, fmt.Sprintf("%s: %v\n", line, err))
	return engi.Exit{Code: 1, Cause: engi.CauseExited}
}

func (x *Executions) find(viewer engi.Viewer, id engi.ExecutionID) (*run, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.all {
		if s := r.snapshot(); s.ID == id && viewer.Sees(s.Owner) {
			return r, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "no execution %s", id)
}

// Get returns an execution.
func (x *Executions) Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (engi.Execution, error) {
	r, err := x.find(viewer, id)
	if err != nil {
		return engi.Execution{}, err
	}
	return r.snapshot(), nil
}

// Wait returns an execution once it is done.
func (x *Executions) Wait(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (engi.Execution, error) {
	r, err := x.find(viewer, id)
	if err != nil {
		return engi.Execution{}, err
	}
	select {
	case <-r.done:
		return r.snapshot(), nil
	case <-ctx.Done():
		return engi.Execution{}, engi.Errorf(engi.Expired, "wait for %s: %v", id, context.Cause(ctx))
	}
}

// Watch yields the events from an offset.
func (x *Executions) Watch(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, from int64) iter.Seq2[engi.ExecutionUpdate, error] {
	return func(yield func(engi.ExecutionUpdate, error) bool) {
		r, err := x.find(viewer, id)
		if err != nil {
			yield(engi.ExecutionUpdate{}, err)
			return
		}
		if from == 0 {
			s := r.snapshot()
			if !yield(engi.ExecutionUpdate{Type: engi.EventStarted, Execution: &s}, nil) {
				return
			}
		}
		buf := []byte(nil) // the buffer is reused, as implementations may do
		for at := from; ; {
			r.mu.Lock()
			tape, record, change := r.output, r.record, r.change
			r.mu.Unlock()
			for _, p := range tape {
				if end := p.offset + int64(len(p.data)); end > at {
					buf = append(buf[:0], p.data[max(0, at-p.offset):]...)
					e := engi.ExecutionUpdate{Type: p.stream, Offset: max(at, p.offset), Data: buf}
					if !yield(e, nil) {
						return
					}
					clear(buf)
					at = end
				}
			}
			if record.State == engi.ExecutionDone {
				result := *record.Result
				result.Stdout, result.Stderr = nil, nil // removed, as in package fleet
				record.Result = &result
				yield(engi.ExecutionUpdate{Type: engi.EventResult, Offset: max(at, r.length), Execution: &record}, nil)
				return
			}
			select {
			case <-change:
			case <-ctx.Done():
				yield(engi.ExecutionUpdate{}, engi.Errorf(engi.Expired, "watch %s: %v", id, context.Cause(ctx)))
				return
			}
		}
	}
}

// Cancel ends an execution.
func (x *Executions) Cancel(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) error {
	r, err := x.find(viewer, id)
	if err != nil {
		return err
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "cancel %s: %v", id, context.Cause(ctx))
	}
}

// List returns executions, newest first.
func (x *Executions) List(ctx context.Context, viewer engi.Viewer, f engi.ExecutionFilter) ([]engi.Execution, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var list []engi.Execution
	skip := f.Before != ""
	for _, r := range slices.Backward(x.all) {
		s := r.snapshot()
		if !viewer.Sees(s.Owner) {
			continue
		}
		if skip {
			skip = s.ID != f.Before
			continue
		}
		if f.State == "" || s.State == f.State {
			list = append(list, s)
		}
		if f.Limit > 0 && len(list) == f.Limit {
			break
		}
	}
	return list, nil
}

// Artifact opens an artifact.
func (x *Executions) Artifact(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	r, err := x.find(viewer, id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		if f.path == path {
			return io.NopCloser(bytes.NewReader(f.data)), nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "%s left no %q", id, path)
}

// Artifacts returns the contents of small artifacts.
func (x *Executions) Artifacts(_ context.Context, viewer engi.Viewer, id engi.ExecutionID, limit int64) ([][]byte, error) {
	r, err := x.find(viewer, id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	contents := make([][]byte, len(r.files))
	for i, f := range r.files {
		if n := int64(len(f.data)); n <= limit {
			contents[i], limit = f.data, limit-n
		}
	}
	return contents, nil
}
