package database

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/engi-dev/engi/internal/engi"
)

// FuzzPostgresValue converts arbitrary values of any type from a Postgres server.
func FuzzPostgresValue(f *testing.F) {
	names := []string{"int8", "numeric", "float8", "bool", "json", "timestamptz", "bytea", "text", "_numeric", "_text", "_jsonb", "_timestamptz", "_bytea"}
	for _, v := range []string{"1", "-0.10", "1e400", "NaN", "t", `{"a":1}`, "2024-02-29 12:00:00.5+02", `\x00ff`, `a\\b\001`, `{1,NULL,"x\"y"}`, "[2:3]={1,2}", "{{1},{2}}", "\xff\x00", "{{{{{{{"} {
		for i := range names {
			f.Add(byte(i), []byte(v))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, v []byte) {
		name := names[int(kind)%len(names)]
		element := name
		if name[0] == '_' {
			element = name[1:]
		}
		check(t, v, typeOf(name, element, ',').convert(v))
	})
}

// FuzzMySQLValue converts arbitrary values of any type from a MySQL server.
func FuzzMySQLValue(f *testing.F) {
	for kind := range 256 {
		f.Add(byte(kind), uint8(kind), []byte("2024-02-29 12:00:00.5"))
		f.Add(byte(kind), uint8(kind), []byte("\x0b\xe8\x07\x02\x1d\x0c\x00\x00\x01\x00\x00\x00"))
	}
	f.Fuzz(func(t *testing.T, kind, flags byte, v []byte) {
		c := myColumn{kind: kind, binary: flags&1 != 0, unsigned: flags&2 != 0, enum: flags&4 != 0, decimals: flags >> 4}
		check(t, v, c.convert()(v))
		if row, err := splitText(v, []myColumn{c, c}); err == nil {
			check(t, v, c.convert()(row[0]))
		}
		if row, err := splitBinary(v, []myColumn{c, c}); err == nil {
			for _, x := range row {
				check(t, v, c.convert()(x))
			}
		}
		parseColumn(v, flags&8 != 0)
		parseErr(v)
	})
}

func check(t *testing.T, v []byte, got json.RawMessage) {
	t.Helper()
	if !json.Valid(got) || !utf8.Valid(got) {
		t.Errorf("%q becomes %q, which is not JSON", v, got)
	}
}

// FuzzNumber checks that numbers stay the same for readers who convert them to float64.
func FuzzNumber(f *testing.F) {
	for _, v := range []string{"0", "-0", "1 ", "0.1", "9007199254740992", "9007199254740993", "123456789012345678", "1e5", "1E-400", "0.00000000000000000001", "100000000000000000000", "1.000000000000000000000"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		got := number([]byte(v))
		if got[0] == '"' || len(v) > 400 {
			return
		}
		want, ok := new(big.Float).SetPrec(3000).SetString(v)
		float, err := strconv.ParseFloat(v, 64)
		if !ok || err != nil {
			t.Fatalf("%q becomes the number %s", v, got)
		}
		// The shortest decimal of the float must be the number again.
		again, _ := new(big.Float).SetPrec(3000).SetString(strconv.FormatFloat(float, 'g', -1, 64))
		if want.Cmp(again) != 0 {
			t.Errorf("%q becomes the number %s, which is read as %v", v, got, again)
		}
	})
}

// FuzzArguments writes arrays as literals, which must read as the same arrays.
func FuzzArguments(f *testing.F) {
	f.Add([]byte(`["a\"b\\", null, "NULL", "", "{,}", ["x"]]`))
	f.Add([]byte(`[[[[[[[1]]]]]]]`))
	f.Fuzz(func(t *testing.T, v []byte) {
		var list []any
		if json.Unmarshal(v, &list) != nil {
			return
		}
		for _, x := range list {
			if _, ok := x.(string); x != nil && !ok {
				return
			}
		}
		literal, err := arrayLiteral(list)
		if err != nil {
			return
		}
		want, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var got []any
		if err := json.Unmarshal(array(literal, ',', text), &got); err != nil {
			t.Fatalf("%s becomes %s: %v", v, literal, err)
		}
		if again, _ := json.Marshal(got); !bytes.Equal(again, want) {
			t.Errorf("%s becomes %s, which is read as %s", want, literal, again)
		}
	})
}

