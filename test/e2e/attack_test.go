package e2e

import (
	"testing"

	"github.com/engi-dev/engi/client"
	programs "github.com/engi-dev/engi/internal/attack"
)

// TestGauntlet attacks a node through its API, as its users could. Every attack that
// could be tried must fail; ways around the egress gateway need the Internet for their controls.
func TestGauntlet(t *testing.T) {
	n := sharedNode(t).private
	url := n.Endpoint().URL
	as := func(key string) *client.Client { return client.New(url, key) }
	results, err := programs.Run(t.Context(), programs.Options{Client: as(n.AdminKey()), As: as, Canary: canaryPath})
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]int{}
	for _, r := range results {
		switch {
		case r.Outcome == programs.Broke:
			t.Errorf("%s, %s broke: %s", r.Group, r.Name, r.Why)
		case r.Outcome == programs.Skipped && r.Group != "egress" && r.Group != "secrets":
			t.Errorf("%s, %s was skipped: %s", r.Group, r.Name, r.Why)
		case r.Outcome == programs.Skipped:
			t.Logf("%s, %s was skipped: %s", r.Group, r.Name, r.Why)
		default:
			tried[r.Group]++
		}
	}
	t.Logf("held: %v", tried)
}
