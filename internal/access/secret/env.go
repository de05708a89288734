package secret

import (
	"crypto/sha256"
	"encoding/base32"
	"os"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// An EnvSecret is a secret of the operator, from the server's environment. A stored
// secret of the same name hides it.
type EnvSecret struct {
	Owner    engi.Owner // owner that may use the secret; empty means all
	Name     string
	Variable string   // name of the environment variable, for messages
	Hosts    []string // hosts as in [engi.Secret]
	Value    string
}

// An envSecret is an EnvSecret in the form that owners see.
type envSecret struct {
	engi.Secret
	value func() string // a function, so that no log prints the value
}

var errFromEnv = engi.Errorf(engi.Denied, "it is from the server's environment").
	WithRemedy("use another name, or have the operator change the variable and restart the server")

// loadEnv checks secrets from the environment with the rules for stored ones. It
// reports Invalid.
func loadEnv(all []EnvSecret) ([]envSecret, error) {
	began := now()
	var made []envSecret
	seen := map[[2]string]bool{}
	for _, f := range all {
		if !nameForm.MatchString(f.Name) || strings.HasPrefix(f.Name, idPrefix) {
			return nil, engi.Errorf(engi.Invalid, "%.40q cannot be the name of a secret", f.Name).
				WithRemedy("use 1 to 128 letters, digits, dashes, dots and underscores, not beginning with %s", idPrefix)
		}
		if f.Value == "" {
			return nil, engi.Errorf(engi.Invalid, "secret %s: the environment variable %s is empty or not set", f.Name, f.Variable).
				WithRemedy("set the variable for the server, or remove the secret from its configuration")
		}
		if err := check(f.Value, nil); err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "secret %s from the environment: %w", f.Name, err).WithRemedy("%s", engi.RemedyOf(err))
		}
		if _, err := parseHosts(f.Hosts); err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "secret %s from the environment: %w", f.Name, err).WithRemedy("%s", engi.RemedyOf(err))
		}
		key := [2]string{string(f.Owner), f.Name}
		if seen[key] {
			return nil, engi.Errorf(engi.Invalid, "secret %s from the environment is configured twice", f.Name).WithRemedy("remove one of them")
		}
		seen[key] = true
		sum := sha256.Sum256([]byte("engi secret of the environment\x00" + string(f.Owner) + "\x00" + f.Name))
		made = append(made, envSecret{
			Secret: engi.Secret{
				// The ID is the same after a restart, and reveals nothing of the value.
				ID:    engi.SecretID(idPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])),
				Owner: f.Owner, Name: f.Name, Version: 1, Metadata: map[string]string{"environment": f.Variable}, Hosts: f.Hosts,
				Created: began, Updated: began,
			},
			value: func() string { return f.Value },
		})
	}
	return made, nil
}

// visibleTo reports whether viewer may use f.
func (f envSecret) visibleTo(viewer engi.Viewer) bool {
	return f.Owner == "" || viewer.Sees(f.Owner)
}

// findEnv returns a secret from the environment by ID or name. The viewer's own secrets
// take precedence over those for all owners.
func (s *Service) findEnv(viewer engi.Viewer, idOrName string) (found envSecret, ok bool) {
	for _, f := range s.env {
		if !f.visibleTo(viewer) || f.Name != idOrName && string(f.ID) != idOrName {
			continue
		}
		if !ok || found.Owner == "" {
			found, ok = f, true
		}
	}
	return found, ok
}

// explainEnv returns err. If err is NotFound because the secret is from the
// environment, it returns an error saying that the secret cannot be changed.
func (s *Service) explainEnv(viewer engi.Viewer, idOrName string, err error) error {
	if _, ok := s.findEnv(viewer, idOrName); ok && engi.Is(err, engi.NotFound) {
		return errFromEnv
	}
	return err
}

// dropOldKey forgets the previous key after a rotation.
func (o Options) dropOldKey() error {
	if o.Key != "" {
		if err := os.Remove(o.Path); err != nil && !os.IsNotExist(err) {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		return nil
	}
	f, err := readFile(o.Path)
	if err != nil {
		return err
	}
	f.former = nil
	return writeFile(o.Path, f)
}
