package transfer

import (
	"bytes"
	"context"
	"crypto/sha1" // git's hash of objects
	"encoding/binary"
	"io"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// Types of the objects in a pack; see gitformat-pack(5).
var types = map[repo.Kind]byte{repo.Commit: 1, repo.Tree: 2, repo.Blob: 3}

// writePack writes a pack of whole objects, without deltas.
func writePack(ctx context.Context, w io.Writer, source repo.Source, list []entry) error {
	sum := sha1.New()
	to := io.MultiWriter(w, sum)
	head := append([]byte("PACK"), 0, 0, 0, 2)
	if _, err := to.Write(binary.BigEndian.AppendUint32(head, uint32(len(list)))); err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range list {
		o, err := source(ctx, e.hash)
		if err != nil {
			return err
		}
		if o.Kind != e.kind {
			return engi.Errorf(engi.Internal, "the %s %s is damaged: it is a %s", e.kind, e.hash, o.Kind)
		}
		b.Reset()
		size := uint64(o.Size)
		c := types[o.Kind]<<4 | byte(size&15)
		for size >>= 4; size > 0; size >>= 7 {
			b.WriteByte(c | 0x80)
			c = byte(size & 0x7f)
		}
		b.WriteByte(c)
		b.Write(o.Packed)
		if _, err := to.Write(b.Bytes()); err != nil {
			return err
		}
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}
