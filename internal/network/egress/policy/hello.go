package policy

import (
	"bytes"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A Protocol is the protocol that the first bytes of a connection indicate.
type Protocol uint8

const (
	Undecided Protocol = iota // more bytes are needed
	TLS
	HTTP  // HTTP, any text that a lenient server could take for HTTP, and plain HTTP/2, which HTTPHost refuses
	Other // any other protocol
)

// Sniff returns the protocol that the first bytes from a client indicate. It recognizes TLS by
// two bytes and most other protocols by a few. HTTP requires the whole first line,
// because other protocols also begin with a word and a space. The result is never
// Undecided for 16 KiB or more.
func Sniff(b []byte) Protocol {
	if len(b) == 0 {
		return Undecided
	}
	if b[0] == recordHandshake {
		switch {
		case len(b) == 1:
			return Undecided
		case b[1] == 3:
			return TLS
		default:
			return Other
		}
	}
	// Text that lenient servers take for a request counts as HTTP, and HTTPHost then
	// refuses it: empty lines before it, blanks other than spaces, no version.
	line := bytes.TrimLeft(b, blanks)
	word := 0
	for word < len(line) && tokenByte(line[word]) {
		word++
	}
	if word < len(line) && (word == 0 || strings.IndexByte(blanks, line[word]) < 0) {
		return Other
	}
	end := bytes.IndexByte(line, '\n')
	first := line
	if end >= 0 {
		first = line[:end]
	}
	if bytes.ContainsFunc(first, func(c rune) bool { return c < ' ' && !strings.ContainsRune(blanks, c) }) {
		return Other
	}
	switch {
	case end < 0 && len(b) >= maxLine:
		return HTTP
	case end < 0:
		return Undecided
	}
	words := bytes.Fields(first)
	if len(words) < 2 {
		return Other
	}
	method, target, last := words[0], bytes.ToLower(words[1]), bytes.ToUpper(words[len(words)-1])
	switch {
	case bytes.HasPrefix(last, []byte("HTTP/")):
		return HTTP
	case bytes.Equal(method, bytes.ToUpper(method)) && (target[0] == '/' || bytes.HasPrefix(target, []byte("http:")) || bytes.HasPrefix(target, []byte("https:"))):
		return HTTP
	}
	return Other
}

// maxLine is the maximum length of the first line inspected, in bytes. A longer one is not HTTP.
const maxLine = 16 << 10

// blanks lists the characters that lenient servers skip.
const blanks = " \t\r\n\v\f"

// Bounds of the data that a client may send before it has named a host.
const (
	MaxHello = 32 << 10 // bytes; maximum size of the TLS records that hold a ClientHello
	MaxHead  = 64 << 10 // bytes; maximum size of an HTTP request's head
)

// A Hello is the unencrypted content of a TLS ClientHello.
type Hello struct {
	ServerName string   // canonical name in the form of [CheckName]; empty if there is none
	ALPN       []string // application protocols, in the client's order
	ECH        bool     // the Hello has an encrypted part, which may hold the actual name
}

const (
	recordHandshake = 22
	maxRecord       = 1 << 14
	maxRecords      = 64 // maximum number of TLS records; real clients use one, some two
	typeClientHello = 1

	extServerName = 0
	extALPN       = 16
)

// echExtensions lists the extensions that carry an encrypted ClientHello or server name: the standard one
// and drafts that were in use.
var echExtensions = map[uint16]bool{
	0xfe0d: true, 0xfe0c: true, 0xfe0b: true, 0xfe0a: true, 0xfe09: true, 0xfe08: true,
	0xff03: true, 0xff02: true, 0xffce: true,
}

// ClientHello parses the ClientHello at the start of b, which may be spread over
// several records. If b is too short, need is the minimum length for another attempt
// and err is nil. An error means that the ClientHello is malformed or names an invalid
// host; then b must not be passed on.
func ClientHello(b []byte) (h Hello, need int, err error) {
	body, need, problem := joinRecords(b)
	if problem == "" && need == 0 {
		h, problem = parseHello(body)
	}
	if problem != "" {
		return Hello{}, 0, engi.Errorf(engi.Invalid, "read the client's TLS hello: %s", problem)
	}
	return h, need, nil
}

// joinRecords returns the body of the ClientHello in a series of TLS records.
func joinRecords(b []byte) (body []byte, need int, problem string) {
	var msg []byte
	for at, records := 0, 0; ; records++ {
		if records == maxRecords {
			return nil, 0, "it is in too many pieces"
		}
		rest := b[at:]
		switch {
		case len(rest) > 0 && rest[0] != recordHandshake:
			return nil, 0, "a record is no handshake"
		case len(rest) > 1 && rest[1] != 3:
			return nil, 0, "a record has an unknown version"
		case len(rest) < 5:
			return nil, at + 5, ""
		}
		n := int(rest[3])<<8 | int(rest[4])
		switch {
		case n == 0:
			return nil, 0, "a record is empty"
		case n > maxRecord:
			return nil, 0, "a record is too long"
		case at+5+n > MaxHello:
			return nil, 0, "it is too long"
		case len(rest) < 5+n:
			return nil, at + 5 + n, ""
		}
		msg = append(msg, rest[5:5+n]...)
		at += 5 + n
		if msg[0] != typeClientHello {
			return nil, 0, "the first message is another one"
		}
		if len(msg) < 4 {
			continue
		}
		switch size := 4 + (int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])); {
		case size > MaxHello:
			return nil, 0, "it is too long"
		case len(msg) > size:
			return nil, 0, "something follows it in its record"
		case len(msg) == size:
			return msg[4:], 0, ""
		}
	}
}

