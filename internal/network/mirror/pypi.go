package mirror

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strings"

	tokens "golang.org/x/net/html"

	"github.com/engi-dev/engi/internal/engi"
)

// pypi serves Python's index according to PEP 503 and PEP 691, and the host of its
// files:
//
//	pypi.org/simple/PROJECT/
//	files.pythonhosted.org/packages/…/FILE, and FILE.metadata
//
// Only the name in a file's path is used, because it never changes: a mirror has
// other directories.
type pypi struct{ b *Server }

const (
	pypiHost  = "pypi.org"
	pypiFiles = "files.pythonhosted.org"
	pypiJSON  = "application/vnd.pypi.simple.v1+json"
	pypiHTML  = "text/html"
)

func (*pypi) name() string    { return "pypi" }
func (*pypi) hosts() []string { return []string{pypiHost, pypiFiles} }

var (
	pypiProject = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?$`)
	pypiRuns    = regexp.MustCompile(`[-_.]+`)
	pypiPath    = regexp.MustCompile(`/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$`)
	pypiFile    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}$`)
)

func (p *pypi) item(host, path string) (*item, error) {
	if host == pypiHost {
		project, ok := strings.CutPrefix(path, "/simple/")
		project = normalProject(strings.TrimSuffix(project, "/"))
		if !ok || !pypiProject.MatchString(project) {
			return nil, notServed("%.100q is no project of PyPI", path)
		}
		return p.index(project), nil
	}
	file := path[strings.LastIndexByte(path, '/')+1:]
	if !strings.HasPrefix(path, "/packages/") || !pypiFile.MatchString(file) || len(projectsOf(strings.TrimSuffix(file, ".metadata"))) == 0 {
		return nil, notServed("%.100q is no file of PyPI", path)
	}
	return p.file(file), nil
}

func normalProject(name string) string {
	return pypiRuns.ReplaceAllString(strings.ToLower(name), "-")
}

// projectsOf returns the projects to which a file may belong: the name of a source
// archive may contain dashes besides the one before its version.
func projectsOf(file string) (all []string) {
	for i := len(file) - 1; i > 0; i-- {
		if file[i] == '-' && i+1 < len(file) && (strings.HasSuffix(file, ".whl") || file[i+1] >= '0' && file[i+1] <= '9') {
			if name := normalProject(file[:i]); pypiProject.MatchString(name) {
				all = append(all, name)
			}
		}
	}
	if strings.HasSuffix(file, ".whl") && len(all) > 0 {
		return all[len(all)-1:]
	}
	return all[:min(len(all), 4)]
}

func (p *pypi) index(project string) *item {
	base := p.b.up["pypi"].JoinPath(project).String() + "/"
	return &item{of: p, key: "pypi/" + project, url: base, accept: pypiJSON + ", text/html;q=0.1", media: pypiJSON, mutable: true,
		rewrite: func(raw []byte) ([]byte, error) { return normalIndex(base, project, raw) }, render: renderIndex}
}

func (p *pypi) file(file string) *item {
	key := "pypi/files/" + file
	name, metadata := strings.CutSuffix(file, ".metadata")
	return &item{of: p, key: key, media: "application/octet-stream", meta: metadata, locate: func(ctx context.Context) (string, hash, error) {
		for _, project := range projectsOf(name) {
			raw, ok, err := p.b.text(ctx, p.index(project), maxMetadata)
			if err != nil {
				return "", hash{}, err
			}
			var x pypiIndex
			if ok && json.Unmarshal(raw, &x) != nil {
				return "", hash{}, engi.Errorf(engi.Conflict, "the index of %s cannot be read", project)
			}
			for _, f := range x.Files {
				if f.Filename != name {
					continue
				}
				if metadata {
					want, ok := newHash("sha256", f.metadataHash())
					if !ok {
						return "", hash{}, engi.Errorf(engi.NotFound, "PyPI has no metadata of %s", name)
					}
					return f.URL + ".metadata", want, nil
				}
				want, ok := newHash("sha256", f.Hashes["sha256"])
				if !ok {
					return "", hash{}, engi.Errorf(engi.Conflict, "%s: the index has no hash of it", key)
				}
				return f.URL, want, nil
			}
		}
		return "", hash{}, engi.Errorf(engi.NotFound, "no index of PyPI names %s", name)
	}}
}

// A pypiIndex is the index of a project, with the URLs of upstream.
type pypiIndex struct {
	Meta     json.RawMessage `json:"meta"`
	Name     string          `json:"name"`
	Versions []string        `json:"versions,omitempty"`
	Files    []pypiEntry     `json:"files"`
}

type pypiEntry struct {
	Filename       string            `json:"filename"`
	URL            string            `json:"url"`
	Hashes         map[string]string `json:"hashes"`
	RequiresPython *string           `json:"requires-python,omitempty"`
	Size           int64             `json:"size,omitempty"`
	Upload         string            `json:"upload-time,omitempty"`
	Yanked         json.RawMessage   `json:"yanked,omitempty"`
	CoreMetadata   json.RawMessage   `json:"core-metadata,omitempty"`
	DistMetadata   json.RawMessage   `json:"dist-info-metadata,omitempty"`
}

func (f *pypiEntry) metadataHash() string {
	for _, raw := range []json.RawMessage{f.CoreMetadata, f.DistMetadata} {
		var hashes map[string]string
		if json.Unmarshal(raw, &hashes) == nil && hashes["sha256"] != "" {
			return hashes["sha256"]
		}
	}
	return ""
}

