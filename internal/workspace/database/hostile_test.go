package database_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
)

// A script is the behaviour of a hostile server on a connection once a client has logged in.
type script func(c net.Conn)

// hostile returns a server that accepts any login and then follows a script. Its connections
// are pipes, like those into a sandbox.
func hostile(kind engi.ServiceType, login bool, f script) database.Server {
	dial := func(context.Context) (net.Conn, error) {
		client, s := net.Pipe()
		go func() {
			defer s.Close()
			if login && !greet(kind, s) {
				return
			}
			f(s)
		}()
		return client, nil
	}
	s := database.Server{Type: kind, Dial: dial, User: "chief", Password: "hush", Database: "0"}
	if kind == engi.ServiceMongoDB && login {
		s.Password = "" // the client need not log in
	}
	return s
}

// greet logs a client in.
func greet(kind engi.ServiceType, s net.Conn) bool {
	b := make([]byte, 64<<10)
	switch kind {
	case engi.ServicePostgres:
		if _, err := s.Read(b); err != nil {
			return false
		}
		_, err := s.Write(join(pg('R', "\x00\x00\x00\x00"), pg('K', "\x00\x00\x00\x01\x00\x00\x00\x02"), pg('Z', "I")))
		return err == nil
	case engi.ServiceMySQL:
		hello := "\x0a10.11\x00\x01\x00\x00\x0012345678\x00\xff\xf7\x2d\x02\x00\xff\x81\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00123456789012\x00mysql_native_password\x00"
		if _, err := s.Write(my(0, hello)); err != nil {
			return false
		}
		if _, err := s.Read(b); err != nil {
			return false
		}
		if _, err := s.Write(my(2, "\x00\x00\x00\x02\x00\x00\x00")); err != nil {
			return false
		}
		// The client's settings come first.
		if _, err := s.Read(b); err != nil {
			return false
		}
		_, err := s.Write(my(1, "\x00\x00\x00\x02\x00\x00\x00"))
		return err == nil
	case engi.ServiceMongoDB:
		return true
	default:
		for _, reply := range []string{"%0\r\n", "+OK\r\n"} {
			if _, err := s.Read(b); err != nil {
				return false
			}
			if _, err := io.WriteString(s, reply); err != nil {
				return false
			}
		}
		return true
	}
}

func pg(kind byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

func my(seq byte, body string) []byte {
	return append([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), seq}, body...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// says reads the client's messages, sends a text, and stays until the client disconnects.
func says(parts ...[]byte) script {
	return func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		_, err := c.Write(join(parts...))
		if err == nil {
			_, _ = c.Write(nil)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// floods sends a text without end.
func floods(first, again []byte) script {
	return func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if _, err := c.Write(first); err != nil {
			return
		}
		for many := bytes.Repeat(again, 1+64<<10/len(again)); ; {
			if _, err := c.Write(many); err != nil {
				return
			}
		}
	}
}

func stalls(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func hangsUp(c net.Conn) {
	_, _ = c.Read(make([]byte, 64<<10))
}

var rubbish = func() []byte {
	b := make([]byte, 4096)
	_, _ = rand.Read(b)
	return b
}()

// document returns a document of BSON with fields.
func document(fields string) []byte {
	return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(fields)+5)), fields...), 0)
}

// found returns a result of MongoDB that consists of one document with fields.
func found(fields string) []byte {
	return document("\x08ok\x00\x01\x03cursor\x00" + string(document("\x04firstBatch\x00"+string(document("\x030\x00"+string(document(fields)))))))
}

const (
	pgColumn1  = "x\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x17\x00\x04\xff\xff\xff\xff\x00\x00"
	myColumn1  = "\x03def\x00\x00\x00\x01x\x00\x0c\x2d\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00"
	unexpected = engi.Unavailable
)

