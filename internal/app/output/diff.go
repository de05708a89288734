package output

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/clip"
)

// A diff is a parsed unified diff, or a parsed patch in the format that some models
// are trained on ("*** Begin Patch").
type diff struct {
	files    []fileDiff
	warnings []Warning // line numbers count from 0
	end      int       // length of the diff in bytes
}

type fileDiff struct {
	path, from string
	added      bool
	removed    bool
	cut        bool
	content    string // content of an added file
	blocks     []edit.Block
	line       int // line number, from 0
}

// A hunk is a hunk of a diff that is being read.
type hunk struct {
	search, replace strings.Builder
	blank           int // number of empty lines without a leading space, which may come after the hunk
	oldLeft         int // number of old lines still expected, if the header has counts
	newLeft         int
	counted         bool
	start           int // line of the old file, from 1; 0 if unknown
	changes         bool
	quotes          bool // the hunk has lines of the old file
}

var hunkHead = regexp.MustCompile(`^@@ -(\d{1,7})(?:,(\d{1,7}))? \+\d{1,7}(?:,(\d{1,7}))? @@`)

// beginsDiff reports whether a text begins with the header of a diff.
func beginsDiff(s string) bool {
	s = strings.TrimLeft(s, "\n")
	head := firstLine(s)
	return strings.HasPrefix(head, "diff --git ") || strings.HasPrefix(head, "*** Begin Patch") ||
		strings.HasPrefix(head, "--- ") && strings.HasPrefix(firstLine(s[len(head):]), "+++ ")
}

// diffAt reads the diff that begins in a line of prose, if there is one.
func (p *parser) diffAt(line string, next int) bool {
	switch {
	case strings.HasPrefix(line, "diff --git "), strings.HasPrefix(line, "*** Begin Patch"):
	case strings.HasPrefix(line, "--- ") && strings.HasPrefix(p.text[next:], "+++ "):
	default:
		return false
	}
	at := p.lineAt(p.pos)
	d := readDiff(p.text[p.pos:], "", false)
	if d.end == 0 {
		return false
	}
	p.pos += d.end
	p.differ(d, at)
	return true
}

// A differ reads a diff line by line.
type differ struct {
	s      string
	pos    int
	line   int
	fenced bool // the text consists of the diff only
	diff   diff
	file   *fileDiff
	hunk   *hunk
	patch  bool // the diff has the "*** Begin Patch" format
	exact  bool // the line counts of the file's hunks were correct
	hunks  int  // number of hunks of the file
}

func (d *differ) peek() (line string, next int) {
	if i := strings.IndexByte(d.s[d.pos:], '\n'); i >= 0 {
		return d.s[d.pos : d.pos+i], d.pos + i + 1
	}
	return d.s[d.pos:], len(d.s)
}

// readDiff reads a diff. path is the file of a diff that names none. In prose, the diff ends at
// the first line that cannot belong to a diff.
func readDiff(s, path string, fenced bool) diff {
	d := differ{s: s, fenced: fenced}
	for d.pos < len(s) {
		l, next := d.peek()
		if !d.header(l, next) && !d.lineOf(l, path) {
			break
		}
		if d.pos < next { // header may have read two lines
			d.pos = next
			d.line++
		}
		if strings.TrimSpace(l) != "" {
			d.diff.end = d.pos
		}
		if d.patch && strings.HasPrefix(l, "*** End Patch") {
			d.patch = false
			if !fenced {
				break
			}
		}
	}
	left := s[d.pos:]
	if strings.HasPrefix(left, "--- ") {
		_, left, _ = strings.Cut(left, "\n")
	}
	ended := strings.IndexByte(left, '\n') < 0 // the last line may be incomplete
	if f := d.file; f != nil && !fenced && ended {
		h := d.hunk
		switch {
		case strings.HasPrefix(s[strings.LastIndexByte(s, '\n')+1:], "+"): // a line that may be incomplete
			f.cut = true
		case d.patch, h != nil && h.counted && (h.oldLeft > 0 || h.newLeft > 0), f.added && (h == nil || !h.counted):
			f.cut = true
		}
	}
	d.endFile()
	return d.diff
}

