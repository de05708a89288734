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

	"github.com/engi-dev/engi"
)

// A GrepRequest asks for lines that match.
type GrepRequest struct {
	Pattern    string // a regular expression of Go's, for one line at a time
	Literal    bool   // Pattern is the text itself
	IgnoreCase bool
	Path       string // a directory, or one file; empty means /
	Glob       string // only files of that name; without a slash, at any depth; empty means all
	Mode       GrepMode
	Before     int  // lines of context before each match, at most 50
	After      int  // and after it
	Limit      int  // matches, or files, depending on Mode; 0 means 250
	MaxLine    int  // bytes of a line; longer ones are cut; 0 means 500
	All        bool // what is in directories called .git, too
}

// A GrepMode says what Grep returns.
type GrepMode string

const (
	GrepContent GrepMode = "content" // lines; the default
	GrepFiles   GrepMode = "files"   // names of files that match
	GrepCount   GrepMode = "count"   // and how many lines of each match
)

// A Match is one line.
type Match struct {
	Path          string
	Line          int // from 1
	Column        int // of the first match, in bytes from 1
	Text          string
	Before, After []string // context, without lines that are matches of their own
}

// A Count is how many lines of a file match.
type Count struct {
	Path  string
	Lines int
}

// A Finding is what Grep found, in path order.
type Finding struct {
	Matches   []Match // mode content
	Files     []Count // modes files and count
	Searched  int     // files
	Skipped   int     // files that are no text, or larger than MaxText
	Truncated bool    // there is more
}

const (
	maxContext = 50
	fewFiles   = 48 // so few are opened one by one, more are read as one archive
)

// errEnough ends a search whose answer is full.
var errEnough = errors.New("enough")

// Grep searches files. It reports Invalid for a bad pattern and NotFound if
// Path is not there. Links are not followed.
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
	if root, err = clean(root); err != nil {
		return Finding{}, err
	}
	err = s.run(ctx, g, root)
	if errors.Is(err, errEnough) {
		s.found.Truncated, err = true, nil
	}
	if err != nil {
		return Finding{}, err
	}
	slices.SortStableFunc(s.found.Matches, func(a, b Match) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(s.found.Files, func(a, b Count) int { return strings.Compare(a.Path, b.Path) })
	return s.found, nil
}

// A search is one Grep. It belongs to one goroutine.
type search struct {
	q     GrepRequest
	re    *regexp.Regexp
	glob  *Pattern
	base  bool // glob is matched with the last name of a path
	found Finding
	room  int // bytes of text that still fit into the answer
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
		return nil, engi.Errorf(engi.Invalid, "%.40q is no mode", q.Mode).WithRemedy("use content, files or count")
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
	s := &search{q: q, room: MaxAnswer, found: Finding{Matches: []Match{}, Files: []Count{}}}
	var err error
	if s.re, err = regexp.Compile(text); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the pattern is no regular expression: %v", err).
			WithRemedy("use Go's syntax, or ask for a literal search")
	}
	if q.Glob != "" {
		p, err := ParsePattern(q.Glob)
		if err != nil {
			return nil, err
		}
		s.glob, s.base = &p, !strings.Contains(q.Glob, "/")
	}
	return s, nil
}

// wanted tells whether a file, relative to where the search began, is searched.
func (s *search) wanted(rel string) bool {
	switch {
	case !s.q.All && inGit(rel):
		return false
	case s.glob == nil:
		return true
	case s.base:
		return s.glob.Match(path.Base(rel))
	}
	return s.glob.Match(rel)
}

func (s *search) run(ctx context.Context, g engi.Guest, root string) error {
	fi, err := g.Stat(ctx, root)
	if err != nil {
		return err
	}
	if !fi.Mode.IsDir() && fi.Target == "" {
		return s.one(ctx, g, root)
	}
	files, whole, err := walk(ctx, g, root, s.q.All)
	if err != nil {
		return err
	}
	s.found.Truncated = !whole
	var names []string
	parent := "" // of all of them
	for _, fi := range files {
		if fi.Mode.IsRegular() && s.wanted(below(root, fi.Path)) {
			if len(names) == 0 {
				parent = path.Dir(fi.Path)
			}
			for parent != "/" && !strings.HasPrefix(fi.Path, parent+"/") {
				parent = path.Dir(parent)
			}
			names = append(names, fi.Path)
		}
	}
	if len(names) <= fewFiles {
		for _, name := range names {
			if err := s.one(ctx, g, name); err != nil && engi.KindOf(err) != engi.NotFound {
				return err
			}
		}
		return nil
	}
	return s.archive(ctx, g, root, parent)
}

func (s *search) one(ctx context.Context, g engi.Guest, name string) error {
	r, err := g.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.file(name, r)
}

// archive searches what is below dir, one stream for all files: opening each
// takes ten times as long.
func (s *search) archive(ctx context.Context, g engi.Guest, root, dir string) error {
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
			return engi.Errorf(engi.Unavailable, "the guest broke off: %v", err)
		}
		// Names begin with that of dir itself, unless it is the root.
		name := path.Clean("/" + h.Name)
		if dir != "/" {
			_, rest, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
			name = path.Join(dir, rest)
		}
		if h.Typeflag != tar.TypeReg || !s.wanted(below(root, name)) {
			continue
		}
		if err := s.file(name, in); err != nil {
			return err
		}
	}
}

// file searches one file.
func (s *search) file(name string, r io.Reader) error {
	in := bufio.NewReaderSize(io.LimitReader(r, MaxText+1), 64<<10)
	head, err := in.Peek(sniffed)
	if err != nil && err != io.EOF {
		return engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	if binary(head) {
		s.found.Skipped++
		return nil
	}
	raw, err := io.ReadAll(in)
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	if len(raw) > MaxText {
		s.found.Skipped++
		return nil
	}
	s.found.Searched++
	return s.text(name, raw)
}

func (s *search) text(name string, raw []byte) error {
	// Most files have no match at all, and one look tells. Anchors are about
	// lines below, so they cannot be looked for this way.
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
		if len(s.found.Files) == s.q.Limit {
			return errEnough
		}
		s.found.Files = append(s.found.Files, Count{name, len(hits)})
		return nil
	}
	for k, i := range hits {
		if len(s.found.Matches) == s.q.Limit || s.room <= 0 {
			return errEnough
		}
		from, to := max(0, i-s.q.Before), min(len(lines), i+1+s.q.After)
		if k > 0 { // lines between two matches are told once
			from = max(from, hits[k-1]+1, min(hits[k-1]+1+s.q.After, i))
		}
		if k+1 < len(hits) {
			to = min(to, hits[k+1])
		}
		at := s.re.FindStringIndex(lines[i])
		s.found.Matches = append(s.found.Matches, Match{
			Path: name, Line: i + 1, Column: at[0] + 1, Text: s.show(lines[i]),
			Before: s.showAll(lines[from:i]), After: s.showAll(lines[i+1 : to]),
		})
	}
	return nil
}

func (s *search) show(line string) string {
	line, _ = cut(line, s.q.MaxLine)
	s.room -= len(line) + 1
	return strings.ToValidUTF8(line, "\uFFFD")
}

func (s *search) showAll(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, s.show(line))
	}
	return all
}

// readFull fills buf as far as r goes.
func readFull(r io.Reader, buf []byte) (int, error) {
	n, err := io.ReadFull(r, buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}
