package transfer

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1" // git's checksum of packs
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// Limits of a pack that a client sends.
const (
	maxPack   = 256 << 20 // maximum bytes of a pack
	maxPushed = 100_000   // maximum number of objects
	maxRecent = 32 << 20  // maximum bytes of contents kept in memory, since deltas often refer to recent objects
	entrySize = 256       // approximate bytes of memory of an object without its content
)

// maxWork is the maximum number of bytes to unpack, including the bases of deltas.
var maxWork int64 = 2 << 30 // variable for tests

// Types of entries in a pack that are not objects of a workspace; see gitformat-pack(5).
const (
	typeTag      = 4
	typeByOffset = 6
	typeByHash   = 7
)

// tag is the kind of an annotated tag. Workspaces have no tags, but clients may send them.
const tag repo.Kind = "tag"

var kinds = map[byte]repo.Kind{1: repo.Commit, 2: repo.Tree, 3: repo.Blob, typeTag: tag}

// A Pack holds the objects that a client has sent, by hash.
type Pack map[string]repo.Object

// Unpack reads a pack; its deltas may refer to its own objects and to those of source. take
// reserves the memory of each object. It reports Invalid for a corrupt pack, and Exhausted
// for a pack that is too large.
func Unpack(ctx context.Context, r io.Reader, source repo.Source, take func(bytes int64) error) (Pack, error) {
	u := &unpacker{ctx: ctx, in: newInput(r), source: source, take: take, pack: Pack{}, at: map[int64]string{}}
	p, err := u.read()
	switch {
	case u.in.n >= maxPack:
		return nil, engi.Errorf(engi.Exhausted, "the pack has more than %d MiB", maxPack>>20).WithRemedy("push fewer commits at a time")
	case ctx.Err() != nil:
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, damaged("it ends too early")
	}
	if _, told := errors.AsType[*engi.Error](err); err != nil && !told { // an error of compress/flate, or of the connection
		return nil, damaged("%v", err)
	}
	return p, err
}

func damaged(format string, a ...any) error {
	return engi.Errorf(engi.Invalid, "the pack is damaged: "+format, a...).WithRemedy("push again; if the error stays, run 'git fsck'")
}

// An unpacker reads one pack.
type unpacker struct {
	ctx    context.Context
	in     *input
	source repo.Source
	take   func(bytes int64) error
	pack   Pack
	at     map[int64]string // hashes of the objects, by their offset in the pack
	z      io.ReadCloser    // reused for each object
	work   int64
	recent []content // recently unpacked contents, latest last
	held   int       // total bytes of recent
}

// A content is an object with its content.
type content struct {
	hash string
	kind repo.Kind
	data []byte
}

func (u *unpacker) read() (Pack, error) {
	var head [12]byte
	if _, err := io.ReadFull(u.in, head[:]); err != nil {
		return nil, err
	}
	if version := binary.BigEndian.Uint32(head[4:]); string(head[:4]) != "PACK" || version != 2 && version != 3 {
		return nil, damaged("it does not begin as one")
	}
	n := binary.BigEndian.Uint32(head[8:])
	if n > maxPushed {
		return nil, engi.Errorf(engi.Exhausted, "the pack has %d objects; the limit is %d", n, maxPushed).WithRemedy("push fewer commits at a time")
	}
	for range n {
		if err := u.ctx.Err(); err != nil {
			return nil, err
		}
		if err := u.next(); err != nil {
			return nil, err
		}
	}
	u.in.flush()
	want := u.in.sum.Sum(nil)
	var got [sha1.Size]byte
	if _, err := io.ReadFull(u.in, got[:]); err != nil {
		return nil, err
	}
	if !bytes.Equal(want, got[:]) {
		return nil, damaged("its checksum is another one")
	}
	return u.pack, nil
}

// next reads one entry.
func (u *unpacker) next() error {
	began := u.in.n
	c, err := u.in.ReadByte()
	if err != nil {
		return err
	}
	kind, size := c>>4&7, int64(c&15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = u.in.ReadByte(); err != nil {
			return err
		}
		if size |= int64(c&0x7f) << shift; shift > 32 {
			return damaged("an object has a size that none has")
		}
	}
	if size > repo.MaxObject {
		return tooLarge(size)
	}
	if k, ok := kinds[kind]; ok {
		data, err := u.inflate(size)
		if err != nil {
			return err
		}
		return u.keep(began, k, data)
	}
	var base content
	switch kind {
	case typeByOffset:
		back, err := u.in.offset()
		if err != nil {
			return err
		}
		h, ok := u.at[began-back]
		if !ok {
			return damaged("an object is a difference to what is none")
		}
		base, err = u.content(h)
		if err != nil {
			return err
		}
	case typeByHash:
		var h [20]byte
		if _, err := io.ReadFull(u.in, h[:]); err != nil {
			return err
		}
		if base, err = u.content(hex.EncodeToString(h[:])); err != nil {
			return err
		}
	default:
		return damaged("an object has the type %d", kind)
	}
	delta, err := u.inflate(size)
	if err != nil {
		return err
	}
	data, err := u.apply(base.data, delta)
	if err != nil {
		return err
	}
	return u.keep(began, base.kind, data)
}

func tooLarge(size int64) error {
	return engi.Errorf(engi.Exhausted, "an object has %d bytes; the limit is %d MiB", size, repo.MaxObject>>20).WithRemedy("keep large files on a volume; 'git rev-list --objects --all' finds them")
}

// spend counts unpacked bytes, and reports Exhausted beyond maxWork.
func (u *unpacker) spend(n int64) error {
	if u.work += n; u.work > maxWork {
		return engi.Errorf(engi.Exhausted, "the pack unpacks to more than %d MiB", maxWork>>20).WithRemedy("push fewer commits at a time")
	}
	return nil
}

