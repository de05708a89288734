package llm

import (
	"encoding/json"
	"unicode/utf8"
)

// half returns the JSON value at the beginning of an unfinished text, without
// incomplete parts: names without a value, and numbers that may continue. It reports
// whether there is a value.
func half(text []byte) (v any, ok bool) {
	const maxOpen = 200
	var open []byte // closing brackets of open values, the innermost last
	var str, key, escaped, name bool
	good := 0 // length of the prefix that becomes a value when all open brackets are closed
	scalar := false
	for i, c := range text {
		if str {
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				str = false
				if !key {
					good = i + 1
				}
			}
			continue
		}
		switch c {
		case '"':
			str, key = true, name && len(open) > 0 && open[len(open)-1] == '}'
		case '{', '[':
			if len(open) == maxOpen {
				return nil, false
			}
			open = append(open, map[byte]byte{'{': '}', '[': ']'}[c])
			name, scalar, good = c == '{', false, i+1
		case '}', ']':
			if len(open) == 0 || open[len(open)-1] != c {
				return nil, false
			}
			open = open[:len(open)-1]
			name, scalar, good = false, false, i+1
		case ',':
			if scalar {
				good = i
			}
			name, scalar = true, false
		case ':':
			name = false
		case ' ', '\t', '\r', '\n':
		default:
			scalar = true
		}
	}
	var whole []byte
	if str && !key {
		whole = append(append(whole, text[:stringEnd(text)]...), '"')
	} else {
		whole = append(whole, text[:good]...)
	}
	for i := len(open) - 1; i >= 0; i-- {
		whole = append(whole, open[i])
	}
	return v, json.Unmarshal(whole, &v) == nil
}

// stringEnd returns the offset at which text, which ends within a string, can be cut
// without splitting an escape or a rune.
func stringEnd(text []byte) int {
	end := len(text)
	// An escape has at most six bytes.
	for i := end - 1; i >= 0 && i >= end-6; i-- {
		if text[i] != '\\' {
			continue
		}
		run := 0
		for j := i; j >= 0 && text[j] == '\\'; j-- {
			run++
		}
		if run%2 == 1 && (i == end-1 || text[i+1] == 'u' && end-i < 6) {
			end = i
		}
		break
	}
	for cut := end; cut > 0 && cut > end-utf8.UTFMax; cut-- {
		if utf8.RuneStart(text[cut-1]) {
			if !utf8.FullRune(text[cut-1 : end]) {
				return cut - 1
			}
			break
		}
	}
	return end
}
