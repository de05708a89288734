package project

import (
	"crypto/sha256"
	"slices"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/engi-dev/engi/internal/clip"
)

// maxParse is the maximum size, in bytes, of a file that is parsed; larger files are only scanned for
// imports. The limit keeps any file from overflowing the stack, even one that the lexer misjudges: esbuild
// takes up to 4 KiB of stack per byte, and Go allows 512 MiB.
const maxParse = 96 << 10

// A reading is the result of analysing one file's content alone.
type reading struct {
	imports  []Import
	problems []Problem
	facts    facts
}

// readings caches the readings of files, because an app's files are read again after
// each change and most are unchanged.
var readings = struct {
	sync.Mutex
	known map[[sha256.Size]byte]reading
	order [][sha256.Size]byte
}{known: map[[sha256.Size]byte]reading{}}

const (
	maxReadings = 1000
	maxReading  = 32 << 10 // maximum size, in bytes, of a cached reading
)

// detach copies the strings of a reading that share memory with the source, which they would keep alive.
// It returns the approximate size of the copies in bytes.
func (r *reading) detach() (size int) {
	own := func(s *string) {
		*s = strings.Clone(*s)
		size += len(*s) + 64
	}
	all := func(list []string) {
		for i := range list {
			own(&list[i])
		}
	}
	for i := range r.imports {
		own(&r.imports[i].Path)
		own(&r.imports[i].Package)
	}
	all(r.facts.exports)
	for i := range r.facts.components {
		own(&r.facts.components[i].Name)
		all(r.facts.components[i].Uses)
	}
	for i := range r.facts.routes {
		own(&r.facts.routes[i].Path)
		own(&r.facts.routes[i].Component)
	}
	for i := range r.problems {
		own(&r.problems[i].Text)
	}
	return size
}

func read(path, content string) reading {
	ext := extension(path)
	if !scripts[ext] && ext != "css" && ext != "scss" && ext != "less" && ext != "py" {
		return reading{}
	}
	key := sha256.Sum256([]byte(path + "\x00" + content))
	readings.Lock()
	r, ok := readings.known[key]
	readings.Unlock()
	if ok {
		return r
	}
	switch {
	case scripts[ext]:
		r = readScript(path, ext, content)
	case ext == "py":
		r = readPython(content)
	default:
		r.imports = cssImports(content)
	}
	r.imports = slices.DeleteFunc(r.imports, func(im Import) bool { return len(im.Path) > maxPath })
	for i := range r.imports {
		im := &r.imports[i]
		if im.Type != "python" && im.Type != "url" {
			im.Package = PackageOf(im.Path)
		}
	}
	size := r.detach()
	readings.Lock()
	defer readings.Unlock()
	if _, ok := readings.known[key]; !ok && size <= maxReading {
		if len(readings.order) >= maxReadings {
			delete(readings.known, readings.order[0])
			readings.order = readings.order[1:]
		}
		readings.known[key] = r
		readings.order = append(readings.order, key)
	}
	return r
}

func readScript(path, ext, content string) reading {
	jsx := ext != "ts" && ext != "mts" && ext != "cts"
	found, l := scanImports(content, jsx, ext == "tsx")
	r := reading{imports: found}
	if strings.HasSuffix(path, ".d.ts") {
		for i := range r.imports {
			r.imports[i].Type = "type"
		}
		return r
	}
	if len(content) > maxParse || !l.shallow() {
		return r
	}
	code, problems := compile(path, ext, content)
	r.problems = problems
	if len(problems) > 0 {
		return r
	}
	// Only imports that remain after types are removed count.
	kept, _ := scanImports(code, false, false)
	for i, im := range r.imports {
		if !slices.ContainsFunc(kept, func(k Import) bool { return k.Path == im.Path }) {
			r.imports[i].Type = "type"
		}
	}
	for _, k := range kept {
		if slices.ContainsFunc(r.imports, func(im Import) bool { return im.Path == k.Path }) {
			continue
		}
		if k.Line = 1; strings.HasSuffix(k.Path, "/jsx-runtime") {
			k.Type = "jsx"
		}
		r.imports = append(r.imports, k)
	}
	r.facts = factsOf(code, content, jsx)
	return r
}

// compile converts a file to plain JavaScript in the form in which esbuild prints code:
// no types, no JSX, strings in double quotes.
func compile(path, ext, content string) (code string, problems []Problem) {
	loader := api.LoaderJSX
	switch ext {
	case "ts", "mts", "cts":
		loader = api.LoaderTS
	case "tsx":
		loader = api.LoaderTSX
	}
	res := api.Transform(content, api.TransformOptions{
		Loader:      loader,
		Sourcefile:  path,
		JSX:         api.JSXAutomatic,
		LogLevel:    api.LogLevelSilent,
		LogLimit:    maxProblems,
		Charset:     api.CharsetUTF8,
		TreeShaking: api.TreeShakingFalse,
		TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":true,"experimentalDecorators":true}}`,
	})
	for _, m := range res.Errors[:min(len(res.Errors), maxProblems)] {
		p := Problem{File: path, Text: clip.Text(m.Text, 500)}
		if m.Location != nil {
			p.Line, p.Column = m.Location.Line, m.Location.Column+1
		}
		problems = append(problems, p)
	}
	return string(res.Code), problems
}
