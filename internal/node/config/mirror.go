package config

import (
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/network/mirror"
)

// Mirror configures the mirror of package registries for sandboxes
// whose policy allows packages.
type Mirror struct {
	Size           Bytes    `toml:"size" env:"SIZE" help:"bytes of packages kept on disk; those not used for the longest time go first"`
	Fresh          Duration `toml:"fresh" env:"FRESH" help:"how long metadata is served before a registry is asked again"`
	Offline        bool     `toml:"offline" env:"OFFLINE" help:"ask no registry: only what is kept is served"`
	NPM            string   `toml:"npm" env:"NPM" help:"registry of npm, or a mirror; here and below, empty means the public one and off serves none"`
	PyPI           string   `toml:"pypi" env:"PYPI" help:"index of Python packages, like https://pypi.example.com/simple"`
	Go             string   `toml:"go" env:"GO" help:"proxy of Go modules"`
	Crates         string   `toml:"crates" env:"CRATES" help:"sparse index of crates"`
	Debian         string   `toml:"debian" env:"DEBIAN" help:"archive of Debian, like https://deb.example.com/debian"`
	DebianSecurity string   `toml:"debian_security" env:"DEBIAN_SECURITY" help:"archive of Debian's security updates"`
	Maven          string   `toml:"maven" env:"MAVEN" help:"repository of Maven"`
	Hosts          []string `toml:"hosts" env:"HOSTS" help:"further hosts, as HOST:PORT, that mirrors send files from although their addresses are private"`
}

func (p Mirror) upstreams() map[string]string {
	return map[string]string{"npm": p.NPM, "pypi": p.PyPI, "go": p.Go, "crates": p.Crates, "debian": p.Debian, "debian-security": p.DebianSecurity, "maven": p.Maven}
}

// Options returns the options of the mirror, without directory and log.
func (p Mirror) Options() mirror.Options {
	return mirror.Options{Size: int64(p.Size), Fresh: time.Duration(p.Fresh), Offline: p.Offline, Upstreams: p.upstreams(), Trusted: slices.Clone(p.Hosts)}
}

func (p Mirror) validate() (err error) {
	defer engi.Annotate(&err, "[mirror]")
	if p.Size < 1<<20 || p.Fresh <= 0 {
		return engi.Errorf(engi.Invalid, "size is at least 1 MiB, fresh more than 0")
	}
	for name, text := range p.upstreams() {
		if text == "" || text == mirror.Off {
			continue
		}
		if _, err := mirror.CheckURL(text); err != nil {
			return engi.Errorf(engi.Invalid, "%s: %w", name, err).WithRemedy("%s", engi.RemedyOf(err))
		}
	}
	return fetch.CheckTrusted(p.Hosts)
}
