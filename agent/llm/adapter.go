package llm

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"charm.land/fantasy"
	"charm.land/fantasy/schema"

	"github.com/engi-dev/engi"
)

// adapter is a Model over the library's.
type adapter struct {
	name  string
	model fantasy.LanguageModel
	quiet time.Duration // longest silence of an answer that is on its way

	native bool // the format has a way of its own to ask for objects that suits every schema
}

func (a *adapter) Name() string { return a.name }

func (a *adapter) Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error) {
	prompt, err := prompt(q)
	if err != nil {
		return Reply{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A provider that falls silent would hold the caller until its own
	// deadline, which may be far.
	watch := time.AfterFunc(a.quiet, func() {
		cancel(engi.Errorf(engi.Unavailable, "ask %s: nothing was heard for %v", a.name, a.quiet))
	})
	defer watch.Stop()
	alive := func() { watch.Reset(a.quiet) }

	var r Reply
	switch {
	case q.Object != nil:
		r, err = a.object(ctx, q, prompt, alive, out)
	case out == nil:
		r, err = a.whole(ctx, q, prompt)
	default:
		r, err = a.stream(ctx, q, prompt, alive, out)
	}
	if err != nil {
		if cause := context.Cause(ctx); ctx.Err() != nil && cause != context.Canceled {
			return Reply{}, classify(a.name, cause)
		}
		return Reply{}, classify(a.name, err)
	}
	r.Model = a.name
	r.Message.Role = engi.RoleAssistant
	r.Tokens.Calls = 1
	for i := range r.Message.Calls {
		if r.Message.Calls[i].ID == "" {
			r.Message.Calls[i].ID = "call_" + strconv.Itoa(len(q.Messages)) + "_" + strconv.Itoa(i)
		}
	}
	return r, nil
}

func (a *adapter) call(q Request, p fantasy.Prompt) (fantasy.Call, error) {
	c := fantasy.Call{Prompt: p, Temperature: q.Temperature}
	if q.MaxTokens > 0 {
		c.MaxOutputTokens = new(int64(q.MaxTokens))
	}
	for _, t := range q.Tools {
		input, err := plain(t.Schema)
		if err != nil {
			return c, engi.Errorf(engi.Invalid, "describe tool %s: %w", t.Name, err)
		}
		c.Tools = append(c.Tools, fantasy.FunctionTool{Name: t.Name, Description: t.Description, InputSchema: input})
	}
	if q.Choice != "" && len(c.Tools) > 0 {
		c.ToolChoice = new(fantasy.ToolChoice(q.Choice))
	}
	return c, nil
}

func (a *adapter) whole(ctx context.Context, q Request, p fantasy.Prompt) (Reply, error) {
	c, err := a.call(q, p)
	if err != nil {
		return Reply{}, err
	}
	resp, err := a.model.Generate(ctx, c)
	if err != nil {
		return Reply{}, err
	}
	r := Reply{Stop: stopOf(resp.FinishReason), Tokens: tokens(resp.Usage)}
	for _, part := range resp.Content {
		switch part.GetType() {
		case fantasy.ContentTypeText:
			if t, ok := fantasy.AsContentType[fantasy.TextContent](part); ok {
				r.Message.Text += t.Text
			}
		case fantasy.ContentTypeReasoning:
			if t, ok := fantasy.AsContentType[fantasy.ReasoningContent](part); ok {
				r.Message.Thought += t.Text
			}
		case fantasy.ContentTypeToolCall:
			if t, ok := fantasy.AsContentType[fantasy.ToolCallContent](part); ok && !t.ProviderExecuted {
				r.Message.Calls = append(r.Message.Calls, engi.ToolCall{ID: t.ToolCallID, Name: t.ToolName, Arguments: t.Input})
			}
		}
	}
	return r, nil
}

func (a *adapter) stream(ctx context.Context, q Request, p fantasy.Prompt, alive func(), out func(Delta) error) (Reply, error) {
	c, err := a.call(q, p)
	if err != nil {
		return Reply{}, err
	}
	parts, err := a.model.Stream(ctx, c)
	if err != nil {
		return Reply{}, err
	}
	var r Reply
	var text, thought strings.Builder
	var size int
	finished := false
	for part := range parts {
		alive()
		var d Delta
		switch part.Type {
		case fantasy.StreamPartTypeTextDelta:
			d.Text = part.Delta
			text.WriteString(part.Delta)
		case fantasy.StreamPartTypeReasoningDelta:
			d.Thought = part.Delta
			thought.WriteString(part.Delta)
		case fantasy.StreamPartTypeToolInputStart:
			d.Call, d.Name = part.ID, part.ToolCallName
		case fantasy.StreamPartTypeToolInputDelta:
			// One of the library's providers has the piece in the other field.
			d.Call, d.Arguments = part.ID, part.Delta+part.ToolCallInput
		case fantasy.StreamPartTypeToolCall:
			if !part.ProviderExecuted {
				r.Message.Calls = append(r.Message.Calls, engi.ToolCall{ID: part.ID, Name: part.ToolCallName, Arguments: part.ToolCallInput})
			}
			continue
		case fantasy.StreamPartTypeFinish:
			finished = true
			r.Stop, r.Tokens = stopOf(part.FinishReason), tokens(part.Usage)
			continue
		case fantasy.StreamPartTypeError:
			if part.Error == nil {
				return Reply{}, engi.Errorf(engi.Unavailable, "the answer broke off")
			}
			return Reply{}, part.Error
		default:
			continue
		}
		if size += len(part.Delta) + len(part.ToolCallInput); size > maxAnswer {
			return Reply{}, tooLong(a.name)
		}
		if d == (Delta{}) {
			continue
		}
		if err := out(d); err != nil {
			return Reply{}, err
		}
	}
	if !finished {
		if err := context.Cause(ctx); err != nil {
			return Reply{}, err
		}
		return Reply{}, fantasy.NewIncompleteStreamError()
	}
	r.Message.Text, r.Message.Thought = text.String(), thought.String()
	return r, nil
}

// object asks for an object as the arguments of a tool that must be called:
// that is what all formats but Gemini's have for schemas of every kind, and
// what comes is told piece by piece.
func (a *adapter) object(ctx context.Context, q Request, p fantasy.Prompt, alive func(), out func(Delta) error) (Reply, error) {
	if a.native {
		return a.nativeObject(ctx, q, p, alive, out)
	}
	input, err := plain(q.Object)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Invalid, "describe the object: %w", err)
	}
	input, wrapped := wrap(input)
	name := q.ObjectName
	if name == "" {
		name = "answer"
	}
	raw, err := json.Marshal(input)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Internal, "describe the object: %v", err)
	}
	q.Tools, q.Choice = []engi.Tool{{Name: name, Description: "Gives the answer, in the form that is asked for.", Schema: raw}}, Choice(name)
	var r Reply
	if out == nil {
		r, err = a.whole(ctx, q, p)
	} else {
		r, err = a.stream(ctx, q, p, alive, halves(wrapped, out))
	}
	if err != nil {
		return r, err
	}
	text := r.Message.Text // of models that answer in prose nevertheless
	if len(r.Message.Calls) > 0 {
		text = r.Message.Calls[0].Arguments
		if r.Stop == StopTools {
			r.Stop = StopEnd
		}
	}
	r.Message.Text, r.Message.Calls = unwrap(text, wrapped), nil
	return r, nil
}

