package secret_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// empty returns a store without secrets.
func empty(t testing.TB) secret.Store {
	t.Helper()
	return store.Secrets(storetest.Open(t))
}

func open(t *testing.T, store secret.Store, path string) *secret.Service {
	t.Helper()
	s, err := secret.Open(t.Context(), store, secret.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const value = "s3cr3t-value-that-must-not-show"

func TestLifeOfASecret(t *testing.T) {
	store, path := empty(t), filepath.Join(t.TempDir(), "secret.key")
	s := open(t, store, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	made, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "API_KEY", Metadata: map[string]string{"a": "b"}}, value)
	if err != nil || made.Version != 1 || made.ID == "" || made.Created.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, sealed, err := store.Find(t.Context(), "ann", "API_KEY"); err != nil || bytes.Contains(sealed.Data, []byte("s3cr3t")) {
		t.Errorf("it is stored in clear text: %q, %v", sealed.Data, err)
	}
	s = open(t, store, path) // as after a restart
	for _, by := range []string{"API_KEY", string(made.ID)} {
		if got, err := s.Reveal(t.Context(), "ann", by); got != value || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	for _, viewer := range []engi.Viewer{"bob", "anna", ""} {
		if _, err := s.Reveal(t.Context(), viewer, "API_KEY"); !engi.Is(err, engi.NotFound) {
			t.Errorf("%s reveals: %v", viewer, err)
		}
		if _, err := s.Update(t.Context(), viewer, string(made.ID), "x", nil, nil); !engi.Is(err, engi.NotFound) {
			t.Errorf("%s updates: %v", viewer, err)
		}
		if err := s.Remove(t.Context(), viewer, string(made.ID)); !engi.Is(err, engi.NotFound) {
			t.Errorf("%s removes: %v", viewer, err)
		}
	}
	up, err := s.Update(t.Context(), "ann", "API_KEY", "second", nil, nil)
	if err != nil || up.Version != 2 || up.Metadata["a"] != "b" || up.ID != made.ID {
		t.Errorf("%+v, %v", up, err)
	}
	if got, err := s.Reveal(t.Context(), engi.Everyone, "API_KEY"); got != "second" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Remove(t.Context(), "ann", "API_KEY"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), "ann", "API_KEY"); !engi.Is(err, engi.NotFound) {
		t.Errorf("after removal: %v", err)
	}
	if a, b := s.Derive("x"), s.Derive("y"); len(a) != 32 || bytes.Equal(a, b) || !bytes.Equal(a, open(t, store, path).Derive("x")) {
		t.Error("derived keys are not what they should be")
	}
}

// TestLimitHoldsAtOnce creates more secrets at once than an owner may have.
func TestLimitHoldsAtOnce(t *testing.T) {
	s := open(t, empty(t), filepath.Join(t.TempDir(), "secret.key"))
	const most, more = 1000, 8
	create := func(i int) error {
		_, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: fmt.Sprint("x", i)}, "0")
		return err
	}
	for i := range most - 1 {
		if err := create(i); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var created atomic.Int32
	for i := range more {
		wg.Go(func() {
			if err := create(most + i); err == nil {
				created.Add(1)
			} else if !engi.Is(err, engi.Exhausted) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if created.Load() != 1 {
		t.Errorf("%d of %d were created where one fits", created.Load(), more)
	}
}

func TestUpdatesDoNotGetLost(t *testing.T) {
	s := open(t, empty(t), filepath.Join(t.TempDir(), "secret.key"))
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x"}, "0"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if _, err := s.Update(t.Context(), "ann", "x", fmt.Sprint(i), nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := s.Get(t.Context(), "ann", "x"); err != nil || got.Version != 5 {
		t.Errorf("version %d, %v", got.Version, err)
	}
}

func TestMovedRowsDoNotOpen(t *testing.T) {
	store := empty(t)
	s := open(t, store, filepath.Join(t.TempDir(), "secret.key"))
	a, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x"}, value)
	if err != nil {
		t.Fatal(err)
	}
	_, sealed, err := store.Find(t.Context(), "ann", "x")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*engi.Secret, *secret.Sealed){
		"another owner":   func(s *engi.Secret, _ *secret.Sealed) { s.Owner = "bob" },
		"another secret":  func(s *engi.Secret, _ *secret.Sealed) { s.ID = engi.NewSecretID() },
		"another version": func(s *engi.Secret, _ *secret.Sealed) { s.Version = 2 },
		"flipped bit":     func(_ *engi.Secret, v *secret.Sealed) { v.Data = bytes.Clone(v.Data); v.Data[20] ^= 1 },
		"cut off":         func(_ *engi.Secret, v *secret.Sealed) { v.Data = v.Data[:5] },
	} {
		other, moved := a, sealed
		other.Name = "moved"
		if change(&other, &moved); other.ID == a.ID {
			if err := s.Remove(t.Context(), engi.Everyone, string(a.ID)); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Put(t.Context(), other, moved); err != nil {
			t.Fatal(err)
		}
		got, err := s.Reveal(t.Context(), engi.Everyone, string(other.ID))
		if err == nil || got != "" || strings.Contains(err.Error(), value) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err := store.Remove(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		if _, _, err := store.Find(t.Context(), engi.Everyone, string(a.ID)); err != nil {
			if err := store.Put(t.Context(), a, sealed); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := s.Reveal(t.Context(), "ann", "x"); err != nil || got != value {
		t.Errorf("the row at its place: %q, %v", got, err)
	}
}

func TestRefusals(t *testing.T) {
	s := open(t, empty(t), filepath.Join(t.TempDir(), "secret.key"))
	big := map[string]string{}
	for i := range 65 {
		big[fmt.Sprint(i)] = ""
	}
	for name, c := range map[string]struct {
		sec   engi.Secret
		value string
	}{
		"no name":       {engi.Secret{}, value},
		"spaces":        {engi.Secret{Name: "a b"}, value},
		"slash":         {engi.Secret{Name: "../x"}, value},
		"newline":       {engi.Secret{Name: "x\n"}, value},
		"long name":     {engi.Secret{Name: strings.Repeat("x", 129)}, value},
		"like an ID":    {engi.Secret{Name: string(engi.NewSecretID())}, value},
		"no value":      {engi.Secret{Name: "x"}, ""},
		"long value":    {engi.Secret{Name: "x"}, strings.Repeat(value, 10_000)},
		"long metadata": {engi.Secret{Name: "x", Metadata: map[string]string{"k": strings.Repeat("x", 257)}}, value},
		"much metadata": {engi.Secret{Name: "x", Metadata: big}, value},
		"no text":       {engi.Secret{Name: "x", Metadata: map[string]string{"k": "\xff"}}, value},
	} {
		c.sec.Owner = "ann"
		_, err := s.Create(t.Context(), c.sec, c.value)
		if !engi.Is(err, engi.Invalid) || strings.Contains(err.Error()+engi.RemedyOf(err), value) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x"}, strings.Repeat("v", 64<<10)); err != nil {
		t.Error(err)
	}
	_, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x"}, value)
	if !engi.Is(err, engi.Conflict) || strings.Contains(err.Error(), value) {
		t.Errorf("twice: %v", err)
	}
	if strings.Contains(fmt.Sprintf("%v %+v", s, s), value) {
		t.Error("it prints")
	}
}

func TestKeyFile(t *testing.T) {
	store, path := empty(t), filepath.Join(t.TempDir(), "secret.key")
	s := open(t, store, path)
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "old"}, value); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, kind engi.Kind, word string) {
		t.Helper()
		_, err := secret.Open(t.Context(), store, secret.Options{Path: path})
		if !engi.Is(err, kind) || !strings.Contains(engi.RemedyOf(err), word) || strings.Contains(err.Error(), string(key[:10])) {
			t.Errorf("%s: %v (%s)", what, err, engi.RemedyOf(err))
		}
	}
	os.Remove(path)
	refused("lost", engi.Conflict, "backup")
	if _, err := os.Stat(path); err == nil {
		t.Error("a refused start made a key")
	}
	os.WriteFile(path, []byte("bm90IGEga2V5\n"), 0o600)
	refused("no key", engi.Invalid, "backup")
	os.WriteFile(path, []byte("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"), 0o600)
	refused("another key", engi.Conflict, "backup")
	os.WriteFile(path, key, 0o600)
	os.Chmod(path, 0o644)
	refused("readable by others", engi.Denied, "chmod 600")
	os.Chmod(path, 0o600)
	if got, err := open(t, store, path).Reveal(t.Context(), "ann", "old"); got != value || err != nil {
		t.Errorf("with the file back: %q, %v", got, err)
	}

	// Given up: old secrets are named as lost, new ones work, also later.
	os.WriteFile(path, nil, 0o600)
	open(t, store, path)
	for range 2 {
		s = open(t, store, path)
		if _, err := s.Reveal(t.Context(), "ann", "old"); !engi.Is(err, engi.Conflict) || !strings.Contains(engi.RemedyOf(err), "again") {
			t.Errorf("a lost secret: %v", err)
		}
		if _, err := s.Get(t.Context(), "ann", "new"); engi.Is(err, engi.NotFound) {
			if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "new"}, "n"); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.Reveal(t.Context(), "ann", "new"); got != "n" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := s.Update(t.Context(), "ann", "old", "again", nil, nil); err != nil {
		t.Error(err)
	}
}

// breaking is a store that fails when it is told to.
type breaking struct {
	secret.Store
	left int // replacements that work
}

func (b *breaking) Replace(ctx context.Context, s engi.Secret, v secret.Sealed, was int) error {
	if b.left--; b.left < 0 {
		return engi.Errorf(engi.Unavailable, "broken off")
	}
	return b.Store.Replace(ctx, s, v, was)
}

func TestRotation(t *testing.T) {
	store, path := &breaking{empty(t), 100}, filepath.Join(t.TempDir(), "secret.key")
	s := open(t, store, path)
	const secrets = 5
	for i := range secrets {
		if _, err := s.Create(t.Context(), engi.Secret{Owner: engi.Owner(fmt.Sprint("o", i%2)), Name: fmt.Sprint("n", i)}, value+fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	first := s.Derive("x")
	whole := func(when string) {
		t.Helper()
		s := open(t, store, path)
		for i := range secrets {
			name := fmt.Sprint("n", i)
			if got, err := s.Reveal(t.Context(), engi.Everyone, name); err != nil || got != value+fmt.Sprint(i) {
				t.Errorf("%s: %s is %q, %v", when, name, got, err)
			}
			if sec, err := s.Get(t.Context(), engi.Everyone, name); err != nil || sec.Version != 1 {
				t.Errorf("%s: version %d, %v", when, sec.Version, err)
			}
		}
	}
	store.left = 2
	if n, err := secret.Rotate(t.Context(), store, secret.Options{Path: path}); err == nil || n != 2 {
		t.Fatalf("%d sealed anew, %v", n, err)
	}
	whole("broken off")
	store.left = 100
	if n, err := secret.Rotate(t.Context(), store, secret.Options{Path: path}); err != nil || n != secrets-2 {
		t.Fatalf("%d sealed anew, %v", n, err)
	}
	whole("finished")
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "former") {
		t.Errorf("the former key is still there: %v", err)
	}
	if keys, err := store.Keys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("keys %q, %v", keys, err)
	}
	if bytes.Equal(first, open(t, store, path).Derive("x")) {
		t.Error("derived keys outlived the rotation")
	}
	os.Remove(path)
	if _, err := secret.Rotate(t.Context(), store, secret.Options{Path: path}); !engi.Is(err, engi.Conflict) {
		t.Errorf("without the file: %v", err)
	}
}

func TestSecretsOfTheEnvironment(t *testing.T) {
	store, path := empty(t), filepath.Join(t.TempDir(), "secret.key")
	o := secret.Options{Path: path}
	before := open(t, store, path)
	if _, err := before.Create(t.Context(), engi.Secret{Owner: "ann", Name: "mine"}, "stored"); err != nil {
		t.Fatal(err)
	}
	o.Environment = []secret.EnvSecret{
		{Name: "all", Variable: "ALL_KEY", Value: value}, {Name: "all", Owner: "bob", Variable: "BOB", Value: "bob's"},
		{Name: "ann", Owner: "ann", Variable: "ANN", Value: "ann's"}, {Name: "mine", Variable: "MINE", Value: "fixed"},
	}
	s, err := secret.Open(t.Context(), store, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		viewer engi.Viewer
		name   string
		want   string // empty: it is not there
	}{
		{"ann", "all", value}, {"bob", "all", "bob's"}, {"eve", "all", value}, {"ann", "ann", "ann's"}, {"eve", "ann", ""},
		{engi.Everyone, "ann", "ann's"}, {"", "ann", ""}, {"ann", "mine", "stored"}, {"eve", "mine", "fixed"}, {"eve", "ALL_KEY", ""},
	} {
		got, err := s.Reveal(t.Context(), c.viewer, c.name)
		if got != c.want || (err != nil) != (c.want == "") || err != nil && !engi.Is(err, engi.NotFound) {
			t.Errorf("%s of %q is %q, %v", c.name, c.viewer, got, err)
		}
		sec, err := s.Get(t.Context(), c.viewer, c.name)
		if (err != nil) != (c.want == "") {
			t.Errorf("get %s of %q: %v", c.name, c.viewer, err)
		}
		if err != nil || c.want == "stored" {
			continue
		}
		if _, err := engi.ParseSecretID(string(sec.ID)); err != nil || sec.Metadata["environment"] == "" || sec.Version != 1 {
			t.Errorf("%+v, %v", sec, err)
		}
		if again, err := s.Get(t.Context(), c.viewer, string(sec.ID)); err != nil || again.Name != c.name {
			t.Errorf("by ID: %+v, %v", again, err)
		}
		if _, err := s.Update(t.Context(), c.viewer, c.name, "new", nil, nil); !engi.Is(err, engi.Denied) || engi.RemedyOf(err) == "" {
			t.Errorf("update %s: %v", c.name, err)
		}
		if err := s.Remove(t.Context(), c.viewer, c.name); !engi.Is(err, engi.Denied) {
			t.Errorf("remove %s: %v", c.name, err)
		}
		if _, err := s.Create(t.Context(), engi.Secret{Owner: c.viewer.Owner(), Name: c.name}, "new"); !engi.Is(err, engi.Denied) {
			t.Errorf("create %s: %v", c.name, err)
		}
	}
	for owner, want := range map[engi.Owner]string{"ann": "all ann mine", "bob": "all all mine", "eve": "all mine"} {
		var names []string
		all, err := s.List(t.Context(), owner.Viewer(), engi.Paging{})
		for _, x := range all {
			names = append(names, x.Name)
		}
		if strings.Join(names, " ") != want || err != nil {
			t.Errorf("%s has %q, %v", owner, names, err)
		}
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, s), value) {
		t.Error("it prints")
	}
	for name, f := range map[string]secret.EnvSecret{"no name": {Value: "x"}, "no value": {Name: "x", Variable: "X"}, "long": {Name: "x", Value: strings.Repeat(value, 10_000)}, "ID": {Name: string(engi.NewSecretID()), Value: "x"}} {
		_, err := secret.Open(t.Context(), store, secret.Options{Path: path, Environment: []secret.EnvSecret{f}})
		if !engi.Is(err, engi.Invalid) || strings.Contains(fmt.Sprint(err), value) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeyFromTheEnvironment(t *testing.T) {
	store, path := empty(t), filepath.Join(t.TempDir(), "secret.key")
	key := func(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) }
	reveals := func(when string, o secret.Options) {
		t.Helper()
		s, err := secret.Open(t.Context(), store, o)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got, err := s.Reveal(t.Context(), "ann", "x"); got != value || err != nil {
			t.Errorf("%s: %q, %v", when, got, err)
		}
	}
	if _, err := open(t, store, path).Create(t.Context(), engi.Secret{Owner: "ann", Name: "x"}, value); err != nil {
		t.Fatal(err)
	}
	// From the file into the environment.
	one := secret.Options{Path: path, Key: key(1) + "\n"}
	reveals("beside the file", one)
	if n, err := secret.Rotate(t.Context(), store, one); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is still there")
	}
	reveals("without the file", one)
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was made")
	}
	// To another key.
	two := secret.Options{Path: path, Key: key(2)}
	if _, err := secret.Open(t.Context(), store, two); !engi.Is(err, engi.Conflict) || !strings.Contains(engi.RemedyOf(err), "former") {
		t.Errorf("another key: %v", err)
	}
	two.Key += "\nformer: " + key(1)
	reveals("with the former", two)
	if n, err := secret.Rotate(t.Context(), store, two); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	two.Key = key(2)
	reveals("after it", two)
	if _, err := secret.Rotate(t.Context(), store, two); !engi.Is(err, engi.Conflict) {
		t.Errorf("nothing to rotate: %v", err)
	}
	for _, bad := range []string{"x", "AAAA", key(1)[:40]} {
		if _, err := secret.Open(t.Context(), store, secret.Options{Path: path, Key: bad}); !engi.Is(err, engi.Invalid) || strings.Contains(err.Error(), bad+" ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
