package config

import (
	"crypto/x509"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/fetch"
)

// Builds configures what the builds of owners may use. Those of administrators have
// the network, the environment and the logins of the machine.
type Builds struct {
	Registries []string `toml:"registries" env:"REGISTRIES" help:"registries, as HOST:PORT, that owners' builds may pull images from although they are not public or are reached by the machine's proxy"`
}

// maxImage bounds one blob of an image, and maxPull how long one may take.
const (
	maxImage = 64 << 30
	maxPull  = time.Hour
)

// Transport returns what pulls images for owners.
func (b Builds) Transport(roots *x509.CertPool) http.RoundTripper {
	return fetch.New(fetch.Options{Trusted: b.Registries, Roots: roots, Timeout: maxPull, MaxBody: maxImage}).Transport
}

func (b Builds) validate() error {
	for _, r := range b.Registries {
		host, port, err := net.SplitHostPort(r)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
			return engi.Errorf(engi.Invalid, "builds.registries: %.80q is not a host and a port", r).WithRemedy("write it like registry.internal:5000")
		}
	}
	return nil
}