// halves tells out of an object as far as its arguments have come.
func halves(wrapped bool, out func(Delta) error) func(Delta) error {
	var text []byte
	next, call := 1, ""
	return func(d Delta) error {
		if d.Thought != "" {
			return out(d)
		}
		if d.Call != "" && d.Call != call {
			if call != "" {
				return nil // only the first call counts
			}
			call, text = d.Call, text[:0]
		}
		text = append(append(text, d.Arguments...), d.Text...)
		// Looking at all of it at every piece would take time by its square.
		if len(text) < next {
			return nil
		}
		next = len(text) + len(text)/32 + 1
		v, ok := half(text)
		if o, is := v.(map[string]any); ok && wrapped && is {
			v, ok = o[wrapping]
		}
		if !ok {
			return nil
		}
		return out(Delta{Object: v})
	}
}

// nativeObject asks for an object in the way of the format.
func (a *adapter) nativeObject(ctx context.Context, q Request, p fantasy.Prompt, alive func(), out func(Delta) error) (Reply, error) {
	full, err := plain(q.Object)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Invalid, "describe the object: %w", err)
	}
	c := fantasy.ObjectCall{Prompt: p, Schema: *simple(full, out != nil), SchemaName: q.ObjectName, Temperature: q.Temperature}
	if q.MaxTokens > 0 {
		c.MaxOutputTokens = new(int64(q.MaxTokens))
	}
	if out == nil {
		resp, err := a.model.GenerateObject(ctx, c)
		if err != nil {
			return unmet(err)
		}
		raw, err := json.Marshal(resp.Object)
		if err != nil {
			return Reply{}, engi.Errorf(engi.Unavailable, "read the object: %v", err)
		}
		return Reply{Message: engi.Message{Text: string(raw)}, Stop: stopOf(resp.FinishReason), Tokens: tokens(resp.Usage)}, nil
	}
	parts, err := a.model.StreamObject(ctx, c)
	if err != nil {
		return Reply{}, err
	}
	var r Reply
	var last any
	for part := range parts {
		alive()
		switch part.Type {
		case fantasy.ObjectStreamPartTypeObject:
			if part.Object == nil {
				continue
			}
			last = part.Object
			if err := out(Delta{Object: part.Object}); err != nil {
				return Reply{}, err
			}
		case fantasy.ObjectStreamPartTypeError:
			if part.Error != nil {
				return unmet(part.Error)
			}
		case fantasy.ObjectStreamPartTypeFinish:
			r.Stop, r.Tokens = stopOf(part.FinishReason), tokens(part.Usage)
		}
	}
	if err := ctx.Err(); err != nil {
		return Reply{}, context.Cause(ctx)
	}
	if last == nil {
		return r, nil
	}
	raw, err := json.Marshal(last)
	if err != nil {
		return Reply{}, engi.Errorf(engi.Unavailable, "read the object: %v", err)
	}
	r.Message.Text = string(raw)
	return r, nil
}

