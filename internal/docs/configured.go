package docs

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// syncConfigured adds the documents that the configuration names, reads its
// files again, and removes documents that it no longer names.
func (l *Index) syncConfigured(ctx context.Context) {
	records, err := l.opt.Store.Records(ctx, Filter{Collections: []string{documentCollection("")}, Documents: true})
	if err != nil {
		l.log.Warn("read the node's documents", "error", err)
		return
	}
	type key struct{ pkg, place string }
	have := map[key]Record{}
	for _, r := range records {
		have[key{r.Package, r.Key}] = r
	}
	wanted := map[key]bool{}
	var fetch []Record
	for _, spec := range l.opt.Sources {
		spec.Owner = ""
		place := spec.URL
		if place == "" {
			place = spec.Title
		}
		k := key{spec.Package, place}
		if wanted[k] {
			continue
		}
		wanted[k] = true
		if spec.Text != "" {
			if r, err := l.add(ctx, spec, true); err != nil {
				l.log.Warn("read a document of the configuration", "title", spec.Title, "error", err)
			} else {
				wanted[key{r.Package, r.Key}] = true
			}
			continue
		}
		if r, ok := have[k]; ok && r.Configured {
			continue
		}
		r := have[k]
		if r.ID == "" {
			r = Record{Document: engi.Document{ID: engi.NewDocumentID(), Package: spec.Package, Title: spec.Title, URL: spec.URL, State: engi.DocumentReading}, Collection: documentCollection(""), Key: spec.URL}
		}
		r.Fetched, r.Configured = true, true
		if err := checkSpec(spec); err != nil {
			l.recordFailure(ctx, r, err)
			continue
		}
		if r, err = l.store(ctx, r, nil); err != nil {
			l.log.Warn("record a document", "url", r.URL, "error", err)
			continue
		}
		fetch = append(fetch, r)
	}
	l.forEach(ctx, len(fetch), func(i int) { l.refresh(ctx, fetch[i]) })
	complete := l.readFiles(ctx, func(r Record) { wanted[key{r.Package, r.Key}] = true })
	if ctx.Err() != nil || !complete {
		return
	}
	var gone []engi.DocumentID
	for k, r := range have {
		if r.Configured && !wanted[k] {
			gone = append(gone, r.ID)
		}
	}
	if len(gone) > 0 {
		if err := l.remove(ctx, documentCollection(""), gone); err != nil {
			l.log.Warn("remove documents that are no longer configured", "error", err)
		}
	}
}

const maxFiles = 5000 // maximum number of files of one File

// readFiles adds the configured files and calls wanted for each. It reports
// whether it could list all of them.
func (l *Index) readFiles(ctx context.Context, wanted func(Record)) bool {
	complete := true
	for _, f := range l.opt.Files {
		paths, err := f.list()
		if err != nil {
			l.log.Warn("read documents of the configuration", "path", f.Path, "error", err)
			complete = false
		}
		for _, p := range paths {
			if ctx.Err() != nil {
				return false
			}
			r := Record{
				Document:   engi.Document{ID: engi.NewDocumentID(), Package: f.Package},
				Collection: documentCollection(""), Key: filePrefix + p, Configured: true,
			}
			wanted(r)
			raw, err := readFile(p)
			if err == nil {
				_, err = l.ingest(ctx, r, string(raw))
			}
			if err != nil && ctx.Err() == nil {
				l.log.Warn("read a document of the configuration", "path", p, "error", err)
			}
		}
	}
	return complete
}

func readFile(p string) ([]byte, error) {
	f, err := os.Open(p)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, engi.MaxDocument+1))
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	return raw, nil
}

// list returns the absolute paths of the files that f names, in order.
func (f File) list() ([]string, error) {
	matches, err := filepath.Glob(f.Path)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "%.200q is not a pattern", f.Path)
	}
	if len(matches) == 0 {
		return nil, engi.Errorf(engi.NotFound, "there is no such file")
	}
	var list []string
	for _, m := range matches {
		if m, err = filepath.Abs(m); err != nil {
			return list, engi.Errorf(engi.Internal, "%v", err)
		}
		err := filepath.WalkDir(m, func(p string, d fs.DirEntry, err error) error {
			switch ext := strings.ToLower(filepath.Ext(p)); {
			case err != nil:
				return err
			case d.IsDir() && p != m && strings.HasPrefix(d.Name(), "."):
				return fs.SkipDir
			case d.IsDir(), p != m && ext != ".md" && ext != ".markdown" && ext != ".txt":
				return nil
			}
			if len(list) == maxFiles {
				return fs.SkipAll
			}
			list = append(list, p)
			return nil
		})
		if err != nil {
			return list, engi.Errorf(engi.Unavailable, "%v", err)
		}
	}
	return list, nil
}
