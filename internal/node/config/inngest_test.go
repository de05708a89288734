package config

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function/inngest"
)

func TestInngest(t *testing.T) {
	env := map[string]string{"EVENT": " e-key\n", "SIGNING": "0123abcd", "EMPTY": " "}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	const own = "http://127.0.0.1:7777"
	for name, c := range map[string]struct {
		in   Inngest
		want inngest.Options
	}{
		"without keys": {Inngest{URL: "http://127.0.0.1:8288"}, inngest.Options{URL: "http://127.0.0.1:8288", ServeURL: own + "/api/inngest"}},
		"with keys": {
			Inngest{URL: "https://i.example.com", ServeURL: "https://n.example.com/api/inngest", App: "a", EventKeyEnv: "EVENT", SigningKeyEnv: "SIGNING"},
			inngest.Options{URL: "https://i.example.com", ServeURL: "https://n.example.com/api/inngest", App: "a", EventKey: "e-key", SigningKey: "0123abcd"},
		},
	} {
		got, err := c.in.Options(own, lookup)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
		if _, err := inngest.New(got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	away := Events{Engine: EngineInngest, Inngest: Inngest{URL: "http://i.example.com"}}
	if err := away.CheckEnvironment(lookup); !engi.Is(err, engi.Invalid) || !strings.Contains(engi.RemedyOf(err), "signing key") {
		t.Errorf("a server elsewhere, without keys: %v", err)
	}
	for _, in := range []Inngest{{}, {URL: "http://127.0.0.1:1", EventKeyEnv: "NONE"}, {URL: "http://127.0.0.1:1", SigningKeyEnv: "EMPTY"}} {
		for _, e := range []Events{{Off: true, Engine: EngineInngest, Inngest: in}, {Engine: EngineDBOS, Inngest: in}} {
			if err := e.CheckEnvironment(lookup); err != nil {
				t.Errorf("%+v is not used: %v", in, err)
			}
		}
		if err := (Events{Engine: EngineInngest, Inngest: in}).CheckEnvironment(lookup); !engi.Is(err, engi.Invalid) {
			t.Errorf("%+v: %v", in, err)
		}
		if _, err := in.Options(own, lookup); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "events.inngest") {
			t.Errorf("%+v: %v", in, err)
		}
	}
}
