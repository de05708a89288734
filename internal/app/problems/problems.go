// Package problems parses the errors that tools report about an app: Vite's
// terminal output, its overlay and its build, tsc, Node, Python, and the console of a browser.
// It returns the facts that a model needs for a repair: the file, the position and the message,
// without duplicates. Stack frames of packages and of the tools themselves are omitted.
//
// The texts come from a sandbox and are not trusted. Unknown texts are
// ignored; the health of an app is determined by its server, not by its output.
package problems

import (
	"encoding/json"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
)

// A Problem is one error of an app. Line numbers are those of the text that the tool has read:
// Vite counts lines of compiled code in errors about imports and in stacks of its development
// server, which differ slightly from those of the source.
type Problem struct {
	Source string // one of vite, tsc, node, python or browser
	File   string // relative path in the app; empty if the error is in no file of the app
	Line   int    // from 1; 0 if unknown
	Column int    // from 1; 0 if unknown
	Text   string // message of at most 1000 bytes
}

const (
	maxProblems = 50
	maxText     = 1000    // bytes of a message
	maxInput    = 1 << 20 // maximum bytes of input; only the end of a longer text is read
	maxLine     = 4000    // maximum bytes of a line that are read
)

var (
	ansi     = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)`)
	tsc      = regexp.MustCompile(`^(\S.*?)(?:\((\d{1,7}),(\d{1,7})\):|:(\d{1,7}):(\d{1,7}) -) error (TS\d+: .*)$`)
	viteErr  = regexp.MustCompile(`\[vite\] (?:\(\w+\) )?(?:Internal server error|Pre-transform error|hmr update error|Error when evaluating SSR module \S+):? (.*)$`)
	console  = regexp.MustCompile(`\[vite\] (?:\(\w+\) )?\[(?:Unhandled error|Unhandled rejection|console\.error)\] (.*)$`)
	stamped  = regexp.MustCompile(`^\d+:\d+:\d+(?: [AP]M)? \[vite\] `)
	mapped   = regexp.MustCompile(`^ > (?:\S.* )?(\S+):(\d{1,7}):(\d{1,7})$`)
	viteFile = regexp.MustCompile(`^\s+File: (.+?)(?::(\d{1,7}):(\d{1,7}))?$`)
	box      = regexp.MustCompile(`╭─\[ (.+?):(\d{1,7}):(\d{1,7}) \]`)
	tagged   = regexp.MustCompile(`^\[([A-Z][A-Z_]+|builtin:[\w-]+|vite:[\w-]+)\] (.*)$`)
	plugin   = regexp.MustCompile(`^\[plugin ([^\]]+)\] (.+?)(?::(\d{1,7}):(\d{1,7}))?$`)
	from     = regexp.MustCompile(`(?: from|imported from) "?([^"\s]+)"?`)
	thrown   = regexp.MustCompile(`^(?:Uncaught (?:\(in promise\) )?)?((?:[A-Z]\w*)?(?:Error|Exception|Warning))(?: \[\w+\])?: (.*)$`)
	frame    = regexp.MustCompile(`^\s*(?:at (?:.*\()?|[^\s@]*@)((?:file://|https?://|/|[A-Za-z]:\\|\.{0,2}/?)[^\s()]*?):(\d{1,7})(?::(\d{1,7}))?\)?(?: \{)?$`)
	place    = regexp.MustCompile(`^((?:file://)?/\S+?):(\d{1,7})$`)
	config   = regexp.MustCompile(`^failed to load config from (.+)$`)
	pyFrame  = regexp.MustCompile(`^\s+File "([^"]+)", line (\d{1,7})`)
	pyError  = regexp.MustCompile(`^((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt|Iteration)|KeyboardInterrupt)(?:: (.*))?$`)
)

// A reader reads lines. A problem stays open while later lines may contain its position.
type reader struct {
	root   string
	all    []Problem
	seen   map[Problem]bool
	open   *Problem
	fixed  bool // the position of the open problem is final
	more   bool // the message may continue in the next line
	spot   *Problem
	trace  []Problem // frames of a Python traceback, innermost last
	build  bool      // the report of a failed build has begun
	config string    // file that could not be read earlier
}

// Parse reads the output of tools. root is the directory of the app.
func Parse(text, root string) []Problem {
	if len(text) > maxInput {
		text = text[len(text)-maxInput:]
		if i := strings.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	r := reader{root: strings.TrimSuffix(root, "/") + "/", seen: map[Problem]bool{}}
	text = ansi.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "")
	for l := range strings.SplitSeq(text, "\n") {
		if len(r.all) >= maxProblems {
			break
		}
		if l = strings.TrimRight(l, " \t\r"); len(l) > maxLine {
			l = l[:maxLine]
		}
		r.line(l)
	}
	r.close()
	return r.all
}

func (r *reader) begin(source, text string) {
	r.close()
	r.open = &Problem{Source: source, Text: strings.TrimSpace(text)}
	r.more = true
}

