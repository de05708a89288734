package blob

import (
	"bytes"
	"context"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/engi-dev/engi/internal/engi"
)

// A Bucket stores blobs as objects of a bucket, below a prefix.
type Bucket struct {
	client *minio.Client
	bucket string
	prefix string // prefix of object names, with a slash at its end; may be empty
}

var _ engi.Blobs = (*Bucket)(nil)

// A place is the location of blobs: a directory or a bucket.
type place struct {
	dir                    string // absolute directory; empty for a bucket
	endpoint               string // address of the service: HOST[:PORT]
	bucket, prefix, region string
	plain                  bool // use HTTP without TLS
}

var bucketForm = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Check reports Invalid unless at is a valid place: an absolute directory, or
// s3://HOST[:PORT]/BUCKET[/PREFIX][?region=R], with s3+http for plain HTTP.
func Check(at string) error {
	p, err := parse(at)
	if err == nil && p.dir != "" && !filepath.IsAbs(p.dir) {
		err = engi.Errorf(engi.Invalid, "the store of workspaces %.200q is neither an absolute directory nor s3://", p.dir).WithRemedy("write a path that begins with /, or s3://HOST[:PORT]/BUCKET[/PREFIX]")
	}
	return err
}

func parse(text string) (place, error) {
	if !strings.Contains(text, "://") {
		return place{dir: text}, nil
	}
	u, err := url.Parse(text)
	bad := func(problem string) (place, error) {
		return place{}, engi.Errorf(engi.Invalid, "the store of workspaces %s", problem).
			WithRemedy("write a directory, or s3://HOST[:PORT]/BUCKET[/PREFIX]; credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the server")
	}
	switch {
	case err != nil:
		return bad("is not a URL")
	case u.Scheme != "s3" && u.Scheme != "s3+http":
		return bad("is neither a directory nor s3://")
	case u.User != nil:
		return bad("has a user or a password in it")
	}
	bucket, prefix, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if u.Host == "" || !bucketForm.MatchString(bucket) {
		return bad("names no host, or no bucket")
	}
	if prefix != "" {
		prefix += "/"
	}
	return place{endpoint: u.Host, bucket: bucket, prefix: prefix, region: u.Query().Get("region"), plain: u.Scheme == "s3+http"}, nil
}

// Open returns the store at a place. It reads the credentials for a bucket from the
// environment variables that AWS's tools use.
func Open(at string) (engi.Blobs, error) {
	p, err := parse(at)
	switch {
	case err != nil:
		return nil, err
	case p.dir != "":
		return OpenDir(p.dir)
	case os.Getenv("AWS_ACCESS_KEY_ID") == "" || os.Getenv("AWS_SECRET_ACCESS_KEY") == "":
		return nil, engi.Errorf(engi.Invalid, "there are no credentials for the store of workspaces at %s", p.endpoint).
			WithRemedy("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if there is one, for the server")
	}
	client, err := minio.New(p.endpoint, &minio.Options{Creds: credentials.NewEnvAWS(), Secure: !p.plain, Region: p.region})
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "the store of workspaces: %v", err)
	}
	return &Bucket{client, p.bucket, p.prefix}, nil
}

// Put implements [engi.Blobs].
func (b *Bucket) Put(ctx context.Context, name string, data []byte) error {
	_, err := b.client.PutObject(ctx, b.bucket, b.prefix+name, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
	return b.classify(ctx, "store", name, err)
}

// Get implements [engi.Blobs].
func (b *Bucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	o, err := b.client.GetObject(ctx, b.bucket, b.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.classify(ctx, "read", name, err)
	}
	defer o.Close()
	if _, err := o.Stat(); err != nil {
		return nil, b.classify(ctx, "read", name, err)
	}
	data, err := readAll(o, limit)
	if err != nil && !engi.Is(err, engi.Conflict) {
		return nil, b.classify(ctx, "read", name, err)
	}
	return data, err
}

// List implements [engi.Blobs].
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[engi.Blob, error] {
	return func(yield func(engi.Blob, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for o := range b.client.ListObjects(ctx, b.bucket, minio.ListObjectsOptions{Prefix: b.prefix + prefix, Recursive: true}) {
			if o.Err != nil {
				yield(engi.Blob{}, b.classify(ctx, "list", prefix, o.Err))
				return
			}
			if !yield(engi.Blob{Name: strings.TrimPrefix(o.Key, b.prefix), Size: o.Size}, nil) {
				return
			}
		}
	}
}

// Remove implements [engi.Blobs].
func (b *Bucket) Remove(ctx context.Context, name string) error {
	err := b.classify(ctx, "remove", name, b.client.RemoveObject(ctx, b.bucket, b.prefix+name, minio.RemoveObjectOptions{}))
	return engi.Ignore(err, engi.NotFound)
}

func (b *Bucket) classify(ctx context.Context, act, name string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%s %s: %v", act, name, context.Cause(ctx))
	}
	switch r := minio.ToErrorResponse(err); {
	case r.Code == minio.NoSuchKey || r.StatusCode == http.StatusNotFound && r.Code != minio.NoSuchBucket:
		return engi.Errorf(engi.NotFound, "%s %s: the blob does not exist", act, name)
	case r.Code == minio.NoSuchBucket:
		return engi.Errorf(engi.Unavailable, "%s %s: there is no bucket %s", act, name, b.bucket).WithRemedy("the operator creates it")
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		return engi.Errorf(engi.Unavailable, "%s %s: the store refuses the node's credentials: %s", act, name, r.Code).WithRemedy("the operator checks AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy")
	case r.Code != "":
		return engi.Errorf(engi.Unavailable, "%s %s: the store says %s: %s", act, name, r.Code, r.Message)
	}
	return engi.Errorf(engi.Unavailable, "%s %s: %v", act, name, err)
}
