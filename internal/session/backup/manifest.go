package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const manifestName = "manifest"

// A manifest lists the content of a copy. It is stored as a first line with the hash of the rest,
// followed by compressed JSON.
type manifest struct {
	Version int       `json:"version"`
	Owner   string    `json:"owner"` // informative, for inspecting the store
	Name    string    `json:"name"`
	Saved   time.Time `json:"saved"`
	Entries []entry   `json:"entries"` // directories come before their content
	Packs   []pack    `json:"packs"`
}

type kind uint8

const (
	isFile kind = iota
	isDir
	isLink
)

// An entry is a file. Path and target are bytes, because names need not be valid UTF-8.
type entry struct {
	Path     []byte  `json:"p"`
	Kind     kind    `json:"k,omitempty"`
	Mode     uint32  `json:"m"`
	UID      int     `json:"u,omitempty"`
	GID      int     `json:"g,omitempty"`
	Modified int64   `json:"t"` // time of the last change, in nanoseconds since 1970
	Target   []byte  `json:"l,omitempty"`
	Size     int64   `json:"s,omitempty"`
	Pieces   []piece `json:"c,omitempty"`
}

// A piece is a part of a file's content, at a position in a pack.
type piece struct {
	Hash   string `json:"h"`
	Pack   int    `json:"p"` // index in manifest.Packs
	Offset int64  `json:"o"`
	Size   int64  `json:"s"`
}

// A pack is a blob of pieces, named by its hash.
type pack struct {
	Hash string `json:"h"`
	Size int64  `json:"s"`
}

func (k Key) packName(hash string) string { return k.prefix() + "packs/" + hash }

func (m *manifest) encode() ([]byte, error) {
	m.Version = 1
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := json.NewEncoder(z).Encode(m); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode the manifest: %v", err)
	}
	if err := z.Close(); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode the manifest: %v", err)
	}
	return append([]byte(digest(out.Bytes())+"\n"), out.Bytes()...), nil
}

var errDamaged = engi.Errorf(engi.Conflict, "the manifest of the copy is damaged").WithRemedy("restore the object store, or give up the copy with 'engi session kill' and start the session anew")

// load returns the manifest of k's copy. It reports NotFound, or Conflict for a damaged
// copy.
func (s *Store) load(ctx context.Context, k Key) (m manifest, err error) {
	data, err := s.o.Blobs.Get(ctx, k.prefix()+manifestName, maxManifest)
	if err != nil {
		return m, err
	}
	hash, rest, _ := bytes.Cut(data, []byte("\n"))
	if string(hash) != digest(rest) {
		return m, errDamaged
	}
	z, err := gzip.NewReader(bytes.NewReader(rest))
	if err != nil {
		return m, errDamaged
	}
	if err := json.NewDecoder(io.LimitReader(z, maxManifest)).Decode(&m); err != nil || m.Version != 1 || !m.valid() {
		return manifest{}, errDamaged
	}
	return m, nil
}

// valid reports whether every piece is in a pack.
func (m *manifest) valid() bool {
	for _, e := range m.Entries {
		sum := int64(0)
		for _, p := range e.Pieces {
			if p.Pack < 0 || p.Pack >= len(m.Packs) || p.Offset < 0 || p.Size < 0 || p.Size > pieceSize || p.Offset > m.Packs[p.Pack].Size-p.Size {
				return false
			}
			sum += p.Size
		}
		if sum != e.Size {
			return false
		}
	}
	return true
}

