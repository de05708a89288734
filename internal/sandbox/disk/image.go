package disk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

const (
	maxManifest = 8 << 20 // bytes; maximum size of a manifest, an index or a configuration
	maxLayers   = 500
)

// imageSource returns the source of an image in a registry. It resolves tags now, so that the
// digest identifies the image.
func (t *Templates) imageSource(ctx context.Context, ref string, owner engi.Owner, login engi.RegistryLogin) (source, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return source{}, invalid("%q is neither a known base nor an image reference: %v", ref, err).
			WithRemedy("write the base as debian:SUITE, ubuntu:SUITE, oci:IMAGE, oci-archive:PATH, docker-archive:PATH, tar:PATH, template:NAME or host")
	}
	explain, auth := registryError, remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if owner != "" {
		// Builds of owners must not use the node's logins.
		explain, auth = ownersRegistryError, remote.WithAuth(authn.Anonymous)
	}
	if login != (engi.RegistryLogin{}) {
		auth = remote.WithAuth(&authn.Basic{Username: login.User, Password: login.Password})
	}
	transport, err := t.registryTransport(owner)
	if err != nil {
		return source{}, err
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(limitedTransport{transport}), auth, remote.WithPlatform(platform()),
	}
	desc, err := remote.Get(r, options...)
	if err != nil {
		return source{}, explain(ref, err)
	}
	img, err := desc.Image()
	if err != nil {
		return source{}, explain(ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return source{}, explain(ref, err)
	}
	src := source{inputs: []string{"image " + digest.String()}, step: "pull " + ref}
	src.unpack = func(ctx context.Context, j *job) error {
		// Fetch by digest, since the tag may have changed, and with this context.
		again, err := remote.Image(r.Context().Digest(digest.String()), append(slices.Clone(options), remote.WithContext(ctx))...)
		if err != nil {
			return explain(ref, err)
		}
		return j.flatten(ctx, ref, again, explain)
	}
	return src, nil
}

// registryTransport returns the transport that pulls images for an owner, or for the node.
func (t *Templates) registryTransport(owner engi.Owner) (http.RoundTripper, error) {
	if owner == "" {
		client, err := t.client()
		if err != nil {
			return nil, err
		}
		return client.Transport, nil
	}
	if t.o.Owners.Registry == nil {
		return nil, engi.Errorf(engi.Unsupported, "this node pulls no images for owners").WithRemedy("start from a template")
	}
	roots, err := t.roots()
	if err != nil {
		return nil, err
	}
	return t.o.Owners.Registry(roots), nil
}

// archiveSource returns the source of an image in a file: a tar of an OCI layout, or the output of
// docker save.
func (t *Templates) archiveSource(ctx context.Context, kind, file string) (source, error) {
	sum, err := sumFile(file, t.openSource)
	if err != nil {
		return source{}, err
	}
	src := source{inputs: []string{kind + " " + sum}, step: "unpack " + filepath.Base(file)}
	src.unpack = func(ctx context.Context, j *job) error {
		if kind == "docker-archive" {
			img, err := tarball.Image(func() (io.ReadCloser, error) { return t.openSource(file) }, nil)
			if err != nil {
				return invalid("%s is not an archive of docker save: %v", file, err)
			}
			return j.flatten(ctx, file, img, registryError)
		}
		img, err := t.layoutImage(ctx, j, file)
		if err != nil {
			return err
		}
		err = j.flatten(ctx, file, img, registryError)
		return errors.Join(err, removeTree(filepath.Join(j.dir, "layout")))
	}
	return src, nil
}

