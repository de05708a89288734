package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"

	"github.com/engi-dev/engi/internal/engi"
)

// A Kind is the kind of a frame.
type Kind byte

const (
	Head     Kind = 'H' // JSON: the first frame of a request
	Data     Kind = 'D' // bytes of files and input, in the order of the head
	End      Kind = 'E' // empty: the last frame of a request
	Started  Kind = 'S' // JSON Start: the first frame of an answer
	Stdout   Kind = '1' // bytes of output
	Stderr   Kind = '2'
	Terminal Kind = 'T'
	Exited   Kind = 'X' // JSON Finish: the last frame of an answer
	Failure  Kind = '!' // JSON Error: the last frame of an answer that failed
	Change   Kind = 'C' // JSON FileChange
	Alive    Kind = 'K' // empty: sent after a time without other frames
)

// Bounds of frames. A longer frame ends the stream.
const (
	MaxData = 256 << 10 // bytes; maximum payload of Data, Stdout, Stderr and Terminal
	MaxJSON = 8 << 20   // bytes; maximum payload of all other kinds

	headerSize = 5
)

func (k Kind) max() int {
	switch k {
	case Data, Stdout, Stderr, Terminal:
		return MaxData
	case Head, Started, Exited, Failure, Change:
		return MaxJSON
	}
	return 0
}

func (k Kind) known() bool { return k.max() > 0 || k == End || k == Alive }

// StreamKind returns the frame kind for output of s.
func StreamKind(s engi.Stream) Kind {
	switch s {
	case engi.Stderr:
		return Stderr
	case engi.Terminal:
		return Terminal
	}
	return Stdout
}

// Stream returns the stream that an output frame belongs to; ok is false for
// other frames.
func (k Kind) Stream() (s engi.Stream, ok bool) {
	switch k {
	case Stdout:
		return engi.Stdout, true
	case Stderr:
		return engi.Stderr, true
	case Terminal:
		return engi.Terminal, true
	}
	return "", false
}

// AppendFrame appends a frame to b. The caller keeps the payload within bounds.
func AppendFrame(b []byte, k Kind, payload []byte) []byte {
	b = append(b, byte(k), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[len(b)-4:], uint32(len(payload)))
	return append(b, payload...)
}

// AppendJSON appends a frame with the JSON form of v.
func AppendJSON(b []byte, k Kind, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return b, engi.Errorf(engi.Internal, "encode frame %q: %v", k, err)
	}
	if len(payload) > k.max() {
		return b, engi.Errorf(engi.Invalid, "frame %q of %d bytes is over %d", k, len(payload), k.max())
	}
	return AppendFrame(b, k, payload), nil
}

// AppendData appends data in as many frames of kind k as needed.
func AppendData(b []byte, k Kind, data []byte) []byte {
	for len(data) > 0 {
		n := min(len(data), MaxData)
		b = AppendFrame(b, k, data[:n])
		data = data[n:]
	}
	return b
}

// A Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next frame; its payload is valid until the following call.
// At a clean end between frames it returns io.EOF unwrapped. Other errors are
// Invalid for a malformed frame and Unavailable for a stream that broke.
func (r *Reader) Next() (Kind, []byte, error) {
	header, err := r.r.Peek(headerSize)
	if err != nil {
		if err == io.EOF && len(header) == 0 {
			return 0, nil, io.EOF
		}
		return 0, nil, engi.Errorf(engi.Unavailable, "read frame: %v", unexpectedEOF(err))
	}
	k := Kind(header[0])
	n := int64(binary.BigEndian.Uint32(header[1:]))
	if !k.known() {
		return 0, nil, engi.Errorf(engi.Invalid, "read frame: unknown kind %q", byte(k))
	}
	if n > int64(k.max()) {
		return 0, nil, engi.Errorf(engi.Invalid, "read frame %q: %d bytes is over %d", byte(k), n, k.max())
	}
	if _, err := r.r.Discard(headerSize); err != nil {
		return 0, nil, engi.Errorf(engi.Unavailable, "read frame: %v", err)
	}
	// The buffer grows with the received bytes, not with the announced length.
	r.buf = r.buf[:0]
	for int64(len(r.buf)) < n {
		step := int(min(n-int64(len(r.buf)), 64<<10))
		r.buf = append(r.buf, make([]byte, step)...)
		if _, err := io.ReadFull(r.r, r.buf[len(r.buf)-step:]); err != nil {
			return 0, nil, engi.Errorf(engi.Unavailable, "read frame: %v", unexpectedEOF(err))
		}
	}
	payload := r.buf
	if cap(r.buf) > 1<<20 { // free the memory of a rare large frame
		r.buf = nil
	}
	return k, payload, nil
}

// JSON decodes the next frame, which must be of kind k, into v. A Failure frame
// is returned as the error that it carries.
func (r *Reader) JSON(k Kind, v any) error {
	got, payload, err := r.Next()
	switch {
	case err == io.EOF:
		return engi.Errorf(engi.Unavailable, "the stream ended before frame %q", byte(k))
	case err != nil:
		return err
	case got == Failure:
		return DecodeError(payload)
	case got != k:
		return engi.Errorf(engi.Invalid, "got frame %q, want %q", byte(got), byte(k))
	}
	return Decode(payload, v)
}

// Decode parses JSON from the other side.
func Decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return engi.Errorf(engi.Invalid, "bad message: %v", err)
	}
	return nil
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Error is the JSON form of an error.
type Error struct {
	Kind   string `json:"kind"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// EncodeError returns the JSON form of err.
func EncodeError(err error) []byte {
	e := Error{Kind: engi.KindOf(err).String(), Text: err.Error()}
	if remedy := engi.RemedyOf(err); remedy != engi.RemedyOf(engi.Errorf(engi.KindOf(err), "")) {
		e.Remedy = remedy
	}
	const most = 64 << 10
	if len(e.Text) > most {
		e.Text = e.Text[:most]
	}
	b, jerr := json.Marshal(e)
	if jerr != nil {
		return []byte(`{"kind":"internal","text":"an error that cannot be encoded"}`) // unreachable: strings always encode
	}
	return b
}

// DecodeError returns the error in payload.
func DecodeError(payload []byte) error {
	var e Error
	if err := Decode(payload, &e); err != nil {
		return err
	}
	err := engi.Errorf(engi.ParseKind(e.Kind), "%s", e.Text)
	if e.Remedy != "" {
		return err.WithRemedy("%s", e.Remedy)
	}
	return err
}