func (r *reader) close() {
	p := r.open
	r.open, r.fixed, r.more = nil, false, false
	if p == nil || p.Text == "" {
		return
	}
	p.Text = clip.Text(p.Text, maxText)
	r.add(*p)
}

func (r *reader) add(p Problem) {
	key := p
	key.Column = 0
	if key.Source == "vite" {
		key.Line = 0 // the tool reports the same error several times, with different lines
	}
	if !r.seen[key] && len(r.all) < maxProblems {
		r.seen[key] = true
		r.all = append(r.all, p)
	}
}

// at sets the position of the open problem, if the file is in the app.
func (r *reader) at(file, line, column string, sure bool) {
	if r.open == nil || r.fixed {
		return
	}
	if f := r.file(file); f != "" {
		r.open.File, r.open.Line, r.open.Column = f, number(line), number(column)
		r.fixed = sure
	}
}

func (r *reader) line(l string) {
	t := strings.TrimSpace(l)
	if m := tsc.FindStringSubmatch(l); m != nil {
		r.begin("tsc", m[6])
		r.at(m[1], m[2]+m[4], m[3]+m[5], true)
		return
	}
	if m := viteErr.FindStringSubmatch(l); m != nil {
		r.begin("vite", m[1])
		return
	}
	if m := console.FindStringSubmatch(l); m != nil {
		r.begin("browser", m[1])
		return
	}
	if r.open != nil && r.open.Source == "browser" {
		if m := mapped.FindStringSubmatch(l); m != nil {
			r.more = false
			r.at(m[1], m[2], m[3], true)
			return
		}
		if stamped.MatchString(l) {
			r.close()
			return
		}
		if r.more && thrown.MatchString(l) { // the message contains another error
			r.open.Text += "\n" + t
			return
		}
	}
	if m := config.FindStringSubmatch(l); m != nil {
		r.close()
		r.config = r.file(m[1])
		return
	}
	if t == "error during build:" || t == "error when starting dev server:" {
		r.close()
		r.build = true
		return
	}
	if r.python(l) {
		return
	}
	if m := plugin.FindStringSubmatch(l); m != nil && r.build {
		r.begin("vite", "")
		r.at(m[2], m[3], m[4], true)
		return
	}
	if m := tagged.FindStringSubmatch(l); m != nil {
		if r.open != nil && r.open.Source == "vite" && strings.HasPrefix(r.open.Text, "Transform failed with") {
			r.open.Text = m[2]
			r.more = false
			return
		}
		r.begin("vite", m[2])
		r.more = false
		return
	}
	if m := thrown.FindStringSubmatch(l); m != nil {
		r.error(m[1], m[2])
		return
	}
	if r.open != nil {
		if m := box.FindStringSubmatch(l); m != nil {
			r.at(m[1], m[2], m[3], true)
			return
		}
		if m := viteFile.FindStringSubmatch(l); m != nil && r.open.Source == "vite" {
			r.at(m[1], m[2], m[3], m[2] != "")
			if m[3] != "" && r.open.File != "" {
				r.open.Column++ // columns count from 0 here
			}
			r.more = false
			return
		}
	}
	if m := frame.FindStringSubmatch(l); m != nil && (strings.HasPrefix(t, "at ") || strings.Contains(l, "@")) {
		r.more = false
		if r.open != nil && r.open.File == "" {
			r.at(m[1], m[2], m[3], true)
		}
		return
	}
	if m := place.FindStringSubmatch(l); m != nil { // Node prints the position before the error
		r.close()
		r.spot = &Problem{File: r.file(m[1]), Line: number(m[2])}
		return
	}
	if r.open == nil || !r.more {
		return
	}
	// The message continues in the lines directly after it.
	if t == "" || len(r.open.Text) > maxText || strings.HasPrefix(t, "Plugin:") {
		r.more = r.open.Text == "" || strings.HasPrefix(r.open.Text, "Transform failed with")
		return
	}
	if r.open.Source == "tsc" && !strings.HasPrefix(l, "  ") {
		r.more = false
		return
	}
	r.open.Text = strings.TrimSpace(r.open.Text + "\n" + t)
}

// error reads the first line of a thrown error.
func (r *reader) error(kind, text string) {
	if r.open != nil && r.open.Source == "vite" && r.open.Text == "" { // the error of a plugin named before
		r.open.Text = text
		return
	}
	source := "node"
	if r.build {
		source = "vite"
	}
	whole := kind + ": " + text
	if kind == "Error" {
		whole = strings.TrimPrefix(text, "[vite]: ")
	}
	r.begin(source, whole)
	if m := from.FindStringSubmatch(text); m != nil {
		r.at(m[1], "", "", true)
	}
	if r.config != "" && !r.fixed {
		r.open.File, r.fixed = r.config, true
		r.config = ""
	}
	if s := r.spot; s != nil && s.File != "" && !r.fixed && kind == "SyntaxError" { // for other errors the stack is more precise
		r.open.File, r.open.Line, r.fixed = s.File, s.Line, true
	}
	r.spot = nil
}

