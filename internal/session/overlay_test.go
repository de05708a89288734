package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestOverlay checks that changes of the disk are applied to the newest template after
// release, dormancy and hibernation, and that only one copy of them is kept.
func TestOverlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Name: "s", Persistence: engi.PersistOverlay})
		var files []string
		visit := func(file, template string) {
			t.Helper()
			g, release, err := m.Enter(t.Context(), "ann", "s")
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			for _, f := range files {
				if _, err := g.Stat(t.Context(), f); err != nil {
					t.Errorf("before %s: %v", file, err)
				}
			}
			x, err := m.Get(t.Context(), "ann", "s")
			if err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if b := w.sandboxes[x.Sandbox]; b.Template != template {
				t.Errorf("%s on %s, want %s", file, b.Template, template)
			} else {
				b.files[file] = true
			}
			files = append(files, file)
		}
		visit("/etc/a", "base")
		if err := m.Release(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.template = "newer"
		w.mu.Unlock()
		visit("/etc/b", "newer")
		time.Sleep(6 * time.Minute) // dormancy
		if x, err := m.Get(t.Context(), "ann", "s"); err != nil || x.State != engi.SessionIdle || x.Saved.IsZero() {
			t.Errorf("%+v, %v", x, err)
		}
		visit("/etc/c", "newer")
		if _, err := m.Hibernate(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		visit("/etc/d", "newer")
		if _, err := m.SaveWorkspace(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		count := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.snapshots)
		}
		if n := count(); n != 1 {
			t.Errorf("%d snapshots", n)
		}
		// The saved changes are removed.
		if err := m.Release(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		clear(w.snapshots)
		w.mu.Unlock()
		files = nil
		visit("/etc/e", "newer")
		w.mu.Lock()
		if last := w.notes[len(w.notes)-1]; last.Type != engi.EventSessionSaveFailed || !strings.Contains(last.Data["error"].(string), "of the disk was removed") {
			t.Errorf("%+v", last)
		}
		w.mu.Unlock()
		if err := m.Release(t.Context(), "ann", "s"); err != nil {
			t.Fatal(err)
		}
		if err := m.Terminate(t.Context(), "ann", string(s.ID)); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != 0 {
			t.Errorf("%d snapshots after the end", n)
		}
	})
}
