package secret

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
)

// A keyFile is the contents of a key file: a line with the key, one with the
// previous key during a rotation, and one with the fingerprints of given-up
// keys, if there are any.
type keyFile struct {
	key     []byte // nil if the file is empty
	former  []byte // nil unless a rotation is in progress
	givenUp []string
}

// readKey reads the key file at path. If the file is empty, it creates a key and
// records that the keys with the fingerprints known were given up. If the file is
// missing, it creates a key unless there are known keys: then it reports
// Conflict.
func readKey(path string, known []string) (keyFile, error) {
	f, err := readFile(path)
	switch {
	case err == nil && f.key != nil:
		return f, nil
	case errors.Is(err, fs.ErrNotExist) && len(known) > 0:
		return f, engi.Errorf(engi.Conflict, "%s is missing, and there are secrets that only it decrypts", path).
			WithRemedy("restore it from a backup; to give up the secrets, create an empty file with this name: a new key is then created")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return f, err
	}
	if err := writeFile(path, keyFile{key: newKey(), givenUp: known}); err != nil {
		return f, err
	}
	// Another process may have written the file in the meantime: the contents of the file count.
	if f, err = readFile(path); err == nil && f.key == nil {
		err = engi.Errorf(engi.Internal, "%s is empty although it was just written", path)
	}
	return f, err
}

func readFile(path string) (k keyFile, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err != nil {
		return k, engi.Errorf(engi.Internal, "%v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return k, engi.Errorf(engi.Internal, "%v", err)
	}
	if !info.Mode().IsRegular() {
		return k, engi.Errorf(engi.Invalid, "%s is not a regular file", path).WithRemedy("replace it with the key file, or remove it")
	}
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return k, engi.Errorf(engi.Internal, "%v", err)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return k, nil
	}
	if info.Mode().Perm()&0o077 != 0 {
		return k, engi.Errorf(engi.Denied, "the mode of %s is %#o, so other users of this machine may read secrets", path, info.Mode().Perm()).
			WithRemedy("run 'chmod 600 %s', and change the secrets if other users may have read it", path)
	}
	k, err = parseKey(string(data))
	if err != nil {
		return keyFile{}, engi.Errorf(engi.Invalid, "%s does not hold a key of %d bytes in base64", path, keySize).
			WithRemedy("restore the right file from a backup; to give the secrets up, empty the file: a new key is created")
	}
	return k, nil
}

// parseKey parses the contents of a key file.
func parseKey(text string) (k keyFile, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	k.key, err = decodeKey(lines[0])
	for _, line := range lines[1:] {
		switch word, rest, _ := strings.Cut(line, ":"); {
		case err != nil:
		case word == formerWord:
			k.former, err = decodeKey(rest)
		case word == givenUpWord:
			k.givenUp = strings.Fields(rest)
		}
	}
	return k, err
}

// parseGivenKey parses a key that replaces the key in the file at path. A different key in
// that file becomes the previous one.
func parseGivenKey(text, path string) (keyFile, error) {
	k, err := parseKey(text)
	if err != nil {
		return keyFile{}, engi.Errorf(engi.Invalid, "the key from the environment is not %d bytes in base64", keySize).
			WithRemedy("create one with 'openssl rand -base64 %d', or use the content of a key file", keySize)
	}
	f, err := readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k, nil
	case err != nil:
		return keyFile{}, err
	case k.former == nil && f.key != nil && !bytes.Equal(f.key, k.key):
		k.former = f.key
	}
	k.givenUp = append(k.givenUp, f.givenUp...)
	return k, nil
}

const (
	formerWord  = "former"
	givenUpWord = "given up"
)

func decodeKey(line string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
	if err == nil && len(key) != keySize {
		err = errors.New("its length is wrong")
	}
	return key, err
}

func newKey() []byte {
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	return key
}

// writeFile atomically writes f to path.
func writeFile(path string, f keyFile) (err error) {
	defer func() {
		if err != nil {
			err = engi.Errorf(engi.Internal, "write %s: %v", path, err)
		}
	}()
	text := base64.StdEncoding.EncodeToString(f.key) + "\n"
	if f.former != nil {
		text += formerWord + ": " + base64.StdEncoding.EncodeToString(f.former) + "\n"
	}
	if len(f.givenUp) > 0 {
		text += givenUpWord + ": " + strings.Join(f.givenUp, " ") + "\n"
	}
	return atomicfile.Write(path, []byte(text), 0o600)
}
