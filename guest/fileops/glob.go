package fileops

import (
	"cmp"
	"context"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// A Pattern is a compiled glob: * and ? stay within one name, ** spans any
// number of directories, [a-z] and [!a-z] are classes, {a,b} alternatives, and
// a backslash takes the next character as it is. Names that begin with a dot
// are names like others.
type Pattern struct{ re *regexp.Regexp }

const (
	maxPattern      = 4 << 10
	maxAlternatives = 1000
	maxStars        = 32 // each makes every match take longer
)

// ParsePattern compiles a glob. It reports Invalid for one that cannot be.
func ParsePattern(glob string) (Pattern, error) {
	bad := func(why string) (Pattern, error) {
		return Pattern{}, engi.Errorf(engi.Invalid, "the pattern %.100q %s", glob, why)
	}
	if glob == "" || len(glob) > maxPattern {
		return bad("is empty or too long")
	}
	alternatives, stars := 0, 0
	depth := 0
	var out strings.Builder
	out.WriteString(`(?s)\A`)
	for i := 0; i < len(glob); i++ {
		switch ch := glob[i]; ch {
		case '\\':
			if i++; i == len(glob) {
				return bad("ends with a backslash")
			}
			n := runeLen(glob[i:])
			out.WriteString(regexp.QuoteMeta(glob[i : i+n]))
			i += n - 1
		case '*':
			if stars++; stars > maxStars {
				return bad("has too many stars")
			}
			if i+1 == len(glob) || glob[i+1] != '*' {
				out.WriteString(`[^/]*`)
				continue
			}
			i++
			begins := i == 1 || strings.IndexByte("/{,", glob[i-2]) >= 0
			switch {
			case begins && i+1 < len(glob) && glob[i+1] == '/':
				out.WriteString(`(?:[^/]+/)*`)
				i++
			case begins && (i+1 == len(glob) || strings.IndexByte("},", glob[i+1]) >= 0):
				out.WriteString(`.*`)
			default:
				out.WriteString(`[^/]*`) // as part of a name it is a star
			}
		case '?':
			out.WriteString(`[^/]`)
		case '[':
			class, n := parseClass(glob[i:])
			if n == 0 {
				return bad("has a [ without its ]")
			}
			out.WriteString(class)
			i += n - 1
		case '{':
			depth++
			out.WriteString(`(?:`)
		case '}':
			if depth == 0 {
				return bad("has a } without its {")
			}
			depth--
			out.WriteString(`)`)
		case ',':
			if depth == 0 {
				out.WriteString(`,`)
				continue
			}
			if alternatives++; alternatives > maxAlternatives {
				return bad("has too many alternatives")
			}
			out.WriteString(`|`)
		default:
			n := runeLen(glob[i:])
			out.WriteString(regexp.QuoteMeta(glob[i : i+n]))
			i += n - 1
		}
	}
	if depth > 0 {
		return bad("has a { without its }")
	}
	out.WriteString(`\z`)
	re, err := regexp.Compile(out.String())
	if err != nil {
		return bad("cannot be compiled")
	}
	return Pattern{re}, nil
}

// runeLen is the length of the first character of s, which is not empty.
func runeLen(s string) int {
	for i := range s {
		if i > 0 {
			return i
		}
	}
	return len(s)
}

// parseClass translates the class that s begins with and returns its length;
// 0 if it does not end.
func parseClass(s string) (string, int) {
	var out strings.Builder
	out.WriteByte('[')
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		out.WriteString("^/")
		i++
	}
	for start := i; i < len(s); i++ {
		switch ch := s[i]; {
		case ch == ']' && i > start:
			out.WriteByte(']')
			return out.String(), i + 1
		case ch == '-' && i > start && i+1 < len(s) && s[i+1] != ']':
			out.WriteByte('-')
		default:
			if ch == '\\' && i+1 < len(s) {
				i++
			}
			n := runeLen(s[i:])
			if strings.Contains(`\]^-[&~:`, s[i:i+n]) {
				out.WriteByte('\\')
			}
			out.WriteString(s[i : i+n])
			i += n - 1
		}
	}
	return "", 0
}

// Match reports whether a slash-separated relative path matches.
func (p Pattern) Match(name string) bool { return p.re.MatchString(name) }

// A GlobRequest finds files by name.
type GlobRequest struct {
	Pattern string // relative to Dir, or absolute
	Dir     string // empty means /
	Limit   int    // files; 0 means 1000
	All     bool   // include directories named .git
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
	Truncated bool // there are more than Files, or more than can be listed
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
	p, err := ParsePattern(strings.TrimPrefix(pattern, "./"))
	if err != nil {
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
	for i, fi := range files {
		if i%1024 == 0 && ctx.Err() != nil {
			return Listing{}, engi.Errorf(engi.Expired, "%w", context.Cause(ctx))
		}
		if p.Match(relativeTo(dir, fi.Path)) {
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
		if err != nil && engi.KindOf(err) == engi.Exhausted {
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
				if kind := engi.KindOf(err); err != nil && kind != engi.NotFound && kind != engi.Denied && kind != engi.Exhausted {
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
