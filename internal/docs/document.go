package docs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxURL     = 2000    // maximum bytes of a URL
	filePrefix = "file:" // prefix of the key of a document in the local file system
)

// Add implements [engi.Docs].
func (l *Index) Add(ctx context.Context, spec engi.DocumentSpec) (_ engi.Document, err error) {
	defer engi.Annotate(&err, "add document")
	r, err := l.add(ctx, spec, false)
	return r.Document, err
}

// add adds a document of a caller or of the configuration.
func (l *Index) add(ctx context.Context, spec engi.DocumentSpec, configured bool) (Record, error) {
	if err := checkSpec(spec); err != nil {
		return Record{}, err
	}
	r := Record{
		Document: engi.Document{
			ID: engi.NewDocumentID(), Owner: spec.Owner, Package: spec.Package, Title: spec.Title, URL: spec.URL, Fetched: spec.Text == "",
		},
		Collection: documentCollection(spec.Owner), Key: spec.URL, Configured: configured,
	}
	text := spec.Text
	if r.Fetched {
		a, err := l.fetch(ctx, r)
		if err != nil {
			return r, err
		}
		text, r.ETag, r.Modified = a.text, a.etag, a.modified
	}
	return l.ingest(ctx, r, text)
}

func checkSpec(spec engi.DocumentSpec) error {
	switch {
	case spec.URL == "" && spec.Text == "":
		return engi.Errorf(engi.Invalid, "it has neither a URL nor text").WithRemedy("set one of them")
	case len(spec.Package) > maxName || len(spec.Title) > maxHeading || !utf8.ValidString(spec.Package+spec.Title) ||
		strings.ContainsFunc(spec.Package+spec.Title, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return engi.Errorf(engi.Invalid, "its package or title is not one line of at most %d bytes", maxName)
	}
	if spec.URL == "" {
		return nil
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || len(spec.URL) > maxURL {
		return engi.Errorf(engi.Invalid, "%.200q is not a web address", spec.URL).WithRemedy("use http or https, without a user")
	}
	return nil
}

// ingest splits a text into chunks, computes their vectors and stores them with
// r. If the text is already stored, only the record changes.
func (l *Index) ingest(ctx context.Context, r Record, text string) (Record, error) {
	if err := checkText(text); err != nil {
		return r, err
	}
	sum := sha256.Sum256([]byte(text))
	now := time.Now().UTC()
	r.Digest, r.Bytes, r.State, r.Error, r.Checked, r.Changed = hex.EncodeToString(sum[:]), int64(len(text)), engi.DocumentReady, nil, now, now
	var old Record
	var err error
	if r.Key != "" {
		if old, err = l.existing(ctx, r); err != nil {
			return r, err
		}
		if old.Digest == r.Digest && (strings.HasPrefix(r.Key, filePrefix) || old.Title == r.Title) {
			r.Title, r.Chunks, r.Changed = old.Title, old.Chunks, old.Changed
			return l.store(ctx, r, nil)
		}
	}
	heading, sure, chunks := split(text)
	if !sure && (heading != "" || !strings.HasPrefix(r.Key, filePrefix)) {
		heading = cmp.Or(r.Package, heading) // files without headings have names
	}
	if len(chunks) > maxChunks {
		return r, engi.Errorf(engi.Invalid, "it has more than %d sections", maxChunks).WithRemedy("split it into several documents")
	}
	if r.Title = titleOf(r, heading); r.Title == "" {
		return r, engi.Errorf(engi.Invalid, "it has no title").WithRemedy("give a title, or begin the text with a heading")
	}
	r.Chunks = len(chunks)
	if r.Key == "" {
		r.Key = r.Title
		if old, err = l.existing(ctx, r); err != nil {
			return r, err
		}
	}
	if old.Digest == r.Digest && old.Title == r.Title {
		r.Changed = old.Changed
		return l.store(ctx, r, nil)
	}
	for i := range chunks {
		chunks[i].Identifiers = identifierParts(strings.Join(chunks[i].Headings, " ") + " " + chunks[i].Text)
		chunks[i].Hash = hash(embeddingText(r.Title, chunks[i]))
	}
	if err := l.reuseVectors(ctx, old, chunks); err != nil {
		return r, err
	}
	l.embedMissing(ctx, r.Owner, r.Title, chunks)
	return l.store(ctx, r, chunks)
}

func checkText(text string) error {
	switch {
	case len(text) > engi.MaxDocument:
		return engi.TooLarge("it has more than %d bytes", engi.MaxDocument).WithRemedy("split it into several documents")
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return engi.Errorf(engi.Invalid, "it is not text in UTF-8").WithRemedy("give Markdown or plain text")
	case strings.TrimSpace(text) == "":
		return engi.Errorf(engi.Invalid, "it is empty").WithRemedy("give Markdown or plain text")
	case isHTML(text):
		return engi.Errorf(engi.Invalid, "it is HTML").WithRemedy("%s", markdownRemedy)
	}
	return checkSize(text)
}

// markdownRemedy is the remedy for a page of HTML.
const markdownRemedy = "give the address of the Markdown, which many sites serve under the same address with .md"

func isHTML(text string) bool {
	head := strings.ToLower(clip.Bytes(strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")), 200))
	return strings.HasPrefix(head, "<!doctype html") || strings.HasPrefix(head, "<html")
}

// titleOf returns the title of a document: as given, or its first heading, or
// the last part of its URL or path.
func titleOf(r Record, heading string) string {
	if title := cmp.Or(r.Title, heading); title != "" {
		return title
	}
	if u, err := url.Parse(r.URL); err == nil && r.URL != "" {
		if base := path.Base(u.Path); strings.Trim(base, "./") != "" {
			return base
		}
		return u.Host
	}
	if file, ok := strings.CutPrefix(r.Key, filePrefix); ok {
		return clip.Bytes(strings.ToValidUTF8(filepath.Base(file), ""), maxHeading)
	}
	return ""
}

// existing returns the record that r will replace; a zero record if there is none.
func (l *Index) existing(ctx context.Context, r Record) (Record, error) {
	old, err := l.opt.Store.Records(ctx, Filter{Collections: []string{r.Collection}, Key: r.Key, Package: r.Package})
	if err != nil || len(old) == 0 {
		return Record{}, err
	}
	return old[0], nil
}