// inflate reads a compressed part of the pack whose content has size bytes.
func (u *unpacker) inflate(size int64) (data []byte, err error) {
	if err := u.spend(size); err != nil {
		return nil, err
	}
	if u.z == nil {
		u.z, err = zlib.NewReader(u.in)
	} else {
		err = u.z.(zlib.Resetter).Reset(u.in, nil)
	}
	if err != nil {
		return nil, err
	}
	data = make([]byte, size)
	if _, err := io.ReadFull(u.z, data); err != nil {
		return nil, err
	}
	var more [1]byte // the data must end here; reading the end checks the checksum
	if n, err := io.ReadFull(u.z, more[:]); n != 0 {
		return nil, damaged("an object has more than it says")
	} else if err != io.EOF {
		return nil, err
	}
	return data, nil
}

// content returns an object that is the base of a delta.
func (u *unpacker) content(hash string) (content, error) {
	for _, c := range u.recent {
		if c.hash == hash {
			return c, nil
		}
	}
	o, ok := u.pack[hash]
	if !ok {
		var err error
		if o, err = u.source(u.ctx, hash); err != nil {
			if engi.Is(err, engi.NotFound) {
				err = damaged("an object is a difference to %s, which does not exist", hash)
			}
			return content{}, err
		}
	}
	if err := u.spend(o.Size); err != nil {
		return content{}, err
	}
	data, err := o.Content()
	c := content{hash, o.Kind, data}
	if err == nil {
		u.remember(c)
	}
	return c, err
}

// remember keeps a content in memory for a while.
func (u *unpacker) remember(c content) {
	u.recent = append(u.recent, c)
	for u.held += len(c.data); u.held > maxRecent || len(u.recent) > 64; {
		u.held -= len(u.recent[0].data)
		u.recent[0] = content{} // the array is still in use
		u.recent = u.recent[1:]
	}
}

// keep adds an object to the pack.
func (u *unpacker) keep(began int64, kind repo.Kind, data []byte) error {
	o, err := repo.New(kind, data)
	if err != nil {
		return err
	}
	u.at[began] = o.Hash
	if _, again := u.pack[o.Hash]; again {
		return nil
	}
	if err := u.take(int64(len(o.Packed)) + entrySize); err != nil {
		return err
	}
	u.pack[o.Hash] = o
	u.remember(content{o.Hash, kind, data})
	return nil
}

// apply returns the result of applying a delta to base: it copies parts of base, and
// inserts new bytes.
func (u *unpacker) apply(base, delta []byte) ([]byte, error) {
	short := damaged("a difference ends too early")
	from, n := binary.Uvarint(delta)
	if n <= 0 || from != uint64(len(base)) {
		return nil, damaged("a difference is to an object of another size")
	}
	delta = delta[n:]
	size, n := binary.Uvarint(delta)
	if n <= 0 {
		return nil, short
	}
	if delta = delta[n:]; size > repo.MaxObject {
		return nil, tooLarge(int64(min(size, 1<<62)))
	}
	if err := u.spend(int64(size)); err != nil {
		return nil, err
	}
	out := make([]byte, 0, size)
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 { // the next bytes are inserted
			if op == 0 || len(delta) < int(op) || len(out)+int(op) > int(size) {
				return nil, short
			}
			out, delta = append(out, delta[:op]...), delta[op:]
			continue
		}
		var args [7]byte // four bytes of the offset and three of the size, without zero bytes
		for i := range args {
			if op&(1<<i) != 0 {
				if len(delta) == 0 {
					return nil, short
				}
				args[i], delta = delta[0], delta[1:]
			}
		}
		at := int(binary.LittleEndian.Uint32(args[:4]))
		n := int(args[4]) | int(args[5])<<8 | int(args[6])<<16
		if n == 0 {
			n = 0x10000
		}
		if at > len(base) || n > len(base)-at || len(out)+n > int(size) {
			return nil, damaged("a difference copies what is not there")
		}
		out = append(out, base[at:at+n]...)
	}
	if len(out) != int(size) {
		return nil, short
	}
	return out, nil
}

// An input reads a pack, counts its bytes, and computes its checksum. To its users, it never reads
// ahead.
type input struct {
	r   *bufio.Reader
	n   int64
	sum hash.Hash
	buf [512]byte // bytes read one by one that are not in the checksum yet
	has int
}

func newInput(r io.Reader) *input {
	return &input{r: bufio.NewReaderSize(io.LimitReader(r, maxPack), 64<<10), sum: sha1.New()}
}

// flush adds all bytes that were read to the checksum.
func (in *input) flush() {
	in.sum.Write(in.buf[:in.has])
	in.has = 0
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.r.Read(p)
	in.flush()
	in.sum.Write(p[:n])
	in.n += int64(n)
	return n, err
}

// ReadByte makes flate read no more than it needs.
func (in *input) ReadByte() (byte, error) {
	c, err := in.r.ReadByte()
	if err != nil {
		return 0, err
	}
	in.buf[in.has] = c
	in.n++
	if in.has++; in.has == len(in.buf) {
		in.flush()
	}
	return c, nil
}

// offset reads the distance of a delta's base.
func (in *input) offset() (int64, error) {
	c, err := in.ReadByte()
	if err != nil {
		return 0, err
	}
	n := int64(c & 0x7f)
	for c&0x80 != 0 {
		if c, err = in.ReadByte(); err != nil {
			return 0, err
		}
		if n = (n+1)<<7 | int64(c&0x7f); n > maxPack {
			return 0, damaged("an object is a difference to what is not in it")
		}
	}
	return n, nil
}