// header reads a line outside of hunks. It reports whether the line belongs to the diff.
func (d *differ) header(l string, next int) bool {
	value := func(prefix string) (string, bool) {
		v, ok := strings.CutPrefix(l, prefix)
		return strings.TrimSpace(v), ok
	}
	if d.patch || strings.HasPrefix(l, "*** ") {
		if v, ok := value("*** Update File:"); ok {
			d.begin(v)
			return true
		}
		if v, ok := value("*** Add File:"); ok {
			d.begin(v).added = true
			d.hunk = &hunk{}
			return true
		}
		if v, ok := value("*** Delete File:"); ok {
			d.begin(v).removed = true
			return true
		}
		if v, ok := value("*** Move to:"); ok && d.file != nil {
			d.file.from, d.file.path = d.file.path, v
			return true
		}
		if strings.HasPrefix(l, "*** Begin Patch") {
			d.patch = true
			return true
		}
		if strings.HasPrefix(l, "*** End") {
			return true
		}
	}
	if v, ok := value("diff --git "); ok {
		f := d.begin("")
		f.from, f.path = gitPaths(v)
		return true
	}
	if strings.HasPrefix(l, "--- ") && strings.HasPrefix(d.s[next:], "+++ ") {
		if h := d.hunk; h != nil && h.counted && h.oldLeft > 0 && !strings.HasPrefix(l, "--- a/") && !strings.HasPrefix(l, "--- /dev/null") {
			return false // a removed line whose text begins with --
		}
		old, _ := value("--- ")
		d.pos = next
		d.line++
		l, next := d.peek()
		d.paths(old, strings.TrimSpace(l[len("+++ "):]))
		d.pos = next
		d.line++
		return true
	}
	if strings.HasPrefix(l, "@@") {
		if d.file == nil {
			return false
		}
		d.endHunk()
		d.hunks++
		h := &hunk{}
		if m := hunkHead.FindStringSubmatch(l); m != nil {
			h.counted, h.oldLeft, h.newLeft = true, 1, 1
			h.start, _ = strconv.Atoi(m[1])
			if m[2] != "" {
				h.oldLeft, _ = strconv.Atoi(m[2])
			}
			if m[3] != "" {
				h.newLeft, _ = strconv.Atoi(m[3])
			}
			if h.start == 0 && h.oldLeft == 0 && d.hunks == 1 {
				d.file.added = true
			}
		}
		d.hunk = h
		return true
	}
	if d.hunk != nil || d.file == nil {
		return false
	}
	switch f := d.file; {
	case strings.HasPrefix(l, "new file mode"):
		f.added = true
	case strings.HasPrefix(l, "deleted file mode"):
		f.removed = true
	case strings.HasPrefix(l, "rename from "):
		f.from, _ = value("rename from ")
	case strings.HasPrefix(l, "rename to "):
		f.path, _ = value("rename to ")
	case strings.HasPrefix(l, "Binary files "), strings.HasPrefix(l, "GIT binary patch"):
		d.diff.warnings = append(d.diff.warnings, Warning{d.line, clip.Text(f.path, 200), "a binary file can not be written this way"})
		d.file = nil
	case strings.HasPrefix(l, "index "), strings.HasPrefix(l, "old mode "), strings.HasPrefix(l, "new mode "), strings.HasPrefix(l, "similarity index "), strings.HasPrefix(l, "dissimilarity index "):
	default:
		return false
	}
	return true
}

func (d *differ) begin(path string) *fileDiff {
	d.endFile()
	d.file = &fileDiff{path: path, line: d.line}
	d.exact, d.hunks = true, 0
	return d.file
}

// gitPaths splits the rest of a line after "diff --git".
func gitPaths(s string) (from, to string) {
	if i := strings.Index(s, " b/"); strings.HasPrefix(s, "a/") && i > 0 {
		from, to = s[2:i], s[i+3:]
	} else {
		from, to, _ = strings.Cut(s, " ")
	}
	if from == to {
		from = ""
	}
	return from, to
}

