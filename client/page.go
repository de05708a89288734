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

// Act tells the model behind the page of a session what somebody did on it, and
// returns at once the seq after which [Client.WatchPage] shows the answer. An action
// with the key of an earlier one is that action and starts nothing. Without a key, a
// broken connection still makes no second action.
func (c *Client) Act(ctx context.Context, session string, q v1.PageActionRequest, key string) (int64, error) {
	if key == "" {
		key = rand.Text()
	}
	x, err := ask[v1.PageAction](ctx, c, &call{method: http.MethodPost, path: pagePath(session) + "/actions", body: encode(q), header: http.Header{keyHeader: {key}}})
	return x.Seq, err
}

// Page returns the page of a session as it was after the event of a seq; 0 means now.
func (c *Client) Page(ctx context.Context, session string, at int64) (v1.Page, error) {
	query := set()
	if at != 0 {
		query = set("at", offset(at))
	}
	return get[v1.Page](ctx, c, pagePath(session), query)
}

// WatchPage yields the whole page of a session and then what happens to it; or, with a
// seq above 0, what has happened after it and what comes. It comes back to a broken
// stream where it left off, also after the server was restarted. It ends with ctx or
// an error.
func (c *Client) WatchPage(ctx context.Context, session string, after int64) iter.Seq2[v1.PageUpdate, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: pagePath(session) + "/stream", query: set("after", offset(after)), header: ndjson()}
	}
	read := func(e v1.PageUpdate) (string, *v1.Problem) {
		if e.Type == v1.PageBad && e.Error == nil {
			return "", nil // it is not the stream's
		}
		return e.Type, e.Error
	}
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.PageUpdate]{read: read}, func(e *v1.PageUpdate) (wanted, last bool) {
		after = max(after, e.Seq)
		return true, false
	})
}

// StreamPage returns the stream of the page of a session in another protocol, as the
// server sends it: ai-sdk, ag-ui, json-render or a2ui. The caller closes it. With a seq above
// 0 it goes on after that; it does not come back by itself. In ai-sdk it has one answer,
// the one that was being given then from its beginning, and is empty if there is none.
func (c *Client) StreamPage(ctx context.Context, session, format string, after int64) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &call{method: http.MethodGet, path: pagePath(session) + "/stream", query: set("format", format, "after", offset(after)), header: http.Header{"Accept": {"*/*"}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// CancelPage ends the answer that is being given on the page of a session, and forgets
// the actions that wait.
func (c *Client) CancelPage(ctx context.Context, session string) error {
	return c.act(ctx, &call{method: http.MethodPost, path: pagePath(session) + "/cancel"})
}

// RestorePage makes the page of a session what it was after the event of a seq.
func (c *Client) RestorePage(ctx context.Context, session string, at int64) (v1.Page, error) {
	return create[v1.Page](ctx, c, pagePath(session)+"/restore", v1.PageRestoreRequest{Seq: at})
}
