package tool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

type fetchURLArgs struct {
	URL string `json:"url" jsonschema:"http or https"`
}

type readResultArgs struct {
	Call   string `json:"call" jsonschema:"ID, as in the truncated result"`
	Offset int    `json:"offset,omitempty" jsonschema:"in bytes"`
}

const (
	maxPage      = 1 << 20 // bytes; the rest is not read
	fetchTimeout = 30 * time.Second
	maxRedirects = 5

	// ResultLimit is the maximum number of bytes of a result that a model sees at once.
	ResultLimit = 16 << 10
)

func fetchTools(s Services) ([]Tool, error) {
	more, err := New("read_result", "Reads more of a truncated result.", func(ctx context.Context, c *Call, a readResultArgs) (Result, error) {
		if c.FullResult == nil {
			return Result{}, engi.Errorf(engi.NotFound, "there are no results to read")
		}
		raw, err := c.FullResult(ctx, a.Call)
		if err != nil {
			return Result{}, err
		}
		if a.Offset < 0 || a.Offset > len(raw) {
			return Result{}, engi.Errorf(engi.Invalid, "offset %d is not within the %d bytes", a.Offset, len(raw))
		}
		end := a.Offset + clip.Index(raw[a.Offset:], ResultLimit-200)
		return Result{Text: strings.ToValidUTF8(string(raw[a.Offset:end]), "\ufffd") + fmt.Sprintf("\n(bytes %d to %d of %d)", a.Offset, end, len(raw))}, nil
	})
	more.Repeatable = true
	if err != nil || s.Fetch == nil {
		return []Tool{more}, err
	}
	page, err := New("fetch_url", "Fetches a page or file from an allowed host as text.", func(ctx context.Context, c *Call, a fetchURLArgs) (Result, error) {
		return s.fetchURL(ctx, c, a)
	})
	page.Repeatable = true
	return []Tool{more, page}, err
}

func (s Services) fetchURL(ctx context.Context, c *Call, a fetchURLArgs) (Result, error) {
	u, err := url.Parse(a.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return Result{}, engi.Errorf(engi.Invalid, "%.200q is not a web address", a.URL).WithRemedy("use http or https, without a user")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client := &http.Client{Transport: s.Fetch(c.Owner), CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return engi.Errorf(engi.Invalid, "more than %d redirects", maxRedirects)
		}
		return nil
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Result{}, engi.Errorf(engi.Invalid, "%.200q is not a web address", a.URL)
	}
	req.Header.Set("User-Agent", "engi")
	resp, err := client.Do(req)
	if err != nil {
		return Failure(engi.Errorf(engi.Unavailable, "fetch %s: %v", u.Host, err)), nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		return Failure(engi.Errorf(engi.Unavailable, "fetch %s: %v", u.Host, err)), nil
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	text := fmt.Sprintf("%s %s\n", resp.Status, kind)
	if strings.ContainsRune(string(raw[:min(len(raw), 512)]), 0) {
		return Result{Text: text + fmt.Sprintf("(binary, %d bytes)", len(raw)), Failed: resp.StatusCode >= 400}, nil
	}
	return Result{Text: text + strings.ToValidUTF8(string(raw), "\ufffd"), Failed: resp.StatusCode >= 400}, nil
}