// archive writes the files as a tar stream.
func (m *manifest) archive(ctx context.Context, w io.Writer, r *reader) error {
	tw := tar.NewWriter(w)
	for _, e := range m.Entries {
		h := &tar.Header{
			Name: strings.TrimPrefix(string(e.Path), "/"), Mode: int64(e.Mode), Uid: e.UID, Gid: e.GID, Size: e.Size, ModTime: time.Unix(0, e.Modified),
			Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		switch e.Kind {
		case isDir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case isLink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, string(e.Target)
		}
		if err := tw.WriteHeader(h); err != nil {
			return engi.Errorf(engi.Unavailable, "write %.200q: %w", e.Path, err)
		}
		for _, p := range e.Pieces {
			data, err := r.piece(ctx, p)
			if err != nil {
				return err
			}
			if _, err := tw.Write(data); err != nil {
				return engi.Errorf(engi.Unavailable, "write %.200q: %w", e.Path, err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "write the archive: %w", err)
	}
	return nil
}

// A reader reads pieces, and caches the most recently read packs.
type reader struct {
	blobs engi.Blobs
	key   Key
	packs []pack
	last  []loaded // most recent first
}

type loaded struct {
	number int
	data   []byte
}

func (r *reader) piece(ctx context.Context, p piece) ([]byte, error) {
	i := slices.IndexFunc(r.last, func(l loaded) bool { return l.number == p.Pack })
	if i < 0 {
		k := r.packs[p.Pack]
		data, err := r.blobs.Get(ctx, r.key.packName(k.Hash), packSize+pieceSize)
		if engi.Is(err, engi.NotFound) {
			err = errors.New("it is not there")
		} else if err != nil {
			return nil, err
		}
		if err != nil || digest(data) != k.Hash {
			return nil, engi.Errorf(engi.Conflict, "a part of the copy, %.16s, is missing or damaged", k.Hash).
				WithRemedy("restore the object store, or give up the copy with 'engi session kill' and start the session anew")
		}
		r.last = slices.Insert(r.last, 0, loaded{p.Pack, data})
		r.last, i = r.last[:min(len(r.last), packsAtHand)], 0
	}
	data := r.last[i].data
	if p.Offset+p.Size > int64(len(data)) || digest(data[p.Offset:p.Offset+p.Size]) != p.Hash {
		return nil, errDamaged
	}
	return data[p.Offset : p.Offset+p.Size], nil
}

// A writer creates a copy.
type writer struct {
	blobs    engi.Blobs
	key      Key
	stored   map[string]int64 // sizes of packs in the store, by hash
	known    map[string]known // pieces by hash
	next     manifest
	packs    map[string]int // indexes of packs of next, by hash
	open     []byte         // pack that is being filled
	pending  []string       // hashes of the pieces in open, in order
	buf      []byte
	room     int64 // maximum bytes of all packs
	total    int64 // bytes of all packs so far
	uploaded int64
}

// A known is a piece in a pack of the store, or in the open pack.
type known struct {
	pack         pack // zero for the open pack
	offset, size int64
}

func newWriter(blobs engi.Blobs, k Key, before manifest, stored map[string]int64) *writer {
	w := &writer{blobs: blobs, key: k, stored: stored, known: map[string]known{}, packs: map[string]int{}, buf: make([]byte, pieceSize), open: make([]byte, 0, packSize+pieceSize)}
	live := make([]int64, len(before.Packs))
	seen := map[string]bool{}
	for _, e := range before.Entries {
		for _, p := range e.Pieces {
			if !seen[p.Hash] {
				seen[p.Hash] = true
				live[p.Pack] += p.Size
			}
		}
	}
	for _, e := range before.Entries {
		for _, p := range e.Pieces {
			// Pieces of a pack that is mostly garbage are stored again, so that the pack
			// can be removed.
			k := before.Packs[p.Pack]
			if stored[k.Hash] == k.Size && live[p.Pack]*2 >= k.Size {
				w.known[p.Hash] = known{k, p.Offset, p.Size}
			}
		}
	}
	return w
}

const openPack = -1

// piece stores content unless the store has it. The returned piece has the pack
// openPack until finish.
func (w *writer) piece(ctx context.Context, data []byte) (piece, error) {
	hash := digest(data)
	at, ok := w.known[hash]
	if !ok {
		if len(w.open)+len(data) > packSize {
			if err := w.flush(ctx); err != nil {
				return piece{}, err
			}
		}
		at = known{offset: int64(len(w.open)), size: int64(len(data))}
		w.open = append(w.open, data...)
		w.known[hash] = at
		w.pending = append(w.pending, hash)
	}
	p := piece{Hash: hash, Pack: openPack, Offset: at.offset, Size: at.size}
	if at.pack.Hash != "" {
		p.Pack = w.use(at.pack)
	}
	return p, nil
}

// use returns the index of a pack in the manifest.
func (w *writer) use(k pack) int {
	n, ok := w.packs[k.Hash]
	if !ok {
		n = len(w.next.Packs)
		w.next.Packs = append(w.next.Packs, k)
		w.packs[k.Hash] = n
		w.total += k.Size
	}
	return n
}

// flush stores the open pack.
func (w *writer) flush(ctx context.Context) error {
	if len(w.open) == 0 {
		return nil
	}
	k := pack{digest(w.open), int64(len(w.open))}
	if w.use(k); w.total > w.room {
		return engi.Errorf(engi.Exhausted, "the owner's saved workspaces have reached their quota of bytes").
			WithRemedy("delete files, or terminate sessions whose workspaces are not needed; the operator may raise sandbox.workspaces_quota")
	}
	if w.stored[k.Hash] != k.Size {
		if err := w.blobs.Put(ctx, w.key.packName(k.Hash), w.open); err != nil {
			return err
		}
		w.uploaded += k.Size
	}
	for _, hash := range w.pending {
		at := w.known[hash]
		at.pack = k
		w.known[hash] = at
	}
	w.open, w.pending = w.open[:0], nil
	return nil
}

// finish stores the open pack, and returns the manifest.
func (w *writer) finish(ctx context.Context) (*manifest, error) {
	if err := w.flush(ctx); err != nil {
		return nil, err
	}
	for _, e := range w.next.Entries {
		for i, p := range e.Pieces {
			if p.Pack == openPack {
				e.Pieces[i].Pack = w.use(w.known[p.Hash].pack)
			}
		}
	}
	return &w.next, nil
}
