package guest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A Run is a program in the guest, with its limits. It is an [engi.Process]
// whose Output, Wait and Finish can be called in any order, any number of times.
type Run struct {
	*process
	maxArtifactBytes int64 // bytes; maximum size of all artifacts together
	maxArtifacts     int
}

// Run starts a program, which continues after ctx ends. It reports Invalid for
// a run that can never start, and Conflict for an ID in use. After
// Unavailable the run may or may not have started: use Reattach to find out.
func (c *Client) Run(ctx context.Context, r wire.Run) (_ *Run, err error) {
	defer engi.Annotate(&err, "run %s", r.ID)
	r.Files = slices.Clone(r.Files)
	for i := range r.Files {
		r.Files[i].Size = int64(len(r.Files[i].Data))
	}
	r.StdinSize = int64(len(r.Stdin))
	if err := r.Check(); err != nil {
		return nil, err
	}
	body, err := encode(&r)
	if err != nil {
		return nil, err
	}
	s, start, err := c.open(ctx, "POST", "run", body)
	if err != nil {
		return nil, err
	}
	run, err := c.newRun(r.ID, start, s)
	if err != nil {
		return nil, err
	}
	run.maxOutput = cmp.Or(r.Output, wire.DefaultOutput)
	run.maxArtifactBytes, run.maxArtifacts = cmp.Or(r.ArtifactBytes, wire.DefaultArtifactBytes), cmp.Or(r.ArtifactCount, wire.DefaultArtifactCount)
	return run, nil
}

// encode returns the request body of a run. A small body is built in memory; a
// large body is framed while it is sent.
func encode(r *wire.Run) (io.Reader, error) {
	head, err := wire.AppendJSON(nil, wire.Head, r)
	if err != nil {
		return nil, err
	}
	total := len(r.Stdin)
	for _, f := range r.Files {
		total += len(f.Data)
	}
	end := wire.AppendFrame(nil, wire.End, nil)
	if total <= 1<<20 {
		b := head
		for _, f := range r.Files {
			b = wire.AppendData(b, wire.Data, f.Data)
		}
		b = wire.AppendData(b, wire.Data, r.Stdin)
		return bytes.NewReader(append(b, end...)), nil
	}
	parts := []io.Reader{bytes.NewReader(head)}
	for _, f := range r.Files {
		parts = append(parts, &frameReader{data: f.Data})
	}
	parts = append(parts, &frameReader{data: r.Stdin}, bytes.NewReader(end))
	return io.MultiReader(parts...), nil
}

// frameReader reads data as Data frames.
type frameReader struct {
	data []byte
	buf  []byte
	rest []byte
}

