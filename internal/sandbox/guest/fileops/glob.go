package fileops

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxPattern    = 4 << 10 // bytes; maximum length of a pattern
	maxExpansions = 256     // maximum number of patterns that alternatives expand to; each is matched separately
)

// checkGlob reports Invalid unless glob is a pattern that can be matched in
// bounded time.
func checkGlob(glob string) error {
	why := ""
	switch {
	case glob == "" || len(glob) > maxPattern:
		why = "is empty or too long"
	case !doublestar.ValidatePattern(glob):
		why = "is not valid: check its brackets and braces, and write \\ before characters that stand for themselves"
	case expansions(glob) > maxExpansions:
		why = "has too many alternatives"
	default:
		return nil
	}
	return engi.Errorf(engi.Invalid, "the pattern %.100q %s", glob, why)
}

// expansions returns the number of patterns that the alternatives of a valid glob stand
// for, or a higher number if groups are nested. It stops counting beyond maxExpansions.
func expansions(glob string) int {
	n := 1
	var open []int // number of alternatives of each group around the current position
	for i := 0; i < len(glob) && n <= maxExpansions; i++ {
		switch last := len(open) - 1; glob[i] {
		case '\\':
			i++
		case '{':
			open = append(open, 1)
		case ',':
			if last >= 0 {
				open[last]++
			}
		case '}':
			if last >= 0 {
				n *= open[last]
				open = open[:last]
			}
		}
	}
	return n
}

// A GlobRequest finds files by name. In patterns * and ? stay within one name, **
// spans any number of directories, [a-z] and [!a-z] are classes, {a,b} are
// alternatives, and a backslash escapes the next character. Names that begin with
// a dot are not special.
type GlobRequest struct {
	Pattern string // pattern of paths, relative to Dir or absolute
	Dir     string // directory to search; empty means /
	Limit   int    // maximum number of files; 0 means 1000
	All     bool   // directories named .git are included
}

// A File is a file that Glob found.
type File struct {
	Path     string
	Size     int64
	Modified time.Time
}

// A Listing is the result of Glob, the most recently changed files first.
type Listing struct {
	Files     []File
	Total     int  // number of matching files, including those left out
	Truncated bool // there are more files than Files has, or than can be listed
}

// Glob finds files by name. It does not list directories, and reports NotFound
// if Dir does not exist.
func Glob(ctx context.Context, g engi.Guest, q GlobRequest) (_ Listing, err error) {
	defer engi.Annotate(&err, "glob")
	dir, pattern := q.Dir, q.Pattern
	if path.IsAbs(pattern) {
		dir, pattern = splitPattern(pattern)
	}
	if dir == "" {
		dir = "/"
	}
	if dir, err = cleanPath(dir); err != nil {
		return Listing{}, err
	}
	pattern = strings.TrimPrefix(pattern, "./")
	if err := checkGlob(pattern); err != nil {
		return Listing{}, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = 1000
	}
	if limit < 0 {
		return Listing{}, engi.Errorf(engi.Invalid, "the limit is negative")
	}
	files, complete, err := walk(ctx, g, dir, q.All)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Files: []File{}, Truncated: !complete}
	for _, fi := range files {
		if ctx.Err() != nil {
			return Listing{}, engi.Errorf(engi.Expired, "%w", context.Cause(ctx))
		}
		if doublestar.MatchUnvalidated(pattern, relativeTo(dir, fi.Path)) {
			l.Files = append(l.Files, File{fi.Path, fi.Size, fi.Modified})
		}
	}
	slices.SortStableFunc(l.Files, func(a, b File) int {
		return cmp.Or(b.Modified.Compare(a.Modified), strings.Compare(a.Path, b.Path))
	})
	l.Total = len(l.Files)
	if l.Total > limit {
		l.Files, l.Truncated = l.Files[:limit], true
	}
	return l, nil
}

// splitPattern splits an absolute pattern after its last leading directory
// without wildcards.
func splitPattern(pattern string) (dir, rest string) {
	parts := strings.Split(strings.TrimLeft(pattern, "/"), "/")
	n := 0
	for n < len(parts)-1 && !strings.ContainsAny(parts[n], `*?[{\,}`) {
		n++
	}
	return "/" + strings.Join(parts[:n], "/"), strings.Join(parts[n:], "/")
}

// relativeTo returns name relative to dir.
func relativeTo(dir, name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
}

// maxWalk bounds the entries of one walk.
const maxWalk = 200_000

// walk lists the files below dir, in path order; complete is false if there are
// more than maxWalk entries.
func walk(ctx context.Context, g engi.Guest, dir string, all bool) (files []engi.FileInfo, complete bool, err error) {
	seen := 0
	var visit func(dir string) error
	visit = func(dir string) error {
		entries, err := g.List(ctx, dir, 1<<10)
		deep := err == nil
		if engi.Is(err, engi.Exhausted) {
			entries, err = g.List(ctx, dir, 1)
		}
		if err != nil {
			return err
		}
		for _, fi := range entries {
			if seen++; seen > maxWalk {
				return nil
			}
			rel := relativeTo(dir, fi.Path)
			if !all && inGit(rel) {
				continue
			}
			switch {
			case !fi.Mode.IsDir():
				files = append(files, fi)
			case !deep && (all || path.Base(rel) != ".git"):
				err := visit(fi.Path)
				if err != nil && !engi.Is(err, engi.NotFound, engi.Denied, engi.Exhausted) {
					return err
				}
			}
		}
		return nil
	}
	err = visit(dir)
	return files, seen <= maxWalk, err
}

func inGit(rel string) bool {
	return strings.HasPrefix(rel, ".git/") || strings.Contains(rel, "/.git/")
}
