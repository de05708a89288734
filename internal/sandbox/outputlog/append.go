package outputlog

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
)

// Continue opens the log in the file at path for appending; the log is empty if
// there is no file. All its frames are in the file from the beginning, so that
// appended output outlives the process; a frame that a crash cut short is dropped.
func Continue(path string) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fileFault("make", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fileFault("open", err)
	}
	t := &Log{path: path, file: f, changed: make(chan struct{}), refs: 1}
	if err := t.scan(); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// scan finds the end of the last complete frame and truncates the file there.
func (t *Log) scan() error {
	r := bufio.NewReaderSize(t.file, maxFrame)
	for {
		head, err := binary.ReadUvarint(r)
		if err == nil && head>>1 > maxData {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			_, err = r.Discard(int(head >> 1))
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return engi.Errorf(engi.Internal, "read output: %v", err)
		}
		if t.size >= int64(len(t.marks)+1)*markEvery {
			t.marks = append(t.marks, mark{t.total, t.size})
		}
		t.size += int64(len(binary.AppendUvarint(nil, head))) + int64(head>>1)
		t.total += int64(head >> 1)
	}
	if err := t.file.Truncate(t.size); err != nil {
		return fileFault("mend", err)
	}
	return nil
}
