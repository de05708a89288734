package node

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestDiskOfAnOwnerIsOne: what the rooms of a node make of an owner's disk counts
// together.
func TestDiskOfAnOwnerIsOne(t *testing.T) {
	c, o := fakeNode(t)
	c.Quota.Disk = 4 << 30
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	volume := func(name string, capacity int64) error {
		_, err := n.volumes.Create(t.Context(), engi.VolumeSpec{Owner: "ann", Name: name, Capacity: capacity})
		return err
	}
	sandbox := func() error {
		_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "ann", Size: engi.Size{Disk: 1 << 30}})
		return err
	}
	build := func() error {
		_, err := n.templates.BuildSteps(t.Context(), engi.BuildSpec{Name: "hers", Owner: "ann", FromTemplate: "none"}, nil)
		return err
	}
	if err := build(); !engi.Is(err, engi.NotFound) {
		t.Errorf("a build while there is room: %v", err)
	}
	if err := volume("large", 5<<30); !engi.Is(err, engi.Exhausted) {
		t.Errorf("a volume larger than the quota: %v", err)
	}
	if err := volume("most", 3<<30); err != nil {
		t.Fatal(err)
	}
	if err := sandbox(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"a volume": volume("more", 1<<30), "a sandbox": sandbox(), "a build": build()} {
		if !engi.Is(err, engi.Exhausted) {
			t.Errorf("%s beyond the quota: %v", what, err)
		}
	}
}
