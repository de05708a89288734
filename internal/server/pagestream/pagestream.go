// Package pagestream translates what happens on the page of a session into the
// protocols that clients read: engi's own, the AI SDK's UI message stream, AG-UI,
// json-render and A2UI. It keeps nothing but what a protocol must know of its own past, and it
// neither reads requests nor writes responses: package rest does.
package pagestream

import (
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A Format is one protocol.
type Format struct {
	Forms  []httpio.Format // that it can be sent in, the usual one first
	Header [2]string       // name and value that responses have; empty for none
	State  bool            // who comes back needs the page as it was then
	Run    bool            // a stream has one run, and ends with it
	Replay bool            // who comes back to a run gets it from its beginning, and nothing if there is none
	New    func(Start) Encoder
}

// Start is where a stream begins.
type Start struct {
	Session engi.SessionID
	Resumed bool // the client has seen what came before
	Answer  bool // a run follows the first update
	Idle    bool // nothing does
}

// An Encoder translates updates in their order. Only one goroutine may use it.
type Encoder interface {
	// Encode returns the events for an update. After the last the stream ends.
	Encode(u engi.PageUpdate) (events []Event, last bool)
	// Fail returns the event for an error that ends the stream.
	Fail(p *v1.Problem) Event
}

// An Event is one item on the wire.
type Event struct {
	Name string // in SSE
	Data any    // becomes JSON
	Text string // instead of Data
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
