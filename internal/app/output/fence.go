package output

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/engi-dev/engi/internal/clip"
)

// fenceMarker returns the backticks or tildes at the beginning of a fence's line.
func fenceMarker(t string) string {
	if len(t) < 3 || t[0] != '`' && t[0] != '~' {
		return ""
	}
	n := 1
	for n < len(t) && t[n] == t[0] {
		n++
	}
	if n < 3 || t[0] == '`' && strings.IndexByte(t[n:], '`') >= 0 {
		return ""
	}
	return t[:n]
}

// closes reports whether a line ends the fence that began with marker.
func closes(t, marker string) bool {
	return len(t) >= len(marker) && t[0] == marker[0] && strings.Trim(t, marker[:1]) == ""
}

var (
	shells   = words("bash sh shell zsh console terminal shell-session shellsession")
	diffs    = words("diff patch udiff")
	code     = words("js jsx ts tsx javascript typescript html css scss sass less vue svelte astro python py json sql mjs cjs")
	infoPath = regexp.MustCompile(`(?:^|[\s{,(])(?:title|file|filename|file_name|path|filepath|name)\s*[=:]\s*(?:"([^"]*)"|'([^']*)'|([^\s"'{},)]+))`)
	citation = regexp.MustCompile(`^\d+:\d+:`)
)

// infoOf returns the language and the path in the info string of a fence.
func infoOf(info string) (lang, path string) {
	if len(info) > 600 {
		return "", ""
	}
	lang, rest, _ := strings.Cut(info, " ")
	if l, p, ok := strings.Cut(lang, ":"); ok && pathLike(p) && !citation.MatchString(lang) {
		return strings.ToLower(l), p
	}
	if m := infoPath.FindStringSubmatch(info); m != nil {
		if p := m[1] + m[2] + m[3]; p != "" && (pathLike(p) || strings.Contains(p, "/")) {
			return strings.ToLower(strings.Trim(lang, "{}")), p
		}
	}
	if pathLike(lang) && (strings.Contains(lang, ".") || strings.Contains(lang, "/")) {
		return "", lang
	}
	for w := range strings.FieldsSeq(rest) {
		if w = strings.Trim(w, "()[]{}\"'`,:*"); pathLike(w) {
			return strings.ToLower(lang), w
		}
	}
	return strings.ToLower(lang), ""
}

// fenced reads fenced code; the fence begins in the given line.
func (p *parser) fenced(line, trimmed, marker string, next int) {
	at := p.lineAt(p.pos)
	info := strings.TrimSpace(trimmed[len(marker):])
	lang, path := infoOf(info)
	named := path != ""
	if !named && p.blanks <= 1 && (!shells[lang] || strings.HasSuffix(p.label, ".sh")) {
		path = p.label
	}
	p.pos, p.label = next, ""
	if !named && p.wrapsTags(path != "") {
		p.fence = marker
		return
	}
	body, closed := p.fenceBody(marker, prose[lang] || lang == "markdown" || prose[extension(path)])
	body = dedent(body, indentOf(line))
	head := firstLine(body)
	if path == "" && !shells[lang] {
		if path = commentPath(head); path == "" {
			if second := firstLine(strings.TrimPrefix(strings.TrimLeft(body, "\n"), head)); pathLike(strings.TrimSpace(head)) && isSearch(strings.TrimSpace(second)) {
				path = strings.TrimSpace(head)
			}
		}
	}
	switch {
	case citation.MatchString(info):
		p.warn(at, "", "the code is quoted, no file is written")
	case diffs[lang] || beginsDiff(body):
		if d := readDiff(body, path, true); len(d.files) > 0 || len(d.warnings) > 0 {
			if n := len(d.files); !closed && n > 0 {
				d.files[n-1].cut = true
			}
			p.differ(d, at+1)
		} else if strings.TrimSpace(body) != "" {
			p.warn(at, "", "the diff names no file")
		}
	case shells[lang] && path == "":
		if closed {
			p.run(body, at+1)
		} else {
			p.warn(at, "", "the commands are cut off")
		}
	case path == "":
		if code[lang] {
			p.warn(at, "", "no file is named for this code, so it is not written")
		}
	case !closed:
		p.do(op{kind: cut, path: path, line: at})
	case hasSearch(body):
		p.edited(path, body, at)
	default:
		if commentPath(head) == path {
			body = strings.TrimPrefix(strings.TrimLeft(body, "\n"), head)
			body = strings.TrimLeft(body, "\n")
		}
		if entities(path, body) {
			p.warn(at, path, "the code was written with entities like &lt;, which were read as characters")
		}
		p.written(path, body, at)
	}
}

func extension(path string) string {
	return strings.ToLower(path[strings.LastIndexByte(path, '.')+1:])
}

func hasSearch(body string) bool {
	for l := range strings.SplitSeq(body, "\n") {
		if strings.HasPrefix(strings.TrimLeft(l, " \t"), "<<<<<") && isSearch(strings.TrimSpace(l)) {
			return true
		}
	}
	return false
}

