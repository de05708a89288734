package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

const (
	maxInput    = 1 << 20 // bytes of input, context and system prompt
	maxParts    = 32      // of context
	maxImages   = 16
	maxImage    = 8 << 20
	maxHistory  = 4 << 20 // bytes of earlier messages
	maxMessages = 1000
)

// userText returns the text of the user's message. Parts without text are left
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
		return 0, engi.Errorf(engi.Invalid, "%d parts of context, %d at most", len(parts), maxParts).WithRemedy("combine some of them")
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
	case spec.Input == "" && len(images) == 0:
		return engi.Errorf(engi.Invalid, "the input is empty").WithRemedy("give the agent an input or an image")
	case size > maxInput:
		return engi.Errorf(engi.Invalid, "the input has %d bytes, %d at most", size, maxInput).WithRemedy("put long texts into files of a sandbox")
	case len(images) > maxImages:
		return engi.Errorf(engi.Invalid, "%d images, %d at most", len(images), maxImages)
	}
	for i, img := range images {
		if !slices.Contains(engi.ImageTypes(), img.MediaType) {
			return engi.Errorf(engi.Invalid, "image %d is of type %.40q", i, img.MediaType).WithRemedy("use PNG, JPEG, WebP or GIF")
		}
		if len(img.Data) == 0 || len(img.Data) > maxImage {
			return engi.Errorf(engi.Invalid, "image %d has %d bytes, not 1 to %d", i, len(img.Data), maxImage)
		}
	}
	return nil
}

func checkHistory(messages []engi.Message) error {
	if len(messages) > maxMessages {
		return engi.Errorf(engi.Invalid, "%d messages, %d at most", len(messages), maxMessages)
	}
	size := 0
	for i, m := range messages {
		if !slices.Contains(engi.Roles(), m.Role) {
			return engi.Errorf(engi.Invalid, "message %d has the unknown role %.40q", i, m.Role).WithRemedy("use user, assistant or tool")
		}
		if size += messageSize(m); size > maxHistory {
			return engi.Errorf(engi.Invalid, "the messages have more than %d bytes", maxHistory).WithRemedy("leave the oldest out")
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
	runs, err := r.opt.Store.List(ctx, owner, Filter{Conversation: id, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(runs) == 0 || runs[0].Owner != owner { // the empty owner would see all
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
	messages = withoutPendingCalls(messages)
	size := 0
	for i, m := range slices.Backward(messages) {
		if size += messageSize(m); size > maxHistory {
			// Drop the oldest messages, up to the next one of the user.
			for i++; i < len(messages) && messages[i].Role != engi.RoleUser; i++ {
			}
			return messages[i:], nil
		}
	}
	return messages, nil
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
