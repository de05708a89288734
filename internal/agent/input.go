package agent

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxInput    = 1 << 20 // bytes of input, context and system prompt
	maxParts    = 32      // maximum number of parts of context
	maxImages   = 16
	maxImage    = 8 << 20
	maxName     = 255     // maximum bytes of the name of a document
	maxHistory  = 4 << 20 // bytes of earlier messages
	maxMessages = 1000
	maxTools    = 128
)

// userText returns the text of the user's message. Parts without text are omitted
// out entirely, so that the beginning stays the same and in the provider's
// cache.
func userText(parts []engi.ContextPart, input string) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Text != "" {
			fmt.Fprintf(&b, "[%s] %s\n", p.Name, p.Text)
		}
	}
	if b.Len() == 0 {
		return input
	}
	return b.String() + "[NOW] " + input
}

func checkContext(parts []engi.ContextPart) (size int, err error) {
	if len(parts) > maxParts {
		return 0, engi.Errorf(engi.Invalid, "%d parts of context, %d at most", len(parts), maxParts).WithRemedy("combine some of the parts")
	}
	for i, p := range parts {
		if n := utf8.RuneCountInString(p.Name); n == 0 || n > 64 || p.Name == "NOW" ||
			strings.ContainsFunc(p.Name, func(r rune) bool { return !unicode.IsPrint(r) || r == '[' || r == ']' || r == utf8.RuneError }) {
			return 0, engi.Errorf(engi.Invalid, "part %d of the context has the name %.80q", i, p.Name).
				WithRemedy("use 1 to 64 printable characters without brackets, and not NOW, which is the input")
		}
		if !utf8.ValidString(p.Text) {
			return 0, engi.Errorf(engi.Invalid, "part %d of the context, %s, is not UTF-8", i, p.Name)
		}
		size += len(p.Name) + len(p.Text)
	}
	return size, nil
}

func checkInput(spec engi.RunSpec) error {
	size, err := checkContext(spec.Context)
	if err != nil {
		return err
	}
	size += len(spec.Input) + len(spec.System)
	images := spec.Images
	switch {
	case spec.Input == "" && len(images) == 0 && len(spec.Results) == 0 && !endsWithResults(spec.Messages):
		return engi.Errorf(engi.Invalid, "the input is empty").WithRemedy("give the agent an input or an image")
	case len(spec.Note) > maxInput:
		return engi.TooLarge("the data stored with the run has %d bytes; the limit is %d", len(spec.Note), maxInput).WithRemedy("shorten it")
	case size > maxInput:
		return engi.TooLarge("the input has %d bytes, %d at most", size, maxInput).WithRemedy("put long texts into files of a sandbox")
	}
	for _, r := range spec.Results {
		images = append(images[:len(images):len(images)], r.Images...)
	}
	return checkImages(images)
}

// endsWithResults reports whether messages end with results instead of text of the user.
func endsWithResults(messages []engi.Message) bool {
	return len(messages) > 0 && messages[len(messages)-1].Role == engi.RoleTool
}

func checkImages(images []engi.Image) error {
	if len(images) > maxImages {
		return engi.Errorf(engi.Invalid, "%d images, %d at most", len(images), maxImages)
	}
	for i, img := range images {
		if img.MediaType != engi.PDF && !slices.Contains(engi.ImageTypes(), img.MediaType) {
			return engi.Errorf(engi.Invalid, "image %d is of type %.40q", i, img.MediaType).WithRemedy("use PNG, JPEG, WebP, GIF or PDF")
		}
		if len(img.Data) == 0 {
			return engi.Errorf(engi.Invalid, "image %d is empty", i)
		}
		if len(img.Data) > maxImage {
			return engi.TooLarge("image %d has %d bytes, %d at most", i, len(img.Data), maxImage)
		}
		if img.MediaType == engi.PDF && !bytes.Contains(img.Data[:min(len(img.Data), 1024)], []byte("%PDF-")) {
			return engi.Errorf(engi.Invalid, "image %d is no PDF", i).WithRemedy("send the bytes of the file in base64")
		}
		if len(img.Name) > maxName || !utf8.ValidString(img.Name) {
			return engi.Errorf(engi.Invalid, "image %d has a name of more than %d bytes, or one that is not UTF-8", i, maxName)
		}
	}
	return nil
}

// checkMessages checks earlier messages one by one.
func checkMessages(messages []engi.Message) error {
	if len(messages) > maxMessages {
		return engi.Errorf(engi.Invalid, "%d messages, %d at most", len(messages), maxMessages)
	}
	size := 0
	for i, m := range messages {
		if !slices.Contains(engi.Roles(), m.Role) {
			return engi.Errorf(engi.Invalid, "message %d has the unknown role %.40q", i, m.Role).WithRemedy("use user, assistant or tool")
		}
		if err := checkImages(m.Images); err != nil {
			return engi.Errorf(engi.KindOf(err), "message %d: %w", i, err)
		}
		if size += messageSize(m); size > maxHistory {
			return engi.TooLarge("the messages have more than %d bytes", maxHistory).WithRemedy("leave the oldest out")
		}
	}
	return nil
}

