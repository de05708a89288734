package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

func TestBuildsSection(t *testing.T) {
	c, _, err := Load(From{File: write(t, `
[builds]
registries = ["registry.internal:5000"]
[builds.env]
PIP_INDEX_URL = "https://pypi.example.com/simple"
`)})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"PIP_INDEX_URL": "https://pypi.example.com/simple"}, c.Builds.Env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(fleet.DefaultBuildHosts(), c.Builds.Allow); d != "" {
		t.Error(d)
	}
	for _, file := range []string{
		"[builds]\nregistries = ['registry.internal']",
		"[builds]\nregistries = ['registry.internal:0']",
		"[builds]\nregistries = ['http://registry.internal:80/x']",
		"[builds.env]\n'A=B' = 'x'",
	} {
		if _, _, err := Load(From{File: write(t, file)}); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%q: %v", file, err)
		}
	}
}
