package remote

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/engi-dev/engi/internal/engi"
)

// newHTTPClient returns a client that sends requests, with the server's headers,
// to the server's host only. They end when ctx does.
func newHTTPClient(ctx context.Context, s Server, next http.RoundTripper) *http.Client {
	home, err := url.Parse(s.URL)
	if err != nil { // unreachable: Validate has parsed the URL
		home = &url.URL{}
	}
	return &http.Client{
		Transport: oneHostTransport{s.Header, home, ctx, next},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 5 || req.URL.Scheme != home.Scheme || req.URL.Host != home.Host {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// A oneHostTransport sends requests to one host and limits the responses.
type oneHostTransport struct {
	header http.Header
	server *url.URL
	done   context.Context
	next   http.RoundTripper
}

func (t oneHostTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.server.Host || r.URL.Scheme != t.server.Scheme {
		return nil, engi.Errorf(engi.Denied, "the server redirects to another host, %.100s", r.URL.Host)
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(t.done, cancel)
	r = r.Clone(ctx)
	for name, values := range t.header {
		r.Header[name] = values
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	resp.Body = &limitedBody{resp.Body, maxBytes, maxLines, func() { stop(); cancel() }}
	return resp, nil
}

// maxLines is the maximum number of events in a response, which are held until handled.
const maxLines = 100_000

// A limitedBody fails when it is longer than its limit.
type limitedBody struct {
	io.ReadCloser
	left, lines int
	done        func()
}

func (b *limitedBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 || b.lines <= 0 {
		return 0, engi.Errorf(engi.Exhausted, "the response is too long")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	b.lines -= bytes.Count(p[:n], []byte("\n"))
	return n, err
}
