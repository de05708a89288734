package wire

import (
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of names, equal to Linux's.
const (
	MaxPath = engi.MaxPath
	MaxName = engi.MaxName
	maxID   = 64
)

// CheckRelative reports Invalid unless p can name a file below a directory: it
// must be valid UTF-8, relative, clean, without NUL and without "..". Both sides
// check every path of inputs and artifacts with it.
func CheckRelative(p string) error {
	switch {
	case p == "":
		return engi.Errorf(engi.Invalid, "a path is empty")
	case len(p) > MaxPath:
		return engi.Errorf(engi.Invalid, "path %.40q… is longer than %d bytes", p, MaxPath)
	case !utf8.ValidString(p):
		return engi.Errorf(engi.Invalid, "path %.200q is not valid UTF-8", p)
	case strings.IndexByte(p, 0) >= 0:
		return engi.Errorf(engi.Invalid, "path %.200q contains a NUL", p)
	case p[0] == '/':
		return engi.Errorf(engi.Invalid, "path %.200q is absolute", p).WithRemedy("use a path relative to the working directory")
	}
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case name == "" || name == ".":
			return engi.Errorf(engi.Invalid, "path %.200q is not clean", p).WithRemedy("leave out empty and '.' parts")
		case name == "..":
			return engi.Errorf(engi.Invalid, "path %.200q contains '..'", p).WithRemedy("stay inside the working directory")
		case len(name) > MaxName:
			return engi.Errorf(engi.Invalid, "path %.200q… has a name longer than %d bytes", p, MaxName)
		}
	}
	return nil
}

// CheckAbsolute reports Invalid unless p can be the absolute path of a file.
func CheckAbsolute(p string) error {
	switch {
	case p == "" || p[0] != '/':
		return engi.Errorf(engi.Invalid, "path %.200q is not absolute", p)
	case len(p) > MaxPath:
		return engi.Errorf(engi.Invalid, "path %.40q… is longer than %d bytes", p, MaxPath)
	case strings.IndexByte(p, 0) >= 0:
		return engi.Errorf(engi.Invalid, "path %.200q contains a NUL", p)
	}
	return nil
}

// CheckID reports Invalid unless id may name a run: 1 to 64 letters, digits,
// '_' and '-'.
func CheckID(id string) error {
	ok := id != "" && len(id) <= maxID
	for _, c := range []byte(id) {
		ok = ok && (c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
	}
	if !ok {
		return engi.Errorf(engi.Invalid, "%.80q cannot name a run", id)
	}
	return nil
}

// Check reports Invalid unless r is a run that a guest can start. It does not
// look at the files' data.
func (r *Run) Check() error {
	if err := CheckID(r.ID); err != nil {
		return err
	}
	if err := CheckAbsolute(r.Interpreter); err != nil {
		return err
	}
	if len(r.Files) > MaxFiles {
		return engi.Errorf(engi.Invalid, "there are %d files; the limit is %d", len(r.Files), MaxFiles)
	}
	var total int64
	seen := make(map[string]bool, len(r.Files))
	for _, f := range r.Files {
		if err := CheckRelative(f.Path); err != nil {
			return err
		}
		if seen[f.Path] {
			return engi.Errorf(engi.Invalid, "file %.200q is listed twice", f.Path)
		}
		seen[f.Path] = true
		if f.Size < 0 || f.Mode&^0o777 != 0 {
			return engi.Errorf(engi.Invalid, "file %.200q has size %d and mode %o", f.Path, f.Size, f.Mode)
		}
		if total += f.Size; total > MaxFileBytes || f.Size > MaxFileBytes {
			return engi.Errorf(engi.Invalid, "the files together are larger than %d bytes", MaxFileBytes)
		}
	}
	if r.Entry == "" && len(r.Files) == 1 {
		return r.checkProgram()
	}
	if err := CheckRelative(r.Entry); err != nil {
		return engi.Errorf(engi.Invalid, "entry: %w", err).WithRemedy("name the file to run")
	}
	return r.checkProgram()
}

func (r *Run) checkProgram() error {
	for _, a := range r.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return engi.Errorf(engi.Invalid, "an argument contains a NUL")
		}
	}
	if err := CheckEnv(r.Env); err != nil {
		return err
	}
	switch {
	case r.StdinSize < 0 || r.StdinSize > MaxStdin:
		return engi.Errorf(engi.Invalid, "standard input of %d bytes is larger than %d", r.StdinSize, MaxStdin)
	case r.Timeout < 0:
		return engi.Errorf(engi.Invalid, "timeout %v is negative", r.Timeout)
	case r.Output < 0 || r.Output > MaxOutput:
		return engi.Errorf(engi.Invalid, "output limit %d is not within 0 and %d", r.Output, MaxOutput)
	case r.ArtifactBytes < 0:
		return engi.Errorf(engi.Invalid, "artifact limit %d is negative", r.ArtifactBytes)
	case r.ArtifactCount < 0 || r.ArtifactCount > MaxArtifactCount:
		return engi.Errorf(engi.Invalid, "artifact limit %d is not within 0 and %d", r.ArtifactCount, MaxArtifactCount)
	}
	if r.OutputDir != "" {
		return CheckAbsolute(r.OutputDir)
	}
	return nil
}

// CheckEnv reports Invalid unless env can be an environment.
func CheckEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return engi.Errorf(engi.Invalid, "environment variable %.80q cannot be set", k).
				WithRemedy("names may not contain '=', and neither names nor values a NUL")
		}
	}
	return nil
}
