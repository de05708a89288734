package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/outputlog"
)

// The events of a run are lines of JSON in an output log, which is a file. The
// Seq of an event is the offset after its line, so a reader can resume
// after a restart, and no number is used twice.

const (
	// maxEventFile is the size in bytes above which output of tools and partial
	// objects are left out.
	maxEventFile = 64 << 20
	// keepEventFile is the time for which the file is kept after the end of a run. After that,
	// events are reconstructed from the run's messages.
	keepEventFile = 24 * time.Hour
)

// An eventLine is an event in the file.
type eventLine struct {
	Kind   engi.RunUpdateKind `json:"k"`
	Step   int                `json:"s,omitempty"`
	Time   int64              `json:"t"` // unix milliseconds
	Text   string             `json:"x,omitempty"`
	Stream engi.Stream        `json:"o,omitempty"`
	Call   *engi.ToolCall     `json:"c,omitempty"`
	Result *engi.ToolResult   `json:"r,omitempty"`
	Object json.RawMessage    `json:"j,omitempty"`
}

func (r *Runner) eventFile(id engi.RunID) string { return filepath.Join(r.opt.Dir, string(id)) }

// emit appends an event of the step in progress. It is safe for concurrent use.
func (a *activeRun) emit(e engi.RunUpdate) {
	a.emitMu.Lock()
	defer a.emitMu.Unlock()
	if a.events.Len() > maxEventFile && (e.Kind == engi.RunOutput || e.Kind == engi.RunPartial) {
		return
	}
	step := a.rec.Steps + 1
	if e.Kind == engi.RunEnd {
		step = a.rec.Steps
	}
	raw, err := json.Marshal(eventLine{Kind: e.Kind, Step: step, Time: time.Now().UnixMilli(), Text: e.Text, Stream: e.Stream, Call: e.Call, Result: e.Result, Object: e.Object})
	if err == nil {
		err = a.events.Append(engi.Stdout, append(raw, '\n'))
	}
	if err != nil {
		a.runner.opt.Log.ErrorContext(a.ctx, "append an event of a run", "run", a.rec.ID, "error", err)
	}
}

// emitMissing emits the events that a crash has prevented: results that were stored
// but not emitted, and the restart of the step in progress.
func (a *activeRun) emitMissing() error {
	emitted := map[string]bool{}
	log, err := outputlog.Open(a.runner.eventFile(a.rec.ID))
	if err != nil {
		return err
	}
	defer log.Close()
	for e, err := range readEvents(context.Background(), log.Read(0), 0) {
		if err != nil {
			return err
		}
		if e.Kind == engi.RunResult && e.Call != nil {
			emitted[e.Call.ID] = true
		}
	}
	if n := len(a.messages); n > 0 && a.messages[n-1].Role == engi.RoleTool {
		for _, r := range a.messages[n-1].Results {
			if !emitted[r.Call] {
				a.emit(engi.RunUpdate{Kind: engi.RunResult, Call: &engi.ToolCall{ID: r.Call, Name: r.Name}, Result: &r})
			}
		}
	}
	a.emit(engi.RunUpdate{Kind: engi.RunReset})
	return nil
}

// readEvents yields the events that r returns, which starts at offset after,
// and closes r.
func readEvents(ctx context.Context, r *outputlog.Reader, after int64) iter.Seq2[engi.RunUpdate, error] {
	return func(yield func(engi.RunUpdate, error) bool) {
		defer r.Close()
		var buf []byte // ends with an incomplete line
		for {
			c, err := r.Next(ctx)
			if err == io.EOF || engi.Is(err, engi.Invalid) { // Invalid: after is beyond the end
				return
			}
			if err != nil {
				yield(engi.RunUpdate{}, err)
				return
			}
			buf = append(buf, c.Data...)
			for {
				raw, rest, complete := bytes.Cut(buf, []byte("\n"))
				if !complete {
					break
				}
				after += int64(len(raw)) + 1
				buf = rest
				var x eventLine
				if err := json.Unmarshal(raw, &x); err != nil {
					continue // the caller's after was within a line, so it is not the Seq of an event
				}
				if !yield(engi.RunUpdate{
					Seq: after, Time: time.UnixMilli(x.Time).UTC(), Kind: x.Kind, Step: x.Step, Text: x.Text, Stream: x.Stream,
					Call: x.Call, Result: x.Result, Object: x.Object,
				}, nil) {
					return
				}
			}
		}
	}
}

