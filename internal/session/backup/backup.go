// Package backup stores copies of directories in a blob store. Copies are incremental,
// since content that the store has is not stored again, and verified, since content
// is identified by its hash.
//
// A copy either exists completely or not at all: its manifest is written last, and the blobs
// of the earlier manifest are removed only afterwards. So a kill at any moment
// leaves either the earlier or the new copy.
//
// It does not decide when copies are made (package session), and does not store blobs
// itself (package internal/sandbox/disk/blob).
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Key identifies a copy.
type Key struct {
	Owner engi.Owner
	Name  string
}

// prefix returns the prefix of the names of a key's blobs. It does not contain the owner and the
// name, which may have any characters.
func (k Key) prefix() string { return ownerPrefix(k.Owner) + digest([]byte(k.Name))[:32] + "/" }

func ownerPrefix(owner engi.Owner) string {
	return "workspaces/" + digest([]byte(owner))[:32] + "/"
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Options configures a Store. Log may be nil.
type Options struct {
	Blobs engi.Blobs
	Quota int64 // maximum bytes that one owner may have stored
	Log   *slog.Logger
}

const (
	pieceSize   = 1 << 20
	packSize    = 8 << 20
	maxDepth    = 256
	maxNames    = 32 << 20  // maximum bytes of all paths and link targets of a copy
	maxManifest = 256 << 20 // maximum size of an uncompressed manifest, in bytes
	concurrent  = 2         // maximum number of concurrent copies and restores
	packsAtHand = 4         // number of packs in memory during a restore
)

// A Store makes and restores copies. It is safe for concurrent use.
type Store struct {
	o    Options
	busy chan struct{} // holds a value for each running copy or restore
	keys *engi.KeyedSemaphore[Key]
}

// New returns a store.
func New(o Options) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{o: o, busy: make(chan struct{}, concurrent), keys: engi.NewKeyedSemaphore[Key](1)}
}

// lock waits until the key is not in use, and for one of the concurrent operations.
func (s *Store) lock(ctx context.Context, k Key) (unlock func(), err error) {
	release, err := s.keys.Acquire(ctx, k)
	if err != nil {
		return nil, err
	}
	select {
	case s.busy <- struct{}{}:
		return func() { <-s.busy; release() }, nil
	case <-ctx.Done():
		release()
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
}

// Save copies the files of a volume, with at most limit bytes of content. The copy
// replaces the earlier one of k.
func (s *Store) Save(ctx context.Context, k Key, files engi.VolumeFiles, limit int64) (done engi.WorkspaceCopy, err error) {
	defer engi.Annotate(&err, "save the workspace")
	unlock, err := s.lock(ctx, k)
	if err != nil {
		return done, err
	}
	defer unlock()
	before, err := s.load(ctx, k)
	if err != nil {
		if !engi.Is(err, engi.NotFound, engi.Conflict) {
			return done, err
		}
		if engi.Is(err, engi.Conflict) {
			s.o.Log.ErrorContext(ctx, "the last copy of a workspace is damaged, making a whole one", "owner", k.Owner, "workspace", k.Name, "error", err)
		}
		before = manifest{}
	}
	stored, sum, err := s.stored(ctx, k)
	if err != nil {
		return done, err
	}
	w := newWriter(s.o.Blobs, k, before, stored)
	w.room = s.o.Quota - sum
	if err := s.read(ctx, w, files, limit, &done); err != nil {
		return done, err
	}
	next, err := w.finish(ctx)
	if err != nil {
		return done, err
	}
	done.Uploaded = w.uploaded
	next.Owner, next.Name, next.Saved = string(k.Owner), k.Name, time.Now().UTC()
	data, err := next.encode()
	if err != nil {
		return done, err
	}
	if err := s.o.Blobs.Put(ctx, k.prefix()+manifestName, data); err != nil {
		return done, err
	}
	for name := range stored {
		if _, needed := w.packs[name]; !needed {
			if err := s.o.Blobs.Remove(ctx, k.packName(name)); err != nil {
				s.o.Log.WarnContext(ctx, "remove what no copy needs; the next one tries again", "blob", k.packName(name), "error", err)
			}
		}
	}
	return done, nil
}

// read passes the files of a volume to w.
func (s *Store) read(ctx context.Context, w *writer, files engi.VolumeFiles, limit int64, done *engi.WorkspaceCopy) error {
	root, err := files.Stat(ctx, "/")
	if err != nil {
		return err
	}
	list, err := files.List(ctx, "/", maxDepth)
	if err != nil {
		return err
	}
	names := 0
	for _, fi := range append([]engi.FileInfo{root}, list...) {
		if names += len(fi.Path) + len(fi.Target); names > maxNames {
			return engi.Errorf(engi.Exhausted, "the names of its files have more than %d bytes", maxNames).WithRemedy("delete files, or give them shorter names")
		}
		e := entry{Path: []byte(fi.Path), Mode: uint32(fi.Mode.Perm()), UID: fi.UID, GID: fi.GID, Modified: fi.Modified.UnixNano()}
		switch kind := fi.Mode.Type(); {
		case kind == fs.ModeDir:
			if depth(fi.Path) >= maxDepth {
				return engi.Errorf(engi.Exhausted, "its directories are nested more than %d deep", maxDepth-1).WithRemedy("move the files below %.100q up", fi.Path)
			}
			e.Kind = isDir
		case kind == fs.ModeSymlink:
			e.Kind, e.Target = isLink, []byte(fi.Target)
		case kind.IsRegular():
			left := limit - done.Bytes
			err := s.readFile(ctx, w, files, fi.Path, &e, left)
			if engi.Is(err, engi.NotFound, engi.Conflict) {
				continue // the file was removed or replaced in the meantime
			}
			if err != nil {
				return err
			}
			done.Bytes += e.Size
		default:
			done.Skipped++
			continue
		}
		done.Files++
		w.next.Entries = append(w.next.Entries, e)
	}
	return nil
}

func depth(name string) int {
	n := 0
	for _, c := range name {
		if c == '/' {
			n++
		}
	}
	return n
}

func (s *Store) readFile(ctx context.Context, w *writer, files engi.VolumeFiles, name string, e *entry, left int64) error {
	r, err := files.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		n, err := io.ReadFull(r, w.buf)
		if e.Size += int64(n); e.Size > left {
			return engi.Errorf(engi.Exhausted, "its files have more bytes than its volume may; one that is larger than what it takes is %.200q", name).
				WithRemedy("delete files, holes count too, or create a session with more capacity")
		}
		if n > 0 {
			at, err := w.piece(ctx, w.buf[:n])
			if err != nil {
				return err
			}
			e.Pieces = append(e.Pieces, at)
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return nil
		case err != nil:
			return engi.Errorf(engi.Unavailable, "read %.200q: %v", name, err)
		}
	}
}