// TestHostileServers uses servers that lie, flood, stall and hang up. All calls must end with an
// error of a suitable kind, use little memory, and leave nothing behind.
func TestHostileServers(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	pgRow := pg('T', "\x00\x01"+pgColumn1)
	const postgres, mysql, redis, mongodb = engi.ServicePostgres, engi.ServiceMySQL, engi.ServiceRedis, engi.ServiceMongoDB
	deep := []byte("\x05\x00\x00\x00\x00")
	for range 1000 {
		deep = document("\x03x\x00" + string(deep))
	}
	cases := []struct {
		name  string
		kind  engi.ServiceType
		login bool
		f     script
		want  engi.Kind
	}{
		{"rubbish", postgres, false, says(rubbish), unexpected},
		{"stalls at once", postgres, false, stalls, engi.Expired},
		{"hangs up at once", postgres, false, hangsUp, unexpected},
		{"a greeting without end", postgres, false, floods(nil, pg('N', "SNOTICE\x00\x00")), engi.Exhausted},
		{"a huge greeting", postgres, false, says([]byte("R\x7f\xff\xff\xff")), unexpected},
		{"asks for the password", postgres, false, says(pg('R', "\x00\x00\x00\x03")), unexpected},
		{"rubbish for an answer", postgres, true, says(rubbish), unexpected},
		{"stalls", postgres, true, stalls, engi.Expired},
		{"hangs up", postgres, true, hangsUp, unexpected},
		{"half a message", postgres, true, func(c net.Conn) { hangsUp(c); _, _ = c.Write([]byte("D\x00\x00")) }, unexpected},
		{"a length below zero", postgres, true, says([]byte("T\xff\xff\xff\xff")), unexpected},
		{"a length of nothing", postgres, true, says([]byte("T\x00\x00\x00\x00")), unexpected},
		{"a huge description", postgres, true, says([]byte("T\x7f\xff\xff\xff")), unexpected},
		{"a huge error", postgres, true, says([]byte("E\x7f\xff\xff\xff")), unexpected},
		{"more columns than it says", postgres, true, says(pg('T', "\xff\xff"+pgColumn1)), unexpected},
		{"columns without end", postgres, true, says(pg('T', "\x20\x00"+strings.Repeat(pgColumn1, 8192))), unexpected},
		{"a row of other columns", postgres, true, says(pgRow, pg('D', "\x00\x02\xff\xff\xff\xff\xff\xff\xff\xff")), unexpected},
		{"a row whose value is longer", postgres, true, says(pgRow, pg('D', "\x00\x01\x00\x00\x00\xffx")), unexpected},
		{"a row whose value has a length below zero", postgres, true, says(pgRow, pg('D', "\x00\x01\x80\x00\x00\x00")), unexpected},
		{"a row before columns", postgres, true, says(pg('D', "\x00\x01\x00\x00\x00\x01x")), unexpected},
		{"a copy that nobody asked for", postgres, true, says(pg('d', "x")), unexpected},
		{"an unknown message", postgres, true, says(pg('?', "x")), unexpected},
		{"notices without end", postgres, true, floods(nil, pg('N', "SNOTICE\x00\x00")), engi.Expired},
		{"asks to copy without end", postgres, true, floods(nil, pg('G', "\x00\x00\x00")), engi.Expired},
		{"descriptions without end", postgres, true, floods(nil, pgRow), engi.Expired},

		{"rubbish", mysql, false, says(rubbish), unexpected},
		{"stalls at once", mysql, false, stalls, engi.Expired},
		{"hangs up at once", mysql, false, func(net.Conn) {}, unexpected},
		{"a greeting without end", mysql, false, floods([]byte("\xff\xff\xff\x00\x0a"), []byte("x")), engi.Exhausted},
		{"an old greeting", mysql, false, says(my(0, "\x09x\x00")), unexpected},
		{"a short greeting", mysql, false, says(my(0, "\x0a")), unexpected},
		{"asks for the password", mysql, false, func(c net.Conn) {
			_, _ = c.Write(my(0, "\x0a10.11\x00\x01\x00\x00\x0012345678\x00\xff\xf7\x2d\x02\x00\xff\x81\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00123456789012\x00mysql_clear_password\x00"))
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			if bytes.Contains(b[:n], []byte("hush")) {
				panic("the client sends its password")
			}
			_, _ = c.Write(my(2, "\xfemysql_clear_password\x00"))
			if n, _ = c.Read(b); bytes.Contains(b[:n], []byte("hush")) {
				panic("the client sends its password")
			}
		}, unexpected},
		{"rubbish for an answer", mysql, true, says(rubbish), unexpected},
		{"stalls", mysql, true, stalls, engi.Expired},
		{"hangs up", mysql, true, hangsUp, unexpected},
		{"columns without end", mysql, true, says(my(1, "\xfe\x00\x00\x00\x00\x00\x01\x00\x00")), unexpected},
		{"more columns than there can be", mysql, true, says(my(1, "\xfd\xff\xff\xff")), unexpected},
		{"columns below zero", mysql, true, says(my(1, "\xfe\xff\xff\xff\xff\xff\xff\xff\xff")), unexpected},
		{"an empty packet", mysql, true, says(my(1, "")), unexpected},
		{"another sequence", mysql, true, says(my(9, "\x01")), unexpected},
		{"a column that is none", mysql, true, says(my(1, "\x01"), my(2, "\xfe\xff")), unexpected},
		{"a row that is longer", mysql, true, says(my(1, "\x01"), my(2, myColumn1), my(3, "\x01xy")), unexpected},
		{"a row that is shorter", mysql, true, says(my(1, "\x01"), my(2, myColumn1), my(3, "\x09x")), unexpected},
		{"a huge error", mysql, true, floods([]byte("\xff\xff\xff\x01\xff"), []byte("x")), unexpected},
		{"asks for a file", mysql, true, says(my(1, "\xfb/etc/passwd")), unexpected},
		{"results without end", mysql, true, func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for seq := byte(1); ; seq++ {
				if _, err := c.Write(my(seq, "\x00\x00\x00\x08\x00\x00\x00")); err != nil {
					return
				}
			}
		}, engi.Expired},

		{"rubbish", redis, false, says([]byte("\x00\x01rubbish\r\n")), unexpected},
		{"stalls at once", redis, false, stalls, engi.Expired},
		{"hangs up at once", redis, false, hangsUp, unexpected},
		{"stalls", redis, true, stalls, engi.Expired},
		{"hangs up", redis, true, hangsUp, unexpected},
		{"a line without end", redis, true, floods([]byte("+"), []byte("x")), unexpected},
		{"a huge string", redis, true, says([]byte("$2147483647\r\nx")), engi.Exhausted},
		{"a length that is none", redis, true, says([]byte("$9999999999999999999999\r\n")), unexpected},
		{"a length below zero", redis, true, says([]byte("*-5\r\n")), unexpected},
		{"a string without end", redis, true, floods([]byte("$?\r\n"), []byte(";1\r\nx\r\n")), unexpected},
		{"a huge list", redis, true, says([]byte("*2147483647\r\n")), engi.Exhausted},
		{"a list without end", redis, true, floods([]byte("*500000\r\n"), []byte("$1\r\nx\r\n")), engi.Exhausted},
		{"lists in lists", redis, true, floods(nil, []byte("*1\r\n")), unexpected},
		{"attributes without end", redis, true, floods(nil, []byte("|0\r\n")), unexpected},
		{"messages without end", redis, true, floods(nil, []byte(">1\r\n+x\r\n")), engi.Exhausted},
		{"another kind", redis, true, says([]byte("?x\r\n")), unexpected},

		{"rubbish", mongodb, false, says(rubbish), unexpected},
		{"stalls at once", mongodb, false, stalls, engi.Expired},
		{"hangs up at once", mongodb, false, hangsUp, unexpected},
		{"a huge greeting", mongodb, false, says([]byte("\xff\xff\xff\x7f"), make([]byte, 64)), unexpected},
		{"a challenge that is none", mongodb, false, says(message(1, document("\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f"))), unexpected},
		{"rubbish for an answer", mongodb, true, says(rubbish), unexpected},
		{"stalls", mongodb, true, stalls, engi.Expired},
		{"hangs up", mongodb, true, hangsUp, unexpected},
		{"a length below zero", mongodb, true, says([]byte("\xff\xff\xff\xff"), make([]byte, 64)), unexpected},
		{"half a message", mongodb, true, func(c net.Conn) { hangsUp(c); _, _ = c.Write(message(1, found(""))[:40]) }, unexpected},
		{"an answer to nothing", mongodb, true, says(message(2, found(""))), unexpected},
		{"a document that is longer", mongodb, true, says(message(1, []byte("\xff\x00\x00\x00\x00"))), unexpected},
		{"a value that is longer", mongodb, true, says(message(1, found("\x02x\x00\xff\xff\x00\x00x\x00"))), unexpected},
		{"a value below zero", mongodb, true, says(message(1, found("\x05x\x00\xff\xff\xff\xff\x00"))), unexpected},
		{"a value of no kind", mongodb, true, says(message(1, found("\x42x\x00"))), unexpected},
		{"documents in documents", mongodb, true, says(message(1, found("\x03x\x00"+string(deep)))), unexpected},
		{"a result without documents", mongodb, true, says(message(1, document("\x08ok\x00\x01"))), unexpected},
		{"results without end", mongodb, true, func(c net.Conn) {
			for {
				_, id, err := readMessage(c)
				if err == nil {
					_, err = c.Write(message(id, document("\x08ok\x00\x01\x03cursor\x00"+string(document("\x12id\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04nextBatch\x00"+string(document("")))))))
				}
				if err != nil {
					return
				}
			}
		}, engi.Expired},
	}
	t.Run("all", func(t *testing.T) { // so that all have ended when leaks are checked
		for _, x := range cases {
			t.Run(fmt.Sprintf("%s %s", x.kind, x.name), func(t *testing.T) {
				t.Parallel()
				s := hostile(x.kind, x.login, x.f)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if x.want != engi.Expired { // however long it takes
					ctx = t.Context()
				}
				var err error
				switch x.kind {
				case redis:
					_, err = s.Command(ctx, []string{"PING"})
				case mongodb:
					_, err = s.Documents(ctx, engi.DocumentQuery{Collection: "x"})
				default:
					_, err = s.Query(ctx, engi.Query{Text: "SELECT 1"})
				}
				if !engi.Is(err, x.want) {
					t.Errorf("got %v (%v), want %v", engi.KindOf(err), err, x.want)
				}
				if err != nil && strings.Contains(err.Error(), "hush") {
					t.Errorf("the password is in %v", err)
				}
			})
		}
	})
}

// TestHostileMemory uses servers that claim large sizes.
func TestHostileMemory(t *testing.T) {
	for name, s := range map[string]database.Server{
		"a row of 2 GB":        hostile(engi.ServicePostgres, true, says(pg('T', "\x00\x01"+pgColumn1), []byte("D\x7f\xff\xff\xff"))),
		"a column count of 4G": hostile(engi.ServiceMySQL, true, says(my(1, "\xfe\xff\xff\xff\xff\x00\x00\x00\x00"))),
		"a string of 2 GB":     hostile(engi.ServiceRedis, true, says([]byte("$2147483647\r\n"))),
		"a message of 16 MB":   hostile(engi.ServiceMongoDB, true, says(binary.LittleEndian.AppendUint32(nil, 16<<20), message(1, nil)[4:])),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		switch s.Type {
		case engi.ServiceRedis:
			_, _ = s.Command(t.Context(), []string{"PING"})
		case engi.ServiceMongoDB:
			_, _ = s.Documents(t.Context(), engi.DocumentQuery{Collection: "x"})
		default:
			_, _ = s.Query(t.Context(), engi.Query{Text: "SELECT 1"})
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
			t.Errorf("%s: %d MB were allocated", name, used>>20)
		}
	}
}