// layoutImage unpacks an OCI layout next to the root and finds the image for this
// machine in it.
func (t *Templates) layoutImage(ctx context.Context, j *job, file string) (v1.Image, error) {
	f, err := t.openSource(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	beside, err := tree.Open(j.dir)
	if err != nil {
		return nil, err
	}
	defer beside.Close()
	if err := beside.MkdirAll("layout", 0o700, tree.Owner{}); err != nil {
		return nil, err
	}
	at := filepath.Join(j.dir, "layout")
	box, err := tree.Open(at)
	if err != nil {
		return nil, err
	}
	defer box.Close()
	plain, err := decompress(f)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	if _, err := box.Extract(ctx, plain, tree.ExtractOptions{Budget: newBudget(), FilesOnly: true}); err != nil {
		return nil, err
	}
	bad := func(err error) error { return invalid("%s is not an OCI archive: %v", file, err) }
	index, err := layout.ImageIndexFromPath(at)
	if err != nil {
		return nil, bad(err)
	}
	for depth := 0; depth < 4; depth++ {
		m, err := index.IndexManifest()
		if err != nil {
			return nil, bad(err)
		}
		var found *v1.Descriptor
		for _, d := range m.Manifests {
			if d.Platform == nil || match.Platforms(platform())(d) {
				found = &d
				break
			}
		}
		if found == nil {
			return nil, invalid("%s has no image for linux/%s", file, runtime.GOARCH)
		}
		if found.MediaType.IsImage() {
			img, err := index.Image(found.Digest)
			if err != nil {
				return nil, bad(err)
			}
			return img, nil
		}
		if index, err = index.ImageIndex(found.Digest); err != nil {
			return nil, bad(err)
		}
	}
	return nil, invalid("%s has too many nested indexes", file)
}

// flatten applies the layers of an image to the root, lowest first, and reads the
// configuration. It passes errors from the image's source through explain.
func (j *job) flatten(ctx context.Context, ref string, img v1.Image, explain func(ref string, err error) error) error {
	manifest, err := img.Manifest()
	if err != nil {
		return explain(ref, err)
	}
	if manifest.Config.Size > maxManifest {
		return invalid("the configuration of %s has %d bytes", ref, manifest.Config.Size)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return explain(ref, err)
	}
	if config.OS != "" && config.OS != "linux" || config.Architecture != "" && config.Architecture != runtime.GOARCH {
		return invalid("%s is for %s/%s, this machine is linux/%s", ref, config.OS, config.Architecture, runtime.GOARCH)
	}
	layers, err := img.Layers()
	if err != nil {
		return explain(ref, err)
	}
	if len(layers) > maxLayers {
		return invalid("%s has %d layers", ref, len(layers))
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		return invalid("%s has %d layers, but its configuration names %d", ref, len(layers), len(config.RootFS.DiffIDs))
	}
	var total int64
	for _, d := range manifest.Layers {
		total += d.Size
	}
	progress := &meter{rep: j.report, total: total}
	budget := j.room.budget()
	for i, layer := range layers {
		j.report.log(fmt.Sprintf("layer %d of %d: %s", i+1, len(layers), manifest.Layers[i].Digest))
		if err := j.apply(ctx, layer, config.RootFS.DiffIDs[i], budget, progress); err != nil {
			return explain(ref, err)
		}
	}
	j.image.env = map[string]string{}
	for _, kv := range config.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && recipe.ValidVariable(k, v) {
			j.image.env[k] = v
		}
	}
	j.image.user, j.image.workDir = config.Config.User, config.Config.WorkingDir
	for port := range config.Config.ExposedPorts {
		number, protocol, _ := strings.Cut(port, "/")
		if n, err := strconv.Atoi(number); err == nil && n > 0 && n < 65536 && protocol != "udp" {
			j.image.ports = append(j.image.ports, n)
		}
	}
	slices.Sort(j.image.ports)
	return nil
}

