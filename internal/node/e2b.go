package node

import (
	"net/http"
	"path/filepath"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/preview"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/store"
)

// openE2B opens the server for E2B's clients.
func (n *Node) openE2B(keys engi.Keys, leave <-chan struct{}) (err error) {
	secret, err := e2b.LoadSecret(filepath.Join(n.config.DataDir, "tokens.key")) // key from which tokens are derived
	if err != nil {
		return err
	}
	internet := engi.Network(n.config.Network.Max) // the widest mode
	if n.gateway == nil {
		internet = "" // sandboxes have no network
	}
	builder, _ := any(n.templates).(engi.TemplateBuilder)
	n.e2b = e2b.New(e2b.Options{
		Sandboxes: n.fleet.Sandboxes(), Lifecycle: n.fleet.Lifecycle(), Snapshots: n.snapshots, Volumes: n.volumes,
		Templates: n.templates, Builder: builder,
		Keys: keys, Store: store.Registry(n.db), Reservations: store.Idempotency(n.db), Secret: secret, Dir: filepath.Join(n.config.DataDir, "e2b"),
		Secrets: n.secrets, Events: n.Events(), Webhooks: n.Webhooks(), Domain: n.domain(), Hosts: n.hosts(), Target: func(r *http.Request) (engi.SandboxID, int, bool) { return preview.TargetOf(r.Context()) },
		Log: n.log.With("component", "e2b"), Leave: leave, Internet: internet, Rules: n.config.Network.Allow, BuildTime: time.Duration(n.config.Builds.Timeout),
	})
	return nil
}
