// Package mirrors tells programs in sandboxes where to get packages. Only
// package node uses it.
package mirrors

import (
	"context"
	"maps"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk"
	"github.com/engi-dev/engi/fleet"
	"github.com/engi-dev/engi/node/config"
)

// Templates are a node's, with the mirrors of its configuration. What a
// template says itself wins.
type Templates struct {
	*disk.Templates
	Mirrors config.Mirrors
}

var _ fleet.Templates = Templates{}

// Use implements [fleet.Templates].
func (t Templates) Use(ctx context.Context, name string) (engi.Template, func(), error) {
	tmpl, release, err := t.Templates.Use(ctx, name)
	if err != nil {
		return tmpl, release, err
	}
	if env := t.Mirrors.Of(tmpl.Name).Env(); len(env) > 0 {
		maps.Copy(env, tmpl.Env)
		tmpl.Env = env
	}
	return tmpl, release, nil
}
