package config

import (
	"crypto/x509"
	"net/http"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/recipe"
	"github.com/engi-dev/engi/gate/fetch"
)

// Builds configures what the builds of owners may use. Those of administrators have
// the network, the environment and the logins of the machine.
type Builds struct {
	Registries []string          `toml:"registries" env:"REGISTRIES" help:"registries, as HOST:PORT, that owners' builds may pull images from although they are not public or are reached by the machine's proxy"`
	Env        map[string]string `toml:"env" env:"-" help:"variables of the commands of owners' builds, who can read them: [builds.env] with proxies and mirrors without passwords, like PIP_INDEX_URL"`
}

// Registry returns what pulls images for owners.
func (b Builds) Registry(roots *x509.CertPool) http.RoundTripper {
	return fetch.New(fetch.Options{Trusted: b.Registries, Roots: roots, Timeout: time.Hour, MaxBody: 64 << 30}).Transport
}

func (b Builds) validate() (err error) {
	defer engi.Annotate(&err, "[builds]")
	for k, v := range b.Env {
		if !recipe.ValidVariable(k, v) {
			return engi.Errorf(engi.Invalid, "env: %.80q is not a variable with a value", k).WithRemedy("write it like PIP_INDEX_URL = \"https://pypi.example.com/simple\"")
		}
	}
	return fetch.CheckTrusted(b.Registries)
}
