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
	messages []engi.Message // images of results are in user messages; arguments are objects; signed by this model or not at all
	turn     int            // index of the first message after the user's last, or one of a result's images
	tools    []toolSpec
	object   map[string]any // JSON schema of the answer, for formats that have a place for it; nil for prose
}

// A toolSpec is a tool whose schema all formats understand.
type toolSpec struct {
	name, description string
	input             map[string]any
}

// newCall prepares a request to a model, whose name is without the provider,
// and with it in signer.
func newCall(model, signer string, q Request) (*call, error) {
	c := &call{model: model, q: q}
	for i, m := range q.Messages {
		switch m.Role {
		case engi.RoleUser:
			c.messages = append(c.messages, m)
			c.turn = len(c.messages)
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
			if !signedBy(signer, m) {
				m.Signed = nil
			}
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

// signedBy reports whether the model wrote m, and m still has exactly the calls
// that it had then.
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

// parts returns a message of the model in pieces: those that were signed, or
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
	out   func(Delta) error // nil if nobody follows
	alive func()            // called with each event of a stream
	ids   string            // prefix of call IDs if the provider gives none

	parts   []*partSoFar
	keep    bool // thoughts go back to the provider although nothing is signed
	size    int
	tokens  engi.Tokens
	gemini  geminiUsage // that tokens were made of
	stop    Stop        // empty until the provider says why it ends
	pending string      // becomes reason when the end comes
	reason  string      // the provider's words for stop
	refused bool        // the model says that it will not do this
	done    bool        // nothing more will come
	unsaid  bool        // a stream may end without the reason, if its calls are complete
}

// A partSoFar is a part of an answer that is being read.
type partSoFar struct {
	kind            partKind
	closed          bool            // what follows is another part
	text            strings.Builder // for calls, the arguments
	data, signature string
	detail          *openaiDetail // that data is made of in the end; nil if it is not

	number   int // of a call, by the provider
	id, name string
}

type partKind int

const (
	textPart partKind = iota
	thoughtPart
	callPart
)

const (
	maxAnswer = 8 << 20 // bytes of all that is in it
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

// open returns the last part if it is of this kind and nothing has ended it,
// else a new one.
func (a *answer) open(kind partKind) (*partSoFar, error) {
	for _, p := range slices.Backward(a.parts) {
		if p.detail != nil && kind == thoughtPart {
			continue // the same thought in another form, piece by piece
		}
		if p.kind == kind && !p.closed && p.signature == "" && p.data == "" && p.detail == nil {
			return p, nil
		}
		break
	}
	p := &partSoFar{kind: kind}
	return p, a.add(p)
}

// closePart has what follows begin a part of its own.
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

// sign ends the last part, which must be of this kind, with a signature of the
// provider's. One of nothing is that of an empty part.
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

// seal ends a thought with the form of it that only the provider can read.
func (a *answer) seal(data, signature string) error {
	p, err := a.open(thoughtPart)
	if err != nil {
		return err
	}
	p.data, p.signature = data, signature
	return a.count(len(data) + len(signature))
}

// call adds to the call of a tool that has the provider's number; the first
// time, it begins one.
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

// begin begins a call. If the number is taken, what has it from now on is the
// new one.
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

// end takes over why the answer ended, in the provider's words.
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
		// The arguments may lack their end: nobody may act on them.
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

// stopOf translates a provider's reason; one it does not know is StopOther.
func stopOf(reasons map[string]Stop, reason string) Stop {
	return cmp.Or(reasons[reason], StopOther)
}
