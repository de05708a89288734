// Package output reads what a model has written into files, removals, packages,
// commands and edits. Models are asked for one form and write many: tags, fenced code
// that a heading names a file for, unified diffs, search-and-replace blocks, the tags
// of other builders; cut off, half, or one in the other. Whatever a text is, reading it
// takes time linear in its length, and no path in the result leads out of the app.
//
// It decides by what is to the left alone, so what it says about the beginning of a
// text stays true as more arrives: a file in it is complete, or is one of those cut.
// A closing tag in a quoted string of its line is content; one that stands alone in a
// string of several lines ends the file. Line ends are \n in everything it returns;
// [edit.Like] gives a file those that it had.
//
// It knows nothing of the app that the text is for: whether an edit has a place and
// whether a package exists, others find out.
package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/clip"
)

// An Output is what a text asks for. A path is in one of Files, Edits, Removed and Cut
// only, except that a file in Files may have edits, which come after it.
type Output struct {
	Files    []File   // in order; the last of a path counts, with a warning for those before
	Removed  []string // files to remove
	Edits    []Edit   // in order
	Packages []string // npm names with or without @version, or pip requirements; each name once
	Commands []string // that install nothing; may have several lines
	Message  string   // what the text says of itself, or its first line of prose; one line of at most 200 bytes
	Warnings []Warning
	Cut      []string // paths of files and edits that end in the middle or leave parts out: nothing of them is in Files or Edits
}

// A File is written as a whole.
type File struct {
	Path    string // relative, slash-separated, clean
	Content string
	Line    int // of the text, from 1
}

// An Edit changes a file, or moves it.
type Edit struct {
	Path   string
	From   string // where the file is now, if it is moved to Path; else empty
	Blocks []edit.Block
	Line   int // of the text, from 1
}

// A Warning says what has no effect, and why.
type Warning struct {
	Line int    // of the text, from 1
	Path string // of the file, if it is about one
	Text string
}

// Limits of what a text may ask for. What is beyond them has no effect but a warning.
const (
	MaxFile = 2 << 20 // bytes
	MaxText = 8 << 20 // bytes; what is after them is as if it was cut off

	maxFiles    = 1000 // files and edits
	maxPackages = 100
	maxCommands = 50
	maxCommand  = 4 << 10 // bytes
	maxWarnings = 100
	maxMessage  = 200 // bytes
)

// Parse reads what a model has written. Any bytes will do.
func Parse(text string) Output {
	p := parser{closing: map[string]int{}, packages: map[string]int{}}
	if len(text) > MaxText {
		text = text[:MaxText]
		p.warn(1, "", fmt.Sprintf("the text is longer than %d bytes and was cut there", MaxText))
	}
	text = strings.TrimPrefix(text, "\uFEFF")
	if strings.Contains(text, "\r") {
		text = strings.ReplaceAll(text, "\r\n", "\n")
	}
	p.text = text
	for p.pos < len(p.text) {
		p.prose()
	}
	return p.finish()
}

// An op is what a part of the text asks for, before it is known what others ask for.
type op struct {
	kind    opKind
	path    string
	from    string // of a move
	content string
	blocks  []edit.Block
	line    int
}

type opKind int

const (
	write opKind = iota
	change
	remove
	cut
)

// do records an op, if it is one that may be done. It returns whether it is.
func (p *parser) do(o op) bool {
	path, why := cleanPath(o.path)
	if why == "" && o.from != "" {
		var from string
		from, why = cleanPath(o.from)
		o.from = from
	}
	if why != "" {
		p.warn(o.line, clip.Text(o.path, 200), why)
		return false
	}
	o.path = path
	if o.kind == write {
		switch {
		case len(o.content) > MaxFile:
			p.warn(o.line, path, fmt.Sprintf("the file has %d bytes, %d are the most", len(o.content), MaxFile))
			return false
		case strings.IndexByte(o.content, 0) >= 0 || !utf8.ValidString(o.content):
			p.warn(o.line, path, "the file is not text; binary files can not be written this way")
			return false
		}
		if at := elided(o.path, o.content); at > 0 {
			p.warn(o.line, path, fmt.Sprintf("line %d of the file stands for code that is left out; it has to be complete, or an edit", at))
			o.kind, o.content = cut, ""
		}
	}
	if len(p.ops) >= maxFiles {
		p.dropped++
		return false
	}
	p.ops = append(p.ops, o)
	return true
}

func (p *parser) warn(line int, path, text string) {
	p.warnings++
	if len(p.out.Warnings) < maxWarnings {
		p.out.Warnings = append(p.out.Warnings, Warning{line, visible(path), text})
	}
}

// visible makes characters that can not be seen ones that can.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// finish puts together what is asked for of each path.
func (p *parser) finish() Output {
	dead := make([]bool, len(p.ops))
	latest := map[string][]int{} // ops of a path that count
	end := func(path string, by op, quiet func(op) bool) {
		for _, i := range latest[path] {
			dead[i] = true
			if old := p.ops[i]; old.kind != cut && !quiet(old) {
				p.warn(old.line, path, fmt.Sprintf("the same file comes again in line %d; this one has no effect", by.line))
			}
		}
		delete(latest, path)
	}
	for i, o := range p.ops {
		switch o.kind {
		case write:
			end(o.path, o, func(old op) bool { return old.kind == write && old.content == o.content || old.kind == remove })
		case change:
			if k := latest[o.path]; len(k) > 0 && p.ops[k[0]].kind == remove && o.from == "" {
				p.warn(o.line, o.path, "the file is removed before it is changed")
				dead[i] = true
				continue
			}
			if k := latest[o.path]; len(k) > 0 && p.ops[k[0]].kind == cut {
				dead[i] = true // it is asked for again as a whole
				continue
			}
			if o.from != "" {
				end(o.path, o, func(op) bool { return false })
			}
		case remove:
			end(o.path, o, func(old op) bool { return old.kind == remove })
		case cut:
			end(o.path, o, func(op) bool { return true })
		}
		latest[o.path] = append(latest[o.path], i)
	}
	parents := map[string]bool{} // directories of what is written
	for i, o := range p.ops {
		if dead[i] || o.kind == remove || o.kind == cut {
			continue
		}
		for dir := o.path; ; {
			slash := strings.LastIndexByte(dir, '/')
			if slash < 0 || parents[dir[:slash]] {
				break
			}
			dir = dir[:slash]
			parents[dir] = true
		}
	}
	for i, o := range p.ops {
		switch {
		case dead[i]:
		case o.kind == cut:
			p.out.Cut = append(p.out.Cut, o.path)
		case o.kind == remove:
			p.out.Removed = append(p.out.Removed, o.path)
		case parents[o.path]:
			p.warn(o.line, o.path, "other files are in a directory of this name")
		case o.kind == write:
			p.out.Files = append(p.out.Files, File{o.path, o.content, o.line})
		default:
			p.out.Edits = append(p.out.Edits, Edit{o.path, o.from, o.blocks, o.line})
		}
	}
	if p.dropped > 0 {
		p.warn(p.lineAt(len(p.text)), "", fmt.Sprintf("%d more files and edits: %d are the most", p.dropped, maxFiles))
	}
	if n := p.warnings - maxWarnings; n > 0 {
		p.out.Warnings = append(p.out.Warnings, Warning{Text: fmt.Sprintf("%d more warnings", n)})
	}
	if p.out.Message == "" {
		p.out.Message = p.first
	}
	return p.out
}
