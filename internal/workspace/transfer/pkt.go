// Package transfer serves the history of a workspace to git clone, fetch and push: it
// implements version 0 of git's protocol in the stateless form, see gitprotocol-pack(5) and
// gitprotocol-http(5).
//
// It is not an HTTP server, and does not check permissions.
package transfer

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/engi-dev/engi/internal/engi"
)

// maxPacket is the maximum size of a packet in bytes, including its length.
const maxPacket = 65520

// A packets reads the packets of a client.
type packets struct {
	r   io.Reader
	buf [maxPacket]byte
}

// next returns a packet without its line end; flush is true for the packet
// that ends a list. It returns io.EOF at the end, and Invalid for a malformed packet.
// The bytes are valid until the next call.
func (p *packets) next() (line []byte, flush bool, err error) {
	head := p.buf[:4]
	if _, err := io.ReadFull(p.r, head); err == io.EOF {
		return nil, false, err
	} else if err != nil {
		return nil, false, cut(err)
	}
	n, err := strconv.ParseUint(string(head), 16, 16)
	switch {
	case err != nil || n == 1 || n == 2 || n == 3 || n > maxPacket:
		return nil, false, broken("%q is no length of a packet", head)
	case n == 0:
		return nil, true, nil
	}
	line = p.buf[4:n]
	if _, err := io.ReadFull(p.r, line); err != nil {
		return nil, false, cut(err)
	}
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	return line, false, nil
}

// cut returns the error for an incomplete packet; compressed requests may also be corrupt.
func cut(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return broken("it ends in the middle of a packet")
	}
	return broken("%v", err)
}

func broken(format string, a ...any) error {
	return engi.Errorf(engi.Invalid, "the request is not git's: "+format, a...).WithRemedy("use a git of 2.11 or later")
}

// write writes a packet.
func write(w io.Writer, format string, a ...any) error {
	line := fmt.Sprintf(format, a...)
	_, err := fmt.Fprintf(w, "%04x%s", len(line)+4, line)
	return err
}

func flush(w io.Writer) error {
	_, err := io.WriteString(w, "0000")
	return err
}

// A band writes packets of one of several channels.
type band struct {
	w io.Writer
	n byte
}

func (b band) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), maxPacket-5)]
		if _, err := fmt.Fprintf(b.w, "%04x%c", len(part)+5, b.n); err != nil {
			return n, err
		}
		if _, err := b.w.Write(part); err != nil {
			return n, err
		}
		p = p[len(part):]
		n += len(part)
	}
	return n, nil
}
