package node

import (
	"context"
	"maps"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk"
	"github.com/engi-dev/engi/fleet"
	"github.com/engi-dev/engi/node/config"
)

// mirrored tells programs in sandboxes where to get packages. What a template
// says itself wins.
type mirrored struct {
	*disk.Templates
	mirrors config.Mirrors
}

var _ fleet.Templates = mirrored{}

// Use implements [fleet.Templates].
func (m mirrored) Use(ctx context.Context, name string) (engi.Template, func(), error) {
	t, release, err := m.Templates.Use(ctx, name)
	if err != nil {
		return t, release, err
	}
	if env := m.mirrors.Of(t.Name).Env(); len(env) > 0 {
		maps.Copy(env, t.Env)
		t.Env = env
	}
	return t, release, nil
}
