package config

import (
	"cmp"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Builds configures the builds of owners. Builds of administrators have
// the network, the environment and the logins of the machine.
type Builds struct {
	Allow      []string          `toml:"allow" env:"ALLOW" help:"what commands of owners' builds may reach, as rules of restricted sandboxes; * is all that is public, and private addresses need network.private too; none is no network"`
	Registries []string          `toml:"registries" env:"REGISTRIES" help:"registries, as HOST:PORT, that owners' builds may pull images from although they are not public or are reached by the machine's proxy"`
	Timeout    Duration          `toml:"timeout" env:"TIMEOUT" help:"time for one build by E2B's API, without the wait for others of its owner, which run one after the other"`
	Env        map[string]string `toml:"env" env:"-" help:"variables of the commands of owners' builds, who can read them: [builds.env] with proxies and mirrors without passwords, like PIP_INDEX_URL"`
}

// Registry returns the transport that pulls images for owners.
func (b Builds) Registry(roots *x509.CertPool) http.RoundTripper {
	return fetch.New(fetch.Options{Trusted: b.Registries, Roots: roots, Timeout: time.Hour, MaxBody: 64 << 30}).Transport
}

func (b Builds) validate() (err error) {
	defer engi.Annotate(&err, "[builds]")
	return cmp.Or(fetch.CheckTrusted(b.Registries), wire.CheckEnv(b.Env))
}
