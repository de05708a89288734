//go:build unix

package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// mode is the mode of an unpacked program: sandboxes run the guest program as any user,
// while its directory is private.
const mode = 0o755

// Unpack makes sure that dir has an intact copy of p's program, and returns it.
// Several processes may unpack into one dir at once; each gets a complete file. An
// existing file is verified and replaced if it is damaged.
func Unpack(ctx context.Context, packed fs.FS, p Packed, dir string) (_ Program, err error) {
	defer engi.Annotate(&err, "unpack %s", p.Name)
	home := filepath.Join(dir, p.SHA256[:16])
	out := Program{Name: p.Name, Path: filepath.Join(home, p.Name), Digest: p.SHA256, From: "release"}
	if intact(out.Path, p) {
		return out, nil
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return Program{}, engi.Errorf(engi.Unavailable, "%v", err).
			WithRemedy("make %s writable or set 'cache_dir'", dir)
	}
	unlock, err := lock(ctx, filepath.Join(home, ".lock"))
	if err != nil {
		return Program{}, err
	}
	defer unlock()
	if intact(out.Path, p) { // another process was faster
		return out, nil
	}
	return out, write(packed, p, out.Path)
}

func intact(path string, p Packed) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != p.Size || info.Mode().Perm() != mode {
		return false
	}
	sum, _, err := digest(path)
	return err == nil && sum == p.SHA256
}

func write(packed fs.FS, p Packed, path string) error {
	src, err := packed.Open(p.File)
	if err != nil {
		return engi.Errorf(engi.Internal, "open %s: %v", p.File, err)
	}
	defer src.Close()
	z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	defer z.Close()

	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer os.Remove(tmp.Name()) // no effect after the rename
	defer tmp.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, h), io.LimitReader(z, p.Size+1))
	if errors.Is(err, unix.ENOSPC) {
		return engi.Errorf(engi.Exhausted, "%v", err).WithRemedy("free %d MiB below %s", p.Size>>20+1, filepath.Dir(path))
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); n != p.Size || sum != p.SHA256 {
		return engi.Errorf(engi.Internal, "the packed program is damaged: %d bytes with digest %s, want %d with %s", n, sum, p.Size, p.SHA256).
			WithRemedy("fetch the engi executable again")
	}
	if err := errors.Join(tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	return nil
}

// lock waits for an exclusive lock on path. The kernel frees it with the
// process, so no crash can leave it behind.
func lock(ctx context.Context, path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, engi.Errorf(engi.Unavailable, "lock %s: %v", path, err)
		}
		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			f.Close()
			return nil, engi.Errorf(engi.Expired, "wait for another process that unpacks: %v", ctx.Err())
		}
	}
}
