package workspace

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// Limits of paths.
const (
	maxPath  = 512 // maximum bytes of a path
	maxName  = 255
	maxDepth = 32 // maximum number of directories
)

// untracked are names of directories that are not part of a workspace's files, at any depth.
var untracked = []string{".git", "node_modules", "__pycache__", ".venv"}

// CheckPath reports Invalid for a path that no file of a workspace may have.
func CheckPath(p string) error {
	parts := strings.Split(p, "/")
	switch {
	case p == "" || len(p) > maxPath || !utf8.ValidString(p):
		return invalidPath(p, "is empty, too long or no text")
	case strings.ContainsFunc(p, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }):
		return invalidPath(p, "has a backslash or a control character")
	case path.IsAbs(p) || path.Clean(p) != p || parts[0] == ".." || p == ".":
		return invalidPath(p, "leads outside the workspace or is not clean")
	case len(parts) > maxDepth || slices.ContainsFunc(parts, func(name string) bool { return len(name) > maxName }):
		return invalidPath(p, "is too deep, or has too long a name")
	case slices.ContainsFunc(parts, repo.IsGit):
		return invalidPath(p, "is of git itself")
	case slices.ContainsFunc(parts, func(name string) bool { return slices.Contains(untracked, name) }):
		return invalidPath(p, "is of what is made or installed, not of what is written")
	}
	return nil
}

func invalidPath(p, why string) error {
	return engi.Errorf(engi.Invalid, "the path %.100q %s", p, why).WithRemedy("name a file below the workspace, like src/main.go")
}
