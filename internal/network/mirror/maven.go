package mirror

import (
	"context"
	"regexp"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// maven serves Maven Central. A file must have the hash in the file next to it, .sha512
// or else .sha1. Metadata of artifacts is mutable.
type maven struct{ b *Server }

func (*maven) name() string    { return "maven" }
func (*maven) hosts() []string { return []string{"repo1.maven.org", "repo.maven.apache.org"} }

var mavenPath = regexp.MustCompile(`^[A-Za-z0-9._+/-]{1,512}$`)

func (m *maven) item(_, path string) (*item, error) {
	rest, ok := strings.CutPrefix(path, "/maven2/")
	file := rest[strings.LastIndexByte(rest, '/')+1:]
	if !ok || !mavenPath.MatchString(rest) || !strings.Contains(rest, "/") || !strings.Contains(file, ".") {
		return nil, notServed("%.100q is no artifact", path)
	}
	return m.file(rest), nil
}

func (m *maven) file(path string) *item {
	it := &item{of: m, key: "maven/" + path, url: m.b.up["maven"].String() + "/" + path, media: "application/octet-stream"}
	file := path[strings.LastIndexByte(path, '/')+1:]
	it.mutable = strings.HasPrefix(file, "maven-metadata")
	for _, beside := range []string{".sha1", ".sha256", ".sha512", ".md5", ".asc"} {
		it.meta = it.meta || strings.HasSuffix(file, beside)
	}
	if it.mutable || it.meta {
		it.media = "text/plain; charset=utf-8"
		return it
	}
	it.locate = func(ctx context.Context) (string, hash, error) {
		for _, algorithm := range []string{"sha512", "sha1"} {
			raw, ok, err := m.b.text(ctx, m.file(path+"."+algorithm), 64<<10)
			if err != nil {
				return "", hash{}, err
			}
			if f := strings.Fields(string(raw)); ok && len(f) > 0 {
				if want, ok := newHash(algorithm, f[0]); ok {
					return it.url, want, nil
				}
				return "", hash{}, engi.Errorf(engi.Conflict, "%s.%s has no hash", it.key, algorithm)
			}
		}
		return "", hash{}, engi.Errorf(engi.NotFound, "Maven has no %s with a checksum", path)
	}
	return it
}
