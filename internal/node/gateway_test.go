package node

import (
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/store"
)

// TestPoliciesKeepToPins: the egress gateway of a node refuses an owner's policy that would
// send a pinned secret elsewhere.
func TestPoliciesKeepToPins(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := &gateway{config: config.Defaults().Network}
	w.config.Max = string(engi.NetworkOpen)
	if w.secrets, err = secret.Open(t.Context(), store.Secrets(db), secret.Options{Path: filepath.Join(t.TempDir(), "secret.key")}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.secrets.Create(t.Context(), engi.Secret{Owner: "ann", Name: "token", Hosts: []string{"api.example.com"}}, "a-secret-value"); err != nil {
		t.Fatal(err)
	}
	w.Gateway, err = egress.New(egress.Options{Links: struct{ egress.Links }{}, Store: store.Egress(db, 100, 0), Reveal: w.secrets.Reveal, Use: w.secrets.Use, Key: w.secrets.Derive("test")})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Gateway.Close()
	for host, want := range map[string]bool{"api.example.com": true, "evil.example": false} {
		p := engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "token", Hosts: []string{host}, As: engi.GrantBearer}}}
		if err := w.Permit(t.Context(), "ann", p); (err == nil) != want || err != nil && !engi.Is(err, engi.Denied) {
			t.Errorf("a grant for %s: %v", host, err)
		}
	}
}
