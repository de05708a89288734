package config

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/workflow/inngest"
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
	for _, in := range []Inngest{{}, {URL: "http://127.0.0.1:1", EventKeyEnv: "NONE"}, {URL: "http://127.0.0.1:1", SigningKeyEnv: "EMPTY"}} {
		if _, err := in.Options(own, lookup); engi.KindOf(err) != engi.Invalid || !strings.Contains(err.Error(), "events.inngest") {
			t.Errorf("%+v: %v", in, err)
		}
	}
}
