package registry

import "testing"

func TestForget(t *testing.T) {
	tpl := Template{Tags: []Tag{{Name: "old", Build: "b0"}}}
	for i := range 20 {
		tpl.Builds = append(tpl.Builds, Build{ID: "b" + string(rune('0'+i)), State: BuildReady})
	}
	gone := tpl.Forget()
	if len(gone) != 9 || len(tpl.Builds) != keepBuilds+1 || tpl.Build("b0") == nil || tpl.Builds[len(tpl.Builds)-1].ID != "b"+string(rune('0'+19)) {
		t.Errorf("%d gone, left %+v", len(gone), tpl.Builds)
	}
}
