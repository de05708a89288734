package ssh

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
)

// openHostKey returns the host key in a file, which it creates if it is missing.
func openHostKey(file string) (xssh.Signer, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = makeHostKey(file)
	}
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "host key of SSH: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, engi.Errorf(engi.Denied, "other users may read %s", file).WithRemedy("run 'chmod 600 %s'; a user who has read the file can pose as this server: delete it if a user has", file)
	}
	key, err := xssh.ParsePrivateKey(text)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "host key of SSH: %s: %v", file, err).WithRemedy("restore the file, or delete it: a new one is then created, which clients must trust again")
	}
	return key, nil
}

// makeHostKey writes a new key atomically.
func makeHostKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := xssh.MarshalPrivateKey(key, "engi")
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	return text, atomicfile.Write(file, text, 0o600)
}
