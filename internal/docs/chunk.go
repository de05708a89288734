package docs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxLines     = 400_000 // maximum number of lines of a document, without empty ones
	maxHeadings  = 40_000  // maximum number per document
	maxChunks    = 20_000  // maximum number per document
	chunkSize    = 2000    // approximate bytes of a chunk
	maxCodeChunk = 4000    // maximum bytes of a chunk that is one block of code
	minSection   = 80      // bytes; a smaller section is merged into the one before
	maxHeading   = 200     // bytes; longer ones are truncated
)

// blocks only parses the elements needed to find headings and blocks of code. Parsing
// inlines, lists and quotes as well could take minutes on hostile text.
var blocks = parser.NewParser(parser.WithBlockParsers(
	util.Prioritized(parser.NewSetextHeadingParser(), 100),
	util.Prioritized(parser.NewThematicBreakParser(), 200),
	util.Prioritized(parser.NewCodeBlockParser(), 500),
	util.Prioritized(parser.NewATXHeadingParser(), 600),
	util.Prioritized(parser.NewFencedCodeBlockParser(), 700),
	util.Prioritized(parser.NewHTMLBlockParser(), 900),
	util.Prioritized(parser.NewParagraphParser(), 1000),
))

// checkSize reports Invalid for a text with too many lines or headings. The parser takes up to
// 500 bytes for a line and 1300 for a heading, however short they are. Therefore they are counted
// first, and only roughly: a text that merely
// looks like a heading may count as one.
func checkSize(src string) error {
	lines, headings, fenced := 0, 0, false
	for line := range strings.Lines(src) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~"):
			fenced = !fenced
		case !fenced && (line[0] == '#' || strings.Trim(line, "=") == "" || strings.Trim(line, "-") == ""):
			headings++
		}
		lines++
		switch {
		case lines > maxLines:
			return engi.Errorf(engi.Invalid, "it has more than %d lines", maxLines).WithRemedy("split it into several documents")
		case headings > maxHeadings:
			return engi.Errorf(engi.Invalid, "it has more than %d headings", maxHeadings).WithRemedy("split it into several documents")
		}
	}
	return nil
}

// A section is the text between two headings.
type section struct {
	headings []string
	anchor   string
	level    int
	link     bool // the last of headings consists of a link only
	blocks   []block
}

type block struct {
	text string
	code bool
}

// split splits Markdown into chunks: at headings, and in long sections between
// paragraphs and around blocks of code. It also returns the title: of the front
// matter, or otherwise the heading above all others, or otherwise, with sure false, the first
// heading that is more than a link.
func split(src string) (title string, sure bool, chunks []Chunk) {
	src = strings.ReplaceAll(strings.TrimPrefix(src, "\ufeff"), "\r\n", "\n")
	title, src = frontMatter(src)
	sections := parseSections([]byte(src))
	if sure = title != ""; !sure {
		title, sure = titleIn(sections)
	}
	for _, s := range sections {
		for _, part := range packBlocks(s.blocks) {
			if n := len(chunks); n > 0 && mergeable(chunks[n-1], s, part) {
				last := s.headings[len(s.headings)-1]
				chunks[n-1].Text += "\n\n" + strings.Repeat("#", min(len(s.headings), 6)) + " " + last + "\n\n" + part
				continue
			}
			chunks = append(chunks, Chunk{Headings: s.headings, Anchor: s.anchor, Text: part})
		}
	}
	return title, sure, chunks
}

// titleIn returns the title among the headings of a document. READMEs often begin
// with HTML, and with headings that link to other sites.
func titleIn(sections []section) (title string, sure bool) {
	for _, b := range sections[0].blocks {
		if m := htmlTitle.FindStringSubmatch(b.text); m != nil && !b.code {
			if title = headingText(m[1]); title != "" {
				return title, true
			}
		}
	}
	for i, s := range sections[1:] {
		if !s.link {
			return s.headings[len(s.headings)-1], i == 0 && s.level == 1
		}
	}
	return "", false
}

// mergeable reports whether a part of s is small and can be appended to p, the chunk
// before it, which must also be small and under the same parent heading.
func mergeable(p Chunk, s section, part string) bool {
	if len(part) >= minSection || len(p.Text) >= minSection || len(p.Headings) != len(s.headings) || len(s.headings) < 2 {
		return false
	}
	for i := range len(s.headings) - 1 {
		if p.Headings[i] != s.headings[i] {
			return false
		}
	}
	return true
}

// frontMatter removes the metadata at the beginning of files for static site
// generators, and returns the title in it.
func frontMatter(src string) (title, rest string) {
	body, ok := strings.CutPrefix(src, "---\n")
	if !ok {
		return "", src
	}
	head, rest, ok := strings.Cut(body, "\n---\n")
	if !ok || len(head) > 8<<10 || strings.Contains(head, "\n\n") {
		return "", src
	}
	for line := range strings.Lines(head) {
		if t, ok := strings.CutPrefix(line, "title:"); ok {
			return clip.Bytes(strings.Trim(strings.TrimSpace(t), `"'`), maxHeading), rest
		}
	}
	return "", rest
}