// FuzzReply reads arbitrary replies of a Redis server.
func FuzzReply(f *testing.F) {
	for _, v := range []string{"+OK\r\n", "-ERR x\r\n", ":1\r\n", "$3\r\nabc\r\n", "$-1\r\n", "*2\r\n:1\r\n_\r\n", "%1\r\n+k\r\n,inf\r\n", "%1\r\n:1\r\n#t\r\n", "~1\r\n(12345678901234567890\r\n",
		"=7\r\ntxt:abc\r\n", "!3\r\nERR\r\n", "|1\r\n+a\r\n+b\r\n:1\r\n", ">1\r\n+x\r\n", "*?\r\n", "$1\r\n\xff\r\n"} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		r := &redis{link: linkTo(nil, int64(len(v))), r: bufio.NewReader(bytes.NewReader(v))}
		if got, err := r.reply(0); err == nil {
			check(t, v, got)
		}
	})
}

// FuzzDocument converts arbitrary documents of a server of MongoDB's protocol.
func FuzzDocument(f *testing.F) {
	for _, v := range []string{"\x05\x00\x00\x00\x00", "\x0c\x00\x00\x00\x10a\x00\x01\x00\x00\x00\x00", "\x0e\x00\x00\x00\x02a\x00\x02\x00\x00\x00x\x00\x00", "\x10\x00\x00\x00\x03a\x00\x08\x00\x00\x00\x0ab\x00\x00\x00", "\x0b\x00\x00\x00\x0ba\x00b\x00\x00\x00"} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		if got, err := extended(v, 1<<20); err == nil {
			check(t, v, got)
		}
		for kind := range 256 {
			x := extender{most: 1 << 20}
			if err := x.value(byte(kind), v, 0); err == nil {
				check(t, v, x.b)
			}
		}
		_, _, _, _ = cursorOf(v)
	})
}

// FuzzSCRAM answers arbitrary challenges of a server of MongoDB's protocol, and reads arbitrary lists of mechanisms
// and roles.
func FuzzSCRAM(f *testing.F) {
	for _, v := range []string{"r=nonce1,s=eA==,i=4096", "m=x,r=nonce1,s=eA==,i=4096", "r=nonce,s=eA==,i=4096", "i=100000,s=eA==,r=nonce1", "r=nonce1,s=eA==,i=2000000000", ""} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		for _, h := range []mechanism{scramSHA1, scramSHA256} {
			final, signature, err := h.answer("pencil", "nonce", "n=user,r=nonce", string(v))
			if err == nil && (!strings.HasPrefix(final, "c=biws,r=nonce") || !strings.Contains(final, ",p=") || signature == "") {
				t.Errorf("%s: %q gives %q, %q", h.name, v, final, signature)
			}
		}
		_, _ = mechanismOf(v)
		_, _ = rolesOf(v)
	})
}

// TestSCRAM replays the exchanges of RFC 5802, section 5, and of RFC 7677, section 3.
func TestSCRAM(t *testing.T) {
	for _, x := range []struct {
		h                                          mechanism
		nonce, challenge, final, signature, secret string
	}{
		{scramSHA1, "fyko+d2lbbFgONRv9qkxdawL", "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
			"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=", "rmF9pqV8S7suAoZWja4dJRkFsKQ=", "pencil"},
		{scramSHA256, "rOprNGfwEbeRWgbNEkqO", "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "pencil"},
	} {
		final, signature, err := x.h.answer(x.secret, x.nonce, "n=user,r="+x.nonce, x.challenge)
		if err != nil || final != x.final || signature != x.signature {
			t.Errorf("%s: %s, %s, %v", x.h.name, final, signature, err)
		}
	}
	if got := scramSHA1.secret(Server{User: "user", Password: "pencil"}); got != "1c33006ec1ffd90f9cadcbcc0e118200" { // what MongoDB's drivers hash
		t.Errorf("the secret is %s", got)
	}
}

// FuzzExtended parses arbitrary queries.
func FuzzExtended(f *testing.F) {
	for _, v := range []string{`{}`, `[{"$match":{"a":{"$oid":"010203000000000000000000"}}}]`, `{"a":{"$date":"2024-01-01T00:00:00Z"},"b":{"$numberDecimal":"1.1"},"c":{"$regularExpression":{"pattern":"a","options":""}}}`, `{"a":{"$binary":{"base64":"AA==","subType":"00"}}}`} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		if d, err := parseExtended(v); err == nil {
			if _, err := bson.Marshal(d); err != nil {
				t.Logf("%q cannot be sent: %v", v, err) // the caller gets the error
			}
		}
		_, _ = stagesOf(v)
	})
}