// unmet turns an object that is none into a reply: judging it is for the
// caller, who can ask again.
func unmet(err error) (Reply, error) {
	if no, ok := errors.AsType[*fantasy.NoObjectGeneratedError](err); ok {
		return Reply{Message: engi.Message{Text: no.RawText}, Stop: stopOf(no.FinishReason), Tokens: tokens(no.Usage)}, nil
	}
	if parse, ok := errors.AsType[*schema.ParseError](err); ok {
		return Reply{Message: engi.Message{Text: parse.RawText}, Stop: StopOther}, nil
	}
	return Reply{}, err
}

// prompt is the conversation in the library's words.
func prompt(q Request) (fantasy.Prompt, error) {
	var p fantasy.Prompt
	if q.System != "" {
		p = append(p, fantasy.NewSystemMessage(q.System))
	}
	for i, m := range q.Messages {
		switch m.Role {
		case engi.RoleUser:
			var files []fantasy.FilePart
			for _, img := range m.Images {
				files = append(files, fantasy.FilePart{Data: img.Data, MediaType: img.MediaType})
			}
			p = append(p, fantasy.NewUserMessage(m.Text, files...))
		case engi.RoleAssistant:
			var parts []fantasy.MessagePart
			if m.Text != "" {
				parts = append(parts, fantasy.TextPart{Text: m.Text})
			}
			for _, c := range m.Calls {
				parts = append(parts, fantasy.ToolCallPart{ToolCallID: c.ID, ToolName: c.Name, Input: object(c.Arguments)})
			}
			if len(parts) > 0 {
				p = append(p, fantasy.Message{Role: fantasy.MessageRoleAssistant, Content: parts})
			}
		case engi.RoleTool:
			var parts []fantasy.MessagePart
			var files []fantasy.FilePart
			for _, r := range m.Results {
				parts = append(parts, fantasy.ToolResultPart{ToolCallID: r.Call, Output: output(r)})
				for _, img := range r.Images {
					files = append(files, fantasy.FilePart{Data: img.Data, MediaType: img.MediaType})
				}
			}
			if len(parts) > 0 {
				p = append(p, fantasy.Message{Role: fantasy.MessageRoleTool, Content: parts})
			}
			// Half of the formats have no place for images among results, and
			// none suffers anything between results of one answer.
			if len(files) > 0 {
				p = append(p, fantasy.NewUserMessage("(The images of the results above, in their order.)", files...))
			}
		default:
			return nil, engi.Errorf(engi.Invalid, "message %d is by %.40q, which is nobody", i, m.Role).WithRemedy("use user, assistant or tool")
		}
	}
	return p, nil
}

func output(r engi.ToolResult) fantasy.ToolResultOutputContent {
	if r.Failed {
		return fantasy.ToolResultOutputContentError{Error: errors.New(r.Text)}
	}
	return fantasy.ToolResultOutputContentText{Text: r.Text}
}

// object returns arguments as providers take them back: what the model wrote
// as no object would make them refuse the conversation for ever.
func object(arguments string) string {
	var o map[string]any
	if json.Unmarshal([]byte(arguments), &o) != nil || o == nil {
		return "{}"
	}
	return arguments
}

func stopOf(f fantasy.FinishReason) Stop {
	switch f {
	case fantasy.FinishReasonStop:
		return StopEnd
	case fantasy.FinishReasonToolCalls:
		return StopTools
	case fantasy.FinishReasonLength:
		return StopLength
	case fantasy.FinishReasonContentFilter:
		return StopFilter
	}
	return StopOther
}

func tokens(u fantasy.Usage) engi.Tokens {
	return engi.Tokens{
		Input: max(u.InputTokens, 0), Output: max(u.OutputTokens, 0), Reasoning: max(u.ReasoningTokens, 0),
		CacheRead: max(u.CacheReadTokens, 0), CacheWrite: max(u.CacheCreationTokens, 0),
	}
}

const maxAnswer = 8 << 20 // bytes of one answer

func tooLong(model string) error {
	return engi.Errorf(engi.Unavailable, "%s wrote more than %d bytes without an end", model, maxAnswer)
}
