package database

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/engi-dev/engi/internal/clip"
)

// A myColumn is a column of a result, with the properties needed to convert its values.
type myColumn struct {
	name     string
	special  string // name of a type that is sent as another one, like json or uuid
	kind     byte
	binary   bool // the character set is binary
	unsigned bool
	enum     bool
	set      bool
	decimals byte
}

// Types of columns.
const (
	myDecimal   = 0
	myTiny      = 1
	myShort     = 2
	myLong      = 3
	myFloat     = 4
	myDouble    = 5
	myNull      = 6
	myTimestamp = 7
	myLongLong  = 8
	myInt24     = 9
	myDate      = 10
	myTime      = 11
	myDatetime  = 12
	myYear      = 13
	myBit       = 16
	myJSON      = 245
	myNewDec    = 246
	myTinyBlob  = 249
	myMedBlob   = 250
	myLongBlob  = 251
	myBlob      = 252
	myVarString = 253
	myString    = 254
	myGeometry  = 255
)

var myNames = map[byte]string{
	myDecimal: "decimal", myTiny: "tinyint", myShort: "smallint", myLong: "int", myFloat: "float", myDouble: "double", myNull: "null",
	myTimestamp: "timestamp", myLongLong: "bigint", myInt24: "mediumint", myDate: "date", myTime: "time", myDatetime: "datetime",
	myYear: "year", myBit: "bit", myJSON: "json", myNewDec: "decimal", myGeometry: "geometry",
}

func (c myColumn) typeName() string {
	name, ok := myNames[c.kind]
	switch {
	case c.special != "":
		return clip.Text(c.special, maxErrText)
	case c.enum:
		return "enum"
	case c.set:
		return "set"
	case ok && c.unsigned && c.kind != myYear && c.kind != myBit && c.kind != myTimestamp:
		return name + " unsigned"
	case ok:
		return name
	}
	names := [2]string{"varchar", "varbinary"}
	switch c.kind {
	case myTinyBlob, myMedBlob, myLongBlob, myBlob:
		names = [2]string{"text", "blob"}
	case myString:
		names = [2]string{"char", "binary"}
	}
	if c.binary {
		return names[1]
	}
	return names[0]
}

func (c myColumn) convert() func([]byte) json.RawMessage {
	if c.special == "json" {
		return document
	}
	switch c.kind {
	case myTiny, myShort, myLong, myLongLong, myInt24, myYear, myDecimal, myNewDec:
		return func(v []byte) json.RawMessage { return number(unpadded(v)) }
	case myFloat, myDouble:
		return func(v []byte) json.RawMessage { return float(unpadded(v)) }
	case myTimestamp: // in the zone of the session, which is UTC
		return func(v []byte) json.RawMessage { return datetime(append(v[:len(v):len(v)], 'Z')) }
	case myDatetime:
		return datetime
	case myJSON:
		return document
	case myBit:
		return func(v []byte) json.RawMessage {
			bits := make([]byte, 0, 8*len(v))
			for _, b := range v {
				bits = fmt.Appendf(bits, "%08b", b)
			}
			return text(bits)
		}
	case myDate, myTime, myNull:
		return text
	}
	if c.binary && !c.enum && !c.set {
		return blob
	}
	return text
}

// unpadded removes leading zeros of a number, which JSON does not allow.
func unpadded(v []byte) []byte {
	for len(v) > 1 && v[0] == '0' && v[1] >= '0' && v[1] <= '9' {
		v = v[1:]
	}
	return v
}

// columns reads count descriptions of columns.
func (m *mysql) columns(count int) ([]myColumn, error) {
	if count > maxColumns {
		return nil, nonsense("it has too many columns")
	}
	var columns []myColumn
	for range count {
		b, err := m.packet(64 << 10)
		if err != nil {
			return nil, err
		}
		c, ok := parseColumn(b, m.extended)
		if !ok {
			return nil, nonsense("a column cannot be read")
		}
		columns = append(columns, c)
	}
	if !m.deprecated {
		if b, err := m.packet(maxMessage); err != nil {
			return nil, err
		} else if b[0] != packetEOF {
			return nil, nonsense("the columns do not end where they should")
		}
	}
	return columns, nil
}

func parseColumn(b []byte, extended bool) (c myColumn, ok bool) {
	var words [6][]byte // catalog, schema, table and its original name, column and its original name
	for i := range words {
		var n int
		if words[i], n = readString(b); n == 0 {
			return c, false
		}
		b = b[n:]
	}
	special := ""
	if extended { // pairs of a property and its length
		v, n := readString(b)
		if n == 0 {
			return c, false
		}
		for b = b[n:]; len(v) > 0; v = v[n:] {
			var name []byte
			if name, n = readString(v[1:]); n == 0 {
				return c, false
			}
			special = string(name)
			n++
		}
	}
	_, n := readInt(b) // length of the rest
	if b = b[n:]; n == 0 || len(b) < 10 {
		return c, false
	}
	flags := binary.LittleEndian.Uint16(b[7:])
	return myColumn{
		name: string(words[4]), special: special, kind: b[6], binary: binary.LittleEndian.Uint16(b) == 63,
		unsigned: flags&0x20 != 0, enum: flags&0x100 != 0, set: flags&0x800 != 0, decimals: b[9],
	}, true
}

