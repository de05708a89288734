package pagestream

import (
	"encoding/json"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// engiEncoder sends updates unchanged, in the types of the API.
type engiEncoder struct{}

// Encode implements Encoder.
func (engiEncoder) Encode(u engi.PageUpdate) ([]Event, bool) {
	out := v1.PageUpdate{Type: string(u.Kind), Seq: u.Seq, Time: u.Time.UTC(), Run: string(u.Run), Action: u.Action, Partial: u.Partial, Text: u.Text, State: string(u.Ended)}
	switch u.Kind {
	case engi.PageReplaced:
		out.HTML = &u.HTML
	case engi.PageStats:
		out.Stats = u.Data
	default:
		out.Data = u.Data
	}
	for _, p := range u.Patches {
		out.Patches = append(out.Patches, patchOf(p))
	}
	if u.Call != nil {
		out.Call = new(v1.ToolCall(*u.Call))
	}
	if r := u.Result; r != nil {
		out.Result = &v1.ToolResult{CallID: r.Call, Name: r.Name, Text: r.Text, Failed: r.Failed}
	}
	return []Event{{Name: out.Type, Data: out}}, false
}

// Fail implements Encoder.
func (engiEncoder) Fail(p *v1.Problem) Event {
	return Event{Name: v1.EventError, Data: v1.PageUpdate{Type: v1.EventError, Error: p}}
}

func patchOf(p engi.PagePatch) v1.PagePatch {
	out := v1.PagePatch{
		Selector: p.Selector, Text: p.Text, HTML: p.HTML, Attr: p.Attr, Class: p.Class, Style: p.Style, Value: p.Value,
		Append: p.Append, Prepend: p.Prepend, Before: p.Before, After: p.After, Replace: p.Replace, Remove: p.Remove,
	}
	if p.Move != nil {
		out.Move = new(v1.PageMove(*p.Move))
	}
	return out
}

// object returns raw as a JSON value, or as text if it is not valid JSON.
func object(raw string) any {
	if json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	return raw
}
