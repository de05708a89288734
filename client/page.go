package client

import (
	"context"
	"crypto/rand"
	"io"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

func pagePath(session string) string { return sessions + segment(session) + "/page" }

// Act sends a user's action on the page of a session to its model, and
// returns at once the seq after which [Client.WatchPage] shows the answer. With
// the key of an earlier action, it returns that action and starts nothing. Without a key, a
// broken connection still sends no second action.
func (c *Client) Act(ctx context.Context, session string, q v1.PageActionRequest, key string) (int64, error) {
	if key == "" {
		key = rand.Text()
	}
	x, err := ask[v1.PageAction](ctx, c, &call{method: http.MethodPost, path: pagePath(session) + "/actions", body: q, header: http.Header{keyHeader: {key}}})
	return x.Seq, err
}

// Page returns the page of a session after the event with the seq at; 0 means now.
func (c *Client) Page(ctx context.Context, session string, at int64) (v1.Page, error) {
	query := set()
	if at != 0 {
		query = set("at", offset(at))
	}
	return get[v1.Page](ctx, c, pagePath(session), query)
}

// WatchPage yields the whole page of a session and then its updates; or, with a
// seq above 0, only the updates after it. It resumes a broken
// stream where it left off, also after a restart of the server. It ends with ctx or
// an error.
func (c *Client) WatchPage(ctx context.Context, session string, after int64) iter.Seq2[v1.PageUpdate, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: pagePath(session) + "/stream", query: set("after", offset(after)), header: ndjson()}
	}
	read := func(e v1.PageUpdate) (string, *v1.Problem) {
		if e.Type == v1.PageBad && e.Error == nil {
			return "", nil // the update does not belong to the stream
		}
		return e.Type, e.Error
	}
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.PageUpdate]{read: read}, func(e *v1.PageUpdate) (wanted, last bool) {
		after = max(after, e.Seq)
		return true, false
	})
}

// StreamPage returns the stream of the page of a session in another protocol, unchanged:
// ai-sdk, ag-ui, json-render or a2ui. The caller closes it. With a seq above
// 0 it continues after that; it does not resume by itself. In ai-sdk it contains one answer,
// the running one from its beginning, and is empty if there is none.
func (c *Client) StreamPage(ctx context.Context, session, format string, after int64) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &call{method: http.MethodGet, path: pagePath(session) + "/stream", query: set("format", format, "after", offset(after)), header: http.Header{"Accept": {"*/*"}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// CancelPage cancels the running answer on the page of a session, and drops
// the waiting actions.
func (c *Client) CancelPage(ctx context.Context, session string) error {
	return c.act(ctx, &call{method: http.MethodPost, path: pagePath(session) + "/cancel"})
}

// RestorePage restores the page of a session to its state after the event with the seq at.
func (c *Client) RestorePage(ctx context.Context, session string, at int64) (v1.Page, error) {
	return create[v1.Page](ctx, c, pagePath(session)+"/restore", v1.PageRestoreRequest{Seq: at})
}
