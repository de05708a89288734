package config

import (
	"log/slog"
	"time"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
)

// Approvals configures approvals, on which requests of sandboxes wait.
type Approvals struct {
	Wait Duration `toml:"wait" env:"WAIT" help:"how long a request waits for a decision before it is refused; 24 hours at most"`
	Keep Duration `toml:"keep" env:"KEEP" help:"how long approvals are kept after their end"`
}

func defaultApprovals() Approvals {
	return Approvals{Wait: Duration(15 * time.Minute), Keep: Duration(30 * 24 * time.Hour)}
}

func (a Approvals) validate() error {
	if a.Wait <= 0 || a.Wait > Duration(24*time.Hour) || a.Keep < 0 {
		return engi.Errorf(engi.Invalid, "[approvals] has a wait that is not between 0 and 24 hours, or a negative keep")
	}
	return nil
}

// Options returns the options of approvals with store s and a seed for the signing key.
func (a Approvals) Options(s approval.Store, seed []byte, log *slog.Logger) approval.Options {
	return approval.Options{Store: s, Seed: seed, Wait: time.Duration(a.Wait), Keep: time.Duration(a.Keep), Log: log.With("component", "approvals")}
}
