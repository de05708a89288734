package engine

import (
	"encoding/json"
	"sort"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	"modernc.org/quickjs"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/wire"
)

// A source is a program as the engine gets it, and the way back to the text
// its author wrote.
type source struct {
	code    string
	wrapped int       // characters put before the first line
	marks   []mapping // in order; nil if lines are the author's own
}

// A mapping says that a place in the code comes from a place in the text.
// Lines and columns count from 0.
type mapping struct{ line, column, fromLine, fromColumn int }

const wrapper = "(async () => { "

// prepare turns TypeScript into JavaScript and lets return stand at the top.
func prepare(l engi.Language, code string) (source, *wire.Error) {
	s := source{code: code}
	if l == engi.TypeScript {
		result := api.Transform(code, api.TransformOptions{
			Loader: api.LoaderTS, Target: api.ES2023, Sourcemap: api.SourceMapExternal, Sourcefile: "script",
			LogLevel: api.LogLevelSilent, Charset: api.CharsetUTF8, TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":false}}`,
			Supported: map[string]bool{"top-level-await": true},
		})
		// A return at the top is an error here too; inside a function it is
		// none, and the mapping stays right.
		if len(result.Errors) > 0 {
			if !strings.Contains(result.Errors[0].Text, "return") {
				return s, syntax(result.Errors[0])
			}
			return prepareWrapped(code)
		}
		s.code, s.marks = string(result.Code), marksOf(result.Map)
	}
	if !returns(s.code) {
		return s, nil
	}
	s.code, s.wrapped = wrapper+s.code+"\n})()", len(wrapper)
	return s, nil
}

// prepareWrapped is prepare for TypeScript with a return at the top.
func prepareWrapped(code string) (source, *wire.Error) {
	result := api.Transform(wrapper+code+"\n})()", api.TransformOptions{
		Loader: api.LoaderTS, Target: api.ES2023, Sourcemap: api.SourceMapExternal, Sourcefile: "script",
		LogLevel: api.LogLevelSilent, Charset: api.CharsetUTF8,
	})
	if len(result.Errors) > 0 {
		e := syntax(result.Errors[0])
		if e.Line == 1 {
			e.Column = max(1, e.Column-len(wrapper))
		}
		return source{}, e
	}
	s := source{code: string(result.Code), marks: marksOf(result.Map)}
	for i, m := range s.marks {
		if m.fromLine == 0 {
			s.marks[i].fromColumn = max(0, m.fromColumn-len(wrapper))
		}
	}
	return s, nil
}

func syntax(m api.Message) *wire.Error {
	e := &wire.Error{Kind: engi.ScriptSyntax, Name: "SyntaxError", Message: m.Text}
	if m.Location != nil {
		e.Line, e.Column = m.Location.Line, m.Location.Column+1
	}
	return e
}

// returns reports whether code is a program only with return at its top.
func returns(code string) bool {
	if !strings.Contains(code, "return") {
		return false
	}
	vm, err := quickjs.NewVM()
	if err != nil {
		return false
	}
	defer vm.Close()
	vm.SetMemoryLimit(64 << 20)
	_, err = vm.Compile(code, evalAsync)
	return err != nil && strings.Contains(err.Error(), "return not in a function")
}

// at maps a place in the code to one in the author's text; both count from 1.
func (s source) at(line, column int) (int, int) {
	if s.marks == nil {
		if line == 1 && s.wrapped > 0 {
			column = max(1, column-s.wrapped)
		}
		return line, column
	}
	if line == 1 && s.wrapped > 0 {
		column = max(1, column-s.wrapped)
	}
	line, column = line-1, column-1
	i := sort.Search(len(s.marks), func(i int) bool {
		m := s.marks[i]
		return m.line > line || m.line == line && m.column > column
	})
	if i == 0 {
		return line + 1, column + 1
	}
	m := s.marks[i-1]
	return m.fromLine + 1, m.fromColumn + 1
}

// marksOf reads a source map (ECMA-426): of each segment the first four
// numbers, each relative to the one before.
func marksOf(raw []byte) (marks []mapping) {
	var file struct {
		Mappings string `json:"mappings"`
	}
	marks = []mapping{}
	if json.Unmarshal(raw, &file) != nil {
		return marks
	}
	var m mapping
	for i, line := range strings.Split(file.Mappings, ";") {
		m.line, m.column = i, 0
		for segment := range strings.SplitSeq(line, ",") {
			n, ok := numbers(segment)
			if !ok || len(n) == 0 {
				continue
			}
			m.column += n[0]
			if len(n) >= 4 {
				m.fromLine += n[2]
				m.fromColumn += n[3]
				marks = append(marks, m)
			}
		}
	}
	return marks
}

const base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// numbers reads base64 VLQ: five bits a digit, least significant first, the
// sixth says that more follow, and the lowest bit of all is the sign.
func numbers(s string) (all []int, ok bool) {
	value, shift := 0, 0
	for i := range len(s) {
		d := strings.IndexByte(base64, s[i])
		if d < 0 || shift > 30 {
			return nil, false
		}
		value |= d & 31 << shift
		if d&32 != 0 {
			shift += 5
			continue
		}
		n := value >> 1
		if value&1 != 0 {
			n = -n
		}
		all = append(all, n)
		value, shift = 0, 0
	}
	return all, shift == 0
}
