package store

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/fleet/fleettest"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/workspace"
)

// A vault is a database and the key of its secrets.
type vault struct {
	*DB
	t     *testing.T
	dir   string
	seal  secret.Options
	close func() error
}

// openVault opens the database in dir; sealed says whether by a version that seals.
func openVault(t *testing.T, dir string, sealed bool) *vault {
	t.Helper()
	db, err := Open(t.Context(), filepath.Join(dir, "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	v := &vault{DB: db, t: t, dir: dir, close: sync.OnceValue(db.Close), seal: secret.Options{Path: filepath.Join(dir, "secret.key"), Reseal: func(ctx context.Context, s *secret.Service) (int, error) {
		db.Sealer = s
		return db.Reseal(ctx)
	}}}
	t.Cleanup(func() { v.close() })
	if sealed {
		s, err := secret.Open(t.Context(), Secrets(db), v.seal)
		if err != nil {
			t.Fatal(err)
		}
		v.Sealer = s
		if err := db.SealStored(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// find reports where the files of the database have some of the values.
func (v *vault) find(values []string) (found []string) {
	v.t.Helper()
	files, err := filepath.Glob(filepath.Join(v.dir, "engi.db*"))
	if err != nil || len(files) < 2 {
		v.t.Fatalf("the files of the database are %v, %v", files, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			v.t.Fatal(err)
		}
		for _, x := range values {
			if bytes.Contains(data, []byte(x)) {
				found = append(found, x+" in "+filepath.Base(f))
			}
		}
	}
	return found
}

// Records with a secret in each field that may have one, and all these secrets.
func secretRecords() (sandbox, forExecution fleet.SandboxRecord, sess session.Record, snap engi.Snapshot, values []string) {
	canary := func(what string) string {
		v := fmt.Sprintf("canary-of-%s-%d", what, len(values))
		values = append(values, v)
		return v
	}
	policy := func() engi.NetworkPolicy {
		return engi.NetworkPolicy{
			Mode: engi.NetworkRestricted, Allow: []string{"api.example"},
			Headers: []engi.HeaderRule{{Host: "api.example", Headers: map[string]string{"Authorization": canary("header")}}},
			Proxy:   &engi.UpstreamProxy{Address: "proxy.example:8080", User: canary("user"), Password: canary("password")},
			Detail:  map[string]any{"as asked": canary("detail")},
		}
	}
	sandbox = fleettest.Sandbox("alice", engi.Running)
	sandbox.Made, sandbox.Env, sandbox.Notes, sandbox.Network = true, map[string]string{"A": canary("env")}, map[string]string{"mcp": canary("notes")}, policy()
	forExecution = fleettest.Sandbox("alice", engi.Running)
	forExecution.Made, forExecution.Network = false, policy()
	sess = session.Record{Session: engi.Session{ID: engi.NewSessionID(), Owner: "alice", State: engi.SessionIdle, Mode: engi.SessionMode("python"),
		Env: map[string]string{"A": canary("session env")}, Network: policy(), Created: time.Now().UTC()}}
	snap = engi.Snapshot{ID: engi.NewSnapshotID(), Owner: "alice", Env: map[string]string{"A": canary("snapshot env")}, Created: time.Now().UTC()}
	return sandbox, forExecution, sess, snap, values
}

// TestRecordsAreSealed stores secrets wherever records may have some and looks for
// them in the files of the database: after changes, after the key was replaced,
// and after an earlier version has stored them unsealed.
func TestRecordsAreSealed(t *testing.T) {
	for _, from := range []string{"this version", "an earlier version"} {
		t.Run(from, func(t *testing.T) {
			dir := t.TempDir()
			now := from == "this version"
			v := openVault(t, dir, now)
			box, run, sess, snap, values := secretRecords()
			app := app.Record{App: engi.App{ID: engi.NewAppID(), Owner: "alice", Name: "shop"}, Env: map[string]string{"KEY": "env-of-an-app"}}
			app.Network = engi.NetworkPolicy{Mode: engi.NetworkOpen, Headers: []engi.HeaderRule{{Host: "h", Headers: map[string]string{"X": "header-of-an-app"}}}}
			values = append(values, "env-of-an-app", "header-of-an-app")
			space := workspace.Record{Workspace: engi.Workspace{ID: engi.NewWorkspaceID(), Owner: "alice", Name: "lab"}}
			space.Services = []workspace.ServiceRecord{{Service: engi.Service{Name: "db"}, User: "app", Password: "password-of-a-service", Env: map[string]string{"KEY": "env-of-a-service"}}}
			values = append(values, "password-of-a-service", "env-of-a-service")
			fail := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			fail(Fleet(v.DB).PutSandbox(t.Context(), box))
			fail(Fleet(v.DB).PutSandbox(t.Context(), run))
			fail(Sessions(v.DB).Put(t.Context(), sess))
			fail(Snapshots(v.DB).Put(t.Context(), snap))
			fail(Apps(v.DB).Put(t.Context(), app))
			fail(Workspaces(v.DB).Put(t.Context(), space, nil))
			check := func() {
				t.Helper()
				for _, want := range []fleet.SandboxRecord{box, run} {
					got, err := Fleet(v.DB).GetSandbox(t.Context(), "alice", want.ID)
					if err != nil || !maps.Equal(got.Env, want.Env) || !maps.Equal(got.Notes, want.Notes) || !reflect.DeepEqual(got.Network, want.Network) {
						t.Errorf("sandbox %+v, %v, want %+v", got, err, want)
					}
				}
				gotSession, err := Sessions(v.DB).Find(t.Context(), "alice", string(sess.ID))
				if err != nil || !maps.Equal(gotSession.Env, sess.Env) || !reflect.DeepEqual(gotSession.Network, sess.Network) {
					t.Errorf("session %+v, %v", gotSession, err)
				}
				gotSnap, err := Snapshots(v.DB).Find(t.Context(), "alice", string(snap.ID), time.Now())
				if err != nil || !maps.Equal(gotSnap.Env, snap.Env) {
					t.Errorf("snapshot %+v, %v", gotSnap, err)
				}
				gotSpace, err := Workspaces(v.DB).Find(t.Context(), "alice", "lab")
				if err != nil || !reflect.DeepEqual(gotSpace.Services, space.Services) {
					t.Errorf("workspace %+v, %v", gotSpace, err)
				}
				gotApp, err := Apps(v.DB).Find(t.Context(), "alice", "shop")
				if err != nil || !maps.Equal(gotApp.Env, app.Env) || !reflect.DeepEqual(gotApp.Network, app.Network) {
					t.Errorf("app %+v, %v", gotApp, err)
				}
			}
			check()
			if !now {
				if found := v.find(values); len(found) < len(values) {
					t.Errorf("the search finds %d of %d: %v", len(found), len(values), found)
				}
				fail(v.close())
				v = openVault(t, dir, true)
				check()
			}
			if found := v.find(values); found != nil {
				t.Errorf("found %v", found)
			}
			box.Metadata = map[string]string{"x": "y"}
			fail(Fleet(v.DB).PutSandbox(t.Context(), box))
			check()

			key, err := os.ReadFile(v.seal.Path)
			fail(err)
			n, err := secret.Rotate(t.Context(), Secrets(v.DB), v.seal)
			if err != nil || n != 6 {
				t.Fatalf("rotated %d, %v", n, err)
			}
			check()
			if found := v.find(values); found != nil {
				t.Errorf("found %v", found)
			}
			if again, err := os.ReadFile(v.seal.Path); err != nil || bytes.Equal(key, again) {
				t.Errorf("the key is the same, %v", err)
			}
			fail(v.close())

			// The key goes missing, and is then given up.
			v = openVault(t, dir, false)
			fail(os.Remove(v.seal.Path))
			if _, err := secret.Open(t.Context(), Secrets(v.DB), v.seal); !engi.Is(err, engi.Conflict) {
				t.Errorf("without the key: %v", err)
			}
			fail(os.WriteFile(v.seal.Path, nil, 0o600))
			fail(v.close())
			v = openVault(t, dir, true)
			got, err := Fleet(v.DB).GetSandbox(t.Context(), "alice", box.ID)
			if err != nil || got.Env != nil || got.Network.Mode != engi.NetworkNone || got.Metadata["x"] != "y" {
				t.Errorf("sandbox %+v, %v", got, err)
			}
			gotSession, err := Sessions(v.DB).Find(t.Context(), "alice", string(sess.ID))
			if err != nil || gotSession.Env != nil || gotSession.Network.Mode != engi.NetworkNone {
				t.Errorf("session %+v, %v", gotSession, err)
			}
			gotSpace, err := Workspaces(v.DB).Find(t.Context(), "alice", "lab")
			if err != nil || len(gotSpace.Services) != 1 || gotSpace.Services[0].Password != "" || gotSpace.Services[0].User != "app" {
				t.Errorf("workspace %+v, %v", gotSpace, err)
			}
			gotApp, err := Apps(v.DB).Find(t.Context(), "alice", "shop")
			if err != nil || gotApp.Env != nil || gotApp.Network.Mode != engi.NetworkNone {
				t.Errorf("app %+v, %v", gotApp, err)
			}
			if gotSnap, err := Snapshots(v.DB).Find(t.Context(), "alice", string(snap.ID), time.Now()); err != nil || gotSnap.Env != nil {
				t.Errorf("snapshot %+v, %v", gotSnap, err)
			}
		})
	}
}

// TestSealedRowsAreBound moves what is sealed to another owner's row.
func TestSealedRowsAreBound(t *testing.T) {
	v := openVault(t, t.TempDir(), true)
	box, _, _, _, _ := secretRecords()
	if err := Fleet(v.DB).PutSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if _, err := v.exec(t.Context(), `UPDATE sandboxes SET owner = 'mallory'`); err != nil {
		t.Fatal(err)
	}
	if got, err := Fleet(v.DB).GetSandbox(t.Context(), "mallory", box.ID); err != nil || got.Env != nil || got.Network.Mode != engi.NetworkNone {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestToolRequestsAreSealed looks in the files of the database for what was asked
// by a program that uses tools, and what was answered.
func TestToolRequestsAreSealed(t *testing.T) {
	v := openVault(t, t.TempDir(), true)
	s, ctx := ToolClients(v.DB), t.Context()
	if err := s.Put(ctx, engi.ToolClient{ID: "c", Key: "key_1", About: []byte("{}"), Used: time.Now()}, 1, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutRequest(ctx, engi.ToolRequest{Client: "c", Stream: "s", Body: []byte("canary-of-request")}, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.AddAnswer(ctx, "c", "s", []byte("canary-of-answer"), 1000); err != nil {
		t.Fatal(err)
	}
	if found := v.find([]string{"canary-of-request", "canary-of-answer"}); len(found) > 0 {
		t.Errorf("there is %v", found)
	}
	if r, err := s.Request(ctx, "c", "s"); err != nil || string(r.Body) != "canary-of-request" || len(r.Answers) != 1 || string(r.Answers[0]) != "canary-of-answer" {
		t.Errorf("%+v %v", r, err)
	}
}
