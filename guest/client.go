// Package guest is the host's side of a sandbox: a Client speaks to the guest
// program over streams that a machine opens and implements [engi.Guest]; it
// also runs programs with warm interpreters, collects artifacts and quiesces
// the guest before a checkpoint. Package guest/wire is the protocol,
// guest/guestd the program inside.
//
// It is not for starting machines (package provider) nor for deciding what
// runs where (package fleet). Everything a guest says is taken as hostile.
package guest

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

var errSkeleton = engi.Errorf(engi.Unsupported, "this act is not there yet")

// A Client speaks to one guest. It is safe for concurrent use.
type Client struct{ hello wire.Hello }

var _ engi.Guest = (*Client)(nil)
var _ engi.Process = (*Run)(nil)

// Open speaks to a guest over streams that dial opens, checks token and
// version, and returns once the guest said hello. The client owns its
// connections; Close it.
func Open(ctx context.Context, dial func(context.Context) (net.Conn, error), token string) (*Client, error) {
	return nil, errSkeleton
}

// Close closes the connections. Runs and processes inside go on.
func (c *Client) Close() error { return nil }

// Hello returns what the guest said of itself.
func (c *Client) Hello() wire.Hello { return c.hello }

// Setup says who programs run as; call it once per sandbox before all else.
func (c *Client) Setup(ctx context.Context, s wire.Setup) error { return errSkeleton }

// Prepare starts an interpreter and returns once it waits for code.
func (c *Client) Prepare(ctx context.Context, p wire.Prepare) error { return errSkeleton }

// Run starts a program. It goes on when ctx ends.
func (c *Client) Run(ctx context.Context, r wire.Run) (*Run, error) { return nil, errSkeleton }

// Reattach finds a run again after the connection or the daemon died.
func (c *Client) Reattach(ctx context.Context, id string) (*Run, error) { return nil, errSkeleton }

// Usage reports what the sandbox uses.
func (c *Client) Usage(ctx context.Context) (engi.Usage, error) { return engi.Usage{}, errSkeleton }

// Quiesce makes the guest close all its connections, so that its machine can
// be saved. The client is of no more use; open another after the restore.
func (c *Client) Quiesce(ctx context.Context) error { return errSkeleton }

// PowerOff ends the guest program and with it the machine.
func (c *Client) PowerOff(ctx context.Context) error { return errSkeleton }

// A Run is one program in the guest. It is an [engi.Process].
type Run struct{}

// Finish returns how the run ended, once it has. It may be called before,
// during and after Output, and many times.
func (r *Run) Finish(ctx context.Context) (wire.Finish, error) { return wire.Finish{}, errSkeleton }

// Artifacts returns the files of Finish's manifest as a tar stream, in its
// order. The caller closes it.
func (r *Run) Artifacts(ctx context.Context) (io.ReadCloser, error) { return nil, errSkeleton }

func (r *Run) ID() string { return "" }
func (r *Run) PID() int   { return 0 }
func (r *Run) Output(ctx context.Context, from int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) { yield(engi.Chunk{}, errSkeleton) }
}
func (r *Run) Input(ctx context.Context, data []byte) error             { return errSkeleton }
func (r *Run) CloseInput(ctx context.Context) error                     { return errSkeleton }
func (r *Run) Signal(ctx context.Context, name string) error            { return errSkeleton }
func (r *Run) Resize(ctx context.Context, size engi.TerminalSize) error { return errSkeleton }
func (r *Run) Wait(ctx context.Context) (engi.Exit, error)              { return engi.Exit{}, errSkeleton }
func (c *Client) Start(ctx context.Context, cmd engi.Command) (engi.Process, error) {
	return nil, errSkeleton
}
func (c *Client) Attach(ctx context.Context, idOrTag string) (engi.Process, error) {
	return nil, errSkeleton
}
func (c *Client) Processes(ctx context.Context) ([]engi.ProcessInfo, error) { return nil, errSkeleton }
func (c *Client) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	return nil, errSkeleton
}
func (c *Client) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	return errSkeleton
}
func (c *Client) Stat(ctx context.Context, path string) (engi.FileInfo, error) {
	return engi.FileInfo{Mode: fs.ModeDir}, errSkeleton
}
func (c *Client) List(ctx context.Context, dir string, depth int) ([]engi.FileInfo, error) {
	return nil, errSkeleton
}
func (c *Client) MakeDir(ctx context.Context, path string) error  { return errSkeleton }
func (c *Client) Move(ctx context.Context, from, to string) error { return errSkeleton }
func (c *Client) Remove(ctx context.Context, path string) error   { return errSkeleton }
func (c *Client) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[engi.FileChange, error] {
	return func(yield func(engi.FileChange, error) bool) { yield(engi.FileChange{}, errSkeleton) }
}
func (c *Client) Pack(ctx context.Context, path string) (io.ReadCloser, error) {
	return nil, errSkeleton
}
func (c *Client) Unpack(ctx context.Context, dir string, r io.Reader) error { return errSkeleton }
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error)      { return nil, errSkeleton }
