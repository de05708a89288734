package fleet

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// files manages the node's directories of executions and sandboxes:
//
//	executions/ID/output        output too long for the store
//	executions/ID/artifacts/N   the N-th artifact, never under a guest's name
//	queued/ID                   a program that waits for a sandbox
//	sandboxes/ID/image          a hibernated sandbox: its memory and disk, or its disk
//	sandboxes/ID/new            the same, not complete
//	temp/N                      what sandboxes are being copied from, or what is being removed
//
// A file is complete before the store refers to it, so a file that a crash
// leaves half-written is referenced by no record and is removed or written again.
type files struct{ dir string }

func openFiles(dir string) (files, error) {
	f := files{dir}
	if err := f.upgrade(); err != nil {
		return f, engi.Errorf(engi.Internal, "rename directory: %v", err)
	}
	for _, d := range []string{"executions", "queued", "sandboxes", "temp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return f, engi.Errorf(engi.Internal, "make directory: %v", err)
		}
	}
	return f, nil
}

// upgrade renames the files that earlier versions called tapes and boxes. It may be
// repeated.
func (f files) upgrade() error {
	boxes := filepath.Join(f.dir, "boxes")
	if _, err := os.Stat(boxes); err != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(f.dir, "sandboxes"), 0o700); err != nil {
		return err
	}
	tapes, _ := filepath.Glob(filepath.Join(f.dir, "executions", "*", "tape")) // the pattern is valid
	for _, tape := range tapes {
		if err := os.Rename(tape, filepath.Join(filepath.Dir(tape), "output")); err != nil {
			return err
		}
	}
	images, _ := filepath.Glob(filepath.Join(boxes, "*"))
	for _, dir := range images {
		if err := os.Rename(dir, filepath.Join(f.dir, "sandboxes", filepath.Base(dir))); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(boxes), os.RemoveAll(filepath.Join(f.dir, "forks")))
}

func (f files) execution(id engi.ExecutionID) string {
	return filepath.Join(f.dir, "executions", string(id))
}

func (f files) output(id engi.ExecutionID) string { return filepath.Join(f.execution(id), "output") }

func (f files) artifact(id engi.ExecutionID, n int) string {
	return filepath.Join(f.execution(id), "artifacts", fmt.Sprintf("%06d", n))
}

func (f files) queued(id engi.ExecutionID) string {
	return filepath.Join(f.dir, "queued", string(id))
}

// full classifies a failed write as Exhausted: nearly always the disk is full.
func full(act string, err error) error {
	return engi.Errorf(engi.Exhausted, "%s: %v", act, err).WithRemedy("free space on the disk of the data directory")
}

// putQueued stores a program until a sandbox is free for it, across crashes.
func (f files) putQueued(id engi.ExecutionID, q queuedProgram) error {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(q); err != nil {
		return engi.Errorf(engi.Internal, "encode program: %v", err)
	}
	name := f.queued(id)
	if err := os.WriteFile(name+".new", buf.Bytes(), 0o600); err != nil {
		os.Remove(name + ".new")
		return full("keep program", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		os.Remove(name + ".new")
		return full("keep program", err)
	}
	return nil
}

// getQueued returns the program that putQueued stored, or NotFound.
func (f files) getQueued(id engi.ExecutionID) (queuedProgram, error) {
	var q queuedProgram
	data, err := os.ReadFile(f.queued(id))
	if err != nil {
		return q, engi.Errorf(engi.NotFound, "read program: %v", err)
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&q); err != nil {
		return q, engi.Errorf(engi.Internal, "decode program: %v", err)
	}
	return q, nil
}

func (f files) dropQueued(id engi.ExecutionID) { os.Remove(f.queued(id)) }

// drop removes all files of an execution.
func (f files) drop(id engi.ExecutionID) error {
	f.dropQueued(id)
	if err := os.RemoveAll(f.execution(id)); err != nil {
		return engi.Errorf(engi.Internal, "remove files of %s: %v", id, err)
	}
	return nil
}

// all lists the executions that have files.
func (f files) all() ([]engi.ExecutionID, error) {
	var ids []engi.ExecutionID
	for _, d := range []string{"executions", "queued"} {
		entries, err := os.ReadDir(filepath.Join(f.dir, d))
		if err != nil {
			return nil, engi.Errorf(engi.Internal, "list files: %v", err)
		}
		for _, e := range entries {
			ids = append(ids, engi.ExecutionID(e.Name()))
		}
	}
	return ids, nil
}

// saveArtifacts writes the files of a manifest from a tar stream. Both come
// from the guest and are not trusted: saveArtifacts stops at the first file that does not
// match the manifest or exceeds the limits. It returns the complete artifacts
// and the number of those left out.
func (f files) saveArtifacts(id engi.ExecutionID, manifest []wire.Artifact, stream io.Reader, limits engi.Limits) (saved []engi.Artifact, left int, err error) {
	if err := os.MkdirAll(filepath.Dir(f.artifact(id, 0)), 0o700); err != nil {
		return nil, len(manifest), full("save artifacts", err)
	}
	room := limits.ArtifactBytes
	seen := map[string]bool{}
	in := tar.NewReader(stream)
	for i, a := range manifest {
		switch {
		case i >= limits.ArtifactCount || a.Size < 0 || a.Size > room:
			return saved, len(manifest) - i, nil
		case wire.CheckRelative(a.Path) != nil || seen[a.Path]:
			return saved, len(manifest) - i, engi.Errorf(engi.Invalid, "artifact %d has the path %.80q", i, a.Path)
		}
		seen[a.Path] = true
		head, err := in.Next()
		if err != nil {
			return saved, len(manifest) - i, engi.Errorf(engi.Unavailable, "read artifacts: %v", err)
		}
		if head.Name != a.Path || head.Typeflag != tar.TypeReg || head.Size != a.Size {
			return saved, len(manifest) - i, engi.Errorf(engi.Invalid, "artifact %d is not the one announced", i)
		}
		sum, err := f.saveArtifact(f.artifact(id, i), in, a.Size)
		if err != nil {
			return saved, len(manifest) - i, err
		}
		room -= a.Size
		saved = append(saved, engi.Artifact{Path: a.Path, Size: a.Size, Mode: a.Mode & 0o777, SHA256: sum})
	}
	return saved, 0, nil
}

// saveArtifact writes size bytes and returns their hash.
func (f files) saveArtifact(name string, in io.Reader, size int64) (sum string, err error) {
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", full("save artifact", err)
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, hash), in)
	if e := out.Close(); err == nil {
		err = e
	}
	switch {
	case err != nil:
		return "", full("save artifact", err)
	case n != size:
		return "", engi.Errorf(engi.Unavailable, "artifact ends after %d of %d bytes", n, size)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// readArtifact returns the whole content of the n-th artifact of an execution.
func (f files) readArtifact(id engi.ExecutionID, n int, a engi.Artifact) ([]byte, error) {
	in, err := os.Open(f.artifact(id, n))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open artifact %d of %s: %v", n, id, err)
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, a.Size+1))
	if sum := sha256.Sum256(data); err != nil || int64(len(data)) != a.Size || hex.EncodeToString(sum[:]) != a.SHA256 {
		return nil, engi.Errorf(engi.Internal, "artifact %d of %s is not what was saved: %v", n, id, err)
	}
	return data, nil
}