// readInt reads an integer whose first byte has its length, and returns the number of bytes that
// it takes, or 0. NULL, which is not an integer, takes none.
func readInt(b []byte) (value uint64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	size := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[b[0]]
	switch {
	case b[0] < 0xfb:
		return uint64(b[0]), 1
	case size == 0 || len(b) < 1+size:
		return 0, 0
	}
	for i := size; i > 0; i-- {
		value = value<<8 | uint64(b[i])
	}
	return value, 1 + size
}

// readString reads a string after its length, and returns the number of bytes of both, or 0.
func readString(b []byte) (v []byte, n int) {
	size, n := readInt(b)
	if n == 0 || size > uint64(len(b)-n) {
		return nil, 0
	}
	end := n + int(size)
	return b[n:end:end], end
}

func appendString(b, v []byte) []byte {
	switch n := len(v); {
	case n < 0xfb:
		b = append(b, byte(n))
	case n < 1<<16:
		b = append(b, 0xfc, byte(n), byte(n>>8))
	default:
		b = append(b, 0xfd, byte(n), byte(n>>8), byte(n>>16))
	}
	return append(b, v...)
}

const rowLies = nonsense("a row is not what its columns say")

// splitText returns the values of a row of a query; they share its memory.
func splitText(body []byte, columns []myColumn) ([][]byte, error) {
	row := make([][]byte, len(columns))
	for i := range columns {
		if len(body) > 0 && body[0] == 0xfb {
			body = body[1:]
			continue
		}
		v, n := readString(body)
		if n == 0 {
			return nil, rowLies
		}
		row[i], body = v, body[n:]
	}
	if len(body) > 0 {
		return nil, rowLies
	}
	return row, nil
}

// splitBinary returns the values of a row of a statement with arguments, in the text form of a row
// of a query.
func splitBinary(body []byte, columns []myColumn) ([][]byte, error) {
	row, nulls := make([][]byte, len(columns)), (len(columns)+7+2)/8
	if len(body) < 1+nulls || body[0] != 0 {
		return nil, rowLies
	}
	isNull := body[1 : 1+nulls]
	body = body[1+nulls:]
	for i, c := range columns {
		if isNull[(i+2)/8]&(1<<((i+2)%8)) != 0 {
			continue
		}
		v, n := binaryValue(body, c)
		if n < 0 {
			return nil, rowLies
		}
		row[i], body = v, body[n:]
	}
	if len(body) > 0 {
		return nil, rowLies
	}
	return row, nil
}

// binaryValue returns the text of a value and the number of bytes that it takes, or -1.
func binaryValue(b []byte, c myColumn) ([]byte, int) {
	size := map[byte]int{myTiny: 1, myShort: 2, myYear: 2, myLong: 4, myInt24: 4, myLongLong: 8, myFloat: 4, myDouble: 8}[c.kind]
	if size > 0 {
		if len(b) < size {
			return nil, -1
		}
		var bits uint64
		for i := size - 1; i >= 0; i-- {
			bits = bits<<8 | uint64(b[i])
		}
		switch {
		case c.kind == myFloat:
			return strconv.AppendFloat(nil, float64(math.Float32frombits(uint32(bits))), 'g', -1, 32), size
		case c.kind == myDouble:
			return strconv.AppendFloat(nil, math.Float64frombits(bits), 'g', -1, 64), size
		case c.unsigned:
			return strconv.AppendUint(nil, bits, 10), size
		}
		shift := 64 - 8*size
		return strconv.AppendInt(nil, int64(bits<<shift)>>shift, 10), size
	}
	v, n := readString(b)
	if n == 0 {
		return nil, -1
	}
	switch c.kind {
	case myDate, myDatetime, myTimestamp:
		return binaryDate(v, c, n)
	case myTime:
		return binaryTime(v, c, n)
	}
	return v[:len(v):len(v)], n
}

func fraction(s []byte, micros uint32, c myColumn) []byte {
	if c.decimals == 0 || c.decimals > 6 || micros > 999_999 {
		return s
	}
	return append(s, fmt.Sprintf(".%06d", micros)[:1+c.decimals]...)
}

func binaryDate(v []byte, c myColumn, n int) ([]byte, int) {
	var parts [11]byte
	if len(v) > len(parts) {
		return nil, -1
	}
	copy(parts[:], v)
	s := fmt.Appendf(nil, "%04d-%02d-%02d", binary.LittleEndian.Uint16(parts[:]), parts[2], parts[3])
	if c.kind == myDate {
		return s, n
	}
	return fraction(fmt.Appendf(s, " %02d:%02d:%02d", parts[4], parts[5], parts[6]), binary.LittleEndian.Uint32(parts[7:]), c), n
}

func binaryTime(v []byte, c myColumn, n int) ([]byte, int) {
	var parts [12]byte
	if len(v) > len(parts) {
		return nil, -1
	}
	copy(parts[:], v)
	sign := ""
	if parts[0] == 1 {
		sign = "-"
	}
	hours := uint64(binary.LittleEndian.Uint32(parts[1:]))*24 + uint64(parts[5])
	return fraction(fmt.Appendf(nil, "%s%02d:%02d:%02d", sign, hours, parts[6], parts[7]), binary.LittleEndian.Uint32(parts[8:]), c), n
}
