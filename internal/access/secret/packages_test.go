package secret_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
)

func withPackage(t *testing.T, packages ...secret.Package) *secret.Service {
	t.Helper()
	s, err := secret.Open(t.Context(), empty(t), secret.Options{Path: t.TempDir() + "/secret.key", Packages: packages})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var acme = secret.Package{Variable: "ACME_KEY", Hosts: []string{"api.acme.example", "eu.acme.example"}, Value: "value"}

// TestPackageSecretsGoToTheirHosts checks that no policy sends the secret of a
// package elsewhere, whoever wrote it.
func TestPackageSecretsGoToTheirHosts(t *testing.T) {
	s := withPackage(t, acme)
	grant := func(secret string, hosts ...string) engi.NetworkPolicy {
		return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: secret, Hosts: hosts}}}
	}
	for name, x := range map[string]struct {
		p  engi.NetworkPolicy
		ok bool
	}{
		"as packages grant it": {engi.NetworkPolicy{Grants: []engi.Grant{acme.Grant()}}, true},
		"its own":              {grant("sandbox.ACME_KEY", "api.acme.example"), true},
		"both":                 {grant("sandbox.ACME_KEY", "eu.acme.example", "api.acme.example"), true},
		"another host":         {grant("sandbox.ACME_KEY", "evil.example"), false},
		"one more":             {grant("sandbox.ACME_KEY", "api.acme.example", "evil.example"), false},
		"wider":                {grant("sandbox.ACME_KEY", "*.acme.example"), false},
		"other port":           {grant("sandbox.ACME_KEY", "api.acme.example:8443"), false},
		"no such package":      {grant("sandbox.OTHER", "api.acme.example"), false},
		"the owner's":          {grant("ACME_KEY", "evil.example"), true}, // not the operator's
		"header":               {engi.NetworkPolicy{Headers: []engi.HeaderRule{{Host: "evil.example", Headers: map[string]string{"X": "a ${secrets.sandbox.ACME_KEY}"}}}}, false},
		"nothing":              {engi.NetworkPolicy{}, true},
	} {
		if err := s.Check(x.p); (err == nil) != x.ok || err != nil && (!engi.Is(err, engi.Denied) || engi.RemedyOf(err) == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := withPackage(t).Check(grant("sandbox.ACME_KEY", "api.acme.example")); !engi.Is(err, engi.Denied) {
		t.Errorf("without packages: %v", err)
	}
}

func TestPackageSecretsAreRevealedAndNotListed(t *testing.T) {
	t.Setenv("HOME_KEY", "not for packages")
	s := withPackage(t, acme, secret.Package{Variable: "UNSET", Hosts: []string{"a.example"}})
	if v, err := s.Reveal(t.Context(), "ann", "sandbox.ACME_KEY"); v != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, name := range []string{"ACME_KEY", "sandbox.HOME_KEY", "sandbox.", "sandbox.UNSET"} {
		if v, err := s.Reveal(t.Context(), "ann", name); !engi.Is(err, engi.NotFound) || v != "" {
			t.Errorf("%s: %q, %v", name, v, err)
		}
	}
	if all, err := s.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := s.Get(t.Context(), "ann", "sandbox.ACME_KEY"); !engi.Is(err, engi.NotFound) {
		t.Errorf("%v", err)
	}
}
