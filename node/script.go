package node

import (
	"context"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/fetch"
	"github.com/engi-dev/engi/node/bundle"
	"github.com/engi-dev/engi/node/scripts"
	"github.com/engi-dev/engi/script"
)

// openScripts makes the script tier, or none where it is off or its helper is
// not there.
func (n *Node) openScripts(ctx context.Context) error {
	c := n.config.Script
	if c.Off {
		return nil
	}
	helper, err := bundle.Find(ctx, filepath.Join(n.config.CacheDir, "programs"), bundle.Script, n.config.JS)
	if err != nil {
		n.log.Warn("scripts are not served", "error", err, "remedy", engi.RemedyOf(err))
		return nil
	}
	var around fetch.Wall
	if n.wall != nil {
		around = n.wall
	}
	apis, err := scripts.APIs(c, around, n.sessions != nil)
	if err != nil {
		return err
	}
	n.script, err = script.New(script.Options{
		Helper: helper.Path, Dir: filepath.Join(n.config.CacheDir, "script"), APIs: apis, Log: n.log.With("room", "script"), Max: c.Helpers,
		Sessions: n.Sessions(),
		Warm:     min(2, c.Helpers),
		Limits: script.Limits{
			Code: c.Code, Timeout: time.Duration(c.Timeout), MinTimeout: time.Duration(c.MinTimeout),
			MaxTimeout: time.Duration(c.MaxTimeout), Memory: int64(c.Memory),
		},
	})
	return err
}

// Scripts is the node's front desk of scripts; nil if it serves none.
func (n *Node) Scripts() engi.Scripts {
	if n.script == nil {
		return nil
	}
	return n.script.Scripts()
}