// paths takes the paths from the lines --- and +++.
func (d *differ) paths(old, new string) {
	clean := func(s string) string {
		s, _, _ = strings.Cut(s, "\t")
		return strings.Trim(strings.TrimSpace(s), `"`)
	}
	old, new = clean(old), clean(new)
	a, b := strings.HasPrefix(old, "a/"), strings.HasPrefix(new, "b/")
	if (a || old == "/dev/null") && (b || new == "/dev/null") {
		old, new = strings.TrimPrefix(old, "a/"), strings.TrimPrefix(new, "b/")
	}
	f := d.file
	if f == nil || d.hunk != nil || d.hunks > 0 {
		f = d.begin(new)
	}
	switch {
	case old == "/dev/null":
		f.added, f.path, f.from = true, new, ""
	case new == "/dev/null":
		f.removed, f.path, f.from = true, old, ""
	default:
		f.path, f.from = new, ""
		if old != new {
			f.from = old
		}
	}
}

// lineOf reads a line of a hunk. It returns false at the end of the diff.
func (d *differ) lineOf(l, path string) bool {
	h := d.hunk
	if h == nil {
		switch {
		case strings.TrimSpace(l) == "":
			return true
		case d.file == nil && path != "" && d.fenced:
			d.begin(path)
			if strings.HasPrefix(l, "@@") {
				return d.header(l, d.pos)
			}
			h = &hunk{}
			d.hunk = h
		default:
			return d.fenced
		}
	}
	done := h.counted && h.oldLeft <= 0 && h.newLeft <= 0
	if l == "" {
		if !d.fenced && done {
			return false
		}
		h.blank++
		return true
	}
	switch l[0] {
	case '+', '-', ' ', '\\':
		if !d.fenced && done && (h.blank > 0 || l[0] == ' ') {
			return false
		}
	default:
		if !d.fenced && (!h.counted || h.oldLeft <= 0) {
			return false
		}
		h.flush()
		h.context(l) // the model omitted the leading space
		return true
	}
	h.flush()
	switch l[0] {
	case '+':
		h.replace.WriteString(l[1:] + "\n")
		h.newLeft--
		h.changes = true
	case '-':
		h.search.WriteString(l[1:] + "\n")
		h.oldLeft--
		h.changes, h.quotes = true, true
	case ' ':
		h.context(l[1:])
	}
	return true
}

func (h *hunk) context(l string) {
	h.search.WriteString(l + "\n")
	h.replace.WriteString(l + "\n")
	h.oldLeft--
	h.newLeft--
	h.quotes = true
}

// flush counts the pending blank lines as quoted lines, because the hunk continues.
func (h *hunk) flush() {
	for ; h.blank > 0; h.blank-- {
		h.context("")
	}
}

func (d *differ) endHunk() {
	h, f := d.hunk, d.file
	d.hunk = nil
	if h == nil || f == nil {
		return
	}
	if h.counted && h.blank > 0 && h.oldLeft > 0 {
		for ; h.blank > 0 && h.oldLeft > 0; h.blank-- {
			h.context("")
		}
	}
	if h.counted && (h.oldLeft != 0 || h.newLeft != 0) {
		d.exact = false
	}
	if f.added {
		f.content += h.replace.String()
		return
	}
	if !h.changes {
		return
	}
	b := edit.Block{Search: h.search.String(), Replace: h.replace.String(), Line: h.start}
	if h.counted && !h.quotes {
		b.Line++ // the header -5,0 means after line 5
	}
	f.blocks = append(f.blocks, b)
}

func (d *differ) endFile() {
	d.endHunk()
	if f := d.file; f != nil && f.path != "" {
		// In prose, only the counts of the header mark the end of a new file; without them the end is unknown.
		if f.added && !d.fenced && !d.exact && !d.patch {
			f.cut = true
		}
		d.diff.files = append(d.diff.files, *f)
	}
	d.file = nil
}
