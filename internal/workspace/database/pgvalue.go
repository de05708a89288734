package database

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const textOID = pgtype.TextOID

// splitRow returns the values of a row; they share its memory.
func splitRow(body []byte, columns int) ([][]byte, error) {
	const lies = nonsense("a row is not what its length says")
	if len(body) < 2 {
		return nil, lies
	}
	if int(binary.BigEndian.Uint16(body)) != columns {
		return nil, nonsense("a row has the wrong number of values")
	}
	row := make([][]byte, columns)
	body = body[2:]
	for i := range row {
		if len(body) < 4 {
			return nil, lies
		}
		size := int64(int32(binary.BigEndian.Uint32(body)))
		body = body[4:]
		if size == -1 {
			continue
		}
		if size < 0 || size > int64(len(body)) {
			return nil, lies
		}
		row[i], body = body[:size:size], body[size:]
	}
	if len(body) > 0 {
		return nil, lies
	}
	return row, nil
}

// A pgType converts the text form of values of a Postgres type.
type pgType struct {
	name    string
	convert func([]byte) json.RawMessage
}

var builtinTypes = sync.OnceValue(pgtype.NewMap)

// types returns the types of the columns of an answer. It queries the server for types that are not
// built in.
func (p *postgres) types(q engi.Query, a answer) (map[uint32]pgType, error) {
	types := map[uint32]pgType{}
	var unknown []uint32
	for _, c := range a.columns {
		if t, ok := builtinTypes().TypeForOID(c.oid); ok {
			types[c.oid] = typeOf(t.Name, strings.TrimPrefix(t.Name, "_"), ',')
		} else if _, ok := types[c.oid]; !ok {
			types[c.oid] = pgType{"oid " + strconv.FormatUint(uint64(c.oid), 10), text}
			unknown = append(unknown, c.oid)
		}
	}
	if len(unknown) == 0 || a.stopped {
		return types, nil
	}
	found, err := p.simple(q, `SELECT t.oid, t.typname, CASE WHEN t.typcategory = 'A' THEN e.typname END, e.typdelim
FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem WHERE t.oid IN (`+join(unknown)+`)`)
	if err != nil {
		return nil, err
	}
	for _, row := range found {
		oid, err := strconv.ParseUint(string(row[0]), 10, 32)
		if err != nil || len(row) != 4 {
			return nil, nonsense("a type has no number")
		}
		name, element, delimiter := clip.Text(string(row[1]), maxErrText), string(row[2]), byte(',')
		if len(row[3]) == 1 {
			delimiter = row[3][0]
		}
		if element == "" {
			types[uint32(oid)] = typeOf(name, name, delimiter)
		} else {
			types[uint32(oid)] = typeOf(name, element, delimiter)
		}
	}
	return types, nil
}

// typeOf returns a type by its name and, for an array, the name of its elements' type.
func typeOf(name, element string, delimiter byte) pgType {
	if name == element {
		return pgType{name, scalar(name)}
	}
	convert := scalar(element)
	return pgType{name, func(v []byte) json.RawMessage { return array(v, delimiter, convert) }}
}

// scalar returns the conversion to JSON for the type with a name.
func scalar(name string) func([]byte) json.RawMessage {
	switch name {
	case "int2", "int4", "int8", "oid", "numeric":
		return number
	case "float4", "float8":
		return float
	case "bool":
		return func(v []byte) json.RawMessage {
			switch string(v) {
			case "t":
				return json.RawMessage("true")
			case "f":
				return json.RawMessage("false")
			}
			return text(v)
		}
	case "json", "jsonb":
		return document
	case "timestamp", "timestamptz":
		return datetime
	case "bytea":
		return bytea
	}
	return text
}

// bytea converts both text forms of bytes to base64.
func bytea(v []byte) json.RawMessage {
	if digits, ok := strings.CutPrefix(string(v), `\x`); ok {
		if b, err := hex.DecodeString(digits); err == nil {
			return blob(b)
		}
	}
	b := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		switch {
		case v[i] != '\\':
			b = append(b, v[i])
		case i+1 < len(v) && v[i+1] == '\\':
			b = append(b, '\\')
			i++
		default:
			if i+4 > len(v) {
				return text(v)
			}
			n, err := strconv.ParseUint(string(v[i+1:i+4]), 8, 8)
			if err != nil {
				return text(v)
			}
			b = append(b, byte(n))
			i += 3
		}
	}
	return blob(b)
}

const maxDimensions = 6 // maximum number of dimensions of an array in Postgres

// array converts an array in the form {1,{2,"3"},NULL} to JSON.
func array(v []byte, delimiter byte, convert func([]byte) json.RawMessage) json.RawMessage {
	s := v
	if len(s) > 0 && s[0] == '[' { // the array has explicit index ranges
		if i := strings.IndexByte(string(s), '='); i > 0 {
			s = s[i+1:]
		}
	}
	var out []byte
	depth := 0
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '{':
			if depth++; depth > maxDimensions {
				return text(v)
			}
			out = append(out, '[')
			i++
		case c == '}':
			if depth--; depth < 0 {
				return text(v)
			}
			out = append(out, ']')
			i++
		case c == delimiter:
			out = append(out, ',')
			i++
		case depth == 0:
			return text(v)
		case c == '"':
			var element []byte
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' && i+1 < len(s) {
					i++
				}
				element = append(element, s[i])
			}
			if i++; i > len(s) {
				return text(v)
			}
			out = append(out, convert(element)...)
		default:
			from := i
			for i < len(s) && s[i] != delimiter && s[i] != '}' && s[i] != '{' {
				i++
			}
			if string(s[from:i]) == "NULL" {
				out = append(out, null...)
			} else {
				out = append(out, convert(s[from:i])...)
			}
		}
	}
	if !json.Valid(out) {
		return text(v)
	}
	return out
}

// arrayLiteral converts a JSON array to the literal form of Postgres.
func arrayLiteral(list []any) ([]byte, error) {
	return appendArray(nil, list, 1)
}

func appendArray(b []byte, list []any, depth int) ([]byte, error) {
	if depth > maxDimensions {
		return nil, engi.Errorf(engi.Invalid, "the array has more than %d dimensions", maxDimensions)
	}
	b = append(b, '{')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		a, err := argumentOf(v)
		switch {
		case err != nil:
			return nil, err
		case a.kind == 0:
			b = append(b, "NULL"...)
		case a.list != nil:
			if b, err = appendArray(b, a.list, depth+1); err != nil {
				return nil, err
			}
		default:
			b = append(b, '"')
			for _, c := range a.text {
				if c == '"' || c == '\\' {
					b = append(b, '\\')
				}
				b = append(b, c)
			}
			b = append(b, '"')
		}
	}
	return append(b, '}'), nil
}
