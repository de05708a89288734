// Package fileops implements the file operations that agents use most: read, glob,
// grep, write and edit. It works with any [engi.Guest] and needs no program in
// the sandbox. Results are typed, so that every API returns the same.
//
// Everything a guest sends is treated as hostile: sizes are bounded, and results
// are marked if they are truncated. Paths are absolute and slash-separated. To move
// data in bulk, use package guest.
package fileops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Limits in bytes.
const (
	MaxText   = 16 << 20  // maximum size of a file that Read, Write or Edit processes as a whole
	MaxImage  = 5 << 20   // maximum size of an image that Read returns
	MaxAnswer = 256 << 10 // maximum size of the text in one result
)

// cleanPath checks a path and returns it in its shortest form.
func cleanPath(name string) (string, error) {
	switch {
	case name == "":
		return "", engi.Errorf(engi.Invalid, "the path is empty")
	case !path.IsAbs(name):
		return "", engi.Errorf(engi.Invalid, "the path %.200q is not absolute", name).WithRemedy("begin it with /")
	case strings.ContainsRune(name, 0):
		return "", engi.Errorf(engi.Invalid, "the path %.200q contains a NUL", name)
	}
	return path.Clean(name), nil
}

// readAll reads a whole file. It reports Invalid for a file of more than limit
// bytes.
func readAll(ctx context.Context, g engi.Guest, name string, limit int64) ([]byte, error) {
	r, err := g.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	if int64(len(raw)) > limit {
		return nil, tooLarge(name, limit)
	}
	return raw, nil
}

func tooLarge(name string, limit int64) error {
	return engi.Errorf(engi.Invalid, "%s is too large: more than %d MiB", name, limit>>20).
		WithRemedy("read a part of it, with grep or with a command such as head, tail or sed")
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
