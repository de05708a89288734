package node

import (
	"context"
	"maps"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/disk"
)

// mirroredTemplates implements [fleet.Templates]. It adds the configured
// package mirrors to a template's environment, whose own variables take precedence.
type mirroredTemplates struct {
	*disk.Templates
	mirrors config.Mirrors
}

func (t mirroredTemplates) Use(ctx context.Context, name string) (engi.Template, func(), error) {
	tmpl, release, err := t.Templates.Use(ctx, name)
	if err != nil {
		return tmpl, release, err
	}
	if env := t.mirrors.Of(tmpl.Name).Env(); len(env) > 0 {
		maps.Copy(env, tmpl.Env)
		tmpl.Env = env
	}
	return tmpl, release, nil
}
