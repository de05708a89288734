package llm

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/engi-dev/engi"
)

// A format is a vendor's wire format: how it writes requests and answers. It
// has no state.
type format interface {
	// request returns the path below the provider's URL and the body.
	request(c *call, stream bool) (path string, body any)
	// authorize adds the key, and what every request carries.
	authorize(h http.Header, key string)
	// whole reads an answer that came in one piece, event one event of a
	// stream. They report Unavailable for what cannot be read.
	whole(raw []byte, a *answer) error
	event(raw []byte, a *answer) error
}

// A call is a request made ready for formats.
type call struct {
	model    string // without the provider
	q        Request
	messages []engi.Message // images of results are in user messages; arguments are objects
	tools    []toolSpec
	object   map[string]any // JSON schema of the answer, for formats that have a place for it; nil for prose
}

// A toolSpec is a tool whose schema all formats understand.
type toolSpec struct {
	name, description string
	input             map[string]any
}

func newCall(model string, q Request) (*call, error) {
	c := &call{model: model, q: q}
	for i, m := range q.Messages {
		switch m.Role {
		case engi.RoleUser:
			c.messages = append(c.messages, m)
		case engi.RoleAssistant:
			if m.Text == "" && len(m.Calls) == 0 {
				continue // nothing a provider would take
			}
			calls := make([]engi.ToolCall, len(m.Calls))
			for i, t := range m.Calls {
				t.Arguments = object(t.Arguments)
				calls[i] = t
			}
			m.Calls = calls
			c.messages = append(c.messages, m)
		case engi.RoleTool:
			if len(m.Results) > 0 {
				c.messages = append(c.messages, m)
			}
			// Half of the formats have no place for images among results, and
			// none allows anything between the results of one answer.
			var images []engi.Image
			for _, r := range m.Results {
				images = append(images, r.Images...)
			}
			if len(images) > 0 {
				c.messages = append(c.messages, engi.Message{
					Role: engi.RoleUser, Text: "(The images of the results above, in their order.)", Images: images,
				})
			}
		default:
			return nil, engi.Errorf(engi.Invalid, "message %d has the role %.40q, which does not exist", i, m.Role).WithRemedy("use user, assistant or tool")
		}
	}
	for _, t := range q.Tools {
		input, err := plain(t.Schema)
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "describe tool %s: %w", t.Name, err)
		}
		c.tools = append(c.tools, toolSpec{t.Name, t.Description, input})
	}
	return c, nil
}

// object returns arguments as providers accept them back: they would refuse
// the conversation for ever if a model once wrote something else.
func object(arguments string) string {
	var o map[string]any
	if json.Unmarshal([]byte(arguments), &o) != nil || o == nil {
		return "{}"
	}
	return arguments
}

// An answer collects what a format reads, and passes it on to out.
type answer struct {
	source
	out func(Delta) error // nil if nobody follows
	ids string            // prefix of call IDs if the provider gives none

	text, thought strings.Builder
	calls         []*callSoFar
	size          int
	tokens        engi.Tokens
	stop          Stop // empty until the provider says why it ends
	pending       Stop // becomes stop when the end comes
	done          bool // nothing more will come
	unsaid        bool // a stream may end without the reason, if its calls are complete
}

type callSoFar struct {
	number    int // of the provider
	id, name  string
	arguments strings.Builder
}

const (
	maxAnswer = 8 << 20 // bytes of text and arguments
	maxCalls  = 1000
)

func tooLong(model string) error {
	return engi.Errorf(engi.Unavailable, "%s wrote more than %d bytes", model, maxAnswer)
}

func (a *answer) tell(d Delta) error {
	if a.size += len(d.Text) + len(d.Thought) + len(d.Arguments); a.size > maxAnswer {
		return tooLong(a.name)
	}
	if a.out == nil || d == (Delta{}) {
		return nil
	}
	return a.out(d)
}

func (a *answer) say(text string) error {
	a.text.WriteString(text)
	return a.tell(Delta{Text: text})
}

func (a *answer) think(text string) error {
	a.thought.WriteString(text)
	return a.tell(Delta{Thought: text})
}

// call adds to the call of a tool that has the provider's number; the first
// time, it begins one.
func (a *answer) call(number int, id, name, arguments string) error {
	c := a.find(number)
	if c == nil {
		if len(a.calls) == maxCalls {
			return tooLong(a.name)
		}
		c = &callSoFar{number: number, id: cmp.Or(id, a.ids+strconv.Itoa(len(a.calls))), name: name}
		a.calls = append(a.calls, c)
		if err := a.tell(Delta{Call: c.id, Name: name}); err != nil {
			return err
		}
	}
	if arguments == "" {
		return nil
	}
	c.arguments.WriteString(arguments)
	return a.tell(Delta{Call: c.id, Arguments: arguments})
}

func (a *answer) find(number int) *callSoFar {
	for _, c := range a.calls {
		if c.number == number {
			return c
		}
	}
	return nil
}

// reply returns the complete answer.
func (a *answer) reply() (Reply, error) {
	r := Reply{Stop: a.stop, Tokens: a.tokens, Message: engi.Message{Text: a.text.String(), Thought: a.thought.String()}}
	complete := len(a.calls) > 0
	for _, c := range a.calls {
		arguments := c.arguments.String()
		complete = complete && json.Valid([]byte(arguments))
		r.Message.Calls = append(r.Message.Calls, engi.ToolCall{ID: c.id, Name: c.name, Arguments: cmp.Or(arguments, "{}")})
	}
	switch r.Stop {
	case "":
		if !a.unsaid || !complete {
			return Reply{}, a.brokenOff()
		}
		r.Stop = StopTools
	case StopLength, StopFilter, stopFailed:
		// The arguments may lack their end: nobody may act on them.
		r.Message.Calls = nil
		if r.Stop == stopFailed {
			r.Stop = StopOther
		}
	default:
		if len(a.calls) > 0 {
			r.Stop = StopTools
		}
	}
	return r, nil
}

// stopFailed is the stop of an answer that the provider could not complete.
const stopFailed Stop = "failed"

// stopOf translates a provider's reason; one it does not know is StopOther.
func stopOf(reasons map[string]Stop, reason string) Stop {
	return cmp.Or(reasons[reason], StopOther)
}
