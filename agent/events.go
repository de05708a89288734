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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/outputlog"
)

// What is told of a run goes to an output log in a file, one line of JSON for
// each event. An event's Seq is the offset behind its line, so that a reader
// finds its place again after a restart, and no number is used twice.

const (
	// maxStream bounds what is told of a run, in bytes; beyond, output of tools
	// and partial objects are left out.
	maxEventFile = 64 << 20
	// keepStream is how long all that was told is there after the end of a run;
	// then only what is in its messages.
	keepEventFile = 24 * time.Hour
)

// A line is an event in the log.
type eventLine struct {
	Kind   engi.RunEventKind `json:"k"`
	Step   int               `json:"s,omitempty"`
	Time   int64             `json:"t"` // unix milliseconds
	Text   string            `json:"x,omitempty"`
	Stream engi.Stream       `json:"o,omitempty"`
	Call   *engi.ToolCall    `json:"c,omitempty"`
	Result *engi.ToolResult  `json:"r,omitempty"`
	Object json.RawMessage   `json:"j,omitempty"`
}

func (r *Runner) eventFile(id engi.RunID) string { return filepath.Join(r.opt.Dir, string(id)) }

// tell adds an event.
func (a *activeRun) emit(e engi.RunEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.events.Len() > maxEventFile && (e.Kind == engi.RunOutput || e.Kind == engi.RunPartial) {
		return
	}
	raw, err := json.Marshal(eventLine{e.Kind, a.rec.Steps + 1, time.Now().UnixMilli(), e.Text, e.Stream, e.Call, e.Result, e.Object})
	if err == nil {
		err = a.events.Append(engi.Stdout, append(raw, '\n'))
	}
	if err != nil {
		a.runner.opt.Log.ErrorContext(a.ctx, "tell of a run", "run", a.rec.ID, "error", err)
	}
}

// retell tells what a crash has kept from being told: results that are in the
// messages, and that the step under way begins anew.
func (a *activeRun) emitMissing() error {
	told := map[string]bool{}
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
			told[e.Call.ID] = true
		}
	}
	if n := len(a.messages); n > 0 && a.messages[n-1].Role == engi.RoleTool {
		for _, r := range a.messages[n-1].Results {
			if !told[r.Call] {
				a.emit(engi.RunEvent{Kind: engi.RunResult, Call: &engi.ToolCall{ID: r.Call, Name: r.Name}, Result: &r})
			}
		}
	}
	a.emit(engi.RunEvent{Kind: engi.RunReset})
	return nil
}

// events yields the events in a log from offset after on, and closes r.
func readEvents(ctx context.Context, r *outputlog.Reader, after int64) iter.Seq2[engi.RunEvent, error] {
	return func(yield func(engi.RunEvent, error) bool) {
		defer r.Close()
		var rest []byte // the beginning of a line
		for {
			c, err := r.Next(ctx)
			if err == io.EOF || engi.KindOf(err) == engi.Invalid { // Invalid is behind the end
				return
			}
			if err != nil {
				yield(engi.RunEvent{}, err)
				return
			}
			rest = append(rest, c.Data...)
			for {
				raw, more, whole := bytes.Cut(rest, []byte("\n"))
				if !whole {
					break
				}
				after += int64(len(raw)) + 1
				rest = more
				var x eventLine
				if err := json.Unmarshal(raw, &x); err != nil {
					continue // after is in the middle of a line: that was no Seq of ours
				}
				if !yield(engi.RunEvent{
					Seq: after, Time: time.UnixMilli(x.Time).UTC(), Kind: x.Kind, Step: x.Step, Text: x.Text, Stream: x.Stream,
					Call: x.Call, Result: x.Result, Object: x.Object,
				}, nil) {
					return
				}
			}
		}
	}
}

// Watch yields what happens in a run.
func (r *Runner) Watch(ctx context.Context, owner engi.Owner, id engi.RunID, seq int64) iter.Seq2[engi.RunEvent, error] {
	return func(yield func(engi.RunEvent, error) bool) {
		rec, err := r.opt.Store.Get(ctx, owner, id)
		if err != nil {
			yield(engi.RunEvent{}, err)
			return
		}
		told, err := r.eventsAfter(ctx, rec, max(seq, 0))
		if err != nil {
			yield(engi.RunEvent{}, err)
			return
		}
		var end int64
		for e, err := range told {
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
		if rec, err = r.opt.Store.Get(ctx, owner, id); err == nil && rec.State == engi.RunRunning {
			err = errStopping
		}
		if err != nil {
			yield(engi.RunEvent{}, err)
			return
		}
		if end == 0 && seq < rec.Seq { // a crash has kept the end from being told
			end = rec.Seq
		}
		if end > 0 {
			yield(engi.RunEvent{Seq: end, Time: rec.Ended, Kind: engi.RunEnd, Step: rec.Steps, Run: &rec.Run}, nil)
		}
	}
}

// told returns what was told of a run after seq, and, while it goes on, what is.
func (r *Runner) eventsAfter(ctx context.Context, rec Record, seq int64) (iter.Seq2[engi.RunEvent, error], error) {
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

// past tells of a run from what was said in it.
func (r *Runner) reconstructEvents(ctx context.Context, rec Record, seq int64) (iter.Seq2[engi.RunEvent, error], error) {
	messages, err := r.opt.Store.Messages(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	first := len(messages)
	for first > 0 && messages[first-1].Role != engi.RoleUser {
		first--
	}
	var all []engi.RunEvent
	add := func(e engi.RunEvent) { all = append(all, e) }
	step := 0
	for _, m := range messages[first:] {
		if m.Role == engi.RoleAssistant {
			step++
			if m.Thought != "" {
				add(engi.RunEvent{Kind: engi.RunThought, Step: step, Text: m.Thought})
			}
			if m.Text != "" {
				add(engi.RunEvent{Kind: engi.RunText, Step: step, Text: m.Text})
			}
			for _, c := range m.Calls {
				add(engi.RunEvent{Kind: engi.RunCall, Step: step, Call: &c})
			}
		}
		for _, result := range m.Results {
			add(engi.RunEvent{Kind: engi.RunResult, Step: step, Call: &engi.ToolCall{ID: result.Call, Name: result.Name}, Result: &result})
		}
	}
	return func(yield func(engi.RunEvent, error) bool) {
		for i, e := range all {
			// What was told live had more and smaller events: the last numbers
			// are the same, and who has seen everything sees nothing twice.
			e.Seq, e.Time = max(rec.Seq-int64(len(all)-i), int64(i+1)), rec.Created
			if e.Seq > seq && !yield(e, nil) {
				return
			}
		}
	}, nil
}

// forgetStreams removes what was told of runs that ended a while ago.
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
