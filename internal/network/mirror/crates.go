package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// crates serves crates.io's sparse index and the host of its files:
//
//	index.crates.io/config.json, /AB/CD/NAME
//	static.crates.io/crates/NAME/VERSION/download, /crates/NAME/NAME-VERSION.crate
type crates struct{ b *Server }

const (
	crateIndex = "index.crates.io"
	crateFiles = "static.crates.io"
)

func (*crates) name() string    { return "crates" }
func (*crates) hosts() []string { return []string{crateIndex, crateFiles} }

var (
	crateName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	crateVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9.+-]{1,100})?$`)
)

func (c *crates) item(host, path string) (*item, error) {
	parts := strings.Split(path[1:], "/")
	last := parts[len(parts)-1]
	if host == crateIndex {
		switch {
		case path == "/config.json":
			return &item{fixed: []byte(`{"dl":"https://` + crateFiles + `/crates","api":"https://crates.io"}`), media: "application/json"}, nil
		case crateName.MatchString(last) && path == "/"+cratePath(last):
			return c.index(last), nil
		}
		return nil, notServed("%.100q is no crate of the index", path)
	}
	if len(parts) < 3 || parts[0] != "crates" || !crateName.MatchString(parts[1]) {
		return nil, notServed("%.100q is no crate", path)
	}
	name, version := parts[1], ""
	if len(parts) == 4 && last == "download" {
		version = parts[2]
	} else if v, ok := strings.CutPrefix(last, name+"-"); ok && len(parts) == 3 {
		version = strings.TrimSuffix(v, ".crate")
	}
	if !crateVersion.MatchString(version) {
		return nil, notServed("%.100q is no version of crate %s", path, name)
	}
	return c.file(name, version), nil
}

// cratePath returns the path of a crate in the index.
func cratePath(name string) string {
	n := strings.ToLower(name)
	switch len(n) {
	case 1, 2:
		return string('0'+rune(len(n))) + "/" + n
	case 3:
		return "3/" + n[:1] + "/" + n
	}
	return n[:2] + "/" + n[2:4] + "/" + n
}

// A crateLine is the line of one version in the index.
type crateLine struct {
	Name    string `json:"name"`
	Version string `json:"vers"`
	Sum     string `json:"cksum"`
}

func (c *crates) index(name string) *item {
	name = strings.ToLower(name)
	return &item{of: c, key: "crates/" + name, url: c.b.up["crates"].String() + "/" + cratePath(name), media: "text/plain; charset=utf-8", mutable: true,
		rewrite: func(raw []byte) ([]byte, error) {
			_, err := findCrate(raw, "")
			return raw, err
		}}
}

// findCrate returns a version's line in an index, or nil if there is none.
func findCrate(raw []byte, version string) (found *crateLine, err error) {
	for line := range bytes.Lines(raw) {
		var l crateLine
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if json.Unmarshal(line, &l) != nil || l.Name == "" || l.Version == "" {
			return nil, engi.Errorf(engi.Conflict, "a line of the index is not as it should be")
		}
		if l.Version == version {
			found = &l
		}
	}
	return found, nil
}

func (c *crates) file(name, version string) *item {
	key := "crates/" + name + "-" + version + ".crate"
	return &item{of: c, key: key, media: "application/gzip", locate: func(ctx context.Context) (string, hash, error) {
		raw, ok, err := c.b.text(ctx, c.index(name), maxMetadata)
		if err != nil {
			return "", hash{}, err
		}
		var l *crateLine
		if ok {
			if l, err = findCrate(raw, version); err != nil {
				return "", hash{}, err
			}
		}
		if l == nil {
			return "", hash{}, engi.Errorf(engi.NotFound, "the index of crates has no %s %s", name, version)
		}
		want, ok := newHash("sha256", l.Sum)
		if !ok {
			return "", hash{}, engi.Errorf(engi.Conflict, "%s: the index has no hash of it", key)
		}
		config, ok, err := c.b.text(ctx, &item{of: c, key: "crates/config.json", url: c.b.up["crates"].String() + "/config.json", mutable: true}, 64<<10)
		if err != nil {
			return "", hash{}, err
		}
		var x struct {
			DL string `json:"dl"`
		}
		if !ok || json.Unmarshal(config, &x) != nil || x.DL == "" {
			return "", hash{}, engi.Errorf(engi.Conflict, "the index of crates has no address of files")
		}
		return crateURL(x.DL, l), want, nil
	}}
}

// crateURL fills in the template of an index's configuration.
func crateURL(dl string, l *crateLine) string {
	prefix := strings.TrimSuffix(cratePath(l.Name), "/"+strings.ToLower(l.Name))
	filled := strings.NewReplacer("{crate}", l.Name, "{version}", url.PathEscape(l.Version), "{prefix}", prefix, "{lowerprefix}", prefix, "{sha256-checksum}", l.Sum).Replace(dl)
	if filled == dl {
		return strings.TrimSuffix(dl, "/") + "/" + l.Name + "/" + url.PathEscape(l.Version) + "/download"
	}
	return filled
}
