package sftp

import (
	"encoding/binary"
	"errors"
	"io"
)

// Kinds of packets, from draft-ietf-secsh-filexfer-02.
const (
	kindInit     = 1
	kindVersion  = 2
	kindOpen     = 3
	kindClose    = 4
	kindRead     = 5
	kindWrite    = 6
	kindLstat    = 7
	kindFstat    = 8
	kindSetstat  = 9
	kindFsetstat = 10
	kindOpendir  = 11
	kindReaddir  = 12
	kindRemove   = 13
	kindMkdir    = 14
	kindRmdir    = 15
	kindRealpath = 16
	kindStat     = 17
	kindRename   = 18
	kindReadlink = 19
	kindSymlink  = 20
	kindExtended = 200

	kindStatus        = 101
	kindHandle        = 102
	kindData          = 103
	kindName          = 104
	kindAttrs         = 105
	kindExtendedReply = 201
)

// Flags of open, and of attributes.
const (
	openRead   = 0x01
	openWrite  = 0x02
	openAppend = 0x04
	openCreate = 0x08
	openTrunc  = 0x10
	openExcl   = 0x20

	attrSize     = 0x01
	attrOwner    = 0x02
	attrMode     = 0x04
	attrTimes    = 0x08
	attrExtended = 0x80000000
)

// maxPacket bounds a packet, and maxData the data in a packet, in bytes. Both values are
// OpenSSH's.
const (
	maxPacket = 256 << 10
	maxData   = maxPacket - 1024
)

var (
	errPacket  = errors.New("malformed packet")
	errTooLong = errors.New("packet too long")
)

// attrs holds attributes of a file; flags names the valid ones.
type attrs struct {
	flags        uint32
	size         uint64
	uid, gid     uint32
	mode         uint32 // type and permissions as in stat(2)
	atime, mtime uint32
}

// A request is a packet of a client. Its strings are unchecked; data is valid
// until the next packet.
type request struct {
	kind   byte
	id     uint32 // the protocol version in an init packet
	ext    string // name of an extended request
	name   string // path or handle
	other  string // second path
	flags  uint32
	offset uint64
	length uint32
	data   []byte
	attrs  attrs
}

// fields reads the fields of a packet. It sets bad at the first missing field.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n uint64) []byte {
	if uint64(len(f.b)) < n {
		f.b, f.bad = nil, true
		return nil
	}
	head := f.b[:n]
	f.b = f.b[n:]
	return head
}

func (f *fields) uint32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) uint64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (f *fields) bytes() []byte { return f.take(uint64(f.uint32())) }

func (f *fields) string() string { return string(f.bytes()) }

func (f *fields) attrs() (a attrs) {
	a.flags = f.uint32()
	if a.flags&attrSize != 0 {
		a.size = f.uint64()
	}
	if a.flags&attrOwner != 0 {
		a.uid, a.gid = f.uint32(), f.uint32()
	}
	if a.flags&attrMode != 0 {
		a.mode = f.uint32()
	}
	if a.flags&attrTimes != 0 {
		a.atime, a.mtime = f.uint32(), f.uint32()
	}
	if a.flags&attrExtended != 0 { // extended attributes are ignored
		for n := f.uint32(); n > 0 && !f.bad; n-- {
			f.bytes()
			f.bytes()
		}
	}
	return a
}

// parse reads a packet without its length. With errPacket, kind and id are set if
// they could be read. Bytes after the known fields are ignored.
func parse(b []byte) (r request, err error) {
	if len(b) == 0 {
		return r, errPacket
	}
	r.kind = b[0]
	f := fields{b: b[1:]}
	r.id = f.uint32()
	switch r.kind {
	case kindInit:
	case kindOpen:
		r.name, r.flags, r.attrs = f.string(), f.uint32(), f.attrs()
	case kindRead:
		r.name, r.offset, r.length = f.string(), f.uint64(), f.uint32()
	case kindWrite:
		r.name, r.offset, r.data = f.string(), f.uint64(), f.bytes()
	case kindSetstat, kindFsetstat, kindMkdir:
		r.name, r.attrs = f.string(), f.attrs()
	case kindRename, kindSymlink:
		r.name, r.other = f.string(), f.string()
	case kindClose, kindLstat, kindFstat, kindOpendir, kindReaddir, kindRemove, kindRmdir, kindRealpath, kindStat, kindReadlink:
		r.name = f.string()
	case kindExtended:
		switch r.ext = f.string(); r.ext {
		case extRename, extHardlink:
			r.name, r.other = f.string(), f.string()
		case extStatvfs, extFstatvfs, extFsync, extExpand:
			r.name = f.string()
		case extLsetstat:
			r.name, r.attrs = f.string(), f.attrs()
		}
	}
	if f.bad {
		return r, errPacket
	}
	return r, nil
}

// readPacket reads a packet into buf, which has room for the largest, and returns
// it without its length.
func readPacket(in io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxPacket || int(n) > len(buf) {
		return nil, errTooLong
	}
	_, err := io.ReadFull(in, buf[:n])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return buf[:n], err
}

// A reply is a packet for the client, with room for its length.
type reply []byte

func newReply(kind byte, id uint32) reply {
	return binary.BigEndian.AppendUint32(append(make(reply, 4, 64), kind), id)
}

func (p reply) uint32(n uint32) reply { return binary.BigEndian.AppendUint32(p, n) }
func (p reply) uint64(n uint64) reply { return binary.BigEndian.AppendUint64(p, n) }
func (p reply) string(s string) reply { return append(p.uint32(uint32(len(s))), s...) }
func (p reply) attrs(a attrs) reply {
	return p.uint32(attrSize | attrOwner | attrMode | attrTimes).uint64(a.size).uint32(a.uid).uint32(a.gid).uint32(a.mode).uint32(a.atime).uint32(a.mtime)
}

// sealed returns the packet with its length.
func (p reply) sealed() []byte {
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	return p
}
