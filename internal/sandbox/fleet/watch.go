package fleet

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/outputlog"
)

// present converts a record to the execution that its owner sees, with its output.
func (e *executions) present(rec Record) (engi.Execution, error) {
	x := rec.Execution
	if rec.State != engi.ExecutionDone {
		return x, nil
	}
	output, err := e.outputOf(rec)
	if err != nil {
		return x, err
	}
	defer output.Close()
	if x.Result == nil {
		return x, nil
	}
	result := *x.Result // the result of the record is shared
	if result.Stdout, result.Stderr, err = output.Split(); err != nil {
		return x, err
	}
	x.Result = &result
	return x, nil
}

// outputOf opens the output of an ended execution.
func (e *executions) outputOf(rec Record) (*outputlog.Log, error) {
	if rec.OutputFile {
		return outputlog.Open(e.files.output(rec.ID))
	}
	return outputlog.Load(rec.Output), nil
}

// Get implements engi.Executions.
func (e *executions) Get(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (engi.Execution, error) {
	if r := e.get(viewer, id); r != nil {
		if rec, _, _, err := r.look(); err == nil && rec.Ended.IsZero() {
			return rec.Execution, nil
		}
	}
	rec, err := e.opt.Store.Get(ctx, viewer, id)
	if err != nil {
		return engi.Execution{}, err
	}
	return e.present(rec)
}

// Wait implements engi.Executions.
func (e *executions) Wait(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) (engi.Execution, error) {
	r := e.get(viewer, id)
	if r == nil {
		x, err := e.Get(ctx, viewer, id)
		switch {
		case err != nil:
			return x, err
		case x.Refusal != nil:
			return x, x.Refusal
		case x.State != engi.ExecutionDone:
			return x, errNotServing // the execution continues, but this node does not follow it
		}
		return x, nil
	}
	for {
		rec, changed, trouble, err := r.look()
		switch {
		case err != nil:
			return rec.Execution, err
		case rec.Refusal != nil:
			return rec.Execution, rec.Refusal
		case rec.State == engi.ExecutionDone:
			return e.present(rec)
		case trouble != nil:
			return rec.Execution, trouble
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rec.Execution, engi.Errorf(engi.Expired, "wait for execution %s: %v", id, context.Cause(ctx)).
				WithRemedy("the execution continues: get it again by its ID")
		}
	}
}

// Watch implements engi.Executions.
func (e *executions) Watch(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, from int64) iter.Seq2[engi.ExecutionUpdate, error] {
	return func(yield func(engi.ExecutionUpdate, error) bool) {
		if from < 0 {
			yield(engi.ExecutionUpdate{}, engi.Errorf(engi.Invalid, "negative offset %d", from))
			return
		}
		if r := e.get(viewer, id); r != nil {
			if reader := r.output.Read(from); reader != nil { // nil if the run has just ended
				defer reader.Close()
				watchRun(ctx, r, reader, from, yield)
				return
			}
		}
		rec, err := e.opt.Store.Get(ctx, viewer, id)
		switch {
		case err != nil:
		case rec.Refusal != nil:
			err = rec.Refusal
		case rec.State != engi.ExecutionDone:
			err = errNotServing
		}
		if err != nil {
			yield(engi.ExecutionUpdate{}, err)
			return
		}
		output, err := e.outputOf(rec)
		if err != nil {
			yield(engi.ExecutionUpdate{}, err)
			return
		}
		defer output.Close()
		reader := output.Read(from)
		defer reader.Close()
		if from == 0 && !rec.Started.IsZero() && !yield(started(rec.Execution), nil) {
			return
		}
		if at, ok := play(ctx, reader, from, yield); ok {
			yield(engi.ExecutionUpdate{Type: engi.EventResult, Offset: at, Execution: &rec.Execution}, nil)
		}
	}
}

// started returns the first event of a run, with the execution as it was at its start.
func started(x engi.Execution) engi.ExecutionUpdate {
	x.State, x.Ended, x.Result = engi.ExecutionRunning, time.Time{}, nil
	return engi.ExecutionUpdate{Type: engi.EventStarted, Execution: &x}
}

// watchRun follows a run that is going on.
func watchRun(ctx context.Context, r *run, reader *outputlog.Reader, from int64, yield func(engi.ExecutionUpdate, error) bool) {
	rec, ok := await(ctx, r, yield, func(rec Record) bool { return rec.State != engi.ExecutionQueued })
	if !ok {
		return
	}
	if from == 0 && !rec.Started.IsZero() && !yield(started(rec.Execution), nil) {
		return
	}
	at, ok := play(ctx, reader, from, yield)
	if !ok {
		return
	}
	if rec, ok = await(ctx, r, yield, func(rec Record) bool { return rec.State == engi.ExecutionDone }); ok {
		yield(engi.ExecutionUpdate{Type: engi.EventResult, Offset: at, Execution: &rec.Execution}, nil)
	}
}

// await waits until good accepts the run's record. It returns false, after
// yielding the error, if the wait fails.
func await(ctx context.Context, r *run, yield func(engi.ExecutionUpdate, error) bool, good func(Record) bool) (Record, bool) {
	for {
		rec, changed, trouble, err := r.look()
		switch {
		case err != nil:
		case rec.Refusal != nil:
			err = rec.Refusal
		case good(rec):
			return rec, true
		case trouble != nil:
			err = trouble
		}
		if err == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err = engi.Errorf(engi.Expired, "watch execution %s: %v", r.id, context.Cause(ctx))
			}
		}
		yield(engi.ExecutionUpdate{}, err)
		return rec, false
	}
}

