package policy

// A Protocol is what the first bytes of a connection look like.
type Protocol uint8

const (
	Undecided Protocol = iota // more bytes are needed
	TLS
	HTTP  // HTTP/1.x; cleartext HTTP/2 is Other
	Other // anything else
)

// Sniff says what the first bytes a client sent look like. At most 32 bytes
// are needed for a decision.
func Sniff(b []byte) Protocol { return Other }

// Bounds of what a client may send before it has said whom it wants to talk to.
const (
	MaxHello = 32 << 10 // bytes of TLS records that hold a ClientHello
	MaxHead  = 64 << 10 // bytes of an HTTP request's head
)

// A Hello is what a TLS ClientHello says in the clear.
type Hello struct {
	ServerName string   // canonical, as [CheckName] returns it; empty if there is none
	ALPN       []string // application protocols, in the client's order
	ECH        bool     // the real name may be in an encrypted part
}

// ClientHello reads the ClientHello at the start of b, which may be spread
// over several records. If b ends too early, need is the least total length to
// try again with, and err is nil. An error means that it is not a proper
// ClientHello or names an improper host; b must never reach the server then.
func ClientHello(b []byte) (h Hello, need int, err error) { return Hello{}, 0, nil }

// A Request is what the head of an HTTP/1 request says about its target.
type Request struct {
	Method string
	Host   string // canonical name, or an address; empty only for HTTP/1.0 without Host
	Port   uint16 // 0 if the request names none
}

// HTTPHost reads the head of the HTTP/1 request at the start of b. Need and
// err are those of [ClientHello]. Whatever two readers could understand
// differently is an error: two Host fields, a Host that differs from an
// absolute target, folded lines, spaces before a colon, user information,
// bare line feeds or carriage returns, NULs.
func HTTPHost(b []byte) (r Request, need int, err error) { return Request{}, 0, nil }
