package dialect

import (
	"fmt"
	"net/http"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/server/rest"
)

// A Stream answers with server-sent events in another server's format.
type Stream struct {
	// Failures says that the format has its own form for failed runs, other than the
	// form of errors. Follow then returns failed runs.
	Failures bool

	x      *rest.Exchange
	agents engi.Agents
	rc     *http.ResponseController
}

// NewStream starts the answer of a request.
func NewStream(x *rest.Exchange, agents engi.Agents) *Stream {
	h := x.Writer().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	return &Stream{x: x, agents: agents, rc: http.NewResponseController(x.Writer())}
}

// Write writes text unchanged. It returns false if the client has left.
func (s *Stream) Write(text string) bool {
	_, err := httpio.DeadlineWriter{W: s.x.Writer()}.Write([]byte(text))
	return err == nil && s.rc.Flush() == nil
}

// Send writes an event; formats without names of events pass an empty name. It returns false if the
// client has left.
func (s *Stream) Send(name string, v any) bool {
	raw, err := httpio.Marshal(v)
	if err != nil {
		s.x.Report(err)
		return false
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	return s.Write(fmt.Sprintf("%sdata: %s\n\n", name, raw))
}

// Follow calls f with the updates of a run until the run ends or f returns false.
// It sends an error in the event that form returns.
func (s *Stream) Follow(run engi.Run, f func(engi.RunUpdate) bool, form func(v1.Problem) (name string, v any)) (end engi.Run, ok bool) {
	ctx, cancel := s.x.Waiting()
	source := httpio.Pull(s.agents.Watch(ctx, run.Owner.Viewer(), run.ID, 0))
	defer source.Stop()
	defer cancel()
	defer s.x.Left() // records in the log that the client left
	failed := func(err error) {
		if p, ok := s.x.Problem(err); ok {
			s.Send(form(p))
		}
	}
	beat := time.NewTicker(s.x.Heartbeat())
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if !s.Write(": alive\n\n") {
				return end, false
			}
		case e, more := <-source.Events:
			if !more {
				return end, false
			}
			if e.Err != nil {
				failed(e.Err)
				return end, false
			}
			event := e.Event
			source.Release()
			if event.Kind == engi.RunEnd {
				if event.Run.State == engi.RunFailed && !s.Failures {
					failed(event.Run.Error)
					return end, false
				}
				return *event.Run, true
			}
			if !f(event) {
				return end, false
			}
		}
	}
}