// canonical returns the URL of a file at PyPI.
func (f *pypiEntry) canonical() string {
	if u, err := url.Parse(f.URL); err == nil {
		if tail := pypiPath.FindString(u.Path); tail != "" {
			return "https://" + pypiFiles + tail
		}
	}
	sum := f.Hashes["sha256"]
	return "https://" + pypiFiles + "/packages/" + sum[:2] + "/" + sum[2:4] + "/" + sum[4:] + "/" + f.Filename
}

// normalIndex reads an index in either form. Files without a hash are left out:
// a change of them could not be detected.
func normalIndex(base, project string, raw []byte) ([]byte, error) {
	at, err := url.Parse(base)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	var x pypiIndex
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '{' {
		if err := json.Unmarshal(trimmed, &x); err != nil {
			return nil, engi.Errorf(engi.Conflict, "it is not JSON")
		}
	} else if x.Files, err = htmlFiles(raw); err != nil {
		return nil, err
	}
	x.Name, x.Meta = project, json.RawMessage(`{"api-version":"1.1"}`)
	kept := x.Files[:0]
	for _, f := range x.Files {
		u, err := at.Parse(f.URL)
		want, ok := newHash("sha256", f.Hashes["sha256"])
		if err != nil || !ok || !pypiFile.MatchString(f.Filename) || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		u.Fragment = ""
		f.URL, f.Hashes = u.String(), map[string]string{"sha256": hex.EncodeToString(want.sum)}
		if _, ok := newHash("sha256", f.metadataHash()); !ok {
			f.CoreMetadata, f.DistMetadata = nil, nil
		}
		kept = append(kept, f)
	}
	if x.Files = kept; x.Files == nil {
		x.Files = []pypiEntry{}
	}
	return json.Marshal(x)
}

// htmlFiles reads the links of a PEP 503 page.
func htmlFiles(raw []byte) ([]pypiEntry, error) {
	var all []pypiEntry
	var open *pypiEntry
	z := tokens.NewTokenizer(bytes.NewReader(raw))
	links := 0
	for {
		switch z.Next() {
		case tokens.ErrorToken:
			if links == 0 && !bytes.Contains(bytes.ToLower(raw), []byte("<html")) {
				return nil, engi.Errorf(engi.Conflict, "it is neither JSON nor a page")
			}
			return all, nil
		case tokens.StartTagToken:
			t := z.Token()
			if t.Data != "a" {
				continue
			}
			links++
			open = &pypiEntry{Hashes: map[string]string{}}
			for _, a := range t.Attr {
				switch a.Key {
				case "href":
					address, fragment, _ := strings.Cut(a.Val, "#")
					open.URL = address
					if algorithm, sum, ok := strings.Cut(fragment, "="); ok {
						open.Hashes[algorithm] = sum
					}
				case "data-requires-python":
					open.RequiresPython = new(a.Val)
				case "data-yanked":
					open.Yanked, _ = json.Marshal(a.Val) // a string can always be encoded
				case "data-core-metadata", "data-dist-info-metadata":
					if algorithm, sum, ok := strings.Cut(a.Val, "="); ok {
						open.CoreMetadata, _ = json.Marshal(map[string]string{algorithm: sum})
					}
				}
			}
		case tokens.TextToken:
			if open != nil {
				open.Filename += strings.TrimSpace(z.Token().Data)
			}
		case tokens.EndTagToken:
			if t := z.Token(); t.Data == "a" && open != nil {
				all = append(all, *open)
				open = nil
			}
		}
	}
}

// renderIndex returns an index in the form that a program accepts, with PyPI's own
// URLs.
func renderIndex(raw []byte, accept string) ([]byte, string, error) {
	var x pypiIndex
	if err := json.Unmarshal(raw, &x); err != nil {
		return nil, "", engi.Errorf(engi.Internal, "the index in the cache cannot be read")
	}
	for i := range x.Files {
		x.Files[i].URL = x.Files[i].canonical()
	}
	if strings.Contains(accept, pypiJSON) || strings.Contains(accept, "application/vnd.pypi.simple.latest+json") {
		out, err := json.Marshal(x)
		return out, pypiJSON, err
	}
	var out bytes.Buffer
	out.WriteString("<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.1\"><title>Links for " + html.EscapeString(x.Name) + "</title></head>\n<body>\n")
	for _, f := range x.Files {
		out.WriteString(`<a href="` + html.EscapeString(f.URL) + "#sha256=" + f.Hashes["sha256"] + `"`)
		if f.RequiresPython != nil {
			out.WriteString(` data-requires-python="` + html.EscapeString(*f.RequiresPython) + `"`)
		}
		if sum := f.metadataHash(); sum != "" {
			out.WriteString(` data-core-metadata="sha256=` + html.EscapeString(sum) + `" data-dist-info-metadata="sha256=` + html.EscapeString(sum) + `"`)
		}
		var why any
		if json.Unmarshal(f.Yanked, &why) == nil && why != nil && why != false {
			text, _ := why.(string)
			out.WriteString(` data-yanked="` + html.EscapeString(text) + `"`)
		}
		out.WriteString(">" + html.EscapeString(f.Filename) + "</a><br>\n")
	}
	out.WriteString("</body></html>\n")
	return out.Bytes(), pypiHTML + "; charset=utf-8", nil
}
