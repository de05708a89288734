package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

// TestPagesOfSessions has the demo model draw a page, with sessions that have sandboxes
// and without, and with an agent for pages that the operator has configured.
func TestPagesOfSessions(t *testing.T) {
	for name, test := range map[string]struct {
		configure func(*config.Config)
		tools     []string
		first     string
	}{
		"with sandboxes": {func(c *config.Config) { c.Sessions.Enabled, c.Sessions.Template = true, "host" }, []string{"search_docs", "run_code"}, "coder"},
		"without":        {func(c *config.Config) { c.Sessions.Enabled = false }, []string{"search_docs"}, "coder"},
		"without docs":   {func(c *config.Config) { c.Sessions.Enabled, c.Docs.Off = false, true }, nil, "coder"},
		"with an agent of its own": {func(c *config.Config) {
			c.Agents = []config.Agent{{Name: "ui", Tools: []string{}}}
		}, nil, "coder"},
		"with other agents": {func(c *config.Config) { c.Agents = []config.Agent{{Name: "ui"}, {Name: "zoe"}} }, nil, "zoe"},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := fakeNode(t)
			test.configure(&c)
			n, err := Open(t.Context(), c, o)
			if err != nil {
				t.Fatal(err)
			}
			start(t, n)
			agents := n.Agents().Agents()
			ui := agents[len(agents)-1]
			if agents[0].Name != test.first || ui.Name != "ui" || !slices.Equal(ui.Tools, test.tools) || ui.Steps != 10 {
				t.Errorf("the first agent is %s, the last %+v", agents[0].Name, ui)
			}
			for _, name := range []string{"coder", "explore", "code"} {
				if !slices.ContainsFunc(agents, func(a engi.AgentSpec) bool { return a.Name == name }) {
					t.Errorf("there is no agent %s", name)
				}
			}
			s, err := n.Sessions().Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "page"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.Pages().Act(t.Context(), engi.PageAction{Viewer: "ann", Session: "page", Action: "demo-counter"}); err != nil {
				t.Fatal(err)
			}
			page := engi.Page{}
			for end := time.Now().Add(time.Minute); page.HTML == "" || page.Working != ""; time.Sleep(5 * time.Millisecond) {
				if page, err = n.Pages().Get(t.Context(), "ann", "page", 0); err != nil || time.Now().After(end) {
					t.Fatalf("%+v, %v", page, err)
				}
			}
			if !strings.Contains(page.HTML, `<p id="count">0</p>`) {
				t.Errorf("%+v", page)
			}
			runs, err := n.Agents().List(t.Context(), "ann", 0)
			if err != nil || len(runs) != 1 || runs[0].Agent != "ui" || (runs[0].Session == string(s.ID)) != c.Sessions.Enabled {
				t.Errorf("%+v, %v", runs, err)
			}
			// The page takes no sandbox.
			if s, err = n.Sessions().Get(t.Context(), "ann", "page"); err != nil || s.State != engi.SessionIdle || s.Volume != "" {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}