func (f *frameReader) Read(b []byte) (int, error) {
	if len(f.rest) == 0 {
		if len(f.data) == 0 {
			return 0, io.EOF
		}
		n := min(len(f.data), wire.MaxData)
		f.buf = wire.AppendFrame(f.buf[:0], wire.Data, f.data[:n])
		f.rest, f.data = f.buf, f.data[n:]
	}
	n := copy(b, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Reattach finds a run again after the connection or the daemon died. It
// reports NotFound if the guest does not know the run, or no longer does.
func (c *Client) Reattach(ctx context.Context, id string) (_ *Run, err error) {
	if err := wire.CheckID(id); err != nil {
		return nil, err
	}
	defer engi.Annotate(&err, "reattach to %s", id)
	s, start, err := c.open(ctx, "GET", "run/"+id, nil)
	if err != nil {
		return nil, err
	}
	run, err := c.newRun(id, start, s)
	if err != nil {
		return nil, err
	}
	run.maxOutput, run.maxArtifactBytes, run.maxArtifacts = wire.MaxOutput, 1<<62, wire.MaxArtifactCount
	return run, nil
}

func (c *Client) newRun(id string, start wire.Start, s *stream) (*Run, error) {
	if start.ID != id {
		s.close()
		return nil, engi.Errorf(engi.Unavailable, "the guest answered for another run")
	}
	p, err := c.newProcess("run/", start, s)
	if err != nil {
		return nil, err
	}
	r := &Run{process: p}
	p.check = r.check
	return r, nil
}

// Warm reports whether the program runs in an interpreter that was started
// before the run.
func (r *Run) Warm() bool { return r.warm }

// Finish waits for the end of the run and returns its outcome. It may be
// called before, during and after Output, any number of times.
func (r *Run) Finish(ctx context.Context) (wire.Finish, error) { return r.end(ctx) }

// checkExit rejects an impossible outcome from a guest, and makes the text of f safe to
// show.
func checkExit(f *wire.Finish) error {
	e := f.Exit
	if e.Code < -1 || e.Code > 255 || !slices.Contains(engi.Causes(), e.Cause) || f.Duration < 0 ||
		len(e.Signal) > 16 || strings.Trim(e.Signal, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-") != "" {
		return engi.Errorf(engi.Invalid, "exit %+v", e)
	}
	f.Error = sanitize(f.Error)
	return nil
}

func (r *Run) check(f *wire.Finish) error {
	if err := checkExit(f); err != nil {
		return err
	}
	if len(f.Artifacts) > r.maxArtifacts || f.ArtifactsLeft < 0 {
		return engi.Errorf(engi.Invalid, "%d artifacts where at most %d are allowed, and %d left out", len(f.Artifacts), r.maxArtifacts, f.ArtifactsLeft)
	}
	seen := make(map[string]bool, len(f.Artifacts))
	var total int64
	for _, a := range f.Artifacts {
		if err := wire.CheckRelative(a.Path); err != nil {
			return err
		}
		digest, err := hex.DecodeString(a.SHA256)
		if err != nil || len(digest) != sha256.Size || a.Size < 0 || a.Size > r.maxArtifactBytes-total || a.Mode&^0o777 != 0 || seen[a.Path] {
			return engi.Errorf(engi.Invalid, "artifact %.200q", a.Path)
		}
		total += a.Size
		seen[a.Path] = true
	}
	return nil
}

// Artifacts waits for the end of the run and returns the files of Finish's
// manifest as a tar stream, in the manifest's order. Each file has the size and
// digest of the manifest; otherwise Read reports Conflict. The caller closes the stream.
func (r *Run) Artifacts(ctx context.Context) (io.ReadCloser, error) {
	fin, err := r.Finish(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := r.c.do(ctx, "GET", r.path+"/artifacts", nil)
	if err != nil {
		cancel()
		return nil, engi.Errorf(engi.KindOf(err), "artifacts of %s: %w", r.id, err)
	}
	pr, pw := io.Pipe()
	a := &archive{PipeReader: pr, cancel: cancel, body: resp.Body}
	a.done.Add(1)
	go func() {
		defer a.done.Done()
		pw.CloseWithError(writeTar(pw, buffered(resp.Body), fin.Artifacts))
	}()
	return a, nil
}

type archive struct {
	*io.PipeReader
	cancel context.CancelFunc
	body   io.Closer
	done   sync.WaitGroup
}

func (a *archive) Close() error {
	a.cancel()
	a.PipeReader.Close()
	a.body.Close()
	a.done.Wait()
	return nil
}

// writeTar creates the archive on the host, from contents alone, so that a guest
// cannot add anything else.
func writeTar(w io.Writer, contents io.Reader, manifest []wire.Artifact) error {
	tw := tar.NewWriter(w)
	for _, a := range manifest {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: a.Path, Size: a.Size, Mode: int64(a.Mode), Format: tar.FormatPAX}); err != nil {
			return engi.Errorf(engi.Internal, "artifact %s: %v", a.Path, err)
		}
		h := sha256.New()
		if n, err := io.CopyN(io.MultiWriter(tw, h), contents, a.Size); err != nil {
			return engi.Errorf(engi.Conflict, "artifact %s: got %d of %d bytes: %v", a.Path, n, a.Size, err).
				WithRemedy("a program inside changed it, or the sandbox ended; run it again")
		}
		if hex.EncodeToString(h.Sum(nil)) != a.SHA256 {
			return engi.Errorf(engi.Conflict, "artifact %s changed after the run", a.Path)
		}
	}
	if err := tw.Close(); err != nil {
		return engi.Errorf(engi.Internal, "artifacts: %v", err)
	}
	return nil
}
