package output

import (
	"regexp"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
)

// A parser reads a text from the beginning to the end. It never goes back. It looks
// ahead only over text that it then skips, or remembers the result.
type parser struct {
	text    string
	pos     int
	counted int // position up to which lines are counted
	lines   int // number of line ends before counted
	closing map[string]int
	eol     [2]int // range without a line end; eol[1] is the position of one
	tick    [2]int // position after a line, and position of its last backtick
	fence   string // marker of an open fence around tags
	label   string // path that the last line of prose names
	blanks  int    // number of blank lines since the last line of prose
	first   string // first line of prose

	out      Output
	ops      []op
	packages map[string]int // index in out.Packages, by name
	dropped  int
	warnings int
}

// lineAt returns the number of the line at pos. pos must not be less than in an earlier call.
func (p *parser) lineAt(pos int) int {
	if pos > p.counted {
		p.lines += strings.Count(p.text[p.counted:pos], "\n")
		p.counted = pos
	}
	return p.lines + 1
}

// rest returns the rest of the line at pos, without its line end, and the position of the next
// line.
func (p *parser) rest(pos int) (line string, next int) {
	if pos < p.eol[0] || pos > p.eol[1] || p.eol[1] == 0 {
		p.eol = [2]int{pos, len(p.text)}
		if i := strings.IndexByte(p.text[pos:], '\n'); i >= 0 {
			p.eol[1] = pos + i
		}
	}
	end := p.eol[1]
	return p.text[pos:end], min(end+1, len(p.text))
}

// lastTick returns the position of the last backtick in a line that ends at next.
func (p *parser) lastTick(line string, next int) int {
	if p.tick[0] != next {
		p.tick = [2]int{next, p.pos + strings.LastIndexByte(line, '`')}
	}
	return p.tick[1]
}

// prose reads the text at p.pos, which is outside of tags, fences and diffs: a line, or the
// element that begins in it.
func (p *parser) prose() {
	line, next := p.rest(p.pos)
	trimmed := strings.TrimSpace(line)
	fresh := p.pos == 0 || p.text[p.pos-1] == '\n'
	if trimmed == "" {
		if fresh {
			p.blanks++
		}
		p.pos = next
		return
	}
	marker := fenceMarker(trimmed)
	switch {
	case marker != "" && p.fence != "" && closes(trimmed, p.fence):
		p.fence = ""
		p.pos = next
		return
	case marker != "":
		p.fenced(line, trimmed, marker, next)
		return
	case fresh && p.diffAt(line, next):
		p.label = ""
		return
	case fresh && isSearch(trimmed) && p.label != "":
		p.bareBlocks()
		p.label = ""
		return
	}
	if i := strings.IndexAny(line, "<&"); i >= 0 && p.tagged(line, next) {
		p.label = ""
		return
	}
	if fresh && brokenFile.MatchString(trimmed[:min(len(trimmed), 100)]) {
		p.warn(p.lineAt(p.pos), "", "this tag can not be read, nor what is in it")
	}
	p.say(line)
	p.label, p.blanks = labelOf(trimmed), 0
	p.pos = next
}

var brokenFile = regexp.MustCompile(`^<(?:file|edit|dyad-write|boltAction|lov-write) `)

// say keeps the first line of prose.
func (p *parser) say(line string) {
	if p.first != "" {
		return
	}
	s := summary(line)
	if letters(s) >= 3 && s[0] != '<' && labelOf(line) == "" {
		p.first = s
	}
}

func letters(s string) (n int) {
	for i := range len(s) {
		if c := s[i] | 0x20; c >= 'a' && c <= 'z' || c >= 0x80 {
			n++
		}
	}
	return n
}

// summary shortens a text of prose to one line.
func summary(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = clip.Text(s, 4*maxMessage)
	s = strings.NewReplacer("**", "", "__", "", "`", "").Replace(strings.TrimLeft(strings.TrimSpace(s), "#>*-+ \t"))
	return clip.Text(strings.TrimRight(strings.Join(strings.Fields(s), " "), ":"), maxMessage)
}

// written records a file from a tag or a fence.
func (p *parser) written(path, content string, line int) {
	path = strings.TrimSpace(path)
	content = unfence(path, content)
	if strings.TrimSpace(content) == "" {
		content = ""
	} else if !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	if isSearch(strings.TrimSpace(firstLine(content))) {
		p.edited(path, content, line)
		return
	}
	p.do(op{kind: write, path: path, content: content, line: line})
}

func firstLine(s string) string {
	s = strings.TrimLeft(s, "\n")
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// unfence removes a fence around the whole file.
func unfence(path, s string) string {
	t := strings.TrimSpace(s)
	marker := fenceMarker(firstLine(t))
	if marker == "" || len(t) < 2*len(marker) {
		return s
	}
	last := t[strings.LastIndexByte(t, '\n')+1:]
	if !closes(strings.TrimSpace(last), marker) {
		return s
	}
	info := strings.ToLower(strings.TrimSpace(strings.TrimLeft(firstLine(t), marker[:1])))
	if prose[extension(path)] && info != "md" && info != "markdown" {
		return s
	}
	first := strings.IndexByte(t, '\n')
	end := strings.LastIndexByte(t, '\n')
	if first < 0 || first >= end {
		return ""
	}
	return t[first+1 : end+1]
}
