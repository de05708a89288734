package engine

import (
	"encoding/json"
	"sort"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	"modernc.org/quickjs"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

// A source is the code that QuickJS runs, with the mapping of positions to the
// original text.
type source struct {
	code     string
	wrapped  int       // number of characters inserted before the first line
	mappings []mapping // sorted by position; nil if positions equal those of the original
}

// A mapping maps a position in the code to a position in the original text. Lines and
// columns count from 0.
type mapping struct{ line, column, fromLine, fromColumn int }

const wrapperPrefix = "(async () => { "

// prepareSource translates TypeScript to JavaScript, and wraps code with a return at
// the top level in a function.
func prepareSource(l engi.Language, code string) (source, *wire.Error) {
	s := source{code: code}
	if l == engi.TypeScript {
		result := api.Transform(code, api.TransformOptions{
			Loader: api.LoaderTS, Target: api.ES2023, Sourcemap: api.SourceMapExternal, Sourcefile: "script",
			LogLevel: api.LogLevelSilent, Charset: api.CharsetUTF8, TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":false}}`,
			Supported: map[string]bool{"top-level-await": true},
		})
		// A return at the top level is an error for esbuild, too: translate the code within a
		// function, so that the mapping stays correct.
		if len(result.Errors) > 0 {
			if !strings.Contains(result.Errors[0].Text, "return") {
				return s, syntaxError(result.Errors[0])
			}
			return prepareWrapped(code)
		}
		s.code, s.mappings = string(result.Code), parseMappings(result.Map)
	}
	if !returns(s.code) {
		return s, nil
	}
	s.code, s.wrapped = wrapperPrefix+s.code+"\n})()", len(wrapperPrefix)
	return s, nil
}

// prepareWrapped is prepareSource for TypeScript with a return at the top level.
func prepareWrapped(code string) (source, *wire.Error) {
	result := api.Transform(wrapperPrefix+code+"\n})()", api.TransformOptions{
		Loader: api.LoaderTS, Target: api.ES2023, Sourcemap: api.SourceMapExternal, Sourcefile: "script",
		LogLevel: api.LogLevelSilent, Charset: api.CharsetUTF8,
	})
	if len(result.Errors) > 0 {
		e := syntaxError(result.Errors[0])
		if e.Line == 1 {
			e.Column = max(1, e.Column-len(wrapperPrefix))
		}
		return source{}, e
	}
	s := source{code: string(result.Code), mappings: parseMappings(result.Map)}
	for i, m := range s.mappings {
		if m.fromLine == 0 {
			s.mappings[i].fromColumn = max(0, m.fromColumn-len(wrapperPrefix))
		}
	}
	return s, nil
}

func syntaxError(m api.Message) *wire.Error {
	e := &wire.Error{Kind: engi.ScriptSyntax, Name: "SyntaxError", Message: m.Text}
	if m.Location != nil {
		e.Line, e.Column = m.Location.Line, m.Location.Column+1
	}
	return e
}

// returns reports whether code has a return at the top level.
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

// position maps a position in the code to a position in the original text. Both count from
// 1.
func (s source) position(line, column int) (int, int) {
	if s.mappings == nil {
		if line == 1 && s.wrapped > 0 {
			column = max(1, column-s.wrapped)
		}
		return line, column
	}
	if line == 1 && s.wrapped > 0 {
		column = max(1, column-s.wrapped)
	}
	line, column = line-1, column-1
	i := sort.Search(len(s.mappings), func(i int) bool {
		m := s.mappings[i]
		return m.line > line || m.line == line && m.column > column
	})
	if i == 0 {
		return line + 1, column + 1
	}
	m := s.mappings[i-1]
	return m.fromLine + 1, m.fromColumn + 1
}

// parseMappings parses the first four numbers of each segment of a source map
// (ECMA-426). Each number is relative to the previous one.
func parseMappings(raw []byte) (marks []mapping) {
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
			n, ok := decodeVLQ(segment)
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

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// decodeVLQ decodes base64 VLQ numbers: digits have five bits, least significant
// first, and a sixth bit that is set if more digits follow. The lowest bit of a number is
// its sign.
func decodeVLQ(s string) (all []int, ok bool) {
	value, shift := 0, 0
	for i := range len(s) {
		d := strings.IndexByte(base64Digits, s[i])
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