// apply unpacks a layer and checks both of its digests: the digest of the compressed blob,
// from the manifest, and the digest of the content, from the configuration. Layers are
// streamed, so a bad layer is detected only after it was unpacked; the build is
// then discarded.
func (j *job) apply(ctx context.Context, layer v1.Layer, want v1.Hash, budget *tree.Budget, progress io.Writer) error {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	blob, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer blob.Close()
	packed := sha256.New()
	wire := &errReader{r: blob}
	in := io.TeeReader(wire, io.MultiWriter(packed, progress))
	plain, err := decompress(in)
	if err != nil {
		return cmp.Or(wire.err, err)
	}
	defer plain.Close()
	unpacked := sha256.New()
	out := io.TeeReader(plain, unpacked)
	skipped, err := j.tree.Extract(ctx, out, tree.ExtractOptions{Whiteouts: true, Budget: budget})
	if err != nil {
		return cmp.Or(wire.err, err)
	}
	// The stream, which the digests cover, may be longer than the archive.
	if _, err := io.Copy(io.Discard, out); err != nil {
		return cmp.Or(wire.err, error(invalid("layer %s is broken: %v", digest, err)))
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	logSkipped(j.report, skipped)
	for _, check := range []struct {
		what string
		want v1.Hash
		got  []byte
	}{{"layer", digest, packed.Sum(nil)}, {"content of layer", want, unpacked.Sum(nil)}} {
		if got := hex.EncodeToString(check.got); check.want.Algorithm != "sha256" || check.want.Hex != got {
			return invalid("the %s %s has the digest sha256:%s, which differs from the digest in the image", check.what, check.want, got).
				WithRemedy("do not use this image until its publisher has explained this")
		}
	}
	return nil
}

// An errReader records errors of the transport, to tell them from errors in the
// content.
type errReader struct {
	r   io.Reader
	err error // first error other than io.EOF
}

func (r *errReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF && r.err == nil {
		r.err = err
	}
	return n, err
}

func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

// registryError classifies an error of a registry or its client.
func registryError(ref string, err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return engi.Errorf(engi.Expired, "pull %s: %v", ref, err)
	}
	// The client has no error type for mismatches.
	if text := err.Error(); strings.Contains(text, "verifying sha256") || strings.Contains(text, "does not match requested digest") ||
		strings.Contains(text, "verifying manifest") || strings.Contains(text, "verifying SHA256") {
		return invalid("pull %s: %v", ref, err).WithRemedy("do not use this image until its publisher has explained this")
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch {
		case e.StatusCode == http.StatusNotFound:
			return invalid("pull %s: the registry does not have it", ref).WithRemedy("correct the reference under 'base'")
		case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
			return engi.Errorf(engi.Denied, "pull %s: %v", ref, err).WithRemedy("log in to the registry as the user engi runs as ('docker login' or 'podman login'), or correct the reference")
		}
	}
	return engi.Errorf(engi.Unavailable, "pull %s: %v", ref, err).WithRemedy("check this machine's network, proxy and registry, then build again")
}

// ownersRegistryError is registryError for builds of owners. Its text contains nothing
// from a server's answer, since the reference may lead to any server.
func ownersRegistryError(ref string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return engi.Errorf(engi.Expired, "pull %s: it was cancelled, or took too long", ref)
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		kind := engi.Invalid
		switch code := e.StatusCode; {
		case code == http.StatusUnauthorized || code == http.StatusForbidden:
			kind = engi.Denied
		case code >= 500 || code == http.StatusTooManyRequests:
			kind = engi.Unavailable
		}
		return engi.Errorf(kind, "pull %s: the registry answers with status %d", ref, e.StatusCode).
			WithRemedy("correct the reference, or give the login for the registry with the build")
	}
	ours, ok := errors.AsType[*engi.Error](err)
	if _, way := errors.AsType[*url.Error](err); ok && !way {
		return err
	}
	if ok && ours.Kind == engi.Denied {
		return engi.Errorf(engi.Denied, "pull %s: its registry is not at a public address, or refers to one that is not", ref).
			WithRemedy("use a public registry, or have the operator add HOST:PORT to builds.registries")
	}
	return engi.Errorf(engi.Unavailable, "pull %s: the registry does not answer as registries do, or with something else than the image", ref).
		WithRemedy("check the reference, then build again")
}

// A limitedTransport bounds responses that the client reads into memory: all except
// layers, wherever the registry stores them.
type limitedTransport struct{ next http.RoundTripper }

func (l limitedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request // the request that was redirected to this one
	}
	if err == nil && path.Base(path.Dir(first.URL.Path)) != "blobs" {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxManifest), resp.Body}
	}
	return resp, err
}
