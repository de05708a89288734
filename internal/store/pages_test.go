package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/store"
)

// idsOf returns the IDs of what a list returns.
func idsOf[T any](id func(T) string) func([]T, error) ([]string, error) {
	return func(list []T, err error) (all []string, _ error) {
		for _, x := range list {
			all = append(all, id(x))
		}
		return all, err
	}
}

// TestPagesAreTheList puts records of several owners in turn and compares their lists,
// page by page, with the whole. Nobody goes on after another's.
func TestPagesAreTheList(t *testing.T) {
	db, ctx := openDB(t), t.Context()
	keys, secrets, ssh := store.Keys(db), store.Secrets(db), store.SSHKeys(db)
	snapshots, volumes, documents := store.Snapshots(db), store.Volumes(db), store.Docs(db)
	box, now := engi.NewSandboxID(), time.Now()
	for i := range 20 {
		owner := []engi.Owner{"ann", "bob", "", "ann"}[i%4]
		name := fmt.Sprint("n", (i*7+i/4)%20) // names are not in the order of creation
		id := fmt.Sprintf("%02d", i)
		doc := docs.Record{Document: engi.Document{ID: engi.NewDocumentID(), Owner: owner, Package: fmt.Sprint("p", i%3), Title: fmt.Sprint("t", i%2)}, Collection: "d:" + string(owner), Key: id}
		_, err := documents.Put(ctx, doc, nil, docs.Quota{})
		for _, err := range []error{
			err,
			keys.Put(ctx, engi.Key{ID: "key_" + id, Owner: owner, Admin: owner == "", Created: now}, key.Hash{byte(i)}),
			secrets.Put(ctx, engi.Secret{ID: engi.NewSecretID(), Owner: owner, Name: name}, secret.Sealed{Key: "k"}),
			ssh.Put(ctx, engi.SSHKey{ID: engi.NewSSHKeyID(), Owner: owner, Fingerprint: id, Created: now}, 100),
			snapshots.Put(ctx, engi.Snapshot{ID: engi.NewSnapshotID(), Owner: owner, Name: name, Sandbox: box, Created: now}),
			volumes.Put(ctx, volume.Record{Volume: engi.Volume{ID: engi.NewVolumeID(), Owner: owner, Name: name, Created: now, Accessed: now}}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	vault, err := secret.Open(ctx, store.Secrets(openDB(t)), secret.Options{Path: t.TempDir() + "/key", Environment: []secret.EnvSecret{{Name: "n3", Value: "v"}, {Name: "n7", Owner: "bob", Value: "w"}}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		owner := []engi.Owner{"ann", "bob", "", "ann"}[i%4]
		if _, err := vault.Create(ctx, engi.Secret{Owner: owner, Name: fmt.Sprint("n", i/2)}, "v"); err != nil && !engi.Is(err, engi.Denied) {
			t.Fatal(err)
		}
	}
	keyID, secretID := idsOf(func(x engi.Key) string { return x.ID }), idsOf(func(x engi.Secret) string { return string(x.ID) })
	sshID, snapshotID := idsOf(func(x engi.SSHKey) string { return string(x.ID) }), idsOf(func(x engi.Snapshot) string { return string(x.ID) })
	volumeID, docID := idsOf(func(x volume.Record) string { return string(x.ID) }), idsOf(func(x docs.Record) string { return string(x.ID) })
	for noun, list := range map[string]func(engi.Viewer, engi.Paging) ([]string, error){
		"keys":    func(o engi.Viewer, p engi.Paging) ([]string, error) { return keyID(keys.List(ctx, o, p)) },
		"ssh":     func(o engi.Viewer, p engi.Paging) ([]string, error) { return sshID(ssh.List(ctx, o, p)) },
		"secrets": func(o engi.Viewer, p engi.Paging) ([]string, error) { return secretID(vault.List(ctx, o, p)) },
		"snapshots": func(o engi.Viewer, p engi.Paging) ([]string, error) {
			return snapshotID(snapshots.List(ctx, o, snapshot.Filter{Page: p}))
		},
		"snapshots of a sandbox": func(o engi.Viewer, p engi.Paging) ([]string, error) {
			return snapshotID(snapshots.List(ctx, o, snapshot.Filter{Sandbox: box, Page: p}))
		},
		"volumes": func(o engi.Viewer, p engi.Paging) ([]string, error) {
			return volumeID(volumes.List(ctx, o, volume.Filter{Page: p}))
		},
		"documents": func(o engi.Viewer, p engi.Paging) ([]string, error) {
			f := docs.Filter{Documents: true, Page: p}
			if o != engi.Everyone {
				f.Collections = slices.Compact([]string{"d:" + string(o), "d:"})
			}
			return docID(documents.Records(ctx, f))
		},
	} {
		bobs, err := list("bob", engi.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		anns, err := list("ann", engi.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		bobs = slices.DeleteFunc(bobs, func(id string) bool { return slices.Contains(anns, id) }) // the node's
		for _, owner := range []engi.Viewer{"bob", "ann", "", engi.Everyone, "eve"} {
			whole, err := list(owner, engi.Paging{})
			if err != nil || len(whole) < 4 && owner != "eve" {
				t.Fatalf("%s of %q: %q, %v", noun, owner, whole, err)
			}
			for _, id := range bobs {
				if sees := owner == "bob" || owner == engi.Everyone; slices.Contains(whole, id) != sees {
					t.Errorf("%s of %q: %q is there: %v", noun, owner, id, !sees)
				}
			}
			for limit := 1; limit <= len(whole)+1; limit++ {
				var got []string
				for p := (engi.Paging{Limit: limit}); ; p.After = got[len(got)-1] {
					more, err := list(owner, p)
					if err != nil || len(more) > limit {
						t.Fatalf("%s of %q after %q: %q, %v", noun, owner, p.After, more, err)
					}
					if got = append(got, more...); len(more) < limit {
						break
					}
				}
				if d := cmp.Diff(whole, got); d != "" {
					t.Errorf("%s of %q by %d (-whole +pages):\n%s", noun, owner, limit, d)
				}
			}
			if len(whole) > 0 {
				if rest, err := list(owner, engi.Paging{After: whole[0]}); err != nil || !slices.Equal(rest, whole[1:]) {
					t.Errorf("%s of %q without a limit: %q, %v", noun, owner, rest, err)
				}
			}
			for _, after := range append([]string{"x", "key_99", "' OR 1 --"}, bobs...) {
				if slices.Contains(whole, after) {
					continue
				}
				if got, err := list(owner, engi.Paging{After: after, Limit: 3}); !engi.Is(err, engi.Invalid) || len(got) > 0 {
					t.Errorf("%s of %q after %q: %q, %v", noun, owner, after, got, err)
				}
			}
		}
		if len(bobs) < 4 {
			t.Errorf("%s: only %q are bob's", noun, bobs)
		}
	}
}
