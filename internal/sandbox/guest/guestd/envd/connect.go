package envd

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Constants of the Connect protocol with the JSON codec. A message of a stream has one byte of
// flags, four of length, and JSON. The last message of an answer has the end
// flag.
const (
	flagCompressed = 1
	flagEnd        = 2

	// maxMessage bounds a message, in bytes. Input arrives as base64.
	maxMessage = 4 << 20
)

// codes maps kinds of errors to Connect's codes and their HTTP status.
var codes = map[engi.Kind]struct {
	name   string
	status int
}{
	engi.Internal:    {"internal", 500},
	engi.Invalid:     {"invalid_argument", 400},
	engi.NotFound:    {"not_found", 404},
	engi.Conflict:    {"already_exists", 409},
	engi.Denied:      {"permission_denied", 403},
	engi.Anonymous:   {"unauthenticated", 401},
	engi.Exhausted:   {"resource_exhausted", 429},
	engi.Unavailable: {"unavailable", 503},
	engi.Unsupported: {"unimplemented", 501},
	engi.Expired:     {"deadline_exceeded", 504},
}

type connectError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// unary handles a method with one message each way.
func unary[In any](f func(r *http.Request, in *In) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		b, err := io.ReadAll(io.LimitReader(r.Body, maxMessage+1))
		switch {
		case err != nil:
			err = engi.Errorf(engi.Unavailable, "read request: %v", err)
		case len(b) > maxMessage:
			err = engi.Errorf(engi.Exhausted, "the message is larger than %d bytes", maxMessage)
		case len(b) > 0:
			err = parse(b, &in)
		}
		var out any
		if err == nil {
			out, err = f(r, &in)
		}
		if err == nil {
			if err = wire.WriteJSON(w, out); err == nil {
				return
			}
		}
		code := codes[engi.KindOf(err)]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code.status)
		json.NewEncoder(w).Encode(connectError{code.name, err.Error()}) // fails if the client has disconnected
	}
}

func parse(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return engi.Errorf(engi.Invalid, "the message is not valid: %v", err)
	}
	return nil
}

// streamWriter writes messages of a stream. It is not safe for concurrent use.
type streamWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf []byte
}

func (s *streamWriter) frame(flags byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode message: %v", err)
	}
	s.buf = append(s.buf[:0], flags, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(s.buf[1:], uint32(len(b)))
	s.buf = append(s.buf, b...)
	if _, err := s.w.Write(s.buf); err != nil {
		return engi.Errorf(engi.Unavailable, "the client left: %v", err)
	}
	return nil
}

// send writes a message and flushes it.
func (s *streamWriter) send(v any) error {
	if err := s.frame(0, v); err != nil {
		return err
	}
	if err := s.rc.Flush(); err != nil {
		return engi.Errorf(engi.Unavailable, "the client left: %v", err)
	}
	return nil
}

// stream handles a method whose answer is a stream. f has a deadline if the
// client set one.
func stream[In any](f func(r *http.Request, in *In, out *streamWriter, deadline time.Duration) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/connect+json")
		out := &streamWriter{w: w, rc: http.NewResponseController(w)}
		var in In
		b, err := readMessage(r.Body)
		if err == nil {
			err = parse(b, &in)
		}
		if err == nil {
			err = f(r, &in, out, timeoutOf(r))
		}
		end := map[string]any{}
		if err != nil {
			end["error"] = connectError{codes[engi.KindOf(err)].name, err.Error()}
		}
		out.frame(flagEnd, end) // fails if the client has disconnected
	}
}

// timeoutOf returns the timeout in a request's header; 0 means none.
func timeoutOf(r *http.Request) time.Duration {
	ms, err := strconv.ParseInt(r.Header.Get("Connect-Timeout-Ms"), 10, 64)
	if err != nil || ms <= 0 || ms > int64(1<<62/time.Millisecond) {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// readMessage reads one message of a stream. At a clean end it returns io.EOF
// unwrapped.
func readMessage(r io.Reader) ([]byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if err == io.EOF {
			return nil, io.EOF
		}
		return nil, engi.Errorf(engi.Invalid, "read message: %v", err)
	}
	if header[0]&flagCompressed != 0 {
		return nil, engi.Errorf(engi.Unsupported, "read message: it is compressed")
	}
	n := binary.BigEndian.Uint32(header[1:])
	if n > maxMessage {
		return nil, engi.Errorf(engi.Exhausted, "read message: %d bytes are more than %d", n, maxMessage)
	}
	// The buffer grows with the received bytes, not with the announced length.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil || len(b) < int(n) {
		return nil, engi.Errorf(engi.Invalid, "read message: %d of %d bytes: %v", len(b), n, err)
	}
	return b, nil
}

// keepalive returns the interval of messages on an idle stream.
func keepalive(r *http.Request) time.Duration {
	s, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || s <= 0 || s > 3600 {
		return 90 * time.Second
	}
	return time.Duration(s) * time.Second
}
