// Package fileops does with the files of a sandbox what agents do all day:
// read, glob, grep, write and edit. It works over any [engi.Guest], needs no
// program inside, and answers in types, so that every surface shows the same.
//
// Whatever a guest says is hostile: sizes are bounded here, and what does not
// fit is said to be truncated. Paths are absolute and slash-separated. It is
// not for moving data (package guest) nor for whole trees of one's own disk.
package fileops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"strings"

	"github.com/engi-dev/engi"
)

// Limits of what is read into memory, in bytes.
const (
	MaxText   = 16 << 20 // of a file that Read, Write or Edit takes whole
	MaxImage  = 5 << 20  // of an image that Read returns
	MaxAnswer = 256 << 10
)

// clean checks a path and returns it without detours.
func clean(name string) (string, error) {
	switch {
	case name == "":
		return "", engi.Errorf(engi.Invalid, "no path is given")
	case !path.IsAbs(name):
		return "", engi.Errorf(engi.Invalid, "the path %.200q is not absolute", name).WithRemedy("begin it with /")
	case strings.ContainsRune(name, 0):
		return "", engi.Errorf(engi.Invalid, "the path %.200q has a zero byte", name)
	}
	return path.Clean(name), nil
}

// load reads a whole file. It reports Invalid for one with more than limit
// bytes.
func load(ctx context.Context, g engi.Guest, name string, limit int64) ([]byte, error) {
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
		WithRemedy("take a part of it, with grep or with a command such as head, tail or sed")
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// cut shortens a line to at most limit bytes, at the end of a character.
func cut(line string, limit int) (string, bool) {
	if len(line) <= limit {
		return line, false
	}
	return strings.ToValidUTF8(line[:limit], "") + "…", true
}
