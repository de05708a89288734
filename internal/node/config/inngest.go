package config

import (
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function/inngest"
)

// Inngest configures the connection to an Inngest server that executes durable
// functions in place of the node.
type Inngest struct {
	URL           string `toml:"url" env:"URL" help:"address of the Inngest server, for events.engine = inngest"`
	ServeURL      string `toml:"serve_url" env:"SERVE_URL" help:"where that server reaches this node's /api/inngest; empty means the address this node listens on"`
	App           string `toml:"app" env:"APP" help:"name of this node on the server; nodes that share one need names of their own"`
	EventKeyEnv   string `toml:"event_key_env" env:"EVENT_KEY_ENV" help:"variable of this node that holds the server's event key; empty means that it has none"`
	SigningKeyEnv string `toml:"signing_key_env" env:"SIGNING_KEY_ENV" help:"variable of this node that holds the server's signing key; empty means that it has none, which is allowed on one machine only"`
}

// InngestPath is the path at which the server calls the node.
const InngestPath = "/api/inngest"

// Options returns the engine's options; own is the node's address, and lookup reads
// the environment. It reports Invalid for missing values.
func (i Inngest) Options(own string, lookup func(string) (string, bool)) (inngest.Options, error) {
	o := inngest.Options{URL: i.URL, ServeURL: i.ServeURL, App: i.App}
	if o.URL == "" {
		return o, engi.Errorf(engi.Invalid, "events.engine is inngest, but events.inngest.url is empty").WithRemedy("set it, like http://127.0.0.1:8288")
	}
	if o.ServeURL == "" {
		o.ServeURL = own + InngestPath
	}
	for _, key := range []struct {
		name, variable string
		value          *string
	}{
		{"event_key_env", i.EventKeyEnv, &o.EventKey}, {"signing_key_env", i.SigningKeyEnv, &o.SigningKey},
	} {
		if key.variable == "" {
			continue
		}
		value, ok := lookup(key.variable)
		if value = strings.TrimSpace(value); !ok || value == "" {
			return o, engi.Errorf(engi.Invalid, "events.inngest.%s: the environment has no %s", key.name, key.variable).
				WithRemedy("set it, or leave events.inngest.%s empty for a server without keys", key.name)
		}
		*key.value = value
	}
	return o, nil
}

// CheckEnvironment reports Invalid if an Inngest server is configured and its
// settings are incomplete or invalid.
func (e Events) CheckEnvironment(lookup func(string) (string, bool)) error {
	if e.Off || e.Engine != EngineInngest {
		return nil
	}
	o, err := e.Inngest.Options("http://127.0.0.1", lookup)
	if err != nil {
		return err
	}
	_, err = inngest.New(o)
	return err
}