// play yields output to its end, and returns the offset of the end. It returns
// false if the watcher has left or an error was yielded.
func play(ctx context.Context, reader *outputlog.Reader, from int64, yield func(engi.ExecutionUpdate, error) bool) (at int64, ok bool) {
	at = from
	for {
		c, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return at, true
		}
		if err != nil {
			yield(engi.ExecutionUpdate{}, err)
			return at, false
		}
		kind := engi.EventStdout
		if c.Stream == engi.Stderr {
			kind = engi.EventStderr
		}
		at = c.Offset + int64(len(c.Data))
		if !yield(engi.ExecutionUpdate{Type: kind, Offset: c.Offset, Data: slices.Clone(c.Data)}, nil) {
			return at, false
		}
	}
}

// Cancel implements engi.Executions.
func (e *executions) Cancel(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) error {
	r := e.get(viewer, id)
	if r == nil {
		rec, err := e.opt.Store.Get(ctx, viewer, id)
		if err == nil && rec.Ended.IsZero() {
			return errNotServing
		}
		return err
	}
	r.stop(engi.CauseCancelled)
	select {
	case <-r.ended:
		_, _, _, err := r.look()
		return err
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "cancel execution %s: %v", id, context.Cause(ctx)).
			WithRemedy("it is being cancelled: get it again by its ID")
	}
}

// List implements engi.Executions.
func (e *executions) List(ctx context.Context, viewer engi.Viewer, f engi.ExecutionFilter) ([]engi.Execution, error) {
	recs, err := e.opt.Store.List(ctx, viewer, f)
	if err != nil {
		return nil, err
	}
	list := make([]engi.Execution, len(recs))
	for i, rec := range recs {
		list[i] = rec.Execution
	}
	return list, nil
}

// artifacts returns the artifacts of an execution, or NotFound before it is done.
func (e *executions) artifacts(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID) ([]engi.Artifact, error) {
	rec, err := e.opt.Store.Get(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	if rec.Result == nil {
		return nil, engi.Errorf(engi.NotFound, "execution %s is %s and has no artifacts", id, rec.State)
	}
	return rec.Result.Artifacts, nil
}

// Artifact implements engi.Executions.
func (e *executions) Artifact(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	all, err := e.artifacts(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	n := slices.IndexFunc(all, func(a engi.Artifact) bool { return a.Path == path })
	if n < 0 {
		return nil, engi.Errorf(engi.NotFound, "execution %s has no artifact %.200q", id, path)
	}
	f, err := os.Open(e.files.artifact(id, n))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open artifact %d of %s: %v", n, id, err)
	}
	return f, nil
}

// Artifacts implements engi.Executions.
func (e *executions) Artifacts(ctx context.Context, viewer engi.Viewer, id engi.ExecutionID, limit int64) ([][]byte, error) {
	all, err := e.artifacts(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	contents := make([][]byte, len(all))
	for i, a := range all {
		if a.Size > limit {
			continue
		}
		if ctx.Err() != nil {
			return nil, engi.Errorf(engi.Expired, "read the artifacts of %s: %v", id, context.Cause(ctx))
		}
		if data, err := e.files.readArtifact(id, i, a); err == nil {
			contents[i] = data
			limit -= a.Size
		}
	}
	return contents, nil
}
