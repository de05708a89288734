package session

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func lab() engi.Workspace {
	return engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "ann", Name: "lab", Template: "tools", Collaborators: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}}}
}

// TestWorkspaceSession follows two sessions in the sandbox of one workspace.
func TestWorkspaceSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		w.lab = lab()
		m, stop := start(t, w)
		defer func() { stop() }()
		one := create(t, m, engi.SessionSpec{Owner: "ann", Name: "one", Workspace: "lab"})
		two := create(t, m, engi.SessionSpec{Owner: "ann", Name: "two", Workspace: string(w.lab.ID), Mode: engi.SessionWarm})
		if one.Workspace != w.lab.ID || two.Workspace != w.lab.ID || one.Template != "tools" || one.State != engi.SessionIdle {
			t.Errorf("%+v, %+v", one, two)
		}
		if res := runCode(t, m, one.ID, "set k v\nget k"); string(res.Value) != `"v"` {
			t.Errorf("%+v", res)
		}
		if res := runCode(t, m, two.ID, "get k"); string(res.Value) != `"v"` {
			t.Errorf("the other session reads %+v", res)
		}
		sandboxes, volumes, boots, _ := w.count()
		if sandboxes != 1 || volumes != 0 || boots != 1 {
			t.Errorf("%d sandboxes, %d volumes, %d boots", sandboxes, volumes, boots)
		}
		sandbox := w.lab.Sandbox
		for _, s := range []engi.Session{one, two} {
			if x, err := m.Get(t.Context(), "ann", s.Name); err != nil || x.State != engi.SessionRunning || x.Sandbox != sandbox {
				t.Errorf("%+v, %v", x, err)
			}
			for what, f := range map[string]func() error{
				"suspend":   func() error { _, err := m.Suspend(t.Context(), "ann", s.Name); return err },
				"hibernate": func() error { _, err := m.Hibernate(t.Context(), "ann", s.Name); return err },
			} {
				if err := f(); !engi.Is(err, engi.Unsupported) || engi.RemedyOf(err) == "" {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		// Code of the one is ended when it is released, and code of the other goes on.
		if err := m.Release(t.Context(), "ann", "one"); err != nil {
			t.Fatal(err)
		}
		alive := func(s engi.Session) (n int) {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, p := range w.sandboxes[sandbox].processes {
				if !p.ended.Load() && strings.Contains(p.tag, string(s.ID)) {
					n++
				}
			}
			return n
		}
		if x, err := m.Get(t.Context(), "ann", "one"); err != nil || x.State != engi.SessionIdle || x.Sandbox != "" {
			t.Errorf("%+v, %v", x, err)
		}
		if sandboxes, _, _, _ := w.count(); sandboxes != 1 || alive(one) != 0 || alive(two) != 0 {
			t.Errorf("%d sandboxes, processes %d, %d", sandboxes, alive(one), alive(two))
		}
		// After a kill of the server, code of one session is ended when it is used again, and that of the other goes on.
		begin := func(x engi.Session) <-chan engi.CodeResult {
			ended := make(chan engi.CodeResult, 1)
			go func() {
				res, _ := m.RunCode(context.Background(), "ann", string(x.ID), engi.CodeSpec{Code: "sleep 2m"}, nil)
				ended <- res
			}()
			time.Sleep(time.Second)
			return ended
		}
		first, second := begin(one), begin(two)
		if alive(one) != 1 || alive(two) != 1 {
			t.Errorf("processes %d, %d", alive(one), alive(two))
		}
		again, stopAgain := start(t, w)
		if res := runCode(t, again, two.ID, "get k"); string(res.Value) != `"v"` || alive(one) != 1 || alive(two) != 0 {
			t.Errorf("%+v, processes %d, %d", res, alive(one), alive(two))
		}
		stopAgain()
		if res := <-second; res.OK {
			t.Errorf("code that was ended: %+v", res)
		}
		if res := <-first; !res.OK {
			t.Errorf("code of the other session: %+v", res)
		}
		// It sleeps with the workspace, and wakes it.
		time.Sleep(11 * time.Minute)
		if x, err := m.Get(t.Context(), "ann", "two"); err != nil || x.State != engi.SessionHibernated {
			t.Errorf("%+v, %v", x, err)
		}
		if res := runCode(t, m, two.ID, "get k"); string(res.Value) != `"v"` || w.booted() != 1 {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		// A workspace whose sandbox has ended gets another.
		if err := (liveSandboxes{w}).Stop(t.Context(), "ann", sandbox); err != nil {
			t.Fatal(err)
		}
		if res := runCode(t, m, two.ID, "get k"); !res.OK || w.booted() != 2 || w.lab.Sandbox == sandbox {
			t.Errorf("%+v, %d boots", res, w.booted())
		}
		sandbox = w.lab.Sandbox
		// The end of the session, also by its time to live, leaves the workspace alone, and none of its code there.
		running := begin(two)
		if err := m.Terminate(t.Context(), "ann", "two"); err != nil {
			t.Fatal(err)
		}
		if res := <-running; res.OK {
			t.Errorf("code outlives its session: %+v", res)
		}
		if sandboxes, _, _, _ := w.count(); sandboxes != 1 || alive(two) != 0 {
			t.Errorf("%d sandboxes, %d processes", sandboxes, alive(two))
		}
		for range 31 { // the workspace is used, the session is not
			time.Sleep(time.Minute)
			_, leave, err := liveSandboxes{w}.Enter(t.Context(), engi.Everyone, sandbox)
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		if _, err := m.RunCode(t.Context(), "ann", "one", engi.CodeSpec{Code: "get k"}, nil); !engi.Is(err, engi.NotFound) {
			t.Errorf("a session lives after its time: %v", err)
		}
		// A session that ends does not wake a workspace that sleeps, and not even one that reaches its maximum duration in
		// the middle of its code leaves code behind.
		last := create(t, m, engi.SessionSpec{Owner: "ann", Workspace: "lab", TTL: 15 * time.Minute})
		runCode(t, m, last.ID, "get k")
		time.Sleep(20 * time.Minute)
		if b, err := (liveSandboxes{w}).Get(t.Context(), engi.Everyone, sandbox); err != nil || b.State != engi.Hibernated {
			t.Errorf("%+v, %v", b.State, err)
		}
		short := create(t, m, engi.SessionSpec{Owner: "ann", Workspace: "lab", MaxDuration: time.Minute})
		if res := <-begin(short); res.OK {
			t.Errorf("code outlives the maximum duration: %+v", res)
		}
		time.Sleep(time.Minute)
		if alive(short) != 0 {
			t.Errorf("%d processes", alive(short))
		}
		// With the workspace, its sessions have nothing to work in.
		three := create(t, m, engi.SessionSpec{Owner: "ann", Workspace: "lab"})
		runCode(t, m, three.ID, "get k")
		w.mu.Lock()
		w.drop(sandbox)
		w.lab = engi.Workspace{}
		w.mu.Unlock()
		if _, err := m.RunCode(t.Context(), "ann", string(three.ID), engi.CodeSpec{Code: "get k"}, nil); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		if len(w.faults) > 0 {
			t.Errorf("%q", w.faults)
		}
	})
}

func TestWorkspaceSessionIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		w.lab = lab()
		m, stop := start(t, w)
		defer stop()
		id := string(w.lab.ID)
		for what, c := range map[string]struct {
			spec engi.SessionSpec
			want engi.Kind
		}{
			"of a stranger":     {engi.SessionSpec{Owner: "eve", Workspace: id}, engi.NotFound},
			"of an editor":      {engi.SessionSpec{Owner: "bob", Workspace: id}, engi.Denied},
			"of the node":       {engi.SessionSpec{Workspace: id}, engi.NotFound},
			"that is not there": {engi.SessionSpec{Owner: "ann", Workspace: "none"}, engi.NotFound},
			"template":          {engi.SessionSpec{Owner: "ann", Workspace: id, Template: "base"}, engi.Invalid},
			"size":              {engi.SessionSpec{Owner: "ann", Workspace: id, Size: engi.Size{Memory: 1 << 30}}, engi.Invalid},
			"persistence":       {engi.SessionSpec{Owner: "ann", Workspace: id, Persistence: engi.PersistSession}, engi.Invalid},
			"capacity":          {engi.SessionSpec{Owner: "ann", Workspace: id, Capacity: 1 << 30}, engi.Invalid},
			"dormancy":          {engi.SessionSpec{Owner: "ann", Workspace: id, Dormancy: time.Minute}, engi.Invalid},
			"quota":             {engi.SessionSpec{Owner: "ann", Workspace: id, CPUQuota: 0.5}, engi.Invalid},
			"network":           {engi.SessionSpec{Owner: "ann", Workspace: id, Network: engi.NetworkPolicy{Mode: engi.NetworkOpen}}, engi.Invalid},
			"environment":       {engi.SessionSpec{Owner: "ann", Workspace: id, Env: map[string]string{"A": "b"}}, engi.Invalid},
			"git":               {engi.SessionSpec{Owner: "ann", Workspace: id, Git: &engi.GitSpec{URL: "https://a.example/x.git"}}, engi.Invalid},
		} {
			if _, err := m.Create(t.Context(), c.spec); !engi.Is(err, c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		o := options(w)
		o.Shared = nil
		none, stopNone := startWith(t, o)
		defer stopNone()
		if _, err := none.Create(t.Context(), engi.SessionSpec{Owner: "ann", Workspace: id}); !engi.Is(err, engi.Unsupported) {
			t.Errorf("%v", err)
		}
	})
}
