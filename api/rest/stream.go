package rest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

// stream answers with the events of a run from an offset on. A caller that
// leaves changes nothing for the run.
func (s *server) stream(w http.ResponseWriter, r *http.Request, f httpio.Format, id engi.ExecutionID, from int64) error {
	ctx, cancel := s.waiting(r)
	viewer := callOf(r.Context()).viewer()
	source := httpio.Pull(s.executions.Watch(ctx, viewer, id, from))
	defer source.Stop()
	defer cancel()

	out := httpio.NewEventWriter(w, f)
	if err := out.Begin(); err != nil {
		return nil // the caller has left
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	seam := httpio.NewJoiner(from)
	for {
		select {
		case <-beat.C:
			if out.Beat(v1.Event{Type: v1.EventHeartbeat, Offset: seam.Resume()}, s.beat) != nil {
				s.gone(r)
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return nil
			}
			last, err := s.relay(r, out, seam, e)
			source.Release()
			if err != nil {
				s.gone(r)
				return nil
			}
			if last {
				return nil
			}
		}
	}
}

// relay sends one event of a run and reports whether it was the last. Its
// error means that the caller is not there.
func (s *server) relay(r *http.Request, out *httpio.EventWriter, seam *httpio.Joiner, e httpio.Pulled[engi.ExecutionEvent]) (last bool, err error) {
	if e.Err != nil {
		if s.gone(r) {
			return true, nil
		}
		err := e.Err
		if s.leaving() {
			err = errLeaving
		}
		s.logInternal(r, err)
		p := httpio.Describe(err, callOf(r.Context()).id)
		return true, sendEvent(out, v1.Event{Type: v1.EventError, Offset: seam.Resume(), Error: &p})
	}
	switch e.Event.Type {
	case engi.EventStdout, engi.EventStderr:
		// Pieces bound the memory of one event, whatever Watch yields.
		for offset, data := e.Event.Offset, e.Event.Data; len(data) > 0; {
			n := min(len(data), httpio.ChunkSize)
			if piece, ok := seam.Add(string(e.Event.Type), offset, data[:n]); ok {
				if err := sendEvent(out, eventOf(piece)); err != nil {
					return false, err
				}
			}
			offset, data = offset+int64(n), data[n:]
		}
		return false, nil
	case engi.EventResult:
		for _, rest := range seam.Flush() {
			if err := sendEvent(out, eventOf(rest)); err != nil {
				return false, err
			}
		}
		last = true
	}
	event := v1.Event{Type: string(e.Event.Type), Offset: seam.Resume()}
	if x := e.Event.Execution; x != nil {
		viewer := callOf(r.Context()).viewer()
		if last {
			// The event's record has no output, since that came before; a
			// result has all of it.
			if whole, err := s.executions.Get(r.Context(), viewer, x.ID); err == nil {
				x = &whole
			}
		}
		wire := executionOf(*x)
		if last {
			s.inline(r.Context(), viewer, &wire, *x)
		} else { // the record may be of today; the event is of the beginning
			wire.State, wire.EndedAt, wire.Result = v1.Running, nil, nil
		}
		event.Execution = &wire
	}
	return last, sendEvent(out, event)
}

func sendEvent(out *httpio.EventWriter, e v1.Event) error {
	return out.Send(e.Type, strconv.FormatInt(e.Offset, 10), e)
}

func eventOf(p httpio.Chunk) v1.Event {
	return v1.Event{Type: p.Stream, Offset: p.Offset, Data: p.Text, DataBase64: p.Bytes}
}
