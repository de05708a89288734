package node

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

// TestProgramsFindRegistries runs programs where all templates have registries, and
// where one has others.
func TestProgramsFindRegistries(t *testing.T) {
	for name, try := range map[string]struct {
		mirrors config.Registries
		want    string
	}{
		"none":     {config.Registries{}, "//"},
		"for all":  {config.Registries{NPM: "https://npm.example.com/", Pip: "https://pypi.example.com/simple"}, "https://npm.example.com//https://pypi.example.com/simple/"},
		"for host": {config.Registries{NPM: "https://npm.example.com/", Go: "off", Template: map[string]config.TemplateRegistries{"host": {NPM: "-", Pip: "http://127.0.0.1:1/simple"}}}, "/http://127.0.0.1:1/simple/off"},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := fakeNode(t)
			c.Registries = try.mirrors
			n, err := Open(t.Context(), c, o)
			if err != nil {
				t.Fatal(err)
			}
			start(t, n)
			const program = `printf %s "$NPM_CONFIG_REGISTRY/$PIP_INDEX_URL/$GOPROXY"`
			x, err := n.Executions().Start(t.Context(), engi.ExecutionSpec{
				Owner: "ann", Program: engi.Program{Language: engi.Bash, Entry: "main.sh", Files: []engi.SourceFile{{Path: "main.sh", Data: []byte(program)}}},
			})
			if err == nil {
				x, err = n.Executions().Wait(t.Context(), "ann", x.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := string(x.Result.Stdout); got != try.want {
				t.Errorf("programs see %q (%s), want %q", got, strings.TrimSpace(string(x.Result.Stderr)), try.want)
			}
		})
	}
}