// python reads a line of a traceback.
func (r *reader) python(l string) bool {
	if strings.HasPrefix(l, "Traceback (most recent call last):") {
		r.close()
		r.trace = []Problem{{}}
		return true
	}
	if m := pyFrame.FindStringSubmatch(l); m != nil {
		if r.trace == nil {
			r.close() // a syntax error has no traceback besides its position
		}
		if len(r.trace) >= 200 {
			r.trace = r.trace[1:]
		}
		r.trace = append(r.trace, Problem{File: r.file(m[1]), Line: number(m[2])})
		return true
	}
	if r.trace == nil {
		return false
	}
	if m := pyError.FindStringSubmatch(l); m != nil {
		p := Problem{Source: "python", Text: clip.Text(strings.TrimSuffix(l, ":"), maxText)}
		for i := len(r.trace) - 1; i >= 0; i-- { // innermost frame in the app
			if r.trace[i].File != "" {
				p.File, p.Line = r.trace[i].File, r.trace[i].Line
				break
			}
		}
		r.add(p)
		r.trace = nil
		return true
	}
	if strings.HasPrefix(l, " ") || l == "" {
		return true
	}
	r.trace = nil
	return false
}

// Overlay parses an error that Vite's development server sends to pages: the message of
// its WebSocket, the error alone, or the page that replaces a module and contains the error.
func Overlay(raw, root string) (Problem, bool) {
	if len(raw) > maxInput {
		return Problem{}, false
	}
	if _, rest, ok := strings.Cut(raw, "const error = "); ok {
		raw, _, _ = strings.Cut(rest, "\n")
	}
	var m struct {
		Type    string          `json:"type"`
		Err     json.RawMessage `json:"err"`
		Message string          `json:"message"`
		ID      json.RawMessage `json:"id"`
		Loc     struct {
			File   string `json:"file"`
			Line   int    `json:"line"`
			Column int    `json:"column"`
		} `json:"loc"`
		Stack string `json:"stack"`
	}
	if json.Unmarshal([]byte(raw), &m) != nil {
		return Problem{}, false
	}
	if len(m.Err) > 0 {
		inner := m.Err
		m.Err = nil
		if json.Unmarshal(inner, &m) != nil {
			return Problem{}, false
		}
	}
	if m.Message == "" {
		return Problem{}, false
	}
	// The message contains a code frame with the position if there is no other.
	found := Parse("[vite] Internal server error: "+m.Message+"\n"+m.Stack, root)
	r := reader{root: strings.TrimSuffix(root, "/") + "/"}
	p := Problem{Source: "vite", Text: clip.Text(m.Message, maxText)}
	if len(found) > 0 {
		p = found[0]
	}
	var id string
	if json.Unmarshal(m.ID, &id) == nil && p.File == "" {
		p.File = r.file(id)
	}
	if f := r.file(m.Loc.File); f != "" && m.Loc.Line > 0 {
		p.File, p.Line, p.Column = f, m.Loc.Line, m.Loc.Column+1
	}
	return p, true
}

// Console parses an error of a browser's console, with its stack if there is one. origin
// is the origin of the page; positions in files of other origins are ignored.
func Console(message, stack, origin string) Problem {
	p := Problem{Source: "browser", Text: clip.Text(strings.TrimPrefix(strings.TrimSpace(ansi.ReplaceAllString(message, "")), "Uncaught "), maxText)}
	r := reader{root: "/", open: &p}
	n := 0
	for l := range strings.SplitSeq(stack, "\n") {
		if n++; n > 200 || r.fixed {
			break
		}
		if len(l) > maxLine {
			continue
		}
		if m := frame.FindStringSubmatch(l); m != nil && strings.HasPrefix(m[1], origin+"/") {
			r.at(m[1], m[2], m[3], true)
		}
	}
	return p
}

// file returns the path in the app of a file that a tool names, or "" if it is outside.
func (r *reader) file(s string) string {
	s, _, _ = strings.Cut(s, "?")
	s = strings.TrimPrefix(s, "\x00")
	switch {
	case strings.HasPrefix(s, "file://"), strings.HasPrefix(s, "http://"), strings.HasPrefix(s, "https://"):
		u, err := url.Parse(s)
		if err != nil {
			return ""
		}
		web := u.Scheme != "file"
		if s = u.Path; web && !strings.HasPrefix(s, "/@fs/") {
			s = strings.TrimPrefix(s, "/")
		}
		s = strings.TrimPrefix(s, "/@fs")
	case strings.HasPrefix(s, "node:"), strings.HasPrefix(s, "<"):
		return ""
	}
	if strings.HasPrefix(s, "/") {
		rest, ok := strings.CutPrefix(s, r.root)
		if !ok {
			return ""
		}
		s = rest
	}
	s = path.Clean(s)
	if s == "." || s == ".." || strings.HasPrefix(s, "../") || strings.HasPrefix(s, "/") || strings.HasPrefix(s, "@") || len(s) > 512 || strings.ContainsAny(s, "\x00\n:[") && !strings.Contains(s, "/[") {
		return ""
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "node_modules" || part == "site-packages" || part == ".vite" {
			return ""
		}
	}
	return s
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
