package database

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/engi-dev/engi/internal/engi"
)

// maxNesting is the maximum depth of a document; MongoDB allows no more either.
const maxNesting = 100

// Types of BSON values, see https://bsonspec.org/spec.html.
const (
	bsonDouble    = 0x01
	bsonString    = 0x02
	bsonDocument  = 0x03
	bsonArray     = 0x04
	bsonBinary    = 0x05
	bsonUndefined = 0x06
	bsonObjectID  = 0x07
	bsonBool      = 0x08
	bsonDate      = 0x09
	bsonNull      = 0x0a
	bsonRegex     = 0x0b
	bsonPointer   = 0x0c
	bsonCode      = 0x0d
	bsonSymbol    = 0x0e
	bsonScope     = 0x0f
	bsonInt32     = 0x10
	bsonTimestamp = 0x11
	bsonInt64     = 0x12
	bsonDecimal   = 0x13
	bsonMaxKey    = 0x7f
	bsonMinKey    = 0xff
)

var errBSON = nonsense("a document cannot be read")

// An element is a field of a document.
type element struct {
	name  string
	kind  byte
	value []byte // without the type and the name
}

// elements yields the fields of a document of a server, without a look into their values, and then the
// error, if the document is malformed.
func elements(doc []byte) iter.Seq2[element, error] {
	return func(yield func(element, error) bool) {
		if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
			yield(element{}, errBSON)
			return
		}
		for rest := doc[4 : len(doc)-1]; len(rest) > 0; {
			e := element{kind: rest[0]}
			name, after, ok := bytes.Cut(rest[1:], []byte{0})
			n := valueSize(e.kind, after)
			if !ok || n < 0 || n > len(after) {
				yield(element{}, errBSON)
				return
			}
			e.name, e.value, rest = string(name), after[:n], after[n:]
			if !yield(e, nil) {
				return
			}
		}
	}
}

// valueSize returns the size of a value at the beginning of b; -1 if it is malformed. It may
// exceed the size of b.
func valueSize(kind byte, b []byte) int {
	prefixed := func(more int64) int {
		if len(b) < 4 {
			return -1
		}
		n := int64(int32(binary.LittleEndian.Uint32(b)))
		if n < 0 || n+more > math.MaxInt32 {
			return -1
		}
		return int(n + more)
	}
	switch kind {
	case bsonUndefined, bsonNull, bsonMinKey, bsonMaxKey:
		return 0
	case bsonBool:
		return 1
	case bsonInt32:
		return 4
	case bsonDouble, bsonDate, bsonTimestamp, bsonInt64:
		return 8
	case bsonObjectID:
		return 12
	case bsonDecimal:
		return 16
	case bsonDocument, bsonArray, bsonScope:
		return prefixed(0)
	case bsonString, bsonCode, bsonSymbol:
		return prefixed(4)
	case bsonBinary:
		return prefixed(5)
	case bsonPointer:
		return prefixed(4 + 12)
	case bsonRegex:
		if _, rest, ok := bytes.Cut(b, []byte{0}); ok {
			if _, rest, ok = bytes.Cut(rest, []byte{0}); ok {
				return len(b) - len(rest)
			}
		}
	}
	return -1
}

// An extender writes documents as MongoDB Extended JSON in its relaxed form, in which numbers are JSON
// numbers if these are exact. See https://www.mongodb.com/docs/manual/reference/mongodb-extended-json/.
type extender struct {
	b    []byte
	most int64 // maximum size of b, which may be many times that of the document
}

var errFull = errors.New("the result is full")

// extended returns a document as JSON, or errFull if that has more bytes than most.
func extended(doc []byte, most int64) (json.RawMessage, error) {
	x := extender{most: most}
	err := x.document(doc, false, 0)
	return x.b, err
}

func (x *extender) add(parts ...string) {
	for _, p := range parts {
		x.b = append(x.b, p...)
	}
}

// document writes a document or an array.
func (x *extender) document(doc []byte, isArray bool, depth int) error {
	if depth > maxNesting {
		return nonsense("a document is nested too deeply")
	}
	start, end := "{", "}"
	if isArray {
		start, end = "[", "]"
	}
	x.add(start)
	first := true
	for e, err := range elements(doc) {
		if err != nil {
			return err
		}
		if !first {
			x.add(",")
		}
		if first = false; !isArray {
			x.add(string(text([]byte(e.name))), ":")
		}
		if err := x.value(e.kind, e.value, depth); err != nil {
			return err
		}
		if int64(len(x.b)) > x.most {
			return errFull
		}
	}
	x.add(end)
	return nil
}

