package server

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/engi-dev/engi/internal/clip"
)

// greetHost is a host name to which nginx itself answers.
const greetHost = "ready.workspace.invalid"

const maxGreeting = 16 << 10 // maximum bytes of a greeting

// greetPostgres logs in; the server then sends its version.
func greetPostgres(c net.Conn, a Access) (version string, err error) {
	send := func(kind string, body []byte) error {
		_, err := c.Write(append(binary.BigEndian.AppendUint32([]byte(kind), uint32(len(body)+4)), body...))
		return err
	}
	hello := binary.BigEndian.AppendUint32(nil, 3<<16) // version 3.0 of the protocol
	for _, s := range []string{"user", a.User, "database", a.Database, ""} {
		hello = append(append(hello, s...), 0)
	}
	if err := send("", hello); err != nil {
		return "", err
	}
	r := bufio.NewReader(io.LimitReader(c, maxGreeting))
	var nonce, first string
	for {
		kind, body, err := readPostgres(r)
		if err != nil {
			return "", err
		}
		switch kind {
		case 'Z':
			_ = send("X", nil) // the server works, even if it does not receive the message
			return version, nil
		case 'S':
			if name, value, ok := bytes.Cut(body, []byte{0}); ok && string(name) == "server_version" {
				v, _, _ := strings.Cut(string(bytes.TrimRight(value, "\x00")), " ")
				version = v
			}
		case 'E':
			code, text := "", ""
			for field := range bytes.SplitSeq(body, []byte{0}) {
				switch {
				case len(field) > 1 && field[0] == 'C':
					code = string(field[1:])
				case len(field) > 1 && field[0] == 'M':
					text = string(field[1:])
				}
			}
			switch {
			case strings.HasPrefix(code, "28"), code == "3D000", code == "53300":
				return "", nil // the server works, but rejects this user or database, or has too many clients
			}
			return "", fmt.Errorf("it says %s", printable(text))
		case 'R':
			if len(body) < 4 {
				return "", fmt.Errorf("a message of type R with %d bytes", len(body))
			}
			switch how, data := binary.BigEndian.Uint32(body), string(body[4:]); how {
			case 10: // authentication mechanisms of the server; SCRAM-SHA-256 is always one
				nonce = rand.Text()
				first = "n=,r=" + nonce
				reply := append([]byte("SCRAM-SHA-256\x00"), binary.BigEndian.AppendUint32(nil, uint32(len("n,,"+first)))...)
				if err := send("p", append(reply, "n,,"+first...)); err != nil {
					return "", err
				}
			case 11:
				final, err := scram(a.Password, nonce, first, data)
				if err != nil {
					return "", err
				}
				if err := send("p", []byte(final)); err != nil {
					return "", err
				}
			case 0, 12:
			default:
				return "", fmt.Errorf("it asks for a password with the unsupported method %d", how)
			}
		}
	}
}

var errUnauthorized = errors.New("it refuses to say its version to clients that have not logged in")

// greetMongo requests the version with the command buildInfo of MongoDB's protocol, which needs
// no login. See
// https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/.
func greetMongo(c net.Conn, _ Access) (version string, err error) {
	const opMsg = 2013
	doc := []byte("\x00\x00\x00\x00\x10buildInfo\x00\x01\x00\x00\x00\x02$db\x00\x06\x00\x00\x00admin\x00\x00")
	binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
	m := make([]byte, 21, 21+len(doc)) // header, no flags, and one section with the document
	m = append(m, doc...)
	binary.LittleEndian.PutUint32(m, uint32(len(m)))
	binary.LittleEndian.PutUint32(m[4:], 1)
	binary.LittleEndian.PutUint32(m[12:], opMsg)
	if _, err := c.Write(m); err != nil {
		return "", err
	}
	var head [16]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", err
	}
	n, op := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[12:])
	if n < 26 || n > maxGreeting || op != opMsg {
		return "", fmt.Errorf("a message of kind %d with %d bytes", op, n)
	}
	body := make([]byte, n-16)
	if _, err := io.ReadFull(c, body); err != nil {
		return "", err
	}
	if bytes.Contains(body, []byte("\x10code\x00\x0d\x00\x00\x00")) {
		return "", errUnauthorized
	}
	if !bytes.Contains(body, []byte("\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f")) { // the number 1
		return "", fmt.Errorf("it refuses to say its version")
	}
	for _, name := range []string{"ferretdbVersion", "version"} {
		if _, value, ok := bytes.Cut(body, []byte("\x02"+name+"\x00")); ok && len(value) > 4 {
			text, _, _ := bytes.Cut(value[4:], []byte{0}) // after the length of the string
			return strings.TrimPrefix(string(text), "v"), nil
		}
	}
	return "", nil
}

