// Package edit applies small changes to a text: blocks of a search text
// and its replacement, as models write them in search-and-replace blocks and in
// unified diffs. Models quote texts from memory, so their search texts often do not
// match exactly: a block is applied where it matches exactly, otherwise where it
// matches except for white space, otherwise where it matches best, and never where two places
// match equally well. Lines that a block only quotes stay unchanged in the text.
//
// It reads no files and parses no diffs; package output does that.
package edit

import (
	"fmt"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Block is one change. Search and Replace are whole lines, or, in a Search that is
// only matches within a line, a part of a line. An empty Search inserts before Line, or
// fills an empty text.
type Block struct {
	Search, Replace string
	Line            int // line number of the first line of Search in the original text, from 1; 0 if unknown
}

const (
	maxBlocks = 500
	maxText   = 4 << 20 // bytes of a text, and of a block
)

// Apply returns the text after all blocks, each of which sees the result of the blocks
// before it. Line ends, a byte order mark and a missing final newline stay
// unchanged. It reports Conflict, with the block and the closest match, if a
// block matches no place or several, and Invalid if the text or the blocks are too large.
func Apply(content string, blocks []Block) (string, error) {
	if len(blocks) > maxBlocks {
		return "", engi.Errorf(engi.Invalid, "%d changes to one file; the limit is %d", len(blocks), maxBlocks).WithRemedy("write the whole file")
	}
	if len(content) > maxText {
		return "", engi.Errorf(engi.Invalid, "a file of %d bytes is too large for changes; the limit is %d", len(content), maxText).WithRemedy("leave the file as it is, or write a smaller one")
	}
	t := read(content)
	for i, b := range blocks {
		if len(b.Search)+len(b.Replace) > maxText {
			return "", engi.Errorf(engi.Invalid, "change %d has %d bytes, %d are the most", i+1, len(b.Search)+len(b.Replace), maxText).WithRemedy("write the whole file")
		}
		if err := t.apply(b); err != nil {
			return "", conflict(i+1, b, err)
		}
		if t.size() > maxText {
			return "", engi.Errorf(engi.Invalid, "change %d makes a file of more than %d bytes", i+1, maxText).WithRemedy("split the file")
		}
	}
	return t.String(), nil
}

// Like returns new with the line ends of old, so that a file that a model has
// rewritten does not change in every line. Without an old file, line ends are \n.
func Like(old, new string) string {
	new = strings.ReplaceAll(new, "\r\n", "\n")
	if read(old).crlf {
		new = strings.ReplaceAll(new, "\n", "\r\n")
	}
	return new
}

// A misfit is the reason why a block matches no place.
type misfit struct{ why, remedy string }

func (m *misfit) Error() string { return m.why }

func conflict(n int, b Block, m *misfit) error {
	first, _, _ := strings.Cut(strings.TrimSpace(b.Search), "\n")
	return engi.Errorf(engi.Conflict, "change %d, with the search text %q: %s", n, clip.Text(first, 80), m.why).WithRemedy("%s", m.remedy)
}

// A text is the lines of a file.
type text struct {
	bom     bool
	crlf    bool // most lines end in \r\n
	open    bool // the last line has no end
	lines   []line
	offsets []offset // line offsets of the applied blocks
	keys    map[string]int32
	budget  int // bytes that inexact matching may still compare
}

type line struct {
	text string
	crlf bool
	key  int32 // equal for lines that differ in white space only
}

// line returns a line with its key.
func (t *text) line(s string, crlf bool) line {
	k := squeeze(s)
	id, ok := t.keys[k]
	if !ok {
		id = int32(len(t.keys))
		t.keys[k] = id
	}
	return line{s, crlf, id}
}

// squeeze reduces white space to single spaces between words.
func squeeze(s string) string {
	s = strings.TrimSpace(s)
	if !strings.ContainsAny(s, " \t") {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != ' ' && s[i] != '\t' {
			out = append(out, s[i])
			continue
		}
		for s[i+1] == ' ' || s[i+1] == '\t' {
			i++
		}
		if len(out) > 0 && word(out[len(out)-1]) && word(s[i+1]) {
			out = append(out, ' ')
		}
	}
	return string(out)
}

func word(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// An offset is the number of lines that a block has added at a line of the original text.
type offset struct{ at, by int }

func read(content string) *text {
	t := &text{budget: 32 << 20, keys: map[string]int32{}}
	content, t.bom = strings.CutPrefix(content, "\uFEFF")
	if content == "" {
		return t
	}
	t.open = !strings.HasSuffix(content, "\n")
	crlf := 0
	for l := range strings.SplitSeq(strings.TrimSuffix(content, "\n"), "\n") {
		l, cr := strings.CutSuffix(l, "\r")
		if cr {
			crlf++
		}
		t.lines = append(t.lines, t.line(l, cr))
	}
	if t.open {
		last := &t.lines[len(t.lines)-1]
		if last.crlf { // a \r without \n is no line end
			last.text, last.crlf = last.text+"\r", false
			crlf--
		}
	}
	ends := len(t.lines)
	if t.open {
		ends--
	}
	t.crlf = crlf*2 > ends
	if t.open {
		t.lines[len(t.lines)-1].crlf = t.crlf // the line needs an end if lines are added after it
	}
	return t
}

func (t *text) size() (n int) {
	for _, l := range t.lines {
		n += len(l.text) + 2
	}
	return n
}

func (t *text) String() string {
	var b strings.Builder
	if t.bom {
		b.WriteString("\uFEFF")
	}
	for i, l := range t.lines {
		b.WriteString(l.text)
		if i == len(t.lines)-1 && t.open {
			break
		}
		if l.crlf {
			b.WriteByte('\r')
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// split returns the lines of one side of a block.
func split(s string) []string {
	if s == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "\r")
	}
	return lines
}

// now returns the current index of a line of the original text, or -1 for an unknown line.
func (t *text) now(line int) int {
	if line <= 0 {
		return -1
	}
	at := line - 1
	for _, o := range t.offsets {
		if o.at <= at {
			at += o.by
		}
	}
	return max(at, 0)
}

// replace replaces n lines from index at.
func (t *text) replace(at, n int, lines []line) {
	if by := len(lines) - n; by != 0 {
		t.offsets = append(t.offsets, offset{at, by})
	}
	out := make([]line, 0, len(t.lines)-n+len(lines))
	out = append(append(append(out, t.lines[:at]...), lines...), t.lines[at+n:]...)
	if len(t.lines) == 0 || len(out) == 0 {
		t.open = false
	}
	t.lines = out
}

func (t *text) apply(b Block) *misfit {
	search, with := split(b.Search), split(b.Replace)
	if b.Search == "" {
		return t.insert(b.Line, with)
	}
	if strings.TrimSpace(b.Search) == "" {
		return &misfit{"it looks for blank lines only", "quote a line of the file"}
	}
	hint := t.now(b.Line)
	s := t.seek(search)
	for _, class := range []fit{same, trailing, shifted, spaced} {
		at, m := choose(s.of(class), hint, len(search), class)
		if m != nil {
			return m
		}
		if at >= 0 {
			t.place(search, with, s.straight(at), class)
			return nil
		}
	}
	if done, m := t.within(b, hint); done || m != nil {
		return m
	}
	if core, coreWith, cut := trimBlank(search, with); cut {
		return t.apply(Block{Search: strings.Join(core, "\n"), Replace: strings.Join(coreWith, "\n"), Line: b.Line})
	}
	return t.fuzzy(search, with, hint)
}

// insert adds lines before a line, or fills an empty text.
func (t *text) insert(before int, with []string) *misfit {
	if len(with) == 0 {
		return nil
	}
	at := t.now(before)
	if len(t.lines) == 0 || len(t.lines) == 1 && t.lines[0].text == "" {
		t.replace(0, len(t.lines), t.fresh(with))
		return nil
	}
	if at < 0 {
		return &misfit{"it looks for nothing, and the file is not empty", "quote the line that it belongs after"}
	}
	if at > len(t.lines) {
		return &misfit{fmt.Sprintf("it belongs before line %d, and the file has %d lines", at+1, len(t.lines)), "quote the line that it belongs after"}
	}
	t.replace(at, 0, t.fresh(with))
	return nil
}

func (t *text) fresh(with []string) []line {
	lines := make([]line, len(with))
	for i, l := range with {
		lines[i] = t.line(l, t.crlf)
	}
	return lines
}

// within replaces a part of a line, or lines of which the first and the
// last are quoted partly.
func (t *text) within(b Block, hint int) (done bool, m *misfit) {
	search := strings.ReplaceAll(strings.TrimSuffix(b.Search, "\n"), "\r\n", "\n")
	with := strings.ReplaceAll(strings.TrimSuffix(b.Replace, "\n"), "\r\n", "\n")
	rows := strings.Split(search, "\n")
	var found []int // lines at which the search text begins
	if strings.TrimSpace(rows[0]) == "" || strings.TrimSpace(rows[len(rows)-1]) == "" {
		return false, nil
	}
	for i := 0; i+len(rows) <= len(t.lines) && t.budget > 0; i++ {
		if t.quotes(i, rows) {
			found = append(found, i)
		}
	}
	at, m := choose(found, hint, len(rows), same)
	if at < 0 || m != nil {
		return false, m
	}
	first := t.lines[at].text
	if len(rows) == 1 && strings.Count(first, search) > 1 {
		return false, &misfit{fmt.Sprintf("line %d has it more than once", at+1), "quote the whole line"}
	}
	head := strings.LastIndex(first, rows[0])
	if len(rows) == 1 {
		head = strings.Index(first, search)
	}
	last := t.lines[at+len(rows)-1].text
	tail := len(rows[len(rows)-1])
	if len(rows) == 1 {
		tail += head
	}
	t.replace(at, len(rows), t.fresh(strings.Split(first[:head]+with+last[tail:], "\n")))
	return true, nil
}

// quotes reports whether rows match the lines from index at, except for the beginning of the
// first line and the end of the last.
func (t *text) quotes(at int, rows []string) bool {
	if len(rows) == 1 {
		return strings.Contains(t.lines[at].text, rows[0])
	}
	last := len(rows) - 1
	if !strings.HasSuffix(t.lines[at].text, rows[0]) || !strings.HasPrefix(t.lines[at+last].text, rows[last]) {
		return false
	}
	for i := 1; i < last; i++ {
		t.budget -= len(rows[i]) + 1
		if t.lines[at+i].text != rows[i] {
			return false
		}
	}
	return true
}

// choose returns the only place, or the one closest to the hint; -1 if
// there is none.
func choose(places []int, hint, n int, class fit) (int, *misfit) {
	switch {
	case len(places) == 0:
		return -1, nil
	case len(places) == 1:
		return places[0], nil
	}
	best, tie := places[0], -1
	if hint < 0 {
		tie = places[1]
	} else {
		for _, p := range places[1:] {
			switch d, e := abs(p-hint), abs(best-hint); {
			case d < e:
				best, tie = p, -1
			case d == e:
				tie = p
			}
		}
	}
	if tie < 0 {
		return best, nil
	}
	return -1, ambiguous(best, tie, len(places), class)
}

func ambiguous(a, b, n int, class fit) *misfit {
	but := ""
	if class != same {
		but = " but for " + class.String()
	}
	why := fmt.Sprintf("it matches at line %d and at line %d alike%s", a+1, b+1, but)
	if n > 2 {
		why = fmt.Sprintf("it matches at %d places alike%s, first at line %d and at line %d", n, but, a+1, b+1)
	}
	return &misfit{why, "quote more lines around it, so that it can only be one place"}
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// trimBlank removes blank lines at the beginning and end of a search, and as many of
// the replacement. It reports whether there were any.
func trimBlank(search, with []string) (s, w []string, cut bool) {
	blank := func(l string) bool { return strings.TrimSpace(l) == "" }
	for len(search) > 0 && blank(search[0]) {
		search, cut = search[1:], true
		if len(with) > 0 && blank(with[0]) {
			with = with[1:]
		}
	}
	for len(search) > 0 && blank(search[len(search)-1]) {
		search, cut = search[:len(search)-1], true
		if len(with) > 0 && blank(with[len(with)-1]) {
			with = with[:len(with)-1]
		}
	}
	return search, with, cut
}
