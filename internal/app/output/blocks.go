package output

import (
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/clip"
)

// bareBlocks reads search-and-replace blocks that follow the name of their file
// without a fence.
func (p *parser) bareBlocks() {
	start, path := p.pos, p.label
	line := p.lineAt(start)
	end := p.pos
	open := false
	for pos := p.pos; pos < len(p.text); {
		l, next := p.rest(pos)
		t := strings.TrimSpace(l)
		if !open && t != "" && !isSearch(t) {
			break
		}
		if isSearch(t) {
			open = true
		} else if isReplace(t) {
			open = false
		}
		pos = next
		if t != "" || open {
			end = next
		}
	}
	p.pos = end
	p.edited(path, p.text[start:end], line)
}

// edited records an edit from search-and-replace blocks or a diff.
func (p *parser) edited(path, content string, line int) {
	content = unfence("", content)
	blocks, complete := searchBlocks(content)
	switch {
	case len(blocks) > 0 && complete:
		p.do(op{kind: change, path: path, blocks: blocks, line: line})
		return
	case !complete:
		p.do(op{kind: cut, path: path, line: line})
		return
	}
	ds := readDiff(content, path, true)
	if slices.ContainsFunc(ds.files, func(f fileDiff) bool { return f.added || f.removed || f.from != "" || len(f.blocks) > 0 }) {
		p.differ(ds, line)
		return
	}
	if strings.TrimSpace(content) == "" {
		p.warn(line, clip.Text(path, 200), "the edit is empty")
		return
	}
	p.warn(line, clip.Text(path, 200), "the edit has neither search-and-replace blocks nor a diff")
	p.do(op{kind: cut, path: path, line: line})
}

// differ records the edits of a diff.
func (p *parser) differ(d diff, line int) {
	for _, w := range d.warnings {
		p.warn(line+w.Line, w.Path, w.Text)
	}
	for _, f := range d.files {
		at := line + f.line
		switch {
		case f.cut:
			p.do(op{kind: cut, path: f.path, line: at})
		case f.removed:
			p.do(op{kind: remove, path: f.path, line: at})
		case f.added:
			p.do(op{kind: write, path: f.path, content: f.content, line: at})
		case len(f.blocks) > 0 || f.from != "":
			p.do(op{kind: change, path: f.path, from: f.from, blocks: f.blocks, line: at})
		default:
			p.warn(at, clip.Text(f.path, 200), "the diff changes nothing")
		}
	}
}

// isSearch, with the functions after it, recognizes the markers of search-and-replace blocks.
func isSearch(t string) bool {
	rest := strings.TrimLeft(t, "<")
	n := len(t) - len(rest)
	return n >= 5 && n <= 9 && slices.Contains([]string{"SEARCH", "ORIGINAL", "HEAD"}, strings.TrimSpace(strings.TrimRight(rest, ">:")))
}

func isMiddle(t string) bool { return len(t) >= 5 && len(t) <= 9 && strings.Trim(t, "=") == "" }

func isReplace(t string) bool {
	rest := strings.TrimLeft(t, ">")
	n := len(t) - len(rest)
	return n >= 5 && n <= 9 && slices.Contains([]string{"REPLACE", "UPDATED", ""}, strings.TrimSpace(rest))
}

// searchBlocks reads search-and-replace blocks. complete is false if a block has no
// end.
func searchBlocks(s string) (blocks []edit.Block, complete bool) {
	const outside, search, replace = 0, 1, 2
	state := outside
	var b edit.Block
	var part strings.Builder
	for l := range strings.SplitSeq(s, "\n") {
		t := strings.TrimSpace(l)
		switch {
		case state == outside:
			if isSearch(t) {
				state, b = search, edit.Block{}
				part.Reset()
			}
			continue
		case state == search && isMiddle(t):
			b.Search = part.String()
			part.Reset()
			state = replace
			continue
		case state == search && part.Len() == 0 && strings.HasPrefix(t, ":start_line:"):
			b.Line = number(strings.TrimSpace(t[len(":start_line:"):]))
			continue
		case state == search && part.Len() == 0 && b.Line > 0 && strings.Trim(t, "-") == "" && len(t) >= 5:
			continue
		case state == replace && isReplace(t):
			b.Replace = part.String()
			blocks = append(blocks, b)
			state = outside
			continue
		}
		part.WriteString(l)
		part.WriteByte('\n')
	}
	return blocks, state == outside
}

// number parses a small number; it returns 0 for other texts.
func number(s string) (n int) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' || n > 1<<24 {
			return 0
		}
		n = n*10 + int(s[i]-'0')
	}
	return n
}
