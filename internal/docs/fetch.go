package docs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	fetchTimeout = 30 * time.Second
	maxRedirects = 5
	concurrency  = 2                // maximum number of documents that a refresh fetches at the same time
	retryFailed  = 10 * time.Minute // pause until a failed document is fetched again
)

// A fetched is the response for a document.
type fetched struct {
	text, etag, modified string
	unchanged            bool // the document has not changed, and text is empty
}

// fetch fetches the document of a record, or determines that it has not changed since
// r was stored.
func (l *Index) fetch(ctx context.Context, r Record) (fetched, error) {
	transport := l.opt.NodeTransport
	if r.Owner != "" {
		if l.opt.OwnerTransport == nil {
			return fetched{}, engi.Errorf(engi.Unsupported, "this node fetches no documents of owners").WithRemedy("send the text of the document")
		}
		transport = l.opt.OwnerTransport(r.Owner)
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return fetched{}, engi.Errorf(engi.Invalid, "%.200q is not a web address", r.URL)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client := &http.Client{Transport: transport, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return engi.Errorf(engi.Invalid, "more than %d redirects", maxRedirects)
		}
		return nil
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fetched{}, engi.Errorf(engi.Invalid, "%.200q is not a web address", r.URL)
	}
	req.Header.Set("User-Agent", "engi")
	req.Header.Set("Accept", "text/markdown, text/plain;q=0.9, */*;q=0.1")
	if r.ETag != "" {
		req.Header.Set("If-None-Match", r.ETag)
	}
	if r.Modified != "" {
		req.Header.Set("If-Modified-Since", r.Modified)
	}
	resp, err := client.Do(req)
	if err != nil {
		if ours, ok := errors.AsType[*engi.Error](err); ok {
			return fetched{}, engi.Errorf(ours.Kind, "fetch %s: %s", u.Host, ours.Text).WithRemedy("%s", engi.RemedyOf(ours))
		}
		return fetched{}, engi.Errorf(engi.Unavailable, "fetch %s: no answer: %v", u.Host, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified && r.Digest != "" {
		return fetched{unchanged: true}, nil
	}
	if err := statusError(u.Host, resp.StatusCode); err != nil {
		return fetched{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, engi.MaxDocument+1))
	if err != nil {
		return fetched{}, engi.Errorf(engi.Unavailable, "fetch %s: read the answer: %v", u.Host, err)
	}
	if kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); strings.EqualFold(strings.TrimSpace(kind), "text/html") {
		return fetched{}, engi.Errorf(engi.Invalid, "%s answers with HTML", u.Host).
			WithRemedy("%s", markdownRemedy)
	}
	return fetched{string(bytes.TrimPrefix(raw, []byte("\ufeff"))), clip.Bytes(resp.Header.Get("ETag"), maxURL), clip.Bytes(resp.Header.Get("Last-Modified"), maxURL), false}, nil
}

func statusError(host string, code int) error {
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return engi.Errorf(engi.Denied, "%s answers %d", host, code).WithRemedy("choose a public document, or send its text")
	case code == http.StatusTooManyRequests || code >= 500:
		return engi.Errorf(engi.Unavailable, "%s answers %d", host, code)
	}
	return engi.Errorf(engi.Invalid, "%s answers %d", host, code).WithRemedy("check the address of the document")
}

// Refresh implements [engi.Docs].
func (l *Index) Refresh(ctx context.Context, viewer engi.Viewer, id engi.DocumentID) (_ []engi.Document, err error) {
	defer engi.Annotate(&err, "refresh documents")
	var records []Record
	if id != "" {
		r, err := l.editable(ctx, viewer, id)
		if err != nil {
			return nil, err
		}
		records = []Record{r}
	} else {
		if viewer.Sees("") {
			l.syncConfigured(ctx)
		}
		if records, err = l.opt.Store.Records(ctx, Filter{Collections: []string{documentCollection(viewer.Owner())}, Documents: true}); err != nil {
			return nil, err
		}
	}
	list := make([]engi.Document, len(records))
	l.forEach(ctx, len(records), func(i int) { list[i] = l.refresh(ctx, records[i]).Document })
	if ctx.Err() != nil {
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	return list, nil
}

// forEach calls f with 0 to n-1, a few at a time, until ctx ends.
func (l *Index) forEach(ctx context.Context, n int, f func(int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrency)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// refresh fetches a document again. A failure is recorded, and the earlier text
// is kept.
func (l *Index) refresh(ctx context.Context, r Record) Record {
	if !r.Fetched {
		return r
	}
	a, err := l.fetch(ctx, r)
	switch {
	case err != nil:
		return l.recordFailure(ctx, r, err)
	case a.unchanged:
		r.State, r.Error, r.Checked = engi.DocumentReady, nil, time.Now().UTC()
		now, err := l.store(ctx, r, nil)
		if err != nil {
			return l.recordFailure(ctx, r, err)
		}
		return now
	}
	fresh := r
	fresh.ETag, fresh.Modified = a.etag, a.modified
	fresh, err = l.ingest(ctx, fresh, a.text)
	if err != nil {
		return l.recordFailure(ctx, r, err)
	}
	return fresh
}

// recordFailure records the reason why a document could not be read.
func (l *Index) recordFailure(ctx context.Context, r Record, why error) Record {
	if ctx.Err() != nil {
		return r
	}
	l.log.Warn("read a document", "url", r.URL, "error", why)
	r.State, r.Checked = engi.DocumentFailed, time.Now().UTC()
	r.Error = engi.Errorf(engi.KindOf(why), "%s", why).WithRemedy("%s", engi.RemedyOf(why))
	if r.Title == "" {
		r.Title = r.URL
	}
	kept, err := l.store(ctx, r, nil)
	if err != nil {
		l.log.Warn("store a document", "url", r.URL, "error", err)
		return r
	}
	return kept
}

// refreshStale fetches documents again that are older than MaxAge or have failed.
func (l *Index) refreshStale(ctx context.Context) {
	records, err := l.opt.Store.Records(ctx, Filter{Documents: true})
	if err != nil {
		l.log.Warn("refresh documents", "error", err)
		return
	}
	now := time.Now()
	records = slices.DeleteFunc(records, func(r Record) bool {
		age := now.Sub(r.Checked)
		return !r.Fetched || age < l.opt.MaxAge && (r.State != engi.DocumentFailed || age < retryFailed)
	})
	l.forEach(ctx, len(records), func(i int) { l.refresh(ctx, records[i]) })
}