// stored returns the sizes of a key's packs by hash, and the number of other bytes that the owner
// has stored.
func (s *Store) stored(ctx context.Context, k Key) (packs map[string]int64, sum int64, err error) {
	packs = map[string]int64{}
	for b, err := range s.o.Blobs.List(ctx, ownerPrefix(k.Owner)) {
		if err != nil {
			return nil, 0, err
		}
		if dir, name := path.Split(b.Name); dir == k.packName("") {
			packs[name] = b.Size
		} else if b.Name != k.prefix()+manifestName {
			sum += b.Size
		}
	}
	return packs, sum, nil
}

// Restore fills a volume with the copy of k, or reports NotFound.
func (s *Store) Restore(ctx context.Context, k Key, files engi.VolumeFiles) (done engi.WorkspaceCopy, err error) {
	defer engi.Annotate(&err, "restore the workspace")
	into, ok := files.(engi.VolumeUnpacker)
	if !ok {
		return done, engi.Errorf(engi.Unsupported, "the volume cannot be filled")
	}
	unlock, err := s.lock(ctx, k)
	if err != nil {
		return done, err
	}
	defer unlock()
	m, err := s.load(ctx, k)
	if err != nil {
		return done, err
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := m.archive(ctx, w, &reader{blobs: s.o.Blobs, key: k, packs: m.Packs})
		w.CloseWithError(err)
		written <- err
	}()
	err = into.Unpack(ctx, r)
	r.CloseWithError(io.ErrClosedPipe)
	if e := <-written; err == nil {
		err = e
	}
	for _, e := range m.Entries {
		done.Files++
		done.Bytes += e.Size
	}
	return done, err
}

// Remove deletes the copy of k, if there is one.
func (s *Store) Remove(ctx context.Context, k Key) (err error) {
	defer engi.Annotate(&err, "remove the copy of the workspace")
	unlock, err := s.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	// The manifest is removed first; without it the rest is not a copy.
	if err := s.o.Blobs.Remove(ctx, k.prefix()+manifestName); err != nil {
		return err
	}
	var names []string
	for b, err := range s.o.Blobs.List(ctx, k.prefix()) {
		if err != nil {
			return err
		}
		names = append(names, b.Name)
	}
	for _, name := range names {
		if err := s.o.Blobs.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