// wrapsTags reports whether the code of a fence begins with a tag, which means that the fence
// holds an answer and not a file. If the fence has a path, the tag must have one too.
func (p *parser) wrapsTags(named bool) bool {
	rest := strings.TrimLeft(p.text[p.pos:], " \t\n")
	if rest == "" || rest[0] != '<' && rest[0] != '&' {
		return false
	}
	e, ok := p.element(len(p.text) - len(rest))
	return ok && !e.cut && (!named || e.tag == fileTag && e.path() != "")
}

// fenceBody reads up to the end of a fence. Fences within it are content. closed is false
// if the text ends or another file begins first; parsing continues there.
func (p *parser) fenceBody(marker string, forPeople bool) (body string, closed bool) {
	start := p.pos
	var inner []string
	last := "" // last line that is not blank
	for p.pos < len(p.text) {
		l, next := p.rest(p.pos)
		t := strings.TrimSpace(l)
		m := fenceMarker(t)
		switch {
		case m != "" && m[0] == marker[0] && len(m) >= len(marker):
			switch {
			case len(inner) > 0 && closes(t, inner[len(inner)-1]):
				inner = inner[:len(inner)-1]
			case len(inner) == 0 && closes(t, marker):
				body = p.text[start:p.pos]
				p.pos = next
				return body, true
			case len(t) > len(m):
				if _, path := infoOf(strings.TrimSpace(t[len(m):])); !forPeople && (path != "" || labelOf(last) != "") {
					p.label, p.blanks = labelOf(last), 0
					return p.text[start:p.pos], false
				}
				inner = append(inner, m)
			}
		case !forPeople && strings.HasPrefix(t, "<"):
			if e, ok := p.element(p.pos + strings.IndexByte(l, '<')); ok && e.tag == fileTag && e.path() != "" && !e.cut {
				return p.text[start:p.pos], false
			}
		}
		if t != "" {
			last = t
		}
		p.pos = next
	}
	return p.text[start:], false
}

// idle lists commands that make no sense in a running app, and the reasons.
var idle = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`^(?:npm|pnpm|yarn|bun)(?: run)? (?:dev|start|serve|preview|develop)\b|^(?:npx )?vite(?: (?:dev|serve|preview)\b| -|$)|^(?:npx )?(?:next|nuxt|astro) (?:dev|start)\b|^(?:python3? -m )?(?:uvicorn|gunicorn|hypercorn)\b|^fastapi (?:dev|run)\b|^node (?:--watch |--env-file\S* )*\S*\b(?:server|index|app|main)(?:\.[mc]?[jt]s)?$|^(?:npx )?(?:nodemon|serve|http-server|live-server)\b|^flask run\b|^python3? -m (?:http\.server|flask)\b`), "the server of the app runs already"},
	{regexp.MustCompile(`^(?:npm|pnpm|yarn|bun) (?:create|init)\b|^npx (?:-y |--yes )?(?:create-|degit)|^git clone\b`), "the app is there already"},
	{regexp.MustCompile(`^cd\b`), "commands run in the directory of the app"},
	{regexp.MustCompile(`^mkdir\b`), "directories are made with the files in them"},
	{regexp.MustCompile(`^(?:open|xdg-open|start|code) `), "there is no desktop"},
}

