package node

import (
	"context"
	"maps"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/disk"
)

// registryTemplates implements [fleet.Templates]. It adds the configured
// package registries to a template's environment, whose own variables take precedence.
type registryTemplates struct {
	*disk.Templates
	registries config.Registries
}

func (t registryTemplates) Use(ctx context.Context, name string) (engi.Template, func(), error) {
	tmpl, release, err := t.Templates.Use(ctx, name)
	if err != nil {
		return tmpl, release, err
	}
	if env := t.registries.Of(tmpl.Name).Env(); len(env) > 0 {
		maps.Copy(env, tmpl.Env)
		tmpl.Env = env
	}
	return tmpl, release, nil
}
