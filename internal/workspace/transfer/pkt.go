// Package transfer has git's own programs clone, fetch and push the history of a workspace: it
// speaks version 0 of git's protocol, the stateless form, as gitprotocol-pack(5) and
// gitprotocol-http(5) have it.
//
// It is not a server of HTTP, and knows nothing of who may read what.
package transfer

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/engi-dev/engi/internal/engi"
)

// maxPacket is how many bytes a packet may have, its length included.
const maxPacket = 65520

// A packets reads packets of what a client has sent.
type packets struct {
	r   io.Reader
	buf [maxPacket]byte
}

// next returns a packet without the line end that it may have; flush is true for the
// one that ends a list. It returns io.EOF at the end, and Invalid for what is no packet.
// The bytes are good until the next call.
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

// cut says why a packet is not whole: also what is compressed may be broken.
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

// A band writes what it is given in packets of one channel among several.
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
