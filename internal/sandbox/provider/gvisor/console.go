package gvisor

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// consoleSize is the maximum output of a machine's runtime and guest, in bytes.
const consoleSize = 32 << 10

// A console receives the output of runsc and the guest program. It is a memory file of a
// fixed size that a guest cannot make grow: when it is full, writes fail. The
// machine's processes keep it when this process exits.
type console struct {
	file *os.File
}

func newConsole() (*console, error) {
	fd, err := unix.MemfdCreate("engi console", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	c := &console{file: os.NewFile(uintptr(fd), "console")}
	if err := c.file.Truncate(consoleSize); err != nil {
		c.close()
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// String returns the last 4 KiB of the output.
func (c *console) String() string {
	if c == nil {
		return ""
	}
	buf := make([]byte, consoleSize)
	n, err := c.file.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return ""
	}
	text := bytes.TrimRight(buf[:n], "\x00")
	return string(text[max(0, len(text)-4<<10):])
}

func (c *console) close() {
	if c != nil {
		c.file.Close()
	}
}
