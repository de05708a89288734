package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
)

// Docs configures the documentation that agents search.
type Docs struct {
	Off       bool         `toml:"off" env:"OFF" help:"keep no documentation, and offer agents no search"`
	Refresh   Duration     `toml:"refresh" env:"REFRESH" help:"age at which fetched documents are checked for changes"`
	Hosts     []string     `toml:"hosts" env:"HOSTS" help:"rules for hosts that owners' documents may be fetched from, like *.example.com:443; without any, owners send the text"`
	Documents int          `toml:"documents" env:"DOCUMENTS" help:"number of documents of one owner; those of the node are not limited"`
	Bytes     Bytes        `toml:"bytes" env:"BYTES" help:"text of one owner's documents"`
	Sources   []DocsSource `toml:"sources" env:"-" help:"documents that everybody finds: package, urls, files; those of sandbox.dependencies are added"`
}

// A DocsSource names the documents of a package.
type DocsSource struct {
	Package string   `toml:"package"`
	URLs    []string `toml:"urls"`
	Files   []string `toml:"files"` // absolute paths of files or directories, or patterns
}

const (
	defaultRefresh = 24 * time.Hour
	leastRefresh   = time.Second
)

func defaultDocs() Docs {
	return Docs{Refresh: Duration(defaultRefresh), Documents: 1000, Bytes: 64 << 20}
}

// Documents returns the documents that all owners find. It includes documents of
// session packages only if sessions are enabled, because code elsewhere cannot import them.
func (c Config) Documents() (specs []engi.DocumentSpec, files []docs.File) {
	add := func(name string, urls []string) {
		for _, u := range urls {
			specs = append(specs, engi.DocumentSpec{Package: name, URL: u})
		}
	}
	if c.Sessions.Enabled {
		for _, d := range c.Sessions.Packages() {
			add(d.Package, d.Docs)
		}
	}
	for _, s := range c.Docs.Sources {
		add(s.Package, s.URLs)
		for _, f := range s.Files {
			files = append(files, docs.File{Package: s.Package, Path: f})
		}
	}
	return specs, files
}

func (d Docs) validate() error {
	if d.Off {
		return nil
	}
	if d.Refresh < Duration(leastRefresh) {
		return engi.Errorf(engi.Invalid, "docs.refresh is %v", d.Refresh).WithRemedy("use at least %v, like 24h", Duration(leastRefresh))
	}
	if d.Documents < 0 || d.Bytes < 0 {
		return engi.Errorf(engi.Invalid, "docs has a negative value")
	}
	for i, s := range d.Sources {
		if len(s.URLs)+len(s.Files) == 0 {
			return engi.Errorf(engi.Invalid, "docs.sources[%d] names no documents", i).WithRemedy("set urls or files")
		}
		for _, u := range s.URLs {
			if !webAddress(u) {
				return engi.Errorf(engi.Invalid, "docs.sources[%d]: %.100q is not a URL", i, u).WithRemedy("write it like https://example.com/sdk.md")
			}
		}
		if j := slices.IndexFunc(s.Files, func(f string) bool { return !filepath.IsAbs(f) }); j >= 0 {
			return engi.Errorf(engi.Invalid, "docs.sources[%d]: %.100q is not absolute", i, s.Files[j]).WithRemedy("write it like /srv/docs or /srv/docs/*.md")
		}
	}
	return nil
}

func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
}