// run records the commands in a shell snippet, and the packages that they install.
func (p *parser) run(body string, line int) {
	if strings.Contains(body, "<<") {
		p.command(strings.TrimSpace(body), line)
		return
	}
	joined := ""
	for l := range strings.SplitSeq(body, "\n") {
		l = strings.TrimSpace(l)
		at := line
		line++
		if part, ok := strings.CutSuffix(l, `\`); ok {
			joined += part + " "
			if len(joined) > maxCommand {
				p.warn(at, "", "the command is too long")
				return
			}
			continue
		}
		l, joined = joined+l, ""
		l = strings.TrimSpace(strings.TrimPrefix(l, "$ "))
		if l == "" || l[0] == '#' {
			continue
		}
		p.chain(l, at)
	}
}

// chain records the commands of one line.
func (p *parser) chain(l string, line int) {
	if len(l) > maxCommand {
		p.warn(line, "", "the command is too long")
		return
	}
	var kept []string
	why, real := "", false
	for _, part := range splitChain(l) {
		if p.installs(part, line) {
			continue
		}
		reason := ""
		for _, i := range idle {
			if i.pattern.MatchString(part) {
				reason = i.why
				break
			}
		}
		if reason == "" {
			real = true
		} else if why == "" {
			why = fmt.Sprintf("%s was not run: %s", clip.Text(part, 80), reason)
		}
		if reason == "" || strings.HasPrefix(part, "cd ") || strings.HasPrefix(part, "mkdir ") {
			kept = append(kept, part)
		}
	}
	switch {
	case real:
		p.command(strings.Join(kept, " && "), line)
	case why != "":
		p.warn(line, "", why)
	}
}

// splitChain splits a line of shell at each && outside of quotes.
func splitChain(l string) (parts []string) {
	var quote byte
	from := 0
	for i := 0; i < len(l); i++ {
		switch c := l[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case c == '&' && i+1 < len(l) && l[i+1] == '&':
			parts = append(parts, strings.TrimSpace(l[from:i]))
			i++
			from = i + 1
		}
	}
	return append(parts, strings.TrimSpace(l[from:]))
}

func (p *parser) command(s string, line int) {
	switch {
	case s == "":
	case len(s) > maxCommand || strings.IndexByte(s, 0) >= 0:
		p.warn(line, "", "the command is too long, or not text")
	case len(p.out.Commands) >= maxCommands:
		p.warn(line, "", fmt.Sprintf("a text has at most %d commands", maxCommands))
	default:
		p.out.Commands = append(p.out.Commands, strings.ToValidUTF8(s, "\uFFFD"))
	}
}

var (
	installer = regexp.MustCompile(`^(?:sudo )?(?:(?:npm|pnpm|yarn|bun) (?:install|i|add|ci)|yarn|(?:python3? -m )?pip3? install|uv (?:pip install|add)|poetry add)(?: |$)`)
	valued    = words("--registry --prefix --workspace -w -C -r --requirement -i --index-url --extra-index-url --filter --cwd --tag -c --constraint --group -t --target")
)

// installs records the packages that a command installs. It reports whether the command
// only installs packages.
func (p *parser) installs(part string, line int) bool {
	head := installer.FindString(part)
	if head == "" || strings.ContainsAny(part, "|;$`") || strings.HasPrefix(part, "yarn ") && !strings.HasPrefix(part, "yarn add") && !strings.HasPrefix(part, "yarn install") {
		return false
	}
	skip := false
	for w := range strings.FieldsSeq(part[len(head):]) {
		switch {
		case skip:
			skip = false
		case w == "-g" || w == "--global":
			p.warn(line, "", fmt.Sprintf("%s was not run: programs are installed with the app only", clip.Text(part, 80)))
			return true
		case strings.HasPrefix(w, "-"):
			skip = valued[w]
		case w[0] == '#':
			return true
		default:
			p.addPackage(w, line)
		}
	}
	return true
}

var (
	npmName = regexp.MustCompile(`^((?:@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*)(?:@([0-9A-Za-z^~<>=|*.+-]{1,64}))?$`)
	pipName = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9,_-]{1,100}\])?((?:===?|>=|<=|~=|!=|<|>)[0-9A-Za-z.*+!,<>=~-]{1,64})?$`)
)

// install records the packages in a list within a tag.
func (p *parser) install(list string, line int) {
	list = strings.TrimSpace(list)
	if strings.ContainsAny(list, ";|$&") {
		p.warn(line, "", fmt.Sprintf("%q is not a list of packages", clip.Text(list, 100)))
		return
	}
	if strings.HasPrefix(list, "[") && strings.HasSuffix(list, "]") {
		list = list[1 : len(list)-1]
	}
	var names []string
	for w := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		w = strings.Trim(w, "\"'`*•{}")
		last := len(names) - 1
		switch {
		case strings.Trim(w, "-") == "" || strings.HasPrefix(w, "--"):
		case last >= 0 && w[0] != '^' && strings.IndexByte("<>=!~", w[0]) >= 0: // continues a requirement of pip
			sep := ","
			if !strings.ContainsAny(names[last], "<>=!~") {
				sep = ""
			}
			names[last] += sep + w
		case last >= 0 && strings.HasSuffix(names[last], ":") && strings.IndexByte("^~0123456789", w[0]) >= 0:
			names[last] = strings.TrimRight(names[last], "\"':") + "@" + w
		default:
			names = append(names, w)
		}
	}
	for _, n := range names {
		p.addPackage(strings.TrimRight(n, "\"':"), line)
	}
}

// addPackage records a package. Each name is recorded once; a later version replaces an earlier one.
func (p *parser) addPackage(s string, line int) {
	if s = strings.Trim(s, "\"'`"); s == "" {
		return
	}
	name, version := "", ""
	if m := npmName.FindStringSubmatch(s); m != nil && len(m[1]) <= 214 {
		name, version = m[1], m[2]
	} else if m := pipName.FindStringSubmatch(s); m != nil && len(m[1]) <= 214 {
		name, version = strings.ToLower(m[1]), m[2]
	}
	if name == "" || name == "node_modules" {
		p.warn(line, "", fmt.Sprintf("%q is not the name of a package; only packages of the registry are installed, by name and version", clip.Text(s, 100)))
		return
	}
	if i, ok := p.packages[name]; ok {
		old := p.out.Packages[i]
		if version == "" || old == s {
			return
		}
		if old != name && old != s {
			p.warn(line, "", fmt.Sprintf("%s is asked for as %s and as %s; the last counts", name, old, s))
		}
		p.out.Packages[i] = s
		return
	}
	if len(p.out.Packages) >= maxPackages {
		p.warn(line, "", fmt.Sprintf("a text has at most %d packages", maxPackages))
		return
	}
	p.packages[name] = len(p.out.Packages)
	p.out.Packages = append(p.out.Packages, s)
}
