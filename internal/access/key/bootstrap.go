package key

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
)

// fileKeyName is the name of the key whose secret is in the file. It distinguishes this key
// from keys that users created.
const fileKeyName = "admin.key"

// Bootstrap ensures that an admin key exists and that the file at path, which
// only this user can read, contains its secret in one line. It returns the secret.
// The file is authoritative: a key that is missing from the store is added
// again, and if the file was deleted, a new key is created and the old one
// revoked. Bootstrap may be killed and repeated at any point.
//
// It reports Denied for a file that other users may read, Invalid for one without
// a key, and Anonymous for one whose key was revoked, each with a remedy.
func Bootstrap(ctx context.Context, keys *Keyring, path string) (secret string, err error) {
	defer engi.Annotate(&err, "read admin key %s", path)
	secret, err = readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := atomicfile.Create(path, []byte(newSecret()+"\n"), 0o600); err != nil {
			return "", classified(err)
		}
		// If another process was faster, use its key.
		secret, err = readFile(path)
	}
	if err != nil {
		return "", classified(err)
	}

	k, err := keys.Authenticate(ctx, secret)
	switch {
	case err == nil && !k.Admin:
		return "", engi.Errorf(engi.Invalid, "the file holds key %s, which is not an admin's", k.ID).
			WithRemedy("delete %s and start again: a new admin key is created", path)
	case err == nil:
	case engi.Is(err, engi.Anonymous):
		// Authenticate reports Anonymous for an unknown, an expired and a revoked
		// key. Only an unknown key may be added to the store.
		if _, found := keys.store.Find(ctx, sha256.Sum256([]byte(secret))); found == nil {
			return "", engi.Errorf(engi.Anonymous, "%w", err).
				WithRemedy("delete %s and start again: a new admin key is created", path)
		} else if !engi.Is(found, engi.NotFound) {
			return "", found
		}
		if k, err = keys.put(ctx, engi.Key{Name: fileKeyName, Admin: true}, secret); err != nil {
			return "", err
		}
	default:
		return "", err
	}
	return secret, revokeOthers(ctx, keys, k)
}

// revokeOthers revokes admin keys whose file is gone.
func revokeOthers(ctx context.Context, keys *Keyring, current engi.Key) error {
	all, err := keys.List(ctx, engi.Everyone, engi.Paging{})
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.Name == fileKeyName && k.Owner == "" && k.ID != current.ID && k.Revoked.IsZero() {
			if err := keys.Revoke(ctx, engi.Everyone, k.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

func classified(err error) error {
	if _, ours := errors.AsType[*engi.Error](err); ours {
		return err
	}
	return engi.Errorf(engi.Internal, "%v", err)
}

func readFile(path string) (secret string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", engi.Errorf(engi.Invalid, "it is not a regular file").
			WithRemedy("move %s away and start again: a new admin key is created", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", engi.Errorf(engi.Denied, "its mode is %#o, so other users of this machine may use the key", info.Mode().Perm()).
			WithRemedy("run 'chmod 600 %s'; if other users may have read it, delete it and start engi again, which creates a new admin key", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return "", err
	}
	secret = string(bytes.TrimSpace(data))
	if !wellFormed(secret) {
		return "", engi.Errorf(engi.Invalid, "it does not hold an engi key").
			WithRemedy("delete %s and start again: a new admin key is created", path)
	}
	return secret, nil
}
