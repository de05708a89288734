package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
)

const docsSection = `
[docs]
refresh = "1h"
hosts = ["*.example.com:443"]

[[docs.sources]]
package = "acme"
urls = ["https://example.com/acme.md"]
files = ["/srv/acme/*.md"]
`

// TestDocsOfPackages checks that documentation of packages is read where
// sessions can import them, and only there.
func TestDocsOfPackages(t *testing.T) {
	const section = `
[sandbox]
enabled = %s
[[sandbox.dependencies]]
package = "@linear/sdk@39.0.0"
docs = ["https://linear.example/sdk.md"]
`
	linear := engi.DocumentSpec{Package: "@linear/sdk", URL: "https://linear.example/sdk.md"}
	acme := engi.DocumentSpec{Package: "acme", URL: "https://example.com/acme.md"}
	for name, c := range map[string]struct {
		text string
		want []engi.DocumentSpec
	}{
		"nothing":  {"", nil},
		"enabled":  {docsSection + strings.Replace(section, "%s", "true", 1), []engi.DocumentSpec{linear, acme}},
		"disabled": {docsSection + strings.Replace(section, "%s", "false", 1), []engi.DocumentSpec{acme}},
	} {
		conf, err := load(t, c.text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		specs, files := conf.Documents()
		if d := cmp.Diff(c.want, specs); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if c.want != nil && cmp.Diff([]docs.File{{Package: "acme", Path: "/srv/acme/*.md"}}, files) != "" {
			t.Errorf("%s: files %v", name, files)
		}
	}
}

func TestDocsThatCannotBe(t *testing.T) {
	for name, text := range map[string]string{
		"no documents":   "[[docs.sources]]\npackage = \"x\"",
		"no address":     "[[docs.sources]]\nurls = [\"sdk.md\"]",
		"a user":         "[[docs.sources]]\nurls = [\"https://a:b@example.com/x\"]",
		"relative":       "[[docs.sources]]\nfiles = [\"docs/x.md\"]",
		"hasty":          "[docs]\nrefresh = \"1ms\"",
		"negative":       "[docs]\ndocuments = -1",
		"an unknown key": "[docs]\nrefersh = \"1h\"",
	} {
		if _, err := load(t, text); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" && name != "negative" {
			t.Errorf("%s: %v (%s)", name, err, engi.RemedyOf(err))
		}
	}
	if c, err := load(t, "[docs]\noff = true\nrefresh = \"1ms\""); err != nil || !c.Docs.Off {
		t.Errorf("%v", err)
	}
}
