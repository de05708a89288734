package llm

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/engi-dev/engi/internal/engi"
)

// Check reports the reason why owner cannot use a model now: no model has the name, or the
// owner's budget is used up.
func (r *Registry) Check(ctx context.Context, owner engi.Owner, model string) error {
	if _, err := r.Model(model); err != nil {
		return err
	}
	return r.checkBudget(ctx, owner)
}

// restarted is the text that out of Write receives when an answer starts over.
const restarted = "\n(the answer broke off and starts over)\n"

// Write lets a model continue the conversation said, in prose. out receives the text as it is
// written. cut says that the answer reached its maximum length. The tokens were
// used even with an error.
func (r *Registry) Write(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, out func(text string) error) (text string, cut bool, used engi.Tokens, err error) {
	m, err := r.Model(model)
	if err != nil {
		return "", false, used, err
	}
	reply, err := m.Generate(ctx, Request{Owner: owner, System: system, Messages: said}, func(d Delta) error {
		switch {
		case d.Reset:
			return out(restarted)
		case d.Text != "":
			return out(d.Text)
		}
		return nil
	})
	if err == nil && reply.Stop == StopFilter {
		err = engi.Errorf(engi.Denied, "%s withheld the answer: %s", reply.Model, cmp.Or(reply.Reason, "no reason given")).
			WithRemedy("change the prompt, or choose another model")
	}
	return reply.Message.Text, reply.Stop == StopLength, reply.Tokens, err
}

// Answer lets a model answer the conversation said with JSON that conforms to a schema; see
// [GenerateJSON]. The tokens were used even with an error.
func (r *Registry) Answer(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, schema json.RawMessage) (json.RawMessage, engi.Tokens, error) {
	m, err := r.Model(model)
	if err != nil {
		return nil, engi.Tokens{}, err
	}
	s, err := ParseSchema(schema)
	if err != nil {
		return nil, engi.Tokens{}, err
	}
	raw, reply, err := GenerateJSON(ctx, m, Request{Owner: owner, System: system, Messages: said}, s, nil)
	return raw, reply.Tokens, err
}