// FuzzPostgresAnswer reads arbitrary answers to a query.
func FuzzPostgresAnswer(f *testing.F) {
	f.Add([]byte("T\x00\x00\x00\x1a\x00\x01x\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x17\x00\x04\xff\xff\xff\xff\x00\x00D\x00\x00\x00\x0b\x00\x01\x00\x00\x00\x011C\x00\x00\x00\x0dSELECT 1\x00Z\x00\x00\x00\x05I"))
	f.Add([]byte("E\x00\x00\x00\x10C42601\x00P12\x00\x00Z\x00\x00\x00\x05I"))
	f.Add([]byte("G\x00\x00\x00\x07\x00\x00\x00Z\x00\x00\x00\x05I"))
	f.Fuzz(func(t *testing.T, v []byte) {
		p := &postgres{link: linkTo(said{r: bytes.NewReader(v)}, 1<<20)}
		p.r = bufio.NewReader(p.link)
		q := engi.Query{MaxRows: 10, MaxBytes: 1000}
		a, err := p.answer(q)
		if err != nil {
			return
		}
		convert := make([]func([]byte) json.RawMessage, len(a.columns))
		for i := range convert {
			convert[i] = text
		}
		if got := a.rows.table(convert); len(got) > q.MaxRows {
			t.Errorf("%q gives %d rows", v, len(got))
		}
	})
}

// FuzzMySQLAnswer reads arbitrary answers to a query.
func FuzzMySQLAnswer(f *testing.F) {
	column := "\x03def\x00\x00\x00\x01x\x00\x0c\x2d\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00"
	head := []byte{byte(len(column)), 0, 0, 2}
	f.Add(byte(0), []byte("\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"))
	f.Add(byte(1), append(append(append([]byte("\x01\x00\x00\x01\x01"), head...), column...), "\x02\x00\x00\x03\x011\x07\x00\x00\x04\xfe\x00\x00\x02\x00\x00\x00"...))
	f.Add(byte(0), append(append(append([]byte("\x01\x00\x00\x01\x01"), head...), column...), "\x05\x00\x00\x03\xfe\x00\x00\x02\x00\x02\x00\x00\x04\x011\x05\x00\x00\x05\xfe\x00\x00\x02\x00"...))
	f.Add(byte(2), []byte("\x05\x00\x00\x01\xff\x15\x04#2"))
	f.Fuzz(func(t *testing.T, flags byte, v []byte) {
		m := &mysql{link: linkTo(said{r: bytes.NewReader(v)}, 1<<20), deprecated: flags&1 != 0, extended: flags&2 != 0, seq: 0}
		m.r = bufio.NewReader(m.link)
		q := engi.Query{MaxRows: 10, MaxBytes: 1000, ReadOnly: flags&4 != 0}
		a, err := m.answer(q, flags&8 != 0)
		if err != nil || a.rows == nil {
			return
		}
		convert := make([]func([]byte) json.RawMessage, len(a.columns))
		for i, c := range a.columns {
			convert[i] = c.convert()
		}
		if got := a.rows.table(convert); len(got) > q.MaxRows {
			t.Errorf("%q gives %d rows", v, len(got))
		}
	})
}

// said is a connection to a server that has already sent everything.
type said struct {
	net.Conn
	r io.Reader
}

func (s said) Read(p []byte) (int, error)  { return s.r.Read(p) }
func (s said) Write(p []byte) (int, error) { return len(p), nil }
