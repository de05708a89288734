package config

import (
	"maps"
	"net/http"
	"os"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/webhook"
)

// Webhooks configures the destinations of webhooks, and the node's own webhooks.
type Webhooks struct {
	Hosts   []string           `toml:"hosts" env:"HOSTS" help:"hosts that webhooks may use: NAME or *.SUFFIX, with :PORT for ports other than 80 and 443; empty means all"`
	Private []string           `toml:"private" env:"PRIVATE" help:"addresses and networks that webhooks may use although they are not public"`
	To      map[string]Webhook `toml:"to" env:"-" help:"webhooks of the node: [webhooks.to.NAME] url, types, secret_env (a variable with whsec_ and base64), owner (empty means the events of all owners), format (approval for one whose answers decide)"`
}

// A Webhook is a webhook of the node.
type Webhook struct {
	URL       string   `toml:"url"`
	Types     []string `toml:"types"`
	SecretEnv string   `toml:"secret_env"`
	Owner     string   `toml:"owner"`
	Format    string   `toml:"format"`
}

func (w Webhooks) validate() error {
	if _, err := fetch.ParseNetworks(w.Private); err != nil {
		return engi.Errorf(engi.Invalid, "webhooks.private: %w", err)
	}
	for name, to := range w.To {
		if to.URL == "" || to.SecretEnv == "" {
			return engi.Errorf(engi.Invalid, "webhooks.to.%s needs url and secret_env", name).WithRemedy("secret_env names a variable of the server with whsec_ and 24 to 64 bytes in base64")
		}
	}
	return nil
}

// Client returns the HTTP client of webhooks.
func (w Webhooks) Client() (*http.Client, error) {
	private, err := fetch.ParseNetworks(w.Private)
	if err != nil {
		return nil, err
	}
	return fetch.New(fetch.Options{
		Hosts: w.Hosts, Private: private, Timeout: webhook.Timeout, MaxBody: 1 << 20,
		Remedy: "the operator says with webhooks.hosts and webhooks.private in the configuration where webhooks may go",
	}), nil
}

// Fixed returns the webhooks in the configuration, by name.
func (w Webhooks) Fixed() (all []webhook.Fixed) {
	for _, name := range slices.Sorted(maps.Keys(w.To)) {
		to := w.To[name]
		all = append(all, webhook.Fixed{
			Webhook: engi.Webhook{Name: name, URL: to.URL, Types: to.Types, Owner: engi.Owner(to.Owner), Format: to.Format}, Secret: os.Getenv(to.SecretEnv),
		})
	}
	return all
}
