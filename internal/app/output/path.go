package output

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// roots are the directories in which other builders put apps. A path below one names a file of the app.
var roots = []string{"/home/project/", "/home/user/app/", "/home/user/", "/workspace/", "/workspaces/", "/project/", "/app/"}

// system are system directories. An absolute path below one does not name a file of the
// app, unlike /src/App.jsx.
var system = words("bin boot dev etc home mnt opt proc root sbin sys tmp usr users var windows")

func words(s string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		m[w] = true
	}
	return m
}

// cleanPath returns the path within the app that a model means, or the reason why it is
// invalid.
func cleanPath(s string) (clean, why string) {
	if len(s) > 4096 || !utf8.ValidString(s) {
		return "", "this is not a path"
	}
	s = strings.Trim(s, " \t\n\"'`*")
	if strings.Contains(s, "://") {
		return "", "this is a URL; a path in the app is needed, like src/App.jsx"
	}
	s = strings.ReplaceAll(s, `\`, "/")
	for _, r := range s {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return "", "the path has characters that can not be seen"
		}
	}
	for strings.HasPrefix(s, "./") {
		s = strings.TrimLeft(s[2:], "/")
	}
	if strings.HasPrefix(s, "/") {
		for _, root := range roots {
			if rest, ok := strings.CutPrefix(s, root); ok {
				s = "/" + rest
				break
			}
		}
		s = s[1:]
		first, _, _ := strings.Cut(s, "/")
		if strings.HasPrefix(s, "/") || system[strings.ToLower(first)] {
			return "", "the path is outside of the app; write it as from the app's directory, like src/App.jsx"
		}
	}
	switch {
	case s == "" || s == ".":
		return "", "the path is empty"
	case strings.HasPrefix(s, "~"), len(s) > 1 && s[1] == ':':
		return "", "the path is outside of the app; write it as from the app's directory, like src/App.jsx"
	case strings.HasSuffix(s, "/"):
		return "", "the path is that of a directory"
	case len(s) > 512:
		return "", "the path has more than 512 bytes"
	case strings.Count(s, "/") >= 32:
		return "", "the path has more than 32 parts"
	}
	for part := range strings.SplitSeq(s, "/") {
		switch {
		case part == "..":
			return "", "the path has .. in it; write it as from the app's directory, like src/App.jsx"
		case len(part) > 255:
			return "", "a name in the path has more than 255 bytes"
		case strings.EqualFold(part, ".git"), strings.EqualFold(part, "node_modules"):
			return "", "nothing can be written in " + part
		}
	}
	s = path.Clean(s)
	if s == "." || strings.HasPrefix(s, "../") {
		return "", "the path is empty"
	}
	return s, ""
}

// extensions are the extensions of files in apps. A name with another extension counts as a
// path only where the syntax says that it is one.
var extensions = words(`js jsx ts tsx mjs cjs mts cts json jsonc json5 css scss sass less styl html htm svg xml md mdx txt
	vue svelte astro py pyi toml yaml yml ini cfg conf env sql prisma graphql gql sh bash go rs rb php java kt swift c h cpp
	hbs ejs pug njk jinja j2 lock csv tsv webmanifest map proto`)

// prose are extensions of documents.
var prose = words("md mdx markdown txt")

// named are names of files without an extension.
var named = words(`.gitignore .gitattributes .dockerignore .npmrc .nvmrc .prettierrc .prettierignore .eslintrc .eslintignore
	.babelrc .editorconfig .env .browserslistrc .node-version .python-version dockerfile makefile procfile license readme
	requirements.txt`)

// libraries are names of libraries that look like file names.
var libraries = words(`node.js next.js vue.js react.js express.js d3.js three.js nuxt.js chart.js p5.js nest.js alpine.js
	ember.js backbone.js solid.js discord.js socket.io moment.js day.js lodash.js angular.js gatsby.js preact.js`)

var pathPattern = regexp.MustCompile(`^[\w@.~+()\[\]$/\\ -]+$`)

// pathLike reports whether a word looks like the path of a file.
func pathLike(s string) bool {
	if len(s) > 256 || s == "" || !pathPattern.MatchString(s) || strings.Contains(s, "//") {
		return false
	}
	base := s[strings.LastIndexAny(s, `/\`)+1:]
	lower := strings.ToLower(base)
	if base == s && libraries[lower] || strings.HasPrefix(s, "@") {
		return false
	}
	if named[lower] || strings.HasPrefix(lower, ".env.") {
		return true
	}
	dot := strings.LastIndexByte(lower, '.')
	return dot > 0 && extensions[lower[dot+1:]]
}

// fillers are the words allowed beside the path in a line that announces a whole
// file. "Update" and "in" are missing, because they announce parts of files.
var fillers = words(`file files filename path name new updated created modified rewritten complete full entire whole final code
	content contents the for of here is here's create and now this then step first next finally follows as with a an below - – — → :`)

// labelOf returns the path that a line of prose gives to the code after it, or "".
func labelOf(line string) string {
	if len(line) > 300 {
		return ""
	}
	line = strings.TrimLeft(line, " \t#>*-+")
	line = strings.TrimRight(line, " \t:*")
	if i := strings.IndexAny(line, ".)"); i > 0 && i <= 3 && strings.Trim(line[:i], "0123456789") == "" {
		line = line[i+1:]
	}
	found := ""
	for w := range strings.FieldsSeq(line) {
		bare := strings.Trim(w, "*_`\"',:")
		if inner := strings.TrimSuffix(strings.TrimPrefix(bare, "("), ")"); !pathLike(bare) && fillers[strings.ToLower(inner)] || bare == "" || strings.Trim(bare, "0123456789.)") == "" {
			continue
		}
		// A leading underscore belongs to the path.
		if p := strings.Trim(w, "*`\"',:"); pathLike(p) {
			bare = p
		} else if p := strings.Trim(p, "()[]"); pathLike(p) {
			bare = p
		}
		if !pathLike(bare) || found != "" {
			return ""
		}
		found = bare
	}
	return found
}

// commentPath returns the path that makes up a comment, or "".
func commentPath(line string) string {
	s := strings.TrimSpace(line)
	if len(s) > 300 {
		return ""
	}
	for _, c := range [][2]string{{"//", ""}, {"/*", "*/"}, {"<!--", "-->"}, {"{/*", "*/}"}, {"#", ""}, {"--", ""}} {
		rest, ok := strings.CutPrefix(s, c[0])
		if !ok {
			continue
		}
		if rest, ok = strings.CutSuffix(rest, c[1]); !ok {
			continue
		}
		rest = strings.Trim(rest, " \t*`")
		for _, name := range []string{"file:", "filename:", "path:", "filepath:"} {
			if len(rest) > len(name) && strings.EqualFold(rest[:len(name)], name) {
				rest = strings.TrimSpace(rest[len(name):])
			}
		}
		if pathLike(rest) && !strings.Contains(rest, " ") {
			return rest
		}
	}
	return ""
}

// elision matches comments that stand for omitted code.
var elision = regexp.MustCompile(`(?i)^\s*(?://|#|/\*|\{\s*/\*|<!--|\*|--)[\s*]*` +
	`(?:(?:\.\.\.|…)[^\n]*\b(?:existing|rest|remaining|remainder|unchanged|previous|other|same|omitted|keep)\b` +
	`|(?:the )?(?:rest|remainder) of (?:the|your|this|my) (?:\w+ )?(?:code|components?|file|styles?|css|imports?|functions?|logic|jsx|html|markup|page|app|application|content|implementation|config\w*|methods?|class|routes?)\b[^\n]*\b(?:remains?|stays?|unchanged|same|here|goes)\b` +
	`|(?:the )?(?:existing|previous|remaining|other|same|(?:rest|remainder) of)\b[^\n]*(?:\.\.\.|…)\s*(?:\*/\s*\}?|-->)?\s*$` +
	`|keep (?:the |your )?(?:existing|rest|remaining)\b[^\n]*(?:\.\.\.|…|unchanged|same|as (?:it )?is))`)

// elided returns the number of the line of a file that stands for omitted code, or 0.
func elided(path, content string) int {
	if prose[extension(path)] {
		return 0
	}
	n := 0
	for l := range strings.SplitSeq(content, "\n") {
		n++
		if len(l) > 300 {
			continue
		}
		t := strings.TrimLeft(l, " \t")
		if t == "" || strings.IndexByte("/#{<*-", t[0]) < 0 {
			continue
		}
		if elision.MatchString(l) {
			return n
		}
	}
	return 0
}