// value writes a value of any type.
func (x *extender) value(kind byte, v []byte, depth int) error {
	if n := valueSize(kind, v); n != len(v) {
		return errBSON
	}
	number := func() uint64 { return binary.LittleEndian.Uint64(v) }
	special := func(name, value string) { x.add(`{"$`, name, `":`, value, "}") }
	switch kind {
	case bsonDouble:
		f := math.Float64frombits(number())
		s := strconv.FormatFloat(f, 'g', -1, 64)
		switch {
		case math.IsInf(f, 0):
			special("numberDouble", `"`+strings.Trim(s, "+")+`inity"`)
		case math.IsNaN(f):
			special("numberDouble", `"NaN"`)
		case !strings.ContainsAny(s, ".e"):
			x.add(s, ".0") // tells it from an integer
		default:
			x.add(s)
		}
	case bsonString, bsonCode, bsonSymbol:
		s, err := textOf(v)
		switch {
		case err != nil:
			return err
		case kind == bsonCode:
			special("code", s)
		case kind == bsonSymbol:
			special("symbol", s)
		default:
			x.add(s)
		}
	case bsonDocument, bsonArray:
		return x.document(v, kind == bsonArray, depth+1)
	case bsonBinary:
		special("binary", fmt.Sprintf(`{"base64":%s,"subType":"%02x"}`, blob(v[5:]), v[4]))
	case bsonUndefined:
		special("undefined", "true")
	case bsonObjectID:
		special("oid", `"`+hex.EncodeToString(v)+`"`)
	case bsonBool:
		x.add(strconv.FormatBool(v[0] != 0))
	case bsonDate:
		ms := int64(number())
		if at := time.UnixMilli(ms).UTC(); ms >= 0 && at.Year() <= 9999 {
			special("date", at.Format(`"2006-01-02T15:04:05.999Z07:00"`))
		} else {
			special("date", fmt.Sprintf(`{"$numberLong":"%d"}`, ms))
		}
	case bsonNull:
		x.add("null")
	case bsonRegex:
		pattern, rest, _ := bytes.Cut(v, []byte{0})
		options, _, _ := bytes.Cut(rest, []byte{0})
		special("regularExpression", `{"pattern":`+string(text(pattern))+`,"options":`+string(text(options))+`}`)
	case bsonPointer:
		s, err := textOf(v[:len(v)-12])
		if err != nil {
			return err
		}
		special("dbPointer", `{"$ref":`+s+`,"$id":{"$oid":"`+hex.EncodeToString(v[len(v)-12:])+`"}}`)
	case bsonScope:
		return x.scope(v, depth)
	case bsonInt32:
		x.add(strconv.Itoa(int(int32(binary.LittleEndian.Uint32(v)))))
	case bsonTimestamp:
		special("timestamp", fmt.Sprintf(`{"t":%d,"i":%d}`, number()>>32, uint32(number())))
	case bsonInt64:
		if n := int64(number()); n >= -1<<53 && n <= 1<<53 {
			x.add(strconv.FormatInt(n, 10))
		} else {
			special("numberLong", fmt.Sprintf(`"%d"`, n))
		}
	case bsonDecimal:
		special("numberDecimal", `"`+bson.NewDecimal128(binary.LittleEndian.Uint64(v[8:]), number()).String()+`"`)
	case bsonMinKey:
		special("minKey", "1")
	case bsonMaxKey:
		special("maxKey", "1")
	default:
		return errBSON
	}
	return nil
}

// scope writes JavaScript code with variables.
func (x *extender) scope(v []byte, depth int) error {
	if len(v) < 8 {
		return errBSON
	}
	n := valueSize(bsonString, v[4:])
	if n < 0 || n > len(v)-4 {
		return errBSON
	}
	code, err := textOf(v[4 : 4+n])
	if err != nil {
		return err
	}
	x.add(`{"$code":`, code, `,"$scope":`)
	err = x.document(v[4+n:], false, depth+1)
	x.add("}")
	return err
}

// textOf returns the text of a string value as JSON.
func textOf(value []byte) (string, error) {
	s, err := stringOf(value)
	return string(text([]byte(s))), err
}

// stringOf returns the text of a string value.
func stringOf(value []byte) (string, error) {
	if len(value) < 5 || value[len(value)-1] != 0 {
		return "", errBSON
	}
	return strings.ToValidUTF8(string(value[4:len(value)-1]), "\ufffd"), nil
}

// documentOf converts Extended JSON to a document; empty text becomes an empty one.
func documentOf(what string, raw json.RawMessage) (bson.D, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return bson.D{}, nil
	}
	d, err := parseExtended(raw)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "the %s is no document: %v", what, err).WithRemedy(`write JSON, like {"total": {"$gt": 5}}`)
	}
	return d, nil
}

// stagesOf converts Extended JSON to the stages of a pipeline.
func stagesOf(raw json.RawMessage) ([]bson.D, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the pipeline is no list of stages").WithRemedy(`write JSON, like [{"$match": {"paid": true}}]`)
	}
	stages := make([]bson.D, len(parts))
	for i, part := range parts {
		d, err := parseExtended(part)
		if err != nil || len(d) != 1 {
			return nil, engi.Errorf(engi.Invalid, "stage %d of the pipeline is none", i+1).WithRemedy(`write a document with the name of the stage, like {"$match": {"paid": true}}`)
		}
		stages[i] = d
	}
	return stages, nil
}

func parseExtended(raw json.RawMessage) (d bson.D, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, err = nil, engi.Errorf(engi.Invalid, "it cannot be read")
		}
	}()
	if !json.Valid(raw) || raw[0] != '{' {
		return nil, engi.Errorf(engi.Invalid, "it is no JSON object")
	}
	depth := 0
	inText := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return nil, engi.Errorf(engi.Invalid, "it is nested more than %d levels deep", maxNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	err = bson.UnmarshalExtJSON(raw, false, &d)
	return d, err
}

// binaryOf returns the bytes of a binary value.
func binaryOf(e element) []byte {
	if e.kind != bsonBinary || len(e.value) < 5 {
		return nil
	}
	return e.value[5:]
}

// numberOf returns a value of any of the types that servers use for integers.
func numberOf(e element) int64 {
	switch e.kind {
	case bsonDouble:
		f := math.Float64frombits(binary.LittleEndian.Uint64(e.value))
		if f >= -1<<53 && f <= 1<<53 {
			return int64(f)
		}
	case bsonInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.value)))
	case bsonInt64:
		return int64(binary.LittleEndian.Uint64(e.value))
	case bsonBool:
		return int64(e.value[0])
	}
	return 0
}
