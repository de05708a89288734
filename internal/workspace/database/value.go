package database

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

var null = json.RawMessage("null")

// text returns a JSON string. Bytes that are not UTF-8 become replacement characters.
func text(v []byte) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ToValidUTF8(string(v), "\ufffd")); err != nil {
		return null // unreachable: encoding a string cannot fail
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// blob returns a JSON string in base64.
func blob(v []byte) json.RawMessage {
	return json.RawMessage(`"` + base64.StdEncoding.EncodeToString(v) + `"`)
}

// document returns v itself as JSON.
func document(v []byte) json.RawMessage {
	if !utf8.Valid(v) || !json.Valid(v) {
		return text(v)
	}
	return bytes.Clone(bytes.TrimSpace(v))
}

// float returns a JSON number for a text with as many digits as a float64 needs.
func float(v []byte) json.RawMessage {
	if !isNumber(v) {
		return text(v) // NaN and infinities
	}
	return bytes.Clone(v)
}

// number returns a JSON number for a decimal that is exact as a float64,
// otherwise a string.
func number(v []byte) json.RawMessage {
	if !isNumber(v) || !exact(string(v)) {
		return text(v)
	}
	return bytes.Clone(v)
}

func isNumber(v []byte) bool {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	return len(v) > 0 && (v[0] == '-' || digit(v[0])) && digit(v[len(v)-1]) && json.Valid(v) // json.Valid allows spaces around the number
}

// exact reports whether the decimal survives a conversion to float64: all with 15 digits do, and some
// integers with 16.
func exact(s string) bool {
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.Atoi(s[i+1:]); err != nil {
			return false
		}
		mantissa = s[:i]
	}
	whole, _, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	digits := strings.TrimLeft(strings.Replace(strings.TrimPrefix(mantissa, "-"), ".", "", 1), "0")
	if strings.Contains(mantissa, ".") || exponent != 0 {
		digits = strings.TrimRight(digits, "0")
	}
	if size := len(whole) + exponent; size > 300 || size < -280 || len(mantissa) > 300 {
		return false
	}
	if len(digits) <= 15 {
		return true
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n >= -1<<53 && n <= 1<<53
}

// datetime converts a date and a time of SQL to RFC 3339, with the zone if there is
// one. Values that RFC 3339 cannot represent stay unchanged.
func datetime(v []byte) json.RawMessage {
	const like = "0000-00-00 00:00:00"
	s := string(v)
	if len(s) < len(like) || s[:4] == "0000" || s[5:7] == "00" || s[8:10] == "00" {
		return text(v)
	}
	for i := range like {
		if digit := s[i] >= '0' && s[i] <= '9'; like[i] == '0' && !digit || like[i] != '0' && s[i] != like[i] {
			return text(v)
		}
	}
	rest := s[len(like):]
	fraction := ""
	if strings.HasPrefix(rest, ".") {
		n := 1
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		fraction, rest = rest[:n], rest[n:]
	}
	switch {
	case fraction == ".":
		return text(v)
	case rest == "" || rest == "Z":
	case rest == "+00" || rest == "+00:00":
		rest = "Z"
	case rest[0] != '+' && rest[0] != '-' || strings.Trim(rest[1:], "0123456789:") != "":
		return text(v) // BC
	case len(rest) == 3:
		rest += ":00"
	case len(rest) != 6 || rest[3] != ':' || strings.Contains(rest[1:3]+rest[4:], ":"):
		return text(v) // historical zones with seconds
	}
	return text([]byte(s[:10] + "T" + s[11:19] + fraction + rest))
}

// argument is a JSON value in the form for servers: as a text, whose type the server infers.
type argument struct {
	text []byte // nil means NULL
	list []any  // elements of an array, for servers with array types
	kind byte   // 's' string, 'i' integer of 64 bits, 'n' other number, 'b' bool, 'j' array or object; 0 for NULL
}

func arguments(values []any) ([]argument, error) {
	args := make([]argument, len(values))
	total := 0
	for i, v := range values {
		a, err := argumentOf(v)
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "argument %d: %w", i+1, err)
		}
		if total += len(a.text); total > engi.MaxQueryText {
			return nil, engi.TooLarge("the arguments have more than %d bytes", engi.MaxQueryText)
		}
		args[i] = a
	}
	return args, nil
}

func argumentOf(v any) (argument, error) {
	switch v := v.(type) {
	case nil:
		return argument{}, nil
	case string:
		if !utf8.ValidString(v) {
			return argument{}, engi.Errorf(engi.Invalid, "the text is not UTF-8")
		}
		return argument{text: []byte(v), kind: 's'}, nil
	case bool:
		return argument{text: strconv.AppendBool(nil, v), kind: 'b'}, nil
	case int:
		return argument{text: strconv.AppendInt(nil, int64(v), 10), kind: 'i'}, nil
	case int64:
		return argument{text: strconv.AppendInt(nil, v, 10), kind: 'i'}, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return argument{}, engi.Errorf(engi.Invalid, "%v is not a JSON number", v).WithRemedy("write it as a string")
		}
		if v == math.Trunc(v) && math.Abs(v) <= 1<<53 {
			return argument{text: strconv.AppendInt(nil, int64(v), 10), kind: 'i'}, nil
		}
		return argument{text: strconv.AppendFloat(nil, v, 'g', -1, 64), kind: 'n'}, nil
	case json.Number:
		if !isNumber([]byte(v)) {
			return argument{}, engi.Errorf(engi.Invalid, "%.40q is not a number", string(v))
		}
		if _, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return argument{text: []byte(v), kind: 'i'}, nil
		}
		return argument{text: []byte(v), kind: 'n'}, nil
	case json.RawMessage:
		d := json.NewDecoder(bytes.NewReader(v))
		d.UseNumber()
		var value any
		if err := d.Decode(&value); err != nil || !json.Valid(v) {
			return argument{}, engi.Errorf(engi.Invalid, "it is not JSON")
		}
		return argumentOf(value)
	case []any, map[string]any:
		raw, err := json.Marshal(v)
		if err != nil {
			return argument{}, engi.Errorf(engi.Invalid, "it is not JSON: %v", err)
		}
		list, _ := v.([]any)
		return argument{text: raw, list: list, kind: 'j'}, nil
	}
	return argument{}, engi.Errorf(engi.Invalid, "a %T is not a JSON value", v)
}
