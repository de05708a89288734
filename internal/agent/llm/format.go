package llm

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A format is a vendor's wire format for requests and answers. It
// has no state.
type format interface {
	// request returns the path below the provider's URL and the body.
	request(c *call, stream bool) (path string, body any)
	// authorize sets the header for the key, and headers that every request has.
	authorize(h http.Header, key string)
	// whole reads an answer that was not streamed; event reads one event of a
	// stream. They report Unavailable for invalid data.
	whole(raw []byte, a *answer) error
	event(raw []byte, a *answer) error
}

// A call is a request prepared for formats.
type call struct {
	model    string // name of the model without the provider
	q        Request
	messages []engi.Message // images of results are in user messages; arguments are objects; signatures are those of this model
	turn     int            // index of the first message after the user's last, or one of a result's images
	tools    []toolSpec
	object   map[string]any // JSON schema of the answer, for formats with a field for it; nil for prose
}

// A toolSpec is a tool with a schema that all formats support.
type toolSpec struct {
	name, description string
	input             map[string]any
}

// newCall prepares a request. model is the model's name without the provider,
// and signer is the name with the provider.
func newCall(model, signer string, q Request) (*call, error) {
	c := &call{model: model, q: q}
	for i, m := range q.Messages {
		switch m.Role {
		case engi.RoleUser:
			c.messages = append(c.messages, m)
			c.turn = len(c.messages)
		case engi.RoleAssistant:
			if m.Text == "" && len(m.Calls) == 0 {
				continue // the message is empty, which providers refuse
			}
			calls := make([]engi.ToolCall, len(m.Calls))
			for i, t := range m.Calls {
				t.Arguments = object(t.Arguments)
				calls[i] = t
			}
			m.Calls = calls
			if !signedBy(signer, m) {
				m.Signed = nil
			}
			c.messages = append(c.messages, m)
		case engi.RoleTool:
			if len(m.Results) > 0 {
				c.messages = append(c.messages, m)
			}
			// Half of the formats do not support images in results, and
			// none allows a message between the results of one answer.
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

// signedBy reports whether the model wrote m, and m still has exactly its original
// calls.
func signedBy(model string, m engi.Message) bool {
	if m.Signed == nil || m.Signed.Model != model {
		return false
	}
	calls := m.Calls
	for _, p := range m.Signed.Parts {
		if p.Call == "" {
			continue
		}
		if len(calls) == 0 || calls[0].ID != p.Call {
			return false
		}
		calls = calls[1:]
	}
	return len(calls) == 0
}

// parts returns the parts of a model's message: its signed parts, or else
// its text and its calls.
func parts(m engi.Message) (all []engi.MessagePart) {
	if m.Signed != nil {
		return m.Signed.Parts
	}
	if m.Text != "" {
		all = append(all, engi.MessagePart{Text: m.Text})
	}
	for _, c := range m.Calls {
		all = append(all, engi.MessagePart{Call: c.ID})
	}
	return all
}

// callOf returns the call of a part.
func callOf(m engi.Message, id string) engi.ToolCall {
	return m.Calls[slices.IndexFunc(m.Calls, func(c engi.ToolCall) bool { return c.ID == id })]
}

// object returns arguments as providers accept them back: they would refuse
// the conversation for ever if a model once wrote invalid arguments.
func object(arguments string) string {
	var o map[string]any
	if json.Unmarshal([]byte(arguments), &o) != nil || o == nil {
		return "{}"
	}
	return arguments
}

// An answer collects the parts that a format reads, and passes them on to out.
type answer struct {
	source
	out   func(Delta) error // receives deltas; nil if the answer is not streamed
	alive func()            // called for each event of a stream
	ids   string            // prefix of call IDs if the provider sends none

	parts   []*partSoFar
	keep    bool // thoughts are sent back to the provider even without signatures
	size    int
	tokens  engi.Tokens
	gemini  geminiUsage // counts from which tokens are computed
	stop    Stop        // empty until the provider sends the reason of the end
	pending string      // becomes reason when the end is confirmed
	reason  string      // the provider's text for stop
	refused bool        // the model refuses the request
	done    bool        // the answer is complete
	unsaid  bool        // a stream may end without a reason, if its calls are complete
}

// A partSoFar is an unfinished part of an answer.
type partSoFar struct {
	kind            partKind
	closed          bool            // later content belongs to a new part
	text            strings.Builder // text; for calls, the arguments
	data, signature string
	detail          *openaiDetail // detail from which data is built at the end; nil if there is none

	number   int // the provider's number of a call
	id, name string
}

type partKind int

const (
	textPart partKind = iota
	thoughtPart
	callPart
)

const (
	maxAnswer = 8 << 20 // maximum bytes of all parts of an answer
	maxCalls  = 1000
	maxParts  = 10_000
)

func tooLong(model string) error {
	return engi.Errorf(engi.Unavailable, "%s wrote more than %d bytes", model, maxAnswer)
}

func (a *answer) tell(d Delta) error {
	if err := a.count(len(d.Text) + len(d.Thought) + len(d.Arguments)); err != nil {
		return err
	}
	if a.out == nil || d == (Delta{}) {
		return nil
	}
	return a.out(d)
}

func (a *answer) count(n int) error {
	if a.size += n; a.size > maxAnswer {
		return tooLong(a.name)
	}
	return nil
}

func (a *answer) add(p *partSoFar) error {
	if len(a.parts) == maxParts {
		return tooLong(a.name)
	}
	a.parts = append(a.parts, p)
	return nil
}

// open returns the last part if it is of the given kind and not closed,
// else a new part.
func (a *answer) open(kind partKind) (*partSoFar, error) {
	for _, p := range slices.Backward(a.parts) {
		if p.detail != nil && kind == thoughtPart {
			continue // these pieces are another form of the same thought
		}
		if p.kind == kind && !p.closed && p.signature == "" && p.data == "" && p.detail == nil {
			return p, nil
		}
		break
	}
	p := &partSoFar{kind: kind}
	return p, a.add(p)
}

// closePart closes the last part, so that later content belongs to a new one.
func (a *answer) closePart() {
	if n := len(a.parts); n > 0 {
		a.parts[n-1].closed = true
	}
}

func (a *answer) say(text string) error { return a.write(textPart, text, Delta{Text: text}) }

func (a *answer) think(text string) error { return a.write(thoughtPart, text, Delta{Thought: text}) }

func (a *answer) write(kind partKind, text string, d Delta) error {
	if text == "" {
		return nil
	}
	p, err := a.open(kind)
	if err != nil {
		return err
	}
	p.text.WriteString(text)
	return a.tell(d)
}

// sign closes the last part, which must be of the given kind, with the provider's
// signature. If there is no such part, the signature belongs to an empty part.
func (a *answer) sign(kind partKind, signature string) error {
	if signature == "" {
		return nil
	}
	p, err := a.open(kind)
	if err != nil {
		return err
	}
	p.signature = signature
	return a.count(len(signature))
}

// hide adds a thought that only the provider can read.
func (a *answer) hide(data, signature string) error {
	if err := a.add(&partSoFar{kind: thoughtPart, data: data, signature: signature}); err != nil {
		return err
	}
	return a.count(len(data) + len(signature))
}

// seal closes a thought with the form of it that only the provider can read.
func (a *answer) seal(data, signature string) error {
	p, err := a.open(thoughtPart)
	if err != nil {
		return err
	}
	p.data, p.signature = data, signature
	return a.count(len(data) + len(signature))
}

// call adds to the tool call with the provider's number. It
// starts the call the first time.
func (a *answer) call(number int, id, name, arguments string) error {
	c := a.find(number)
	if c == nil {
		var err error
		if c, err = a.begin(number, id, name); err != nil {
			return err
		}
	}
	return a.argue(c, arguments)
}

// begin starts a call. If the number is in use, it stands for the new call
// from now on.
func (a *answer) begin(number int, id, name string) (*partSoFar, error) {
	n := a.calls()
	if n == maxCalls {
		return nil, tooLong(a.name)
	}
	c := &partSoFar{kind: callPart, number: number, id: cmp.Or(id, a.ids+strconv.Itoa(n)), name: name}
	if err := a.add(c); err != nil {
		return nil, err
	}
	return c, a.tell(Delta{Call: c.id, Name: name})
}

// argue adds a piece to the arguments of a call.
func (a *answer) argue(c *partSoFar, piece string) error {
	if piece == "" {
		return nil
	}
	c.text.WriteString(piece)
	return a.tell(Delta{Call: c.id, Arguments: piece})
}

// find returns the latest call with the number; nil if there is none.
func (a *answer) find(number int) *partSoFar {
	return a.lastCall(func(c *partSoFar) bool { return c.number == number })
}

func (a *answer) lastCall(is func(*partSoFar) bool) *partSoFar {
	for _, c := range slices.Backward(a.parts) {
		if c.kind == callPart && is(c) {
			return c
		}
	}
	return nil
}

// calls returns how many calls there are.
func (a *answer) calls() (n int) {
	for _, p := range a.parts {
		if p.kind == callPart {
			n++
		}
	}
	return n
}

// end sets the reason of the answer's end, from the provider's text.
func (a *answer) end(reasons map[string]Stop, reason string) {
	a.stop, a.reason = stopOf(reasons, reason), reason
}

// reply returns the complete answer.
func (a *answer) reply() (Reply, error) {
	r := Reply{Stop: a.stop, Tokens: a.tokens}
	signed := engi.SignedParts{Parts: make([]engi.MessagePart, len(a.parts))}
	var text, thought strings.Builder
	complete, keep := true, false
	for i, p := range a.parts {
		if p.detail != nil {
			var err error
			if p.data, err = p.detail.data(); err != nil {
				return Reply{}, a.unreadable(err)
			}
		}
		part := engi.MessagePart{Data: p.data, Signature: p.signature}
		keep = keep || p.data != "" || p.signature != ""
		switch p.kind {
		case textPart:
			part.Text = p.text.String()
			text.WriteString(part.Text)
		case thoughtPart:
			part.Thought = p.text.String()
			thought.WriteString(part.Thought)
		case callPart:
			part.Call = p.id
			arguments := p.text.String()
			complete = complete && json.Valid([]byte(arguments))
			r.Message.Calls = append(r.Message.Calls, engi.ToolCall{ID: p.id, Name: p.name, Arguments: cmp.Or(arguments, "{}")})
		}
		signed.Parts[i] = part
	}
	r.Message.Text, r.Message.Thought = text.String(), thought.String()
	calls := len(r.Message.Calls)
	if keep || a.keep && calls > 0 {
		r.Message.Signed = &signed
	}
	switch r.Stop {
	case "":
		if !a.unsaid || !complete || calls == 0 {
			return Reply{}, a.brokenOff()
		}
		r.Stop = StopTools
	case StopLength, StopFilter, StopMalformed:
		// The arguments may be incomplete, so the calls must not be made.
		r.Dropped = calls
		r.Message.Calls, r.Message.Signed = nil, nil
	default:
		if calls > 0 {
			r.Stop = StopTools
		}
	}
	switch r.Stop {
	case StopFilter, StopMalformed, StopOther:
		r.Reason = a.line(a.reason)
	}
	return r, nil
}

// stopOf translates a provider's reason; an unknown reason becomes StopOther.
func stopOf(reasons map[string]Stop, reason string) Stop {
	return cmp.Or(reasons[reason], StopOther)
}
