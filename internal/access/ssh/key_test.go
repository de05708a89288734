package ssh_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"strings"
	"testing"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// line returns the authorized_keys line of a private key.
func line(t testing.TB, private any) string {
	t.Helper()
	signer, err := xssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(xssh.MarshalAuthorizedKey(signer.PublicKey())))
}

func fresh(t testing.TB) (ed25519.PrivateKey, string) {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k, line(t, k)
}

func open(t testing.TB) *store.DB {
	t.Helper()
	db, err := storetest.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func kind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) || engi.RemedyOf(err) == "" {
		t.Errorf("error %v, remedy %q; want %s", err, engi.RemedyOf(err), want)
	}
}

func TestPublicKeys(t *testing.T) {
	_, good := fresh(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{good, good + " me@laptop\n", "  " + good, line(t, curve)} {
		if _, _, err := ssh.ParsePublicKey(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for what, text := range map[string]string{
		"nothing": " \n", "words": "hello there", "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----", "two keys": good + "\n" + good,
		"options": `command="ls" ` + good, "a small RSA key": line(t, small), "a long line": good + " " + strings.Repeat("x", 20<<10),
		"a damaged key": strings.Replace(good, "AAAAC3", "AAAAC4", 1), "an old kind": "ssh-dss AAAAB3NzaC1kc3MAAAAB",
	} {
		_, _, err := ssh.ParsePublicKey(text)
		if kind(t, err, engi.Invalid); t.Failed() {
			t.Fatal(what)
		}
	}
}

func TestKeysOfOwners(t *testing.T) {
	db := open(t)
	keys, ctx := ssh.NewKeys(store.SSHKeys(db)), engi.WithActor(t.Context(), "key_x")
	_, first := fresh(t)
	k, err := keys.Create(ctx, engi.SSHKey{Owner: "ann", PublicKey: first + " ann@laptop"})
	if err != nil {
		t.Fatal(err)
	}
	if k.Name != "ann@laptop" || k.PublicKey != first || !strings.HasPrefix(k.Fingerprint, "SHA256:") || k.ID.Check() != nil || k.Created.IsZero() {
		t.Errorf("%+v", k)
	}
	if got, err := keys.Get(ctx, "ann", k.ID); err != nil || got != k {
		t.Errorf("%+v %v, want %+v", got, err, k)
	}
	for _, owner := range []engi.Owner{"ann", "bob"} { // a node has a key once
		_, err = keys.Create(ctx, engi.SSHKey{Owner: owner, PublicKey: first})
		kind(t, err, engi.Conflict)
	}
	_, err = keys.Get(ctx, "bob", k.ID)
	kind(t, err, engi.NotFound)
	kind(t, keys.Remove(ctx, "bob", k.ID), engi.NotFound)
	for _, viewer := range []engi.Viewer{"bob", ""} {
		if all, err := keys.List(ctx, viewer, engi.Paging{}); err != nil || len(all) != 0 {
			t.Errorf("%v %v", all, err)
		}
	}
	for _, viewer := range []engi.Viewer{"ann", engi.Everyone} {
		if all, err := keys.List(ctx, viewer, engi.Paging{}); err != nil || len(all) != 1 || all[0] != k {
			t.Errorf("%v %v", all, err)
		}
	}
	if err := keys.Remove(ctx, "ann", k.ID); err != nil {
		t.Error(err)
	}
	kind(t, keys.Remove(ctx, "ann", k.ID), engi.NotFound)
	if _, err := keys.Create(ctx, engi.SSHKey{Owner: "bob", PublicKey: first}); err != nil {
		t.Errorf("a key that was deleted: %v", err)
	}
	for _, name := range []string{"a\nb", strings.Repeat("x", 101)} {
		_, next := fresh(t)
		_, err = keys.Create(ctx, engi.SSHKey{Owner: "ann", PublicKey: next, Name: name})
		kind(t, err, engi.Invalid)
	}
	events, err := store.Events(db).List(ctx, "ann", engi.EventFilter{Subject: string(k.ID), Oldest: true})
	if err != nil || len(events) != 2 || events[0].Type != engi.EventSSHKeyCreated || events[1].Type != engi.EventSSHKeyDeleted ||
		events[1].Actor != "key_x" || !strings.Contains(string(events[0].Data), k.Fingerprint) {
		t.Errorf("events %v %v", events, err)
	}
}

func TestKeysAreBounded(t *testing.T) {
	keys := ssh.NewKeys(store.SSHKeys(open(t)))
	add := func(owner engi.Owner) error {
		_, text := fresh(t)
		_, err := keys.Create(context.Background(), engi.SSHKey{Owner: owner, PublicKey: text})
		return err
	}
	for i := range 100 {
		if err := add("ann"); err != nil {
			t.Fatal(fmt.Sprint(i), err)
		}
	}
	kind(t, add("ann"), engi.Exhausted)
	if err := add("bob"); err != nil {
		t.Error(err)
	}
}

func FuzzPublicKey(f *testing.F) {
	_, good := fresh(f)
	f.Add(good + " me")
	f.Add("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== x")
	f.Add(`no-pty,from="a b" ` + good)
	f.Fuzz(func(t *testing.T, text string) {
		pub, _, err := ssh.ParsePublicKey(text)
		if err != nil {
			if !engi.Is(err, engi.Invalid) {
				t.Error(err)
			}
			return
		}
		again, _, err := ssh.ParsePublicKey(string(xssh.MarshalAuthorizedKey(pub)))
		if err != nil || string(again.Marshal()) != string(pub.Marshal()) {
			t.Errorf("%q comes back as %v, %v", text, again, err)
		}
	})
}
