package mirror

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// npm serves the registry of npm, pnpm, yarn, bun and deno:
//
//	/NAME, /@SCOPE/NAME           the package, with all versions
//	/NAME/VERSION                 the manifest of one version
//	/NAME/-/FILE-VERSION.tgz      its archive
type npm struct{ b *Server }

const npmHost = "registry.npmjs.org"

func (*npm) name() string    { return "npm" }
func (*npm) hosts() []string { return []string{npmHost, "registry.yarnpkg.com"} }

var (
	npmName    = regexp.MustCompile(`^(?:@[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,100}/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,213}$`)
	npmVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+~_-]{0,127}$`)
	npmExact   = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?$`)
)

// packument is the media type of an abbreviated package, with only the fields that an installation needs.
const packument = "application/vnd.npm.install-v1+json"

func (n *npm) item(_, path string) (*item, error) {
	name, rest := path[1:], ""
	parts := strings.Split(name, "/")
	scoped := 0
	if strings.HasPrefix(name, "@") && len(parts) > 1 {
		scoped = 1
	}
	name, rest = strings.Join(parts[:scoped+1], "/"), strings.Join(parts[scoped+1:], "/")
	if !npmName.MatchString(name) || name == "-" {
		return nil, notServed("%.100q is no package of npm", path)
	}
	file, archive := strings.CutPrefix(rest, "-/")
	switch {
	case rest == "":
		return n.packument(name), nil
	case archive:
		version, ok := strings.CutPrefix(file, name[strings.LastIndexByte(name, '/')+1:]+"-")
		version, tgz := strings.CutSuffix(version, ".tgz")
		if !ok || !tgz || !npmVersion.MatchString(version) {
			return nil, notServed("%.100q is no archive of %s", file, name)
		}
		return n.archive(name, version), nil
	case npmVersion.MatchString(rest):
		return n.manifest(name, rest), nil
	}
	return nil, notServed("%.100q is no version of %s", rest, name)
}

func (n *npm) url(parts ...string) string {
	return n.b.up["npm"].String() + "/" + strings.Join(parts, "/")
}

// packument returns the item of a package, always abbreviated: installations need no more, and
// it has a tenth of the size.
func (n *npm) packument(name string) *item {
	return &item{of: n, key: "npm/" + name, url: n.url(strings.Replace(name, "/", "%2f", 1)), accept: packument + ", application/json;q=0.8", media: "application/json",
		mutable: true, rewrite: func(raw []byte) ([]byte, error) { return rewritePackument(name, raw) }}
}

func (n *npm) manifest(name, version string) *item {
	return &item{of: n, key: "npm/" + name + "@" + version, url: n.url(name, url.PathEscape(version)), accept: "application/json", media: "application/json",
		meta: true, mutable: !npmExact.MatchString(version),
		rewrite: func(raw []byte) ([]byte, error) {
			if _, err := parseDist(raw); err != nil {
				return nil, err
			}
			return raw, nil
		},
		render: func(raw []byte, _ string) ([]byte, string, error) {
			out, err := rewriteManifest(name, raw)
			return out, "application/json", err
		}}
}

func (n *npm) archive(name, version string) *item {
	key := "npm/" + name + "@" + version + ".tgz"
	return &item{of: n, key: key, media: "application/octet-stream", locate: func(ctx context.Context) (string, hash, error) {
		raw, ok, err := n.b.text(ctx, n.manifest(name, version), maxMetadata)
		if err != nil {
			return "", hash{}, err
		}
		if !ok {
			return "", hash{}, engi.Errorf(engi.NotFound, "npm has no %s@%s", name, version)
		}
		d, err := parseDist(raw)
		if err != nil {
			return "", hash{}, engi.Errorf(engi.Conflict, "%s: %v", key, err)
		}
		if d.version != version {
			return "", hash{}, engi.Errorf(engi.NotFound, "npm has no %s@%s", name, version)
		}
		return d.tarball, d.want, nil
	}}
}

// A dist is the part of a manifest that describes the archive.
type dist struct {
	version, tarball string
	want             hash
}

func parseDist(raw []byte) (d dist, err error) {
	var m struct {
		Version string `json:"version"`
		Dist    struct {
			Integrity string `json:"integrity"`
			Shasum    string `json:"shasum"`
			Tarball   string `json:"tarball"`
		} `json:"dist"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return d, engi.Errorf(engi.Conflict, "the manifest is not JSON")
	}
	d = dist{version: m.Version, tarball: m.Dist.Tarball}
	ok := false
	for text := range strings.FieldsSeq(m.Dist.Integrity) {
		text, _, _ = strings.Cut(text, "?")
		algorithm, sum, _ := strings.Cut(text, "-")
		raw, err := base64.StdEncoding.DecodeString(sum)
		if h := (hash{algorithm, raw}); err == nil && h.new() != nil && h.new().Size() == len(raw) && (!ok || len(raw) > len(d.want.sum)) {
			d.want, ok = h, true
		}
	}
	if !ok && m.Dist.Integrity == "" {
		d.want, ok = newHash("sha1", m.Dist.Shasum)
	}
	if !ok {
		return d, engi.Errorf(engi.Conflict, "the manifest has no hash of the archive")
	}
	return d, nil
}

type object = map[string]json.RawMessage

// rewritePackument replaces the URL of every archive by its URL in the public registry.
func rewritePackument(name string, raw []byte) ([]byte, error) {
	var all object
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, engi.Errorf(engi.Conflict, "it is not JSON")
	}
	var versions object
	if err := json.Unmarshal(all["versions"], &versions); err != nil {
		return nil, engi.Errorf(engi.Conflict, "it has no versions")
	}
	for v, m := range versions {
		if !npmVersion.MatchString(v) {
			delete(versions, v)
			continue
		}
		out, err := rewriteDist(name, v, m)
		if err != nil {
			return nil, err
		}
		versions[v] = out
	}
	var err error
	if all["versions"], err = json.Marshal(versions); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return json.Marshal(all)
}

func rewriteManifest(name string, raw []byte) ([]byte, error) {
	d, err := parseDist(raw)
	if err != nil {
		return nil, err
	}
	return rewriteDist(name, d.version, raw)
}

func rewriteDist(name, version string, raw []byte) ([]byte, error) {
	var m, d object
	if json.Unmarshal(raw, &m) != nil || m["dist"] == nil || json.Unmarshal(m["dist"], &d) != nil || m == nil || d == nil {
		return nil, engi.Errorf(engi.Conflict, "version %.50s is not as it should be", version)
	}
	var err error
	if d["tarball"], err = json.Marshal("https://" + npmHost + "/" + name + "/-/" + name[strings.LastIndexByte(name, '/')+1:] + "-" + version + ".tgz"); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if m["dist"], err = json.Marshal(d); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return json.Marshal(m)
}
