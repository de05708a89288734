// Package pagestream translates the updates of a session's page into the
// protocols of clients: engi's own, the AI SDK's UI message stream, AG-UI,
// json-render and A2UI. It keeps only the state that a protocol needs, and it
// neither reads requests nor writes responses: package rest does.
package pagestream

import (
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A Format is one protocol.
type Format struct {
	Forms  []httpio.Format // possible forms, the default first
	Header [2]string       // name and value of an additional header of responses; empty for none
	State  bool            // a resuming client needs the page of that time
	Run    bool            // a stream has one run, and ends with it
	Replay bool            // a client that resumes a run gets it from the run's beginning, or nothing if no run is active
	New    func(Start) Encoder
}

// Start describes the start of a stream.
type Start struct {
	Session engi.SessionID
	Resumed bool // the client has seen the updates before
	Answer  bool // a run follows the first update
	Idle    bool // no run follows
}

// An Encoder translates updates in their order. Only one goroutine may use it.
type Encoder interface {
	// Encode returns the events for an update. If last is true, the stream ends after them.
	Encode(u engi.PageUpdate) (events []Event, last bool)
	// Fail returns the event for an error that ends the stream.
	Fail(p *v1.Problem) Event
}

// An Event is one item on the wire.
type Event struct {
	Name string // name of the event in SSE
	Data any    // value that is sent as JSON
	Text string // text that is sent instead of Data
}

// Formats returns all protocols by name.
func Formats() map[string]Format {
	sse, both := []httpio.Format{httpio.SSE}, []httpio.Format{httpio.SSE, httpio.NDJSON}
	return map[string]Format{
		"engi":        {Forms: both, New: func(Start) Encoder { return engiEncoder{} }},
		"ai-sdk":      {Forms: sse, Run: true, Replay: true, Header: [2]string{"X-Vercel-Ai-Ui-Message-Stream", "v1"}, New: newAISDK},
		"ag-ui":       {Forms: sse, Run: true, New: newAGUI},
		"json-render": {Forms: []httpio.Format{httpio.NDJSON, httpio.SSE}, State: true, New: newJSONRender},
		"a2ui":        {Forms: []httpio.Format{httpio.NDJSON, httpio.SSE}, State: true, New: newA2UI},
	}
}