// parseSections splits a document at its headings.
func parseSections(src []byte) []section {
	doc := blocks.Parse(text.NewReader(src))
	sections := []section{{}}
	var path []string // headings above, by level
	var levels []int
	slugs := map[string]int{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		start, end := lineStart(src, n.Pos()), len(src)
		if next := n.NextSibling(); next != nil {
			end = lineStart(src, next.Pos())
		}
		if h, ok := n.(*ast.Heading); ok && isHeading(src[start:end], h) {
			name := headingText(string(h.Lines().Value(src)))
			for len(levels) > 0 && levels[len(levels)-1] >= h.Level {
				levels, path = levels[:len(levels)-1], path[:len(path)-1]
			}
			levels, path = append(levels, h.Level), append(path[:len(path):len(path)], name)
			sections = append(sections, section{headings: path, anchor: slug(name, slugs), level: h.Level, link: linkOnly.Match(bytes.TrimSpace(h.Lines().Value(src)))})
			continue
		}
		if start >= end {
			continue
		}
		_, fenced := n.(*ast.FencedCodeBlock)
		_, indented := n.(*ast.CodeBlock)
		s := &sections[len(sections)-1]
		if t := strings.TrimRight(string(src[start:end]), " \t\n"); t != "" {
			s.blocks = append(s.blocks, block{t, fenced || indented})
		}
	}
	return sections
}

// isHeading reports whether a parsed heading is a real one. Since lists and
// quotes are not parsed, their last line with a rule below it looks like a
// heading.
func isHeading(line []byte, h *ast.Heading) bool {
	line = bytes.TrimLeft(line, " ")
	return bytes.HasPrefix(line, []byte("#")) || h.Lines().Len() == 1 && len(line) > 0 && !bytes.ContainsRune([]byte("-*+>|0123456789"), rune(line[0]))
}

func lineStart(src []byte, at int) int {
	at = min(max(at, 0), len(src))
	return bytes.LastIndexByte(src[:at], '\n') + 1
}

// packBlocks joins blocks into parts of about chunkSize.
func packBlocks(bs []block) (parts []string) {
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			parts = append(parts, b.String())
			b.Reset()
		}
	}
	for _, bl := range bs {
		limit := chunkSize
		if bl.code {
			limit = maxCodeChunk
		}
		for _, t := range splitText(bl.text, limit) {
			if b.Len() > 0 && b.Len()+len(t)+2 > chunkSize {
				flush()
			}
			if b.Len() > 0 {
				b.WriteString("\n\n")
			}
			b.WriteString(t)
		}
	}
	flush()
	return parts
}

// splitText splits text into parts of at most limit bytes: after an empty line,
// otherwise after a line, otherwise after a word, otherwise between two characters.
func splitText(t string, limit int) (parts []string) {
	for len(t) > limit {
		at := 0
		for _, sep := range []string{"\n\n", "\n", " "} {
			if at = strings.LastIndex(t[:limit], sep); at > limit/4 {
				break
			}
		}
		if at <= limit/4 {
			at = clip.Index(t, limit)
		}
		if part := strings.TrimSpace(t[:at]); part != "" {
			parts = append(parts, strings.TrimRight(t[:at], " \n"))
		}
		if t = strings.TrimLeft(t[at:], "\n"); len(t) > 1 && t[0] == ' ' && t[1] != ' ' {
			t = t[1:] // the space between two words
		}
	}
	if strings.TrimSpace(t) != "" {
		parts = append(parts, t)
	}
	return parts
}

var (
	linkOnly  = regexp.MustCompile(`^\[[^\]]*\]\([^)]*\)$`)
	htmlTitle = regexp.MustCompile(`(?is)<h1[^>]*>(.{1,400}?)</h1>`)
	linkForm  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	tagForm   = regexp.MustCompile(`</?[a-zA-Z][^>]*>`)
	inlineCut = strings.NewReplacer("`", "", "**", "", "\\", "")
)

// headingText returns a heading in one line, without markup.
func headingText(heading string) string {
	h := linkForm.ReplaceAllString(heading[:min(len(heading), 4*maxHeading)], "$1")
	h = inlineCut.Replace(tagForm.ReplaceAllString(h, ""))
	return clip.Bytes(strings.Join(strings.Fields(h), " "), maxHeading)
}

// slug returns the anchor that Markdown renderers generate for a heading.
func slug(heading string, seen map[string]int) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	n := seen[s]
	seen[s]++
	if n > 0 && s != "" {
		s += "-" + strconv.Itoa(n)
	}
	return s
}

// embeddingText returns the text from which a chunk's vector is computed.
func embeddingText(title string, p Chunk) string {
	head := strings.Join(p.Headings, " > ")
	if len(p.Headings) == 0 || p.Headings[0] != title {
		head = strings.TrimPrefix(title+" > "+head, " > ")
	}
	return strings.TrimSuffix(head, " > ") + "\n" + p.Text
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}
