package fileops

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A GrepRequest searches files for lines that match a pattern.
type GrepRequest struct {
	Pattern    string // regular expression in Go's syntax, matched line by line
	Literal    bool   // Pattern is plain text
	IgnoreCase bool
	Path       string // directory or file to search; empty means /
	Glob       string // pattern of the paths of searched files, or of their names if it has no slash; empty means all files
	Mode       GrepMode
	Before     int  // lines of context before each match, at most 50
	After      int  // lines of context after each match, at most 50
	Limit      int  // maximum number of matches or files, depending on Mode; 0 means 250
	MaxLine    int  // bytes; longer lines are truncated; 0 means 500
	All        bool // directories named .git are included
}

// A GrepMode selects the result of Grep.
type GrepMode string

const (
	GrepContent GrepMode = "content" // matching lines; the default
	GrepFiles   GrepMode = "files"   // names of files with a match
	GrepCount   GrepMode = "count"   // names of files with a match, and their numbers of matching lines
)

// A Match is a matching line.
type Match struct {
	Path          string
	Line          int // line number, from 1
	Column        int // position of the first match in the line, in bytes from 1
	Text          string
	Before, After []string // lines of context, without matching lines
}

// A Count is the number of matching lines of a file.
type Count struct {
	Path  string
	Lines int
}

// A Finding is the result of Grep, in path order.
type Finding struct {
	Matches   []Match // matches; only in mode content
	Files     []Count // files with matches; only in modes files and count
	Searched  int     // number of files searched
	Skipped   int     // number of files that are not text or larger than MaxText
	Truncated bool    // there may be more matches
}

const (
	maxContext = 50
	maxOpened  = 48 // maximum number of files opened one by one; more are read as one archive
)

// errEnough ends a search whose result is full.
var errEnough = errors.New("enough")

// Grep searches files. It reports Invalid for a bad pattern and NotFound if Path
// does not exist. It does not follow links.
func Grep(ctx context.Context, g engi.Guest, q GrepRequest) (_ Finding, err error) {
	defer engi.Annotate(&err, "grep")
	s, err := newSearch(q)
	if err != nil {
		return Finding{}, err
	}
	root := q.Path
	if root == "" {
		root = "/"
	}
	if root, err = cleanPath(root); err != nil {
		return Finding{}, err
	}
	err = s.run(ctx, g, root)
	if errors.Is(err, errEnough) {
		s.result.Truncated, err = true, nil
	}
	if err != nil {
		return Finding{}, err
	}
	slices.SortStableFunc(s.result.Matches, func(a, b Match) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(s.result.Files, func(a, b Count) int { return strings.Compare(a.Path, b.Path) })
	return s.result, nil
}

// A search is one call of Grep. It is not safe for concurrent use.
type search struct {
	q        GrepRequest
	re       *regexp.Regexp
	baseName bool // the glob is matched against the last element of a path
	result   Finding
	budget   int // remaining bytes of text that fit into the result
}

func newSearch(q GrepRequest) (*search, error) {
	if q.Limit < 0 || q.MaxLine < 0 || q.Before < 0 || q.After < 0 || q.Before > maxContext || q.After > maxContext {
		return nil, engi.Errorf(engi.Invalid, "a limit is negative, or there are more than %d lines of context", maxContext)
	}
	switch q.Mode {
	case "":
		q.Mode = GrepContent
	case GrepContent, GrepFiles, GrepCount:
	default:
		return nil, engi.Errorf(engi.Invalid, "%.40q is not a mode", q.Mode).WithRemedy("use content, files or count")
	}
	if q.Limit == 0 {
		q.Limit = 250
	}
	if q.MaxLine == 0 {
		q.MaxLine = 500
	}
	text := q.Pattern
	if text == "" || len(text) > maxPattern {
		return nil, engi.Errorf(engi.Invalid, "the pattern is empty or too long")
	}
	if q.Literal {
		text = regexp.QuoteMeta(text)
	}
	if q.IgnoreCase {
		text = "(?i)" + text
	}
	s := &search{q: q, budget: MaxAnswer, result: Finding{Matches: []Match{}, Files: []Count{}}}
	var err error
	if s.re, err = regexp.Compile(text); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the pattern is not a regular expression: %v", err).
			WithRemedy("use Go's syntax, or search for literal text")
	}
	if q.Glob != "" {
		if err := checkGlob(q.Glob); err != nil {
			return nil, err
		}
		s.baseName = !strings.Contains(q.Glob, "/")
	}
	return s, nil
}

// wanted reports whether to search the file at path rel, relative to the root of
// the search.
func (s *search) wanted(rel string) bool {
	switch {
	case !s.q.All && inGit(rel):
		return false
	case s.q.Glob == "":
		return true
	case s.baseName:
		rel = path.Base(rel)
	}
	return doublestar.MatchUnvalidated(s.q.Glob, rel)
}

