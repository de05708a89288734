package node

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/webhook"
)

const (
	// secretKeyName is the name of the file with the key of secrets.
	secretKeyName = "secret.key"
	// secretKeyVariable holds the contents of the file, for operators that keep keys
	// elsewhere.
	secretKeyVariable = "ENGI_SECRET_KEY"
)

// openSecrets opens the store of secrets, with the secrets of the configuration, whose
// values are in the environment.
func (n *Node) openSecrets(ctx context.Context) (err error) {
	o := secret.Options{
		Path: filepath.Join(n.config.DataDir, secretKeyName), Key: os.Getenv(secretKeyVariable), Log: n.log.With("component", "secret"),
	}
	for _, s := range n.config.Secrets.List() {
		o.Environment = append(o.Environment, secret.EnvSecret{Owner: s.Owner, Name: s.Name, Variable: s.Variable, Hosts: s.HostList(), Value: os.Getenv(s.Variable)})
	}
	o.Packages = packageSecrets(n.config)
	if n.secrets, err = secret.Open(ctx, store.Secrets(n.db), o); err != nil {
		return err
	}
	n.db.Sealer = n.secrets
	return n.db.SealStored(ctx)
}

// RotateSecrets replaces the key of a data directory's secrets and returns the number
// of secrets that it encrypted again. It reports Conflict while a server runs there.
func RotateSecrets(ctx context.Context, dataDir string, log *slog.Logger) (int, error) {
	release, err := datadir.Hold(dataDir)
	if err != nil {
		return 0, err
	}
	defer release()
	db, err := store.Open(ctx, filepath.Join(dataDir, datadir.DatabaseName))
	if err != nil {
		return 0, err
	}
	n, err := secret.Rotate(ctx, store.Secrets(db), secret.Options{
		Path: filepath.Join(dataDir, secretKeyName), Key: os.Getenv(secretKeyVariable), Log: log,
		Reseal: func(ctx context.Context, s *secret.Service) (int, error) {
			db.Sealer = s
			n, err := webhook.Reseal(ctx, store.Webhooks(db), s)
			if err != nil {
				return n, err
			}
			more, err := db.Reseal(ctx)
			return n + more, err
		},
	})
	return n, cmp.Or(err, db.Close())
}