// checkCalls checks that each call has a result, and each result a call: providers refuse
// other conversations.
func checkCalls(messages []engi.Message) error {
	open := map[string]bool{} // calls without results
	for i, m := range messages {
		for _, r := range m.Results {
			if !open[r.Call] {
				return engi.Errorf(engi.Invalid, "message %d has the result of call %.80q, which does not exist or already has a result", i, r.Call).WithRemedy("send the assistant's message with the call before it")
			}
			delete(open, r.Call)
		}
		if m.Role != engi.RoleTool && len(open) > 0 {
			return engi.Errorf(engi.Invalid, "a call before message %d has no result", i).WithRemedy("send the results of all calls, and an error for each failed call")
		}
		for _, c := range m.Calls {
			open[c.ID] = true
		}
	}
	return nil
}

// messageSize returns the approximate size of a message in bytes.
func messageSize(m engi.Message) int {
	n := len(m.Text) + len(m.Thought)
	for _, img := range m.Images {
		n += len(img.Data)
	}
	for _, c := range m.Calls {
		n += len(c.Arguments)
	}
	for _, r := range m.Results {
		n += len(r.Text)
		for _, img := range r.Images {
			n += len(img.Data)
		}
	}
	return n
}

// history returns the messages of a conversation. Each run stores the messages
// before it too, so those of the last run are complete.
func (r *Runner) history(ctx context.Context, owner engi.Owner, id engi.ConversationID) ([]engi.Message, error) {
	runs, err := r.opt.Store.List(ctx, owner.Viewer(), Filter{Conversation: id, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(runs) == 0 {
		return nil, engi.Errorf(engi.NotFound, "there is no conversation %.60s", id).WithRemedy("leave it out to start a new one")
	}
	last := runs[0]
	if last.State == engi.RunRunning {
		return nil, engi.Errorf(engi.Conflict, "run %s of the conversation is still active", last.ID).WithRemedy("wait for it, or cancel it")
	}
	messages, err := r.opt.Store.Messages(ctx, last.ID)
	if err != nil {
		return nil, err
	}
	return latest(messages, maxHistory), nil
}

// latest returns the last messages, with at most the given number of bytes. If some are omitted,
// the first one left is the user's.
func latest(messages []engi.Message, bytes int) []engi.Message {
	size := 0
	for i, m := range slices.Backward(messages) {
		if size += messageSize(m); size > bytes {
			for i++; i < len(messages) && messages[i].Role != engi.RoleUser; i++ {
			}
			return messages[i:]
		}
	}
	return messages
}

// after returns the messages up to the end of run spec.After, followed by the messages of
// spec, and the conversation that continues: the run's, or a new one if the run's has continued
// already.
func (r *Runner) after(ctx context.Context, spec engi.RunSpec) (conversation engi.ConversationID, messages []engi.Message, err error) {
	rec, err := r.opt.Store.Get(ctx, spec.Owner.Viewer(), spec.After)
	switch {
	case err != nil:
		return "", nil, err
	case rec.State == engi.RunRunning:
		return "", nil, engi.Errorf(engi.Conflict, "run %s is still active", rec.ID).WithRemedy("wait for it, or cancel it")
	}
	if messages, err = r.opt.Store.Messages(ctx, rec.ID); err != nil {
		return "", nil, err
	}
	size, later := 0, spec.Messages
	for _, m := range later {
		size += messageSize(m)
	}
	messages = slices.Clone(latest(messages, maxHistory-size))
	if rec.State != engi.RunDone {
		messages = withoutPendingCalls(messages)
	}
	// The same answer may also have called the agent's own tools.
	if n := len(messages) - 1; n >= 0 && messages[n].Role == engi.RoleTool && len(later) > 0 && later[0].Role == engi.RoleTool {
		messages[n].Results = append(slices.Clone(messages[n].Results), later[0].Results...)
		later = later[1:]
	}
	runs, err := r.opt.Store.List(ctx, spec.Owner.Viewer(), Filter{Conversation: rec.Conversation, Limit: 1})
	if err != nil {
		return "", nil, err
	}
	conversation = rec.Conversation
	r.mu.Lock()
	if len(runs) == 0 || runs[0].ID != rec.ID || r.conversations[conversation] {
		conversation = engi.NewConversationID()
	}
	r.mu.Unlock()
	return conversation, append(messages, later...), nil
}

var (
	toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	choices  = []llm.Choice{"", llm.ChoiceAuto, llm.ChoiceNone, llm.ChoiceRequired}
)

// checkTools checks the caller's tools, tool choice and sampling.
func checkTools(spec engi.RunSpec) error {
	if len(spec.Tools) > maxTools {
		return engi.Errorf(engi.Invalid, "%d tools, %d at most", len(spec.Tools), maxTools)
	}
	size := 0
	for i, t := range spec.Tools {
		if !toolName.MatchString(t.Name) {
			return engi.Errorf(engi.Invalid, "tool %d has the name %.80q", i, t.Name).WithRemedy("use 1 to 64 letters, digits, underscores and dashes")
		}
		if isNamed(spec.Tools[:i], t.Name) {
			return engi.Errorf(engi.Invalid, "two tools are named %s", t.Name)
		}
		if size += len(t.Description) + len(t.Schema); size > maxInput {
			return engi.Errorf(engi.Invalid, "the tools have more than %d bytes", maxInput)
		}
		if _, err := llm.ParseSchema(t.Schema); err != nil {
			return engi.Errorf(engi.Invalid, "tool %s: %w", t.Name, err)
		}
	}
	if c := llm.Choice(spec.Choice); !slices.Contains(choices, c) && !isNamed(spec.Tools, spec.Choice) {
		return engi.Errorf(engi.Invalid, "the tool to call, %.80q, is not among the request's", spec.Choice).WithRemedy("use auto, none, required, or the name of one of them")
	}
	s := spec.Sampling
	switch {
	case s.MaxTokens < 0:
		return engi.Errorf(engi.Invalid, "an answer cannot have %d tokens", s.MaxTokens)
	case s.Temperature != nil && !(*s.Temperature >= 0 && *s.Temperature <= 2):
		return engi.Errorf(engi.Invalid, "a temperature of %g is not between 0 and 2", *s.Temperature)
	case s.TopP != nil && !(*s.TopP > 0 && *s.TopP <= 1):
		return engi.Errorf(engi.Invalid, "a top_p of %g is not between 0 and 1", *s.TopP)
	case len(s.Stop) > 4:
		return engi.Errorf(engi.Invalid, "there are %d stop sequences; the limit is 4", len(s.Stop))
	case slices.ContainsFunc(s.Stop, func(t string) bool { return t == "" || len(t) > 1000 }):
		return engi.Errorf(engi.Invalid, "a stop sequence has 1 to 1000 bytes")
	case s.Effort != "" && !slices.Contains(engi.Efforts(), s.Effort):
		return engi.Errorf(engi.Invalid, "there is no effort %.40q", s.Effort).WithRemedy("use none, low, medium or high")
	}
	return nil
}

// withResults returns a copy of messages with results of calls that are pending.
func withResults(messages []engi.Message, results []engi.ToolResult) ([]engi.Message, error) {
	pending := pendingCalls(messages)
	named := make([]engi.ToolResult, len(results))
	size := 0
	for i, r := range results {
		at := slices.IndexFunc(pending, func(c engi.ToolCall) bool { return c.ID == r.Call })
		if at < 0 {
			return nil, engi.Errorf(engi.Invalid, "no call %.80q waits for its result", r.Call).WithRemedy("send one result for each of the last run's calls, with its ID")
		}
		if size += len(r.Text); size > maxInput {
			return nil, engi.Errorf(engi.Invalid, "the results have more than %d bytes", maxInput).WithRemedy("shorten them")
		}
		r.Name = pending[at].Name
		named[i] = r
		pending = slices.Delete(slices.Clone(pending), at, at+1)
	}
	messages = slices.Clone(messages)
	if n := len(messages) - 1; messages[n].Role == engi.RoleTool { // results of the agent's own tools
		m := messages[n]
		m.Results = append(slices.Clone(m.Results), named...)
		messages[n] = m
		return messages, nil
	}
	return append(messages, engi.Message{Role: engi.RoleTool, Results: named}), nil
}

// withoutPendingCalls returns a copy of messages without a last answer whose
// calls do not all have results: providers refuse such conversations.
func withoutPendingCalls(messages []engi.Message) []engi.Message {
	if len(pendingCalls(messages)) == 0 {
		return slices.Clone(messages)
	}
	n := len(messages) - 1
	for messages[n].Role != engi.RoleAssistant {
		n--
	}
	return slices.Clone(messages[:n])
}

// pendingCalls returns the calls of the last answer in messages that have no
// result yet.
func pendingCalls(messages []engi.Message) (pending []engi.ToolCall) {
	done := map[string]bool{}
	for _, m := range slices.Backward(messages) {
		if m.Role == engi.RoleUser {
			break
		}
		for _, r := range m.Results {
			done[r.Call] = true
		}
		if m.Role == engi.RoleAssistant {
			for _, c := range m.Calls {
				if !done[c.ID] {
					pending = append(pending, c)
				}
			}
			break
		}
	}
	return pending
}
