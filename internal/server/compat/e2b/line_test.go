package e2b

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// startBuilds starts builds and returns where their states are.
func (w *fixture) startBuilds(key string, n int) (status []string) {
	w.t.Helper()
	for i := range n {
		m := w.want(202, key, "POST", "/v3/templates", fmt.Sprintf(`{"name":"%s%d"}`, key, i))
		path := m["templateID"].(string) + "/builds/" + m["buildID"].(string)
		w.want(202, key, "POST", "/v2/templates/"+path, `{"fromTemplate":"base","steps":[{"type":"RUN","args":["x"]}]}`)
		status = append(status, "/templates/"+path+"/status")
	}
	return status
}

func TestBuildsOfOneOwnerWaitForEachOther(t *testing.T) {
	w := newFixture(t)
	running, goOn := make(chan engi.Owner, 10), make(chan struct{})
	w.templates.during = func(_ context.Context, spec engi.BuildSpec) {
		running <- spec.Owner
		<-goOn
	}
	anns := w.startBuilds("ann", 3)
	if who := <-running; who != "ann" {
		t.Fatalf("a build of %q runs", who)
	}
	// There are two slots, and the second is not ann's.
	w.startBuilds("ben", 1)
	if who := <-running; who != "ben" {
		t.Errorf("beside a build of ann's, another of %q runs", who)
	}
	select {
	case who := <-running:
		t.Errorf("another build of %q runs", who)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	for _, s := range anns {
		if end := w.ended(s); end["status"] != "ready" {
			t.Errorf("got %v", end)
		}
	}
	w.Server.work.Wait()
	if len(w.Server.lines) > 0 || len(running) != 2 {
		t.Errorf("%d lines are left, %d more builds ran", len(w.Server.lines), len(running))
	}
}

// TestWaitingBuildsAreBounded leaves room for another owner's.
func TestWaitingBuildsAreBounded(t *testing.T) {
	w := newFixture(t)
	w.Server.waiting = engi.NewShares(4)
	goOn := make(chan struct{})
	w.templates.during = func(context.Context, engi.BuildSpec) { <-goOn }
	anns := w.startBuilds("ann", 3)
	made := w.want(202, "ann", "POST", "/v3/templates", `{"name":"one-more"}`)
	more := fmt.Sprintf("/v2/templates/%s/builds/%s", made["templateID"], made["buildID"])
	w.want(429, "ann", "POST", more, `{}`)
	w.startBuilds("ben", 1)
	close(goOn)
	for _, s := range anns {
		w.ended(s)
	}
	w.Server.work.Wait()
	w.want(202, "ann", "POST", more, `{}`)
}

func TestBuildsEndInTime(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.BuildTime = 50 * time.Millisecond })
	w.templates.during = func(ctx context.Context, _ engi.BuildSpec) { <-ctx.Done() }
	for _, s := range w.startBuilds("ann", 2) {
		end := w.ended(s)
		if r, ok := end["reason"].(map[string]any); end["status"] != "error" || !ok || !strings.Contains(r["message"].(string), "longer than 50ms") {
			t.Errorf("got %v", end)
		}
	}
}
