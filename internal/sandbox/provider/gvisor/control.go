package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// Methods of the control server in the sandbox's kernel.
const (
	methodPause      = "containerManager.Pause"
	methodResume     = "containerManager.Resume"
	methodCheckpoint = "containerManager.Checkpoint"
	methodSaveDisk   = "containerManager.FSSave"
	methodMemory     = "containerManager.SetTotalMemory"
)

// maxReply is the maximum size of an answer, in bytes.
const maxReply = 1 << 20

// call calls a method of the sandbox's kernel. A command of runsc would have the
// same effect, but starting it takes as long as the call itself. When ctx ends first, the
// kernel completes the call anyway.
func (m *machine) call(ctx context.Context, method string, arg any, files ...*os.File) (err error) {
	conn, err := m.d.dialControl(m.id)
	if err != nil {
		return m.callError(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	raw, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := conn.WriteMsgUnix(raw, rights, nil)
	if err == nil && n < len(raw) {
		_, err = conn.Write(raw[n:])
	}
	var reply struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	if err == nil {
		err = json.NewDecoder(io.LimitReader(conn, maxReply)).Decode(&reply)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return engi.Errorf(engi.Expired, "%v", ctx.Err())
	case err != nil:
		return m.callError(err)
	case !reply.Success && strings.Contains(reply.Err, unix.ENOSPC.Error()):
		return engi.Errorf(engi.Exhausted, "the host's disk is full").WithRemedy("free space where engi keeps its data")
	case !reply.Success && reply.Err == "unknown method":
		return engi.Errorf(engi.Unsupported, "the sandbox's kernel has an earlier version")
	case !reply.Success:
		return engi.Errorf(engi.Internal, "the sandbox's kernel: %.500s", reply.Err)
	}
	return nil
}

// callError returns the error for a call that was not answered.
func (m *machine) callError(err error) error {
	// The connection breaks when the machine ends; done is closed a little later.
	select {
	case <-m.done:
	case <-time.After(time.Second):
		if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNREFUSED) {
			return engi.Errorf(engi.Internal, "call the sandbox's kernel: %v", err)
		}
	}
	return errEnded()
}

func (d machineDir) dialControl(id engi.SandboxID) (*net.UnixConn, error) {
	dir, err := os.OpenFile(d.path("root"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := fmt.Sprintf("/proc/self/fd/%d/runsc-%s.sock", dir.Fd(), id) // short enough for a socket
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
}
