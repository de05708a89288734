package node

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/store"
)

// openStudio opens the service of apps. Their sandboxes reach the
// registries of packages and no other hosts, or nothing if the node has no network.
func (n *Node) openStudio(metrics prometheus.Registerer) {
	n.apps = app.New(app.Options{
		Store: store.Apps(n.db), Events: store.Events(n.db), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Workspaces: n.workspaces, Models: authors{n}, Log: n.log.With("component", "studio"),
		Metrics: metrics, Network: n.packagesOnly(), MaxAwake: time.Duration(n.config.Sandboxes.Max),
		Lifecycle: n.fleet.Lifecycle(), Snapshots: n.snapshots, Health: time.Duration(n.config.Apps.Health), Alerts: n.config.Apps,
	})
}

// authors are the models that write apps. The demo model is used only if a request names it.
type authors struct{ *Node }

func (a authors) Check(ctx context.Context, owner engi.Owner, model string) error {
	if a.models == nil || model == "" && strings.HasPrefix(a.models.Default(), config.Demo+":") {
		return engi.Errorf(engi.Unsupported, "no language model is configured").WithRemedy("set models.default and [providers.NAME] with api_key_env, or apply the text of a model outside of engi")
	}
	return a.models.Check(ctx, owner, model)
}

func (a authors) Write(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, out func(string) error) (string, bool, engi.Tokens, error) {
	return a.models.Write(ctx, owner, model, system, said, out)
}

func (a authors) Answer(ctx context.Context, owner engi.Owner, model, system string, said []engi.Message, schema json.RawMessage) (json.RawMessage, engi.Tokens, error) {
	return a.models.Answer(ctx, owner, model, system, said, schema)
}

// Apps returns the service of apps.
func (n *Node) Apps() engi.Apps { return n.apps }
