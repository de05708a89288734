package operation

import (
	"context"
	"encoding/json"

	"github.com/engi-dev/engi/internal/engi"
)

// BuildTemplate returns the work of building templates. The work is safe to repeat, because finished
// steps are cached.
func BuildTemplate(templates engi.Templates) Work {
	return func(ctx context.Context, op engi.Operation, progress func(engi.Progress)) error {
		var in engi.BuildTemplateInput
		if err := json.Unmarshal(op.Input, &in); err != nil {
			return engi.Errorf(engi.Internal, "read the input of %s: %v", op.ID, err)
		}
		var definition []byte
		if in.Definition != "" {
			definition = []byte(in.Definition)
		}
		_, err := templates.Build(ctx, op.Subject, definition, progress)
		return err
	}
}
