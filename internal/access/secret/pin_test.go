package secret_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

// TestPinnedSecretsGoToTheirHosts checks what policies an owner may have with a
// pinned secret, whatever applies it.
func TestPinnedSecretsGoToTheirHosts(t *testing.T) {
	s, err := secret.Open(t.Context(), empty(t), secret.Options{Path: filepath.Join(t.TempDir(), "secret.key"), Environment: []secret.EnvSecret{
		{Name: "shared", Variable: "SHARED", Value: value, Hosts: []string{"api.example.com", "*.cdn.example.com", "http://plain.example.com", "port.example.com:8443"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "own", Hosts: []string{"api.example.com"}}, value); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "free"}, value); err != nil {
		t.Fatal(err)
	}
	grant := func(name string, hosts ...string) engi.NetworkPolicy {
		return engi.NetworkPolicy{Grants: []engi.Grant{{Secret: "free", Hosts: []string{"first.example"}}, {Secret: name, Hosts: hosts}}}
	}
	header := func(host, text string) engi.NetworkPolicy {
		return engi.NetworkPolicy{Headers: []engi.HeaderRule{{Host: host, Headers: map[string]string{"X": text}}}}
	}
	for name, x := range map[string]struct {
		p     engi.NetworkPolicy
		field string // empty: it is permitted
	}{
		"its host":            {grant("own", "api.example.com"), ""},
		"with a port":         {grant("own", "api.example.com:8443"), ""},
		"in other letters":    {grant("own", "API.Example.com"), ""},
		"another host":        {grant("own", "evil.example"), "grants[1].hosts"},
		"one more":            {grant("own", "api.example.com", "evil.example"), "grants[1].hosts"},
		"above":               {grant("own", "*.example.com"), "grants[1].hosts"},
		"below":               {grant("own", "x.api.example.com"), "grants[1].hosts"},
		"plain":               {grant("own", "http://api.example.com"), "grants[1].hosts"},
		"ending like it":      {grant("own", "notapi.example.com"), "grants[1].hosts"},
		"not pinned":          {grant("free", "evil.example"), ""},
		"of nobody":           {grant("none", "evil.example"), ""}, // the egress gateway has no value for it
		"shared":              {grant("shared", "api.example.com", "a.cdn.example.com", "*.cdn.example.com", "*.b.cdn.example.com", "port.example.com:8443"), ""},
		"the suffix itself":   {grant("shared", "cdn.example.com"), "grants[1].hosts"},
		"plain, which is its": {grant("shared", "http://plain.example.com"), ""},
		"TLS, which is not":   {grant("shared", "plain.example.com"), "grants[1].hosts"},
		"every port":          {grant("shared", "port.example.com"), "grants[1].hosts"},
		"another port":        {grant("shared", "port.example.com:443"), "grants[1].hosts"},
		"header":              {header("api.example.com", "Token ${secrets.own}"), ""},
		"header elsewhere":    {header("evil.example", "Token ${secrets.own}"), "headers[0].host"},
		"of E2B's":            {header("evil.example", "a ${secrets.free} b ${e2b.secrets.shared}"), "headers[0].host"},
	} {
		err := s.Permit(t.Context(), "ann", x.p)
		if (err == nil) != (x.field == "") {
			t.Errorf("%s: %v, want field %q", name, err, x.field)
		} else if err != nil && (!engi.Is(err, engi.Denied) || !strings.HasPrefix(err.Error(), x.field+": ") || engi.RemedyOf(err) == "") {
			t.Errorf("%s: %v, want field %q", name, err, x.field)
		}
	}
	// By ID, too.
	own, err := s.Get(t.Context(), "ann", "own")
	if err != nil || !slices.Equal(own.Hosts, []string{"api.example.com"}) {
		t.Fatal(own, err)
	}
	if err := s.Permit(t.Context(), "ann", grant(string(own.ID), "evil.example")); !engi.Is(err, engi.Denied) {
		t.Errorf("by ID: %v", err)
	}
	// What the operator shares is masked in responses; an owner's own as granted.
	for name, want := range map[string]bool{"shared": true, "own": false, "free": false} {
		got, hosts, strip, err := s.Use(t.Context(), "ann", name)
		if err != nil || got != value || strip != want || (hosts == nil) != (name == "free") {
			t.Errorf("%s: %v, strip %v, %v", name, hosts, strip, err)
		}
	}
}

// TestPinsChangeWithTheValue widens and narrows pins, and changes them in the
// database.
func TestPinsChangeWithTheValue(t *testing.T) {
	db := storetest.Open(t)
	s := open(t, store.Secrets(db), filepath.Join(t.TempDir(), "secret.key"))
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x", Hosts: []string{"*.com"}}, value); !engi.Is(err, engi.Invalid) {
		t.Errorf("everybody's names: %v", err)
	}
	if _, err := s.Create(t.Context(), engi.Secret{Owner: "ann", Name: "x", Hosts: []string{"a.example"}}, value); err != nil {
		t.Fatal(err)
	}
	want := func(secretValue string, hosts ...string) {
		t.Helper()
		got, pins, _, err := s.Use(t.Context(), "ann", "x")
		if err != nil || got != secretValue || !slices.Equal(pins, hosts) {
			t.Errorf("%q to %v, %v; want %q to %v", got, pins, err, secretValue, hosts)
		}
	}
	want(value, "a.example")
	for _, c := range []struct {
		hosts *[]string
		want  []string
	}{{nil, []string{"a.example"}}, {&[]string{"a.example", "b.example"}, []string{"a.example", "b.example"}}, {&[]string{}, nil}, {&[]string{"c.example"}, []string{"c.example"}}} {
		if _, err := s.Update(t.Context(), "ann", "x", "another value", nil, c.hosts); err != nil {
			t.Fatal(err)
		}
		want("another value", c.want...)
	}
	if _, err := s.Update(t.Context(), "ann", "x", "", nil, &[]string{"evil.example"}); !engi.Is(err, engi.Invalid) {
		t.Errorf("without a value: %v", err)
	}
	want("another value", "c.example")
	x, sealed, err := store.Secrets(db).Find(t.Context(), "ann", "x")
	if err != nil {
		t.Fatal(err)
	}
	x.Hosts = []string{"evil.example"}
	if err := store.Secrets(db).Replace(t.Context(), x, sealed, x.Version); err != nil {
		t.Fatal(err)
	}
	if got, _, _, err := s.Use(t.Context(), "ann", "x"); err == nil || got != "" {
		t.Errorf("with other hosts in the database: %q, %v", got, err)
	}
}
