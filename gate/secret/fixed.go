package secret

import (
	"crypto/sha256"
	"encoding/base32"
	"os"
	"strings"

	"github.com/engi-dev/engi"
)

// A Fixed secret is the operator's, from the environment of the server. A
// secret of the same name that an owner had before goes first.
type Fixed struct {
	Owner    engi.Owner // who may use it; empty means everybody
	Name     string
	Variable string // of the environment that it is from, for people
	Value    string
}

// A fixed secret is a Fixed as owners see it.
type fixed struct {
	engi.Secret
	value func() string // a function, so that nothing prints it
}

var errFixed = engi.Errorf(engi.Denied, "it is from the environment of the server").
	WithRemedy("use another name, or have the operator change the variable and restart the server")

// fix reports Invalid for what owners could not store either.
func fix(all []Fixed) ([]fixed, error) {
	began := now()
	var made []fixed
	seen := map[[2]string]bool{}
	for _, f := range all {
		if !nameForm.MatchString(f.Name) || strings.HasPrefix(f.Name, idPrefix) {
			return nil, engi.Errorf(engi.Invalid, "%.40q cannot be the name of a secret of the environment", f.Name).
				WithRemedy("use 1 to 128 letters, digits, dashes, dots and underscores, not beginning with %s", idPrefix)
		}
		if f.Value == "" {
			return nil, engi.Errorf(engi.Invalid, "secret %s is to be in the variable %s, which is empty or not set", f.Name, f.Variable).
				WithRemedy("set the variable for the server, or take the secret out of its configuration")
		}
		if err := check(f.Value, nil); err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "secret %s of the environment: %w", f.Name, err).WithRemedy("%s", engi.RemedyOf(err))
		}
		key := [2]string{string(f.Owner), f.Name}
		if seen[key] {
			return nil, engi.Errorf(engi.Invalid, "secret %s of the environment is there twice", f.Name).WithRemedy("take one of them out")
		}
		seen[key] = true
		sum := sha256.Sum256([]byte("engi secret of the environment\x00" + string(f.Owner) + "\x00" + f.Name))
		made = append(made, fixed{
			Secret: engi.Secret{
				// The same after a restart, and no secret: it says nothing of the value.
				ID:    engi.SecretID(idPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])),
				Owner: f.Owner, Name: f.Name, Version: 1, Metadata: map[string]string{"environment": f.Variable},
				Created: began, Updated: began,
			},
			value: func() string { return f.Value },
		})
	}
	return made, nil
}

// serves reports whether owner may use f.
func (f fixed) serves(owner engi.Owner) bool { return owner == "" || f.Owner == "" || f.Owner == owner }

// fixedOf returns the secret of the environment that owner means. One of the
// owner's own goes before one for everybody.
func (s *Service) fixedOf(owner engi.Owner, idOrName string) (found fixed, ok bool) {
	for _, f := range s.fixed {
		if !f.serves(owner) || f.Name != idOrName && string(f.ID) != idOrName {
			continue
		}
		if !ok || found.Owner == "" {
			found, ok = f, true
		}
	}
	return found, ok
}

// orFixed explains why a secret that was not found cannot be changed.
func (s *Service) orFixed(owner engi.Owner, idOrName string, err error) error {
	if _, ok := s.fixedOf(owner, idOrName); ok && engi.KindOf(err) == engi.NotFound {
		return errFixed
	}
	return err
}

// forget drops the key before the one that now opens everything.
func (o Options) forget() error {
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
