// Package output parses the text of a model into files, removals, packages,
// commands and edits. Models are asked for one format and write many: tags, fenced code
// under a heading with the file's name, unified diffs, search-and-replace blocks, the tags
// of other builders; also truncated or nested in each other. For every text, parsing
// takes time linear in its length, and no path in the result leads out of the app.
//
// The parser decides by the text before a position alone, so the result for the beginning of a
// text stays valid as more arrives: each of its files is complete, or is listed in Cut.
// A closing tag in a quoted string within one line is content; a closing tag alone in its line
// ends the file, even within a string of several lines. Line ends are \n in all results;
// [edit.Like] restores a file's former line ends.
//
// The parser does not know the app: package app finds out whether the search text of an edit
// exists, and whether a package exists.
package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// An Output is the parsed text of a model. A path is in only one of Files, Edits, Removed and Cut,
// except that a file in Files may have edits, which are applied after it.
type Output struct {
	Files    []File   // in order; the last file of a path counts, the earlier ones cause warnings
	Removed  []string // files to remove
	Edits    []Edit   // in order
	Packages []string // npm names with or without @version, or pip requirements; without duplicates
	Commands []string // commands that install nothing; each may have several lines
	Message  string   // summary by the model, or the first line of prose; one line of at most 200 bytes
	Warnings []Warning
	Cut      []string // paths of files and edits that are truncated or omit code; Files and Edits have no parts of them
}

// A File is a file with its whole content.
type File struct {
	Path    string // relative, slash-separated and clean path
	Content string
	Line    int // line of the text, from 1
}

// An Edit changes or moves a file.
type Edit struct {
	Path   string
	From   string // present path of a file that is moved to Path; empty if it is not moved
	Blocks []edit.Block
	Line   int // line of the text, from 1
}

// A Warning is a part of the text without effect, and the reason.
type Warning struct {
	Line int    // line of the text, from 1
	Path string // path of the file that the warning concerns; may be empty
	Text string
}

// Limits of one text. Parts beyond the limits only cause a warning.
const (
	MaxFile = 2 << 20           // bytes
	MaxText = engi.MaxApplyText // bytes; the text after them counts as truncated

	maxFiles    = 1000 // maximum number of files and edits
	maxPackages = 100
	maxCommands = 50
	maxCommand  = 4 << 10 // bytes
	maxWarnings = 100
	maxMessage  = 200 // bytes
)

// Parse parses the text of a model. The text may have any bytes.
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

// An op is one operation that the text requests, before operations on the same path are merged.
type op struct {
	kind    opKind
	path    string
	from    string // present path of a file that is moved
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

// do records an operation if it is valid, and reports whether it is.
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

// visible replaces invisible characters by visible ones.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// finish merges the operations on each path.
func (p *parser) finish() Output {
	dead := make([]bool, len(p.ops))
	latest := map[string][]int{} // operations that count, by path
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
				dead[i] = true // a later operation replaces the whole file
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
	parents := map[string]bool{} // parent directories of written files
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
