// Package repo creates and reads the git objects of a workspace's revisions:
// each revision is a commit. It stores nothing; its callers store the objects.
//
// It does not run git, and does not use the repositories in sandboxes.
package repo

import (
	"bytes"
	"compress/zlib"
	"context"
	"io"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/engi-dev/engi/internal/engi"
)

// MaxObject is the maximum size of an object in bytes.
const MaxObject = 16 << 20

// A Kind is a kind of object.
type Kind string

const (
	Blob   Kind = "blob"
	Tree   Kind = "tree"
	Commit Kind = "commit"
)

// An Object is an object of git. It is immutable.
type Object struct {
	Hash   string // in hexadecimal
	Kind   Kind
	Size   int64  // size of the content in bytes
	Packed []byte // content, compressed with zlib
}

// A Source returns the object with a hash, or NotFound.
type Source func(ctx context.Context, hash string) (Object, error)

// HashOf returns the hash of an object.
func HashOf(kind Kind, content []byte) string {
	t, err := plumbing.ParseObjectType(string(kind))
	if err != nil {
		panic(err) // unreachable: all kinds are valid in git
	}
	return plumbing.ComputeHash(t, content).String()
}

// writers are reused, since a new writer has to clear most of a megabyte.
var writers = sync.Pool{New: func() any {
	z, err := zlib.NewWriterLevel(nil, zlib.BestSpeed)
	if err != nil {
		panic(err) // unreachable: the level exists
	}
	return z
}}

// New returns the object with a content.
func New(kind Kind, content []byte) (Object, error) {
	z := writers.Get().(*zlib.Writer)
	defer writers.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	_, err := z.Write(content)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return Object{}, engi.Errorf(engi.Internal, "pack an object of git: %v", err)
	}
	return Object{HashOf(kind, content), kind, int64(len(content)), b.Bytes()}, nil
}

// Content returns the content of an object.
func (o Object) Content() ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(o.Packed))
	if err != nil {
		return nil, o.damaged(err)
	}
	content := make([]byte, o.Size)
	if _, err := io.ReadFull(z, content); err != nil {
		return nil, o.damaged(err)
	}
	return content, nil
}

func (o Object) damaged(why any) error {
	return engi.Errorf(engi.Internal, "the %s %s is damaged: %v", o.Kind, o.Hash, why)
}