// Watch implements [engi.Agents].
func (r *Runner) Watch(ctx context.Context, viewer engi.Viewer, id engi.RunID, seq int64) iter.Seq2[engi.RunUpdate, error] {
	return func(yield func(engi.RunUpdate, error) bool) {
		rec, err := r.opt.Store.Get(ctx, viewer, id)
		if err != nil {
			yield(engi.RunUpdate{}, err)
			return
		}
		events, err := r.eventsAfter(ctx, rec, max(seq, 0))
		if err != nil {
			yield(engi.RunUpdate{}, err)
			return
		}
		var end int64
		for e, err := range events {
			if err != nil {
				yield(e, err)
				return
			}
			if seq = e.Seq; e.Kind == engi.RunEnd {
				end = e.Seq
				break
			}
			if !yield(e, nil) {
				return
			}
		}
		if rec, err = r.opt.Store.Get(ctx, viewer, id); err == nil && rec.State == engi.RunRunning {
			err = errStopping
		}
		if err != nil {
			yield(engi.RunUpdate{}, err)
			return
		}
		if end == 0 && seq < rec.Seq { // a crash has prevented the end event
			end = rec.Seq
		}
		if end > 0 {
			yield(engi.RunUpdate{Seq: end, Time: rec.Ended, Kind: engi.RunEnd, Step: rec.Steps, Run: &rec.Run}, nil)
		}
	}
}

// eventsAfter returns the events of a run after seq; for an active run, also its future
// events.
func (r *Runner) eventsAfter(ctx context.Context, rec Record, seq int64) (iter.Seq2[engi.RunUpdate, error], error) {
	r.mu.Lock()
	a := r.active[rec.ID]
	r.mu.Unlock()
	if a != nil {
		if reader := a.events.Read(seq); reader != nil {
			return readEvents(ctx, reader, seq), nil
		}
	}
	if _, err := os.Stat(r.eventFile(rec.ID)); errors.Is(err, fs.ErrNotExist) {
		return r.reconstructEvents(ctx, rec, seq)
	}
	log, err := outputlog.Open(r.eventFile(rec.ID))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return readEvents(ctx, log.Read(seq), seq), nil
}

// reconstructEvents returns events built from a run's messages.
func (r *Runner) reconstructEvents(ctx context.Context, rec Record, seq int64) (iter.Seq2[engi.RunUpdate, error], error) {
	messages, err := r.opt.Store.Messages(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	first := len(messages)
	for first > 0 && messages[first-1].Role != engi.RoleUser {
		first--
	}
	var all []engi.RunUpdate
	add := func(e engi.RunUpdate) { all = append(all, e) }
	step := 0
	for _, m := range messages[first:] {
		if m.Role == engi.RoleAssistant {
			step++
			if m.Thought != "" {
				add(engi.RunUpdate{Kind: engi.RunThought, Step: step, Text: m.Thought})
			}
			if m.Text != "" {
				add(engi.RunUpdate{Kind: engi.RunText, Step: step, Text: m.Text})
			}
			for _, c := range m.Calls {
				add(engi.RunUpdate{Kind: engi.RunCall, Step: step, Call: &c})
			}
		}
		for _, result := range m.Results {
			add(engi.RunUpdate{Kind: engi.RunResult, Step: step, Call: &engi.ToolCall{ID: result.Call, Name: result.Name}, Result: &result})
		}
	}
	return func(yield func(engi.RunUpdate, error) bool) {
		for i, e := range all {
			// The original events were more and smaller. The last of these get
			// the last of those numbers, so that a reader who has seen
			// everything sees nothing twice.
			e.Seq, e.Time = max(rec.Seq-int64(len(all)-i), int64(i+1)), rec.Created
			if e.Seq > seq && !yield(e, nil) {
				return
			}
		}
	}, nil
}

// removeOldEvents deletes the event files of runs that ended more than keepEventFile ago.
func (r *Runner) removeOldEvents() error {
	files, err := os.ReadDir(r.opt.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	for _, f := range files {
		r.mu.Lock()
		a := r.active[engi.RunID(f.Name())]
		r.mu.Unlock()
		info, err := f.Info()
		if a != nil || err != nil || time.Since(info.ModTime()) < keepEventFile {
			continue
		}
		if err := os.Remove(r.eventFile(engi.RunID(f.Name()))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return engi.Errorf(engi.Internal, "%v", err)
		}
	}
	return nil
}
