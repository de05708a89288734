package engi_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestViewer checks whose objects the viewers of owners see. Neither the node itself nor an owner
// with the name of Everyone becomes everyone.
func TestViewer(t *testing.T) {
	owners := []engi.Owner{"", "ann", "bob", "*", "**"}
	for _, o := range owners {
		if o.Viewer() == engi.Everyone {
			t.Errorf("the viewer of %q is everyone", o)
		}
		if !engi.Everyone.Sees(o) {
			t.Errorf("everyone does not see %q", o)
		}
		for _, other := range owners[:4] {
			if o != "**" && o.Viewer().Sees(other) != (o == other) {
				t.Errorf("%q sees %q: %v", o, other, o != other)
			}
		}
		if want := o == ""; (o.Reach() == engi.Everyone) != want {
			t.Errorf("objects of %q use those of %q", o, o.Reach())
		}
	}
	var zero engi.Viewer
	for _, o := range owners {
		if zero.Sees(o) != (o == "") {
			t.Errorf("the zero viewer sees %q: %v", o, o != "")
		}
	}
	if engi.Owner("ann").Viewer().Owner() != "ann" || engi.Owner("").Viewer().Owner() != "" || engi.Everyone.Owner() != "" {
		t.Error("a viewer acts as another owner")
	}
}