func (s *search) run(ctx context.Context, g engi.Guest, root string) error {
	fi, err := g.Stat(ctx, root)
	if err != nil {
		return err
	}
	if !fi.Mode.IsDir() && fi.Target == "" {
		return s.open(ctx, g, root)
	}
	files, complete, err := walk(ctx, g, root, s.q.All)
	if err != nil {
		return err
	}
	s.result.Truncated = !complete
	var names []string
	parent := "" // the common parent
	for _, fi := range files {
		if fi.Mode.IsRegular() && s.wanted(relativeTo(root, fi.Path)) {
			if len(names) == 0 {
				parent = path.Dir(fi.Path)
			}
			for parent != "/" && !strings.HasPrefix(fi.Path, parent+"/") {
				parent = path.Dir(parent)
			}
			names = append(names, fi.Path)
		}
	}
	if len(names) <= maxOpened {
		for _, name := range names {
			if err := engi.Ignore(s.open(ctx, g, name), engi.NotFound); err != nil {
				return err
			}
		}
		return nil
	}
	return s.scanArchive(ctx, g, root, parent)
}

// open searches one file.
func (s *search) open(ctx context.Context, g engi.Guest, name string) error {
	r, err := g.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.scan(name, r)
}

// scanArchive searches all files below dir in one stream, which takes a tenth
// of the time of opening each file.
func (s *search) scanArchive(ctx context.Context, g engi.Guest, root, dir string) error {
	r, err := g.Pack(ctx, dir)
	if err != nil {
		return err
	}
	defer r.Close()
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return engi.Errorf(engi.Expired, "%v", ctx.Err())
			}
			return engi.Errorf(engi.Unavailable, "the guest closed the stream: %v", err)
		}
		// Names begin with the name of dir, unless dir is the root.
		name := path.Clean("/" + h.Name)
		if dir != "/" {
			_, rest, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
			name = path.Join(dir, rest)
		}
		if h.Typeflag != tar.TypeReg || !s.wanted(relativeTo(root, name)) {
			continue
		}
		if err := s.scan(name, in); err != nil {
			return err
		}
	}
}

// scan searches the content of one file.
func (s *search) scan(name string, r io.Reader) error {
	in := bufio.NewReaderSize(io.LimitReader(r, MaxText+1), 64<<10)
	head, err := in.Peek(sniffLen)
	if err != nil && err != io.EOF {
		return engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	if isBinary(head) {
		s.result.Skipped++
		return nil
	}
	raw, err := io.ReadAll(in)
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	if len(raw) > MaxText {
		s.result.Skipped++
		return nil
	}
	s.result.Searched++
	return s.scanLines(name, raw)
}

func (s *search) scanLines(name string, raw []byte) error {
	// Most files have no match, which a single search of the whole text shows. A
	// regular expression may have anchors, which refer to single lines.
	if s.q.Literal && !s.q.IgnoreCase && !bytes.Contains(raw, []byte(s.q.Pattern)) {
		return nil
	}
	var lines []string
	for line := range bytes.Lines(raw) {
		lines = append(lines, strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"))
	}
	var hits []int
	for i, line := range lines {
		if s.re.MatchString(line) {
			hits = append(hits, i)
			if s.q.Mode == GrepFiles {
				break
			}
		}
	}
	if len(hits) == 0 {
		return nil
	}
	if s.q.Mode != GrepContent {
		if len(s.result.Files) == s.q.Limit {
			return errEnough
		}
		s.result.Files = append(s.result.Files, Count{name, len(hits)})
		return nil
	}
	for k, i := range hits {
		if len(s.result.Matches) == s.q.Limit || s.budget <= 0 {
			return errEnough
		}
		from, to := max(0, i-s.q.Before), min(len(lines), i+1+s.q.After)
		if k > 0 { // lines between two matches appear once
			from = max(from, hits[k-1]+1, min(hits[k-1]+1+s.q.After, i))
		}
		if k+1 < len(hits) {
			to = min(to, hits[k+1])
		}
		at := s.re.FindStringIndex(lines[i])
		s.result.Matches = append(s.result.Matches, Match{
			Path: name, Line: i + 1, Column: at[0] + 1, Text: s.show(lines[i]),
			Before: s.showAll(lines[from:i]), After: s.showAll(lines[i+1 : to]),
		})
	}
	return nil
}

func (s *search) show(line string) string {
	if len(line) > s.q.MaxLine {
		line = clip.Bytes(line, s.q.MaxLine) + "…"
	}
	s.budget -= len(line) + 1
	return strings.ToValidUTF8(line, "\uFFFD")
}

func (s *search) showAll(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, s.show(line))
	}
	return all
}

// readFull fills buf, or reads r to its end.
func readFull(r io.Reader, buf []byte) (int, error) {
	n, err := io.ReadFull(r, buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}