// A reader reads length-prefixed parts. After a failure, all its results are
// empty and ok is false.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) take(n int) []byte {
	if !r.ok || n > len(r.b) {
		r.ok = false
		r.b = nil
		return nil
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) number(size int) int {
	n := 0
	for _, b := range r.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

// part reads a vector whose length takes size bytes.
func (r *reader) part(size int) reader {
	return reader{r.take(r.number(size)), r.ok}
}

func parseHello(body []byte) (h Hello, problem string) {
	const cut = "it is cut short or malformed"
	r := &reader{body, true}
	r.take(2 + 32) // skips version and random
	session := r.part(1)
	suites := r.part(2)
	methods := r.part(1)
	if !r.ok || len(session.b) > 32 || len(suites.b) == 0 || len(suites.b)%2 != 0 || len(methods.b) == 0 {
		return Hello{}, cut
	}
	if len(r.b) == 0 {
		return h, "" // old clients send no extensions
	}
	all := r.part(2)
	if !r.ok || len(r.b) != 0 {
		return Hello{}, cut
	}
	seen := map[int]bool{}
	for len(all.b) > 0 {
		kind := all.number(2)
		ext := all.part(2)
		if !all.ok {
			return Hello{}, cut
		}
		if seen[kind] {
			return Hello{}, "it has an extension twice"
		}
		seen[kind] = true
		switch {
		case kind == extServerName:
			if h.ServerName, problem = parseServerName(ext); problem != "" {
				return Hello{}, problem
			}
		case kind == extALPN:
			if h.ALPN, problem = parseALPN(ext); problem != "" {
				return Hello{}, problem
			}
		case echExtensions[uint16(kind)]:
			h.ECH = true
		}
	}
	return h, ""
}

func parseServerName(ext reader) (name, problem string) {
	list := ext.part(2)
	kind := list.number(1)
	host := list.part(2)
	if !list.ok || len(ext.b) != 0 || len(list.b) != 0 || kind != 0 {
		return "", "its server name is malformed"
	}
	// Refuse a name with a dot at the end: server names have none, and servers treat
	// it differently.
	if n := len(host.b); n == 0 || host.b[n-1] == '.' {
		return "", "its server name is malformed"
	}
	name, problem = canonical(string(host.b))
	if problem != "" {
		return "", "its server name " + problem
	}
	return name, ""
}

func parseALPN(ext reader) (protocols []string, problem string) {
	const malformed = "its list of protocols is malformed"
	list := ext.part(2)
	if !list.ok || len(ext.b) != 0 || len(list.b) == 0 {
		return nil, malformed
	}
	for len(list.b) > 0 {
		p := list.part(1)
		if !list.ok || len(p.b) == 0 {
			return nil, malformed
		}
		protocols = append(protocols, string(p.b))
	}
	return protocols, ""
}
