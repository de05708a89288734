package client

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
)

// lines yields the JSON values of a stream, one in each line. When nothing
// comes for too long, it calls giveUp, which must end r.
func lines[T any](r io.Reader, giveUp func()) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		timer := time.AfterFunc(silence, giveUp)
		defer timer.Stop()
		buf := bufio.NewReaderSize(r, 64<<10)
		for {
			var v T
			line, err := readLine(buf)
			if err == io.EOF && len(line) == 0 {
				return
			}
			if err == nil {
				if len(line) == 0 {
					continue
				}
				err = json.Unmarshal(line, &v)
			} else if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if !yield(v, err) || err != nil {
				return
			}
			timer.Reset(silence)
		}
	}
}

// readLine returns the next line without its end. It bounds how long a line
// may be, since it must be held whole.
func readLine(buf *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := buf.ReadSlice('\n')
		if err == nil && len(line) == 0 {
			return part[:len(part)-1], nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err != bufio.ErrBufferFull:
			return line, err
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("an event is larger than %s", v1.Bytes(maxAnswer))
		}
	}
}

// text returns data as an event has it.
func text(data []byte) (string, []byte) {
	if utf8.Valid(data) {
		return string(data), nil
	}
	return "", data
}