// readPostgres reads one message.
func readPostgres(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxGreeting {
		return 0, nil, fmt.Errorf("a message of %d bytes", n)
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

// scram answers the server's first message of SCRAM-SHA-256, RFC 7677.
func scram(password, nonce, first, challenge string) (string, error) {
	var both, salt string
	rounds := 0
	for part := range strings.SplitSeq(challenge, ",") {
		switch name, value, _ := strings.Cut(part, "="); name {
		case "r":
			both = value
		case "s":
			salt = value
		case "i":
			rounds, _ = strconv.Atoi(value)
		}
	}
	raw, err := base64.StdEncoding.DecodeString(salt)
	if err != nil || nonce == "" || !strings.HasPrefix(both, nonce) || rounds < 1 || rounds > 100_000 {
		return "", fmt.Errorf("its challenge cannot be answered")
	}
	salted, err := pbkdf2.Key(sha256.New, password, raw, rounds, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	key := mac(salted, "Client Key")
	stored := sha256.Sum256(key)
	final := "c=biws,r=" + both
	proof := mac(stored[:], first+","+challenge+","+final)
	subtle.XORBytes(proof, proof, key)
	return final + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// greetMySQL reads the greeting, which contains the version.
func greetMySQL(c net.Conn, _ Access) (string, error) {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if n < 2 || n > maxGreeting {
		return "", fmt.Errorf("a packet of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return "", err
	}
	version, _, ok := bytes.Cut(body[1:], []byte{0})
	if body[0] != 10 || !ok {
		if body[0] == 0xff && n > 3 {
			if binary.LittleEndian.Uint16(body[1:]) == 1040 {
				return "", nil // the server has too many clients
			}
			return "", fmt.Errorf("it says %s", printable(string(body[3:])))
		}
		return "", fmt.Errorf("a packet of type %#x", body[0])
	}
	// MariaDB puts 5.5.5 in front of its version for old clients.
	v, _, _ := strings.Cut(strings.TrimPrefix(string(version), "5.5.5-"), "-")
	return v, nil
}

// greetRedis logs in and requests information about the server. A server that still loads its data
// answers with an error.
func greetRedis(c net.Conn, a Access) (string, error) {
	if _, err := fmt.Fprintf(c, "*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n", len(a.Password), a.Password); err != nil {
		return "", err
	}
	r := bufio.NewReader(io.LimitReader(c, maxGreeting))
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		line = strings.TrimRight(line, "\r\n")
		switch version, ok := strings.CutPrefix(line, "redis_version:"); {
		case ok:
			return version, nil
		case strings.HasPrefix(line, "-WRONGPASS"), strings.HasPrefix(line, "-NOAUTH"), strings.HasPrefix(line, "-NOPERM"),
			strings.HasPrefix(line, "-ERR max number of clients"), strings.HasPrefix(line, "-ERR AUTH"):
			return "", nil // the server works, but rejects this user, or has too many clients
		case strings.HasPrefix(line, "-"):
			return "", fmt.Errorf("it says %s", printable(line[1:]))
		}
	}
}

// greetNginx requests a page that nginx itself generates.
func greetNginx(c net.Conn, _ Access) (string, error) {
	r, err := http.NewRequest(http.MethodHead, "http://"+greetHost+"/", nil)
	if err != nil {
		return "", err
	}
	r.Close = true
	if err := r.Write(c); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, maxGreeting)), r)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return "", fmt.Errorf("it answers with %s", printable(resp.Status))
	}
	return strings.TrimPrefix(resp.Header.Get("Server"), "nginx/"), nil
}

// printable shortens a text of a server and removes characters that cannot be printed.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, clip.Bytes(s, 200)))
}
